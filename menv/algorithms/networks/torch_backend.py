"""Acting with torch: the `ActingBackend` for networks without an ONNX graph, and the check of ONNX backends.

With `inference="auto"` the algorithm builds both backends and calls `check_against` once. Results equal
`OnnxBackend` up to rounding, several times slower for small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms.networks.network_spec import TorchNetwork
from menv.algorithms.networks.torch_runtime import CPU, array_of, repeatable, tensor_of
from menv.errors import ConfigError
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
)
from menv.inference.heads.head import ActionHead

MakeNetwork: TypeAlias = Callable[[Mapping[str, Tensor]], TorchNetwork]

_CHECK_ROWS = 64
_TOLERANCE = 1e-4
# Draws closer than this to a border between two choices may fall on either side by rounding.
_ODD_DRAWS = 2


class TorchBackend(ActingBackend):
    """P policies of one architecture, run by torch.

    After unpickling it acts on the CPU of the other process.
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
        return self._decide_each(self._choose, which, (obs, mask, noise, state))

    @torch.inference_mode()
    def _evaluated(
        self, policy: int, obs: Rows, mask: Flags | None, actions: Actions, state: Floats | None
    ) -> ForwardOutputs:
        rows, allowed, chosen, before = self._tensors(obs, mask, actions, state)
        with repeatable(self._device):
            inputs = self._network(policy).dist_inputs(rows, allowed, before)
        logp = self.head.acting_logp(inputs, chosen, allowed, self._params[policy])
        return ForwardOutputs(array_of(inputs), array_of(logp))

    @torch.inference_mode()
    def _valued(self, policy: int, obs: Rows, state: Floats | None) -> Floats:
        with repeatable(self._device):
            return array_of(self._network(policy).values(*self._tensors(obs, state)))

    @torch.inference_mode()
    def critic_state(self, policy: int, obs: Rows, state: Floats) -> Floats:
        network: Any = self._network(policy)
        with repeatable(self._device):
            return array_of(network.critic_state(*self._tensors(obs, state)))

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
        head, after = self.head, None
        network: Any = self._network(policy)
        rows, allowed, draws, before = self._tensors(obs, mask, noise, state)
        with repeatable(self._device):
            if before is None:
                inputs = network.dist_inputs(rows, allowed)
            else:
                inputs, after = network.step(rows, allowed, before)
        chosen = head.chosen(inputs, draws, allowed, self._params[policy])
        actions, outputs = array_of(chosen), array_of(inputs)
        finite = not head.choices or all_finite(outputs, choices=True)
        if head.numbers:
            finite = finite and all_finite(actions, choices=False)
        told = outputs if head.returns_dist_inputs else None
        return Decision(actions, told, None if after is None else array_of(after), finite)

    def _tensors(self, *arrays: npt.NDArray[Any] | None) -> list[Any]:
        """Return arrays as tensors on the device; None stays None."""
        return [None if array is None else tensor_of(array, self._device) for array in arrays]


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
    head, both, rows = reference.head, (acting, reference), _CHECK_ROWS
    for policy in range(reference.policies):
        obs: Rows = (
            rng.integers(0, brightest, (rows, reference.obs_size), np.uint8, endpoint=True)
            if dtype == np.uint8
            else rng.standard_normal((rows, reference.obs_size), np.float32)
        )
        mask = None
        if masked and head.choices:
            mask = rng.random((rows, head.mask_width)) < 0.7
            mask[:, np.cumsum((0, *head.choices[:-1]))] = True
        width, noise = reference.state_size, head.sample_noise(rng, rows)
        state = rng.standard_normal((rows, width), np.float32) if width else None
        seen = rng.standard_normal((rows, critic_size), np.float32) if critic_size else obs
        drawn, greedy = (
            [one.decide(obs, mask, draws, policy, state) for one in both] for draws in (noise, None)
        )
        evaluated = [one.evaluate(policy, obs, mask, drawn[1].actions, state) for one in both]
        odd = _ODD_DRAWS if head.choices else 0
        errors = {
            "distribution inputs": _error(one.dist_inputs for one in evaluated),
            "log-probabilities": _error(one.logp for one in evaluated),
            "values": _error(one.values(policy, seen, state) for one in both),
            "drawn actions": _error((one.actions for one in drawn), odd),
            "greedy actions": _error((one.actions for one in greedy), odd),
            "states": _error(one.state for one in drawn) if width else 0.0,
        }
        for what, error in errors.items():
            if not error <= _TOLERANCE:
                raise ConfigError(
                    f"check_against: {what} of policy {policy} differ by {error:.3g} between "
                    f"{type(acting).__name__} and {type(reference).__name__}, expected at most "
                    f'{_TOLERANCE:g}; set inference="torch" and report the network\'s layers'
                )


def _error(pair: Iterable[Any], odd: int = 0) -> float:
    """Return the largest relative error of a row, `odd` rows aside."""
    found, wanted = pair
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    errors = np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))
    return float(np.sort(errors.reshape(len(errors), -1).max(1))[-1 - odd])
