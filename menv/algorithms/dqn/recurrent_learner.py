"""RecurrentDQNLearner: trains a recurrent DQN policy on sequences.

As in R2D2 (Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 3) the
buffer stores the recurrent state before each sequence.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from menv.algorithms.dqn.config import DQNSettings
from menv.algorithms.dqn.learner import (
    DQNLearner,
    DQNTerms,
    Weights,
    dqn_loss,
    replayed,
    td_targets,
    transitions,
)
from menv.algorithms.dqn.replay_buffer import column_of
from menv.algorithms.networks.network_spec import NetworkSpec, obs_column
from menv.algorithms.sequences import Sequences, sequences, state_before
from menv.algorithms.torch_runtime import CPU
from menv.base_env import Column
from menv.errors import ConfigError
from menv.inference.action_heads import ILLEGAL
from menv.sample_batch import SampleBatch

_ETA = 0.9
"""Weight of the largest error of a sequence in its priority; the mean has the rest (eta, section 2.3)."""


class RecurrentDQNLearner(DQNLearner):
    """A `DQNLearner` whose buffer holds sequences of at most `max_seq_len` timesteps; targets end at the sequence."""

    def __init__(
        self,
        spec: NetworkSpec,
        settings: DQNSettings,
        weights: Weights,
        seed: int,
        max_seq_len: int,
        *,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(spec, settings, weights, seed, rows_each=max_seq_len, device=device)
        self._max_seq_len = max_seq_len

    def check_state(self, state: Mapping[str, Column]) -> None:
        """Refuse a state that `set_state` could not restore; nothing changes."""
        valid, own = column_of(replayed(state), "valid"), self._max_seq_len
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
        target of each timestep bootstraps.
        """
        most = self._max_seq_len
        chunks = batch.in_pieces(most)
        split = sequences(chunks.segments.lengths, most, width=most)
        found = transitions(chunks, self._settings.gamma, self._settings.target_steps())
        rows, lengths = split.rows, split.lengths
        after = np.minimum(np.arange(most) + self._settings.target_steps(), lengths[:, None])
        columns: dict[str, Column] = {
            "obs": _with_next(obs_column(batch["obs"]), split, chunks.segments.next_obs),
            "actions": np.asarray(batch["actions"], np.int64)[rows],
            "returns": found.returns[rows],
            "discounts": found.discounts[rows],
            "after": np.where(split.valid, after, 0),
            "valid": split.valid,
            "state": state_before(batch, split.starts),
        }
        mask = batch.get(SampleBatch.ACTION_MASK)
        if mask is not None:
            columns["next_mask"] = _with_next(mask, split, chunks.segments.next_mask)
        return columns

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> DQNTerms:
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
        terms = dqn_loss(own, rows["actions"][valid], targets, each, self._knee())
        return terms._replace(td_errors=_sequence_priorities(terms.td_errors.abs(), valid))


def _with_next(column: Column, split: Sequences, beyond: Column) -> Column:
    """Return a column in sequences [B, T + 1, ...], each followed by its row of `beyond`."""
    out = np.concatenate((column[split.rows], column[split.rows[:, -1:]]), 1)
    out[np.arange(len(out)), split.lengths] = beyond
    return out


def _sequence_priorities(errors: Tensor, valid: Tensor) -> Tensor:
    """Return the priorities of sequences [B] from the errors of their timesteps [M]."""
    laid_out = errors.new_zeros(valid.shape)
    laid_out[valid] = errors
    mean = laid_out.sum(1) / valid.sum(1)
    return _ETA * laid_out.amax(1) + (1.0 - _ETA) * mean
