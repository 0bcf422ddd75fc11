"""An open external episode: what its caller sent and the sampler has not read yet.

`menv.adapters.episode_broker` keeps one `EpisodeChannel` per episode and guards it with its lock;
`menv.adapters.external` reads the steps. Nothing here knows threads or spaces.
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

STEP_BYTES = 1_000
"""What a step or a trajectory chunk counts for in a byte budget, in addition to its data."""

ActionCallback: TypeAlias = Callable[[Mapping[AgentId, Any] | BaseException], None]
"""Receives the actions of all agents in a request, or the error; called in the sampler's thread."""
LoggedReturns: TypeAlias = tuple[Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, bool], int]
"""Rewards, infos and done flags by agent, and their size in bytes."""
ActionCall: TypeAlias = tuple[str, Mapping[AgentId, Any], ActionCallback, int, LoggedReturns | None]
"""A request for actions: episode id, observations by agent, callback, bytes, and the returns logged before it."""
Actions: TypeAlias = Sequence[Any] | npt.NDArray[Any]
BatchCallback: TypeAlias = Callable[[Sequence[Any], Actions | BaseException], None]
"""Receives the callbacks of a batch and one action for each, or the error; called in the sampler's thread."""

# Shared by nearly all steps, which log nothing; never written to.
_NOTHING: dict[Any, Any] = {}


class ByteBudget:
    """How many bytes of one client wait for the sampler; also counted in `total`, the budget of all clients.

    `waiting` may be read from any thread. The broker writes it under its lock.
    """

    __slots__ = ("total", "waiting")

    def __init__(self, total: ByteBudget | None = None) -> None:
        self.waiting = 0
        self.total = total

    def add(self, size: int) -> None:
        """Count bytes that arrived, or with a negative size bytes that the sampler read."""
        self.waiting += size
        if (total := self.total) is not None:
            total.waiting += size


