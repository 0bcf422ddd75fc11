"""The broker of external episodes: callers in any thread on one side, the thread that samples on the other.

`ExternalEnv` and the serving sessions call `start`, `request_actions`, `log_action`, `log_returns`, `end`, `add_chunk`
and `lose`. Each call appends a step to the `EpisodeChannel` of its episode; the adapter of external environments asks
`collect` which channels have one and reads it with `next_step`. The broker keeps the order of calls within an episode
and refuses invalid calls at once, in the caller's thread. It knows neither spaces nor policies.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from menv.base_env import ALL, AgentId, EnvId, ExternalTrajectory
from menv.errors import CallOrderError, EpisodeError
from menv.external_env import finite_reward, over, stopped

STEP_BYTES = 1_000
"""What a step or a trajectory chunk counts for in a byte budget, in addition to its data."""
# Ids of finished episodes that are remembered, so that they are not used twice.
_KEPT_IDS = 10_000
# Logged steps of one episode that may wait for the sampler before `log_action` blocks.
_MAX_LOGGED = 64
# Finished episodes that may wait for the sampler before `start` blocks, and for how many seconds it does at most: a
# caller that plays several episodes in turn may have to continue before the sampler can read them.
_MAX_FINISHED = 256
_MAX_START_WAIT_S = 1.0
# Seconds after a fault in which other calls are still read; they may never stop.
_FAULT_GRACE_S = 0.5
_LONGEST_WAIT_S = 1.0
# How often in a row `collect` waits `batch_wait` seconds while requests of others keep coming.
_MAX_BATCH_WAITS = 8

ActionCallback: TypeAlias = Callable[[Mapping[AgentId, Any] | BaseException], None]
"""Receives the actions of all agents in a request, or the error; called in the sampler's thread."""
LoggedReturns: TypeAlias = tuple[Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, bool], int]
"""Rewards, infos and done flags by agent, and their size in bytes."""

# Shared by nearly all steps, which log nothing; never written to.
_NOTHING: dict[Any, Any] = {}


class ServerLoop(Protocol):
    """The loop in which callers send to a broker, if the sampler's thread runs it while it waits for them."""

    def run(self, seconds: float) -> None:
        """Run the loop for so many seconds, or until `pause` or `interrupt`."""

    def pause(self) -> None:
        """End `run` after all messages that have arrived; called in the loop."""

    def interrupt(self) -> None:
        """End `run`, from any thread and from handlers of signals."""


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
        size: Bytes in the budget of its client.
    """

    obs: Mapping[AgentId, Any] | None
    rewards: dict[AgentId, float] = field(default_factory=dict)
    infos: dict[AgentId, Mapping[str, Any]] = field(default_factory=dict)
    done: dict[AgentId, bool] = field(default_factory=dict)
    actions: Mapping[AgentId, Any] | None = None
    over: tuple[bool, bool] | None = None
    callback: ActionCallback | None = None
    chunk: ExternalTrajectory | None = None
    size: int = 0

    def respond(self, actions: Mapping[AgentId, Any] | BaseException) -> None:
        """Call back once: a `stop` in another thread may get here first."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(actions)


@dataclass(slots=True, eq=False)
class EpisodeChannel:
    """One open episode, in the order of its calls. The broker guards it with its lock.

    Attributes:
        budget: Counts the bytes that wait here; channels with one budget belong to one client.
        steps: Sent, and not read by the sampler.
        logged: What was logged since the last step: sums of rewards, infos and done flags, all by agent.
        logged_bytes: Bytes of that.
        asked: Whether a caller waits for actions.
        busy: Whether the sampler has read a step that has no answer yet; only the sampler sets it.
        begun: Whether the sampler has read a step.
        over: Whether the last step was sent.
        lost: Why the episode was lost, else None.
        chunked: Whether its caller sends trajectory chunks.
        tracker: The sampler's own record of the agents, from the first step that it has read; so are the next two.
        step: The step that waits for an answer; None if there is none.
        acted: Whether an agent was asked, or acted in a chunk; without that the episode does not count.
    """

    episode_id: str
    trained: bool
    budget: ByteBudget
    steps: deque[ChannelStep] = field(default_factory=deque)
    rewards: dict[AgentId, float] = field(default_factory=dict)
    infos: dict[AgentId, Mapping[str, Any]] = field(default_factory=dict)
    done: dict[AgentId, bool] = field(default_factory=dict)
    logged_bytes: int = 0
    asked: bool = False
    busy: bool = False
    begun: bool = False
    over: bool = False
    lost: str | None = None
    chunked: bool = False
    tracker: Any = None
    step: ChannelStep | None = None
    acted: bool = False

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
        self.budget.add(size)
        step.size = size + self.logged_bytes
        self.logged_bytes = 0
        self.steps.append(step)

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


