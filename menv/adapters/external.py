"""External episodes as a `BaseEnv`: each open episode is a sub-environment that comes and goes.

Callers send to an `EpisodeBroker` from their own threads; each poll reads what they sent, with the same `AgentTracker`
as the other dict adapters. Subclasses let the calls in: `EnvThreads` those of threads of this process,
`PolicyServerInput` those of clients. `ExternalEnvs` knows neither sockets nor policies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.agent_tracker import AgentTracker, SlotAllocator, WaitingAgents, join_slots
from menv.adapters.episode_broker import ChannelStep, EpisodeBroker, EpisodeChannel
from menv.adapters.poll_events import PollEvents
from menv.adapters.validation import as_rewards, by_sub_environment, check_answers, reward_labels
from menv.base_env import (
    ALL,
    AgentChunk,
    AgentId,
    End,
    EnvId,
    ExternalTrajectory,
    Ready,
    TrajectoryChunk,
    Unclaimed,
)
from menv.errors import CALLER, ContractError, EnvCrashError, EnvFault, in_words
from menv.external_env import over, stopped

_NOT_OVER: dict[AgentId, bool] = {ALL: False}


class ExternalEnvs(Adapter):
    """The open episodes of one broker, which any thread may call.

    Args:
        broker: Receives the calls.
        observation_space: Of each agent, if there are no environments; so is `action_space`.
        action_space: Of each agent.
        observation_spaces: By agent, where they differ; so are `action_spaces`.
        action_spaces: By agent.
        possible_agents: Agents that may ever appear, () if unknown.
        idle_timeout: Seconds without a message after which the sampler gives up for now.

    Attributes:
        envs: External environments whose `run` is executed here.
        max_staleness: Updates by which weights may be behind when PPO learns from their steps; None for any.
    """

    external = True
    counts_steps = False
    envs: Sequence[Any] = ()
    max_staleness: int | None = None

    def __init__(
        self,
        broker: EpisodeBroker,
        *,
        observation_space: Any = None,
        action_space: Any = None,
        observation_spaces: Mapping[AgentId, Any] | None = None,
        action_spaces: Mapping[AgentId, Any] | None = None,
        possible_agents: Iterable[AgentId] = (),
        idle_timeout: float | None = 30.0,
    ) -> None:
        self.broker = broker
        self.idle_timeout = idle_timeout
        self.observation_space = observation_space
        self.action_space = action_space
        if observation_spaces is not None and action_spaces is not None:
            self.observation_spaces, self.action_spaces = dict(observation_spaces), dict(action_spaces)
        self.possible_agents = list(possible_agents)
        self._possible = frozenset(self.possible_agents) or None
        self._allocator = SlotAllocator()
        self._episodes: dict[EnvId, EpisodeChannel] = {}
        self._free_trackers: list[AgentTracker] = []
        # Of episodes whose last chunk was delivered; the sampler uses their slots until the next poll.
        self._closing: list[AgentTracker] = []
        # [E] is a view of the first of `_counts`, which has room for more.
        self._counts = self._env_steps = np.zeros(0, np.int64)
        # Indices of sub-environments that stepped since the last poll, once per step.
        self._stepped: list[int] = []
        self._due: list[EpisodeChannel] = []
        # How many of these have new observations and rewards, and nothing else.
        self._num_plain = 0
        # Episodes that wait for answers, in the order of the rows that were delivered last.
        self._asked: list[EpisodeChannel] = []
        self._events = PollEvents()
        self._chunks: list[TrajectoryChunk] = []
        self._delivered = (list[WaitingAgents](), np.zeros(0, np.int64))
        # Held while steps are read or answered, so that `stop` in another thread finds each of them in one place.
        self._lock = threading.RLock()
        self._over = False

    def poll(self, timeout: float | None = None) -> Ready:
        """Return what callers sent since the last poll; wait at most `timeout` seconds for the first message."""
        self._free_trackers += self._closing
        self._closing = []
        channels = self.broker.collect(timeout)
        with self._lock:
            if self._over:
                raise over()
            for channel in channels:
                self._advance(channel)
            return self._deliver()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each transport of a server."""
        return []

    def connect(self, trainer: Any) -> None:
        """Accept calls for an algorithm."""

    def published(self) -> None:
        """Called in the sampler's thread when the weights have changed."""

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer callers; see `BaseEnv.send_actions`."""
        with self._lock:
            # `stop` sends an error to the callers that wait, and the next poll raises.
            if not self._over:
                self._answer(slots, actions)

    def _answer(self, slots: Any, actions: Any) -> None:
        due = self._match_all(slots, actions) or self._match(slots, actions)
        # The channels are free before their callers get the answers, for these call again at once.
        self.broker.answered([episode for episode, _, _ in due])
        for episode, step, answers in due:
            episode.step = None
            step.respond(answers)

    def _match(
        self, slots: object, actions: object
    ) -> list[tuple[EpisodeChannel, ChannelStep, Mapping[AgentId, Any]]]:
        due: list[tuple[EpisodeChannel, ChannelStep, Mapping[AgentId, Any]]] = []
        for env_id, answers in by_sub_environment(slots, actions, self._allocator.seats).items():
            episode = self._episodes.get(env_id)
            step = None if episode is None else episode.step
            waiting = [] if episode is None or step is None else episode.tracker.waiting.agents
            check_answers(env_id, waiting, answers)
            if episode is not None and step is not None:
                due.append((episode, step, answers))
        return due

    def _match_all(
        self, slots: Any, actions: Any
    ) -> list[tuple[EpisodeChannel, ChannelStep, Mapping[AgentId, Any]]] | None:
        """Match answers to all rows of the last poll in their order, without a lookup; None if they are not."""
        if (
            slots is not self._delivered[1]
            or type(actions) not in (list, np.ndarray)
            or len(actions) != len(slots)
        ):
            return None
        due: list[tuple[EpisodeChannel, ChannelStep, Mapping[AgentId, Any]]] = []
        rest = iter(actions)
        for episode in self._asked:
            if episode.step is None:
                return None
            agents = episode.tracker.waiting.agents
            answers = dict(zip(agents, rest, strict=False)) if len(agents) > 1 else {agents[0]: next(rest)}
            due.append((episode, episode.step, answers))
        return due

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the external environments whose `run` is executed here."""
        return dict(enumerate(self.envs)) if as_dict else list(self.envs)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that are known to appear and the agents of open episodes."""
        return set(self.possible_agents or ()).union(
            *(episode.tracker.slots for episode in self._episodes.values())
        )

    def limit_steps(self, steps: float, by_agent_steps: bool) -> None:
        self.broker.limit_steps(steps, by_agent_steps)

    def episodes_at(self, env_indices: Iterable[int]) -> list[EnvId]:
        """Return the ids of the open episodes at some indices."""
        wanted = set(env_indices)
        return [env_id for env_id, episode in self._episodes.items() if episode.tracker.env_index in wanted]

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that wait for their agent's next row."""
        episodes = self._episodes
        unread = self.broker.held_rewards(episodes.values())
        found: dict[EnvId, dict[AgentId, float]] = dict(unread.items())
        for env_id, episode in episodes.items():
            for agent, reward in episode.tracker.held.items():
                by_agent = found.setdefault(env_id, {})
                by_agent[agent] = by_agent.get(agent, 0.0) + reward
        return found

    def status(self) -> dict[str, Any]:
        """Return how many episodes are open, and more about callers."""
        return {"open_episodes": self.broker.open_episodes}

    def stop(self) -> None:
        """Refuse further calls and send an error to the callers that wait; may be called from any thread."""
        self._over = True
        self.broker.stop()
        with self._lock:
            for episode in self._episodes.values():
                step, episode.step = episode.step, None
                if step is not None:
                    step.respond(stopped())

    def _advance(self, channel: EpisodeChannel) -> None:
        """Process a chunk and the end behind it, or steps up to one that must be answered first."""
        step = self.broker.next_step(channel)
        while step is not None:
            if step.chunk is not None:
                self._add_chunk(channel, step.chunk)
                step = self.broker.next_step(channel, without_steps=True)
            else:
                step = None if self._process(channel, step) else self.broker.next_step(channel)

    def _process(self, channel: EpisodeChannel, step: ChannelStep) -> bool:
        """Process a step; True if it waits for an answer. A caller that broke a rule gets the error, as poll does."""
        try:
            return self._process_step(channel, step)
        except ContractError as error:
            self.broker.answered([channel])
            step.respond(ContractError(str(error)))
            raise

    def _process_step(self, channel: EpisodeChannel, step: ChannelStep) -> bool:
        if channel.chunked:
            # The only step of such an episode reports its loss.
            if channel.tracker is not None:
                self._report_lost(channel)
                self._deliver_chunk(channel, ExternalTrajectory({}, 0, truncated=True))
            return False
        if channel.tracker is None:
            if step.over is not None:
                self._drop(channel, step.rewards)
                return False
            self._begin(channel, step)
        elif (
            step.obs
            and not (step.infos or step.done or step.over)
            and channel.tracker.step_plain(step.obs, step.rewards)
        ):
            # Nearly all steps: the same agents.
            self._stepped.append(channel.tracker.env_index)
            self._num_plain += step.actions is None
        elif self._step(channel, step):
            del self._episodes[channel.episode_id]
            self._free_trackers.append(channel.tracker)
            return False
        if not channel.tracker.waiting.agents:
            self.broker.answered([channel])
            step.respond({})
            return False
        channel.step, channel.busy, channel.acted = step, True, True
        self._due.append(channel)
        return True

    def _begin(self, channel: EpisodeChannel, step: ChannelStep) -> None:
        tracker, before = self._open(channel), len(self._events.joined)
        tracker.add_rewards(step.rewards, self._events)
        # An agent that was done before its first observation never acts.
        obs = {agent: value for agent, value in (step.obs or {}).items() if agent not in step.done}
        tracker.begin(obs, step.infos, self._events)
        self._mark_untrained(channel, before)

    def _step(self, channel: EpisodeChannel, step: ChannelStep) -> bool:
        """Process one env step; True if the episode is over."""
        tracker, events = channel.tracker, self._events
        if step.obs is None:
            self._report_lost(channel)
            tracker.lose(step.rewards, events)
            return True
        self._stepped.append(tracker.env_index)
        terminateds, truncateds = _NOT_OVER, _NOT_OVER
        if step.done or step.over is not None:
            terminated, truncated = step.over or (False, False)
            terminateds, truncateds = {**step.done, ALL: terminated}, {ALL: truncated}
        before = len(events.joined)
        finished = bool(tracker.step((step.obs, step.rewards, terminateds, truncateds, step.infos), events))
        self._mark_untrained(channel, before)
        if finished and not channel.acted:
            self._exclude_from_means()
        return finished

    def _exclude_from_means(self) -> None:
        """Mark the last ended episode: without a step it does not count."""
        self._events.episodes[-1] = self._events.episodes[-1]._replace(faulty=True)

    def _report_lost(self, channel: EpisodeChannel) -> None:
        """Report a lost episode, if an agent has acted in it."""
        if not channel.acted:
            return
        text = f"episode {channel.episode_id!r:.60} was broken off: {channel.lost}"
        cause, index = (CALLER, str(channel.lost), 0), channel.tracker.env_index
        self._events.faults.append(EnvFault(channel.episode_id, index, CALLER, text, cause))

    def _add_chunk(self, channel: EpisodeChannel, trajectory: ExternalTrajectory) -> None:
        """Process a chunk; one without actions begins no episode."""
        if channel.tracker is None:
            if not any(len(steps.rewards) for steps in trajectory.agents.values()):
                self._drop(channel, trajectory.unclaimed)
                return
            self._open(channel)
        channel.acted, tracker = True, channel.tracker
        self._env_steps[tracker.env_index] += trajectory.env_steps
        tracker.episode_steps += trajectory.env_steps
        self._add_unclaimed(tracker, trajectory.unclaimed)
        self._deliver_chunk(channel, trajectory)

    def _deliver_chunk(self, channel: EpisodeChannel, trajectory: ExternalTrajectory) -> None:
        tracker = channel.tracker
        chunk = next_chunk(tracker, trajectory, int(self._env_steps[tracker.env_index]))
        if chunk.episode is not None:
            chunk = chunk._replace(episode=chunk.episode._replace(faulty=channel.lost is not None))
            del self._episodes[channel.episode_id]
            self._closing.append(tracker)
        self._chunks.append(chunk)

    def _open(self, channel: EpisodeChannel) -> AgentTracker:
        """Give a channel a tracker."""
        if self._free_trackers:
            tracker = self._free_trackers.pop()
            tracker.reopen(channel.episode_id)
        else:
            index = len(self._env_steps)
            tracker = AgentTracker(channel.episode_id, index, self._allocator, self._possible)
            if index == len(self._counts):
                self._counts = np.append(self._counts, np.zeros_like(self._counts, shape=64 + index))
            self._env_steps = self._counts[: index + 1]
        self._episodes[channel.episode_id], channel.tracker = channel, tracker
        return tracker

    def _mark_untrained(self, channel: EpisodeChannel, before: int) -> None:
        """Exclude the trajectories after the first `before` joins from learning, if the caller wants that."""
        if not channel.trained:
            joined = self._events.joined
            joined[before:] = [join._replace(trained=False) for join in joined[before:]]

    def _add_unclaimed(self, tracker: AgentTracker, rewards: Mapping[AgentId, float]) -> None:
        self._events.unclaimed += [
            Unclaimed(tracker.env_id, agent, float(reward), tracker.env_index)
            for agent, reward in rewards.items()
            if reward
        ]

    def _drop(self, channel: EpisodeChannel, rewards: Mapping[AgentId, float]) -> None:
        """Forget an episode in which no agent acted, and report its rewards as unclaimed."""
        if any(rewards.values()):
            tracker = self._open(channel)
            self._add_unclaimed(tracker, rewards)
            tracker.begin({}, {}, self._events)
            tracker.step(({}, {}, {ALL: True}, {ALL: False}, {}), self._events)
            self._exclude_from_means()
            del self._episodes[channel.episode_id]
            self._free_trackers.append(tracker)

    def _deliver(self) -> Ready:
        due, self._due = self._due, []
        self._asked = due
        all_plain, self._num_plain = self._num_plain == len(due), 0
        np.add.at(self._env_steps, self._stepped, 1)
        self._stepped = []
        trackers = [episode.tracker for episode in due]
        layouts = [tracker.waiting for tracker in trackers]
        before, slots = self._delivered
        if layouts != before:
            slots = join_slots(layouts)
        self._delivered = (layouts, slots)
        listed = list(chain.from_iterable([tracker.rewards for tracker in trackers]))
        rewards = np.array(listed) if all_plain else as_rewards(listed, lambda: reward_labels(trackers))
        events, self._events = self._events, PollEvents()
        chunks, self._chunks = self._chunks, []
        return Ready(
            slots,
            list(chain.from_iterable([tracker.obs for tracker in trackers])),
            rewards,
            self._env_steps,
            events.joined, events.ended, events.episodes, events.unclaimed,
            None if all_plain else list(chain.from_iterable(tracker.infos for tracker in trackers)),
            {} if all_plain else _chosen_actions(due), self._allocator.seats, chunks, events.faults,
        )  # fmt: skip


