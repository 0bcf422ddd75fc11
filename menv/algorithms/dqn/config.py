"""Settings of DQN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig, ModelConfig
from menv.algorithms.config.field_checks import FASTEST, MOST, MOST_ROWS, check_count, check_number, shown
from menv.algorithms.config.keys import by_name, prefixed, section, section_named
from menv.algorithms.config.replay_buffer_config import ReplayBufferConfig
from menv.errors import ConfigError
from menv.policy_spec import PolicySpec

if TYPE_CHECKING:
    from menv.algorithms.dqn.dqn import DQN


# SEAM menv.algorithms.config.exploration_config
# How often a policy acts at random while it learns.


@section_named("exploration_config")
@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """The `exploration_config` section: epsilon falls on a straight line, then stays."""

    type: str = "EpsilonGreedy"
    """The only kind in this version."""
    initial_epsilon: float = 1.0
    """Share of random actions at the start of a run."""
    final_epsilon: float = 0.02
    """Share of random actions from `epsilon_timesteps` on."""
    epsilon_timesteps: int = 10_000
    """Env steps of the run until then; infinity keeps the share of the start. A policy that `policies_to_train`
    leaves out keeps the share it has: a new one that of the start."""

    def __post_init__(self) -> None:
        if self.type != "EpsilonGreedy":
            raise ConfigError(
                f"exploration_config: type is {shown(self.type)}, expected 'EpsilonGreedy' in this version; "
                "leave it out"
            )
        for name, most in (("initial_epsilon", 1.0), ("final_epsilon", 1.0), ("epsilon_timesteps", np.inf)):
            endless = name == "epsilon_timesteps"
            check_number("exploration_config", name, getattr(self, name), 0.0, most, endless=endless)

    def epsilon_at(self, env_steps: int) -> float:
        """Return epsilon after `env_steps` env steps of the run."""
        if env_steps >= self.epsilon_timesteps:
            return float(self.final_epsilon)
        ends = (self.initial_epsilon, self.final_epsilon)
        return float(np.interp(env_steps, (0, max(1, self.epsilon_timesteps)), ends))


# SEAM menv.algorithms.config.dqn_settings
# The numbers that DQN's loss and learner read.
#
# `DQNConfig` makes one for each policy; `dqn_learner` reads it. Needs no torch, so that a process that only
# samples can hold it.


@dataclass(frozen=True, kw_only=True)
class DQNSettings:
    """Settings of one policy that learns as DQN does."""

    algorithm: ClassVar[str] = "DQN"
    """Named in messages."""

    lr: float = 2e-3
    """Learning rate of Adam."""
    gamma: float = 0.99
    """Discount of one step."""
    train_batch_size: int = 256
    """Rows of one gradient step, drawn from the replay buffer."""
    training_intensity: float = 32.0
    """Rows that are learned from for each row that is sampled; divided by `train_batch_size`, gradient steps."""
    num_steps_sampled_before_learning_starts: int = 1_000
    """Env steps of the run that are sampled before anything is learned."""
    target_network_update_freq: int = 500
    """Sampled rows after which the target network becomes a copy of the one that learns. They are counted among the
    gradient steps of a fragment too: fewer rows than a fragment has make several copies while it is learned from."""
    double_q: bool = True
    """Whether the network that learns chooses the action whose worth the target network gives."""
    dueling: bool = True
    """Whether Q-values are the sum of a state's value and the actions' advantages."""
    n_step: int | Literal["auto"] = "auto"
    """Rewards that a target holds before it relies on the target network, at most: none reaches beyond its fragment
    or, with a memory, its sequence. "auto" makes 3, or as many steps as a fixed `rollout_fragment_length` has."""
    grad_clip: float | None = 1.0
    """Upper limit of the gradient's global norm; None switches clipping off."""
    td_error_loss_fn: Literal["huber", "mse"] = "huber"
    """Loss of the TD errors. "huber" squares small errors and is linear beyond the span of the n-step returns so
    far, 0 included: with rewards of 0, 5 and 100 and `n_step=1`, beyond 100. "mse" squares all errors, as QMIX does.
    Both are computed in a unit that follows the size of the rewards, so that a task is learned alike if all rewards
    are multiplied by 100; choose "mse" where an action leads by chance to a long series of rewards or to none."""
    adam_epsilon: float = 1e-8
    """What Adam adds to the root of its second moment."""
    replay_buffer_config: ReplayBufferConfig = field(default_factory=ReplayBufferConfig)
    """What is kept, and how it is drawn."""
    exploration_config: ExplorationConfig = field(default_factory=ExplorationConfig)
    """How often actions are random."""

    def __post_init__(self) -> None:
        for name, kind in _SECTIONS.items():
            object.__setattr__(self, name, section(kind, getattr(self, name), name))
        for name, (least, most) in _COUNTS.items():
            if name != "n_step" or self.n_step != "auto":
                check_count(self.algorithm, name, getattr(self, name), least, most)
        for name, (low, high) in _RANGES.items():
            off = name == "grad_clip"
            check_number(self.algorithm, name, getattr(self, name), low, high, none_is_off=off)
        for name in ("double_q", "dueling"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"{self.algorithm}: {name} is {shown(getattr(self, name))}, expected True or False; choose one"
                )

        if not isinstance(self.td_error_loss_fn, str) or self.td_error_loss_fn not in _LOSSES:
            raise ConfigError(
                f"{self.algorithm}: td_error_loss_fn is {shown(self.td_error_loss_fn)}, expected one of "
                f"{', '.join(_LOSSES)}; choose one"
            )

    def epsilon_at(self, env_steps: int) -> float:
        """Return the share of random actions after `env_steps` env steps of the run."""
        return self.exploration_config.epsilon_at(env_steps)

    def target_steps(self) -> int:
        """Return the rewards that a target holds, at most."""
        return _USUAL_STEPS if self.n_step == "auto" else self.n_step


_USUAL_STEPS = 3
_LOSSES = ("huber", "mse")
_SECTIONS: dict[str, type[Any]] = {
    "replay_buffer_config": ReplayBufferConfig,
    "exploration_config": ExplorationConfig,
}
_COUNTS = {
    "train_batch_size": (1, MOST_ROWS),
    "num_steps_sampled_before_learning_starts": (0, MOST),
    "target_network_update_freq": (1, MOST),
    "n_step": (1, MOST_ROWS),
}
_RANGES = {
    "lr": (0.0, FASTEST),
    "gamma": (0.0, 1.0),
    "training_intensity": (0.0, 1e6),
    "grad_clip": (0.0, math.inf),
    "adam_epsilon": (1e-30, 1.0),
}


# SEAM menv.algorithms.config.off_policy_config
# What the settings of all algorithms have in common that replay their experience.


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


@by_name
@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """What `AlgorithmConfig` says about sampling and `DQNSettings` about learning; `docs/settings.md` explains both."""

    def build(self, env: Any = None) -> DQN:
        """Return the algorithm, its environments created; `env` overrides the config's own."""
        from menv.algorithms.dqn.dqn import DQN

        return DQN(config=self, env=env)
