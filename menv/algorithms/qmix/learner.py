"""Learning the policy of a group: as DQN does, but by what the members' choices are worth together.

The algorithm's loop calls it as any learner. It knows rows of the whole group, neither environments nor agents.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from menv.algorithms.dqn.config import DQNSettings
from menv.algorithms.dqn.learner import DQNLearner, DQNTerms, Weights, best_worth, td_loss
from menv.algorithms.qmix.network import GroupSpec
from menv.algorithms.torch_runtime import CPU


class QMIXLearner(DQNLearner):
    """A group's network with its mixing network, the target of both, their optimizer and the group's experience.

    Args:
        spec: The network.
        settings: Numbers of the loss, the optimizer, the buffer and the exploration.
        weights: First weights by name; copied.
        seed: Decides which rows are drawn; the same seed and fragments give the same weights.
        device: Where gradient steps are made.
    """

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
        worth = self._group.mixed(taken, rows["obs"])
        if worth.ndim == 1:
            return td_loss(worth, targets, weights, self._knee())
        # Without a mixer every member has an error of its own.
        each = None if weights is None else weights[:, None]
        terms = td_loss(worth, targets, each, self._knee())
        return terms._replace(td_errors=terms.td_errors.abs().mean(-1))

    @torch.no_grad()
    def targets(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Return [B] what the choices taken should be worth to the group, [B, C] each to itself without a mixer.

        Every member's choice in the next observation is the best that it may take. Because the mixing is
        monotonic, these are the best that the group could do.

        Args:
            rows: returns, discounts, next_obs and, where choices are masked, next_mask; [B, ...].
        """
        next_obs, allowed = rows["next_obs"], rows.get("next_mask")
        target_next = self._target_group.by_member(next_obs, allowed)
        online_next = self._group.by_member(next_obs, allowed) if self._settings.double_q else None
        worth = self._target_group.mixed(best_worth(target_next, online_next), next_obs)
        returns, discounts = rows["returns"], rows["discounts"]
        return (
            returns + discounts * worth if worth.ndim == 1 else returns[:, None] + discounts[:, None] * worth
        )
