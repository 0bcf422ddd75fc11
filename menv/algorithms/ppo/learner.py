"""Learning one PPO policy from train batches: epochs of shuffled minibatches.

The algorithm's loop calls `learn` with the columns of one policy and publishes `weights()` to the acting
back-ends. It does not know environments, agents or how batches were collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms import distributions
from menv.algorithms.config.field_checks import LARGEST, LEARNERS, check_stored
from menv.algorithms.flat_adam import FlatAdam
from menv.algorithms.networks.network_spec import NetworkSpec, obs_column
from menv.algorithms.networks.stock_spec import UnitWeights
from menv.algorithms.ppo.config import PPOSettings
from menv.algorithms.ppo.gradients import ColumnRows, PPOGradientStep, can_learn
from menv.algorithms.ppo.loss import FIELDS, LossWeights, Minibatch, adapted_kl_coeff, clip_bounds, ppo_loss
from menv.algorithms.ppo.policy import PPOPolicy
from menv.algorithms.return_scaling import ReturnNormalizer
from menv.algorithms.sequences import sequences, state_before
from menv.algorithms.torch_runtime import CPU, repeatable, tensor_of
from menv.errors import ConfigError, ContractError
from menv.sample_batch import SampleBatch

Columns = Mapping[str, npt.NDArray[Any]]

_STATISTICS = ("total_loss", "policy_loss", "vf_loss", "entropy", "kl", "grad_gnorm")

# Advantages that hardly vary are not blown up to unit variance, as in the classic implementation.
_LEAST_SPREAD = 1e-4
_OF_VALUES = (SampleBatch.VF_PREDS, SampleBatch.NEXT_VF_PREDS)
_NOTHING = torch.empty(0)


class PPOLearner:
    """A policy's network, its optimizer and the adaptive weight of its KL term.

    Args:
        spec: The network.
        settings: Numbers of the loss and the optimizer.
        weights: First weights by name; copied.
        seed: Decides the order of rows; the same seed and batches give the same weights.
        max_seq_len: Rows through which a recurrent network learns at a time.
        policy: A policy with a loss or modules of its own; `weights` has those of the modules too.
        device: Where gradient steps are made.
        by_hand: False leaves all gradients to autograd, not only those of networks and losses that `PPOGradientStep`
        does
            not know. Both forms agree but for rounding; a run keeps to one of them.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        spec: NetworkSpec,
        settings: PPOSettings,
        weights: Mapping[str, npt.NDArray[np.float32]],
        seed: int,
        max_seq_len: int = 1,
        policy: PPOPolicy | None = None,
        *,
        device: torch.device = CPU,
        by_hand: bool = True,
    ) -> None:
        self._max_seq_len = max_seq_len
        self._head = spec.head
        self._recurrent = bool(spec.state_sizes)
        self._settings = settings
        self._seed = seed
        self._batches = 0
        self._kl_coeff = self._first_kl_coeff = settings.first_kl_coeff(spec.head.kind)
        self._statistics: tuple[str, ...] = _STATISTICS
        self._told = False
        # In the order of the description, whatever the order of `weights`: state is saved flat.
        own = () if policy is None else (name for name, _ in policy.module_params())
        ordered = {name: weights[name] for name in (*spec.weight_shapes(), *own)}
        self._device = device
        self._adam = FlatAdam(ordered, settings.lr, grad_clip=settings.grad_clip, device=device)
        self._network = spec.torch_network(self._adam.params)
        self._policy = policy
        plain = policy is None or policy.learns_as_ppo
        by_hand = by_hand and plain and can_learn(spec)
        self._by_hand = PPOGradientStep(spec, self._adam, device) if by_hand else None
        # A critic of the policy's own gives values in the environment's unit: only its loss is scaled.
        found = UnitWeights({}) if policy is not None and policy.has_own_critic else spec.unit_weights()
        tensors = [self._adam.params[name] for name in found.powers]
        shift = None if found.shift is None else self._adam.params[found.shift]
        self._scale = ReturnNormalizer(tensors, shift) if settings.normalize_values else None
        self._in_units = bool(tensors)
        if policy is not None and device == CPU:
            policy.learn_with(self._network, self._adam.params)

    # Something that was raised between two instructions may have left gradients off, and callers may be in any mode.
    @torch.inference_mode(False)
    def learn(self, columns: Columns, env_steps: int) -> dict[str, float]:
        """Improve the policy on one train batch.

        Args:
            columns: obs [N, F], action_mask [N, M] (optional), actions [N, ...], action_logp [N],
                action_dist_inputs [N, D], advantages [N], value_targets [N], and critic_obs [N, C] if the value
                network sees that; of a recurrent policy seq_lens [S] and state_in_0 and so on [N, ...] too. All
                columns that the batch stores, for a policy with a loss of its own.
            env_steps: Env steps of the whole run so far, for the schedules.

        Returns:
            policy_loss, vf_loss, entropy, kl (or what a policy's own loss tells), total_loss and grad_gnorm
            (before clipping) as means over the last epoch's minibatches; vf_explained_var of the values before
            the update; and cur_lr, entropy_coeff and cur_kl_coeff as they were used.

        Raises:
            ConfigError: The batch has no rows, or is padded.
        """
        if len(columns["obs"]) == 0 or SampleBatch.SEQ_MASK in columns:
            what = "a padded batch" if SampleBatch.SEQ_MASK in columns else "0 rows"
            raise ConfigError(
                f"PPOLearner.learn: {what}, expected at least 1 row and no padding; skip policies without experience, "
                "and pad copies"
            )
        settings = self._settings
        self._adam.lr = settings.lr_at(env_steps)
        if self._scale is not None:
            self._scale.follow(columns["value_targets"], columns.get(SampleBatch.VF_PREDS))
        weights = self._weights(env_steps)
        rows = self._rows(columns) if not self._recurrent else self._sequences(columns)
        with repeatable(self._device), self._with_policy(), self._learning():
            stats = self._epochs(rows, weights)
        if self._scale is not None and self._in_units and "vf_loss" in stats:
            stats["vf_loss"] *= self._scale.unit**2
        stats["vf_explained_var"] = explained_variance(columns["value_targets"], _value_errors(columns))
        stats["cur_lr"] = self._adam.lr
        if self._adam.skipped:
            stats["skipped_updates"] = self._adam.skipped
        stats["cur_kl_coeff"] = self._kl_coeff
        stats["entropy_coeff"] = weights.entropy_coeff
        if "kl" in stats:
            self._kl_coeff = adapted_kl_coeff(self._kl_coeff, stats["kl"], settings.kl_target)
        return stats

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the weights by name."""
        return self._adam.weights()

    def set_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Copy `weights` in; the optimizer's state stays.

        Raises:
            ConfigError: Names or shapes differ.
        """
        self._adam.set_weights(weights)

    def take(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Copy in what another policy has learned about layers that both share."""
        self._adam.take(weights)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything besides the weights that the next update depends on, as arrays."""
        return {
            **self._adam.state(),
            **({} if self._scale is None else self._scale.state()),
            "kl_coeff": np.array(self._kl_coeff, np.float64),
            "first_kl_coeff": np.array(self._first_kl_coeff, np.float64),
            "batches": np.array(self._batches, np.int64),
        }

    def check_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Refuse what `set_state` could not take over; nothing changes.

        Raises:
            ConfigError: The state belongs to another network, or no learner can have reached it.
        """
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
        """Take over what `state` returned.

        Raises:
            ConfigError: As for `check_state`.
        """
        self.check_state(state)
        self._adam.set_state(state)
        if self._scale is not None:
            self._scale.set_state(state)
        # An adapted weight goes on; that of another setting does not.
        same = float(state["first_kl_coeff"]) == self._first_kl_coeff
        self._kl_coeff = float(state["kl_coeff"]) if same else self._first_kl_coeff
        self._batches = int(state["batches"])

    def _weights(self, env_steps: int) -> LossWeights:
        """Return the coefficients of an update; the value loss counts in the square of the unit of the values."""
        scale = self._scale
        if scale is None or self._in_units:
            unit = 1.0 if scale is None else scale.unit
            return LossWeights.of(self._settings, env_steps, self._kl_coeff, unit)
        weights = LossWeights.of(self._settings, env_steps, self._kl_coeff)
        return replace(weights, vf_loss_coeff=weights.vf_loss_coeff / scale.unit**2)

    def _rows(self, columns: Columns) -> Minibatch:
        mask, critic_obs = columns.get("action_mask"), columns.get("critic_obs")
        old_inputs = self._tensor(columns["action_dist_inputs"], np.float32)
        advantages = self._tensor(columns["advantages"], np.float32)
        targets = self._scaled(columns["value_targets"])
        spread = advantages.std(correction=0).clamp(min=_LEAST_SPREAD)
        advantages = (advantages - advantages.mean()) / spread
        return Minibatch(
            obs=self._tensor(obs_column(columns["obs"]), None),
            mask=None if mask is None else self._tensor(mask, np.bool_),
            actions=self._tensor(columns["actions"], self._head.action_dtype),
            old_logp=self._tensor(columns["action_logp"], np.float32),
            old_inputs=distributions.standard(self._head, old_inputs).contiguous(),
            advantages=advantages,
            bounds=clip_bounds(advantages, self._settings.clip_param),
            value_targets=self._tensor(targets, np.float32),
            critic_obs=None if critic_obs is None else self._tensor(critic_obs, np.float32),
            others=None if self._policy is None else self._others(columns),
        )

    def _sequences(self, columns: Columns) -> Minibatch:
        rows = self._rows(columns)
        cut = sequences(columns["seq_lens"], self._max_seq_len)
        places = self._tensor(cut.rows)
        laid_out = rows.each(lambda column: column[places])
        state = self._tensor(state_before(columns, cut.starts))
        return laid_out._replace(state=state, valid=self._tensor(cut.valid))

    def _others(self, columns: Columns) -> dict[str, Tensor]:
        """Return the columns of numbers and flags that a minibatch has no field for."""
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
        """Return values in the unit in which the network gives them while it learns."""
        return values if self._scale is None or not self._in_units else self._scale.scaled(values)

    def _tensor(self, column: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> Tensor:
        return tensor_of(column, self._device, dtype)

    def _epochs(self, rows: Minibatch, weights: LossWeights) -> dict[str, float]:
        # A pure function of seed and batch number: a resumed run shuffles as if it had never stopped.
        rng = np.random.default_rng((self._seed, self._batches))
        self._batches += 1
        last_epoch: list[Tensor] = []
        epochs = self._settings.num_sgd_iter
        columns = None if self._by_hand is None else ColumnRows.of(self._head, rows)
        for epoch in range(epochs):
            order, size = self._order(rng, rows)
            report = epoch == epochs - 1
            if self._by_hand is not None and columns is not None:
                last_epoch = self._by_hand.epoch(columns.ordered(order), size, weights, report)
            else:
                parts = self._minibatches(rows, order, size)
                last_epoch = [self._update(part, weights, report) for part in parts]
        if self._by_hand is not None:
            self._by_hand.free()
        return dict(zip(self._statistics, torch.stack(last_epoch).mean(0).tolist(), strict=True))

    def _with_policy(self) -> AbstractContextManager[None]:
        if self._policy is None or self._device == CPU:
            return nullcontext()
        return self._policy.lent(self._network, self._adam.params)

    def _learning(self) -> AbstractContextManager[None]:
        return nullcontext() if self._scale is None else self._scale.learning()

    def _order(self, rng: np.random.Generator, rows: Minibatch) -> tuple[Tensor, int]:
        """Return the order of rows in an epoch, and how many of them make a minibatch."""
        size, least = self._settings.sgd_minibatch_size, 2
        if rows.valid is not None:
            # As many sequences as hold so many rows in the mean, however short they are.
            size, least = max(1, size * len(rows.valid) // int(rows.valid.sum())), 1
        order = self._tensor(rng.permutation(len(rows.obs)))
        # A last part of a single row would be a step on noise.
        rest = len(order) % size
        return (order[:-rest] if rest and rest < least and len(order) > size else order), size

    def _minibatches(self, rows: Minibatch, order: Tensor, size: int) -> list[Minibatch]:
        return rows.each(lambda column: column.index_select(0, order)).split(size)

    def _update(self, rows: Minibatch, weights: LossWeights, report: bool) -> Tensor:
        """Make a gradient step and return its statistics, an empty tensor unless they are to be reported."""
        terms = (
            self._terms(rows, weights, report)
            if self._policy is None
            else self._own_terms(self._policy, rows, weights)
        )
        torch.autograd.backward(terms[0])
        norm = self._adam.step()
        if not report:
            return _NOTHING
        # One scalar tensor each; reading them as numbers here would cost a synchronisation a step.
        return torch.stack((*terms, norm)).detach()

    def _terms(self, rows: Minibatch, weights: LossWeights, report: bool) -> tuple[Tensor, ...]:
        if rows.valid is not None:
            rows, inputs, values = self._unrolled(rows, rows.valid)
        elif rows.critic_obs is None:
            inputs, values = self._network.both(rows.obs, rows.mask)
        else:
            inputs = self._network.dist_inputs(rows.obs, rows.mask)
            values = self._network.values(rows.critic_obs)
        return ppo_loss(self._head, weights, rows, inputs, values, report=report)

    def _unrolled(self, rows: Minibatch, valid: Tensor) -> tuple[Minibatch, Tensor, Tensor]:
        """Return the steps of sequences as rows, without those behind their ends, and their outputs."""
        steps = rows._replace(state=None, valid=None).each(lambda column: column.flatten(0, 1))
        if steps.critic_obs is None:
            inputs, values = self._network.both(steps.obs, steps.mask, rows.state)
        else:
            inputs = self._network.dist_inputs(steps.obs, steps.mask, rows.state)
            values = self._network.values(steps.critic_obs)
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
        total, told = policy.checked_loss(rows.named())
        names = ("total_loss", *told, "grad_gnorm")
        if not self._told:
            self._statistics, self._told = names, True
        elif names != self._statistics:
            raise ContractError(
                f"policy {policy.policy_id!r}.loss: told {list(told)}, expected {list(self._statistics[1:-1])} as "
                "before; give the same statistics each time"
            )
        return total, *told.values()


# Of targets that are infinite: gradients are left out then, and somebody is told.
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
