"""PPOLearner: trains one policy on train batches, in epochs of shuffled minibatches.

`Learners` calls `learn` with the batch of the policy and publishes `weights()` to the acting back-ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms.config.setting import LARGEST, LEARNERS, check_stored
from menv.algorithms.networks.network_spec import NetworkSpec, obs_column
from menv.algorithms.networks.stock_spec import UnitWeights
from menv.algorithms.networks.torch_runtime import CPU, array_of, repeatable, tensor_of
from menv.algorithms.ppo.gradients import ColumnRows, PPOGradientStep, can_learn
from menv.algorithms.ppo.loss import (
    FIELDS,
    Demonstrations,
    LossWeights,
    Minibatch,
    adapted_kl_coeff,
    clip_bounds,
    cloning_loss,
    ppo_loss,
)
from menv.algorithms.ppo.ppo import PPOConfig
from menv.algorithms.training.flat_adam import FlatAdam
from menv.algorithms.training.return_scaling import ReturnNormalizer
from menv.algorithms.training.sequences import sequences, state_before
from menv.algorithms.training.torch_threads import learning_device
from menv.errors import ConfigError, ContractError
from menv.sample_batch import SampleBatch

if TYPE_CHECKING:
    from menv.algorithms.ppo.policy import PPOPolicy

Columns = Mapping[str, npt.NDArray[Any]]

_STATISTICS = ("total_loss", "policy_loss", "vf_loss", "entropy", "kl")
_MAGNET = "magnet."

# Advantages that vary less than float32 rounds values are not scaled up to unit variance.
_LEAST_SPREAD = 1e-6
# Bounds of rewards, as root mean squares, that a network without a unit learns as well as rewards of 1.
_LEARNED_AS_THEY_ARE = (0.02, 50.0)
_OF_VALUES = (SampleBatch.VF_PREDS, SampleBatch.NEXT_VF_PREDS)
_NOTHING = torch.empty(0)


class PPOLearner:
    """The network of a policy, its optimizer, the adaptive KL coefficient, and the magnet if there is one."""

    @torch.inference_mode(False)
    def __init__(
        self,
        spec: NetworkSpec,
        settings: PPOConfig,
        weights: Mapping[str, npt.NDArray[np.float32]],
        seed: int,
        policy: PPOPolicy | None = None,
        *,
        by_hand: bool = True,
    ) -> None:
        self._head = spec.head
        self._recurrent = bool(spec.state_sizes)
        self._settings = settings
        self._seed = seed
        self._batches = 0
        self._kl_coeff = self._first_kl_coeff = settings.first_kl_coeff(spec.head)
        # Names of a custom loss, from its first minibatch on.
        self._statistics: tuple[str, ...] = ()
        # In the order of the spec, because the optimizer state is saved flat.
        own = () if policy is None else (name for name, _ in policy.module_params())
        ordered = {name: weights[name] for name in (*spec.weight_shapes(), *own)}
        self._device = device = learning_device(settings.num_gpus)
        self._adam = FlatAdam(ordered, settings.lr, grad_clip=settings.grad_clip, device=device)
        self._network = spec.torch_network(self._adam.params)
        params, names = self._adam.params, spec.weight_shapes() if settings.magnet_coeff else ()
        self._magnet_params = {name: params[name].detach().clone() for name in names}
        self._magnet = spec.torch_network(self._magnet_params) if names else None
        self._policy = policy
        plain = policy is None or policy.learns_as_ppo
        by_hand = by_hand and plain and can_learn(spec)
        self._by_hand = PPOGradientStep(spec, self._adam, device) if by_hand else None
        # A custom critic returns values in the environment's unit: only its loss is scaled.
        found = UnitWeights({}) if policy is not None and policy.has_own_critic else spec.unit_weights()
        tensors = [self._adam.params[name] for name in found.powers]
        shift = None if found.shift is None else self._adam.params[found.shift]
        self._scale = ReturnNormalizer(tensors, shift) if settings.normalize_values else None
        self._in_units = bool(tensors)
        self._warns_of_rewards = self._scale is None or not self._in_units
        if policy is not None and device == CPU:
            policy.learn_with(self._network, self._adam.params)

    # Callers may be in any gradient mode.
    @torch.inference_mode(False)
    def learn(self, columns: Columns, env_steps: int) -> dict[str, float]:
        """Improve the policy on one train batch and return the statistics of the last epoch.

        Columns: obs [N, F], action_mask [N, M] (optional), actions [N, ...], action_logp [N], action_dist_inputs
        [N, D], advantages [N], value_targets [N]; critic_obs [N, C] of a centralized critic; seq_lens [S] and
        state_in_0, ... [N, ...] of a recurrent policy, and critic_state_in [N, S] of its centralized critic. A custom
        loss gets every other column of the batch as well.
        """
        if len(columns["obs"]) == 0:
            raise ConfigError(
                "PPOLearner.learn: 0 rows, expected at least 1; skip policies without experience"
            )
        settings = self._settings
        self._adam.lr = settings.lr_at(env_steps)
        columns, demonstrations = self._split(columns, env_steps)
        if not len(columns["obs"]):
            return self._only_clone(demonstrations)
        if self._scale is not None:
            self._scale.follow(columns["value_targets"], columns.get(SampleBatch.VF_PREDS))
        weights = self._weights(env_steps)
        rows = self._rows(columns) if not self._recurrent else self._sequences(columns)
        rows = self._with_magnet(rows)
        with repeatable(self._device), self._with_policy(), self._learning():
            stats = self._epochs(rows, weights, demonstrations)
        self._move_magnet(settings.magnet_tau_at(env_steps))
        if self._scale is not None and self._in_units and "vf_loss" in stats:
            stats["vf_loss"] *= self._scale.unit**2
        stats["vf_explained_var"] = explained_variance(columns["value_targets"], _value_errors(columns))
        stats["cur_lr"] = self._adam.lr
        if self._adam.skipped:
            stats["skipped_updates"] = self._adam.skipped
        elif self._warns_of_rewards:
            self._warn_of_rewards(columns)
        stats["cur_kl_coeff"] = self._kl_coeff
        stats["entropy_coeff"] = weights.entropy_coeff
        if "kl" in stats:
            self._kl_coeff = adapted_kl_coeff(self._kl_coeff, stats["kl"], settings.kl_target)
        return stats

    def _warn_of_rewards(self, columns: Columns) -> None:
        """Warn once of rewards that values in the environment's unit do not learn; rewards of 0 have no size."""
        paid = np.asarray(columns.get("rewards", ()), np.float64)
        paid = paid[(paid != 0.0) & np.isfinite(paid)]
        if not len(paid):
            return
        self._warns_of_rewards = False
        size, (least, most) = float(np.sqrt(np.mean(np.square(paid)))), _LEARNED_AS_THEY_ARE
        if not least < size < most:
            off = self._scale is None
            warnings.warn(
                f"PPO: rewards of about {size:.3g} with {'normalize_values=False' if off else 'a custom critic'}, "
                "expected rewards of about 1, because a new network predicts values of that size; "
                f"{'set normalize_values=True' if off else 'multiply the critic by the size of returns'}, "
                "or scale the rewards",
                RuntimeWarning,
                stacklevel=2,
            )

    def _split(self, columns: Columns, env_steps: int) -> tuple[Columns, Demonstrations | None]:
        """Return the rows whose actions the policy chose, and the others if they are cloned now."""
        foreign = columns.get(SampleBatch.OFF_POLICY) if self._settings.clones else None
        if foreign is None:
            return columns, None
        assert isinstance(columns, SampleBatch)
        others, weight = columns.take(np.flatnonzero(foreign)), self._settings.bc_weight_at(env_steps)
        own = columns.take(np.flatnonzero(~foreign))
        if not others.count or not weight:
            return own, None
        mask = others.get("action_mask")
        return own, Demonstrations(
            self._tensor(obs_column(others["obs"]), None),
            None if mask is None else self._tensor(mask, np.bool_),
            self._tensor(others["actions"], self._head.action_dtype),
            weight,
        )

    def _only_clone(self, rows: Demonstrations | None) -> dict[str, float]:
        if rows is None:
            return {"bc_weight": 0.0}
        rng = np.random.default_rng((self._seed, self._batches))
        self._batches += 1
        parts, losses = max(1, len(rows.obs) // self._settings.sgd_minibatch_size), list[float]()
        with repeatable(self._device), self._with_policy():
            for _ in range(self._settings.num_sgd_iter):
                losses.clear()
                for part in rows.split(self._tensor(rng.permutation(len(rows.obs))), parts):
                    loss = self._cloning_loss(part)
                    torch.autograd.backward(loss * part.weight)
                    self._adam.step()
                    losses.append(loss.item())
        return {"bc_loss": sum(losses) / len(losses), "bc_weight": rows.weight, "cur_lr": self._adam.lr}

    def _cloning_loss(self, rows: Demonstrations) -> Tensor:
        return cloning_loss(self._head, self._network.dist_inputs(rows.obs, rows.mask), rows.actions)

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        return self._adam.weights()

    def set_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._adam.set_weights(weights)
        self._move_magnet(1.0)

    def take(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Copy weights of shared layers that another policy has trained."""
        self._adam.take(weights)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {
            **self._adam.state(),
            **({} if self._scale is None else self._scale.state()),
            **{_MAGNET + name: array_of(param).copy() for name, param in self._magnet_params.items()},
            "kl_coeff": np.array(self._kl_coeff, np.float64),
            "first_kl_coeff": np.array(self._first_kl_coeff, np.float64),
            "batches": np.array(self._batches, np.int64),
        }

    def check_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Refuse a state that `set_state` could not restore; nothing changes."""
        self._adam.check_state(state)
        check_stored(LEARNERS, "batches", state["batches"])
        check_stored(LEARNERS, "kl_coeff", state["kl_coeff"], "f", most=LARGEST)
        if "value_scale" in state:
            batches, mean, variance, unit = np.asarray(state["value_scale"])
            check_stored(LEARNERS, "value_scale[0]", batches, "f")
            check_stored(LEARNERS, "value_scale[1]", mean, "f", -LARGEST, LARGEST)
            check_stored(LEARNERS, "value_scale[2]", variance, "f", most=LARGEST**2)
            check_stored(LEARNERS, "value_scale[3]", unit, "f", 1 / LARGEST, LARGEST)

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.check_state(state)
        self._adam.set_state(state)
        if self._scale is not None:
            self._scale.set_state(state)
        for name, param in self._magnet_params.items():
            # Of a checkpoint without a magnet, the policy becomes the magnet.
            if _MAGNET + name in state:
                param.copy_(torch.from_numpy(np.array(state[_MAGNET + name], np.float32)))
        # The adapted coefficient is restored unless the setting has changed.
        same = float(state["first_kl_coeff"]) == self._first_kl_coeff
        self._kl_coeff = float(state["kl_coeff"]) if same else self._first_kl_coeff
        self._batches = int(state["batches"])

    def _weights(self, env_steps: int) -> LossWeights:
        scale = self._scale
        if scale is None or self._in_units:
            unit = 1.0 if scale is None else scale.unit
            return LossWeights.of(self._settings, env_steps, self._kl_coeff, unit)
        weights = LossWeights.of(self._settings, env_steps, self._kl_coeff)
        return replace(weights, vf_loss_coeff=weights.vf_loss_coeff / scale.unit**2)

    def _rows(self, columns: Columns) -> Minibatch:
        mask, critic_obs = columns.get("action_mask"), columns.get("critic_obs")
        old_inputs = self._tensor(columns["action_dist_inputs"], np.float32)
        targets = self._scaled(columns["value_targets"])
        advantages = self._tensor(_standardized(columns["advantages"], columns["value_targets"]), np.float32)
        return Minibatch(
            obs=self._tensor(obs_column(columns["obs"]), None),
            mask=None if mask is None else self._tensor(mask, np.bool_),
            actions=self._tensor(columns["actions"], self._head.action_dtype),
            old_logp=self._tensor(columns["action_logp"], np.float32),
            old_inputs=self._head.standard(old_inputs).contiguous(),
            advantages=advantages,
            bounds=clip_bounds(advantages, self._settings.clip_param),
            value_targets=self._tensor(targets, np.float32),
            critic_obs=None if critic_obs is None else self._tensor(critic_obs, np.float32),
            others=None if self._policy is None else self._others(columns),
        )

    def _sequences(self, columns: Columns) -> Minibatch:
        rows = self._rows(columns)
        cut = sequences(columns["seq_lens"], self._settings.model.max_seq_len)
        places = self._tensor(cut.rows)
        laid_out = rows.each(lambda column: column[places])
        state = self._tensor(state_before(columns, cut.starts))
        critic = None
        if rows.critic_obs is not None:
            critic = self._tensor(columns[SampleBatch.CRITIC_STATE_IN][cut.starts])
        return laid_out._replace(state=state, critic_state=critic, valid=self._tensor(cut.valid))

    @torch.no_grad()
    def _with_magnet(self, rows: Minibatch) -> Minibatch:
        if self._magnet is None:
            return rows
        if rows.valid is None:
            return rows._replace(
                magnet=self._head.standard(self._magnet.dist_inputs(rows.obs, rows.mask)).contiguous()
            )
        mask = None if rows.mask is None else rows.mask.flatten(0, 1)
        inputs = self._head.standard(self._magnet.dist_inputs(rows.obs.flatten(0, 1), mask, rows.state))
        return rows._replace(magnet=inputs.reshape(*rows.valid.shape, -1))

    @torch.no_grad()
    def _move_magnet(self, share: float) -> None:
        for name, param in self._magnet_params.items():
            param.lerp_(self._adam.params[name], share)

    def _others(self, columns: Columns) -> dict[str, Tensor]:
        stored = columns.stored() if isinstance(columns, SampleBatch) else columns
        numbers = {
            name: column
            for name, column in stored.items()
            if column.dtype.kind in "biuf" and name not in FIELDS.values()
        }
        return {
            name: self._tensor(
                self._scaled(column) if name in _OF_VALUES else column,
                np.float32 if column.dtype.kind == "f" else column.dtype,
            )
            for name, column in numbers.items()
        }

    def _scaled(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self._scale is None or not self._in_units else self._scale.scaled(values)

    def _tensor(self, column: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> Tensor:
        return tensor_of(column, self._device, dtype)

    def _epochs(
        self, rows: Minibatch, weights: LossWeights, demonstrations: Demonstrations | None = None
    ) -> dict[str, float]:
        # A function of seed and batch number alone, so that resumed runs shuffle identically.
        rng = np.random.default_rng((self._seed, self._batches))
        self._batches += 1
        last_epoch: list[Tensor] = []
        epochs = self._settings.num_sgd_iter
        by_hand = self._by_hand if demonstrations is None else None
        columns = None if by_hand is None else ColumnRows.of(self._head, rows)
        for epoch in range(epochs):
            order, size = self._order(rng, rows)
            report = epoch == epochs - 1
            if by_hand is not None and columns is not None:
                last_epoch = by_hand.epoch(columns, order, size, weights, report)
                continue
            parts, cloning = self._minibatches(rows, order, size), list[Demonstrations]()
            if demonstrations is not None:
                others = self._tensor(rng.permutation(len(demonstrations.obs)))
                cloning = demonstrations.split(others, len(parts))
            pairs = zip_longest(parts, cloning)
            last_epoch = [self._update(part, weights, report, clones) for part, clones in pairs]
        if by_hand is not None:
            by_hand.free()
        magnet = ("magnet_kl",) if self._magnet is not None else ()
        names = self._statistics or (*_STATISTICS, *magnet, "grad_gnorm")
        if demonstrations is not None:
            names = (*names, "bc_loss")
        found = dict(zip(names, torch.stack(last_epoch).mean(0).tolist(), strict=True))
        return found if demonstrations is None else {**found, "bc_weight": demonstrations.weight}

    def _with_policy(self) -> AbstractContextManager[None]:
        if self._policy is None or self._device == CPU:
            return nullcontext()
        return self._policy.lent(self._network, self._adam.params)

    def _learning(self) -> AbstractContextManager[None]:
        return nullcontext() if self._scale is None else self._scale.learning()

    def _order(self, rng: np.random.Generator, rows: Minibatch) -> tuple[Tensor, int]:
        size, least = self._settings.sgd_minibatch_size, 2
        if rows.valid is not None:
            # As many sequences as contain this many timesteps on average.
            size, least = max(1, size * len(rows.valid) // int(rows.valid.sum())), 1
        order = self._tensor(rng.permutation(len(rows.obs)))
        # A last minibatch of a single timestep would be noise.
        rest = len(order) % size
        return (order[:-rest] if rest and rest < least and len(order) > size else order), size

    def _minibatches(self, rows: Minibatch, order: Tensor, size: int) -> list[Minibatch]:
        return rows.each(lambda column: column.index_select(0, order)).split(size)

    def _update(
        self, rows: Minibatch, weights: LossWeights, report: bool, cloned: Demonstrations | None = None
    ) -> Tensor:
        terms = (
            self._terms(rows, weights, report)
            if self._policy is None
            else self._own_terms(self._policy, rows, weights)
        )
        extra: tuple[Tensor, ...] = ()
        if cloned is not None:
            extra = (self._cloning_loss(cloned) if len(cloned.obs) else cloned.obs.sum(),)
            terms = (terms[0] + cloned.weight * extra[0], *terms[1:])
        torch.autograd.backward(terms[0])
        norm = self._adam.step()
        if not report:
            return _NOTHING
        # Tensors: reading numbers here would synchronize with the GPU at every step.
        return torch.stack((*terms, norm, *extra)).detach()

    def _terms(self, rows: Minibatch, weights: LossWeights, report: bool) -> tuple[Tensor, ...]:
        if rows.valid is not None:
            rows, inputs, values = self._unrolled(rows, rows.valid)
        elif rows.critic_obs is None:
            inputs, values = self._network.both(rows.obs, rows.mask)
        else:
            inputs = self._network.dist_inputs(rows.obs, rows.mask)
            values = self._network.values(rows.critic_obs)
        terms = ppo_loss(self._head, weights, rows, inputs, values, report=report)
        return tuple(term for term in terms if term is not None)

    def _unrolled(self, rows: Minibatch, valid: Tensor) -> tuple[Minibatch, Tensor, Tensor]:
        steps = rows._replace(state=None, critic_state=None, valid=None).each(
            lambda column: column.flatten(0, 1)
        )
        if steps.critic_obs is None:
            inputs, values = self._network.both(steps.obs, steps.mask, rows.state)
        else:
            inputs = self._network.dist_inputs(steps.obs, steps.mask, rows.state)
            values = self._network.values(steps.critic_obs, rows.critic_state)
        chosen = valid.flatten().nonzero()[:, 0]
        return (
            steps.each(lambda column: column.index_select(0, chosen)),
            inputs.index_select(0, chosen),
            values.index_select(0, chosen),
        )

    def _own_terms(self, policy: PPOPolicy, rows: Minibatch, weights: LossWeights) -> tuple[Tensor, ...]:
        policy.loss_weights = weights
        if self._scale is not None and self._in_units:
            policy.value_mean, policy.value_unit = self._scale.shift, self._scale.unit
        total, statistics = policy.checked_loss(rows.named())
        names = ("total_loss", *statistics, "grad_gnorm")
        if not self._statistics:
            self._statistics = names
        elif names != self._statistics:
            raise ContractError(
                f"policy {policy.policy_id!r}.loss: statistics {list(statistics)}, expected "
                f"{list(self._statistics[1:-1])} as before; return the same statistics each time"
            )
        return total, *statistics.values()


@np.errstate(over="ignore", invalid="ignore")
def _standardized(advantages: npt.NDArray[Any], value_targets: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return advantages [N] with mean 0 and variance 1, in any unit."""
    found = np.asarray(advantages, np.float64)
    size = float(np.sqrt(np.mean(np.square(value_targets, dtype=np.float64))))
    spread = max(float(found.std()), _LEAST_SPREAD * size) or 1.0
    return np.asarray((found - found.mean()) / spread)


# Targets may be infinite; such updates are skipped and reported.
@np.errstate(over="ignore", invalid="ignore")
def explained_variance(value_targets: npt.NDArray[Any], errors: npt.NDArray[Any]) -> float:
    """Return 1 - Var(target - V) / Var(target), at least -1; 0 if the targets do not vary.

    Args:
        value_targets: [N].
        errors: [N] `value_targets - V`.
    """
    variance = float(np.var(value_targets, dtype=np.float64))
    if variance == 0.0:
        return 0.0
    return max(-1.0, 1.0 - float(np.var(errors, dtype=np.float64)) / variance)


def _value_errors(columns: Columns) -> npt.NDArray[Any]:
    """Return [N] targets minus values; a callback or a policy may have made something else of the advantages."""
    if SampleBatch.VF_PREDS not in columns:
        return columns["advantages"]
    errors: npt.NDArray[Any] = np.subtract(columns["value_targets"], columns["vf_preds"], dtype=np.float64)
    return errors
