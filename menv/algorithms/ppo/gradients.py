"""PPO's gradient steps for stock networks of fully connected layers, computed without autograd.

With small minibatches autograd's bookkeeping costs more than the arithmetic; these formulas are about 1.3 times as
fast. `PPOLearner` uses them where it can, and autograd for all other networks and losses; tests compare the two.
Outputs and their gradients are in columns, [D, B], because sums over a few choices are faster down a column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import LOG_STD, ROLES, Activation, Layer, Role, StockSpec
from menv.algorithms.networks.torch_runtime import CPU, constant
from menv.algorithms.ppo.loss import LossWeights, Minibatch
from menv.algorithms.training.flat_adam import FlatAdam
from menv.inference.action_heads import ILLEGAL, ActionHead

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_NORMAL_ENTROPY = _HALF_LOG_TWO_PI + 0.5
_HEADS = ("categorical", "multi_categorical", "gaussian", "mixed")


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
        """Make the gradient steps of one epoch; `report` returns loss terms and gradient norm [6] of each step."""
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
        outputs, log_std, terms = policy_gradients(
            self._head, weights, rows, self._policy.forward(rows.obs), self._log_std, report=report
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
        and spec.head.kind in _HEADS
    )


class ColumnRows(NamedTuple):
    """A train batch or a minibatch of N rows as `PPOGradientStep` reads it; see `Minibatch`.

    Attributes:
        obs: [N, F].
        value_obs: [N, C] input of a centralized critic; None if the value network reads obs.
        forbidden: [D, N] choices that the mask forbids, or None.
        actions: [columns, N] of `action_columns`.
        old_logp: [N].
        losses: [N] -A_t.
        least: [N] of `clip_bounds`.
        most: [N] of `clip_bounds`.
        targets: [N].
        old_inputs: [D, N] in the standard form of `distributions`.
    """

    obs: Tensor
    value_obs: Tensor | None
    forbidden: Tensor | None
    actions: Tensor
    old_logp: Tensor
    losses: Tensor
    least: Tensor
    most: Tensor
    targets: Tensor
    old_inputs: Tensor

    @classmethod
    def of(cls, head: ActionHead, rows: Minibatch) -> ColumnRows:
        assert rows.bounds is not None, "the bounds of the ratio are computed once for a batch"
        least, most = rows.bounds.unbind(-1)
        return cls(
            rows.obs, rows.critic_obs, None if rows.mask is None else ~rows.mask.t(),
            action_columns(head, rows.actions), rows.old_logp, -rows.advantages, least, most, rows.value_targets,
            rows.old_inputs.t(),
        )  # fmt: skip

    def each(self, change: Callable[[Tensor, int], Tensor]) -> ColumnRows:
        """Return the rows with `change(column, axis)` of every column, where `axis` counts the rows."""
        axes = (0, 0, *[-1] * (len(self) - 2))
        changed: list[Any] = [
            None if column is None else change(column, axis) for column, axis in zip(self, axes, strict=True)
        ]
        return ColumnRows(*changed)

    def part(self, start: int, count: int) -> ColumnRows:
        """Return `count` rows from `start` on, without copies."""
        return self.each(lambda column, axis: column.narrow(axis, start, count))


PolicyGradients: TypeAlias = tuple[Tensor, Tensor | None, tuple[Tensor, ...]]
"""Gradients of the policy's part of the loss: for its outputs [D, B], for log_std [k] (None for discrete actions), and
policy_loss, entropy and kl if they are reported, else ()."""


def policy_gradients(
    head: ActionHead,
    weights: LossWeights,
    rows: ColumnRows,
    outputs: Tensor,
    log_std: Tensor | None,
    *,
    report: bool,
) -> PolicyGradients:
    """Return the gradients of policy_loss - entropy_coeff * entropy + kl_coeff * kl.

    outputs [D, B] come from the policy network before masking, and may be overwritten.
    """
    if log_std is None:
        return _discrete(head, weights, rows, outputs, report)
    if head.parts:
        return _mixed(head, weights, rows, outputs, log_std, report)
    return _gaussian(weights, rows, outputs, log_std, report)


def value_gradients(weights: LossWeights, rows: ColumnRows, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of vf_loss_coeff * vf_loss for `values` [B], and the errors V - V_target [B]."""
    errors = values - rows.targets
    gradients = errors * (2.0 * weights.vf_loss_coeff / len(errors))
    if weights.vf_clip_param is not None:
        gradients *= errors.square() <= weights.vf_clip_param
    return gradients, errors


