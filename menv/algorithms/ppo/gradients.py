"""PPO's gradient steps for stock networks of fully connected layers, without autograd.

`ppo_learner` runs whole epochs through it where it can; all other networks and losses of a policy's own go through
autograd, which the tests hold it to. It does not know schedules, seeds or where rows come from.
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

# SEAM menv.algorithms.learning.ppo_slopes
# The slopes of PPO's loss in what the networks return, worked out by hand.
#
# `ppo_by_hand` calls it. The same loss as `ppo_loss`, whose symbols it uses: with the ratio r_t clipped, the
# loss of a
# row has the slope -r_t A_t in the log-probability of its action, or 0 where the clip holds. The output of
# the action
# gets 1 - p times that, the output of every other choice -p times, p being the probability of the choice
# itself.
#
# Everything lies in columns, [D, B] for D numbers a row, because a handful of choices is quicker to add up
# down a column.


_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_NORMAL_ENTROPY = _HALF_LOG_TWO_PI + 0.5


class MinibatchColumns(NamedTuple):
    """Rows of one gradient step, laid out in columns; see `Minibatch`.

    Attributes:
        forbidden: [D, B] choices that the mask does not allow, or None.
        actions: [components, B] the places of the chosen outputs; [k, B] numbers; [components + k, B] both.
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
    """What the policy's part of the loss changes by.

    Attributes:
        outputs: [D, B] for each output of the policy network.
        log_std: [k] for the logarithms of standard deviations; None for choices.
        terms: policy_loss, entropy and kl, if they are reported.
    """

    outputs: Tensor
    log_std: Tensor | None
    terms: tuple[Tensor, ...]


def policy_slopes(
    head: ActionHead,
    weights: LossWeights,
    rows: MinibatchColumns,
    outputs: Tensor,
    log_std: Tensor | None,
    *,
    report: bool,
) -> PolicyGradients:
    """Return the slopes of policy_loss - entropy_coeff * entropy + kl_coeff * kl.

    Args:
        head: What the outputs mean.
        weights: Coefficients.
        rows: The minibatch.
        outputs: [D, B] of the policy network, before masking; may be overwritten.
        log_std: [k] of numbers.
        report: Whether the terms are to be told.
    """
    if log_std is None:
        return _choices(head, weights, rows, outputs, report)
    if head.parts:
        return _both(head, weights, rows, outputs, log_std, report)
    return _numbers(weights, rows, outputs, log_std, report)


def value_slopes(weights: LossWeights, rows: MinibatchColumns, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] the slopes of vf_loss_coeff * vf_loss in `values` [B], and [B] the errors V - V_target."""
    errors = values - rows.targets
    slopes = errors * (2.0 * weights.vf_loss_coeff / len(errors))
    if weights.vf_clip_param is not None:
        slopes *= errors.square() <= weights.vf_clip_param
    return slopes, errors


def loss_terms(weights: LossWeights, policy: tuple[Tensor, ...], errors: Tensor) -> tuple[Tensor, ...]:
    """Return the terms of `LossTerms` from those of the policy and the errors [B] of the values."""
    policy_loss, entropy, kl = policy
    squares = errors.square()
    limit = weights.vf_clip_param
    vf_loss = (squares if limit is None else squares.clamp_(max=limit)).mean()
    total = policy_loss + weights.vf_loss_coeff * vf_loss
    # A weight of 0 leaves out terms that may be infinite.
    if weights.entropy_coeff:
        total = total - weights.entropy_coeff * entropy
    if weights.kl_coeff:
        total = total + weights.kl_coeff * kl
    return total, policy_loss, vf_loss, entropy, kl


def places(head: ActionHead, actions: Tensor) -> Tensor:
    """Return [columns, N] the outputs that choices [N, ...] stand for; numbers as they are."""
    columns = actions.reshape(len(actions), -1).t()
    if head.kind == "gaussian":
        return columns.contiguous()
    starts = [
        start if size else 0
        for size, start in zip(head.sizes, (0, *itertools.accumulate(head.sizes)), strict=False)
    ]
    return columns + torch.tensor(starts, device=actions.device)[:, None]


def _by_logp(rows: MinibatchColumns, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] the loss of each row, -r_t A_t, and [B] its slope in the log-probability."""
    clipped = log_ratio.clamp(rows.least, rows.most)
    within = clipped == log_ratio
    losses = clipped.exp_().mul_(rows.losses)
    return losses, torch.where(within, losses, 0.0)


