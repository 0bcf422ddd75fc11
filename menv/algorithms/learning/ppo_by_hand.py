"""PPO's gradient steps for stock networks of fully connected layers, without autograd.

`ppo_learner` runs whole epochs through it where it can; all other networks and losses of a policy's own go through
autograd, which the tests hold it to. It does not know schedules, seeds or where rows come from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from menv.acting.action_head import ActionHead
from menv.algorithms.learning.flat_adam import FlatAdam
from menv.algorithms.learning.ppo_loss import LossWeights, Minibatch
from menv.algorithms.learning.ppo_slopes import (
    MinibatchColumns,
    loss_terms,
    places,
    policy_slopes,
    value_slopes,
)
from menv.algorithms.networks.mlp_passes import MlpPasses, Workspace, can_pass
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock import LOG_STD, ROLES, StockSpec
from menv.algorithms.torch_device import CPU

_HEADS = ("categorical", "multi_categorical", "gaussian", "mixed")
_SCALARS = 5


class ColumnRows(NamedTuple):
    """All rows of a train batch as `PPOByHand` reads them.

    Attributes:
        obs: [N, F].
        value_obs: [N, C]; obs itself, unless the value network sees something else.
        numbers: [5 + D, N] float32: old_logp, -A_t, least and most log r_t, value targets, old inputs.
        actions: [components, N] as `places` returns them.
        forbidden: [D, N] choices that the mask does not allow, or None.
    """

    obs: Tensor
    value_obs: Tensor
    numbers: Tensor
    actions: Tensor
    forbidden: Tensor | None

    @classmethod
    def of(cls, head: ActionHead, rows: Minibatch) -> ColumnRows:
        """Return the rows of a batch."""
        assert rows.bounds is not None, "the bounds of the ratio are computed once for a batch"
        scalars = (rows.old_logp, -rows.advantages, *rows.bounds.unbind(-1), rows.value_targets)
        return cls(
            obs=rows.obs,
            value_obs=rows.obs if rows.critic_obs is None else rows.critic_obs,
            numbers=torch.cat((torch.stack(scalars), rows.old_inputs.t())),
            actions=places(head, rows.actions),
            forbidden=None if rows.mask is None else ~rows.mask.t().contiguous(),
        )

    def ordered(self, order: Tensor) -> ColumnRows:
        """Return the rows of `order`."""
        obs = self.obs.index_select(0, order)
        forbidden = self.forbidden
        return ColumnRows(
            obs=obs,
            value_obs=obs if self.value_obs is self.obs else self.value_obs.index_select(0, order),
            numbers=self.numbers.index_select(1, order),
            actions=self.actions.index_select(1, order),
            forbidden=None if forbidden is None else forbidden.index_select(1, order),
        )

    def columns(self, part: slice) -> MinibatchColumns:
        """Return some of the rows in columns."""
        numbers = self.numbers[:, part]
        forbidden = None if self.forbidden is None else self.forbidden[:, part]
        old_logp, losses, least, most, targets = numbers[:_SCALARS].unbind(0)
        return MinibatchColumns(
            forbidden=forbidden,
            actions=self.actions[:, part],
            old_logp=old_logp,
            losses=losses,
            least=least,
            most=most,
            targets=targets,
            old_inputs=numbers[_SCALARS:],
        )


class PPOByHand:
    """The gradient steps of one policy.

    Args:
        spec: A network that `can_learn` approves of.
        adam: Its parameters and their optimizer.
        device: Where these are.
    """

    def __init__(self, spec: NetworkSpec, adam: FlatAdam, device: torch.device = CPU) -> None:
        assert isinstance(spec, StockSpec)
        self._head = spec.head
        self._adam = adam
        self._workspace = Workspace(spec, device)
        self._policy, self._value = (MlpPasses(spec, role, adam.params, self._workspace) for role in ROLES)
        log_std = adam.params.get(LOG_STD)
        self._log_std = None if log_std is None else log_std.detach()
        self._by_log_std = None if log_std is None else log_std.grad

    @torch.no_grad()
    def epoch(self, rows: ColumnRows, size: int, weights: LossWeights, report: bool) -> list[Tensor]:
        """Make the gradient steps of one pass over rows that are in order.

        Args:
            rows: As from `ColumnRows.ordered`.
            size: Rows of a minibatch; the last one has what is left.
            weights: Coefficients of the loss.
            report: Whether statistics are wanted.

        Returns:
            [6] for each step the terms of the loss and the gradient's norm, if they are wanted.
        """
        found = []
        for start in range(0, len(rows.obs), size):
            part = slice(start, start + size)
            terms = self._backward(rows, part, weights, report)
            norm = self._adam.step()
            if report:
                found.append(torch.stack((*terms, norm)))
        return found

    def free(self) -> None:
        """Give back the memory that epochs took; the next one takes it anew."""
        self._workspace.free()

    def _backward(
        self, rows: ColumnRows, part: slice, weights: LossWeights, report: bool
    ) -> tuple[Tensor, ...]:
        columns = rows.columns(part)
        # One network after the other, for both use the same memory.
        obs = rows.obs[part]
        policy = policy_slopes(
            self._head, weights, columns, self._policy.forward(obs), self._log_std, report=report
        )
        self._policy.backward(obs, policy.outputs)
        if self._by_log_std is not None and policy.log_std is not None:
            self._by_log_std.copy_(policy.log_std)
        seen = rows.value_obs[part]
        by_values, errors = value_slopes(weights, columns, self._value.forward(seen)[0])
        self._value.backward(seen, by_values[None])
        return loss_terms(weights, policy.terms, errors) if report else ()


def can_learn(spec: NetworkSpec) -> bool:
    """Return whether `PPOByHand` can train a network."""
    return can_pass(spec) and spec.head.kind in _HEADS
