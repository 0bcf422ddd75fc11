"""DrawingPolicy: what policies have in common that never learn and answer by draws alone.

`RandomPolicy` and the heuristics of `menv.envs` derive from it and define `answer`. It knows no action spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from menv import draws
from menv.policy import Policy, RowDraws


class DrawingPolicy(Policy):
    """A policy whose `answer` needs no more than observations, draws and episodes.

    Whoever asks it without a sampler gets draws that depend on `config["seed"]` and the number of calls.
    """

    def compute_actions(
        self,
        obs_batch: Sequence[Any],
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return what `answer` does with draws of this call; see `Policy.compute_actions`."""
        self._calls = getattr(self, "_calls", -1) + 1
        rows = len(obs_batch)
        keys = np.arange(rows, dtype=np.uint64) + np.uint64(draws.key(int(self.config.get("seed", 0)), 0))
        row_draws = RowDraws(keys, np.full(rows, self._calls, np.int64))
        return self.answer(obs_batch, row_draws, explore, episodes or ()), [], {}