def _choices(
    head: ActionHead, weights: LossWeights, rows: MinibatchColumns, outputs: Tensor, report: bool
) -> PolicyGradients:
    if rows.forbidden is not None:
        outputs.masked_fill_(rows.forbidden, ILLEGAL)
    sizes = list(head.sizes)
    one = len(sizes) == 1
    logp = _log_chances(sizes, outputs)
    chosen = logp.gather(0, rows.actions)
    losses, push = _by_logp(rows, (chosen[0] if one else chosen.sum(0)) - rows.old_logp)
    share = 1.0 / len(push)
    chances = logp.exp()
    terms: tuple[Tensor, ...] = ()
    if report:
        entropy = (chances * logp).sum() * -share
        kl = (rows.old_inputs.exp() * (rows.old_inputs - logp)).sum() * share
        terms = losses.mean(), entropy, kl
    drift = _drift(sizes, weights, rows, logp, chances)
    less = constant(-1.0, chances.device)
    slopes = chances.scatter_add_(0, rows.actions, less.expand_as(rows.actions)).mul_(push.mul_(-share))
    if drift is not None:
        slopes.add_(drift, alpha=share)
    if rows.forbidden is not None:
        slopes.masked_fill_(rows.forbidden, 0.0)
    return PolicyGradients(slopes, None, terms)


def _log_chances(sizes: list[int], outputs: Tensor) -> Tensor:
    """Return [D, B] log-probabilities of all choices."""
    if len(sizes) == 1:
        return outputs.log_softmax(0)
    return torch.cat([part.log_softmax(0) for part in torch.split(outputs, sizes)])


def _drift(
    sizes: list[int], weights: LossWeights, rows: MinibatchColumns, logp: Tensor, chances: Tensor
) -> Tensor | None:
    """Return [D, B] the slopes of kl_coeff * kl - entropy_coeff * entropy of each row, None if both weigh nothing."""
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


def _both(
    head: ActionHead,
    weights: LossWeights,
    rows: MinibatchColumns,
    outputs: Tensor,
    log_std: Tensor,
    report: bool,
) -> PolicyGradients:
    """Return the slopes of choices and numbers: each part's are those of a head of its own, beside the other."""
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
    # With what the other part adds on its side, the ratio of either is that of the whole action.
    one = rows._replace(actions=chosen, old_logp=rows.old_logp - of_numbers, old_inputs=rows.old_inputs[:cut])
    other = rows._replace(
        actions=taken, old_logp=rows.old_logp - of_choices, old_inputs=rows.old_inputs[cut:]
    )
    first = _choices(choices.head, weights, one, logits, report)
    second = _numbers(weights, other, means, log_std, report)
    terms: tuple[Tensor, ...] = ()
    if report:
        loss, entropy, kl = first.terms
        terms = loss, entropy + second.terms[1], kl + second.terms[2]
    return PolicyGradients(torch.cat((first.outputs, second.outputs)), second.log_std, terms)


