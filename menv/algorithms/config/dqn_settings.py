"""The numbers that DQN's loss and learner read.

`DQNConfig` makes one for each policy; `dqn_learner` reads it. Needs no torch, so that a process that only
samples can hold it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from menv.algorithms.config.exploration_config import ExplorationConfig
from menv.algorithms.config.keys import section
from menv.algorithms.config.numbers import FASTEST, MOST, MOST_ROWS, check_count, check_number, shown
from menv.algorithms.config.replay_buffer_config import ReplayBufferConfig
from menv.errors import ConfigError


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