class EpisodeBroker:
    """Open episodes, what their callers sent, and which callers wait for an answer.

    The `size` of a call is what it counts for in its caller's byte budget, `returns` what was logged before it.

    Args:
        max_open: Most episodes that may be open at once; None for any number.
        batch_wait: Seconds that `collect` waits for the next request of another episode.

    Attributes:
        weights_seq_no: The number of the current weights.
        expected: How many episodes were answered together last, or asked meanwhile; their callers will probably call
            again together.
        server: What `collect` runs while it waits, if anything; only the sampler's thread sets it.
    """

    def __init__(self, max_open: int | None = None, batch_wait: float = 0.0) -> None:
        self.weights_seq_no = 0
        self.expected = 0
        self._max_open = max_open
        self._batch_wait = batch_wait
        # Used directly where no wait is needed: entering a Condition takes longer.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.server: ServerLoop | None = None
        # How many episodes have to be ready before a `collect` that waits looks again; 0 while none waits.
        self._wanted = 0
        self._channels: dict[str, EpisodeChannel] = {}
        self._finished_ids: OrderedDict[str, None] = OrderedDict()
        self._ready = ReadyQueue()
        self._own_budget = ByteBudget()
        # How many finished episodes have steps that the sampler has not read.
        self._unread_finished = 0
        self._fault: BaseException | None = None
        self._fault_at = 0.0
        self._stopped = False
        self._woken = False

    @property
    def open_episodes(self) -> int:
        """How many episodes are open."""
        return len(self._channels)

    @property
    def ready(self) -> int:
        """How many episodes have something to read."""
        return len(self._ready)

    def limit_steps(self, steps: float, by_agent_steps: bool) -> None:
        """Set how many more steps the sampler wants; see `ReadyQueue.room`."""
        self._ready.room, self._ready.by_agent_steps = steps, by_agent_steps

    def start(
        self,
        episode_id: str | None = None,
        trained: bool = True,
        *,
        wait: bool = False,
        budget: ByteBudget | None = None,
    ) -> str:
        """Open an episode and return its id; None makes one up.

        `wait` blocks for a moment while many finished episodes have not been sampled. `trained` says whether policies
        may learn from it.

        Raises:
            EpisodeError: The id was used before.
            CallOrderError: Too many episodes are open, or sampling has stopped.
        """
        with self._changed:
            if wait and self._unread_finished >= _MAX_FINISHED:
                self._changed.wait_for(
                    lambda: self._unread_finished < _MAX_FINISHED or self._stopped, _MAX_START_WAIT_S
                )
            if self._stopped:
                raise stopped()
            if episode_id is None:
                episode_id = uuid.uuid4().hex
            if episode_id in self._channels or episode_id in self._finished_ids:
                state = "already started" if episode_id in self._channels else "already completed"
                raise EpisodeError(
                    f"start_episode: episode {episode_id!r} is {state}, expected a new id; leave the id out to get one"
                )
            if self._max_open is not None and len(self._channels) >= self._max_open:
                raise CallOrderError(
                    f"start_episode: {len(self._channels)} episodes are open, expected at most max_concurrent="
                    f"{self._max_open}; end one first"
                )
            self._channels[episode_id] = EpisodeChannel(episode_id, trained, budget or self._own_budget)
            return episode_id

    def request_actions(
        self,
        episode_id: str,
        obs: Mapping[AgentId, Any],
        callback: ActionCallback,
        size: int = 0,
        returns: LoggedReturns | None = None,
    ) -> None:
        """Send an observation and ask for the actions of all its agents; returns at once.

        Raises:
            EpisodeError: The episode does not exist, or waits for actions already.
        """
        with self._lock:
            channel = self._channel("get_action", episode_id)
            if returns is not None:
                channel.log_returns(*returns)
            channel.asked = True
            self._push(channel, channel.next_step(obs, callback), size)

    def log_action(
        self,
        episode_id: str,
        obs: Mapping[AgentId, Any],
        actions: Mapping[AgentId, Any],
        *,
        wait: bool = True,
        size: int = 0,
        callback: ActionCallback | None = None,
        returns: LoggedReturns | None = None,
    ) -> None:
        """Send an observation and the actions that the caller itself chose for it.

        `wait` blocks while far more was logged than the sampler has read. The sampler's thread calls `callback` once
        it has read the step.

        Raises:
            EpisodeError: The episode does not exist, or waits for actions.
            CallOrderError: An agent that observed has no action.
        """
        with self._changed:
            channel = self._channel("log_action", episode_id)
            while wait and len(channel.steps) >= _MAX_LOGGED:
                self._changed.wait()
                channel = self._channel("log_action", episode_id)
            # Agents that are done need no action.
            if obs.keys() != actions.keys():
                done = channel.done.keys() | (returns[2].keys() if returns is not None else ())
                if obs.keys() - done != actions.keys() - done:
                    seen, acted = (
                        ", ".join(sorted(map(repr, one))[:8]) or "no agent" for one in (obs, actions)
                    )
                    raise CallOrderError(
                        f"log_action: observations of {seen} and actions of {acted}, expected the same agents; log an "
                        "action for each agent that observes"
                    )
            if returns is not None:
                channel.log_returns(*returns)
            step = channel.next_step(obs, callback)
            step.actions = actions
            self._push(channel, step, size)

    def log_returns(
        self,
        episode_id: str,
        rewards: Mapping[AgentId, float],
        infos: Mapping[Any, Mapping[str, Any]] | None = None,
        done: Mapping[Any, bool] | None = None,
        size: int = 0,
    ) -> None:
        """Add rewards, infos and done flags, all by agent, to the next observation.

        Raises:
            EpisodeError: The episode does not exist.
            ContractError: A reward is not a finite number.
        """
        with self._lock:
            channel = self._channel("log_returns", episode_id)
            channel.log_returns(rewards, infos or {}, done or {}, size)

    def end(
        self,
        episode_id: str,
        obs: Mapping[AgentId, Any],
        *,
        truncated: bool = False,
        size: int = 0,
        returns: LoggedReturns | None = None,
    ) -> None:
        """End an episode with its last observations.

        Raises:
            EpisodeError: The episode does not exist, or waits for actions.
        """
        with self._lock:
            channel = self._channel("end_episode", episode_id)
            if returns is not None:
                channel.log_returns(*returns)
            step = channel.next_step(obs)
            step.over = not truncated, truncated
            self._close(channel)
            self._push(channel, step, size)

    def add_chunk(self, episode_id: str, chunk: ExternalTrajectory, size: int = 0) -> None:
        """Send a chunk of an episode whose actions the client chose; the last chunk ends the episode.

        Raises:
            EpisodeError: The episode does not exist.
        """
        with self._lock:
            channel = self._channel("episodes", episode_id)
            channel.chunked = True
            if chunk.over:
                self._close(channel)
            self._push(channel, ChannelStep(None, chunk=chunk), size)

    def has_unread(self, client: ByteBudget) -> bool:
        """Return whether the sampler has not read all chunks and ended episodes of a client."""
        return client in self._ready.ended

    def lose(self, episode_ids: Iterable[str], why: str) -> None:
        """End episodes whose client is gone: the outcome of their last actions is unknown.

        Episodes that are not open are ignored. Results show the first `why` of a run.
        """
        with self._lock:
            for episode_id in episode_ids:
                channel = self._channels.get(episode_id)
                if channel is None or self._stopped:
                    continue
                channel.lost = why
                step = channel.next_step(None)
                step.over = False, True
                self._close(channel)
                self._push(channel, step, 0)

    def fail(self, fault: BaseException) -> None:
        """Let `collect` raise once it has read what was sent before, and soon in any case."""
        with self._changed:
            if self._fault is None:
                self._fault, self._fault_at = fault, time.monotonic()
            self._rouse()

    def stop(self) -> None:
        """Send an error to waiting callers and refuse later calls: sampling has stopped."""
        with self._changed:
            self._stopped = True
            unread = [step for channel in self._channels.values() for step in channel.steps]
            self._ready = ReadyQueue()
            self._rouse()
        for step in unread:
            step.respond(stopped())

    def wake(self) -> None:
        """Let a `collect` that waits return."""
        with self._changed:
            self._woken = True
            self._rouse()

    def collect(self, timeout: float | None) -> list[EpisodeChannel]:
        """Return the channels that have something to read; wait `timeout` seconds for the first one, None for ever.

        Raises:
            BaseException: The error that `fail` was given.
            CallOrderError: The broker was stopped.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            if self._ready and self.server is not None:
                # Others are served, too, however much there is to read.
                self._wait(1, 0.0)
            while not (self._ready or self._interrupted):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                # A signal may call `wake` just before the wait begins, which nothing ends then.
                self._wait(1, _LONGEST_WAIT_S if left is None else min(left, _LONGEST_WAIT_S))
            if self._batch_wait:
                self._await_others()
            self._woken = False
            if self._stopped:
                raise over()
            if self._fault and (not self._ready or time.monotonic() - self._fault_at > _FAULT_GRACE_S):
                raise self._fault
            return self._ready.take()

    @property
    def _interrupted(self) -> bool:
        return bool(self._fault or self._woken or self._stopped)

    def _await_others(self) -> None:
        """Wait for as many requests as came together last time, while more of them come."""
        until, seen = time.monotonic() + _MAX_BATCH_WAITS * self._batch_wait, 0
        wanted = min(self.expected, len(self._channels))
        while seen < (ready := len(self._ready)) < wanted and not self._interrupted:
            seen = ready
            # Waking this thread for each of them would cost more than what is gained.
            self._wait(wanted, min(self._batch_wait, max(0.0, until - time.monotonic())))

    def _wait(self, wanted: int, seconds: float) -> None:
        """Wait until so many episodes are ready, or something else has happened."""
        self._wanted = wanted
        if self.server is None:
            self._changed.wait(seconds)
        else:
            self._lock.release()
            try:
                self.server.run(seconds)
            finally:
                self._lock.acquire()
        self._wanted = 0

    def _rouse(self) -> None:
        """End the waits of all threads."""
        self._changed.notify_all()
        if self.server is not None:
            self.server.interrupt()

    def next_step(self, channel: EpisodeChannel, *, without_steps: bool = False) -> ChannelStep | None:
        """Remove and return the next step of a channel, None while its last step has no answer.

        `without_steps` returns a step only if it completes none.
        """
        with self._lock:
            steps = channel.steps
            if channel.busy or not steps or (without_steps and self._ready.num_steps(steps[0])):
                return None
            if len(steps) == _MAX_LOGGED:
                self._changed.notify_all()
            channel.begun = True
            step = steps.popleft()
            channel.budget.add(-step.size)
            if steps:
                if channel.chunked:
                    self._ready.add(channel)
                return step
            self._ready.discard(channel)
            if channel.over:
                self._unread_finished -= 1
                if self._unread_finished == _MAX_FINISHED - 1:
                    self._changed.notify_all()
            return step

    def answered(self, channels: Iterable[EpisodeChannel]) -> None:
        """Let `collect` return what was sent after steps of these channels that are answered now."""
        with self._lock:
            count = len(self._ready)
            for channel in channels:
                count += channel.asked
                channel.asked = channel.busy = False
                if channel.steps:
                    self._ready.add(channel)
            self.expected = count

    def done_agents(self, episode_id: str, done: Mapping[Any, bool] | None) -> set[AgentId]:
        """Return the agents whose observations in the next step are their last ones, `done` of that step included."""
        channel = self._channels.get(episode_id)
        before = () if channel is None else channel.done
        return {*before, *(agent for agent, flag in (done or {}).items() if flag)} - {ALL}

    def held_rewards(self, begun: Iterable[EpisodeChannel] = ()) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that the sampler has not read, by episode and agent.

        Args:
            begun: Channels that the sampler knows; some of them may be closed here.
        """
        with self._lock:
            channels = (*begun, *self._ready, *self._channels.values())
            found = {channel.episode_id: channel.pending_rewards() for channel in channels}
        return {episode_id: by_agent for episode_id, by_agent in found.items() if by_agent}

    def _channel(self, call: str, episode_id: str) -> EpisodeChannel:
        """Return an open channel in which no caller waits; rewards may be logged while one does."""
        if self._stopped:
            raise stopped()
        try:
            channel = self._channels.get(episode_id)
        except TypeError:  # Unhashable, so no id.
            channel = None
        if channel is None:
            finished = isinstance(episode_id, str | int) and episode_id in self._finished_ids
            why = "is completed" if finished else "was not found"
            raise EpisodeError(
                f"{call}: episode {episode_id!r:.80} {why}, expected one that is open; call start_episode first"
            )
        if channel.asked and call != "log_returns":
            raise EpisodeError(
                f"{call}: get_action of episode {episode_id!r} has not returned, expected one call after the other "
                "within an episode; wait for its action"
            )
        return channel

    def _push(self, channel: EpisodeChannel, step: ChannelStep, size: int) -> None:
        channel.push(step, size)
        if not channel.busy:
            self._ready.add(channel)
            if self._wanted and len(self._ready) >= self._wanted:
                self._wanted = 0
                if self.server is None:
                    self._changed.notify_all()
                else:
                    self.server.pause()

    def _close(self, channel: EpisodeChannel) -> None:
        channel.over = True
        self._unread_finished += 1
        del self._channels[channel.episode_id]
        self._finished_ids[channel.episode_id] = None
        if len(self._finished_ids) > _KEPT_IDS:
            self._finished_ids.popitem(last=False)


