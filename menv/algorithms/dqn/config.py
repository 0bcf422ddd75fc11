"""Settings of DQN, and of every algorithm that learns from a replay buffer.

Needs no torch, so that processes that only sample can read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig, ModelConfig
from menv.algorithms.config.field_checks import FASTEST, MOST, MOST_ROWS, check_count, check_number, shown
from menv.algorithms.config.keys import by_name, prefixed, section, section_named
from menv.errors import ConfigError
from menv.policy_spec import PolicySpec

if TYPE_CHECKING:
    from menv.algorithms.dqn.dqn import DQN


@section_named("exploration_config")
@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """The `exploration_config` section: epsilon decreases linearly, then stays constant."""

    type: str = "EpsilonGreedy"
    """Type of exploration; only "EpsilonGreedy" is available."""
    initial_epsilon: float = 1.0
    """Probability of a random action at the start of a run."""
    final_epsilon: float = 0.02
    """Probability of a random action from `epsilon_timesteps` on."""
    epsilon_timesteps: int = 10_000
    """Number of env steps over which epsilon decreases linearly; infinity keeps the initial epsilon. A policy that
    `policies_to_train` leaves out keeps its epsilon; a new one keeps the initial epsilon."""

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


_BUFFERS = {
    "ReplayBuffer": False,
    "MultiAgentReplayBuffer": False,
    "PrioritizedReplayBuffer": True,
    "MultiAgentPrioritizedReplayBuffer": True,
}

_MOST_PRIORITIES = 10**8
"""Priorities are allocated at once; the columns of the buffer grow with its contents."""


@section_named("replay_buffer_config")
@dataclass(frozen=True, kw_only=True)
class ReplayBufferConfig:
    """The `replay_buffer_config` section; every policy has a separate buffer."""

    type: str | None = None
    """RLlib's name of the buffer, such as "ReplayBuffer" or "PrioritizedReplayBuffer", which sets
    `prioritized_replay`. None uses `prioritized_replay`."""
    capacity: int = 100_000
    """Maximum number of timesteps; new ones replace the oldest. A sequence of a recurrent policy counts as
    `max_seq_len` timesteps, however short it is."""
    prioritized_replay: bool = False
    """Whether timesteps with larger TD errors are sampled more often (Schaul et al. 2016)."""
    prioritized_replay_alpha: float = 0.6
    """Exponent of the priorities; 0 samples uniformly."""
    prioritized_replay_beta: float = 0.4
    """Exponent of the importance weights; 1 corrects the sampling bias fully."""
    prioritized_replay_eps: float = 1e-6
    """Constant added to every absolute TD error, in the unit of the learned Q-values, so that every timestep can be
    sampled."""

    def __post_init__(self) -> None:
        if self.type is not None:
            if not isinstance(self.type, str) or self.type not in _BUFFERS:
                raise ConfigError(
                    f"replay_buffer_config: type is {shown(self.type)}, expected one of {', '.join(_BUFFERS)}; "
                    "leave it out"
                )
            object.__setattr__(self, "prioritized_replay", _BUFFERS[self.type])
        if not isinstance(self.prioritized_replay, bool):
            raise ConfigError(
                f"replay_buffer_config: prioritized_replay is {shown(self.prioritized_replay)}, expected True or "
                "False; choose one"
            )
        most = _MOST_PRIORITIES if self.prioritized_replay else MOST
        check_count("replay_buffer_config", "capacity", self.capacity, 1, most)
        for part, least in (("alpha", 0.0), ("beta", 0.0), ("eps", 1e-12)):
            name = f"prioritized_replay_{part}"
            check_number("replay_buffer_config", name, getattr(self, name), least, 1.0)


@dataclass(frozen=True, kw_only=True)
class DQNSettings:
    """Settings of one policy that DQN trains."""

    algorithm: ClassVar[str] = "DQN"
    """Name in error messages."""

    lr: float = 2e-3
    """Learning rate of Adam."""
    gamma: float = 0.99
    """Discount factor."""
    train_batch_size: int = 256
    """Number of timesteps per gradient step, sampled from the replay buffer."""
    training_intensity: float = 32.0
    """Number of timesteps to learn from per sampled timestep; divided by `train_batch_size`, the number of gradient
    steps."""
    num_steps_sampled_before_learning_starts: int = 1_000
    """Number of env steps of the run that are sampled before learning starts."""
    target_network_update_freq: int = 500
    """Number of sampled timesteps between updates of the target network. They are spread over the gradient steps of a
    fragment, so a number below the size of a fragment updates the target network several times per fragment."""
    double_q: bool = True
    """Whether to use double Q-learning: the online network chooses the action whose value the target network gives."""
    dueling: bool = True
    """Whether to use a dueling network: Q-values are the sum of the state's value and the actions' advantages."""
    n_step: int | Literal["auto"] = "auto"
    """Maximum number of rewards in a target before it bootstraps from the target network. Targets end at the fragment
    or, for recurrent policies, at the sequence. "auto" means 3, or a fixed `rollout_fragment_length` if that is
    shorter."""
    grad_clip: float | None = 1.0
    """Maximum global norm of the gradient; None disables clipping."""
    td_error_loss_fn: Literal["huber", "mse"] = "huber"
    """Loss of the TD errors. "huber" is quadratic for small errors and linear beyond the range of the n-step returns
    so far, 0 included: with rewards of 0, 5 and 100 and `n_step=1`, beyond 100. "mse" is quadratic everywhere, as in
    QMIX. Both are computed in a unit that follows the scale of the rewards, so that multiplying all rewards by 100
    does not change learning. Choose "mse" if an action leads by chance to a long series of rewards or to none."""
    adam_epsilon: float = 1e-8
    """Epsilon of Adam, added to the square root of the second moment."""
    replay_buffer_config: ReplayBufferConfig = field(default_factory=ReplayBufferConfig)
    """Size of the replay buffer, and how it is sampled."""
    exploration_config: ExplorationConfig = field(default_factory=ExplorationConfig)
    """Schedule of epsilon-greedy exploration."""

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
        """Return the probability of a random action after `env_steps` env steps of the run."""
        return self.exploration_config.epsilon_at(env_steps)

    def target_steps(self) -> int:
        """Return the maximum number of rewards in a target."""
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


# A fragment length of "auto": env steps over all sub-environments, and the minimum for each.
_STEPS_TOGETHER = 64
_STEPS_OF_EACH = 4
_LONGEST = 100_000
_MEMORY = ("use_lstm", "use_gru", "max_seq_len")


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgorithmConfig, DQNSettings):
    """Settings of an algorithm that replays experience: sampling (`AlgorithmConfig`) and learning (`DQNSettings`)."""

    own_meaning: ClassVar[frozenset[str]] = frozenset({"train_batch_size"})
    of_the_run: ClassVar[frozenset[str]] = frozenset({"min_sample_timesteps_per_iteration"})

    rollout_fragment_length: int | Literal["auto"] = "auto"
    """Number of steps of each sub-environment between learning phases. "auto" means 64 over all sub-environments, and
    for each at least 4, the `max_seq_len` of every recurrent policy and the `n_step` of every policy. A number below
    `n_step` is refused unless `batch_mode` is "complete_episodes"."""
    train_batch_size: int = 256
    """Number of timesteps per gradient step, sampled from the replay buffer; `training_intensity` sets how many steps
    are made."""
    min_sample_timesteps_per_iteration: int = 1_000
    """Minimum number of steps, over all sub-environments, per training iteration; `count_steps_by` sets the unit."""

    def __post_init__(self) -> None:
        AlgorithmConfig.__post_init__(self)
        DQNSettings.__post_init__(self)
        if self.model.cell:
            # The buffer stores sequences at full length.
            check_count("model", "max_seq_len", self.model.max_seq_len, most=_LONGEST)
        name = "min_sample_timesteps_per_iteration"
        check_count(self.algorithm, name, getattr(self, name), most=MOST_ROWS)
        if self.n_step != "auto":
            fixed = self.rollout_fragment_length
            self._check_reach(_LONGEST if fixed == "auto" else fixed)

    def target_steps(self) -> int:
        """Return the maximum number of rewards in a target; a fixed fragment length bounds it."""
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
        """Return the steps of each of `num_envs` sub-environments between two learning phases."""
        if self.rollout_fragment_length == "auto":
            # Training sequences of recurrent policies end at the fragment.
            least = self._longest_memory() or _STEPS_OF_EACH
            return max(least, self._longest_reach(), -(-_STEPS_TOGETHER // num_envs))
        return self.rollout_fragment_length

    def sample_size(self, num_envs: int) -> int:
        """Return the env steps over all sub-environments between two learning phases."""
        return self.fragment_length(num_envs) * num_envs

    def iteration_size(self, num_envs: int) -> int:
        """Return the env steps over all sub-environments of one training iteration."""
        return max(self.min_sample_timesteps_per_iteration, self.sample_size(num_envs))

    def _check_reach(self, length: int) -> None:
        if self.batch_mode != "complete_episodes" and self.target_steps() > length:
            raise ConfigError(
                f"{self.algorithm}: n_step is {self.n_step} with fragments of {length}, beyond which no target "
                f"reaches, expected at most {length}; lower n_step, raise rollout_fragment_length, or set "
                'batch_mode="complete_episodes"'
            )

    def _longest_reach(self) -> int:
        if self.batch_mode == "complete_episodes":
            return 0
        owns = (spec.config.get("n_step") for spec in self._specs() if spec.config)
        return max(self.target_steps(), *(own for own in owns if isinstance(own, int)), 0)

    def _longest_memory(self) -> int:
        main = self.model
        found = [main.max_seq_len if main.cell else 0]
        for spec in self._specs():
            own = (spec.config or {}).get("model")
            if isinstance(own, ModelConfig):
                own = {name: getattr(own, name) for name in _MEMORY}
            # Policies that PPO trains replay nothing. Invalid settings are refused when the policy is created.
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
    """Settings of DQN: sampling (`AlgorithmConfig`) and learning (`DQNSettings`); see `docs/reference/settings.md`."""

    def build(self, env: Any = None) -> DQN:
        """Return the algorithm, its environments created; `env` overrides the config's own."""
        from menv.algorithms.dqn.dqn import DQN

        return DQN(config=self, env=env)
