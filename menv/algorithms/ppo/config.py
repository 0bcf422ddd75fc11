"""Settings of PPO."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.field_checks import FASTEST, LARGEST, MOST, check_count, check_number, shown
from menv.algorithms.config.keys import by_name
from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.algorithms.ppo.ppo import PPO


# SEAM menv.algorithms.config.ppo_settings
# The numbers that PPO's loss and learner read.
#
# `PPOConfig` makes one for each policy; `ppo_learner`, `ppo_loss` and the advantage pass read it. Needs no
# torch, so that a process that only samples can hold it.


Schedule: TypeAlias = Sequence[Sequence[float]]
"""`[env_steps, value]` pairs in rising order, joined by straight lines and flat outside them."""
CriticObs: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """Settings of one PPO policy."""

    lr: float = 3e-3
    """Learning rate of Adam, unless `lr_schedule` is given."""
    gamma: float = 0.99
    """Discount of one step."""
    lambda_: float = 0.95
    """Weight of longer returns in the advantages: 0 is one-step TD, 1 Monte Carlo."""
    clip_param: float = 0.3
    """How far the probability ratio may leave 1 before its gradient is cut; infinity never cuts it."""
    vf_clip_param: float | None = None
    """Upper limit of a row's squared value error, in the square of the environment's unit; None switches the limit
    off."""
    vf_loss_coeff: float = 0.5
    """Weight of the value loss."""
    normalize_values: bool = True
    """Whether the value function learns in units of the running standard deviation of the value targets (Pop-Art, van
    Hasselt et al. 2016), so that large returns are learned as quickly as small ones. Predicted values and `vf_loss` are
    in the environment's unit either way. It holds for stock networks, custom models and policies with a `loss` of their
    own. A custom model needs a last layer for the values alone, such as `nn.Linear(64, 1)`. Without one, and for a
    policy with a critic of its own, only the value loss is divided by the squared unit."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus, unless `entropy_coeff_schedule` is given."""
    kl_coeff: float | None = None
    """First weight of the KL term; 0 switches the term off for good, None is 0.2 for actions that are or have Boxes,
    whose means and deviations could run away in an update, and 0 for choices. After each update it is halved where the
    KL divergence was below half of `kl_target`, and made 1.5 times as large where that was above twice the target, but
    kept between 1e-6 and 1e6."""
    kl_target: float = 0.01
    """KL divergence of one update that the adaptive weight aims at."""
    grad_clip: float | None = 1.0
    """Upper limit of the gradient's global norm; None switches clipping off."""
    num_sgd_iter: int = 4
    """Epochs over each train batch."""
    sgd_minibatch_size: int = 256
    """Rows of one gradient step; with a memory in the mean, for sequences stay whole."""
    lr_schedule: Schedule | None = None
    """Learning rate over env steps: pairs such as [[0, 1e-3], [100000, 1e-4]], with straight lines between them and
    flat outside; None keeps `lr`."""
    entropy_coeff_schedule: Schedule | None = None
    """Entropy weight over env steps, likewise; None keeps `entropy_coeff`."""
    critic_obs: Literal["all_agents"] | CriticObs | None = None
    """What the value network sees while learning, instead of the policy's observations: "all_agents" (see
    `menv.algorithms.centralized_critic`), or a function `(batch, other_agent_batches, episode)` of one piece of a
    trajectory, with the arguments of `Policy.postprocess_trajectory`. It returns [T, C] numbers for its T rows,
    or [T + 1, C] with what comes after them; without, that is taken to be worth as much as the last row. The
    network that acts never sees it. None gives the value network the policy's observations."""
    critic_obs_size: int | None = None
    """C, to be given with a function."""

    def __post_init__(self) -> None:
        for name, limit in (("num_sgd_iter", _MOST_EPOCHS), ("sgd_minibatch_size", MOST)):
            check_count("PPO", name, getattr(self, name), most=limit)
        for name, (least, most) in _RANGES.items():
            if name == "kl_coeff" and self.kl_coeff is None:
                continue
            key, off = name.removesuffix("_"), name in _NONE_IS_OFF
            endless = name == "clip_param"
            check_number("PPO", key, getattr(self, name), least, most, none_is_off=off, endless=endless)
        if self.kl_target == 0 and self.kl_coeff != 0:
            raise ConfigError(
                f"PPO: kl_target is {self.kl_target}, above which any update is, so that the KL term would grow until "
                "nothing is learned, expected a number above 0; set kl_coeff=0 to switch the term off"
            )
        for name in ("lr_schedule", "entropy_coeff_schedule"):
            _check_schedule(name, getattr(self, name))
        if not isinstance(self.normalize_values, bool):
            raise ConfigError(
                f"PPO: normalize_values is {shown(self.normalize_values)}, expected True or False; choose one"
            )
        _check_critic_obs(self.critic_obs, self.critic_obs_size)

    def first_kl_coeff(self, kind: str) -> float:
        """Return the first weight of the KL term for an `ActionHead` of this kind."""
        if self.kl_coeff is None:
            return _KL_OF_NUMBERS if kind in ("gaussian", "mixed") else 0.0
        return float(self.kl_coeff)

    def lr_at(self, env_steps: int) -> float:
        """Return the learning rate after `env_steps` env steps in all."""
        return _value_at(self.lr_schedule, self.lr, env_steps)

    def entropy_coeff_at(self, env_steps: int) -> float:
        """Return the weight of the entropy bonus after `env_steps` env steps in all."""
        return _value_at(self.entropy_coeff_schedule, self.entropy_coeff, env_steps)