def loss_terms(weights: LossWeights, policy: tuple[Tensor, ...], errors: Tensor) -> tuple[Tensor, ...]:
    """Return the fields of `LossTerms` from the terms of the policy and the value errors [B]."""
    policy_loss, entropy, kl = policy
    squares = errors.square()
    limit = weights.vf_clip_param
    vf_loss = (squares if limit is None else squares.clamp_(max=limit)).mean()
    total = policy_loss + weights.vf_loss_coeff * vf_loss
    # Terms with a weight of 0 may be infinite.
    if weights.entropy_coeff:
        total = total - weights.entropy_coeff * entropy
    if weights.kl_coeff:
        total = total + weights.kl_coeff * kl
    return total, policy_loss, vf_loss, entropy, kl


def action_columns(head: ActionHead, actions: Tensor) -> Tensor:
    """Return actions [N, ...] as [columns, N]: choices as indices of outputs, numbers unchanged."""
    columns = actions.reshape(len(actions), -1).t()
    if head.kind == "gaussian":
        return columns.contiguous()
    starts = [
        start if size else 0
        for size, start in zip(head.sizes, (0, *itertools.accumulate(head.sizes)), strict=False)
    ]
    return columns + torch.tensor(starts, device=actions.device)[:, None]


def _by_logp(rows: ColumnRows, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each row [B], -r_t A_t, and its gradient for the log-probability, 0 where it is clipped."""
    clipped = log_ratio.clamp(rows.least, rows.most)
    within = clipped == log_ratio
    losses = clipped.exp_().mul_(rows.losses)
    return losses, torch.where(within, losses, 0.0)


def _discrete(
    head: ActionHead, weights: LossWeights, rows: ColumnRows, outputs: Tensor, report: bool
) -> PolicyGradients:
    if rows.forbidden is not None:
        outputs.masked_fill_(rows.forbidden, ILLEGAL)
    sizes = list(head.sizes)
    one = len(sizes) == 1
    logp = _log_chances(sizes, outputs)
    chosen = logp.gather(0, rows.actions)
    losses, logp_grads = _by_logp(rows, (chosen[0] if one else chosen.sum(0)) - rows.old_logp)
    share = 1.0 / len(logp_grads)
    chances = logp.exp()
    terms: tuple[Tensor, ...] = ()
    if report:
        entropy = (chances * logp).sum() * -share
        kl = (rows.old_inputs.exp() * (rows.old_inputs - logp)).sum() * share
        terms = losses.mean(), entropy, kl
    regularizer = _regularizer(sizes, weights, rows, logp, chances)
    less = constant(-1.0, chances.device)
    gradients = chances.scatter_add_(0, rows.actions, less.expand_as(rows.actions)).mul_(
        logp_grads.mul_(-share)
    )
    if regularizer is not None:
        gradients.add_(regularizer, alpha=share)
    if rows.forbidden is not None:
        gradients.masked_fill_(rows.forbidden, 0.0)
    return gradients, None, terms


def _log_chances(sizes: list[int], outputs: Tensor) -> Tensor:
    if len(sizes) == 1:
        return outputs.log_softmax(0)
    return torch.cat([part.log_softmax(0) for part in torch.split(outputs, sizes)])


def _regularizer(
    sizes: list[int], weights: LossWeights, rows: ColumnRows, logp: Tensor, chances: Tensor
) -> Tensor | None:
    """Return the gradients [D, B] of kl_coeff * kl - entropy_coeff * entropy, None if both weights are 0."""
    found: Tensor | None = None
    if weights.entropy_coeff:
        negentropy = [
            part.sum(0, keepdim=True).expand_as(part) for part in torch.split(chances * logp, sizes)
        ]
        found = (logp - torch.cat(negentropy)).mul_(chances).mul_(weights.entropy_coeff)
    if weights.kl_coeff:
        change = (chances - rows.old_inputs.exp()).mul_(weights.kl_coeff)
        found = change if found is None else found.add_(change)
    return found


def _mixed(
    head: ActionHead,
    weights: LossWeights,
    rows: ColumnRows,
    outputs: Tensor,
    log_std: Tensor,
    report: bool,
) -> PolicyGradients:
    choices, numbers = head.parts
    cut = choices.inputs.stop
    logits, means = outputs[:cut], outputs[cut:]
    if rows.forbidden is not None:
        logits.masked_fill_(rows.forbidden, ILLEGAL)
    chosen = rows.actions[torch.from_numpy(choices.columns)].long()
    taken = rows.actions[torch.from_numpy(numbers.columns)]
    scaled = (taken - means).mul_(log_std.neg().exp_()[:, None])
    of_numbers = scaled.square_().sum(0).mul_(-0.5) - (log_std.sum() + len(log_std) * _HALF_LOG_TWO_PI)
    of_choices = _log_chances(list(choices.head.sizes), logits).gather(0, chosen).sum(0)
    # Each part gets the log-probability of the other one, so that both use the ratio of the whole action.
    one = rows._replace(actions=chosen, old_logp=rows.old_logp - of_numbers, old_inputs=rows.old_inputs[:cut])
    other = rows._replace(
        actions=taken, old_logp=rows.old_logp - of_choices, old_inputs=rows.old_inputs[cut:]
    )
    first, _, terms = _discrete(choices.head, weights, one, logits, report)
    second, log_std_grad, others = _gaussian(weights, other, means, log_std, report)
    if report:
        terms = terms[0], terms[1] + others[1], terms[2] + others[2]
    return torch.cat((first, second)), log_std_grad, terms


def _gaussian(
    weights: LossWeights, rows: ColumnRows, means: Tensor, log_std: Tensor, report: bool
) -> PolicyGradients:
    shrink = log_std.neg().exp_()[:, None]
    scaled = (rows.actions - means).mul_(shrink)
    spread = log_std.sum()
    logp = scaled.square().sum(0).mul_(-0.5) - (spread + len(log_std) * _HALF_LOG_TWO_PI)
    losses, logp_grads = _by_logp(rows, logp - rows.old_logp)
    share = 1.0 / len(logp_grads)
    logp_grads *= share
    log_std_grad = torch.mv(scaled.square().sub_(1.0), logp_grads)
    gradients = scaled.mul_(shrink).mul_(logp_grads)
    terms: tuple[Tensor, ...] = ()
    if report or weights.kl_coeff:
        old_means, old_log_std = rows.old_inputs.chunk(2)
        apart = (means - old_means).mul_(shrink)
        # The old variance and the squared distance, in units of the new variance.
        moment = (old_log_std - log_std[:, None]).mul_(2.0).exp_().addcmul_(apart, apart)
        if report:
            kl = (log_std[:, None] - old_log_std + 0.5 * moment - 0.5).sum() * share
            terms = losses.mean(), spread + len(log_std) * _NORMAL_ENTROPY, kl
        if weights.kl_coeff:
            gradients.add_(apart.mul_(shrink), alpha=weights.kl_coeff * share)
            log_std_grad += (1.0 - moment.mean(1)) * weights.kl_coeff
    if weights.entropy_coeff:
        log_std_grad -= weights.entropy_coeff
    return gradients, log_std_grad, terms


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
