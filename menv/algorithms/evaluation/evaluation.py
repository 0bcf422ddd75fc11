"""Evaluation: the current policies play episodes of their own, in environments of their own, in this process.

`menv.algorithms.evaluation.evaluations` has one, or each of its workers. Nothing that is sampled here is learned from,
and no number of the training run depends on whether or when it was asked, unless a policy of the user's own remembers
what it was asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

from menv import draws
from menv.adapters.created_envs import CreatedEnvs
from menv.adapters.table import TableEnvs
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.evaluation.episode_shares import (
    EpisodeQuota,
    FirstEpisodes,
    LockstepQuota,
    StepQuota,
    TogetherQuota,
)
from menv.algorithms.rollouts.experience import Place, env_context
from menv.algorithms.rollouts.rollouts import Crew
from menv.algorithms.rollouts.stand import joined, spread
from menv.base_env import BaseEnv
from menv.callbacks import DefaultCallbacks
from menv.errors import CallOrderError
from menv.loop.quota import ExternalQuota, Quota
from menv.loop.sampler import Sampler
from menv.metrics import Metrics
from menv.policy_map import PolicyMap

MakeBaseEnv = Callable[[AlgorithmConfig], BaseEnv]


class Evaluation:
    """Plays episodes with the policies of a crew.

    Args:
        settings: Those of evaluations.
        crew: The policies; their weights are those of the moment.
        make_base_env: Creates the environments, when the first evaluation begins.
        callbacks: Told about the episodes.
        seed: Key of every random draw.
        place: Which share of all sub-environments, and so of all episodes, this is.

    Attributes:
        guard: Is entered while environments are stepped.
        begun: Whether the next `run` waits for what was begun before: never.
    """

    begun = False

    def __init__(
        self,
        settings: AlgorithmConfig,
        crew: Crew,
        make_base_env: MakeBaseEnv,
        callbacks: DefaultCallbacks,
        seed: int,
        place: Place | None = None,
    ) -> None:
        self._settings = settings
        self._crew = crew
        self._playing: PolicyMap | None = None
        self._make_base_env = make_base_env
        self._callbacks = callbacks
        self._seed = seed
        self._place = place or Place()
        self._in_episodes = settings.evaluation_duration_unit == "episodes"
        # Where episodes are recorded.
        self.metrics = Metrics(0)
        self._base_env: BaseEnv | None = None
        self._sampler: Sampler | None = None
        self._quota: Quota = EpisodeQuota() if self._in_episodes else StepQuota()
        # Evaluations change nothing about what environments draw in training, nor the other way round.
        self._generators = (
            None
            if settings.seed is None
            else draws.OwnGenerators(draws.key(settings.seed, draws.EVALUATION, self._place.worker_index))
        )
        # Whether an exception ended the last evaluation.
        self._broken_off = False
        self.guard: AbstractContextManager[Any] = nullcontext()

    @property
    def progress(self) -> int:
        """A number that changes with each env step."""
        steps = getattr(self._base_env, "env_steps", None)
        return 0 if steps is None else int(steps.sum())

    @property
    def _workers(self) -> int:
        return self._settings.num_workers if self._place.worker_index else 1

    def begin(self) -> None:
        """Do nothing: this process plays when it is waited for."""

    def run(self) -> dict[str, Any]:
        """Play, and return the metrics of the episodes that were played."""
        env_steps, agent_steps = self.play()
        return as_result(self.metrics, env_steps, agent_steps)

    def play(self) -> tuple[int, int]:
        """Play, and return how many env steps and agent steps it was."""
        with nullcontext() if self._generators is None else self._generators.entered():
            return self._play()

    def _play(self) -> tuple[int, int]:
        sampler = self._ready()
        env_steps, agent_steps = sampler.env_steps, sampler.agent_steps
        self._share_out(self._settings.evaluation_duration, sampler.base_env.num_envs)
        self._broken_off = True
        with self.guard:
            batch = sampler.sample()
        sampler.finish(batch)
        self._broken_off = False
        return sampler.env_steps - env_steps, sampler.agent_steps - agent_steps

    def recreated(self) -> Sequence[int]:
        """Return nothing: no worker plays."""
        return ()

    def _share_out(self, duration: int, num_envs: int) -> None:
        """Tell the quota what each sub-environment is to play, or all together where nobody has counted them."""
        quota, workers = self._quota, self._workers
        mine = max(0, self._place.worker_index - 1)
        total, index = num_envs * workers, mine * num_envs + np.arange(num_envs)
        if isinstance(quota, TogetherQuota):
            quota.left_over = duration // workers + (mine < duration % workers)
            if isinstance(self.metrics, FirstEpisodes):
                # Several may end at once.
                self.metrics.shares = np.array([quota.left_over])
        elif isinstance(quota, EpisodeQuota | LockstepQuota):
            # What is left over is spread evenly, so that workers have the same to do.
            shares = -(-(index + 1) * duration // total) + -index * duration // total
            quota.shares = shares if self._in_episodes else np.full(num_envs, -(-duration // total))
            if isinstance(self.metrics, FirstEpisodes):
                self.metrics.shares = quota.shares.copy()
        else:
            quota.length = -(-duration // max(1, total or workers))

    def state(self) -> dict[str, Any] | None:
        """Return what the next evaluation depends on as a plain tree, None before the first and after a failed one."""
        if self._sampler is None or self._broken_off:
            return None
        with suppress(CallOrderError):
            # With other policies than those that played, the next one begins anew.
            same = self._playing is self._crew.policy_map
            return {"sampler": self._sampler.state() if same else None, "metrics": self.metrics.state()}
        return None

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` of another run's evaluation returned."""
        self._ready()
        if state["sampler"] is not None:
            self.resume(state["sampler"])
        self.metrics.set_state(state["metrics"])

    def resume(self, tree: Mapping[str, Any]) -> None:
        """Go on from where the samplers of another run's evaluation stood; one of several goes on from its share."""
        sampler = self._ready()
        if self._place.worker_index:
            own = sampler.base_env.num_envs
            tree = spread(tree, self._workers, own)["workers"][self._place.worker_index - 1]
        with self.guard:
            sampler.resume(joined(tree))

    def stop(self) -> None:
        """Close the environments."""
        if self._base_env is not None:
            self._base_env.stop()

    def _ready(self) -> Sampler:
        if self._broken_off:
            self._start_over()
        if self._base_env is None:
            self._base_env = self._make_base_env(self._settings)
            if self._base_env.lockstep:
                self._quota = LockstepQuota(self._in_episodes)
                self.metrics = FirstEpisodes(self._in_episodes, self._index_of)
            elif not self._base_env.num_envs:
                self._quota = ExternalQuota(1, "complete_episodes")
                if self._in_episodes:
                    self._quota, self.metrics = TogetherQuota(), FirstEpisodes(True, lambda _: 0)
        # Those that step together, or share all episodes, are not all at the beginning of one when the last is done.
        midway = self._base_env.lockstep or isinstance(self._quota, TogetherQuota)
        if self._sampler is None or midway or self._playing is not self._crew.policy_map:
            # Whoever comes or goes, everybody stands at the beginning of an episode here.
            self._sampler = self._new_sampler()
        return self._sampler

    def _index_of(self, env_id: Any) -> int:
        return self._base_env.index_of(env_id) if isinstance(self._base_env, TableEnvs) else int(env_id)

    def _start_over(self) -> None:
        self.stop()
        self._broken_off = False
        self._base_env = self._sampler = None
        self.metrics = Metrics(0)

    def _new_sampler(self) -> Sampler:
        assert self._base_env is not None
        if self._sampler is not None:
            self._base_env.stop()
            self._base_env = self._make_base_env(self._settings)
        crew, place = self._crew, self._place
        self._playing = crew.policy_map
        sampler = Sampler(
            self._base_env, crew.policy_map, [cohort.twin() for cohort in crew.cohorts], self._quota,
            metrics=self.metrics, seed=self._seed, worker_index=place.worker_index,
            num_workers=self._workers if place.worker_index else 0,
            first_index=place.first_index(self._base_env.num_envs),
            observation_fn=self._settings.multiagent.observation_fn, callbacks=self._callbacks,
        )  # fmt: skip
        sampler.whole_frames = False
        sampler.explore = self._settings.explore
        sampler.policies = crew.policies
        self._tell_envs_created(sampler)
        return sampler

    def _tell_envs_created(self, sampler: Sampler) -> None:
        def tell(index: int, env: Any) -> None:
            self._callbacks.on_sub_environment_created(
                worker=sampler,
                sub_environment=env,
                env_context=env_context(self._settings, index, self._place),
                env_index=index,
            )

        base_env = sampler.base_env
        for index, env in enumerate(base_env.get_sub_environments()):
            tell(index, env)
        if isinstance(base_env, CreatedEnvs):
            base_env.on_created = tell


def as_result(metrics: Metrics, env_steps: int, agent_steps: int) -> dict[str, Any]:
    """Return what an evaluation tells: a summary of the episodes that were recorded, and how many steps it was."""
    summary = metrics.summary()
    return {
        **summary,
        "sampler_results": summary,
        "num_env_steps_sampled_this_iter": env_steps,
        "num_agent_steps_sampled_this_iter": agent_steps,
    }
