"""Evaluation: the current policies play episodes of their own, in environments of their own.

`menv.algorithms.algorithm` owns one and asks it for results. Nothing that is sampled here is learned from,
and no number of the training run depends on whether or when it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.classic_keys import read_keys
from menv.algorithms.config.keys import section_values
from menv.algorithms.config.multi_agent_config import MultiAgentConfig
from menv.algorithms.population import Population
from menv.base_env import BaseEnv, EpisodeEnd
from menv.callbacks import DefaultCallbacks
from menv.errors import CallOrderError, ConfigError
from menv.loop.quota import Flags, Quota
from menv.loop.sampler import Sampler
from menv.loop.sampler_state import resume, sampler_state
from menv.metrics import Metrics
from menv.policy_map import PolicyMap
from menv.segments import Column

MakeBaseEnv = Callable[[AlgorithmConfig], BaseEnv]
_SEED = 10_000


class EpisodeQuota(Quota):
    """A number of whole episodes of each sub-environment, so that short ones are not preferred."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__(1)
        self.shares: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Count episodes that ended."""
        for end in ends:
            self.shares[end.env_index] -= 1

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True where a sub-environment has played its episodes."""
        done: Flags = self.shares <= 0
        return done if done.any() else None


class StepQuota(Quota):
    """So many env steps of each sub-environment, and on to the end of its episode."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__(1, "complete_episodes")


class Evaluation:
    """Plays episodes with the policies of a population.

    Args:
        config: The training run's settings; `evaluation_config` is put over them.
        population: The policies; their weights are those of the moment.
        make_base_env: Creates the environments, when the first evaluation begins.
        callbacks: Told about the episodes.
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
        self._callbacks = callbacks
        self._seed = seed + _SEED
        self._metrics = Metrics(0)
        self._base_env: BaseEnv | None = None
        self._sampler: Sampler | None = None
        self._quota: EpisodeQuota | StepQuota = (
            EpisodeQuota() if config.evaluation_duration_unit == "episodes" else StepQuota()
        )

    def run(self) -> dict[str, Any]:
        """Play, and return the metrics of the episodes that were played."""
        sampler = self._ready()
        env_steps, agent_steps = sampler.env_steps, sampler.agent_steps
        num_envs = self._num_envs
        duration = self.config.evaluation_duration
        if isinstance(self._quota, EpisodeQuota):
            index = np.arange(num_envs)
            self._quota.shares = duration // num_envs + (index < duration % num_envs)
        else:
            self._quota.length = -(-duration // num_envs)
        sampler.finish(sampler.sample())
        return {
            **self._metrics.summary(),
            "num_env_steps_sampled_this_iter": sampler.env_steps - env_steps,
            "num_agent_steps_sampled_this_iter": sampler.agent_steps - agent_steps,
        }

    def state(self) -> dict[str, Any] | None:
        """Return what the next evaluation depends on as a plain tree, None before the first and after a failed one."""
        if self._sampler is None:
            return None
        with suppress(CallOrderError):
            return {"sampler": sampler_state(self._sampler), "metrics": self._metrics.state()}
        return None

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` of another run's evaluation returned."""
        resume(self._ready(), state["sampler"])
        self._metrics.set_state(state["metrics"])

    def stop(self) -> None:
        """Close the environments."""
        if self._base_env is not None:
            self._base_env.stop()

    @property
    def _num_envs(self) -> int:
        assert self._base_env is not None
        return self._base_env.num_envs or self.config.num_envs_per_worker

    def _ready(self) -> Sampler:
        """Return the sampler, which has the policies of the moment."""
        population = self._population
        if self._base_env is None:
            self._base_env = self._make_base_env(self.config)
            if self._base_env.lockstep:
                raise ConfigError(
                    "evaluate: a vectorised environment steps all its sub-environments at once, so none can wait at "
                    "the end of its episodes, expected single environments; give them in evaluation_config={'env': ...}"
                )
        if self._sampler is None or self._playing is not population.policy_map:
            # Whoever comes or goes, everybody stands at the beginning of an episode here.
            self._sampler = self._new_sampler()
        return self._sampler

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
        sampler.explore = self.config.explore
        sampler.policies = self._population.policies
        return sampler


def evaluation_settings(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return the settings of an evaluation: the run's own, with `evaluation_config` put over them."""
    changes = dict(config.evaluation_config or {})
    values = read_keys(type(config), changes, "evaluation_config: ")
    if "env_config" in values:
        values["env_config"] = {**config.env_config, **values["env_config"]}
    if isinstance(values.get("multiagent"), Mapping):
        own = section_values(MultiAgentConfig, values["multiagent"], "evaluation_config.multiagent")
        values["multiagent"] = replace(config.multiagent, **own)
    return replace(config, **values)
