"""Settings of the algorithms that learn from a replay buffer.

Needs no torch, so that processes that only sample can read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig, LearningConfig, ModelConfig
from menv.algorithms.config.setting import (
    FASTEST,
    LARGEST,
    MOST_ROWS,
    Settings,
    by_name,
    check_most,
    prefixed,
    setting,
)
from menv.algorithms.recipe import recipe_named
from menv.errors import ConfigError
from menv.policy_spec import PolicySpec


@by_name
@dataclass(frozen=True, kw_only=True)
class ExplorationConfig(Settings):
    """The `exploration_config` section: epsilon decreases linearly, then stays constant."""

    _where: ClassVar[str] = "exploration_config"

    type: Literal["EpsilonGreedy"] = "EpsilonGreedy"
    """Type of exploration; only "EpsilonGreedy" is available."""
    initial_epsilon: float = setting(1.0, low=0, high=1)
    """Probability of a random action at the start of a run."""
    final_epsilon: float = setting(0.02, low=0, high=1)
    """Probability of a random action from `epsilon_timesteps` on."""
    epsilon_timesteps: float = setting(10_000, low=0, high=math.inf)
    """Number of env steps over which epsilon decreases linearly; infinity keeps the initial epsilon. A policy that
    `policies_to_train` leaves out keeps its epsilon; a new one keeps the initial epsilon."""

    def epsilon_at(self, env_steps: int) -> float:
        """Return epsilon after `env_steps` env steps of the run."""
        if env_steps >= self.epsilon_timesteps:
            return float(self.final_epsilon)
        ends = (self.initial_epsilon, self.final_epsilon)
        return float(np.interp(env_steps, (0, max(1, self.epsilon_timesteps)), ends))


_MOST_PRIORITIES = 10**8
"""Priorities are allocated at once; the columns of the buffer grow with its contents."""
BufferType: TypeAlias = Literal[
    "ReplayBuffer",
    "MultiAgentReplayBuffer",
    "PrioritizedReplayBuffer",
    "MultiAgentPrioritizedReplayBuffer",
]


@by_name
@dataclass(frozen=True, kw_only=True)
class ReplayBufferConfig(Settings):
    """The `replay_buffer_config` section; every policy has a separate buffer."""

    _where: ClassVar[str] = "replay_buffer_config"

    type: BufferType | None = None
    """RLlib's name of the buffer, such as "ReplayBuffer" or "PrioritizedReplayBuffer", which sets
    `prioritized_replay`. None uses `prioritized_replay`."""
    capacity: int = 100_000
    """Maximum number of timesteps; new ones replace the oldest. A sequence of a recurrent policy counts as
    `max_seq_len` timesteps, however short it is."""
    prioritized_replay: bool = False
    """Whether timesteps with larger TD errors are sampled more often (Schaul et al. 2016)."""
    prioritized_replay_alpha: float = setting(0.6, low=0, high=1, old="alpha")
    """Exponent of the priorities; 0 samples uniformly."""
    prioritized_replay_beta: float = setting(0.4, low=0, high=1, old="beta")
    """Exponent of the importance weights; 1 corrects the sampling bias fully."""
    prioritized_replay_eps: float = setting(1e-6, low=1e-12, high=1, old="eps")
    """Constant added to every absolute TD error, in the unit of the learned Q-values, so that every timestep can be
    sampled."""
    replay_burn_in: int = setting(0, low=0, old="burn_in")
    """Number of timesteps at the beginning of a replayed sequence that only warm up the state of a recurrent policy and
    carry no loss (R2D2, Kapturowski et al. 2019), because the state that was stored is that of older weights. Sequences
    of one fragment overlap by as many, and a sequence that begins with an episode needs none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.type is not None:
            # It is not kept, so that a copy with another `prioritized_replay` is what it says.
            vars(self).update(type=None, prioritized_replay="Prioritized" in self.type)
        if self.prioritized_replay:
            check_most(self._where, "capacity", self.capacity, _MOST_PRIORITIES)


