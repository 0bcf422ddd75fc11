"""One ONNX file of a policy: observation in, action out, for runtimes that know nothing of menv.

`menv.export_onnx` is its public name. Preprocessing, filters, weights and the scaling of actions are inside the file; a
recurrent state, frames, an action mask and random draws are inputs. Needs onnx, but not torch.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError, MissingExtraError

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise MissingExtraError(
        "export_onnx: the package onnx is not installed, expected it; run: pip install 'menv-rl[train]'"
    ) from error

import menv
from menv.algorithms.networks.graph_builder import GraphBuilder, renamed
from menv.connectors.action_output import ActionOutput, is_discrete
from menv.connectors.built_in import FrameStackAgentConnector
from menv.connectors.connector import AgentConnector, AgentRows
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.obs_preprocessor import Leaf, ObsPreprocessor, ObsPreprocessorConnector
from menv.connectors.pipeline import AgentConnectorPipeline, PolicyConnectors, action_plan, batch_steps
from menv.inference.acting_graphs import GraphKind
from menv.inference.golden import Golden, difference, golden_backend, make_golden
from menv.inference.network_policy import NetworkPolicy
from menv.inference.onnx_backend import open_session
from menv.plain_files import replacing
from menv.policy import Policy, check_one_policy
from menv.serialization import path_given, space_to_json, writing
from menv.spaces import leaves, paths

Array = npt.NDArray[Any]

ROWS = "rows"
"""Name of the first axis of every input and output."""
PREFIX = "net/"
"""Begins the names of everything that is the acting graph's own."""
OBS, MASK = f"{PREFIX}obs", f"{PREFIX}mask"
"""Rows and masks, as the acting graph reads them."""

_EXACT = 1 << 24


class GraphEnds(GraphBuilder):
    """The graph of an exported policy: observations to rows, its acting graph, and env-ready actions.

    The nodes do what `ObsPreprocessor` and `ActionOutput` do.
    """

    def observe(
        self,
        preprocess: ObsPreprocessor,
        change: Callable[[str], str] | None = None,
        frames: int | None = None,
    ) -> None:
        """Add an input for each leaf of the observations, and what makes rows and a mask of them."""
        names: dict[tuple[Any, ...], str] = {}
        masks = {leaf.keys for leaf in preprocess.mask_leaves}
        several = () if frames is None else (frames,)
        for keys, space in paths(preprocess.space):
            names[keys] = dotted("obs", keys)
            dtype = np.dtype(space.dtype or np.int64)
            frames_of = () if keys in masks else several
            self.given(names[keys], _element(dtype), [ROWS, *frames_of, *(space.shape or ())])
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
        self.given(name, TensorProto.FLOAT, [ROWS, start])
        self._read(names, preprocess, change)
        return start

    def _read(
        self,
        names: Mapping[tuple[Any, ...], str],
        preprocess: ObsPreprocessor,
        change: Callable[[str], str] | None = None,
    ) -> None:
        rows = self._joined([self._columns(leaf, names[leaf.keys], preprocess) for leaf in preprocess.leaves])
        if preprocess.marked:
            # Raw observations do not say which members of a group are absent.
            ends = self.constant([0, 0, 0, preprocess.marked])
            rows = self.add("Pad", rows, ends, self.constant(1.0, np.float32))
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
                self.add("Identity", self.given(given.name, *_type_of(given)), name=PREFIX + given.name)
        for constant in graph.initializer:
            if constant.name not in weights:
                self.constants.append(onnx.TensorProto())
                self.constants[-1].CopyFrom(constant)
                self.constants[-1].name = PREFIX + constant.name
        for node in graph.node:
            self.nodes.append(renamed(node, lambda name: name and PREFIX + name))
            self.nodes[-1].name = PREFIX + node.name
        for result in graph.output:
            if result.name == "state_after":
                self.result(result.name, *_type_of(result), PREFIX + result.name)
        self.opsets, self.ir_version = list(model.opset_import), model.ir_version

    def act(self, space: gym.Space[Any], output: ActionOutput, samples: Sequence[Array]) -> None:
        """Add an output for each leaf of the actions."""
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
        places, parts, others = {True: 0, False: 0}, paths(space), self.outputs
        self.outputs = {}
        for (keys, leaf), sample in zip(parts, samples, strict=True):
            chosen = is_discrete(leaf)
            start, width = places[chosen], int(np.prod(leaf.shape or ()))
            x = choices if chosen else numbers
            if len(parts) > 1:
                x = self.add("Gather", x, self.constant(np.arange(start, start + width)), axis=1)
            places[chosen] += width
            x = self.add("Reshape", x, self.constant([-1, *sample.shape[1:]]))
            name = self.add("Cast", x, to=_element(sample.dtype), name=dotted("action", keys))
            self.result(name, _element(sample.dtype), [ROWS, *sample.shape[1:]], name)
        self.outputs.update(others)

    def _scaled(self, x: str, output: ActionOutput) -> str:
        half, centre, least, most = output.scaling
        x = self.add("Mul", x, self.constant(half, np.float32))
        x = self.add("Add", x, self.constant(centre, np.float32))
        exact = np.result_type(np.float32, least.dtype)
        x = self.add("Cast", x, to=_element(exact))
        x = self.add("Max", x, self.constant(least, exact))
        return self.add("Min", x, self.constant(most, exact))

    def described(self, about: Mapping[str, str]) -> onnx.ModelProto:
        """Return the model with metadata."""
        model = self.model("policy")
        helper.set_model_props(model, dict(about))
        return model


