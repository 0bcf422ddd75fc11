"""An open external episode: what its caller said, turn by turn, until the sampler takes it.

`menv.switchboard` keeps one for each episode and guards it with its lock, `menv.adapters.external` reads the turns. It
knows neither threads nor spaces.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from menv.backlog import EACH, Backlog
from menv.base_env import ALL, AgentId
from menv.errors import ContractError
from menv.played import Played

Answer: TypeAlias = Callable[[Mapping[AgentId, Any] | BaseException], None]
"""Takes the actions of all agents that were asked for, or why there are none; called in the sampler's thread."""
Paid: TypeAlias = tuple[Mapping[AgentId, Any], Mapping[AgentId, Any], Mapping[AgentId, bool], int]
"""Rewards, infos and done flags by agent, and what these count for in the backlog, in bytes."""
Call: TypeAlias = tuple[str, Mapping[AgentId, Any], Answer, int, Paid | None]
"""A question: the episode's id, observations by agent, who takes the actions, bytes, and what was paid before."""
_NOTHING: dict[Any, Any] = {}
"""What nearly every turn has of infos and the like; nobody writes into it."""


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

    @property
    def plain(self) -> bool:
        """Whether it is an observation and nothing else."""
        return not (self.rewards or self.infos or self.done or self.over)

    def tell(self, actions: Mapping[AgentId, Any] | BaseException) -> None:
        """Answer whoever asked, once: where this environment is stopped meanwhile, whoever is first does."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(actions)


class Line:
    """One open episode.

    Attributes:
        episode_id: Its id.
        trained: Whether policies may learn from it.
        backlog: Counts the bytes of what waits here.
        turns: What was said and the sampler has not taken.
        sizes: What each of them counts for in the backlog, in bytes.
        untold: What has been told since the last of them counts for, in bytes.
        rewards: Paid since the last turn, by agent; so are `infos` and `done`.
        asked: Whether a caller waits for actions.
        busy: Whether the sampler has taken a turn that is not answered; only it writes this.
        begun: Whether the sampler has taken anything of it.
        over: Whether its last turn has been said.
        lost: Why it was broken off, None if it was not.
        place: Its place among those in which something was said, in the order of saying.
        plays: Whether pieces have been handed in, beside which callers make no moves; None before anything is said.
        steady: Whether its next question may be one of a `Round`: one agent was answered, and nothing has been said
            since but questions of rounds.
    """

    __slots__ = (
        "asked",
        "backlog",
        "begun",
        "busy",
        "done",
        "episode_id",
        "infos",
        "lost",
        "over",
        "place",
        "plays",
        "rewards",
        "sizes",
        "steady",
        "trained",
        "turns",
        "untold",
    )

    def __init__(self, episode_id: str, trained: bool, backlog: Backlog | None = None) -> None:
        self.episode_id = episode_id
        self.trained = trained
        self.backlog = backlog or Backlog()
        self.sizes: deque[int] = deque()
        self.untold = self.place = 0
        self.turns: deque[Turn | Played] = deque()
        self.asked = self.busy = False
        self.begun = self.over = self.steady = False
        self.lost: str | None = None
        self.plays: bool | None = None
        self.rewards: dict[AgentId, float] = {}
        self.infos: dict[AgentId, Mapping[str, Any]] = {}
        self.done: dict[AgentId, bool] = {}

    def turn(self, obs: Mapping[AgentId, Any] | None, answer: Answer | None = None) -> Turn:
        """Return a turn with all that has been paid and told since the last one."""
        rewards, infos, done = self.rewards, self.infos, self.done
        if not (rewards or infos or done):
            return Turn(obs, _NOTHING, _NOTHING, _NOTHING, None, None, answer)
        self.rewards, self.infos, self.done = {}, {}, {}
        return Turn(obs, rewards, infos, done, None, None, answer)

    def pay(
        self,
        rewards: Mapping[AgentId, Any],
        infos: Mapping[AgentId, Mapping[str, Any]],
        done: Mapping[AgentId, bool],
        size: int = 0,
    ) -> None:
        """Note rewards, which add up, and what else goes with the next turn.

        Raises:
            ContractError: A reward is not a finite number; nothing has been noted then.
        """
        self.steady = False
        checked = {agent: finite_reward(reward, self.episode_id, agent) for agent, reward in rewards.items()}
        self.untold += size
        self.backlog.add(size)
        for agent, number in checked.items():
            self.rewards[agent] = self.rewards.get(agent, 0.0) + number
        self.infos.update(infos)
        self.done.update({agent: flag for agent, flag in done.items() if flag and agent != ALL})

    def push(self, turn: Turn | Played, size: int) -> None:
        """Add what was said to the end of the line."""
        size += EACH
        self.steady = False
        self.backlog.add(size)
        self.sizes.append(size + self.untold)
        self.untold = 0
        self.turns.append(turn)

    def pop(self) -> Turn | Played:
        """Take what was said first."""
        self.begun = True
        self.backlog.add(-self.sizes.popleft())
        return self.turns.popleft()

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


def finite_reward(reward: Any, episode_id: str, agent: AgentId) -> float:
    """Return what a caller pays as a float.

    Raises:
        ContractError: It is no finite number.
    """
    if isinstance(reward, int | float | np.number | np.bool_) or (
        isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "fiub"
    ):
        try:
            number = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        got = str(number)
    else:
        got = type(reward).__name__
    raise ContractError(
        f"log_returns: episode {episode_id!r}: the reward of {agent!r} is {got}, expected a finite number; pay a float"
    )
