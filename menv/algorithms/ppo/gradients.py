"""PPO's gradient steps for stock networks of fully connected layers, computed without autograd.

With small minibatches autograd's bookkeeping costs more than the arithmetic; these formulas are about 1.3 times as
fast. `PPOLearner` uses them where it can, and autograd for all other networks and losses; tests compare the two.
Outputs and their gradients are in columns, [D, B], because sums over a few choices are faster down a column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import ROLES, Activation, Layer, Role, StockSpec
from menv.algorithms.networks.torch_runtime import CPU
from menv.algorithms.ppo.loss import LossWeights, Minibatch
from menv.algorithms.training.flat_adam import FlatAdam
from menv.inference.heads.gaussian import LOG_STD
from menv.inference.heads.head import ActionHead, PolicyRows


class PPOGradientStep:
    """The gradient steps of one policy."""

    def __init__(self, spec: NetworkSpec, adam: FlatAdam, device: torch.device = CPU) -> None:
        assert isinstance(spec, StockSpec)
        self._head = spec.head
        self._adam = adam
        self._workspace = Workspace(spec, device)
        self._policy, self._value = (MlpPasses(spec, role, adam.params, self._workspace) for role in ROLES)
        log_std = adam.params.get(LOG_STD)
        self._log_std = None if log_std is None else log_std.detach()
        self._log_std_grad = None if log_std is None else log_std.grad

    @torch.no_grad()
    def epoch(
        self, rows: ColumnRows, order: Tensor, size: int, weights: LossWeights, report: bool
    ) -> list[Tensor]:
        """Make the gradient steps of one epoch; `report` returns loss terms and gradient norm of each step."""
        found = []
        ordered = rows.each(lambda column, axis: column.index_select(axis, order))
        for start in range(0, len(order), size):
            part = ordered.part(start, min(size, len(order) - start))
            terms = self._backward(part, weights, report)
            norm = self._adam.step()
            if report:
                found.append(torch.stack((*terms, norm)))
        return found

    def free(self) -> None:
        """Release the memory until the next epoch."""
        self._workspace.free()

    def _backward(self, rows: ColumnRows, weights: LossWeights, report: bool) -> tuple[Tensor, ...]:
        # One network after the other, because both use the same memory.
        outputs, log_std, terms = self._head.gradients(
            rows.policy, self._policy.forward(rows.obs), self._log_std, weights, report
        )
        self._policy.backward(rows.obs, outputs)
        if self._log_std_grad is not None and log_std is not None:
            self._log_std_grad.copy_(log_std)
        seen = rows.obs if rows.value_obs is None else rows.value_obs
        value_grads, errors = value_gradients(weights, rows, self._value.forward(seen)[0])
        self._value.backward(seen, value_grads[None])
        return loss_terms(weights, terms, errors) if report else ()


def can_learn(spec: object) -> bool:
    """Return whether a network is two separate ones, each of nothing but fully connected layers over numbers."""
    return (
        isinstance(spec, StockSpec)
        and len(spec.trunks) == 2
        and not (spec.cell or spec.conv or spec.pixels or spec.dueling)
        and spec.head.has_gradients
    )


class ColumnRows(NamedTuple):
    """A train batch or a minibatch of N rows as `PPOGradientStep` reads it; see `Minibatch`.

    Attributes:
        obs: [N, F].
        value_obs: [N, C] input of a centralized critic; None if the value network reads obs.
        targets: [N].
        policy: What the action head reads.
    """

    obs: Tensor
    value_obs: Tensor | None
    targets: Tensor
    policy: PolicyRows

    @classmethod
    def of(cls, head: ActionHead, rows: Minibatch) -> ColumnRows:
        assert rows.bounds is not None, "the bounds of the ratio are computed once for a batch"
        least, most = rows.bounds.unbind(-1)
        policy = PolicyRows(
            None if rows.mask is None else ~rows.mask.t(), head.action_columns(rows.actions), rows.old_logp,
            -rows.advantages, least, most, rows.old_inputs.t(), None if rows.magnet is None else rows.magnet.t(),
        )  # fmt: skip
        return cls(rows.obs, rows.critic_obs, rows.value_targets, policy)

    def each(self, change: Callable[[Tensor, int], Tensor]) -> ColumnRows:
        """Return the rows with `change(column, axis)` of every column, where `axis` counts the rows."""
        value_obs = None if self.value_obs is None else change(self.value_obs, 0)
        policy: list[Any] = [None if column is None else change(column, -1) for column in self.policy]
        return ColumnRows(change(self.obs, 0), value_obs, change(self.targets, 0), PolicyRows(*policy))

    def part(self, start: int, count: int) -> ColumnRows:
        """Return `count` rows from `start` on, without copies."""
        return self.each(lambda column, axis: column.narrow(axis, start, count))


def value_gradients(weights: LossWeights, rows: ColumnRows, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of vf_loss_coeff * vf_loss for `values` [B], and the errors V - V_target [B]."""
    errors = values - rows.targets
    gradients = errors * (2.0 * weights.vf_loss_coeff / len(errors))
    if weights.vf_clip_param is not None:
        gradients *= errors.square() <= weights.vf_clip_param
    return gradients, errors


