"""QMIXLearner: trains the policy of a group like DQN, on the group's Q-value of all members' actions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from menv.algorithms.dqn.config import DQNSettings
from menv.algorithms.dqn.learner import DQNLearner, DQNTerms, Weights, best_value, td_loss
from menv.algorithms.qmix.network import GroupSpec
from menv.algorithms.torch_runtime import CPU


class QMIXLearner(DQNLearner):
    """A `DQNLearner` whose online and target networks mix the Q-values of a group."""

    def __init__(
        self,
        spec: GroupSpec,
        settings: DQNSettings,
        weights: Weights,
        seed: int,
        *,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(spec, settings, weights, seed, device=device)
        self._group = spec.torch_network(self._adam.params)
        self._target_group = spec.torch_network(self._target_params)

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> DQNTerms:
        targets = self.targets(rows)
        taken = self._group.by_member(rows["obs"], None).gather(2, rows["actions"][..., None])[..., 0]
        values = self._group.mixed(taken, rows["obs"])
        if values.ndim == 1:
            return td_loss(values, targets, weights, self._knee())
        # Without a mixer every member has a separate error.
        each = None if weights is None else weights[:, None]
        terms = td_loss(values, targets, each, self._knee())
        return terms._replace(td_errors=terms.td_errors.abs().mean(-1))

    @torch.no_grad()
    def targets(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the targets of the group's Q-values [B], or of each member's [B, C] without a mixer.

        Every member takes its best allowed action in the next observation; because the mixing is monotonic, these
        are the best joint action.
        """
        next_obs, allowed = rows["next_obs"], rows.get("next_mask")
        target_next = self._target_group.by_member(next_obs, allowed)
        online_next = self._group.by_member(next_obs, allowed) if self._settings.double_q else None
        values = self._target_group.mixed(best_value(target_next, online_next), next_obs)
        returns, discounts = rows["returns"], rows["discounts"]
        return (
            returns + discounts * values
            if values.ndim == 1
            else returns[:, None] + discounts[:, None] * values
        )