@dataclass(slots=True)
class ChannelStep:
    """One observation of an episode and what was logged before it, or a chunk of steps that the client played.

    Attributes:
        obs: By agent; None of a chunk, or if the episode was lost.
        rewards: Sums since the previous step, by agent.
        infos: The last info dict of each agent since then.
        done: Agents whose own trajectories end.
        actions: Actions that the caller chose, by agent; None if it asks for actions.
        over: `(terminated, truncated)` if the episode ends, else None.
        callback: Receives the actions.
        chunk: The steps whose actions the client chose; None of a single step.
    """

    obs: Mapping[AgentId, Any] | None
    rewards: dict[AgentId, float] = field(default_factory=dict)
    infos: dict[AgentId, Mapping[str, Any]] = field(default_factory=dict)
    done: dict[AgentId, bool] = field(default_factory=dict)
    actions: Mapping[AgentId, Any] | None = None
    over: tuple[bool, bool] | None = None
    callback: ActionCallback | None = None
    chunk: ExternalTrajectory | None = None

    @property
    def plain(self) -> bool:
        """Whether it is an observation and nothing else."""
        return not (self.rewards or self.infos or self.done or self.over)

    def respond(self, actions: Mapping[AgentId, Any] | BaseException) -> None:
        """Call back once: a `stop` in another thread may get here first."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(actions)


class EpisodeChannel:
    """One open episode, in the order of its calls.

    Attributes:
        budget: Counts the bytes that wait here.
        steps: Sent, and not read by the sampler.
        sizes: Bytes of each of them.
        logged_bytes: Bytes of the rewards and infos that were logged since the last step.
        rewards: Sums since the last step, by agent; `infos` and `done` belong to the next step too.
        asked: Whether a caller waits for actions.
        busy: Whether the sampler has read a step that has no answer yet; only the sampler sets it.
        begun: Whether the sampler has read a step.
        over: Whether the last step was sent.
        lost: Why the episode was lost, else None.
        order: Position among the channels that have something to read.
        chunked: True if its caller sends trajectory chunks, False if it sends steps, None before either.
        batchable: Whether the next request may be part of a `RequestBatch`: its one agent was answered, and only
            batched requests came since.
    """

    __slots__ = (
        "asked", "batchable", "begun", "budget", "busy", "chunked", "done", "episode_id", "infos", "logged_bytes",
        "lost", "order", "over", "rewards", "sizes", "steps", "trained",
    )  # fmt: skip

    def __init__(self, episode_id: str, trained: bool, budget: ByteBudget | None = None) -> None:
        self.episode_id = episode_id
        self.trained = trained
        self.budget = budget or ByteBudget()
        self.sizes: deque[int] = deque()
        self.logged_bytes = self.order = 0
        self.steps: deque[ChannelStep] = deque()
        self.asked = self.busy = False
        self.begun = self.over = self.batchable = False
        self.lost: str | None = None
        self.chunked: bool | None = None
        self.rewards: dict[AgentId, float] = {}
        self.infos: dict[AgentId, Mapping[str, Any]] = {}
        self.done: dict[AgentId, bool] = {}

    def next_step(
        self, obs: Mapping[AgentId, Any] | None, callback: ActionCallback | None = None
    ) -> ChannelStep:
        """Return a step with everything that was logged since the last one."""
        rewards, infos, done = self.rewards, self.infos, self.done
        if not (rewards or infos or done):
            return ChannelStep(obs, _NOTHING, _NOTHING, _NOTHING, None, None, callback)
        self.rewards, self.infos, self.done = {}, {}, {}
        return ChannelStep(obs, rewards, infos, done, None, None, callback)

    def log_returns(
        self,
        rewards: Mapping[AgentId, Any],
        infos: Mapping[AgentId, Mapping[str, Any]],
        done: Mapping[AgentId, bool],
        size: int = 0,
    ) -> None:
        """Add rewards, infos and done flags to the next step; changes nothing if a reward is not a finite number."""
        self.batchable = False
        checked = {agent: finite_reward(reward, self.episode_id, agent) for agent, reward in rewards.items()}
        self.logged_bytes += size
        self.budget.add(size)
        for agent, number in checked.items():
            self.rewards[agent] = self.rewards.get(agent, 0.0) + number
        self.infos.update(infos)
        self.done.update({agent: flag for agent, flag in done.items() if flag and agent != ALL})

    def push(self, step: ChannelStep, size: int) -> None:
        """Append a step of `size` bytes."""
        size += STEP_BYTES
        self.batchable = False
        self.budget.add(size)
        self.sizes.append(size + self.logged_bytes)
        self.logged_bytes = 0
        self.steps.append(step)

    def pop(self) -> ChannelStep:
        """Remove and return the oldest step."""
        self.begun = True
        self.budget.add(-self.sizes.popleft())
        return self.steps.popleft()

    def pending_rewards(self) -> dict[AgentId, float]:
        """Return the rewards that the sampler has not read, by agent."""
        pending = dict(self.rewards)
        for step in self.steps:
            rewards = step.rewards
            if step.chunk is not None:
                rewards = {agent: float(steps.rewards.sum()) for agent, steps in step.chunk.agents.items()}
            for agent, reward in rewards.items():
                pending[agent] = pending.get(agent, 0.0) + reward
        return pending


def finite_reward(reward: object, episode_id: str, agent: AgentId) -> float:
    """Return a logged reward as a float; raise `ContractError` if it is not a finite number."""
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


@dataclass(slots=True, eq=False)
class RequestBatch:
    """R requests for actions that arrived together, from R different episodes with one agent each, as columns.

    It stands for one step of each episode and costs a fraction of R steps. A server makes one of what it read from
    its sockets at once; `menv.adapters.external` delivers it unchanged.

    Attributes:
        obs: [R, ...].
        rewards: [R] sums since each agent's last observation, finite.
        callbacks: R, for requests that are answered one by one.
        batch_callback: Answers all of them.
        channels: The episodes, set by the broker.
    """

    episode_ids: Sequence[str]
    obs: npt.NDArray[Any]
    rewards: FloatArray
    callbacks: Sequence[ActionCallback]
    batch_callback: BatchCallback | None
    channels: list[EpisodeChannel] = field(default_factory=list)

    def respond(self, actions: Actions | BaseException) -> None:
        """Call back once: a `stop` in another thread may get here first."""
        batch_callback, self.batch_callback = self.batch_callback, None
        if batch_callback is not None:
            batch_callback(self.callbacks, actions)

    def split(self) -> list[ChannelStep]:
        """Return one step per episode, each with its own callback."""
        self.batch_callback = None
        return [
            ChannelStep({SINGLE_AGENT: obs}, {SINGLE_AGENT: reward} if reward else {}, callback=callback)
            for obs, reward, callback in zip(self.obs, self.rewards.tolist(), self.callbacks, strict=True)
        ]
