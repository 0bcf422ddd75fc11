"""DQNLearner: the loss of Q-learning on samples from a replay buffer, and `RecurrentDQNLearner`, that on sequences.

The weights that they publish include epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms.networks.network_spec import NetworkSpec, obs_column
from menv.algorithms.off_policy.config import OffPolicyConfig
from menv.algorithms.off_policy.learner import ReplayLearner, TDTerms, replayed, td_loss, transitions
from menv.algorithms.off_policy.replay_buffer import column_of
from menv.algorithms.recipe import Weights
from menv.algorithms.training.sequences import Sequences, sequences_at, state_before
from menv.base_env import Column
from menv.errors import ConfigError
from menv.inference.heads.head import ILLEGAL
from menv.inference.heads.q_values import EPSILON
from menv.sample_batch import SampleBatch

_ETA = 0.9
"""Weight of the largest error of a sequence in its priority; the mean has the rest (eta of R2D2, section 2.3)."""


class DQNLearner(ReplayLearner):
    """Learns Q-values of choices."""

    _settings: OffPolicyConfig

    def __init__(self, spec: NetworkSpec, settings: OffPolicyConfig, weights: Weights, seed: int) -> None:
        super().__init__(spec, settings, weights, seed)
        self._epsilon = float(weights[EPSILON][0])

    def learn(self, batch: SampleBatch, env_steps: int) -> dict[str, float]:
        self._epsilon = self._settings.epsilon_at(env_steps)
        return {**super().learn(batch, env_steps), "epsilon": self._epsilon}

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        return {**super().weights(), EPSILON: np.array([self._epsilon], np.float32)}

    def set_weights(self, weights: Weights) -> None:
        super().set_weights(weights)
        if EPSILON in weights:
            self._epsilon = float(weights[EPSILON][0])

    def _columns(self, batch: SampleBatch) -> dict[str, Column]:
        columns = super()._columns(batch)
        # A restored buffer keeps the columns that it has.
        if "next_mask" in columns and (
            self.replay.has("mask") if self.replay.rows else self._settings.conservatism
        ):
            columns["mask"] = batch[SampleBatch.ACTION_MASK]
        return columns

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> TDTerms:
        """Return the loss of sampled columns [B, ...] with importance weights [B], in the unit of the Q-values."""
        next_obs, allowed = rows["next_obs"], rows.get("next_mask")
        with torch.no_grad():
            target_next = self._target.dist_inputs(next_obs, allowed)
            online_next = self._network.dist_inputs(next_obs, allowed) if self._settings.double_q else None
            targets = td_targets(rows["returns"], rows["discounts"], target_next, online_next)
        q_values = self._network.dist_inputs(rows["obs"], None)
        gaps = self._gaps(q_values, rows["actions"], rows.get("mask"))
        return dqn_loss(q_values, rows["actions"], targets, weights, self._knee(), gaps)

    def _gaps(self, q_values: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor | None:
        alpha = self._settings.conservatism
        return alpha * conservative_gaps(q_values, actions, mask) if alpha else None


def td_targets(returns: Tensor, discounts: Tensor, target_next: Tensor, online_next: Tensor | None) -> Tensor:
    """Return targets [B] from returns, discounts (0 after a termination) and masked Q-values [B, n] of next_obs."""
    return returns + discounts * best_value(target_next, online_next)


def best_value(target_next: Tensor, online_next: Tensor | None) -> Tensor:
    """Return the highest target Q-value or, with `online_next`, the one of the action that network prefers."""
    if online_next is None:
        return target_next.amax(-1)
    return target_next.gather(-1, online_next.argmax(-1, keepdim=True))[..., 0]


def dqn_loss(
    q_values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None, knee: float | None = 1.0,
    gaps: Tensor | None = None,
) -> TDTerms:  # fmt: skip
    """Return the Huber loss (Mnih et al. 2015): half the squared error of each row, linear beyond `knee`.

    q_values [B, n], actions [B] int64, targets [B] without a gradient, importance weights [B] or None for equal ones;
    a `knee` of None means squared errors throughout; `gaps` [B] are added to the losses of the rows.
    """
    return td_loss(q_values.gather(1, actions[:, None])[:, 0], targets, weights, knee, gaps)


def conservative_gaps(q_values: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
    """Return how far the log-sum-exp of allowed Q-values [..., n] is above that of actions [...] (Kumar et al. 2020).

    It is the term of CQL(H), equation 4 of "Conservative Q-learning for offline reinforcement learning".
    """
    allowed = q_values if mask is None else torch.where(mask, q_values, ILLEGAL)
    return allowed.logsumexp(-1) - q_values.gather(-1, actions[..., None])[..., 0]


class RecurrentDQNLearner(DQNLearner):
    """A `DQNLearner` whose buffer holds sequences of at most `max_seq_len` timesteps, for recurrent policies.

    As in R2D2 (Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 3)
    the buffer stores the recurrent state before each sequence. Targets end at the sequence. The first `replay_burn_in`
    timesteps of a sequence warm up the state and are not `valid`, unless an episode begins there.
    """

    _in_sequences = True

    def check_state(self, state: Mapping[str, Column]) -> None:
        valid, own = column_of(replayed(state), "valid"), self._settings.model.max_seq_len
        if valid is not None and valid.shape[1] != own:
            raise ConfigError(
                f"replay buffer: sequences of {valid.shape[1]} rows, expected {own}, which is max_seq_len; keep "
                "max_seq_len unchanged"
            )
        super().check_state(state)

    def _rows_kept(self) -> int:
        return int(np.count_nonzero(self.replay.kept("valid"))) if self.replay.rows else 0

    def _entries_of_a_step(self) -> int:
        each = self._rows_kept() / max(1, self.replay.rows)
        return max(1, round(self._settings.train_batch_size / max(1.0, each)))

    def _columns(self, batch: SampleBatch) -> dict[str, Column]:
        """Return the columns [B, ...] of a batch, for B sequences.

        obs and next_mask [B, T + 1] include the timestep after the last one; `after` [B, T] is the index at which the
        target of each timestep bootstraps; `valid` [B, T] marks timesteps to learn from.
        """
        most, burn_in = self._settings.model.max_seq_len, self._settings.replay_buffer_config.replay_burn_in
        # Each row is learned from in one piece, and a sequence is a piece and the rows before it that warm up.
        chunks = batch.in_pieces(most - burn_in, burn_in)
        starts, lengths = chunks.segments.starts, chunks.segments.lengths
        before = np.where(np.isin(starts, batch.segments.starts), 0, burn_in)
        split = sequences_at(starts - before, lengths + before, most)
        warms_up = np.arange(most) < np.where(batch["t"][split.starts] == 0, 0, burn_in)[:, None]
        found = transitions(chunks, self._settings.gamma, self._settings.target_steps())
        rows, lengths, valid = split.rows, split.lengths, split.valid & ~warms_up
        after = np.minimum(np.arange(most) + self._settings.target_steps(), lengths[:, None])
        columns: dict[str, Column] = {
            "obs": _with_next(obs_column(batch["obs"]), split, chunks.segments.next_obs),
            "actions": np.asarray(batch["actions"], np.int64)[rows],
            "returns": found.returns[rows],
            "discounts": found.discounts[rows],
            "after": np.where(valid, after, 0),
            "valid": valid,
        }
        if self._is_recurrent:
            columns["state"] = state_before(batch, split.starts)
        mask = batch.get(SampleBatch.ACTION_MASK)
        if mask is not None:
            columns["next_mask"] = _with_next(mask, split, chunks.segments.next_mask)
        teaches = valid.any(1)
        return columns if teaches.all() else {name: column[teaches] for name, column in columns.items()}

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> TDTerms:
        obs, state, valid, after = rows["obs"], rows["state"], rows["valid"], rows["after"]
        mask = rows.get("next_mask")
        shape, steps = obs.shape[:2], obs.flatten(0, 1)
        allowed = None if mask is None else mask.flatten(0, 1)
        q_values = self._network.dist_inputs(steps, None, state)
        with torch.no_grad():
            target = self._target.dist_inputs(steps, allowed, state)
            online = q_values if allowed is None else torch.where(allowed, q_values, ILLEGAL)
            # [M] indices of the next observations among the [B * (T + 1)] timesteps.
            number = torch.arange(len(obs), device=obs.device)[:, None].expand_as(after)[valid]
            next_index = number * shape[1] + after[valid]
            targets = td_targets(
                rows["returns"][valid], rows["discounts"][valid], target[next_index],
                online[next_index] if self._settings.double_q else None,
            )  # fmt: skip
        own = q_values.reshape(*shape, -1)[:, :-1][valid]
        each = None if weights is None else weights[number]
        gaps = self._gaps(own, rows["actions"][valid], None if mask is None else mask[:, :-1][valid])
        terms = dqn_loss(own, rows["actions"][valid], targets, each, self._knee(), gaps)
        return terms._replace(td_errors=sequence_priorities(terms.td_errors.abs(), valid))


def _with_next(column: Column, split: Sequences, beyond: Column) -> Column:
    """Return a column in sequences [B, T + 1, ...], each followed by its row of `beyond`."""
    out = np.concatenate((column[split.rows], column[split.rows[:, -1:]]), 1)
    out[np.arange(len(out)), split.lengths] = beyond
    return out


def sequence_priorities(errors: Tensor, valid: Tensor) -> Tensor:
    """Return the priorities of sequences [B] from the errors of their timesteps [M]."""
    laid_out = errors.new_zeros(valid.shape)
    laid_out[valid] = errors
    mean = laid_out.sum(1) / valid.sum(1)
    return _ETA * laid_out.amax(1) + (1.0 - _ETA) * mean