def loss_terms(weights: LossWeights, policy: tuple[Tensor, ...], errors: Tensor) -> tuple[Tensor, ...]:
    """Return the fields of `LossTerms` from the terms of the policy and the value errors [B]."""
    policy_loss, entropy, kl, *magnet_kl = policy
    squares = errors.square()
    limit = weights.vf_clip_param
    vf_loss = (squares if limit is None else squares.clamp_(max=limit)).mean()
    total = policy_loss + weights.vf_loss_coeff * vf_loss
    # Terms with a weight of 0 may be infinite.
    if weights.entropy_coeff:
        total = total - weights.entropy_coeff * entropy
    if weights.kl_coeff:
        total = total + weights.kl_coeff * kl
    for one in magnet_kl:
        total = total + weights.magnet_coeff * one
    return total, policy_loss, vf_loss, entropy, kl, *magnet_kl


_aten = torch.ops.aten


def _tanh(x: Tensor, out: Tensor) -> None:
    # numpy takes a sixth of the time of torch on the CPU, with the same accuracy.
    if x.is_cpu:
        np.tanh(x.numpy(), out=out.numpy())
    else:
        torch.tanh(x, out=out)


FORWARD: dict[Activation, Callable[[Tensor, Tensor], object]] = {
    "tanh": _tanh,
    "relu": lambda x, out: torch.clamp_min(x, 0.0, out=out),
    "silu": lambda x, out: _aten.silu.out(x, out=out),
    "elu": lambda x, out: _aten.elu.out(x, out=out),
}
"""Activations of inputs, written into the second argument."""

BACKWARD: dict[Activation, Callable[[Tensor, Tensor, Tensor], object]] = {
    "tanh": lambda grad, _, out: _aten.tanh_backward.grad_input(grad, out, grad_input=grad),
    "relu": lambda grad, _, out: _aten.threshold_backward.grad_input(grad, out, 0.0, grad_input=grad),
    "silu": lambda grad, x, _: _aten.silu_backward.grad_input(grad, x, grad_input=grad),
    "elu": lambda grad, _, out: _aten.elu_backward.grad_input(
        grad, 1.0, 1.0, 1.0, True, out, grad_input=grad
    ),
}
"""Their gradients, in place of the first argument, from the inputs and the outputs."""

_KEEPS_INPUTS = ("silu",)
"""Activations whose gradient reads the inputs; the outputs of others overwrite them."""


class Workspace:
    """Memory that networks of equal widths use one after the other, so that it stays in the cache."""

    def __init__(self, spec: StockSpec, device: torch.device = CPU) -> None:
        self._spec = spec
        self._device = device
        self._blocks: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def blocks(self, rows: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return inputs, outputs and gradients of each hidden activation, [rows, width], the same until `free`."""
        if rows not in self._blocks:
            self._blocks[rows] = [self._block(rows, width) for width in self._spec.hiddens]
        return self._blocks[rows]

    def free(self) -> None:
        """Release the memory until the next pass."""
        self._blocks.clear()

    def _block(self, rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        size, where = (rows, width), self._device
        before, gradient = (torch.empty(size, device=where, dtype=torch.float32) for _ in range(2))
        keeps_inputs = self._spec.activation in _KEEPS_INPUTS
        return before, torch.empty_like(before) if keeps_inputs else before, gradient


def _affine(params: Mapping[str, Tensor], layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weight [in, out] and bias [out] of a layer, and the tensors of their gradients."""
    weight, bias = params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]
    weight_grad, bias_grad = weight.grad, bias.grad
    assert weight_grad is not None, "parameters of an optimizer have gradients"
    assert bias_grad is not None, "parameters of an optimizer have gradients"
    return weight.detach(), bias.detach(), weight_grad, bias_grad


class MlpPasses:
    """Forward and backward passes of one network of a spec, over parameters that have gradients."""

    def __init__(
        self, spec: StockSpec, role: Role, params: Mapping[str, Tensor], workspace: Workspace
    ) -> None:
        self._hidden = [_affine(params, layer) for layer in spec.hidden_layers(role)]
        self._out = _affine(params, spec.out_layer(role))
        self._out_grad = self._out[0].new_empty(self._out[0].shape[::-1])
        self._workspace = workspace
        self._activate = FORWARD.get(spec.activation)
        self._deactivate = BACKWARD.get(spec.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [D, N] for inputs [N, F]."""
        layers = zip(self._hidden, self._workspace.blocks(len(x)), strict=True)
        for (weight, bias, *_), (before, after, _) in layers:
            torch.addmm(bias, x, weight, out=before)
            if self._activate is not None:
                self._activate(before, after)
            x = after
        # A product that writes into columns takes three times as long on some processors.
        return torch.addmm(self._out[1], x, self._out[0]).t().contiguous()

    def backward(self, x: Tensor, output_grads: Tensor) -> None:
        """Write the gradients of all weights, from the inputs [N, F] and the gradients of the outputs [D, N]."""
        blocks = self._workspace.blocks(len(x))
        above, _, weight_grad, bias_grad = self._out
        # For these shapes the product is several times faster with its result transposed.
        torch.mm(output_grads, blocks[-1][1] if blocks else x, out=self._out_grad)
        weight_grad.copy_(self._out_grad.t())
        torch.sum(output_grads, 1, out=bias_grad)
        after_grads = output_grads.t()
        for number in reversed(range(len(blocks))):
            before, after, gradient = blocks[number]
            weight, _, weight_grad, bias_grad = self._hidden[number]
            torch.mm(after_grads, above.t(), out=gradient)
            if self._deactivate is not None:
                self._deactivate(gradient, before, after)
            torch.mm((blocks[number - 1][1] if number else x).t(), gradient, out=weight_grad)
            torch.sum(gradient, 0, out=bias_grad)
            after_grads, above = gradient, weight