class EnvThreads(ExternalEnvs):
    """Runs each of some external environments in its own thread, from the first poll on."""

    def __init__(self, broker: EpisodeBroker, envs: Sequence[Any], **spaces: Any) -> None:
        super().__init__(broker, **spaces)
        self.envs = list(envs)
        self._started = False

    def poll(self, timeout: float | None = None) -> Ready:
        """Run the environments, and return what they sent; see `ExternalEnvs.poll`."""
        if not self._started:
            self._started = True
            for env in self.envs:
                name = f"{type(env).__name__}.run"
                threading.Thread(target=self._run, args=(env,), name=name, daemon=True).start()
        for env in self.envs:
            env._sampler = threading.get_ident()
        return super().poll(timeout)

    def rest(self) -> None:
        """Allow calls in this thread until the next poll."""
        for env in self.envs:
            env._sampler = None

    def _run(self, env: Any) -> None:
        name = type(env).__name__
        try:
            env.run()
        except BaseException as error:
            fault = EnvCrashError(f"{name}.run: raised {in_words(error)}; its traceback is above")
            fault.__cause__ = error
        else:
            fault = EnvCrashError(
                f"{name}.run: returned while its actions are sampled; loop over episodes, or train less often"
            )
        self.broker.fail(fault)


def _chosen_actions(episodes: Iterable[EpisodeChannel]) -> dict[int, Any]:
    """Return the actions that callers chose themselves, by slot."""
    return {
        slot: episode.step.actions[agent]
        for episode in episodes
        if episode.step is not None and episode.step.actions is not None
        for agent, slot in zip(episode.tracker.waiting.agents, episode.tracker.waiting.slot_list, strict=True)
    }


