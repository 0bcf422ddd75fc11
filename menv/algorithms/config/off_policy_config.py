"""What the settings of all algorithms have in common that replay their experience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.dqn_settings import DQNSettings
from menv.algorithms.config.keys import prefixed
from menv.algorithms.config.model_config import ModelConfig
from menv.algorithms.config.numbers import MOST_ROWS, check_count
from menv.errors import ConfigError
from menv.policy_spec import PolicySpec

# What "auto" makes of the fragment length: so many env steps, of all sub-environments together, between two
# times of learning, and at least so many of each.
_STEPS_TOGETHER = 64
_STEPS_OF_EACH = 4
_LONGEST = 100_000
_MEMORY = ("use_lstm", "use_gru", "max_seq_len")


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgorithmConfig, DQNSettings):
    """What `AlgorithmConfig` says about sampling and `DQNSettings` about learning."""

    own_meaning: ClassVar[frozenset[str]] = frozenset({"train_batch_size"})
    of_the_run: ClassVar[frozenset[str]] = frozenset({"min_sample_timesteps_per_iteration"})

    rollout_fragment_length: int | Literal["auto"] = "auto"
    """Steps of each sub-environment between two times of learning; "auto" makes 64 of all together, at least 4 of each,
    of each at least the `max_seq_len` of every policy with a memory, and the `n_step` of every one. A fixed one below
    `n_step` is refused, unless `batch_mode` is "complete_episodes"."""
    train_batch_size: int = 256
    """Rows of one gradient step, drawn from the replay buffer; how often, `training_intensity` says."""
    min_sample_timesteps_per_iteration: int = 1_000
    """Env steps, or what `count_steps_by` says, of all sub-environments together, that one training iteration samples
    at least."""

    def __post_init__(self) -> None:
        AlgorithmConfig.__post_init__(self)
        DQNSettings.__post_init__(self)
        if self.model.cell:
            # Sequences lie in the buffer at full length.
            check_count("model", "max_seq_len", self.model.max_seq_len, most=_LONGEST)
        name = "min_sample_timesteps_per_iteration"
        check_count(self.algorithm, name, getattr(self, name), most=MOST_ROWS)
        if self.n_step != "auto":
            fixed = self.rollout_fragment_length
            self._check_reach(_LONGEST if fixed == "auto" else fixed)

    def target_steps(self) -> int:
        """Return the rewards that a target holds, at most."""
        steps, fixed = DQNSettings.target_steps(self), self.rollout_fragment_length
        if self.n_step != "auto" or fixed == "auto" or self.batch_mode == "complete_episodes":
            return steps
        return min(steps, fixed)

    def check_reach(self, main: AlgorithmConfig, where: str) -> None:
        """Refuse targets of a policy that reach beyond the fragments of its run.

        Args:
            main: The main settings, which say how long fragments are.
            where: Begins the message.

        Raises:
            ConfigError: They do.
        """
        if self.n_step != "auto":
            length = main.fragment_length(main.num_envs_per_worker * max(1, main.num_workers))
            with prefixed(where):
                self._check_reach(length)

    def fragment_length(self, num_envs: int) -> int:
        """Return the steps of each of `num_envs` sub-environments between two times of learning."""
        if self.rollout_fragment_length == "auto":
            # A recurrent policy learns through sequences, and these end where a fragment does.
            least = self._longest_memory() or _STEPS_OF_EACH
            return max(least, self._longest_reach(), -(-_STEPS_TOGETHER // num_envs))
        return self.rollout_fragment_length

    def sample_size(self, num_envs: int) -> int:
        """Return the env steps, of all sub-environments together, between two times of learning."""
        return self.fragment_length(num_envs) * num_envs

    def iteration_size(self, num_envs: int) -> int:
        """Return the env steps, of all sub-environments together, of one training iteration."""
        return max(self.min_sample_timesteps_per_iteration, self.sample_size(num_envs))

    def _check_reach(self, length: int) -> None:
        """Refuse targets that reach beyond fragments of so many steps, where these cut episodes."""
        if self.batch_mode != "complete_episodes" and self.target_steps() > length:
            raise ConfigError(
                f"{self.algorithm}: n_step is {self.n_step} with fragments of {length}, beyond which no target "
                f"reaches, expected at most {length}; lower n_step, raise rollout_fragment_length, or set "
                'batch_mode="complete_episodes"'
            )

    def _longest_reach(self) -> int:
        """Return the most steps that targets of any policy reach; 0 where fragments cut no episode."""
        if self.batch_mode == "complete_episodes":
            return 0
        owns = (spec.config.get("n_step") for spec in self._specs() if spec.config)
        return max(self.target_steps(), *(own for own in owns if isinstance(own, int)), 0)

    def _longest_memory(self) -> int:
        """Return the most rows through which any policy learns that replays sequences; 0 where none does."""
        main = self.model
        found = [main.max_seq_len if main.cell else 0]
        for spec in self._specs():
            own = (spec.config or {}).get("model")
            if isinstance(own, ModelConfig):
                own = {name: getattr(own, name) for name in _MEMORY}
            # One that PPO trains is none of them. What cannot work is refused where the policy is created.
            if isinstance(own, Mapping) and spec.trained_by in (None, "DQN"):
                lstm, gru, length = (own.get(name, getattr(main, name)) for name in _MEMORY)
                found.append(length if (lstm or gru) and isinstance(length, int) else 0)
        return min(max(found), _LONGEST)

    def _specs(self) -> list[PolicySpec]:
        given = self.multiagent.policies
        return (
            [PolicySpec.of(name, value) for name, value in given.items()]
            if isinstance(given, Mapping)
            else []
        )
