"""A line: one open external episode, as its callers and the sampler share it.

`menv.switchboard` keeps the lines; the adapter of external environments takes their turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from menv.base_env import AgentId
from menv.played import Played

Answer: TypeAlias = Callable[[Mapping[AgentId, Any] | BaseException], None]
"""Takes the actions of all agents that were asked for, or why there are none; called in the sampler's thread."""


@dataclass(slots=True)
class Turn:
    """An observation that was handed in, and what had come before it.

    Attributes:
        obs: By agent; None where the episode was lost.
        rewards: Paid since the turn before, by agent.
        infos: The last info dict of each agent since then.
        done: Agents whose own trajectories end.
        actions: What the caller chose itself, by agent; None if it asks.
        over: `(terminated, truncated)` if the episode ends, else None.
        answer: Takes the actions.
    """

    obs: Mapping[AgentId, Any] | None
    rewards: dict[AgentId, float] = field(default_factory=dict)
    infos: dict[AgentId, Mapping[str, Any]] = field(default_factory=dict)
    done: dict[AgentId, bool] = field(default_factory=dict)
    actions: Mapping[AgentId, Any] | None = None
    over: tuple[bool, bool] | None = None
    answer: Answer | None = None


class Line:
    """One open episode.

    Attributes:
        episode_id: Its id.
        trained: Whether policies may learn from it.
        turns: What was said and the sampler has not taken.
        asked: Whether a caller waits for actions.
        busy: Whether the sampler has taken a turn that is not answered; only it writes this.
    """

    __slots__ = ("asked", "busy", "done", "episode_id", "infos", "plays", "rewards", "trained", "turns")

    def __init__(self, episode_id: str, trained: bool) -> None:
        self.episode_id = episode_id
        self.trained = trained
        self.turns: deque[Turn | Played] = deque()
        self.asked = False
        self.busy = False
        # Whether pieces have been handed in; the callers' own moves do not go with them.
        self.plays: bool | None = None
        self.rewards: dict[AgentId, float] = {}
        self.infos: dict[AgentId, Mapping[str, Any]] = {}
        self.done: dict[AgentId, bool] = {}

    def turn(self, obs: Mapping[AgentId, Any] | None) -> Turn:
        """Return a turn with all that has been paid and told since the last one."""
        turn = Turn(obs, self.rewards, self.infos, self.done)
        self.rewards, self.infos, self.done = {}, {}, {}
        return turn

    def owed(self) -> dict[AgentId, float]:
        """Return what was paid and has not been taken, by agent."""
        owed = dict(self.rewards)
        for turn in self.turns:
            paid = (
                {agent: float(moves.rewards.sum()) for agent, moves in turn.agents.items()}
                if isinstance(turn, Played)
                else turn.rewards
            )
            for agent, reward in paid.items():
                owed[agent] = owed.get(agent, 0.0) + reward
        return owed
