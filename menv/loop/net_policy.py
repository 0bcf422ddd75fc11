"""One policy of a cohort, by itself: the object that `get_policy` returns.

It answers through the same preprocessor, back-end and action output as the sampler. It holds no
weights; they are in the cohort's back-end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from menv import draws
from menv.errors import ContractError
from menv.loop.cohort import NetCohort
from menv.policy import Policy
from menv.spaces import OutsideSpaceError


class NetPolicy(Policy):
    """A view of one policy of a `NetCohort`."""

    def __init__(
        self, cohort: NetCohort, index: int, config: Mapping[str, Any] | None = None, seed: int = 0
    ) -> None:
        """Look at policy number `index`; `seed` is for draws outside the sampler."""
        super().__init__(cohort.observation_space, cohort.action_space, config)
        self.policy_id = cohort.policy_ids[index]
        self._cohort = cohort
        self._index = index
        self._key = draws.key(seed, draws.stable_hash(self.policy_id))
        self._calls = 0

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
        """Return `(actions, states, fetches)`; see `Policy.compute_actions`.

        Raises:
            ContractError: An observation is outside the policy's space.
        """
        obs, mask = self._rows(obs_batch)
        actions = self._choose(obs, mask, explore is not False)
        logp = self._cohort.backend.evaluate(self._index, obs, mask, actions).logp
        return self._cohort.output(actions), [], {"action_logp": logp}

    def act(self, obs: Any, *, explore: bool = False) -> Any:
        """Return the action for one observation, the most likely one unless `explore`."""
        rows, mask = self._rows([obs])
        return self._cohort.output(self._choose(rows, mask, explore))[0]

    def get_weights(self) -> dict[str, Any]:
        """Return copies of the weights by name."""
        return self._cohort.backend.get_weights(self._index)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy weights in; names and shapes must be those of `get_weights`."""
        self._cohort.backend.set_weights(self._index, weights)

    def _rows(self, obs_batch: Sequence[Any]) -> tuple[Any, Any]:
        """Return the network's rows and masks for R observations."""
        assert self._cohort.preprocess is not None
        try:
            obs, mask = self._cohort.preprocess(obs_batch)
        except OutsideSpaceError as error:
            raise self._outside(error.row, len(obs_batch), error.why) from error
        bad = self._cohort.preprocess.why_bad_row(obs)
        if bad is not None:
            raise self._outside(bad[0], len(obs), bad[1])
        return obs, mask

    def _choose(self, obs: Any, mask: Any, explore: bool) -> Any:
        """Return the network's actions."""
        if explore:
            return self._cohort.backend.act(obs, mask, self._noise(len(obs)), self._index)
        return self._cohort.backend.greedy(obs, mask, self._index)

    def _outside(self, row: int, rows: int, why: str) -> ContractError:
        """Return the error for an observation outside the space."""
        return ContractError(
            f"policy {self.policy_id!r}, observation {row} of {rows}: {why}; "
            "pass observations of policy.observation_space"
        )

    def _noise(self, rows: int) -> Any:
        """Return fresh draws for R rows."""
        self._calls += 1
        keys = np.uint64(self._key) + np.arange(rows, dtype=np.uint64)
        noise = self._cohort.noise
        return noise.draw(keys, np.full(rows, self._calls, np.int64), noise.width)
