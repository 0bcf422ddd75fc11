"""Evaluation: the current policies run episodes in separate environments, in this process or in one worker.

Nothing sampled here is learned from, and training does not depend on evaluations, unless a custom policy remembers
what it observed in them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from menv import rng
from menv.adapters.adapter import Adapter
from menv.algorithms.config.algorithm_config import AlgorithmConfig, team_note
from menv.algorithms.rollouts.environments import WorkerPlacement
from menv.algorithms.rollouts.local_rollouts import call_each, new_sampler, tell_envs_created
from menv.algorithms.rollouts.worker_messages import PolicyView, split_state
from menv.base_env import Column, EnvId, EpisodeEnd
from menv.callbacks import DefaultCallbacks
from menv.episode import Episode
from menv.errors import CallOrderError, ConfigError, ContractError, MenvError
from menv.metrics import AS_THEY_COME, Metrics, MetricsSnapshot, When
from menv.policy_map import PolicyMap
from menv.sampling import fragment_limit
from menv.sampling.fragment_limit import Flags, FragmentLimit
from menv.sampling.infer_policies import AgentSpaces, resolve_agents
from menv.sampling.sampler import Sampler, SamplerState
from menv.spaces import alike

Shares = npt.NDArray[np.int64]


class FirstEpisodes(Metrics):
    """Metrics over the first episodes of each sub-environment that steps in lockstep, or of all together.

    `shares` [E] is the rest of each one's share, in episodes or in env steps.
    """

    by_episode = True

    def __init__(self, in_episodes: bool, index_of: Callable[[EnvId], int]) -> None:
        """Begin with no shares; `index_of` gives the index of a sub-environment for its id."""
        super().__init__(0)
        self._index_of = index_of
        self.shares: Shares = np.zeros(0, np.int64)
        self._in_episodes = in_episodes

    def record(self, episode: Episode, when: When = AS_THEY_COME) -> None:
        index = self._index_of(episode.env_id)
        if self.shares[index] > 0:
            self.shares[index] -= 1 if self._in_episodes else episode.length
            super().record(episode, when)


class EvaluationLimit(FragmentLimit):
    """A share of each sub-environment, in whole episodes or env steps, so that short episodes are not preferred.

    An episode that a fault ends does not count: another one is run. Where the number of sub-environments is unknown,
    they have one share together. There and in lockstep all sub-environments continue until all shares are done, and
    `metrics` leaves out the surplus.

    Attributes:
        metrics: Records the episodes that count.
        stops_midway: Whether other episodes may run at the end.
    """

    def __init__(self, base_env: Adapter, in_episodes: bool) -> None:
        super().__init__(1)
        self._joint = not base_env.num_envs
        self.stops_midway = self._joint or base_env.lockstep
        self._in_episodes = in_episodes
        self.metrics = Metrics(0)
        if self.stops_midway:
            index_of: Callable[[EnvId], int] = (lambda _: 0) if self._joint else base_env.index_of
            self.metrics = FirstEpisodes(in_episodes, index_of)
        self._shares: Shares = np.zeros(0, np.int64)
        # [E] env steps of each sub-environment at its last episode end, and sub-environments that ended one since.
        self._since: Shares = np.zeros(0, np.int64)
        self._ended: list[int] = []

    def allot(self, duration: int, num_envs: int, worker: int, workers: int) -> None:
        """Set the share of each sub-environment, or of all together where their number, `num_envs`, is unknown.

        `duration` is that of the evaluation; this is number `worker`, from 0, of `workers` that run it.
        """
        own = num_envs or 1
        total, index = own * workers, worker * own + np.arange(own)
        # Each worker has its share of the remainder.
        episodes = -(-(index + 1) * duration // total) + -index * duration // total
        self._shares = episodes if self._in_episodes else np.full(own, -(-duration // total))
        if isinstance(self.metrics, FirstEpisodes):
            self.metrics.shares = self._shares.copy()

    def begin(self, env_steps: Column) -> None:
        super().begin(env_steps)
        self._since, self._ended = env_steps.copy(), []

    def end_episodes(self, ends: Sequence[EpisodeEnd]) -> None:
        for end in ends:
            if not end.faulty:
                self._ended.append(end.env_index)
            used = int(not end.faulty) if self._in_episodes else end.env_steps
            self._shares[0 if self._joint else end.env_index] -= used

    def closed(self, env_steps: Column) -> Flags | None:
        self._check_endless(env_steps)
        done: Flags = self._shares <= 0
        if self.stops_midway:
            return np.ones(len(env_steps), np.bool_) if done.all() else None
        return done if done.any() else None

    def _check_endless(self, env_steps: Column) -> None:
        appeared = np.zeros(max(0, len(env_steps) - len(self._since)), np.int64)
        self._since = np.concatenate((self._since, appeared)) if len(appeared) else self._since
        self._since[self._ended] = env_steps[self._ended]
        self._ended.clear()
        running = env_steps - self._since
        if np.maximum.reduce(running, initial=0) > fragment_limit.LONGEST:
            raise ContractError(
                f"evaluation: env {int(running.argmax())} took {int(running.max())} env steps without the end of an "
                "episode, expected one, because evaluations play whole episodes and a crash ends none; end or truncate "
                "episodes in the environment"
            )


class EvaluationShare(NamedTuple):
    """The part of an evaluation that one process has run, with warnings for the driver."""

    metrics: MetricsSnapshot
    env_steps: int
    agent_steps: int
    warnings: Sequence[str] = ()


MakeBaseEnv = Callable[[AlgorithmConfig], Adapter]


class Evaluation:
    """Runs episodes with the current weights of some policies.

    `placement` decides the share of the sub-environments and episodes. `guard` is entered while environments are
    stepped.
    """

    def __init__(
        self,
        settings: AlgorithmConfig,
        policy_view: PolicyView,
        make_base_env: MakeBaseEnv,
        callbacks: DefaultCallbacks,
        seed: int,
        placement: WorkerPlacement | None = None,
    ) -> None:
        self._settings = settings
        self._policy_view = policy_view
        self._playing: PolicyMap | None = None
        self._make_base_env = make_base_env
        self._callbacks = callbacks
        self._seed = seed
        self._placement = replace(placement or WorkerPlacement(), in_evaluation=True)
        self._in_episodes = settings.evaluation_duration_unit == "episodes"
        self._base_env: Adapter | None = None
        self._sampler: Sampler | None = None
        self._limit: EvaluationLimit | None = None
        # Of `random` and `numpy.random` at the end of the last evaluation.
        self._random_states: tuple[Any, Any] | None = None
        # Whether an exception ended the last evaluation.
        self._interrupted = False
        self.guard: AbstractContextManager[Any] = nullcontext()
        # The last arguments of each method that was called, for environments that are created later.
        self._calls: dict[str, tuple[Any, ...]] = {}

    @property
    def progress(self) -> int:
        """A number that changes with each env step."""
        steps = getattr(self._base_env, "env_steps", None)
        return 0 if steps is None else int(steps.sum())

    @property
    def _workers(self) -> int:
        return self._settings.num_workers if self._placement.worker_index else 1

    def play(self) -> EvaluationShare:
        """Run the episodes."""
        with self._own_random_states():
            env_steps, agent_steps = self._play()
        return EvaluationShare(self._counted().metrics.take(), env_steps, agent_steps)

    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """Call a method of every sub-environment, also of those that replace them; the next evaluation resets them."""
        with self._own_random_states(), self.guard:
            sampler = self._ready()
            found = call_each(sampler.base_env, method, args)
            self._calls[method] = args
            if sampler.base_env.can_restart and not sampler.base_env.lockstep:
                # Episodes that have begun would go on as the environments were before.
                self._sampler = self._new_sampler(sampler.base_env, is_new=False)
                self._sampler.resume(sampler.state_midway())
        return found

    @contextmanager
    def _own_random_states(self) -> Iterator[None]:
        """Let environments draw numbers that are independent of training, whose states are restored."""
        seed = self._settings.seed
        if seed is None:
            yield
            return
        outside = random.getstate(), np.random.get_state()
        rng.seed_process(rng.key(seed, rng.EVALUATION, self._placement.worker_index))
        if self._random_states is not None:
            _set_random_states(self._random_states)
        try:
            yield
        finally:
            self._random_states = random.getstate(), np.random.get_state()
            _set_random_states(outside)

    def _play(self) -> tuple[int, int]:
        sampler = self._ready()
        env_steps, agent_steps = sampler.env_steps, sampler.agent_steps
        worker = max(0, self._placement.worker_index - 1)
        duration, num_envs = self._settings.evaluation_duration, sampler.base_env.num_envs
        self._counted().allot(duration, num_envs, worker, self._workers)
        self._interrupted = True
        try:
            with self.guard:
                batch = sampler.sample()
        except MenvError as error:
            sampler.crashes.attach(error)
            raise
        sampler.finish(batch)
        self._interrupted = False
        return sampler.env_steps - env_steps, sampler.agent_steps - agent_steps

    def state(self) -> SamplerState | None:
        """Return the sampler's state; None before the first evaluation, after a failed one and with other policies."""
        if self._sampler is None or self._interrupted or self._playing is not self._policy_view.policy_map:
            return None
        with suppress(CallOrderError):
            return self._sampler.state()
        return None

    def resume(self, state: SamplerState) -> None:
        """Resume from the samplers of another run's evaluation; one of several workers resumes its share."""
        sampler = self._ready()
        if self._placement.worker_index:
            own = sampler.base_env.num_envs
            state = split_state(state, self._workers, own)[self._placement.worker_index - 1]
        with self.guard:
            sampler.resume(state)

    def stop(self) -> None:
        """Close the environments."""
        if self._base_env is not None:
            self._base_env.stop()

    def _ready(self) -> Sampler:
        midway = self._limit is not None and self._limit.stops_midway
        changed = midway or self._playing is not self._policy_view.policy_map
        if self._interrupted or (self._sampler is not None and changed):
            # All sub-environments are at the beginning of an episode afterwards.
            self.stop()
            self._base_env, self._sampler, self._interrupted = None, None, False
        is_new = self._base_env is None
        if self._base_env is None:
            self._base_env = self._make_base_env(self._settings)
            self._limit = EvaluationLimit(self._base_env, self._in_episodes)
        if self._sampler is None:
            self._sampler = self._new_sampler(self._base_env, is_new)
        if is_new:
            for method, args in self._calls.items():
                call_each(self._base_env, method, args)
        return self._sampler

    def _counted(self) -> EvaluationLimit:
        assert self._limit is not None
        return self._limit

    def _new_sampler(self, base_env: Adapter, is_new: bool) -> Sampler:
        policy_view, settings, limit = self._policy_view, self._settings, self._counted()
        self._playing = policy_view.policy_map
        sampler = new_sampler(
            settings, base_env, policy_view, [group.clone() for group in policy_view.groups], limit,
            limit.metrics, self._seed, self._callbacks, self._placement,
        )  # fmt: skip
        if is_new:
            tell_envs_created(
                lambda: self._sampler or sampler, settings, base_env, self._callbacks, self._placement
            )
        return sampler


def _set_random_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


Kind: TypeAlias = Literal["observation", "action"]


def check_env(policy_view: PolicyView, base_env: Adapter, env: Any, settings: AlgorithmConfig) -> None:
    """Refuse an environment whose agents map to no policy, or to one with other spaces."""
    agents = resolve_agents(policy_view.policy_map, base_env, env)
    # An `observation_fn` returns other observations than the environment declares.
    reshaped = settings.multiagent.observation_fn is not None
    kinds: tuple[Kind, ...] = ("action",) if reshaped else ("observation", "action")
    for kind in kinds:
        given = getattr(settings, f"{kind}_space")
        agent_spaces = AgentSpaces(base_env if base_env.lockstep else env, kind, given)
        for agent, policy_id in agents.items():
            found, built = (
                agent_spaces.found(agent),
                getattr(policy_view.policies[policy_id], f"{kind}_space"),
            )
            if found is not None and not alike(found, built):
                note = team_note(settings) if isinstance(found, spaces.Tuple) else ""
                raise ConfigError(
                    f"the {kind} space of agent {agent!r} is {found}, expected one like that of its policy "
                    f"{policy_id!r}, {built}; map the agent to another policy, or fix the environment{note}"
                )
