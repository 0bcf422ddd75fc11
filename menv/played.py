"""What somebody else played: a piece of an episode whose actions a client chose itself, as whole columns.

A serving session hands it to the `Switchboard`, the adapter of external environments adds who it was, and
`menv.loop.played_rows` writes it down. It is never changed after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId
from menv.segments import Column


@dataclass(frozen=True, slots=True)
class Moves:
    """What one agent did in a piece of an episode; n actions, n >= 0.

    Attributes:
        obs: n + 1 elements of its observation space, as a list or an array. The first one is the last of the
            agent's piece before.
        actions: n elements of its action space, or [n, ...] in the network's own form.
        rewards: [n] float64, what each action earned.
        terminated: Whether the agent's trajectory ended by the environment's own rule.
        truncated: Whether it was cut short.
        logp: [n] log-probabilities of the actions, None if nobody knows them.
        dist_inputs: [n, K] what the actions were drawn from, None if nobody says.
        state_in: [n, S] recurrent states before the actions, None if nobody says.
        env_t: [n + 1] env step of the episode in which each observation was seen, None if nobody says.
        network_form: Whether `actions` are in the network's own form, and `logp` and `dist_inputs` speak of these.
    """

    obs: Any
    actions: Any
    rewards: npt.NDArray[np.float64]
    terminated: bool = False
    truncated: bool = False
    logp: Column | None = None
    dist_inputs: Column | None = None
    state_in: Column | None = None
    env_t: Column | None = None
    network_form: bool = False

    @property
    def over(self) -> bool:
        """Whether the trajectory ends with the last observation."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class Played:
    """A piece of an episode.

    Attributes:
        agents: What each agent did.
        env_steps: Length of the piece.
        terminated: Whether the episode ended with it.
        truncated: Whether it was cut short.
        weights_seq_no: The weights that chose the actions; None if nobody says.
        policies: Who answers for which agent, as far as the client was told; the mapping decides of others.
        unclaimed: What was paid to agents that no action of theirs can own.
    """

    agents: Mapping[AgentId, Moves]
    env_steps: int
    terminated: bool = False
    truncated: bool = False
    weights_seq_no: int | None = None
    policies: Mapping[Any, str] = field(default_factory=dict)
    unclaimed: Mapping[Any, float] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the episode ends with this piece."""
        return self.terminated or self.truncated
