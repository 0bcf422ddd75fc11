"""Acting with torch: the `ActingBackend` for networks that cannot be exported, and the check of others.

The algorithm builds it for `inference="torch"`; with "auto" it builds both back-ends and calls
`check_against` once. It gives what `OnnxActing` gives up to rounding, several times slower for small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.acting.action_head import ActionHead
from menv.acting.backend import (
    ActingBackend,
    Actions,
    Decision,
    Evaluation,
    Flags,
    Floats,
    Rows,
    Weights,
    Which,
    portions,
)
from menv.algorithms import distributions, epsilon_greedy
from menv.algorithms.networks.stock import EPSILON
from menv.algorithms.networks.torch_network import TorchNetwork
from menv.errors import ConfigError

MakeNetwork: TypeAlias = Callable[[Mapping[str, Tensor]], TorchNetwork]

_CHECK_ROWS = 64
_TOLERANCE = 1e-4
# Draws closer than this to a border between two choices may fall on either side by rounding.
_ODD_DRAWS = 2


class TorchActing:
    """P policies of one architecture, run by torch on the CPU.

    Args:
        make_network: Builds a network over parameters by name, such as `partial(TorchStock, spec)`.
        head: How outputs become actions.
        weights: The weights of each policy, at least one.

    Raises:
        ConfigError: The policies' weights differ in names or shapes.
    """

    def __init__(self, make_network: MakeNetwork, head: ActionHead, weights: Sequence[Weights]) -> None:
        self._make_network = make_network
        self._head = head
        self._shapes = {name: np.shape(weights[0][name]) for name in sorted(weights[0])}
        self._params: list[dict[str, Tensor]] = []
        self._networks: list[TorchNetwork] = []
        for one in weights:
            self.add_policy(one)

    @property
    def head(self) -> ActionHead:
        """How outputs become actions."""
        return self._head

    @property
    def obs_size(self) -> int:
        """F, numbers in a flat observation."""
        return self._networks[0].obs_size

    @property
    def policies(self) -> int:
        """P, the number of policies."""
        return len(self._networks)

    @property
    def weight_names(self) -> Sequence[str]:
        """The names that `set_weights` needs, sorted."""
        return tuple(self._shapes)

    def act(self, obs: Rows, mask: Flags | None, noise: Floats, which: Which = None) -> Actions:
        """Draw an action for each row; see `ActingBackend.act`."""
        return self.decide(obs, mask, noise, which).actions

    def greedy(self, obs: Rows, mask: Flags | None, which: Which = None) -> Actions:
        """Return the most probable action of each row; see `ActingBackend.greedy`."""
        return self.decide(obs, mask, None, which).actions

    @torch.inference_mode()
    def decide(self, obs: Rows, mask: Flags | None, noise: Floats | None, which: Which = None) -> Decision:
        """Return actions and what they were drawn from; see `ActingBackend.decide`."""
        if which is None or isinstance(which, int):
            return self._choose(which or 0, obs, mask, noise)
        head = self._head
        actions = head.empty_actions(len(which))
        inputs = np.empty((len(which), head.inputs), np.float32) if head.told else None
        for policy in np.unique(which).tolist():
            rows = which == policy
            part_mask = None if mask is None else mask[rows]
            part_noise = None if noise is None else noise[rows]
            part = self._choose(policy, obs[rows], part_mask, part_noise)
            actions[rows] = part.actions
            if inputs is not None:
                inputs[rows] = part.dist_inputs
        return Decision(actions, inputs)

    @torch.inference_mode()
    def evaluate(self, policy: int, obs: Rows, mask: Flags | None, actions: Actions) -> Evaluation:
        """Return [N, D] distribution inputs and [N] log-probabilities of `actions`."""
        parts = portions(obs)
        if len(parts) > 1:
            found = [
                self.evaluate(policy, obs[part], None if mask is None else mask[part], actions[part])
                for part in parts
            ]
            return Evaluation(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
        allowed = None if mask is None else _tensor(mask)
        inputs = self._network(policy).dist_inputs(_tensor(obs), allowed)
        if self._head.kind == "q_values":
            logp = epsilon_greedy.logp(inputs, allowed, self._params[policy][EPSILON], _tensor(actions))
        else:
            logp = distributions.logp(self._head, inputs, _tensor(actions))
        return Evaluation(inputs.numpy(), logp.numpy())

    @torch.inference_mode()
    def values(self, policy: int, obs: Rows) -> Floats:
        """Return the [N] state values of one policy's critic."""
        parts = portions(obs)
        if len(parts) > 1:
            return np.concatenate([self.values(policy, obs[part]) for part in parts])
        values: Floats = self._network(policy).values(_tensor(obs)).numpy()
        return values

    def add_policy(self, weights: Weights | None = None) -> int:
        """Add a policy and return its index; without weights it copies policy 0."""
        params = {name: torch.zeros(shape) for name, shape in self._shapes.items()}
        self._params.append(params)
        self._networks.append(self._make_network(params))
        self.set_weights(self.policies - 1, self.get_weights(0) if weights is None else weights)
        return self.policies - 1

    def set_weights(self, policy: int, weights: Weights) -> None:
        """Copy `weights` in.

        Raises:
            ConfigError: A name or shape differs from the architecture.
        """
        self._network(policy)
        found = {name: np.shape(weights[name]) for name in weights}
        wrong = sorted(name for name in {*found, *self._shapes} if found.get(name) != self._shapes.get(name))
        if wrong:
            raise ConfigError(
                f"TorchActing: {len(wrong)} weights do not fit the architecture, first {wrong[0]!r} of shape "
                f"{found.get(wrong[0])}, expected {self._shapes.get(wrong[0])}; "
                "give the weights of the same network"
            )
        for name, param in self._params[policy].items():
            param.copy_(_tensor(np.asarray(weights[name], np.float32)))

    def get_weights(self, policy: int) -> dict[str, Floats]:
        """Return copies of one policy's weights."""
        self._network(policy)
        return {name: param.numpy().copy() for name, param in self._params[policy].items()}

    def _network(self, policy: int) -> TorchNetwork:
        if not 0 <= policy < self.policies:
            raise ConfigError(
                f"TorchActing: policy {policy}, expected 0 to {self.policies - 1}; call add_policy first"
            )
        return self._networks[policy]

    def _choose(self, policy: int, obs: Rows, mask: Flags | None, noise: Floats | None) -> Decision:
        allowed = None if mask is None else _tensor(mask)
        inputs = self._network(policy).dist_inputs(_tensor(obs), allowed)
        actions = self._actions(policy, inputs, allowed, None if noise is None else _tensor(noise))
        return Decision(actions.numpy(), inputs.numpy() if self._head.told else None)

    def _actions(self, policy: int, inputs: Tensor, allowed: Tensor | None, draws: Tensor | None) -> Tensor:
        head = self._head
        if head.kind == "q_values":
            if draws is None:
                return inputs.argmax(-1)
            return epsilon_greedy.draw(inputs, allowed, self._params[policy][EPSILON], draws)
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
    dtype: npt.DTypeLike = np.float32,
) -> None:
    """Compare two back-ends of the same architecture and weights on random rows of every policy.

    Args:
        acting: The one that is to be used.
        reference: The one that is right by definition.
        rng: Where the rows come from.
        masked: Whether choices are masked in the check, as they will be in the run; each way opens graphs
            of its own.
        dtype: Of the rows: float32, or uint8 for images of bytes.

    Raises:
        ConfigError: They disagree by more than rounding can explain.
    """
    for policy in range(reference.policies):
        for what, error in _differences(acting, reference, policy, rng, masked, dtype).items():
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
    masked: bool,
    dtype: npt.DTypeLike,
) -> dict[str, float]:
    """Return the largest relative error of each output; of actions, 1 if too many differ."""
    head = reference.head
    obs, mask, noise = _random_rows(head, reference.obs_size, rng, dtype)
    mask = mask if masked else None
    actions = reference.act(obs, mask, noise, policy)
    mine, theirs = (one.evaluate(policy, obs, mask, actions) for one in (acting, reference))
    return {
        "distribution inputs": _error(mine.dist_inputs, theirs.dist_inputs),
        "log-probabilities": _error(mine.logp, theirs.logp),
        "values": _error(acting.values(policy, obs), reference.values(policy, obs)),
        "drawn actions": _action_error(head, acting.act(obs, mask, noise, policy), actions),
        "greedy actions": _action_error(
            head, acting.greedy(obs, mask, policy), reference.greedy(obs, mask, policy)
        ),
    }