def _numbers(
    weights: LossWeights, rows: MinibatchColumns, means: Tensor, log_std: Tensor, report: bool
) -> PolicyGradients:
    shrink = log_std.neg().exp_()[:, None]
    scaled = (rows.actions - means).mul_(shrink)
    spread = log_std.sum()
    logp = scaled.square().sum(0).mul_(-0.5) - (spread + len(log_std) * _HALF_LOG_TWO_PI)
    losses, push = _by_logp(rows, logp - rows.old_logp)
    share = 1.0 / len(push)
    push *= share
    by_log_std = torch.mv(scaled.square().sub_(1.0), push)
    slopes = scaled.mul_(shrink).mul_(push)
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
            slopes.add_(apart.mul_(shrink), alpha=weights.kl_coeff * share)
            by_log_std += (1.0 - moment.mean(1)) * weights.kl_coeff
    if weights.entropy_coeff:
        by_log_std -= weights.entropy_coeff
    return PolicyGradients(slopes, by_log_std, terms)


# SEAM menv.algorithms.networks.slopes
# The activations and their derivatives, computed where they are stored.
#
# `mlp_passes` calls them. A linear layer has none.


_aten = torch.ops.aten


class ActivationGradient(NamedTuple):
    """One activation.

    Attributes:
        forward: Writes the activation of its first argument into its second one, of the same shape.
        backward: Multiplies slopes, its first argument, by the derivative, from the activation's inputs and outputs.
        keeps_inputs: Whether `backward` reads the inputs; otherwise outputs may be written over them.
    """

    forward: Callable[[Tensor, Tensor], object]
    backward: Callable[[Tensor, Tensor, Tensor], object]
    keeps_inputs: bool = False


def _tanh(x: Tensor, out: Tensor) -> None:
    # On the processor to the same accuracy, in a sixth of torch's time.
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


def _by_tanh(slope: Tensor, _: Tensor, out: Tensor) -> None:
    _aten.tanh_backward.grad_input(slope, out, grad_input=slope)


def _by_relu(slope: Tensor, _: Tensor, out: Tensor) -> None:
    _aten.threshold_backward.grad_input(slope, out, 0.0, grad_input=slope)


def _by_silu(slope: Tensor, x: Tensor, _: Tensor) -> None:
    _aten.silu_backward.grad_input(slope, x, grad_input=slope)


def _by_elu(slope: Tensor, _: Tensor, out: Tensor) -> None:
    _aten.elu_backward.grad_input(slope, 1.0, 1.0, 1.0, True, out, grad_input=slope)


SLOPES: dict[Activation, ActivationGradient] = {
    "tanh": ActivationGradient(_tanh, _by_tanh),
    "relu": ActivationGradient(_relu, _by_relu),
    "silu": ActivationGradient(_silu, _by_silu, keeps_inputs=True),
    "elu": ActivationGradient(_elu, _by_elu),
}


# SEAM menv.algorithms.networks.mlp_passes
# A fully connected network forwards and backwards without autograd.
#
# `ppo_by_hand` calls it, where a minibatch takes so little arithmetic that autograd's bookkeeping, its copies
# into the
# flat gradient and the libraries' slow cases show. Gradients are written where the optimizer reads them. It
# knows no
# losses; outputs are [D, N], a column a row of the batch, because losses over a few choices are quick that
# way.


class _Affine(NamedTuple):
    """A layer's weights [in, out] and bias [out], and where their gradients belong."""

    weight: Tensor
    bias: Tensor
    by_weight: Tensor
    by_bias: Tensor

    @classmethod
    def of(cls, params: Mapping[str, Tensor], layer: Layer) -> _Affine:
        weight, bias = params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]
        by_weight, by_bias = weight.grad, bias.grad
        assert by_weight is not None, "parameters of an optimizer have gradients"
        assert by_bias is not None, "parameters of an optimizer have gradients"
        return cls(weight.detach(), bias.detach(), by_weight, by_bias)


class _LayerBlock(NamedTuple):
    """Memory for one hidden layer, [N, width] each: what goes into the activation, comes out, and its slopes."""

    before: Tensor
    after: Tensor
    slope: Tensor


