"""Evaluation: the current policies play episodes of their own, in environments of their own.

`menv.algorithms.algorithm` owns one and asks it for results. Nothing that is sampled here is learned from,
and no number of the training run depends on whether or when it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from menv.adapters.created_envs import CreatedEnvs
from menv.adapters.table import TableEnvs
from menv.algorithms.config.algorithm_config import AlgorithmConfig, left_over
from menv.algorithms.config.classic_keys import read_keys
from menv.algorithms.config.keys import section_values
from menv.algorithms.config.multi_agent_config import MultiAgentConfig
from menv.algorithms.episode_shares import (
    EpisodeQuota,
    FirstEpisodes,
    LockstepQuota,
    StepQuota,
    TogetherQuota,
)
from menv.algorithms.population import Population
from menv.algorithms.rollouts.experience import env_context
from menv.base_env import BaseEnv
from menv.callbacks import DefaultCallbacks, read_callbacks
from menv.errors import CallOrderError, ConfigError
from menv.loop.quota import ExternalQuota, Quota
from menv.loop.sampler import Sampler
from menv.metrics import Metrics
from menv.policy_map import PolicyMap

MakeBaseEnv = Callable[[AlgorithmConfig], BaseEnv]
_SEED = 10_000


class Evaluation:
    """Plays episodes with the policies of a population.

    Args:
        config: The training run's settings; `evaluation_config` is put over them.
        population: The policies; their weights are those of the moment.
        make_base_env: Creates the environments, when the first evaluation begins.
        callbacks: Told about the episodes, unless `evaluation_config` has some of its own.
        seed: Of the training run.

    Raises:
        ConfigError: `evaluation_config` has an unknown key.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        population: Population,
        make_base_env: MakeBaseEnv,
        callbacks: DefaultCallbacks,
        seed: int,
    ) -> None:
        self.config = evaluation_settings(config)
        self._own = dict(config.evaluation_config or {})
        self._population = population
        self._playing: PolicyMap | None = None
        self._make_base_env = make_base_env
        own = self.config.callbacks
        self._callbacks = callbacks if own is config.callbacks else read_callbacks(own)
        self._seed = seed + _SEED
        self._in_episodes = config.evaluation_duration_unit == "episodes"
        self._metrics = Metrics(0)
        self._base_env: BaseEnv | None = None
        self._sampler: Sampler | None = None
        self._quota: Quota = EpisodeQuota() if self._in_episodes else StepQuota()
        # Whether an exception ended the last evaluation.
        self._broken_off = False

    @staticmethod
    def check(config: AlgorithmConfig) -> None:
        """Refuse settings that no evaluation can have at once, for the first one may be hours away.

        Raises:
            ConfigError: `evaluation_config` has an unknown key, or one of its values is wrong.
        """
        evaluation_settings(config)

    def run(self) -> dict[str, Any]:
        """Play, and return the metrics of the episodes that were played."""
        sampler = self._ready()
        env_steps, agent_steps = sampler.env_steps, sampler.agent_steps
        self._share_out(self.config.evaluation_duration, sampler.base_env.num_envs)
        self._broken_off = True
        sampler.finish(sampler.sample())
        self._broken_off = False
        summary = self._metrics.summary()
        return {
            **summary,
            "sampler_results": summary,
            "num_env_steps_sampled_this_iter": sampler.env_steps - env_steps,
            "num_agent_steps_sampled_this_iter": sampler.agent_steps - agent_steps,
        }

    def _share_out(self, duration: int, num_envs: int) -> None:
        """Tell the quota what each sub-environment is to play, or all together where nobody has counted them."""
        quota, index = self._quota, np.arange(num_envs)
        if isinstance(quota, TogetherQuota):
            quota.left_over = duration
        elif isinstance(quota, EpisodeQuota | LockstepQuota):
            shares = duration // num_envs + (index < duration % num_envs)
            quota.shares = shares if self._in_episodes else np.full(num_envs, -(-duration // num_envs))
            if isinstance(self._metrics, FirstEpisodes):
                self._metrics.shares = quota.shares.copy()
        else:
            quota.length = -(-duration // max(1, num_envs))

    def state(self) -> dict[str, Any] | None:
        """Return what the next evaluation depends on as a plain tree, None before the first and after a failed one."""
        if self._sampler is None or self._broken_off:
            return None
        with suppress(CallOrderError):
            # With other policies than those that played, the next one begins anew.
            same = self._playing is self._population.policy_map
            return {"sampler": self._sampler.state() if same else None, "metrics": self._metrics.state()}
        return None

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` of another run's evaluation returned."""
        sampler = self._ready()
        if state["sampler"] is not None:
            sampler.resume(state["sampler"])
        self._metrics.set_state(state["metrics"])

    def stop(self) -> None:
        """Close the environments."""
        if self._base_env is not None:
            self._base_env.stop()

    def _ready(self) -> Sampler:
        """Return the sampler, which has the policies of the moment."""
        population = self._population
        if self._broken_off:
            self._start_over()
        if self._base_env is None:
            self._base_env = self._make_base_env(self.config)
            if self._base_env.lockstep:
                index_of = self._base_env.index_of if isinstance(self._base_env, TableEnvs) else int
                self._quota = LockstepQuota(self._in_episodes)
                self._metrics = FirstEpisodes(self._in_episodes, index_of)
            elif not self._base_env.num_envs:
                together = ExternalQuota(1, "complete_episodes")
                self._quota = TogetherQuota() if self._in_episodes else together
        # Those that step together, or share all episodes, are not all at the beginning of one when the last is done.
        midway = self._base_env.lockstep or isinstance(self._quota, TogetherQuota)
        if self._sampler is None or midway or self._playing is not population.policy_map:
            # Whoever comes or goes, everybody stands at the beginning of an episode here.
            self._sampler = self._new_sampler()
        return self._sampler

    def _start_over(self) -> None:
        """Forget the environments and the episodes of an evaluation that was broken off."""
        self.stop()
        self._broken_off = False
        self._base_env = self._sampler = None
        self._metrics = Metrics(0)

    def _new_sampler(self) -> Sampler:
        assert self._base_env is not None
        if self._sampler is not None:
            self._base_env.stop()
            self._base_env = self._make_base_env(self.config)
        self._playing = policy_map = self._population.policy_map
        if "policy_mapping_fn" in (self._own.get("multiagent") or {}):
            policy_map = policy_map.changed(policy_mapping_fn=self.config.multiagent.policy_mapping_fn)
        sampler = Sampler(
            self._base_env, policy_map, [cohort.twin() for cohort in self._population.cohorts],
            self._quota, metrics=self._metrics, seed=self._seed, observation_fn=self.config.multiagent.observation_fn,
            callbacks=self._callbacks,
        )  # fmt: skip
        sampler.whole_frames = False
        sampler.explore = self.config.explore
        sampler.policies = self._population.policies
        self._tell_envs_created(sampler)
        return sampler

    def _tell_envs_created(self, sampler: Sampler) -> None:
        """Tell the callbacks of new environments, and of those that will take the place of one."""

        def tell(index: int, env: Any) -> None:
            self._callbacks.on_sub_environment_created(
                worker=sampler,
                sub_environment=env,
                env_context=env_context(self.config, index),
                env_index=index,
            )

        base_env = sampler.base_env
        for index, env in enumerate(base_env.get_sub_environments()):
            tell(index, env)
        if isinstance(base_env, CreatedEnvs):
            base_env.on_created = tell


def evaluation_settings(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return the settings of an evaluation: the run's own, with `evaluation_config` put over them."""
    changes = dict(config.evaluation_config or {})
    values = read_keys(type(config), changes, "evaluation_config: ")
    if "env_config" in values:
        values["env_config"] = {**config.env_config, **values["env_config"]}
    if isinstance(values.get("multiagent"), Mapping):
        own = section_values(MultiAgentConfig, values["multiagent"], "evaluation_config.multiagent")
        _check_policies(own.get("policies"), config.multiagent.policies)
        values["multiagent"] = replace(config.multiagent, **own)
    return replace(config, **left_over({**vars(config), **values}, values), **values)


def _check_policies(given: Any, known: Any) -> None:
    """Refuse policies that the run has not got.

    Raises:
        ConfigError: There are some.
    """
    if given is None:
        return
    ids = list(PolicyMap(known).specs)
    strange = [name for name in PolicyMap(given).specs if name not in ids]
    if strange:
        raise ConfigError(
            f"evaluation_config.multiagent: policies {strange} are none of the run, expected some of {ids}; put them "
            "into its own multiagent, and let a policy_mapping_fn here choose who plays"
        )