_RANGES: dict[str, tuple[float, float]] = {
    "lr": (0.0, FASTEST),
    "gamma": (0.0, 1.0),
    "lambda_": (0.0, 1.0),
    "clip_param": (0.0, math.inf),
    "vf_clip_param": (0.0, math.inf),
    "vf_loss_coeff": (0.0, LARGEST),
    "entropy_coeff": (-LARGEST, LARGEST),
    "kl_coeff": (0.0, LARGEST),
    "kl_target": (0.0, LARGEST),
    "grad_clip": (0.0, math.inf),
}
_KL_OF_NUMBERS = 0.2
_MOST_EPOCHS = 1_000_000
_NONE_IS_OFF = ("vf_clip_param", "grad_clip")


def _check_schedule(name: str, schedule: Schedule | None) -> None:
    if schedule is None:
        return
    try:
        points = np.asarray(schedule)
    except ValueError:
        points = np.empty(0)
    pairs = points.ndim == 2 and points.shape[1] == 2 and len(points) > 0 and points.dtype.kind in "iuf"
    most = FASTEST if name == "lr_schedule" else LARGEST
    fits = pairs and (np.abs(points) <= (LARGEST, most)).all() and (np.diff(points[:, 0]) > 0.0).all()
    if not fits or (name == "lr_schedule" and points[:, 1].min() < 0.0):
        values = "values of at least 0" if name == "lr_schedule" else "values"
        raise ConfigError(
            f"PPO: {name} is {shown(schedule)}, expected [env_steps, value] pairs with rising env_steps and "
            f"{values} up to {most:g}; for example [[0, 1e-3], [100000, 1e-4]]"
        )


def _check_critic_obs(critic_obs: Any, size: Any) -> None:
    named = isinstance(critic_obs, str) and critic_obs == "all_agents"
    if critic_obs is not None and not named and not _takes_a_piece(critic_obs):
        raise ConfigError(
            f'PPO: critic_obs is {shown(critic_obs)}, expected "all_agents", a function (batch, other_agent_batches, '
            "episode) or None; choose one"
        )
    given = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MOST
    if (callable(critic_obs) and not given) or (size is not None and (critic_obs is None or not given)):
        raise ConfigError(
            f"PPO: critic_obs_size is {shown(size)} with critic_obs {'None' if critic_obs is None else 'given'}, "
            "expected the numbers in a row of what the function returns; set both or neither"
        )


def _takes_a_piece(function: Any) -> bool:
    """Return whether something can be called with batch, other agents' batches and episode."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:
        # It does not tell.
        return True
    return True


def _value_at(schedule: Schedule | None, constant: float, env_steps: int) -> float:
    if schedule is None:
        return float(constant)
    return float(np.interp(env_steps, [point[0] for point in schedule], [point[1] for point in schedule]))


@by_name
@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig, PPOSettings):
    """What `AlgorithmConfig` says about sampling and `PPOSettings` about learning; `docs/settings.md` explains both."""

    def __post_init__(self) -> None:
        AlgorithmConfig.__post_init__(self)
        PPOSettings.__post_init__(self)
        if self.critic_obs is not None and self.model.vf_share_layers:
            raise ConfigError(
                "config: critic_obs with model.vf_share_layers, expected a value network of its own, because the "
                "policy must not see what the critic does; set vf_share_layers to False"
            )

    def rows_of_a_step(self) -> int:
        """Return the rows of one gradient step."""
        return min(self.sgd_minibatch_size, self.train_batch_size)

    def build(self, env: Any = None) -> PPO:
        """Return the algorithm, its environments created; `env` overrides the config's own."""
        from menv.algorithms.ppo.ppo import PPO

        return PPO(config=self, env=env)