class Workspace:
    """Memory for the passes of networks of equal widths, one after the other; a processor's cache holds that of one.

    Args:
        spec: The networks.
        device: Where it is.
    """

    def __init__(self, spec: StockSpec, device: torch.device = CPU) -> None:
        self._widths = spec.hiddens
        self._device = device
        self.slope: ActivationGradient | None = SLOPES.get(spec.activation)
        self._blocks: dict[int, Sequence[_LayerBlock]] = {}

    def blocks(self, rows: int) -> Sequence[_LayerBlock]:
        """Return the memory for so many rows, the same each time until it is freed."""
        found = self._blocks.get(rows)
        if found is None:
            found = self._blocks[rows] = [self._block(rows, width) for width in self._widths]
        return found

    def free(self) -> None:
        """Give the memory back; the next pass takes it anew."""
        self._blocks.clear()

    def _block(self, rows: int, width: int) -> _LayerBlock:
        size, where = (rows, width), self._device
        before, slope = (torch.empty(size, device=where, dtype=torch.float32) for _ in range(2))
        keeps_inputs = self.slope is not None and self.slope.keeps_inputs
        return _LayerBlock(before, torch.empty_like(before) if keeps_inputs else before, slope)


class MlpPasses:
    """One network of a spec that `can_pass` approves of, over parameters that have gradients.

    Args:
        spec: The layers.
        role: Which of its networks.
        params: A leaf tensor for each name, whose `grad` is written and never replaced.
        workspace: Memory, which other networks may use between this one's passes, but not between a forward pass
            and the backward pass that belongs to it.
    """

    def __init__(
        self, spec: StockSpec, role: Role, params: Mapping[str, Tensor], workspace: Workspace
    ) -> None:
        self._hidden = [_Affine.of(params, layer) for layer in spec.hidden_layers(role)]
        self._out = _Affine.of(params, spec.out_layer(role))
        self._by_out = self._out.weight.new_empty(self._out.weight.shape[::-1])
        self._workspace = workspace
        self._slope = workspace.slope

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [D, N] for inputs [N, F]."""
        for layer, block in zip(self._hidden, self._workspace.blocks(len(x)), strict=True):
            torch.addmm(layer.bias, x, layer.weight, out=block.before)
            if self._slope is not None:
                self._slope.forward(block.before, block.after)
            x = block.after
        # Written into columns by the product itself, it takes some processors three times as long.
        return torch.addmm(self._out.bias, x, self._out.weight).t().contiguous()

    def backward(self, x: Tensor, by_outputs: Tensor) -> None:
        """Write the gradients of all weights.

        Args:
            x: [N, F] what the forward pass before was given.
            by_outputs: [D, N] slopes of the loss in what it returned.
        """
        blocks = self._workspace.blocks(len(x))
        out = self._out
        # The product of these shapes is several times as quick with its result turned round.
        torch.mm(by_outputs, blocks[-1].after if blocks else x, out=self._by_out)
        out.by_weight.copy_(self._by_out.t())
        torch.sum(by_outputs, 1, out=out.by_bias)
        by_after, weight = by_outputs.t(), out.weight
        for number in reversed(range(len(blocks))):
            block, layer = blocks[number], self._hidden[number]
            torch.mm(by_after, weight.t(), out=block.slope)
            if self._slope is not None:
                self._slope.backward(block.slope, block.before, block.after)
            torch.mm((blocks[number - 1].after if number else x).t(), block.slope, out=layer.by_weight)
            torch.sum(block.slope, 0, out=layer.by_bias)
            by_after, weight = block.slope, layer.weight


def can_pass(spec: object) -> bool:
    """Return whether a network is two separate ones of nothing but fully connected layers over numbers."""
    return (
        isinstance(spec, StockSpec)
        and len(spec.trunks) == 2
        and not (spec.cell or spec.conv or spec.pixels or spec.dueling)
    )


_HEADS = ("categorical", "multi_categorical", "gaussian", "mixed")
_SCALARS = 5


class ColumnRows(NamedTuple):
    """All rows of a train batch as `PPOGradientStep` reads them.

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


class PPOGradientStep:
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
    """Return whether `PPOGradientStep` can train a network."""
    return can_pass(spec) and spec.head.kind in _HEADS