# What one poll reads. The end of an episode takes the sampler several times as long as a request, and a chunk several
# times as long as an end.
_MAX_ENDS = 8
_MAX_CHUNKS = 2


class ReadyQueue:
    """The channels that have something to read: channels that ask, and channels with an end or a chunk, by client.

    Ends and chunks are read a few at a time, of each client in turn: thousands of episodes that end at once, or that
    arrive as chunks, must not delay the callers that wait for actions. Episodes that the sampler has begun come first.

    Attributes:
        room: How many more steps the sampler wants. At 0 only chunks of episodes that it has begun are read.
        by_agent_steps: Whether `room` counts agent steps, not env steps.
        ended: Channels with ends or chunks, by client; the client whose turn it is comes first.
    """

    def __init__(self) -> None:
        self.room: float = float("inf")
        self.by_agent_steps = False
        self.ended: dict[ByteBudget, OrderedDict[EpisodeChannel, None]] = {}
        self._asking: dict[EpisodeChannel, None] = {}

    def __len__(self) -> int:
        """Return how many channels may be read now; without room at most one of each client with ends or chunks."""
        if self.room > 0:
            return len(self._asking) + sum(map(len, self.ended.values()))
        return len(self._asking) + sum(self._is_due(channels) for channels in self.ended.values())

    def __bool__(self) -> bool:
        return bool(self._asking) or any(map(self._is_due, self.ended.values()))

    def _is_due(self, channels: OrderedDict[EpisodeChannel, None]) -> bool:
        first = next(iter(channels))
        return self.room > 0 or first.begun or not first.chunked

    def __iter__(self) -> Iterator[EpisodeChannel]:
        for channels in (self._asking, *self.ended.values()):
            yield from channels

    def add(self, channel: EpisodeChannel) -> None:
        """Add a channel, or move it if its episode has ended by now."""
        if not (channel.chunked or channel.over):
            self._asking[channel] = None
            return
        self._asking.pop(channel, None)
        channels = self.ended.setdefault(channel.budget, OrderedDict())
        channels[channel] = None
        if channel.begun:
            channels.move_to_end(channel, last=False)

    def discard(self, channel: EpisodeChannel) -> None:
        """Forget an episode that ended while the sampler read its last action, and that is read to its end."""
        self._asking.pop(channel, None)
        channels = self.ended.get(channel.budget)
        if channels is not None:
            channels.pop(channel, None)
            if not channels:
                del self.ended[channel.budget]

    def take(self) -> list[EpisodeChannel]:
        """Remove and return the channels to read next, ends and chunks first.

        A caller that only logs may have ended hundreds of episodes before the sampler reads the first step. Each of
        them completes one step at most, so a fragment reads no more of them than it lacks steps. Every episode asks at
        least once: where as many ends as requests are read, ends do not pile up.
        """
        taken: list[EpisodeChannel] = []
        asking, room = list(self._asking), self.room
        ends, chunks = max(min(_MAX_ENDS, room) if room > 0 else _MAX_ENDS, len(asking)), _MAX_CHUNKS

        def may_read(channel: EpisodeChannel) -> bool:
            if channel.chunked:
                return chunks > 0 and (room > 0 or (self.room <= 0 and channel.begun))
            return ends > 0

        while client := next((one for one, own in self.ended.items() if may_read(next(iter(own)))), None):
            channels = self.ended.pop(client)
            channel, _ = channels.popitem(last=False)
            if channels:
                self.ended[client] = channels
            steps = self.num_steps(channel.steps[0])
            if channel.chunked:
                chunks, room = chunks - 1, room - steps
            else:
                ends -= max(1, steps)
            taken.append(channel)
        self._asking.clear()
        return taken + asking

    def num_steps(self, step: ChannelStep) -> int:
        """Return how many steps a chunk completes, or at most an observation; the loss of an episode completes none."""
        if step.chunk is None:
            return (len(step.obs) if self.by_agent_steps else 1) if step.obs else 0
        if self.by_agent_steps:
            return sum(len(steps.rewards) for steps in step.chunk.agents.values())
        return step.chunk.env_steps
