"""Trajectories of a ledger, as columns: whose they are, and what of them has left already.

`menv.ledger` keeps them. Nothing here is a Python object per trajectory, so that thousands of agents
that live on cost nothing when a fragment closes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from menv.segments import Column

_NAMES = ("policy", "agent_id")


class Start(NamedTuple):
    """A trajectory that begins.

    Attributes:
        slot: Its slot.
        policy: Index of the policy that answers.
        eps_id: Its episode.
        agent_index: The agent's number within the episode.
        env_index: The sub-environment's index.
        life: A key, 63 bits, of the env index among all, the agent, and which of its lives in the episode it is.
    """

    slot: int
    policy: int
    eps_id: int
    agent_index: int
    env_index: int
    life: int = 0


@dataclass(slots=True)
class Trajectories:
    """S trajectories, one entry each in every array.

    Attributes:
        slot: [S].
        policy: [S].
        eps_id: [S].
        agent_index: [S].
        env_index: [S].
        agent_id: [S] of objects, for messages.
        released: [S] rows that have left the ledger.
        prev_action: [S, ...] the last action that has left, zeros if none has.
        prev_reward: [S] its reward.
        life: [S].
        excluded: [S] True where the last info that has `training_enabled` says False.
    """

    slot: Column
    policy: Column
    eps_id: Column
    agent_index: Column
    env_index: Column
    agent_id: Column
    released: Column
    prev_action: Column
    prev_reward: Column
    life: Column
    excluded: Column

    @classmethod
    def begun(cls, starts: Sequence[int] | Column, agent_ids: Sequence[Any], actions: Column) -> Trajectories:
        """Return trajectories of which nothing has left.

        Args:
            starts: The fields of one `Start` after the other.
            agent_ids: [S].
            actions: Shows shape and dtype of an action.
        """
        count = len(agent_ids)
        slot, policy, eps_id, agent_index, env_index, life = np.array(starts, np.int64).reshape(count, 6).T
        return cls(
            slot,
            policy,
            eps_id,
            agent_index,
            env_index,
            np.fromiter(agent_ids, object, count),
            np.zeros(count, np.int64),
            np.zeros((count, *actions.shape[1:]), actions.dtype),
            np.zeros(count, np.float64),
            life,
            np.zeros(count, np.bool_),
        )

    def state(self) -> dict[str, Column]:
        """Return all that is no name: the arrays but those of policies and agents."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in _NAMES}

    @classmethod
    def from_state(cls, policy: Column, agent_ids: Sequence[Any], state: Mapping[str, Any]) -> Trajectories:
        """Return the trajectories of which `state` told.

        Args:
            policy: [S] index of the policy that answers for each by now.
            agent_ids: [S].
            state: May hold more.
        """
        count = len(agent_ids)
        own = {name: state[name] for name in cls.__slots__ if name not in _NAMES}
        return cls(**own | {"policy": policy, "agent_id": np.fromiter(agent_ids, object, count)})

    def take(self, which: Column | slice) -> Trajectories:
        """Return the trajectories selected by a mask or by indices."""
        return Trajectories(*(getattr(self, name)[which] for name in self.__slots__))

    def and_then(self, others: Trajectories) -> Trajectories:
        """Return these trajectories and `others`, by slot; those that share one stay in order."""
        pairs = [(getattr(self, name), getattr(others, name)) for name in self.__slots__]
        together = Trajectories(*(np.concatenate(pair) for pair in pairs))
        return together.take(np.argsort(together.slot, kind="stable"))
