"""An open external episode: what its caller said, turn by turn, until the sampler takes it.

`menv.adapters.episode_broker` keeps one for each episode and guards it with its lock, `menv.adapters.external` reads
the turns. It knows neither threads nor spaces.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.base_env import ALL, SINGLE_AGENT, AgentId, ExternalTrajectory, FloatArray
from menv.errors import ContractError

# SEAM menv.backlog
# Backlog: how many bytes of what a caller said still wait for the sampler.
#
# The switchboard counts, under its lock; a serving session looks before it takes more.


EACH = 1_000
"""What a turn or a piece costs beside its numbers."""


class ByteBudget:
    """A count, and that of all callers together of which it is a part.

    Args:
        total: The count of all; None for that one itself.

    Attributes:
        waiting: Bytes that came in and have not gone out. May be read from any thread.
        total: As given.
    """

    __slots__ = ("total", "waiting")

    def __init__(self, total: ByteBudget | None = None) -> None:
        self.waiting = 0
        self.total = total

    def add(self, size: int) -> None:
        """Count what comes in, or with a negative size what goes out."""
        self.waiting += size
        if (total := self.total) is not None:
            total.waiting += size


Answer: TypeAlias = Callable[[Mapping[AgentId, Any] | BaseException], None]
"""Takes the actions of all agents that were asked for, or why there are none; called in the sampler's thread."""
Paid: TypeAlias = tuple[Mapping[AgentId, Any], Mapping[AgentId, Any], Mapping[AgentId, bool], int]
"""Rewards, infos and done flags by agent, and what these count for in the backlog, in bytes."""
Call: TypeAlias = tuple[str, Mapping[AgentId, Any], Answer, int, Paid | None]
"""A question: the episode's id, observations by agent, who takes the actions, bytes, and what was paid before."""
_NOTHING: dict[Any, Any] = {}
"""What nearly every turn has of infos and the like; nobody writes into it."""


@dataclass(slots=True)
class ChannelStep:
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


class EpisodeChannel:
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

    def __init__(self, episode_id: str, trained: bool, backlog: ByteBudget | None = None) -> None:
        self.episode_id = episode_id
        self.trained = trained
        self.backlog = backlog or ByteBudget()
        self.sizes: deque[int] = deque()
        self.untold = self.place = 0
        self.turns: deque[ChannelStep | ExternalTrajectory] = deque()
        self.asked = self.busy = False
        self.begun = self.over = self.steady = False
        self.lost: str | None = None
        self.plays: bool | None = None
        self.rewards: dict[AgentId, float] = {}
        self.infos: dict[AgentId, Mapping[str, Any]] = {}
        self.done: dict[AgentId, bool] = {}

    def turn(self, obs: Mapping[AgentId, Any] | None, answer: Answer | None = None) -> ChannelStep:
        """Return a turn with all that has been paid and told since the last one."""
        rewards, infos, done = self.rewards, self.infos, self.done
        if not (rewards or infos or done):
            return ChannelStep(obs, _NOTHING, _NOTHING, _NOTHING, None, None, answer)
        self.rewards, self.infos, self.done = {}, {}, {}
        return ChannelStep(obs, rewards, infos, done, None, None, answer)

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

    def push(self, turn: ChannelStep | ExternalTrajectory, size: int) -> None:
        """Add what was said to the end of the line."""
        size += EACH
        self.steady = False
        self.backlog.add(size)
        self.sizes.append(size + self.untold)
        self.untold = 0
        self.turns.append(turn)

    def pop(self) -> ChannelStep | ExternalTrajectory:
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
                if isinstance(turn, ExternalTrajectory)
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


# SEAM menv.round
# A round: questions that were handed in together, of episodes in which one agent goes on; what they show are
# rows.
#
# A serving input makes one of what came with one look at its sockets, `menv.adapters.episode_broker` hands it
# to the sampler, and
# `menv.adapters.external` delivers it as it is. It stands for a turn of each episode, and costs a fraction of
# them.


Actions: TypeAlias = Sequence[Any] | npt.NDArray[Any]
Together: TypeAlias = Callable[[Sequence[Any], Actions | BaseException], None]
"""Takes the questions of a round and an action for each, or why there are none; called in the sampler's thread."""


@dataclass(slots=True, eq=False)
class RequestBatch:
    """R questions.

    Attributes:
        episode_ids: R different ones.
        obs: [R, ...] what the agents observe.
        rewards: [R] paid since their last observations, finite.
        questions: R, each of which takes its answer by itself where they are not answered together.
        together: Takes the answers.
        lines: The episodes, once the round has been handed in.
    """

    episode_ids: Sequence[str]
    obs: npt.NDArray[Any]
    rewards: FloatArray
    questions: Sequence[Answer]
    together: Together | None
    lines: list[EpisodeChannel] = field(default_factory=list)

    def tell(self, actions: Actions | BaseException) -> None:
        """Answer, once: where this environment is stopped meanwhile, whoever is first does."""
        together, self.together = self.together, None
        if together is not None:
            together(self.questions, actions)

    def turns(self) -> list[ChannelStep]:
        """Return a turn for each episode, to be answered one by one."""
        self.together = None
        return [
            ChannelStep({SINGLE_AGENT: obs}, {SINGLE_AGENT: reward} if reward else {}, answer=question)
            for obs, reward, question in zip(self.obs, self.rewards.tolist(), self.questions, strict=True)
        ]
