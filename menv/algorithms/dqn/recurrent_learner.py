"""Learning a DQN policy with a memory: sequences are kept and unrolled from the state that they were played from.

The algorithm's loop calls it as any learner. As in R2D2 (Kapturowski et al. 2019, "Recurrent experience replay in
distributed reinforcement learning", section 3) the state before a sequence is stored with it.
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

_MOST = 0.9
"""How much the largest error of a sequence counts in its priority; the mean has the rest (eta, section 2.3)."""


class RecurrentDQNLearner(DQNLearner):
    """A `DQNLearner` whose buffer holds sequences of at most T rows.

    Targets of n steps stay within a sequence: its last rows count fewer rewards.

    Args:
        spec: The network, recurrent.
        settings: Numbers of the loss, the optimizer, the buffer and the exploration; the batch size counts rows, the
            capacity T for each sequence.
        weights: First weights by name; copied.
        seed: Decides which sequences are drawn.
        max_seq_len: T.
        device: Where gradient steps are made.
    """

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
        """Refuse what `set_state` could not take over; nothing changes.

        Raises:
            ConfigError: The state belongs to another kind of buffer, or its sequences have another length.
        """
        valid, own = column_of(replayed(state), "valid"), self._max_seq_len
        if valid is not None and valid.shape[1] != own:
            raise ConfigError(
                f"replay buffer: sequences of {valid.shape[1]} rows, expected {own}, which is max_seq_len; keep "
                "max_seq_len as it was"
            )
        super().check_state(state)

    def _rows_kept(self) -> int:
        return int(np.count_nonzero(self.replay.kept("valid"))) if self.replay.rows else 0

    def _entries_of_a_step(self) -> int:
        """Return how many sequences hold as many rows as a gradient step shall be made on, in the mean."""
        each = self._rows_kept() / max(1, self.replay.rows)
        return max(1, round(self._settings.train_batch_size / max(1.0, each)))

    def _columns(self, batch: SampleBatch) -> dict[str, Column]:
        """Return what is kept of a batch, [B, ...] for B sequences.

        obs [T + 1] holds the observation after the last row too, `next_mask` likewise; `after` says which of these
        the target of each row relies on.
        """
        most = self._max_seq_len
        pieces = batch.in_pieces(most)
        cut = sequences(pieces.segments.lengths, most, width=most)
        found = transitions(pieces, self._settings.gamma, self._settings.target_steps())
        rows, lengths = cut.rows, cut.lengths
        after = np.minimum(np.arange(most) + self._settings.target_steps(), lengths[:, None])
        columns: dict[str, Column] = {
            "obs": _and_next(obs_column(batch["obs"]), cut, pieces.segments.next_obs),
            "actions": np.asarray(batch["actions"], np.int64)[rows],
            "returns": found.returns[rows],
            "discounts": found.discounts[rows],
            "after": np.where(cut.valid, after, 0),
            "valid": cut.valid,
            "state": state_before(batch, cut.starts),
        }
        mask = batch.get(SampleBatch.ACTION_MASK)
        if mask is not None:
            columns["next_mask"] = _and_next(mask, cut, pieces.segments.next_mask)
        return columns

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> DQNTerms:
        """Return the loss of all rows of the sequences that were drawn, and the error of each sequence."""
        obs, state, valid, after = rows["obs"], rows["state"], rows["valid"], rows["after"]
        mask = rows.get("next_mask")
        shape, steps = obs.shape[:2], obs.flatten(0, 1)
        allowed = None if mask is None else mask.flatten(0, 1)
        q_values = self._network.dist_inputs(steps, None, state)
        with torch.no_grad():
            target = self._target.dist_inputs(steps, allowed, state)
            online = q_values if allowed is None else torch.where(allowed, q_values, ILLEGAL)
            # [M] places of the rows' next observations among the [B * (T + 1)] steps.
            number = torch.arange(len(obs), device=obs.device)[:, None].expand_as(after)[valid]
            behind = number * shape[1] + after[valid]
            targets = td_targets(
                rows["returns"][valid], rows["discounts"][valid], target[behind],
                online[behind] if self._settings.double_q else None,
            )  # fmt: skip
        own = q_values.reshape(*shape, -1)[:, :-1][valid]
        each = None if weights is None else weights[number]
        terms = dqn_loss(own, rows["actions"][valid], targets, each, self._knee())
        return terms._replace(td_errors=_of_each(terms.td_errors.abs(), valid))


def _and_next(column: Column, cut: Sequences, beyond: Column) -> Column:
    """Return a column laid out in sequences, [B, T + 1, ...], with what lies beyond each behind its last row."""
    out = np.concatenate((column[cut.rows], column[cut.rows[:, -1:]]), 1)
    out[np.arange(len(out)), cut.lengths] = beyond
    return out


def _of_each(errors: Tensor, valid: Tensor) -> Tensor:
    """Return the [B] priorities of sequences from the errors [M] of their rows."""
    laid_out = errors.new_zeros(valid.shape)
    laid_out[valid] = errors
    mean = laid_out.sum(1) / valid.sum(1)
    return _MOST * laid_out.amax(1) + (1.0 - _MOST) * mean