def next_chunk(tracker: AgentTracker, trajectory: ExternalTrajectory, now: int) -> TrajectoryChunk:
    """Return a chunk of the tracker's episode with slots, joins and ends.

    Agents that are alive when the episode ends, end with it, with the observation that they wait with. `now` counts the
    env steps of the sub-environment, the chunk included.
    """
    parts = []
    for agent, steps in trajectory.agents.items():
        acted = len(steps.rewards) > 0
        if not acted and agent not in tracker.alive():
            continue
        slot, join = tracker.enter(agent)
        end = None
        if steps.over or trajectory.over:
            ended = steps if steps.over else trajectory
            # Without an action the observation that waits is the last one.
            last = steps.obs[len(steps.rewards)] if acted else None
            reward = float(steps.rewards[-1]) if acted else 0.0
            flags = ended.terminated, ended.truncated
            end = End(slot, tracker.env_id, agent, reward, *flags, last, {}, withdrawn=not acted)
            tracker.leave(agent)
        if join is not None:
            join = join._replace(policy_id=trajectory.policies.get(agent))
        parts.append(AgentChunk(slot, join, steps, end))
    began, episode = now - tracker.episode_steps, None
    if trajectory.over:
        flags = trajectory.terminated, trajectory.truncated
        for agent in tracker.alive():
            slot, _ = tracker.enter(agent)
            end = End(slot, tracker.env_id, agent, 0.0, *flags, None, {}, withdrawn=True)
            parts.append(AgentChunk(slot, None, None, end))
            tracker.leave(agent)
        episode = tracker.close(*flags)
    return TrajectoryChunk(
        tracker.env_id, tracker.env_index, parts, episode, trajectory.weights_seq_no, began, now
    )
