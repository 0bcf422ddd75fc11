"""ReplayLearner: stores the experience of one policy and trains on samples from its replay buffer.

`Learners` calls `learn` with each fragment of the policy and publishes `weights()` to the acting back-ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms.config.setting import LEARNERS, check_stored
from menv.algorithms.networks.network_spec import NetworkSpec, obs_column
from menv.algorithms.networks.torch_runtime import array_of, repeatable, tensor_of
from menv.algorithms.off_policy.config import ReplayConfig
from menv.algorithms.off_policy.replay_buffer import ReplayBuffer, ReplaySample, column_of
from menv.algorithms.recipe import Weights
from menv.algorithms.training.flat_adam import FlatAdam
from menv.algorithms.training.return_scaling import RewardScale
from menv.algorithms.training.torch_threads import learning_device
from menv.base_env import Column
from menv.errors import ConfigError
from menv.inference.heads.q_values import EPSILON
from menv.sample_batch import SampleBatch

_REPLAY, _TARGET = "replay.", "target."
# Sums of fractions such as 0.1 may be slightly below the whole number.
_ROUNDING = 1e-9


class ReplayLearner:
    """The online and target networks of a policy, their optimizer and the replay buffer `replay`.

    Subclasses have the loss, `_terms`, and the columns that it reads beyond `_columns`.

    Q-values are learned in the unit of a `RewardScale`; `weights` and `set_weights` use the environment's unit. When
    the unit changes, weights are rescaled to represent the same Q-values, except for random initial weights
    (`has_first_weights`).
    """

    _in_sequences = False
    # By name the power of the unit that a statistic is in.
    _statistics: ClassVar[dict[str, int]] = {"loss": 2, "mean_q": 1, "mean_td_error": 1, "grad_gnorm": 0}

    @torch.inference_mode(False)
    def __init__(
        self,
        spec: NetworkSpec,
        settings: ReplayConfig,
        weights: Weights,
        seed: int,
    ) -> None:
        self._settings = settings
        self._head = spec.head
        self._is_recurrent = bool(spec.state_sizes)
        self._seed = seed
        self._calls = 0
        # Fractions of gradient steps, and timesteps since the last target update; both carry over to the next fragment.
        self._pending_steps = 0.0
        self._since_copy = 0.0
        self.has_first_weights = False
        self._unit = RewardScale()
        self._powers = spec.unit_weights().powers
        # In the order of the spec, because the optimizer state is saved flat.
        ordered = {name: weights[name] for name in spec.weight_shapes() if name != EPSILON}
        self._device = learning_device(settings.num_gpus)
        self._adam = FlatAdam(
            ordered, settings.lr, grad_clip=settings.grad_clip, eps=settings.adam_epsilon, device=self._device
        )
        self._network = spec.torch_network(self._adam.params)
        self._target_params = {name: param.detach().clone() for name, param in self._adam.params.items()}
        self._target = spec.torch_network(self._target_params)
        rows_each = settings.model.max_seq_len if self._in_sequences else 1
        buffer = settings.replay_buffer_config
        if buffer.capacity < rows_each:
            raise ConfigError(
                f"replay_buffer_config: capacity is {buffer.capacity}, expected at least {rows_each}, because a "
                "sequence counts as max_seq_len rows; raise it, or lower max_seq_len"
            )
        self.replay = ReplayBuffer(
            buffer.capacity // rows_each,
            prioritized=buffer.prioritized_replay,
            alpha=buffer.prioritized_replay_alpha,
            beta=buffer.prioritized_replay_beta,
            eps=buffer.prioritized_replay_eps,
        )

    # Callers may be in any gradient mode.
    @torch.inference_mode(False)
    def learn(self, batch: SampleBatch, env_steps: int) -> dict[str, float]:
        settings = self._settings
        self._store(batch)
        self._adam.lr = settings.lr_at(env_steps)
        begun = env_steps >= settings.num_steps_sampled_before_learning_starts
        steps = self._steps_due(batch.count) if begun and self.replay.rows else 0
        means = self.gradient_steps(steps)
        return {
            **means,
            "cur_lr": self._adam.lr,
            **({"skipped_updates": self._adam.skipped} if self._adam.skipped else {}),
            "replay_rows": float(self._rows_kept()),
            "updates": float(steps),
        }

    def gradient_steps(self, count: int) -> dict[str, float]:
        """Make `count` gradient steps on samples from the buffer."""
        # A function of seed and call number alone, so that resumed runs sample identically.
        rng = np.random.default_rng((self._seed, self._calls))
        self._calls += 1
        size = self._entries_of_a_step()
        if not count:
            return {}
        self._renew_unit()
        with repeatable(self._device):
            done = [self._step(self._sample(size, rng)) for _ in range(count)]
        stats = dict(zip(self._statistics, torch.stack(done).mean(0).tolist(), strict=True))
        return {name: value * self._unit.unit ** self._statistics[name] for name, value in stats.items()}

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        return self._converted(self._adam.weights(), self._unit.unit)

    def set_weights(self, weights: Weights) -> None:
        """Copy `weights` into both networks; the state of the optimizer and the buffer stay."""
        own = {name: value for name, value in weights.items() if name != EPSILON}
        self._adam.set_weights(self._converted(own, 1.0 / self._unit.unit))
        self.has_first_weights = False
        self._copy_to_target()

    def take(self, weights: Weights) -> None:
        """Copy weights of shared layers that another policy has trained; the target network stays."""
        self._adam.take(weights)

    def state(self) -> dict[str, Column]:
        return {
            **self._adam.state(),
            **{_TARGET + name: array_of(param).copy() for name, param in self._target_params.items()},
            **{_REPLAY + name: column for name, column in self.replay.state().items()},
            "calls": np.array(self._calls, np.int64),
            "owed": np.array(self._pending_steps),
            "since_copy": np.array(self._since_copy),
            **self._unit.state(),
            "has_first_weights": np.array(self.has_first_weights),
        }

    def check_state(self, state: Mapping[str, Column]) -> None:
        """Refuse a state that `set_state` could not restore; nothing changes."""
        self._adam.check_state(state)
        self.replay.check_state(replayed(state))
        if "reward_unit" in state:
            self._unit.check_state(state)
        check_stored(LEARNERS, "calls", state["calls"])
        check_stored(LEARNERS, "owed", state["owed"], "f", -1, 1)
        check_stored(LEARNERS, "since_copy", state["since_copy"], "f", -1)
        taken = column_of(replayed(state), "actions")
        if taken is not None and self._head.choices:
            check_stored(LEARNERS, "replay.column.actions", taken, most=max(self._head.sizes) - 1)

    def set_state(self, state: Mapping[str, Column]) -> None:
        self._adam.set_state(state)
        self.replay.set_state(replayed(state))
        for name, param in self._target_params.items():
            param.copy_(torch.from_numpy(np.array(state[_TARGET + name], np.float32)))
        if "reward_unit" in state:
            before = self._unit.unit
            self._unit.set_state(state)
            self._rescale(self._adam.params, before / self._unit.unit)
            self.has_first_weights = bool(state["has_first_weights"])
        self._calls = int(state["calls"])
        self._pending_steps, self._since_copy = float(state["owed"]), float(state["since_copy"])

    def _store(self, batch: SampleBatch) -> None:
        if batch.count:
            columns = self._columns(batch)
            returns = columns["returns"][columns["valid"]] if "valid" in columns else columns["returns"]
            self._unit.follow(returns, self._settings.replay_buffer_config.capacity)
            self.replay.add(columns)

    def _knee(self) -> float | None:
        return self._unit.span if self._settings.td_error_loss_fn == "huber" else None

    def _renew_unit(self) -> None:
        before = self._unit.unit
        if not self._powers or not self._unit.renew():
            return
        if not self.has_first_weights:
            for params in (self._adam.params, self._target_params):
                self._rescale(params, before / self._unit.unit)
        self.has_first_weights = False

    @torch.no_grad()
    def _rescale(self, params: Mapping[str, Tensor], factor: float) -> None:
        for name, power in self._powers.items():
            params[name].mul_(factor**power)

    def _converted(self, weights: Weights, factor: float) -> dict[str, npt.NDArray[np.float32]]:
        return {
            name: np.asarray(value * np.float32(factor ** self._powers[name]), np.float32)
            if name in self._powers and factor != 1.0 else value
            for name, value in weights.items()
        }  # fmt: skip

    def _rows_kept(self) -> int:
        return self.replay.rows

    def _entries_of_a_step(self) -> int:
        return self._settings.train_batch_size

    def _columns(self, batch: SampleBatch) -> dict[str, Column]:
        """Return the columns [N, ...] of a batch that `_terms` reads."""
        found = transitions(batch, self._settings.gamma, self._settings.target_steps())
        columns: dict[str, Column] = {
            "obs": obs_column(batch["obs"]),
            "actions": np.asarray(batch["actions"], self._head.action_dtype),
            "returns": found.returns,
            "discounts": found.discounts,
            "next_obs": obs_column(found.next_obs),
        }
        if found.next_mask is not None:
            columns["next_mask"] = found.next_mask
        return columns

    def _steps_due(self, rows: int) -> int:
        self._pending_steps += rows * self._settings.training_intensity / self._settings.train_batch_size
        steps = int(self._pending_steps + _ROUNDING)
        self._pending_steps -= steps
        return steps

    def _step(self, sample: ReplaySample) -> Tensor:
        rows = {name: tensor_of(column, self._device) for name, column in sample.columns.items()}
        rows["returns"] = rows["returns"] / self._unit.unit
        prioritized = self._settings.replay_buffer_config.prioritized_replay
        terms = self._terms(rows, tensor_of(sample.weights, self._device) if prioritized else None)
        torch.autograd.backward(terms.loss)
        norm = self._adam.step(sound=math.isfinite(terms.loss.item()))
        errors = array_of(terms.td_errors)
        # Rows with a non-finite error teach nothing.
        self.replay.update_priorities(sample.indices, np.where(np.isfinite(errors), errors, 0.0))
        self._follow()
        means = terms.loss.detach(), terms.q_taken.mean(), terms.td_errors.abs().mean(), norm
        return torch.stack((*means, *terms.others))

    def _sample(self, count: int, rng: np.random.Generator) -> ReplaySample:
        return self.replay.sample(count, rng)

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> TDTerms:
        """Return the loss of sampled columns [B, ...] with importance weights [B], in the unit of the Q-values."""
        raise NotImplementedError

    def _follow(self) -> None:
        """Move the target network: softly with `tau`, else by a copy if one is due."""
        if self._settings.tau is None:
            self._count_towards_copy()
            return
        with torch.no_grad():
            for name, param in self._target_params.items():
                param.lerp_(self._adam.params[name], self._settings.tau)

    def _count_towards_copy(self) -> None:
        # Each step counts its share of timesteps, so that long fragments do not use one old target throughout.
        self._since_copy += self._settings.train_batch_size / self._settings.training_intensity
        frequency = self._settings.copy_freq
        copies = int(self._since_copy / frequency + _ROUNDING)
        if copies:
            self._since_copy -= copies * frequency
            self._copy_to_target()

    @torch.no_grad()
    def _copy_to_target(self) -> None:
        for name, param in self._target_params.items():
            param.copy_(self._adam.params[name])


class TDTerms(NamedTuple):
    """The mean loss, and for each row [B] the Q-value of the action taken and the TD error, both without a gradient.

    `others` are more statistics, scalars without a gradient.
    """

    loss: Tensor
    q_taken: Tensor
    td_errors: Tensor
    others: tuple[Tensor, ...] = ()


def td_loss(
    q_taken: Tensor, targets: Tensor, weights: Tensor | None, knee: float | None, gaps: Tensor | None = None
) -> TDTerms:
    """Return the loss for the Q-values [B] of the actions taken.

    It is half the squared error of each row, linear beyond `knee` (Huber); a `knee` of None means squared errors
    throughout. The importance weights [B] are None for equal ones; `gaps` [B] are added to the losses of the rows.
    """
    if knee is None:
        losses = 0.5 * torch.nn.functional.mse_loss(q_taken, targets, reduction="none")
    else:
        losses = torch.nn.functional.huber_loss(q_taken, targets, reduction="none", delta=knee)
    if gaps is not None:
        losses = losses + gaps
    loss = losses.mean() if weights is None else (weights * losses).mean()
    return TDTerms(loss, q_taken.detach(), q_taken.detach() - targets)


class Transitions(NamedTuple):
    """n-step transitions: the target of an action is `returns + discounts * max Q(next_obs)`.

    Attributes:
        returns: [N] float32 sums of up to n discounted rewards.
        discounts: [N] float32 gamma to the number of rewards, 0 after a termination.
        next_obs: [N, F] the observation after the rewards.
        next_mask: [N, M] choices that are allowed there, or None.
        after: [N] one more than the row of the last reward.
    """

    returns: npt.NDArray[np.float32]
    discounts: npt.NDArray[np.float32]
    next_obs: Column
    next_mask: Column | None
    after: Column


def transitions(batch: SampleBatch, gamma: float, n: int) -> Transitions:
    """Return the n-step transitions of a batch (Sutton 1988; Mnih et al. 2016, equation of section 4.2).

    Timesteps closer than n to the end of their chunk use fewer rewards. Targets bootstrap at truncations and at the
    end of a fragment, not after a termination.
    """
    if n < 1:
        raise ConfigError(f"n_step: n is {n}, expected at least 1; correct n_step")
    segments, count = batch.segments, batch.count
    ends = np.repeat(segments.ends, segments.lengths)
    # [N] the index after the last reward of each return.
    after = np.minimum(np.arange(count) + n, ends)
    steps = after - np.arange(count)
    rewards = np.asarray(batch["rewards"], np.float64)
    returns = rewards.copy()
    for lag in range(1, min(n, int(steps.max(initial=0)))):
        returns[:-lag] += np.where(steps[:-lag] > lag, gamma**lag * rewards[lag:], 0.0)
    discounts = np.where(batch["terminateds"][after - 1], 0.0, gamma**steps)
    at_end = after == ends
    chunk = np.repeat(np.arange(len(segments.lengths)), segments.lengths)[at_end]
    next_obs = _next_rows(batch["obs"], after, at_end, segments.next_obs[chunk])
    masks, next_mask = batch.get(SampleBatch.ACTION_MASK), None
    if masks is not None:
        next_mask = _next_rows(masks, after, at_end, segments.next_mask[chunk])
    # Numbers too large for float32 become infinite; such updates are skipped and reported.
    with np.errstate(over="ignore"):
        return Transitions(
            returns.astype(np.float32), discounts.astype(np.float32), next_obs, next_mask, after
        )


def _next_rows(column: Column, after: Column, at_end: Column, beyond: Column) -> Column:
    found = column.take(np.minimum(after, len(column) - 1), axis=0)
    found[at_end] = beyond
    return found


def replayed(state: Mapping[str, Column]) -> dict[str, Column]:
    """Return the state of the buffer within the state of a learner."""
    return {name.removeprefix(_REPLAY): state[name] for name in state if name.startswith(_REPLAY)}