_USUAL_STEPS = 3
# A fragment length of "auto": env steps over all sub-environments, and the minimum for each.
_STEPS_TOGETHER = 64
_STEPS_OF_EACH = 4
_LONGEST = 100_000
_MEMORY = ("use_lstm", "use_gru", "max_seq_len")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(LearningConfig):
    """Settings of an algorithm that replays experience, in addition to the settings of `AlgorithmConfig`."""

    own_meaning: ClassVar[frozenset[str]] = frozenset({"train_batch_size"})
    _usual_update_freq: ClassVar[int] = 500

    lr: float = setting(2e-3, low=0, high=FASTEST, old="learning_rate")
    """Learning rate of Adam, unless `lr_schedule` is set."""
    gamma: float = setting(0.99, low=0, high=1)
    """Discount factor."""
    training_intensity: float = setting(32.0, low=0, high=1e6)
    """Number of timesteps to learn from per sampled timestep; divided by `train_batch_size`, the number of gradient
    steps."""
    num_steps_sampled_before_learning_starts: int = setting(1_000, low=0, old="learning_starts")
    """Number of env steps of the run that are sampled before learning starts."""
    tau: float | None = setting(None, positive=True, high=1)
    """Share of the weights that moves into the target network with each gradient step (soft updates, Lillicrap et al.
    2016). None copies all weights every `target_network_update_freq` timesteps."""
    target_network_update_freq: int | None = None
    """Number of sampled timesteps between copies of all weights to the target network. They are spread over the
    gradient steps of a fragment, so a number below the size of a fragment updates the target network several times per
    fragment. None means 500, 2,000 for QMIX; with `tau` there are none."""
    n_step: int | Literal["auto"] = setting("auto", high=MOST_ROWS)
    """Maximum number of rewards in a target before it bootstraps from the target network. Targets end at the fragment
    or, for recurrent policies, at the sequence. "auto" means 3, or a fixed `rollout_fragment_length` if that is
    shorter."""
    grad_clip: float | None = setting(1.0, positive=True, high=math.inf, old="max_grad_norm")
    """Maximum global norm of the gradient; None disables clipping."""
    td_error_loss_fn: Literal["huber", "mse"] = "huber"
    """Loss of the TD errors. "huber" is quadratic for small errors and linear beyond the range of the n-step returns
    so far, 0 included: with rewards of 0, 5 and 100 and `n_step=1`, beyond 100. "mse" is quadratic everywhere, as in
    QMIX. Both are computed in a unit that follows the scale of the rewards, so that multiplying all rewards by 100
    does not change learning. Choose "mse" if an action leads by chance to a long series of rewards or to none."""
    adam_epsilon: float = setting(1e-8, low=1e-30, high=1)
    """Epsilon of Adam, added to the square root of the second moment."""
    replay_buffer_config: ReplayBufferConfig = setting(ReplayBufferConfig())
    """Size of the replay buffer, and how it is sampled."""
    rollout_fragment_length: int | Literal["auto"] = "auto"
    """Number of steps of each sub-environment between learning phases. "auto" means 64 over all sub-environments, and
    for each at least 4, the `max_seq_len` of every recurrent policy and the `n_step` of every policy. A number below
    `n_step` is refused unless `batch_mode` is "complete_episodes"."""
    train_batch_size: int = 256
    """Number of timesteps per gradient step, sampled from the replay buffer; `training_intensity` sets how many steps
    are made."""
    min_sample_timesteps_per_iteration: int = setting(
        1_000, high=MOST_ROWS, scope="run", old="timesteps_per_iteration"
    )
    """Minimum number of steps, over all sub-environments, per training iteration; `count_steps_by` sets the unit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau is not None and self.target_network_update_freq is not None:
            raise ConfigError(
                f"{self._where}: tau is {self.tau} with target_network_update_freq {self.target_network_update_freq}, "
                "expected one of them; set the other to None"
            )
        if self.replays_sequences:
            # The buffer stores sequences at full length.
            check_most("model", "max_seq_len", self.model.max_seq_len, _LONGEST)
            self._check_sequences()
        self._check_burn_in()
        if self.n_step != "auto":
            fixed = self.rollout_fragment_length
            self._check_reach(_LONGEST if fixed == "auto" else fixed)

    @property
    def copy_freq(self) -> int:
        """Number of sampled timesteps between copies to the target network, without `tau`."""
        return self.target_network_update_freq or self._usual_update_freq

    @property
    def replays_sequences(self) -> bool:
        """Whether the replay buffer holds sequences of timesteps."""
        return self.model.cell is not None

    def target_steps(self) -> int:
        """Return the maximum number of rewards in a target; a fixed fragment length bounds it."""
        if self.n_step != "auto":
            return self.n_step
        fixed = self.rollout_fragment_length
        if fixed == "auto" or self.batch_mode == "complete_episodes":
            return _USUAL_STEPS
        return min(_USUAL_STEPS, fixed)

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
        if self.rollout_fragment_length == "auto":
            # Training sequences of recurrent policies end at the fragment.
            least = self._longest_memory() or _STEPS_OF_EACH
            return max(least, self._longest_reach(), -(-_STEPS_TOGETHER // num_envs))
        return self.rollout_fragment_length

    def sample_size(self, num_envs: int) -> int:
        return self.fragment_length(num_envs) * num_envs

    def iteration_size(self, num_envs: int) -> int:
        return max(self.min_sample_timesteps_per_iteration, self.sample_size(num_envs))

    def _check_reach(self, length: int) -> None:
        if self.batch_mode != "complete_episodes" and self.target_steps() > length:
            raise ConfigError(
                f"{self._where}: n_step is {self.n_step} with fragments of {length}, which limit the targets, expected "
                f"at most {length}; lower n_step, raise rollout_fragment_length, or set "
                'batch_mode="complete_episodes"'
            )

    def _check_sequences(self) -> None:
        lengths = {
            "rollout_fragment_length": self.rollout_fragment_length,
            "max_seq_len": self.model.max_seq_len,
        }
        if self.batch_mode == "complete_episodes":
            del lengths["rollout_fragment_length"]
        for name, length in lengths.items():
            if length == 1:
                raise ConfigError(
                    f"{self._where}: {name} is 1 with a replay buffer of sequences (a recurrent policy or td_lambda), "
                    "which end at the fragment, expected at least 2; raise it"
                )

    def _check_burn_in(self) -> None:
        burn_in, most = self.replay_buffer_config.replay_burn_in, self.model.max_seq_len
        if burn_in and self.model.cell is None:
            raise ConfigError(
                f"{self._where}: replay_burn_in is {burn_in} without a recurrent model, expected 0, because there is "
                "no state to warm up; set model.use_gru or use_lstm, or leave replay_burn_in out"
            )
        if burn_in and burn_in >= most:
            raise ConfigError(
                f"{self._where}: replay_burn_in is {burn_in} with sequences of max_seq_len {most}, expected at most "
                f"{most - 1}, because the others are learned from; lower it, or raise model.max_seq_len"
            )

    def _longest_reach(self) -> int:
        if self.batch_mode == "complete_episodes":
            return 0
        owns = (spec.config.get("n_step") for spec in self._specs().values() if spec.config)
        return max(self.target_steps(), *(own for own in owns if isinstance(own, int)), 0)

    def _longest_memory(self) -> int:
        main = self.model
        found = [main.max_seq_len if self.replays_sequences else 0]
        for policy_id, spec in self._specs().items():
            own = (spec.config or {}).get("model")
            if isinstance(own, ModelConfig):
                own = {name: getattr(own, name) for name in _MEMORY}
            # Policies that learn on-policy replay nothing. Invalid settings are refused when the policy is created.
            if isinstance(own, Mapping) and (spec.trained_by is None or _replays(policy_id, spec.trained_by)):
                lstm, gru, length = (own.get(name, getattr(main, name)) for name in _MEMORY)
                found.append(length if (lstm or gru) and isinstance(length, int) else 0)
        return min(max(found), _LONGEST)

    def _specs(self) -> dict[str, PolicySpec]:
        given = self.multiagent.policies
        return (
            {name: PolicySpec.of(name, value) for name, value in given.items()}
            if isinstance(given, Mapping)
            else {}
        )


def _replays(policy_id: str, algorithm: str) -> bool:
    return recipe_named(algorithm, f"policies[{policy_id!r}]: algorithm").off_policy


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ReplayConfig):
    """Settings of an algorithm that learns Q-values of choices from replayed experience."""

    _where: ClassVar[str] = "DQN"

    double_q: bool = True
    """Whether to use double Q-learning: the online network chooses the action whose value the target network gives."""
    dueling: bool = True
    """Whether to use a dueling network: Q-values are the sum of the state's value and the actions' advantages."""
    cql_alpha: float | None = setting(None, low=0, high=LARGEST)
    """Coefficient of conservative Q-learning (CQL, Kumar et al. 2020): the loss has this times the log-sum-exp of the
    Q-values of all allowed actions minus the Q-value of the action taken, in the unit of the learned Q-values. It keeps
    actions that no recording shows from being overestimated. None means 1 with recorded episodes as the only `input`,
    and 0 otherwise, because new experience corrects a policy."""
    exploration_config: ExplorationConfig = setting(ExplorationConfig(), scope="network")
    """Schedule of epsilon-greedy exploration."""

    def epsilon_at(self, env_steps: int) -> float:
        """Return the probability of a random action after `env_steps` env steps of the run."""
        return self.exploration_config.epsilon_at(env_steps)

    @property
    def conservatism(self) -> float:
        """The coefficient of the conservative term."""
        return float(isinstance(self.input, str)) if self.cql_alpha is None else float(self.cql_alpha)
