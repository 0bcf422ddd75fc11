"""What an ONNX file needs around a policy's acting graph: observations to rows before it, env-ready actions behind.

`menv.algorithms.export.onnx_export` and `rllink_graph` call it. The nodes do what `ObsPreprocessor` and
`ActionOutput` do; nothing here runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from menv.connectors.action_output import ActionOutput
from menv.connectors.flat_actions import is_discrete
from menv.connectors.obs_preprocessor import Leaf, ObsPreprocessor
from menv.errors import ConfigError
from menv.nested import leaves, paths

Array = npt.NDArray[Any]

ROWS = "rows"
"""Name of the first axis of every input and output."""
PREFIX = "net/"
"""Begins the names of everything that is the acting graph's own."""
OBS, MASK = f"{PREFIX}obs", f"{PREFIX}mask"
"""Rows and masks, as the acting graph reads them."""

_EXACT = 1 << 24


class Ends:
    """Collects the nodes of a whole file.

    Attributes:
        nodes: In the order in which they run.
        inputs: What the file is given.
        outputs: What it returns.
        constants: Weights and constants.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, *operands: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return its name."""
        name = name or f"{op}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, list(operands), [name], f"node_{len(self.nodes)}", **attributes)
        )
        return name

    def constant(self, value: Any, dtype: Any = np.int64, name: str = "") -> str:
        """Add a constant and return its name."""
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def observe(
        self,
        preprocess: ObsPreprocessor,
        change: Callable[[str], str] | None = None,
        frames: int | None = None,
    ) -> None:
        """Add an input for each leaf of the observations, and what makes rows and a mask of them.

        Args:
            preprocess: What makes rows of the same observations elsewhere.
            change: Adds what is done to rows, given and returning their name.
            frames: How many observations the inputs have, as their second axis, but for masks; `change` is given a row
                for each. None takes one, without such an axis.
        """
        names: dict[tuple[Any, ...], str] = {}
        masks = {leaf.keys for leaf in preprocess.mask_leaves}
        several = () if frames is None else (frames,)
        for keys, space in paths(preprocess.space):
            names[keys] = dotted("obs", keys)
            dtype = np.dtype(space.dtype or np.int64)
            self._given(names[keys], dtype, (*(() if keys in masks else several), *(space.shape or ())))
        if len(set(names.values())) < len(names):
            raise ConfigError(
                f"export_onnx: two parts of the observations would both be the input {max(names.values())!r}, expected "
                "names of their own; take the dots out of the keys of the observation space"
            )
        for leaf in preprocess.leaves if several else ():
            shape = self.constant([-1, *(leaf.space.shape or ())])
            names[leaf.keys] = self.add("Reshape", names[leaf.keys], shape)
        self._read(names, preprocess, change)

    def observe_flat(
        self, preprocess: ObsPreprocessor, name: str, change: Callable[[str], str] | None = None
    ) -> int:
        """Add one float32 input for whole observations, and what makes rows and a mask of it.

        Args:
            preprocess: What makes rows of the same observations elsewhere.
            name: Of the input [rows, N]: the numbers of each leaf in C order, one leaf after the other as the space
                has them, masks included; a Discrete one is one number.
            change: Adds what is done to rows, given and returning their name.

        Returns:
            N.

        Raises:
            ConfigError: A choice among the observations is a number that float32 does not hold.
        """
        names, parts, start = {}, paths(preprocess.space), 0
        for keys, space in parts:
            _refuse_large_choices(space, dotted("obs", keys))
            width = int(np.prod(space.shape or ()))
            names[keys] = name
            if len(parts) > 1:
                bounds = [self.constant([place]) for place in (start, start + width, 1)]
                names[keys] = self.add("Slice", name, *bounds)
            start += width
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, start]))
        self._read(names, preprocess, change)
        return start

    def _read(
        self,
        names: Mapping[tuple[Any, ...], str],
        preprocess: ObsPreprocessor,
        change: Callable[[str], str] | None = None,
    ) -> None:
        rows = self._joined([self._columns(leaf, names[leaf.keys], preprocess) for leaf in preprocess.leaves])
        self.add("Identity", rows if change is None else change(rows), name=OBS)
        masks = []
        for leaf in preprocess.mask_leaves:
            flat = self.add("Reshape", names[leaf.keys], self.constant([-1, leaf.width]))
            masks.append(self.add("Cast", flat, to=TensorProto.BOOL))
        if masks:
            self.add("Identity", self._joined(masks), name=MASK)

    def _columns(self, leaf: Leaf, given: str, preprocess: ObsPreprocessor) -> str:
        space: Any = leaf.space
        if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            sizes = np.array([space.n]) if isinstance(space, gym.spaces.Discrete) else space.nvec.reshape(-1)
            digits = self.add("Cast", given, to=TensorProto.INT64)
            digits = self.add("Reshape", digits, self.constant([-1, len(sizes)]))
            wide = self.add("Gather", digits, self.constant(np.repeat(np.arange(len(sizes)), sizes)), axis=1)
            starts = np.atleast_1d(np.asarray(space.start)).reshape(-1)
            choices = np.concatenate(
                [start + np.arange(size) for start, size in zip(starts, sizes, strict=True)]
            )
            return self.add("Cast", self.add("Equal", wide, self.constant(choices)), to=TensorProto.FLOAT)
        flat = self.add("Reshape", given, self.constant([-1, leaf.width]))
        if preprocess.dtype == np.uint8:
            # The network scales bytes itself.
            return flat
        return self.add("Cast", flat, to=TensorProto.FLOAT)

    def _joined(self, parts: Sequence[str]) -> str:
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)

    def embed(self, model: onnx.ModelProto, weights: Mapping[str, Array]) -> None:
        """Add the acting graph, its weights inside; `state` and `noise` become inputs of the file."""
        graph, outside = model.graph, {"obs", "mask", *weights}
        for given in graph.input:
            if given.name in weights:
                self.constants.append(numpy_helper.from_array(weights[given.name], PREFIX + given.name))
            elif given.name not in outside:
                self._pass_on(given, self.inputs)
                self.add("Identity", given.name, name=PREFIX + given.name)
        for constant in graph.initializer:
            if constant.name not in weights:
                renamed = onnx.TensorProto()
                renamed.CopyFrom(constant)
                renamed.name = PREFIX + constant.name
                self.constants.append(renamed)
        self.nodes.extend(_renamed(node) for node in graph.node)
        for result in graph.output:
            if result.name == "state_after":
                self._pass_on(result, self.outputs)
                self.add("Identity", PREFIX + result.name, name=result.name)

    def _pass_on(self, value: onnx.ValueInfoProto, where: list[onnx.ValueInfoProto]) -> None:
        size = [axis.dim_value for axis in value.type.tensor_type.shape.dim][1:]
        where.append(
            helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, [ROWS, *size])
        )

    def act(self, space: gym.Space[Any], output: ActionOutput, samples: Sequence[Array]) -> None:
        """Add an output for each leaf of the actions.

        Args:
            space: Of the actions.
            output: What they go through.
            samples: A column of each leaf of the form in which it has to come out.
        """
        choices = numbers = f"{PREFIX}action"
        starts = [np.ravel(leaf.start) for leaf in leaves(space) if is_discrete(leaf)]
        nested, mixed = output.nested, isinstance(output.space, gym.spaces.Tuple)
        if mixed and nested is not None:
            choices, numbers = (
                self.add("Gather", choices, self.constant(columns), axis=1)
                for columns in (nested.choices, nested.numbers)
            )
            choices = self.add("Cast", choices, to=TensorProto.INT64)
        if starts:
            choices = self.add("Add", choices, self.constant(np.concatenate(starts)))
        if mixed or not starts:
            numbers = self._scaled(numbers, output)
        places, parts, found = {True: 0, False: 0}, paths(space), []
        for (keys, leaf), sample in zip(parts, samples, strict=True):
            chosen = is_discrete(leaf)
            start, width = places[chosen], int(np.prod(leaf.shape or ()))
            x = choices if chosen else numbers
            if len(parts) > 1:
                x = self.add("Gather", x, self.constant(np.arange(start, start + width)), axis=1)
            places[chosen] += width
            x = self.add("Reshape", x, self.constant([-1, *sample.shape[1:]]))
            name = self.add("Cast", x, to=_element(sample.dtype), name=dotted("action", keys))
            shape = [ROWS, *sample.shape[1:]]
            found.append(helper.make_tensor_value_info(name, _element(sample.dtype), shape))
        self.outputs[:0] = found

    def _scaled(self, x: str, output: ActionOutput) -> str:
        half, centre, least, most = output.scaling
        x = self.add("Mul", x, self.constant(half, np.float32))
        x = self.add("Add", x, self.constant(centre, np.float32))
        exact = np.result_type(np.float32, least.dtype)
        x = self.add("Cast", x, to=_element(exact))
        x = self.add("Max", x, self.constant(least, exact))
        return self.add("Min", x, self.constant(most, exact))

    def _given(self, name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self.inputs.append(helper.make_tensor_value_info(name, _element(dtype), [ROWS, *shape]))


def _renamed(node: onnx.NodeProto) -> onnx.NodeProto:
    own = onnx.NodeProto()
    own.CopyFrom(node)
    own.name = PREFIX + node.name
    for names in (own.input, own.output):
        prefixed = [name and PREFIX + name for name in names]
        del names[:]
        names.extend(prefixed)
    return own


def dotted(first: str, keys: Sequence[Any]) -> str:
    """Return the name of the input or output of a leaf, such as `obs.camera.0`."""
    return ".".join((first, *map(str, keys)))


def _refuse_large_choices(space: gym.Space[Any], name: str) -> None:
    """Refuse choices that would be other ones after rounding to float32."""
    sizes = getattr(space, "n" if isinstance(space, gym.spaces.Discrete) else "nvec", None)
    if sizes is None or isinstance(space, gym.spaces.MultiBinary):
        return
    start: Any = np.asarray(getattr(space, "start", 0))
    largest = int(max(np.abs(start).max(), np.abs(start + sizes).max()))
    if largest > _EXACT:
        raise ConfigError(
            f"observation space: choices of {name} up to {largest}, expected at most {_EXACT}, which float32 holds; "
            "let them begin with 0"
        )


def _element(dtype: npt.DTypeLike) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