def _random_rows(
    head: ActionHead, obs_size: int, rng: np.random.Generator, dtype: npt.DTypeLike
) -> tuple[Rows, Flags | None, Floats]:
    obs: Rows = (
        rng.integers(0, 256, (_CHECK_ROWS, obs_size), np.uint8)
        if dtype == np.uint8
        else rng.standard_normal((_CHECK_ROWS, obs_size), np.float32)
    )
    if head.noise == "normal":
        return obs, None, rng.standard_normal((_CHECK_ROWS, head.noise_width), np.float32)
    mask = rng.random((_CHECK_ROWS, head.mask_width)) < 0.7
    mask[:, np.cumsum((0, *head.sizes[:-1]))] = True
    noise = rng.integers(0, 2**23, (_CHECK_ROWS, head.noise_width)).astype(np.float32)
    return obs, mask, noise * np.float32(2.0**-23)


def _error(found: Floats, wanted: Floats) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    return float(np.max(np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))))


def _action_error(head: ActionHead, found: Actions, wanted: Actions) -> float:
    if head.kind == "gaussian" or found.shape != wanted.shape:
        return _error(found, wanted)
    return float(np.count_nonzero(found != wanted) > _ODD_DRAWS)


def _inverse_cdf(logits: Tensor, draws: Tensor) -> Tensor:
    """Return the [N] first choices whose cumulated probability exceeds the draw."""
    steps = logits.softmax(-1).cumsum(-1)
    return (steps > (draws * steps[:, -1])[:, None]).to(torch.uint8).argmax(-1)


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=("C", "W")))
