"""PPO's loss on one minibatch: the clipped surrogate, the value error, entropy and KL divergence.

Pure functions of tensors. Symbols, as in Schulman et al. 2017 (arXiv:1707.06347): r_t is the ratio of an action's
probability under the new and the old policy, A_t its advantage, epsilon `clip_param`, beta the KL coefficient.
Stock networks learn by `gradients.py`, which states the same loss without autograd: change both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from menv.algorithms.config.setting import LARGEST
from menv.algorithms.networks.torch_runtime import constant
from menv.algorithms.ppo.ppo import PPOConfig
from menv.inference.heads.head import ActionHead

_MOST_LOG_RATIO = 20.0
# Below this range the KL penalty has no effect, above it no other term has. Without the bounds, a coefficient could
# take long to return, vanish, or make gradients infinite.
_KL_COEFFS = (1e-6, 1e6)
FIELDS = {
    "obs": "obs", "mask": "action_mask", "actions": "actions", "old_logp": "action_logp",
    "old_inputs": "action_dist_inputs", "advantages": "advantages", "value_targets": "value_targets",
    "critic_obs": "critic_obs", "magnet": "magnet_dist_inputs",
}  # fmt: skip
"""Columns of a train batch by field of `Minibatch`."""


class Minibatch(NamedTuple):
    """Rows of one gradient step; old means under the policy that acted.

    Attributes:
        obs: [B, F].
        mask: [B, M] allowed choices, or None.
        actions: [B, ...].
        old_logp: [B].
        old_inputs: [B, D] that went through `ActionHead.standard`.
        advantages: [B], normalised.
        value_targets: [B].
        state: [B, S] recurrent state before each sequence; only for sequences, whose columns are [B, T, ...].
        critic_state: [B, S] that of a centralized critic; only for sequences.
        valid: [B, T] False after the end of a sequence; only for sequences.
        critic_obs: [B, C] input of a centralized critic, or None.
        bounds: [B, 2] of `clip_bounds`, if they are known.
        magnet: [B, D] distribution of the magnet, as old_inputs, or None.
        others: More columns by name for a custom loss, or None.
    """

    obs: Tensor
    mask: Tensor | None
    actions: Tensor
    old_logp: Tensor
    old_inputs: Tensor
    advantages: Tensor
    value_targets: Tensor
    state: Tensor | None = None
    critic_state: Tensor | None = None
    valid: Tensor | None = None
    critic_obs: Tensor | None = None
    bounds: Tensor | None = None
    magnet: Tensor | None = None
    others: Mapping[str, Tensor] | None = None

    def named(self) -> dict[str, Tensor]:
        """Return all columns by their names in a train batch."""
        found = {FIELDS[name]: column for name, column in self._asdict().items() if name in FIELDS}
        return {
            **{name: column for name, column in found.items() if column is not None},
            **(self.others or {}),
        }

    def split(self, size: int) -> list[Minibatch]:
        """Return minibatches of `size` rows; the last one may be smaller."""
        columns = {name: column for name, column in self._asdict().items() if name != "others"}
        parts = {name: torch.split(column, size) for name, column in columns.items() if column is not None}
        others = {name: torch.split(column, size) for name, column in (self.others or {}).items()}
        found = []
        for number in range(len(parts["obs"])):
            fields: dict[str, Any] = {name: part[number] for name, part in parts.items()}
            if others:
                fields["others"] = {name: part[number] for name, part in others.items()}
            found.append(self._replace(**fields))
        return found

    def each(self, change: Callable[[Tensor], Tensor]) -> Minibatch:
        """Return a minibatch with `change` applied to every column."""
        changed: dict[str, Any] = {
            name: change(column)
            for name, column in self._asdict().items()
            if column is not None and name != "others"
        }
        if self.others is not None:
            changed["others"] = {name: change(column) for name, column in self.others.items()}
        return self._replace(**changed)


class Demonstrations(NamedTuple):
    """Rows whose actions are cloned: obs [B, F], mask [B, M] or None, actions [B, ...], and the weight of the loss."""

    obs: Tensor
    mask: Tensor | None
    actions: Tensor
    weight: float

    def split(self, order: Tensor, parts: int) -> list[Demonstrations]:
        """Return the rows in an order [B], in so many nearly equal parts."""
        return [
            Demonstrations(
                self.obs[rows],
                None if self.mask is None else self.mask[rows],
                self.actions[rows],
                self.weight,
            )
            for rows in order.tensor_split(parts)
        ]


def cloning_loss(head: ActionHead, dist_inputs: Tensor, actions: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of actions [B, ...] under dist_inputs [B, D], after masking."""
    return -head.log_prob(head.standard(dist_inputs), actions).mean()


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Coefficients of one update, as in `PPOConfig`."""

    clip_param: float
    vf_clip_param: float | None
    vf_loss_coeff: float
    entropy_coeff: float
    kl_coeff: float
    magnet_coeff: float = 0.0

    @classmethod
    def of(cls, settings: PPOConfig, env_steps: int, kl_coeff: float, value_unit: float = 1.0) -> LossWeights:
        """Return the coefficients after `env_steps` env steps; `vf_clip_param` is converted to the unit of values."""
        limit = None if settings.vf_clip_param is None else settings.vf_clip_param / value_unit**2
        return cls(
            settings.clip_param,
            None if limit is None or limit > LARGEST else float(limit),
            float(settings.vf_loss_coeff),
            settings.entropy_coeff_at(env_steps),
            kl_coeff,
            settings.magnet_coeff,
        )


class LossTerms(NamedTuple):
    """The loss and its parts, scalar tensors; only `total` has a gradient. `magnet_kl` is None without a magnet."""

    total: Tensor
    policy_loss: Tensor
    vf_loss: Tensor
    entropy: Tensor
    kl: Tensor
    magnet_kl: Tensor | None = None


def ppo_loss(
    head: ActionHead,
    weights: LossWeights,
    rows: Minibatch,
    dist_inputs: Tensor,
    values: Tensor,
    *,
    report: bool = True,
) -> LossTerms:
    """Return the loss to be minimised (Schulman et al. 2017, eq. 9, with the KL term of eq. 8).

    total = policy_loss + vf_loss_coeff * vf_loss - entropy_coeff * entropy + kl_coeff * kl + magnet_coeff * magnet_kl

    magnet_kl is KL(policy || magnet), of magnetic mirror descent (Sokota et al. 2023, arXiv:2206.05825).

    dist_inputs [B, D], after masking, and values [B] come from the network that is being trained.
    """
    inputs = head.standard(dist_inputs)
    log_ratio = head.log_prob(inputs, rows.actions) - rows.old_logp
    ratio = clipped_ratio(log_ratio, rows.advantages, weights.clip_param, rows.bounds)
    policy_loss = torch.dot(ratio, rows.advantages) * (-1.0 / len(ratio))
    vf_loss = value_loss(values, rows.value_targets, weights.vf_clip_param)
    total = torch.add(policy_loss, vf_loss, alpha=weights.vf_loss_coeff)
    # Terms with a weight of 0 are reported without a gradient.
    still = inputs.detach()
    entropy = kl = constant(math.nan, still.device)
    if report or weights.entropy_coeff:
        entropy = head.entropy(inputs if weights.entropy_coeff else still).mean()
    if weights.entropy_coeff:
        total = torch.sub(total, entropy, alpha=weights.entropy_coeff)
    if report or weights.kl_coeff:
        kl = head.kl(rows.old_inputs, inputs if weights.kl_coeff else still).mean()
    if weights.kl_coeff:
        total = torch.add(total, kl, alpha=weights.kl_coeff)
    magnet_kl = None
    if rows.magnet is not None:
        magnet_kl = head.kl(inputs, rows.magnet).mean()
        total = torch.add(total, magnet_kl, alpha=weights.magnet_coeff)
    return LossTerms(total, policy_loss, vf_loss, entropy, kl, magnet_kl)


def clip_bounds(advantages: Tensor, clip_param: float) -> Tensor:
    """Return the bounds [B, 2] between which `clipped_ratio` does not clip log r_t."""
    gain = advantages > 0.0
    least = math.log1p(-clip_param) if clip_param < 1.0 else -math.inf
    bounds = torch.stack(
        (torch.where(gain, -math.inf, least), torch.where(gain, math.log1p(clip_param), _MOST_LOG_RATIO)), -1
    )
    # Constants have torch's default dtype, which the user may have changed.
    return bounds.to(advantages.dtype)


def clipped_ratio(
    log_ratio: Tensor, advantages: Tensor, clip_param: float, bounds: Tensor | None = None
) -> Tensor:
    """Return [B] the factor of A_t in min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t) (eq. 7).

    The minimum clips r_t from above where the advantage is positive and from below where it is negative.
    Written as one clamp of log r_t between bounds it has half the operations to differentiate, and a
    policy that diverged cannot overflow to infinity. `bounds` are the result of `clip_bounds`, if it is known.
    """
    if bounds is None:
        bounds = clip_bounds(advantages, clip_param)
    return log_ratio.clamp(*bounds.unbind(-1)).exp()


def value_loss(values: Tensor, targets: Tensor, limit: float | None) -> Tensor:
    """Return the mean of (V - V_target)^2 (eq. 9), each at most `limit`; rows beyond have no gradient."""
    if limit is None:
        return functional.mse_loss(values, targets)
    return functional.mse_loss(values, targets, reduction="none").clamp(max=limit).mean()


def adapted_kl_coeff(kl_coeff: float, kl: float, kl_target: float) -> float:
    """Return the weight of the KL term for the next update.

    The rule below eq. 8 with the factors of RLlib: halved below 0.5 targets, 1.5 times as large above 2 targets,
    within 1e-6 and 1e6.
    """
    if kl > 2.0 * kl_target:
        return min(kl_coeff * 1.5, max(kl_coeff, _KL_COEFFS[1]))
    if kl < 0.5 * kl_target:
        return max(kl_coeff * 0.5, min(kl_coeff, _KL_COEFFS[0]))
    return kl_coeff
