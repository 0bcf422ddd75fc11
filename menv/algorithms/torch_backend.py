"""Acting with torch: the `ActingBackend` for networks without an ONNX graph, and the check of ONNX backends.

With `inference="auto"` the algorithm builds both backends and calls `check_against` once. Results equal
`OnnxBackend` up to rounding, several times slower for small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms import torch_distributions
from menv.algorithms.networks.network_spec import TorchNetwork
from menv.algorithms.networks.stock_spec import EPSILON
from menv.algorithms.torch_runtime import CPU, array_of, repeatable, tensor_of
from menv.errors import ConfigError
from menv.inference.action_heads import LEAST_CHANCE, ActionHead
from menv.inference.backend import (
    ActingBackend,
    Actions,
    Decision,
    Flags,
    Floats,
    ForwardOutputs,
    Rows,
    Weights,
    Which,
    all_finite,
    check_shapes,
    fill_in,
    taken,
)

if TYPE_CHECKING:
    from menv.algorithms.networks.custom_network import TorchCustom
    from menv.algorithms.networks.torch_stock import TorchStock


def best_actions(head: ActionHead, q_values: Tensor) -> Tensor:
    """Return [N, *head.action_shape] the choices of the highest worth.

    Args:
        head: Of Q-values.
        q_values: [N, D] after masking.
    """
    return _by_row(head, _by_component(head, q_values).argmax(-1))


def epsilon_greedy_actions(
    head: ActionHead, q_values: Tensor, mask: Tensor | None, epsilon: Tensor, noise: Tensor
) -> Tensor:
    """Return [N, *head.action_shape] choices, none of them illegal.

    Args:
        head: Of Q-values.
        q_values: [N, D] after masking.
        mask: [N, D] True where allowed; None allows everything.
        epsilon: [1] share of choices that explore.
        noise: [N, head.noise_width] uniforms of 23 bits: whether a component explores, and what it takes
            then; these two for each component.
    """
    worth, pairs = _by_component(head, q_values), noise.reshape(-1, 2)
    numbers = _legal(head, q_values, mask).cumsum(-1)
    # Below the last number in float32, whatever the draw, so that a legal choice is always beyond it.
    beyond = numbers > pairs[:, 1:] * numbers[:, -1:]
    explores = pairs[:, 0] < epsilon
    return _by_row(head, torch.where(explores, beyond.to(torch.uint8).argmax(-1), worth.argmax(-1)))


def epsilon_greedy_logp(
    head: ActionHead, q_values: Tensor, mask: Tensor | None, epsilon: Tensor, actions: Tensor
) -> Tensor:
    """Return the [N] log-probability of each row's action; arguments as for `epsilon_greedy_actions`."""
    worth, legal, taken = _by_component(head, q_values), _legal(head, q_values, mask), actions.reshape(-1)
    share = epsilon * legal.gather(1, taken[:, None])[:, 0] / legal.sum(-1).clamp(min=1.0)
    is_best = (taken == worth.argmax(-1)).to(torch.float32)
    logs = (share + is_best * (1.0 - epsilon)).clamp(min=LEAST_CHANCE).log()
    return logs.reshape(-1, len(head.sizes)).sum(-1)


def _by_component(head: ActionHead, row: Tensor) -> Tensor:
    """Return [N * components, n] of [N, D]."""
    return row.reshape(-1, head.sizes[0])


def _by_row(head: ActionHead, choices: Tensor) -> Tensor:
    """Return [N, *head.action_shape] of [N * components]."""
    return choices.reshape(-1, *head.action_shape)


def _legal(head: ActionHead, q_values: Tensor, mask: Tensor | None) -> Tensor:
    """Return [N * components, n] 1 where allowed and 0 elsewhere."""
    allowed = torch.ones_like(q_values) if mask is None else mask.to(torch.float32)
    return _by_component(head, allowed)


MakeNetwork: TypeAlias = Callable[[Mapping[str, Tensor]], TorchNetwork]

_CHECK_ROWS = 64
_TOLERANCE = 1e-4
# Draws closer than this to a border between two choices may fall on either side by rounding.
_ODD_DRAWS = 2


