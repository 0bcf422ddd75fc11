"""Evaluation: the current policies run episodes in separate environments, in this process or in one worker.

Nothing sampled here is learned from, and training does not depend on evaluations, unless a custom policy remembers
what it observed in them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from menv import rng
from menv.adapters.adapter import Adapter
from menv.algorithms.config.algorithm_config import AlgorithmConfig, team_note
from menv.algorithms.rollouts.environments import WorkerPlacement
from menv.algorithms.rollouts.local_rollouts import call_each, new_sampler, tell_envs_created
from menv.algorithms.rollouts.worker_messages import PolicyView
from menv.base_env import Column, EnvId, EpisodeEnd
from menv.callbacks import DefaultCallbacks
from menv.episode import Episode
from menv.errors import ConfigError, ContractError, MenvError
from menv.metrics import AS_THEY_COME, Metrics, MetricsSnapshot, When
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
    `metrics` leaves out the surplus. In seconds, the episodes that run when the time is over are played to their end.

    Attributes:
        metrics: Records the episodes that count.
    """

    def __init__(self, base_env: Adapter, unit: str) -> None:
        super().__init__(1)
        self._joint = not base_env.num_envs
        self._together = self._joint or base_env.lockstep
        self._unit = unit
        self._until = 0.0
        self.metrics = Metrics(0)
        if self._together and unit != "seconds":
            index_of: Callable[[EnvId], int] = (lambda _: 0) if self._joint else base_env.index_of
            self.metrics = FirstEpisodes(unit == "episodes", index_of)
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
        self._shares = episodes if self._unit == "episodes" else np.full(own, -(-duration // total))
        self._until = time.monotonic() + duration
        if isinstance(self.metrics, FirstEpisodes):
            self.metrics.shares = self._shares.copy()

    def begin(self, env_steps: Column) -> None:
        super().begin(env_steps)
        self._since, self._ended = env_steps.copy(), []

    def end_episodes(self, ends: Sequence[EpisodeEnd]) -> None:
        for end in ends:
            if not end.faulty:
                self._ended.append(end.env_index)
            place = 0 if self._joint else end.env_index
            if self._unit != "seconds":
                self._shares[place] -= end.env_steps if self._unit == "timesteps" else int(not end.faulty)
            elif time.monotonic() >= self._until:
                self._shares[place] = 0

    def closed(self, env_steps: Column) -> Flags | None:
        self._check_endless(env_steps)
        done: Flags = self._shares <= 0
        if self._together:
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

_APART = 10**9
"""Env steps between the beginnings of two evaluations, so that no seed of a reset is used twice."""


class Evaluation:
    """Runs episodes with the current weights of some policies; all that is random depends on the evaluation's number.

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
        self._make_base_env = make_base_env
        self._callbacks = callbacks
        self._seed = seed
        self._placement = placement or WorkerPlacement(in_evaluation=True)
        self.base_env: Adapter | None = None
        self._sampler: Sampler
        self.guard: AbstractContextManager[Any] = nullcontext()
        # The last arguments of each method that was called, for environments that are created later.
        self._calls: dict[str, tuple[Any, ...]] = {}

    def play(self, number: int) -> EvaluationShare:
        """Run the episodes of evaluation `number` of the run, from 0."""
        with self._own_random_states(number):
            base_env = self.base_env
            if base_env is not None and (base_env.lockstep or not base_env.can_restart):
                base_env.stop()
                base_env = None
            sampler, limit = self._begun(base_env, number)
            worker, count = max(0, self._placement.worker_index - 1), sampler.base_env.num_envs
            workers = self._settings.num_workers if self._placement.worker_index else 1
            limit.allot(self._settings.evaluation_duration, count, worker, workers)
            sampler.resume(SamplerState(steps=[number * _APART] * count))
            try:
                with self.guard:
                    batch = sampler.sample()
            except MenvError as error:
                sampler.crashes.attach(error)
                raise
            sampler.finish(batch)
        return EvaluationShare(limit.metrics.take(), sampler.env_steps, sampler.agent_steps)

    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """Call a method of every sub-environment and of their replacements; the next evaluation resets them."""
        with self._own_random_states(0), self.guard:
            base_env = self.base_env or self._begun(None, 0)[0].base_env
            found = call_each(base_env, method, args)
            self._calls[method] = args
        return found

    def stop(self) -> None:
        """Close the environments."""
        if self.base_env is not None:
            self.base_env.stop()

    @contextmanager
    def _own_random_states(self, number: int) -> Iterator[None]:
        """Let environments draw numbers that are independent of training, whose states are restored."""
        seed = self._settings.seed
        if seed is None:
            yield
            return
        outside = random.getstate(), np.random.get_state()
        rng.seed_process(rng.key(seed, rng.EVALUATION, self._placement.worker_index, number))
        try:
            yield
        finally:
            random.setstate(outside[0])
            np.random.set_state(outside[1])

    def _begun(self, base_env: Adapter | None, number: int) -> tuple[Sampler, EvaluationLimit]:
        """Return the sampler of an evaluation in these environments, or in new ones."""
        view, settings, own = self._policy_view, self._settings, base_env
        self.base_env = base_env = own or self._make_base_env(settings)
        limit = EvaluationLimit(base_env, settings.evaluation_duration_unit)
        self._sampler = new_sampler(
            settings, base_env, view, [group.clone() for group in view.groups], limit, limit.metrics,
            self._seed + number, self._callbacks, self._placement,
        )  # fmt: skip
        if own is None:
            tell_envs_created(lambda: self._sampler, settings, base_env, self._callbacks, self._placement)
            for method, args in self._calls.items():
                call_each(base_env, method, args)
        return self._sampler, limit


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
