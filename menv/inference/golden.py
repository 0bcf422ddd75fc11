"""Golden inputs and outputs: sample observations and the outputs that a policy on disk must give for them everywhere.

`menv.inference.policy_bundle` writes them with a policy and checks them on load; the ONNX exporter compares with them
too. They go through everything that acts: preprocessor, graphs, action output.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.connectors.action_output import ActionOutput
from menv.inference.backend import ActingBackend, Floats
from menv.inference.network_policy import NetworkGroup
from menv.inference.onnx_backend import OnnxBackend
from menv.spaces import builder_of, columns_of, leaves, paths

Array = npt.NDArray[Any]
Golden = dict[str, Array]

MOST_ROWS, _ROWS_OF_MANY = 8, 2
_MANY = 10_000
# Other processors round the last digits differently; a wrong graph or weight is off by far more.
_RTOL, _ATOL = 1e-3, 1e-4
_STEADY = 1e-4


def columns(space: gym.Space[Any], values: Sequence[Any] | Array) -> list[Array]:
    """Return the columns [R, ...] of the leaves of R elements of a space."""
    return [np.array(column) for column in columns_of(space, values)]


def make_golden(
    networks: NetworkGroup,
    acting: OnnxBackend,
    weights: Mapping[str, Floats],
    output: ActionOutput,
    connectors: Callable[[Array], Array] | None = None,
) -> Golden:
    """Return golden inputs and outputs of a policy with these weights.

    `acting` runs the graphs that will be written; its weights change. `connectors` makes rows of preprocessed ones.
    Inputs are `obs.<leaf>`, `noise`, `state`, and `rows` where connectors change rows. Outputs are `action.<leaf>` as
    sampled and `greedy.<leaf>`, both env-ready; `dist_inputs`, `logp`, `state_after`; `steady` marks rows whose choices
    do not depend on rounding.
    """
    head, size, width = networks.backend.head, networks.preprocess.size, networks.row_width
    rng = np.random.default_rng(20)
    rows = MOST_ROWS if width <= _MANY else _ROWS_OF_MANY
    golden = {f"obs.{index}": column for index, column in enumerate(_observations(networks, rows, rng))}
    golden["noise"] = noise = head.sample_noise(rng, rows)
    if connectors is not None:
        golden["rows"] = connectors(preprocessed(networks, golden)[0])
    elif width != size:
        # The same numbers in other places; the state of connectors is not a part of them.
        places = np.random.default_rng(21).integers(0, rows, (rows, width))
        golden["rows"] = preprocessed(networks, golden)[0][places, np.arange(width) % size]
    if networks.state_sizes:
        golden["state"] = rng.uniform(-1, 1, (rows, sum(networks.state_sizes))).astype(np.float32)
    acting.set_weights(0, weights)
    answers = answer(networks, acting, golden, output)
    steady = np.ones(rows, np.bool_)
    for sign in (1, -1):
        near = {
            name: (value * (1 + sign * _STEADY * rng.random(value.shape))).astype(np.float32)
            for name, value in weights.items()
        }
        acting.set_weights(0, near)
        moved = np.clip(noise + np.float32(sign * _STEADY), 0, 1 - 2**-23).astype(np.float32)
        moved = np.where(head.normal, noise, moved)
        other = answer(networks, acting, {**golden, "noise": moved}, output)
        for name, value in answers.items():
            if value.dtype.kind in "iu":
                steady &= (value == other[name]).reshape(rows, -1).all(1)
    return {**golden, **answers, "steady": steady}


def answer(
    networks: NetworkGroup,
    acting: ActingBackend,
    golden: Mapping[str, Array],
    output: ActionOutput | None = None,
    index: int = 0,
) -> Golden:
    """Return the outputs of a policy of a back-end for golden inputs; `output` is that of the action connectors."""
    obs, mask = preprocessed(networks, golden)
    obs = golden.get("rows", obs)
    state = golden.get("state")
    drawn = acting.decide(obs, mask, golden["noise"], index, state)
    best = acting.decide(obs, mask, None, index, state)
    judged = acting.evaluate(index, obs, mask, drawn.actions, state)
    found = {"dist_inputs": judged.dist_inputs, "logp": judged.logp}
    if drawn.state is not None:
        found["state_after"] = drawn.state
    for name, decision in (("action", drawn), ("greedy", best)):
        out = columns(networks.action_space, (output or networks.output)(decision.actions))
        found.update({f"{name}.{index}": column for index, column in enumerate(out)})
    return found


def preprocessed(networks: NetworkGroup, golden: Mapping[str, Array]) -> tuple[Array, Array | None]:
    """Return rows and masks of golden observations, before connectors widen them."""
    space, preprocess = networks.observation_space, networks.preprocess
    raw = [golden[f"obs.{index}"] for index in range(len(leaves(space)))]
    build = builder_of(space)
    return preprocess([build(row) for row in zip(*raw, strict=True)])


def difference(golden: Mapping[str, Array], found: Mapping[str, Array]) -> str:
    """Return what differs between golden outputs and found ones, or ""."""
    for name, value in found.items():
        wanted, chosen = golden.get(name), value.dtype.kind in "iu"
        if wanted is None or wanted.shape != value.shape or wanted.dtype != value.dtype:
            return f"{name!r} has another shape or type"
        # A choice that depends on rounding changes its log-probability, too.
        rows = golden["steady"] if chosen or name == "logp" else slice(None)
        rtol, atol = (0, 0) if chosen else (_RTOL, _ATOL)
        if not np.allclose(wanted[rows], value[rows], rtol, atol, equal_nan=True):
            return f"{name!r} differs by up to {np.nanmax(np.abs(wanted[rows] - value[rows])):.3g}"
    return ""


def _observations(networks: NetworkGroup, rows: int, rng: np.random.Generator) -> list[Array]:
    """Return columns of observations of moderate size; masks allow at least one choice per component."""
    preprocess = networks.preprocess
    allowed = rng.random((rows, preprocess.mask_width)) < 0.6
    if preprocess.mask_width:
        allowed[:, np.cumsum((0, *networks.backend.head.choices[:-1]))] = True
    ends = np.cumsum([leaf.width for leaf in preprocess.mask_leaves])[:-1].astype(int)
    keys_of = [leaf.keys for leaf in preprocess.mask_leaves]
    masks = dict(zip(keys_of, np.split(allowed, ends, 1), strict=False))
    return [
        masks[keys].reshape(rows, *(space.shape or ())).astype(space.dtype or np.int8)
        if keys in masks
        else _column(space, rows, rng)
        for keys, space in paths(networks.observation_space)
    ]


def _column(space: Any, rows: int, rng: np.random.Generator) -> Array:
    """Return [R, ...] elements of a leaf space."""
    if not isinstance(space, gym.spaces.Box):
        own = copy.deepcopy(space)
        own.seed(int(rng.integers(1 << 31)))
        return np.array([own.sample() for _ in range(rows)], space.dtype)
    # Numbers from wide bounds would saturate the network.
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    drawn = rng.random((rows, *space.shape))
    if np.dtype(space.dtype).kind == "f":
        low, high = np.clip(-3.0, low, high), np.clip(3.0, low, high)
        drawn = low + (high - low) * drawn
    else:
        drawn = np.floor(low + (np.minimum(high, low + 255) - low) * drawn)
    column: Array = np.clip(drawn.astype(space.dtype), space.low, space.high)
    return column