def _type_of(value: onnx.ValueInfoProto) -> tuple[int, list[str | int]]:
    """Return element type and shape of an input or output of an acting graph, for that of the file."""
    tensor = value.type.tensor_type
    return tensor.elem_type, [ROWS, *(axis.dim_value for axis in tensor.shape.dim[1:])]


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


_KINDS = (MeanStdObservationFilterAgentConnector, FrameStackAgentConnector)


class ConnectorNodes:
    """The connectors between a policy's preprocessor and its network, as nodes: filters and stacked frames.

    `frames` is the number of stacked observations, None without; `known` is True if nodes express all connectors.
    """

    def __init__(self, pipeline: AgentConnectorPipeline, preprocess: ObsPreprocessor) -> None:
        first, *self._connectors = batch_steps(pipeline) or [AgentConnector()]
        self._preprocess = preprocess
        stacks = [one for one in self._connectors if isinstance(one, FrameStackAgentConnector)]
        self.frames = stacks[0].num_frames if stacks else None
        kinds = [type(one) for one in self._connectors]
        self.known = (
            type(first) is ObsPreprocessorConnector
            and len(stacks) < 2
            and all(kind in _KINDS for kind in kinds)
        )

    def one_life(self, rows: Array, width: int) -> Array:
        """Return the connectors' output for preprocessed rows [R, F] of one agent episode, in order."""
        if not self._connectors:
            return rows
        copies, slot = copy.deepcopy(self._connectors), np.zeros(1, np.int64)
        shown = [AgentRows(row[None], slots=slot) for row in rows]
        for one in shown:
            for connector in copies:
                connector.over_rows(one)
        return np.concatenate([one.array() for one in shown])

    def places(self, rows: int) -> Array:
        """Return [R, frames] which of R observations of one agent episode each row shows, the oldest first."""
        frames = self.frames or 1
        places: Array = np.maximum(np.arange(rows)[:, None] + np.arange(1 - frames, 1), 0)
        return places

    def add(self, ends: GraphEnds, rows: str) -> str:
        """Add the nodes to the rows of this name and return the new name."""
        for one in self._connectors:
            if isinstance(one, FrameStackAgentConnector):
                rows = _stacked(ends, rows, self._preprocess, one.num_frames)
            elif isinstance(one, MeanStdObservationFilterAgentConnector):
                rows = filtered(ends, rows, one.applied, one.clip)
        return rows


