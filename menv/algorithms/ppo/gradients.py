"""PPO's gradient steps for stock networks of fully connected layers, computed without autograd.

With small minibatches autograd's bookkeeping costs more than the arithmetic; these formulas are about 1.3 times as
fast. `PPOLearner` uses them where it can, and autograd for all other networks and losses; tests compare the two.
Outputs and their gradients are in columns, [D, B], because sums over a few choices are faster down a column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from menv.algorithms.flat_adam import FlatAdam
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import LOG_STD, ROLES, Activation, Layer, Role, StockSpec
from menv.algorithms.ppo.loss import LossWeights, Minibatch
from menv.algorithms.torch_runtime import CPU, constant
from menv.inference.action_heads import ILLEGAL, ActionHead

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_NORMAL_ENTROPY = _HALF_LOG_TWO_PI + 0.5


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
    def epoch(self, rows: ColumnRows, size: int, weights: LossWeights, report: bool) -> list[Tensor]:
        """Make the gradient steps of one epoch; `report` returns loss terms and gradient norm [6] of each step."""
        found = []
        for start in range(0, len(rows.obs), size):
            part = slice(start, start + size)
            terms = self._backward(rows, part, weights, report)
            norm = self._adam.step()
            if report:
                found.append(torch.stack((*terms, norm)))
        return found

    def free(self) -> None:
        """Release the memory until the next epoch."""
        self._workspace.free()

    def _backward(
        self, rows: ColumnRows, part: slice, weights: LossWeights, report: bool
    ) -> tuple[Tensor, ...]:
        columns = rows.columns(part)
        # One network after the other, because both use the same memory.
        obs = rows.obs[part]
        policy = policy_gradients(
            self._head, weights, columns, self._policy.forward(obs), self._log_std, report=report
        )
        self._policy.backward(obs, policy.outputs)
        if self._log_std_grad is not None and policy.log_std is not None:
            self._log_std_grad.copy_(policy.log_std)
        seen = rows.value_obs[part]
        value_grads, errors = value_gradients(weights, columns, self._value.forward(seen)[0])
        self._value.backward(seen, value_grads[None])
        return loss_terms(weights, policy.terms, errors) if report else ()


def can_learn(spec: object) -> bool:
    """Return whether a network is two separate ones, each of nothing but fully connected layers over numbers."""
    return (
        isinstance(spec, StockSpec)
        and len(spec.trunks) == 2
        and not (spec.cell or spec.conv or spec.pixels or spec.dueling)
        and spec.head.kind in _HEADS
    )


class ColumnRows(NamedTuple):
    """A train batch as `PPOGradientStep` reads it.

    Attributes:
        obs: [N, F].
        value_obs: [N, C]; obs unless there is a centralized critic.
        numbers: [5 + D, N] float32: old_logp, -A_t, least and most log r_t, value targets, old inputs.
        actions: [columns, N] of `action_columns`.
        forbidden: [D, N] choices that the mask forbids, or None.
    """

    obs: Tensor
    value_obs: Tensor
    numbers: Tensor
    actions: Tensor
    forbidden: Tensor | None

    @classmethod
    def of(cls, head: ActionHead, rows: Minibatch) -> ColumnRows:
        assert rows.bounds is not None, "the bounds of the ratio are computed once for a batch"
        scalars = (rows.old_logp, -rows.advantages, *rows.bounds.unbind(-1), rows.value_targets)
        return cls(
            obs=rows.obs,
            value_obs=rows.obs if rows.critic_obs is None else rows.critic_obs,
            numbers=torch.cat((torch.stack(scalars), rows.old_inputs.t())),
            actions=action_columns(head, rows.actions),
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


class MinibatchColumns(NamedTuple):
    """A minibatch in columns; see `Minibatch`.

    Attributes:
        forbidden: [D, B] choices that the mask forbids, or None.
        actions: [components, B] indices of the chosen outputs, [k, B] numbers, or both.
        old_logp: [B].
        losses: [B] -A_t.
        least: [B] of `clip_bounds`.
        most: [B] of `clip_bounds`.
        targets: [B].
        old_inputs: [D, B] in the standard form of `distributions`.
    """

    forbidden: Tensor | None
    actions: Tensor
    old_logp: Tensor
    losses: Tensor
    least: Tensor
    most: Tensor
    targets: Tensor
    old_inputs: Tensor


class PolicyGradients(NamedTuple):
    """Gradients of the policy's part of the loss.

    Attributes:
        outputs: [D, B] for each output of the policy network.
        log_std: [k]; None for discrete actions.
        terms: policy_loss, entropy and kl if they are reported, else ().
    """

    outputs: Tensor
    log_std: Tensor | None
    terms: tuple[Tensor, ...]


def policy_gradients(
    head: ActionHead,
    weights: LossWeights,
    rows: MinibatchColumns,
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


def value_gradients(weights: LossWeights, rows: MinibatchColumns, values: Tensor) -> tuple[Tensor, Tensor]:
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


def _by_logp(rows: MinibatchColumns, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each row [B], -r_t A_t, and its gradient for the log-probability, 0 where it is clipped."""
    clipped = log_ratio.clamp(rows.least, rows.most)
    within = clipped == log_ratio
    losses = clipped.exp_().mul_(rows.losses)
    return losses, torch.where(within, losses, 0.0)


