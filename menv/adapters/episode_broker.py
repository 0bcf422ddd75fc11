"""The broker of external episodes: callers in any thread on one side, the thread that samples on the other.

`ExternalEnv` and the serving sessions call `start`, `request_actions`, `log_action`, `log_returns`, `end`, `add_chunk`
and `lose`; the adapter of external environments reads what they sent with `collect`. The broker keeps the order of
calls within an episode and refuses invalid calls at once, in the caller's thread. It knows neither spaces nor policies.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any

from menv.adapters.episode_channel import (
    ActionCall,
    ActionCallback,
    ByteBudget,
    ChannelStep,
    EpisodeChannel,
    RequestBatch,
)
from menv.base_env import ALL, SINGLE_AGENT, AgentId, EnvId, ExternalTrajectory
from menv.errors import CallOrderError, EpisodeError
from menv.external_env import mixed, over, stopped, unlike

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


class EpisodeBroker:
    """Open episodes, what their callers sent, and which callers wait for an answer.

    The `size` of a call is what it counts for in its caller's byte budget.

    Args:
        max_open: Most episodes that may be open at once; None for any number.

    Attributes:
        weights_seq_no: The number of the current weights.
        on_message: Called in the caller's thread after each message.
        expected: How many episodes were answered together last; their callers will probably call again together.
    """

    def __init__(self, max_open: int | None = None) -> None:
        self.weights_seq_no = 0
        self.on_message: Callable[[], None] | None = None
        self.expected = 0
        self._max_open = max_open
        # Used directly where no wait is needed: entering a Condition takes longer.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._channels: dict[str, EpisodeChannel] = {}
        self._finished_ids: OrderedDict[str, None] = OrderedDict()
        self._ready = ReadyQueue()
        # At most one batch waits, so no byte budget has to count it.
        self._batch: RequestBatch | None = None
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
        batch = self._batch
        return len(self._ready) + (0 if batch is None else len(batch.channels))

    def limit_steps(self, steps: float, by_agent_steps: bool) -> None:
        """Set how many more steps of trajectory chunks the sampler wants; see `ReadyQueue.room`."""
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
            self._channels[episode_id] = EpisodeChannel(episode_id, trained, budget)
            return episode_id

    def check(self, call: str, episode_id: str) -> None:
        """Raise `EpisodeError` if the episode does not exist or waits for actions."""
        with self._lock:
            self._channel(call, episode_id)

    def request_actions(
        self, episode_id: str, obs: Mapping[AgentId, Any], callback: ActionCallback, size: int = 0
    ) -> None:
        """Send an observation and ask for the actions of all its agents; returns at once.

        Raises:
            EpisodeError: The episode does not exist, or waits for actions already.
        """
        for _, error in self.request_many([(episode_id, obs, callback, size, None)]):
            raise error

    def request_many(self, calls: Iterable[ActionCall]) -> list[tuple[ActionCall, CallOrderError]]:
        """Log returns and ask for actions in many episodes; return the refused calls, which changed nothing."""
        refused = []
        with self._lock:
            for call in calls:
                episode_id, obs, callback, size, returns = call
                try:
                    channel = self._channel_to_ask(episode_id)
                    if returns is not None:
                        channel.log_returns(*returns)
                except CallOrderError as error:
                    refused.append((call, error))
                else:
                    channel.chunked, channel.asked = False, True
                    channel.push(channel.next_step(obs, callback), size)
                    if not channel.busy:
                        self._ready.add(channel)
            self._notify()
        return refused

    def request_batch(self, batch: RequestBatch) -> bool:
        """Ask for the actions of a batch; False if it must be sent request by request, and nothing changed."""
        with self._lock:
            if self._stopped or self._batch is not None:
                return False
            channels = batch.channels
            for episode_id in batch.episode_ids:
                channel = self._channels.get(episode_id)
                if channel is None or not channel.batchable or channel.asked:
                    for marked in channels:
                        marked.asked = marked.busy = False
                    channels.clear()
                    return False
                # What is sent from now on waits until the batch has been answered.
                channel.asked = channel.busy = True
                channels.append(channel)
            self._batch = batch
            self._changed.notify_all()
            if self.on_message is not None:
                self.on_message()
        return True

    def log_action(
        self,
        episode_id: str,
        obs: Mapping[AgentId, Any],
        actions: Mapping[AgentId, Any],
        *,
        wait: bool = True,
        size: int = 0,
        callback: ActionCallback | None = None,
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
            if obs.keys() != actions.keys() and obs.keys() - channel.done != actions.keys() - channel.done:
                raise unlike(obs, actions)
            step = channel.next_step(obs, callback)
            step.actions = actions
            self._push_step(channel, step, size)

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
            EpisodeError: The episode does not exist, or its caller sends chunks.
            ContractError: A reward is not a finite number.
        """
        with self._lock:
            channel = self._channel("log_returns", episode_id)
            if channel.chunked:
                raise mixed("log_returns", episode_id)
            channel.log_returns(rewards, infos or {}, done or {}, size)

    def end(
        self, episode_id: str, obs: Mapping[AgentId, Any], *, truncated: bool = False, size: int = 0
    ) -> None:
        """End an episode with its last observations.

        Raises:
            EpisodeError: The episode does not exist, or waits for actions.
        """
        with self._lock:
            channel = self._channel("end_episode", episode_id)
            step = channel.next_step(obs)
            step.over = not truncated, truncated
            self._push_step(channel, step, size)

    def add_chunk(self, episode_id: str, chunk: ExternalTrajectory, size: int = 0) -> None:
        """Send a chunk of an episode whose actions the client chose; the last chunk ends the episode.

        Raises:
            EpisodeError: The episode does not exist, or its actions were requested here.
        """
        with self._lock:
            channel = self._channel("episodes", episode_id)
            if channel.chunked is False or channel.rewards:
                raise EpisodeError(
                    f"episodes: actions of episode {episode_id!r} were asked for one by one, expected whole "
                    "pieces from its beginning; do one or the other"
                )
            channel.chunked = True
            if chunk.over:
                self._close(channel)
            self._push(channel, ChannelStep(None, chunk=chunk), size)
            self._notify()

    def has_chunks(self, client: ByteBudget) -> bool:
        """Return whether the sampler has not read all chunks of a client. Called in the sampler's thread."""
        return client in self._ready.chunked

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
            self._notify()

    def fail(self, fault: BaseException) -> None:
        """Let `collect` raise once it has read what was sent before, and soon in any case."""
        with self._changed:
            if self._fault is None:
                self._fault, self._fault_at = fault, time.monotonic()
            self._changed.notify_all()

    def stop(self) -> None:
        """Send an error to waiting callers and refuse later calls: sampling has stopped."""
        with self._changed:
            self._stopped = True
            unread = [step for channel in self._channels.values() for step in channel.steps]
            self._ready.clear()
            batch, self._batch = self._batch, None
            self._changed.notify_all()
        for step in unread:
            step.respond(stopped())
        if batch is not None:
            batch.respond(stopped())

    def wake(self) -> None:
        """Let a `collect` that waits return."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def collect(self, timeout: float | None) -> list[EpisodeChannel]:
        """Return the channels that have something to read; wait `timeout` seconds for the first one, None for ever.

        Raises:
            BaseException: The error that `fail` was given.
            CallOrderError: The broker was stopped.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not (self.ready or self._fault or self._woken or self._stopped):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            self._woken = False
            if self._stopped:
                raise over()
            if self._fault and (not self.ready or time.monotonic() - self._fault_at > _FAULT_GRACE_S):
                raise self._fault
            return self._ready.take(self.ready - len(self._ready))

    def take_batch(self) -> RequestBatch | None:
        """Return the batch that waits, if any; its episodes are busy until `batch_answered`."""
        with self._lock:
            batch, self._batch = self._batch, None
        return batch

    def next_steps(self, channels: Sequence[EpisodeChannel]) -> list[ChannelStep | None]:
        """Remove and return the next step of each channel, None while its last step has no answer."""
        found: list[ChannelStep | None] = []
        with self._lock:
            for channel in channels:
                if channel.busy or not channel.steps:
                    found.append(None)
                    continue
                if len(channel.steps) == _MAX_LOGGED:
                    self._changed.notify_all()
                found.append(channel.pop())
                if channel.over and not channel.steps:
                    self._ready.discard(channel)
                    self._unread_finished -= 1
                    if self._unread_finished == _MAX_FINISHED - 1:
                        self._changed.notify_all()
            for channel in channels:
                if channel.chunked and channel.steps:
                    self._ready.add(channel)
        return found

    def answered(self, channels: Iterable[EpisodeChannel], batchable: Iterable[EpisodeChannel] = ()) -> None:
        """Let `collect` return what was sent after steps that are answered now.

        Args:
            channels: The channels of these steps.
            batchable: Those with one agent, whose next requests may form a batch.
        """
        with self._lock:
            self.expected = 0
            for channel in channels:
                self.expected += channel.asked
                channel.asked = channel.busy = False
                if channel.steps:
                    self._ready.add(channel)
            for channel in batchable:
                pending = channel.steps or channel.rewards or channel.infos or channel.done
                channel.batchable = not (pending or channel.over)

    def batch_answered(self, batch: RequestBatch) -> None:
        """Let `collect` return what was sent after a batch that is answered now."""
        with self._lock:
            self.expected = len(batch.channels)
            for channel in batch.channels:
                channel.asked = channel.busy = False
                if channel.steps:
                    self._ready.add(channel)

    def done_agents(self, episode_id: str, done: Mapping[Any, bool] | None) -> set[AgentId]:
        """Return the agents whose observations in the next step are their last ones, `done` of that step included."""
        channel = self._channels.get(episode_id)
        flagged = [
            *(channel.done if channel is not None else {}),
            *(agent for agent, flag in (done or {}).items() if flag),
        ]
        return set(flagged) - {ALL}

    def held_rewards(self, begun: Iterable[EpisodeChannel] = ()) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that the sampler has not read, by episode and agent.

        Args:
            begun: Channels that the sampler knows; some of them may be closed here.
        """
        with self._lock:
            channels = (*begun, *self._ready, *self._channels.values())
            found = {channel.episode_id: channel.pending_rewards() for channel in channels}
            held = {episode_id: by_agent for episode_id, by_agent in found.items() if by_agent}
            if (batch := self._batch) is not None:
                for episode_id, reward in zip(batch.episode_ids, batch.rewards.tolist(), strict=True):
                    if reward:
                        by_agent = held.setdefault(episode_id, {})
                        by_agent[SINGLE_AGENT] = by_agent.get(SINGLE_AGENT, 0.0) + reward
        return held

    def _named(self, episode_id: str) -> EpisodeChannel | None:
        try:
            return self._channels.get(episode_id)
        except TypeError:  # Unhashable, so no id.
            return None

    def _channel(self, call: str, episode_id: str) -> EpisodeChannel:
        """Return an open channel in which no caller waits; rewards may be logged while one does."""
        if self._stopped:
            raise stopped()
        channel = self._named(episode_id)
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

    def _channel_to_ask(self, episode_id: str) -> EpisodeChannel:
        channel = self._named(episode_id)
        if channel is None or channel.asked or self._stopped:
            channel = self._channel("get_action", episode_id)
        if channel.chunked:
            raise mixed("episode", episode_id)
        return channel

    def _push_step(self, channel: EpisodeChannel, step: ChannelStep, size: int) -> None:
        if channel.chunked:
            raise mixed("episode", channel.episode_id)
        channel.chunked = False
        if step.over is not None:
            self._close(channel)
        self._push(channel, step, size)
        self._notify()

    def _push(self, channel: EpisodeChannel, step: ChannelStep, size: int) -> None:
        channel.push(step, size)
        if not channel.busy:
            self._ready.add(channel)

    def _notify(self) -> None:
        if self._ready:
            self._changed.notify_all()
            if self.on_message is not None:
                self.on_message()

    def _close(self, channel: EpisodeChannel) -> None:
        channel.over = True
        self._unread_finished += 1
        del self._channels[channel.episode_id]
        self._finished_ids[channel.episode_id] = None
        if len(self._finished_ids) > _KEPT_IDS:
            self._finished_ids.popitem(last=False)


# Limits per poll. The end of an episode takes the sampler several times as long as a request, and a trajectory chunk
# several times as long as the end of an episode.
_MAX_FINISHED_PER_POLL = 16
_MAX_ENDS_PER_POLL = 4
_MAX_CHUNKS_PER_POLL = 2


class ReadyQueue:
    """The channels that have something to read, in an order that is fair to all callers.

    Slow work comes in small parts: thousands of episodes that end at once, or that arrive as chunks, must not delay
    the callers that wait for actions.

    Attributes:
        room: How many more steps the sampler wants. At 0 only chunks of episodes that it has begun count.
        by_agent_steps: Whether `room` counts agent steps, not env steps.
        chunked: Channels with chunks, by client; the client whose turn it is comes first.
    """

    def __init__(self) -> None:
        self.room: float = float("inf")
        self.by_agent_steps = False
        self._asking: dict[str, EpisodeChannel] = {}
        # Finished episodes: begun by the sampler before they finished; not begun; begun afterwards, with steps left.
        self._ended: dict[str, EpisodeChannel] = {}
        self._logged: dict[str, EpisodeChannel] = {}
        self._half_read: dict[str, EpisodeChannel] = {}
        self._half_read_ids: set[str] = set()
        self.chunked: dict[ByteBudget, dict[str, EpisodeChannel]] = {}
        self._kinds = (self._asking, self._ended, self._logged, self._half_read)
        self._num_chunked = self._num_begun = 0
        self._last_order = 0

    def __len__(self) -> int:
        return sum(map(len, self._kinds)) + (self._num_chunked if self.room > 0 else self._num_begun)

    def __iter__(self) -> Iterator[EpisodeChannel]:
        for channels in (*self._kinds, *self.chunked.values()):
            yield from channels.values()

    def clear(self) -> None:
        """Forget all channels."""
        for channels in (*self._kinds, self.chunked):
            channels.clear()
        self._num_chunked = self._num_begun = 0

    def add(self, channel: EpisodeChannel) -> None:
        """Add a channel, or move it if its episode has ended by now."""
        name, before = channel.episode_id, None
        if channel.chunked:
            channels = self.chunked.setdefault(channel.budget, {})
            self._num_chunked += name not in channels
            self._num_begun += channel.begun and name not in channels
        elif channel.over:
            before = self._asking.pop(name, None)
            begun = self._half_read if name in self._half_read_ids else self._ended
            channels = begun if channel.begun else self._logged
        else:
            channels = self._asking
        if name not in channels:
            channels[name] = channel
            if before is None:
                self._last_order = channel.order = self._last_order + 1

    def discard(self, channel: EpisodeChannel) -> None:
        """Forget an episode that is over and read to its end.

        An episode that ended while the sampler read its last action is in the queue a second time.
        """
        self._half_read_ids.discard(channel.episode_id)
        for channels in self._kinds:
            channels.pop(channel.episode_id, None)

    def take(self, other_requests: int = 0) -> list[EpisodeChannel]:
        """Remove and return the channels to read next, in the order in which they were added.

        Args:
            other_requests: How many episodes ask for actions and are not in this queue.
        """
        asking = list(self._asking.values())
        self._asking.clear()
        more = self._take_finished(len(asking) + other_requests) + self._take_chunked()
        return sorted(asking + more, key=attrgetter("order")) if more else asking

    def _take_finished(self, asking: int) -> list[EpisodeChannel]:
        """Remove and return a few finished episodes.

        A caller that only logs may have finished hundreds before the sampler reads the first step. Each of them
        completes one step at most, so a fragment reads no more of them than it lacks steps.
        """
        room = self.room if self.room > 0 else _MAX_FINISHED_PER_POLL
        most = min(_MAX_FINISHED_PER_POLL, room)
        # Every episode asks at least once: where as many ends as requests are read, ends do not pile up.
        ended = _take_first(self._ended, max(min(_MAX_ENDS_PER_POLL, room), asking), self.by_agent_steps)
        half_read = _take_first(self._half_read, most, self.by_agent_steps)
        room_left = most - max(len(half_read), len(self._half_read_ids))
        begun = _take_first(self._logged, room_left, self.by_agent_steps)
        self._half_read_ids.update(channel.episode_id for channel in begun)
        return ended + half_read + begun

    def _take_chunked(self) -> list[EpisodeChannel]:
        """Remove and return a few channels with chunks, of each client in turn, while there is room."""
        taken: list[EpisodeChannel] = []
        room, full = self.room, self.room <= 0
        while len(taken) < _MAX_CHUNKS_PER_POLL and (
            self._num_begun if full else self._num_chunked and room > 0
        ):
            client = next(iter(self.chunked))
            channels = self.chunked.pop(client)
            channel = next((one for one in channels.values() if one.begun or not full), None)
            if channel is not None:
                del channels[channel.episode_id]
                self._num_chunked -= 1
                self._num_begun -= channel.begun
                room -= self._num_steps(channel.steps[0])
                # An end without steps needs no room.
                ends = takewhile(lambda step: not self._num_steps(step), islice(channel.steps, 1, None))
                taken += [channel, *(channel for _ in ends)]
            if channels:
                self.chunked[client] = channels
        return taken

    def _num_steps(self, step: ChannelStep) -> int:
        """Return how many steps a chunk has; the loss of an episode has none."""
        if step.chunk is None:
            return 0
        if self.by_agent_steps:
            return sum(len(steps.rewards) for steps in step.chunk.agents.values())
        return step.chunk.env_steps


def _take_first(
    channels: dict[str, EpisodeChannel], most: float, by_agent_steps: bool
) -> list[EpisodeChannel]:
    """Remove and return the first channels, up to `most` episodes, or about that many agents."""
    taken = []
    while channels and most > 0:
        channel = channels.pop(next(iter(channels)))
        taken.append(channel)
        most -= max(1, len(channel.steps[0].obs or ())) if by_agent_steps and channel.steps else 1
    return taken