def _stacked(ends: GraphEnds, rows: str, preprocess: ObsPreprocessor, frames: int) -> str:
    """Return rows of several observations, as `FrameStackAgentConnector` lays them: images by their channels."""
    if preprocess.image is not None:
        channels = preprocess.image[2]
        shape = ends.constant([-1, frames, preprocess.size // channels, channels])
        rows = ends.add("Transpose", ends.add("Reshape", rows, shape), perm=[0, 2, 1, 3])
    return ends.add("Reshape", rows, ends.constant([-1, frames * preprocess.size]))


def filtered(
    ends: GraphEnds,
    rows: str,
    statistics: tuple[Array, Array],
    clip: float | None,
    names: tuple[str, str] = ("", ""),
) -> str:
    """Add a filter of means and deviations, whose constants shift and scale get `names`."""
    if len(statistics[0]):
        for op, value, name in zip(("Sub", "Mul"), statistics, names, strict=True):
            rows = ends.add(op, rows, ends.constant(value, np.float32, name))
    if clip is not None:
        rows = ends.add("Clip", rows, *(ends.constant(limit, np.float32) for limit in (-clip, clip)))
    return rows


def export_onnx(policy: Policy, path: str | Path, *, explore: bool = False) -> Path:
    """Write a policy as one self-contained ONNX file and check it against the policy.

    Every input and output has a first axis `rows` of any length. Inputs are `obs`, or of Dict and Tuple spaces one
    for each part, `obs.<key>`, as the environment gives them, action masks included; of a recurrent policy `state`
    [rows, S], zeros at the beginning of an episode; with `explore` `noise` [rows, width], which is uniform on [0, 1)
    for choices and standard normal for continuous actions, one number after the other in the order of the space where
    there are both. A policy that stacks frames is given them: `obs` is
    [rows, frames, ...], the oldest first, and at the beginning of an episode the first observation repeated; masks are
    those of the newest. Outputs are `action`, or `action.<key>`, as the environment
    takes them, and `state_after`, the next `state`.

    Args:
        policy: Of an algorithm, or from `Policy.from_checkpoint`.
        path: Of the file, which is replaced if it exists.
        explore: Whether the file draws actions; otherwise it takes the most likely ones.

    Returns:
        The path.

    Raises:
        ConfigError: The policy has no acting graph, or connectors that no graph expresses, or ONNX Runtime does not
            reproduce its actions; or the path is a folder.
        MissingExtraError: onnx is not installed; importing the name tells so.
    """
    if path_given("export_onnx", path).is_dir():
        raise ConfigError(
            f"export_onnx: {path} is a folder, expected a file's name; write {str(path)!r} + '/policy.onnx'"
        )
    check_one_policy("export_onnx", policy)
    if not isinstance(policy, NetworkPolicy):
        raise ConfigError(
            f"export_onnx: {type(policy).__name__} is code of your own, which has no graph, expected a policy with a "
            "stock network; export it by your own means"
        )
    networks, where = policy.networks, f"export_onnx: policy {policy.policy_id!r}"
    graphs = networks.graphs()
    if graphs is None:
        raise ConfigError(
            f"{where}: its network has no acting graphs, expected one that has; export it by your own means"
        )
    own = networks.connectors[policy.index]
    steps = ConnectorNodes(own.agent, networks.preprocess)
    wide = own.agent.space(networks.observation_space, 0)[1]
    if not steps.known or action_plan(own.action) != networks.built or wide != networks.row_width:
        raise ConfigError(
            f"{where}: connectors that no graph expresses among {_listed(own)}, expected the usual ones, filters of "
            "means and frames; remove the others from policy.agent_connectors and action_connectors, and do their work "
            "outside"
        )
    kind: GraphKind = "act" if explore else "greedy"
    weights = networks.backend.get_weights(policy.index)
    golden = make_golden(networks, golden_backend(networks, graphs, weights), weights, steps.one_life)
    answers = f"{'action' if explore else 'greedy'}."
    ends = GraphEnds()
    ends.observe(networks.preprocess, functools.partial(steps.add, ends), steps.frames)
    ends.embed(onnx.load_from_string(graphs.build(kind, False, networks.preprocess.mask_width > 0)), weights)
    samples = [golden[f"{answers}{index}"] for index in range(len(leaves(networks.action_space)))]
    ends.act(networks.action_space, networks.output, samples)
    model = _model(ends, policy, {"explore": explore, "frames": steps.frames or 1})
    wrong = _difference(model, policy, _framed(golden, networks.preprocess, steps), answers)
    if wrong:
        raise ConfigError(
            f"{where}: {wrong} in ONNX Runtime, expected what the policy answers; report this as a bug"
        )
    with writing("export_onnx", f"{path}"):
        return _write(Path(path), model)


def _listed(connectors: PolicyConnectors) -> str:
    return ", ".join(one.name for one in (*connectors.agent.connectors, *connectors.action.connectors))


def _framed(golden: Golden, preprocess: ObsPreprocessor, steps: ConnectorNodes) -> Golden:
    """Return golden rows whose observations are consecutive in one agent episode."""
    if steps.frames is None:
        return golden
    places = steps.places(len(golden["steady"]))
    masks = {leaf.keys for leaf in preprocess.mask_leaves}
    stacked = {
        name: golden[name][places]
        for name, keys in ((f"obs.{index}", keys) for index, (keys, _) in enumerate(paths(preprocess.space)))
        if keys not in masks
    }
    return {**golden, **stacked}


def _model(ends: GraphEnds, policy: NetworkPolicy, told: Mapping[str, Any]) -> bytes:
    networks = policy.networks
    about = {
        "menv": menv.__version__,
        "policy_id": policy.policy_id,
        **{name: json.dumps(value) for name, value in told.items()},
        "observation_space": json.dumps(space_to_json(networks.observation_space)),
        "action_space": json.dumps(space_to_json(networks.action_space)),
    }
    return bytes(ends.described(about).SerializeToString())


def _difference(model: bytes, policy: NetworkPolicy, golden: Golden, answers: str) -> str:
    """Return how the file's answers differ from the policy's, for all golden rows and for the first alone, or ""."""
    networks, session = policy.networks, open_session(model)
    inputs = {
        dotted("obs", keys): f"obs.{index}"
        for index, (keys, _) in enumerate(paths(networks.observation_space))
    }
    outputs = {
        dotted("action", keys): f"{answers}{index}"
        for index, (keys, _) in enumerate(paths(networks.action_space))
    }
    names = [given.name for given in session.get_outputs()]
    for rows in (len(golden["steady"]), 1):
        part = {name: value[:rows] for name, value in golden.items()}
        feed = {given.name: part[inputs.get(given.name, given.name)] for given in session.get_inputs()}
        found: dict[str, Any] = dict(zip(names, session.run(names, feed), strict=True))
        wrong = difference(
            part, {outputs.get(name, name): np.asarray(value) for name, value in found.items()}
        )
        if wrong:
            return wrong
    return ""


def _write(path: Path, model: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_bytes(model)
    return path