def _discrete(
    head: ActionHead, weights: LossWeights, rows: MinibatchColumns, outputs: Tensor, report: bool
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
    return PolicyGradients(gradients, None, terms)


def _log_chances(sizes: list[int], outputs: Tensor) -> Tensor:
    """Return [D, B] log-probabilities of all choices."""
    if len(sizes) == 1:
        return outputs.log_softmax(0)
    return torch.cat([part.log_softmax(0) for part in torch.split(outputs, sizes)])


def _regularizer(
    sizes: list[int], weights: LossWeights, rows: MinibatchColumns, logp: Tensor, chances: Tensor
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
    rows: MinibatchColumns,
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
    first = _discrete(choices.head, weights, one, logits, report)
    second = _gaussian(weights, other, means, log_std, report)
    terms: tuple[Tensor, ...] = ()
    if report:
        loss, entropy, kl = first.terms
        terms = loss, entropy + second.terms[1], kl + second.terms[2]
    return PolicyGradients(torch.cat((first.outputs, second.outputs)), second.log_std, terms)


def _gaussian(
    weights: LossWeights, rows: MinibatchColumns, means: Tensor, log_std: Tensor, report: bool
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
    return PolicyGradients(gradients, log_std_grad, terms)


_aten = torch.ops.aten


class ActivationGradient(NamedTuple):
    """An activation: `forward(inputs, out)` and `backward(gradients, inputs, outputs)`, which works in place.

    Without `keeps_inputs`, `backward` does not read the inputs, so outputs may overwrite them.
    """

    forward: Callable[[Tensor, Tensor], object]
    backward: Callable[[Tensor, Tensor, Tensor], object]
    keeps_inputs: bool = False


def _tanh(x: Tensor, out: Tensor) -> None:
    # numpy takes a sixth of the time of torch on the CPU, with the same accuracy.
    if x.is_cpu:
        np.tanh(x.numpy(), out=out.numpy())
    else:
        torch.tanh(x, out=out)


def _relu(x: Tensor, out: Tensor) -> None:
    torch.clamp_min(x, 0.0, out=out)


def _silu(x: Tensor, out: Tensor) -> None:
    _aten.silu.out(x, out=out)


def _elu(x: Tensor, out: Tensor) -> None:
    _aten.elu.out(x, out=out)


def _tanh_backward(gradient: Tensor, _: Tensor, out: Tensor) -> None:
    _aten.tanh_backward.grad_input(gradient, out, grad_input=gradient)


def _relu_backward(gradient: Tensor, _: Tensor, out: Tensor) -> None:
    _aten.threshold_backward.grad_input(gradient, out, 0.0, grad_input=gradient)


def _silu_backward(gradient: Tensor, x: Tensor, _: Tensor) -> None:
    _aten.silu_backward.grad_input(gradient, x, grad_input=gradient)


def _elu_backward(gradient: Tensor, _: Tensor, out: Tensor) -> None:
    _aten.elu_backward.grad_input(gradient, 1.0, 1.0, 1.0, True, out, grad_input=gradient)


ACTIVATION_GRADIENTS: dict[Activation, ActivationGradient] = {
    "tanh": ActivationGradient(_tanh, _tanh_backward),
    "relu": ActivationGradient(_relu, _relu_backward),
    "silu": ActivationGradient(_silu, _silu_backward, keeps_inputs=True),
    "elu": ActivationGradient(_elu, _elu_backward),
}


class _Affine(NamedTuple):
    """Weight [in, out] and bias [out] of a layer, and the tensors of their gradients."""

    weight: Tensor
    bias: Tensor
    weight_grad: Tensor
    bias_grad: Tensor

    @classmethod
    def of(cls, params: Mapping[str, Tensor], layer: Layer) -> _Affine:
        weight, bias = params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]
        weight_grad, bias_grad = weight.grad, bias.grad
        assert weight_grad is not None, "parameters of an optimizer have gradients"
        assert bias_grad is not None, "parameters of an optimizer have gradients"
        return cls(weight.detach(), bias.detach(), weight_grad, bias_grad)


class _LayerBlock(NamedTuple):
    """Memory of one hidden layer, [N, width] each: inputs, outputs and gradients of its activation."""

    before: Tensor
    after: Tensor
    gradient: Tensor


class Workspace:
    """Memory that networks of equal widths use one after the other, so that it stays in the cache."""

    def __init__(self, spec: StockSpec, device: torch.device = CPU) -> None:
        self._widths = spec.hiddens
        self._device = device
        self.activation: ActivationGradient | None = ACTIVATION_GRADIENTS.get(spec.activation)
        self._blocks: dict[int, Sequence[_LayerBlock]] = {}

    def blocks(self, rows: int) -> Sequence[_LayerBlock]:
        """Return the memory for this number of rows, the same until it is freed."""
        found = self._blocks.get(rows)
        if found is None:
            found = self._blocks[rows] = [self._block(rows, width) for width in self._widths]
        return found

    def free(self) -> None:
        """Release the memory until the next pass."""
        self._blocks.clear()

    def _block(self, rows: int, width: int) -> _LayerBlock:
        size, where = (rows, width), self._device
        before, gradient = (torch.empty(size, device=where, dtype=torch.float32) for _ in range(2))
        keeps_inputs = self.activation is not None and self.activation.keeps_inputs
        return _LayerBlock(before, torch.empty_like(before) if keeps_inputs else before, gradient)


class MlpPasses:
    """Forward and backward passes of one network of a spec, over parameters that have gradients."""

    def __init__(
        self, spec: StockSpec, role: Role, params: Mapping[str, Tensor], workspace: Workspace
    ) -> None:
        self._hidden = [_Affine.of(params, layer) for layer in spec.hidden_layers(role)]
        self._out = _Affine.of(params, spec.out_layer(role))
        self._out_grad = self._out.weight.new_empty(self._out.weight.shape[::-1])
        self._workspace = workspace
        self._activation = workspace.activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [D, N] for inputs [N, F]."""
        for layer, block in zip(self._hidden, self._workspace.blocks(len(x)), strict=True):
            torch.addmm(layer.bias, x, layer.weight, out=block.before)
            if self._activation is not None:
                self._activation.forward(block.before, block.after)
            x = block.after
        # A product that writes into columns takes three times as long on some processors.
        return torch.addmm(self._out.bias, x, self._out.weight).t().contiguous()

    def backward(self, x: Tensor, output_grads: Tensor) -> None:
        """Write the gradients of all weights, from the inputs [N, F] and the gradients of the outputs [D, N]."""
        blocks = self._workspace.blocks(len(x))
        out = self._out
        # For these shapes the product is several times faster with its result transposed.
        torch.mm(output_grads, blocks[-1].after if blocks else x, out=self._out_grad)
        out.weight_grad.copy_(self._out_grad.t())
        torch.sum(output_grads, 1, out=out.bias_grad)
        after_grads, weight = output_grads.t(), out.weight
        for number in reversed(range(len(blocks))):
            block, layer = blocks[number], self._hidden[number]
            torch.mm(after_grads, weight.t(), out=block.gradient)
            if self._activation is not None:
                self._activation.backward(block.gradient, block.before, block.after)
            torch.mm((blocks[number - 1].after if number else x).t(), block.gradient, out=layer.weight_grad)
            torch.sum(block.gradient, 0, out=layer.bias_grad)
            after_grads, weight = block.gradient, layer.weight


_HEADS = ("categorical", "multi_categorical", "gaussian", "mixed")

_SCALARS = 5