class TorchBackend(ActingBackend):
    """P policies of one architecture, run by torch.

    Pickled, it acts on the processor of wherever it arrives.
    """

    name = "torch"

    def __init__(
        self,
        make_network: MakeNetwork,
        head: ActionHead,
        weights: Sequence[Weights],
        state_size: int = 0,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(head, weights[0], state_size)
        self._device = device
        self._make_network = make_network
        self._params: list[dict[str, Tensor]] = []
        self._networks: list[TorchNetwork] = []
        for one in weights:
            self.add_policy(one)

    def __reduce__(self) -> Any:
        weights = [self.get_weights(policy) for policy in range(self.policies)]
        return TorchBackend, (self._make_network, self.head, weights, self.state_size)

    @property
    def obs_size(self) -> int:
        return self._networks[0].obs_size

    @property
    def policies(self) -> int:
        return len(self._networks)

    @torch.inference_mode()
    def decide(
        self,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        which: Which = None,
        state: Floats | None = None,
    ) -> Decision:
        if which is None or isinstance(which, int):
            return self._choose(which or 0, obs, mask, noise, state)
        found = self._empty(len(which))
        finite = True
        for policy in np.unique(which).tolist():
            rows = which == policy
            own = self._choose(policy, obs[rows], taken(mask, rows), taken(noise, rows), taken(state, rows))
            fill_in(found, rows, own)
            finite = finite and own.is_finite
        return found._replace(is_finite=finite)

    @torch.inference_mode()
    def _evaluated(
        self, policy: int, obs: Rows, mask: Flags | None, actions: Actions, state: Floats | None
    ) -> ForwardOutputs:
        allowed, chosen = self._maybe_tensor(mask), self._tensor(actions)
        with repeatable(self._device):
            inputs = self._network(policy).dist_inputs(self._tensor(obs), allowed, self._maybe_tensor(state))
        if self.head.is_value_based:
            epsilon = self._params[policy][EPSILON]
            logp = epsilon_greedy_logp(self.head, inputs, allowed, epsilon, chosen)
        else:
            logp = torch_distributions.logp(self.head, inputs, chosen)
        return ForwardOutputs(array_of(inputs), array_of(logp))

    @torch.inference_mode()
    def _valued(self, policy: int, obs: Rows, state: Floats | None) -> Floats:
        with repeatable(self._device):
            return array_of(self._network(policy).values(self._tensor(obs), self._maybe_tensor(state)))

    @torch.inference_mode(False)
    def add_policy(self, weights: Weights | None = None) -> int:
        params = {
            name: torch.zeros(shape, device=self._device, dtype=torch.float32)
            for name, shape in self.shapes.items()
        }
        self._params.append(params)
        self._networks.append(self._make_network(params))
        self.set_weights(self.policies - 1, self.get_weights(0) if weights is None else weights)
        return self.policies - 1

    def set_weights(self, policy: int, weights: Weights) -> None:
        self._network(policy)
        check_shapes("TorchBackend", weights, self.shapes)
        for name, param in self._params[policy].items():
            param.copy_(tensor_of(np.asarray(weights[name]), dtype=np.float32))

    def get_weights(self, policy: int) -> dict[str, Floats]:
        self._network(policy)
        return {name: array_of(param).copy() for name, param in self._params[policy].items()}

    def extract_policy(self, policy: int) -> TorchBackend:
        return TorchBackend(
            self._make_network, self.head, [self.get_weights(policy)], self.state_size, self._device
        )

    def _network(self, policy: int) -> TorchNetwork:
        self._require_policy(policy)
        return self._networks[policy]

    def _choose(
        self, policy: int, obs: Rows, mask: Flags | None, noise: Floats | None, state: Floats | None
    ) -> Decision:
        if not len(obs):
            return self._empty(0)
        allowed, network, after = self._maybe_tensor(mask), self._network(policy), None
        rows = self._tensor(obs)
        with repeatable(self._device):
            if state is None:
                inputs = network.dist_inputs(rows, allowed)
            else:
                inputs, after = cast("TorchStock | TorchCustom", network).step(
                    rows, allowed, self._tensor(state)
                )
        actions = array_of(self._actions(policy, inputs, allowed, self._maybe_tensor(noise)))
        outputs = array_of(inputs) if self.head.choices else None
        finite = outputs is None or all_finite(outputs, choices=True)
        if self.head.numbers:
            finite = finite and all_finite(actions, choices=False)
        told = outputs if self.head.returns_dist_inputs else None
        return Decision(actions, told, None if after is None else array_of(after), finite)

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return tensor_of(array, self._device)

    def _maybe_tensor(self, array: npt.NDArray[Any] | None) -> Tensor | None:
        return None if array is None else tensor_of(array, self._device)

    def _actions(self, policy: int, inputs: Tensor, allowed: Tensor | None, draws: Tensor | None) -> Tensor:
        head = self.head
        if not head.is_value_based:
            return _drawn(head, inputs, draws)
        if draws is None:
            return best_actions(head, inputs)
        return epsilon_greedy_actions(head, inputs, allowed, self._params[policy][EPSILON], draws)


def _drawn(head: ActionHead, inputs: Tensor, draws: Tensor | None) -> Tensor:
    """Return actions, the most likely ones without draws."""
    if head.parts:
        actions = inputs.new_empty((len(inputs), *head.action_shape))
        for part in head.parts:
            own = None if draws is None else draws[:, part.columns]
            actions[:, part.columns] = _drawn(part.head, inputs[:, part.inputs], own).to(actions.dtype)
        return actions
    if head.kind == "gaussian":
        mean, log_std = inputs.chunk(2, -1)
        return mean if draws is None else mean + log_std.exp() * draws
    columns = [
        part.argmax(-1) if draws is None else _inverse_cdf(part, draws[:, column])
        for column, part in enumerate(torch.split(inputs, list(head.sizes), -1))
    ]
    return columns[0] if head.kind == "categorical" else torch.stack(columns, -1)


def check_against(
    acting: ActingBackend,
    reference: ActingBackend,
    rng: np.random.Generator,
    masked: bool = True,
    critic_size: int = 0,
    dtype: npt.DTypeLike = np.float32,
    brightest: int = 255,
) -> None:
    """Compare two back-ends of the same architecture and weights on random rows of every policy."""
    for policy in range(reference.policies):
        rows = _random_rows(reference.head, reference.obs_size, rng, dtype, brightest)
        for what, error in _differences(acting, reference, policy, rng, rows, masked, critic_size).items():
            if not error <= _TOLERANCE:
                raise ConfigError(
                    f"check_against: {what} of policy {policy} differ by {error:.3g} between "
                    f"{type(acting).__name__} and {type(reference).__name__}, expected at most "
                    f'{_TOLERANCE:g}; set inference="torch" and report the network\'s layers'
                )


def _differences(
    acting: ActingBackend,
    reference: ActingBackend,
    policy: int,
    rng: np.random.Generator,
    rows: tuple[Rows, Flags | None, Floats],
    masked: bool,
    critic_size: int,
) -> dict[str, float]:
    """Return the largest relative error of each output; of actions, 1 if too many differ."""
    head, both = reference.head, (acting, reference)
    obs, mask, noise = rows
    mask = mask if masked else None
    width = reference.state_size
    state = rng.standard_normal((_CHECK_ROWS, width), np.float32) if width else None
    seen = rng.standard_normal((_CHECK_ROWS, critic_size), np.float32) if critic_size else obs
    drawn = [one.decide(obs, mask, noise, policy, state) for one in both]
    greedy = [one.decide(obs, mask, None, policy, state).actions for one in both]
    mine, theirs = (one.evaluate(policy, obs, mask, drawn[1].actions, state) for one in both)
    found = {
        "distribution inputs": _error(mine.dist_inputs, theirs.dist_inputs),
        "log-probabilities": _error(mine.logp, theirs.logp),
        "values": _error(*(one.values(policy, seen, None if critic_size else state) for one in both)),
        "drawn actions": _action_error(head, drawn[0].actions, drawn[1].actions),
        "greedy actions": _action_error(head, *greedy),
    }
    states = [decision.state for decision in drawn]
    if states[0] is not None and states[1] is not None:
        found["states"] = _error(states[0], states[1])
    return found


def _random_rows(
    head: ActionHead, obs_size: int, rng: np.random.Generator, dtype: npt.DTypeLike, brightest: int
) -> tuple[Rows, Flags | None, Floats]:
    obs: Rows = (
        rng.integers(0, brightest, (_CHECK_ROWS, obs_size), np.uint8, endpoint=True)
        if dtype == np.uint8
        else rng.standard_normal((_CHECK_ROWS, obs_size), np.float32)
    )
    mask = None
    if head.choices:
        mask = rng.random((_CHECK_ROWS, head.mask_width)) < 0.7
        mask[:, np.cumsum((0, *head.choices[:-1]))] = True
    return obs, mask, head.sample_noise(rng, _CHECK_ROWS)


def _error(found: Floats, wanted: Floats) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    return float(np.max(np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))))


def _action_error(head: ActionHead, found: Actions, wanted: Actions) -> float:
    if head.kind == "gaussian" or found.shape != wanted.shape:
        return _error(found, wanted)
    if head.parts:
        errors = (
            _action_error(part.head, found[:, part.columns], wanted[:, part.columns]) for part in head.parts
        )
        return max(errors)
    return float(np.count_nonzero(found != wanted) > _ODD_DRAWS)


def _inverse_cdf(logits: Tensor, draws: Tensor) -> Tensor:
    """Return the [N] first choices whose cumulated probability exceeds the draw."""
    steps = logits.softmax(-1).cumsum(-1)
    return (steps > (draws * steps[:, -1])[:, None]).to(torch.uint8).argmax(-1)
