"""One ONNX file of a policy, for runtimes that know nothing of menv: `menv.export_onnx`, and what RLlink clients read.

Preprocessing, filters, weights and the scaling of actions are inside. The file of `export_onnx` gives actions; a
recurrent state, frames, an action mask and random draws are inputs. That of `rllink_model` has one input and one
output, the inputs of the action distribution. Needs onnx, but not torch.
"""

from __future__ import annotations

import base64
import copy
import functools
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError, MissingExtraError

try:
    import onnx
    from onnx import helper, numpy_helper
    from onnx.utils import Extractor
except ImportError as error:
    raise MissingExtraError(
        "export_onnx: the package onnx is not installed; run: pip install 'menv-rl[train]'"
    ) from error

import menv
from menv.algorithms.networks.graph_builder import GraphBuilder, renamed
from menv.connectors.action_output import ActionOutput, is_discrete
from menv.connectors.built_in import (
    AgentIdAgentConnector,
    ClipRewardAgentConnector,
    FrameStackAgentConnector,
)
from menv.connectors.connector import AgentConnector, AgentRows
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.obs_preprocessor import Leaf, ObsPreprocessor, ObsPreprocessorConnector
from menv.connectors.pipeline import AgentConnectorPipeline, action_plan, batch_steps
from menv.inference.acting_graphs import ActingGraphs, GraphKind
from menv.inference.golden import Golden, difference, make_golden
from menv.inference.network_policy import NetworkGroup, NetworkPolicy
from menv.inference.onnx_backend import OnnxBackend, open_session
from menv.plain_files import path_given, replacing, writing
from menv.policy import Policy, check_one_policy
from menv.serialization import space_to_json
from menv.spaces import leaves, paths

Array = npt.NDArray[Any]

ROWS = "rows"
"""Name of the first axis of every input and output."""
PREFIX = "net/"
"""Begins the names of everything that is the acting graph's own."""
OBS, MASK = f"{PREFIX}obs", f"{PREFIX}mask"
"""Rows and masks, as the acting graph reads them."""


class GraphEnds(GraphBuilder):
    """The graph of an exported policy: observations to rows, its acting graph, and env-ready actions.

    The nodes do what `ObsPreprocessor` and `ActionOutput` do.
    """

    def observe(
        self,
        preprocess: ObsPreprocessor,
        change: Callable[[str], str],
        frames: int | None,
    ) -> None:
        """Add an input for each leaf of the observations, and what makes rows and a mask of them."""
        names: dict[tuple[Any, ...], str] = {}
        masks = {leaf.keys for leaf in preprocess.mask_leaves}
        several = () if frames is None else (frames,)
        for keys, space in paths(preprocess.space):
            names[keys] = dotted("obs", keys)
            dtype = np.dtype(space.dtype or np.int64)
            frames_of = () if keys in masks else several
            self.given(names[keys], dtype, [ROWS, *frames_of, *(space.shape or ())])
        for leaf in preprocess.leaves if several else ():
            shape = self.constant([-1, *(leaf.space.shape or ())])
            names[leaf.keys] = self.add("Reshape", names[leaf.keys], shape)
        self._read(names, preprocess, change)

    def observe_flat(self, preprocess: ObsPreprocessor, name: str, change: Callable[[str], str]) -> None:
        """Add one float32 input for whole observations, and what makes rows and a mask of it; see `rllink_model`."""
        names, parts, start = {}, paths(preprocess.space), 0
        for keys, space in parts:
            width = int(np.prod(space.shape or ()))
            names[keys] = name
            if len(parts) > 1:
                bounds = [self.constant([place]) for place in (start, start + width, 1)]
                names[keys] = self.add("Slice", name, *bounds)
            start += width
        self.given(name, np.float32, [ROWS, start])
        self._read(names, preprocess, change)

    def _read(
        self,
        names: Mapping[tuple[Any, ...], str],
        preprocess: ObsPreprocessor,
        change: Callable[[str], str],
    ) -> None:
        rows = self._joined([self._columns(leaf, names[leaf.keys], preprocess) for leaf in preprocess.leaves])
        if preprocess.marked:
            # Raw observations do not say which members of a group are absent.
            ends = self.constant([0, 0, 0, preprocess.marked])
            rows = self.add("Pad", rows, ends, self.constant(1.0, np.float32))
        self.add("Identity", change(rows), name=OBS)
        masks = []
        for leaf in preprocess.mask_leaves:
            flat = self.add("Reshape", names[leaf.keys], self.constant([-1, leaf.width]))
            masks.append(self.cast(flat, np.bool_))
        if masks:
            self.add("Identity", self._joined(masks), name=MASK)

    def _columns(self, leaf: Leaf, given: str, preprocess: ObsPreprocessor) -> str:
        space: Any = leaf.space
        if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            sizes = np.array([space.n]) if isinstance(space, gym.spaces.Discrete) else space.nvec.reshape(-1)
            digits = self.cast(given, np.int64)
            digits = self.add("Reshape", digits, self.constant([-1, len(sizes)]))
            wide = self.add("Gather", digits, self.constant(np.repeat(np.arange(len(sizes)), sizes)), axis=1)
            starts = np.atleast_1d(np.asarray(space.start)).reshape(-1)
            choices = np.concatenate(
                [start + np.arange(size) for start, size in zip(starts, sizes, strict=True)]
            )
            return self.cast(self.add("Equal", wide, self.constant(choices)), np.float32)
        flat = self.add("Reshape", given, self.constant([-1, leaf.width]))
        if preprocess.dtype == np.uint8:
            # The network scales bytes itself.
            return flat
        return self.cast(flat, np.float32)

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
            choices = self.cast(choices, np.int64)
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
            name = self.cast(x, sample.dtype, dotted("action", keys))
            self.result(name, sample.dtype, [ROWS, *sample.shape[1:]], name)
        self.outputs.update(others)

    def _scaled(self, x: str, output: ActionOutput) -> str:
        half, centre, least, most = output.scaling
        x = self.add("Mul", x, self.constant(half, np.float32))
        x = self.add("Add", x, self.constant(centre, np.float32))
        exact = np.result_type(np.float32, least.dtype)
        x = self.cast(x, exact)
        x = self.add("Max", x, self.constant(least, exact))
        return self.add("Min", x, self.constant(most, exact))

    def described(self, policy: NetworkPolicy, about: Mapping[str, str]) -> onnx.ModelProto:
        """Return the model with metadata."""
        model = self.model("policy")
        helper.set_model_props(model, {"menv": menv.__version__, "policy_id": policy.policy_id, **about})
        return model


def _type_of(value: onnx.ValueInfoProto) -> tuple[np.dtype[Any], list[str | int]]:
    """Return dtype and shape of an input or output of an acting graph, for that of the file."""
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return dtype, [ROWS, *(axis.dim_value for axis in tensor.shape.dim[1:])]


def dotted(first: str, keys: Sequence[Any]) -> str:
    """Return the name of the input or output of a leaf, such as `obs.camera.0`."""
    return ".".join((first, *map(str, keys)))


class ConnectorNodes:
    """The connectors between a policy's preprocessor and its network, as nodes: filters, stacked frames, agent ids.

    `frames` is the number of stacked observations, None without; `agents` are the names whose codes follow them;
    `known` is True if nodes express all connectors.
    """

    def __init__(self, pipeline: AgentConnectorPipeline, preprocess: ObsPreprocessor) -> None:
        first, *self._connectors = [
            one for one in batch_steps(pipeline) if type(one) is not ClipRewardAgentConnector
        ] or [AgentConnector()]
        self._preprocess = preprocess
        stacks = [one for one in self._connectors if isinstance(one, FrameStackAgentConnector)]
        self.frames = stacks[0].num_frames if stacks else None
        named = [one for one in self._connectors if isinstance(one, AgentIdAgentConnector)]
        self.agents = named[0].agents if named else []
        kinds = {type(one) for one in self._connectors}
        self.known = (
            type(first) is ObsPreprocessorConnector
            and len(stacks) < 2
            and len(named) < 2
            and kinds
            <= {MeanStdObservationFilterAgentConnector, FrameStackAgentConnector, AgentIdAgentConnector}
        )

    def of_first(self, rows: Array) -> Array:
        """Return the connectors' output for preprocessed rows [R, F], each the first of an agent episode."""
        places = np.arange(len(rows))
        agents = (
            [self.agents[place % len(self.agents)] for place in places.tolist()] if self.agents else places
        )
        shown = AgentRows(rows, slots=places, seats=[(0, agent) for agent in agents])
        for connector in copy.deepcopy(self._connectors):
            connector.over_rows(shown)
        return shown.array()

    def add(self, ends: GraphEnds, rows: str) -> str:
        """Add the nodes to the rows of this name and return the new name."""
        for one in self._connectors:
            if isinstance(one, FrameStackAgentConnector):
                rows = _stacked(ends, rows, self._preprocess, one.num_frames)
            elif isinstance(one, AgentIdAgentConnector):
                code = ends.given("agent", np.dtype(np.float32), [ROWS, len(self.agents)])
                rows = ends.add("Concat", rows, code, axis=1)
            elif isinstance(one, MeanStdObservationFilterAgentConnector):
                # A filter that has seen nothing changes nothing.
                for op, value in zip(("Sub", "Mul"), one.applied, strict=True):
                    rows = ends.add(op, rows, ends.constant(value, np.float32)) if len(value) else rows
                if one.clip is not None:
                    rows = ends.add(
                        "Clip", rows, *(ends.constant(x, np.float32) for x in (-one.clip, one.clip))
                    )
        return rows


def _stacked(ends: GraphEnds, rows: str, preprocess: ObsPreprocessor, frames: int) -> str:
    """Return rows of several observations, as `FrameStackAgentConnector` lays them: images by their channels."""
    if preprocess.image is not None:
        channels = preprocess.image[2]
        shape = ends.constant([-1, frames, preprocess.size // channels, channels])
        rows = ends.add("Transpose", ends.add("Reshape", rows, shape), perm=[0, 2, 1, 3])
    return ends.add("Reshape", rows, ends.constant([-1, frames * preprocess.size]))


class _Source(NamedTuple):
    """The parts of a file."""

    networks: NetworkGroup
    graphs: ActingGraphs
    steps: ConnectorNodes
    output: ActionOutput


def _source(where: str, policy: Policy, instead: str) -> _Source:
    """Return the parts of a policy; ConfigError if it has none that a graph expresses."""
    graphs = policy.networks.graphs() if isinstance(policy, NetworkPolicy) else None
    if not isinstance(policy, NetworkPolicy):
        why = f"{type(policy).__name__} is your own code, which has no graph"
    elif graphs is None:
        why = "its network has no acting graphs"
    else:
        networks, own = policy.networks, policy.networks.connectors[policy.index]
        steps = ConnectorNodes(own.agent, networks.preprocess)
        wide = steps.known and own.agent.space(networks.observation_space, 0)[1] == networks.row_width
        if wide and not action_plan(own.action).rest:
            return _Source(networks, graphs, steps, own.output(networks.action_space))
        names = ", ".join(one.name for one in (*own.agent.connectors, *own.action.connectors))
        why = f"connectors that no graph expresses among {names}"
    raise ConfigError(
        f"{where}: policy {getattr(policy, 'policy_id', type(policy).__name__)!r}: {why}, expected a network that ONNX "
        f"expresses, behind the usual connectors, filters of means and frames; {instead}"
    )


def export_onnx(policy: Policy, path: str | Path, *, explore: bool = False) -> Path:
    """Write a policy as one self-contained ONNX file and check it against the policy.

    Every input and output has a first axis `rows` of any length. Inputs are `obs`, or of Dict and Tuple spaces one
    for each part, `obs.<key>`, as the environment gives them, action masks included; of a recurrent policy `state`
    [rows, S], zeros at the beginning of an episode; with `explore` `noise` [rows, width], which is uniform on [0, 1)
    for choices and standard normal for continuous actions, one number after the other in the order of the space where
    there are both. A policy that stacks frames reads the whole stack: `obs` is [rows, frames, ...], the oldest first,
    and at the beginning of an episode the first observation repeated; masks belong to the newest frame. A policy with
    `agent_ids` has an input `agent` [rows, A], the one-hot code of the agent, in the order of `possible_agents`.
    Outputs are `action`, or `action.<key>`, as the environment takes them, and `state_after`, the next `state`.

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
    where = "export_onnx"
    target = path_given(where, path)
    if target.is_dir():
        raise ConfigError(
            f"{where}: {path} is a folder, expected a file's name; write {str(path)!r} + '/policy.onnx'"
        )
    check_one_policy(where, policy)
    networks, graphs, steps, output = _source(where, policy, "export it by your own means")
    assert isinstance(policy, NetworkPolicy)
    kind: GraphKind = "act" if explore else "greedy"
    weights = networks.backend.get_weights(policy.index)
    acting = OnnxBackend(graphs, networks.backend.head, [weights], sum(networks.state_sizes))
    golden = make_golden(networks, acting, weights, output, steps.of_first)
    answers = f"{'action' if explore else 'greedy'}."
    ends = GraphEnds()
    ends.observe(networks.preprocess, functools.partial(steps.add, ends), steps.frames)
    ends.embed(onnx.load_from_string(graphs.build(kind, False, networks.preprocess.mask_width > 0)), weights)
    samples = [golden[f"{answers}{index}"] for index in range(len(leaves(networks.action_space)))]
    ends.act(networks.action_space, output, samples)
    about = {
        "explore": json.dumps(explore),
        "frames": json.dumps(steps.frames or 1),
        "observation_space": json.dumps(space_to_json(networks.observation_space)),
        "action_space": json.dumps(space_to_json(networks.action_space)),
    }
    model = ends.described(policy, about).SerializeToString()
    wrong = _difference(model, networks, _framed(golden, networks.preprocess, steps), answers)
    if wrong:
        raise ConfigError(
            f"{where}: policy {policy.policy_id!r}: {wrong} in ONNX Runtime, expected the policy's own outputs; report "
            "this as a bug"
        )
    with writing(where, f"{path}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as draft:
            draft.write_bytes(model)
    return target


def _framed(golden: Golden, preprocess: ObsPreprocessor, steps: ConnectorNodes) -> Golden:
    """Return golden rows whose observations are the first ones of agent episodes, of one agent after the other."""
    masks, found = {leaf.keys for leaf in preprocess.mask_leaves}, dict(golden)
    for index, (keys, _) in enumerate(paths(preprocess.space)):
        if steps.frames is not None and keys not in masks:
            name = f"obs.{index}"
            found[name] = np.repeat(golden[name][:, None], steps.frames, 1)
    if steps.agents:
        places = np.arange(len(golden["steady"])) % len(steps.agents)
        found["agent"] = np.eye(len(steps.agents), dtype=np.float32)[places]
    return found


def _difference(model: bytes, networks: NetworkGroup, golden: Golden, answers: str) -> str:
    """Return how the file's answers differ from the policy's, for all golden rows and for the first alone, or ""."""
    session = open_session(model)
    known = {
        dotted(first, keys): f"{prefix}{index}"
        for first, prefix, space in (
            ("obs", "obs.", networks.observation_space), ("action", answers, networks.action_space),
        )
        for index, (keys, _) in enumerate(paths(space))
    }  # fmt: skip
    names = [given.name for given in session.get_outputs()]
    for rows in (len(golden["steady"]), 1):
        part = {name: value[:rows] for name, value in golden.items()}
        feed = {given.name: part[known.get(given.name, given.name)] for given in session.get_inputs()}
        found = zip(names, session.run(names, feed), strict=True)
        wrong = difference(part, {known.get(name, name): np.asarray(value) for name, value in found})
        if wrong:
            return wrong
    return ""


INPUT = "onnx::Gemm_0"
"""The input's name in files for RLlink, to which clients have grown used."""
OUTPUT = "dist_inputs"
"""The output's name, which they do not ask for."""
LEAST_BYTES = 160 * 1024
"""Old clients open their file for reading while the end of it is in a write buffer of up to 128 KiB: of a file that is
smaller they see nothing."""

_GZIP = 16 + zlib.MAX_WBITS  # zlib then writes the header of a gzip file, without a time
_ASK = 'let clients ask for each action (GET_ACTION), or use PolicyClient with inference_mode="local"'


def rllink_model(policy: Policy) -> bytes:
    """Return a policy with its current weights as the self-contained ONNX file that RLlink clients read.

    It has one input, `onnx::Gemm_0`, float32 [rows, N]: observations flattened in C order; of Dict and Tuple spaces one
    part after the other in the order of the space, action masks included; a Discrete part is one number. Images of
    bytes are passed unchanged, 0 to 255. It has one output, `dist_inputs`, float32 [rows, K]:

    - Discrete: a logit for each choice; choice k is the action `start + k`. MultiDiscrete: logits of all components,
      one after the other. Choices that a mask forbids have probability 0.
    - Box: k means and then k logarithms of standard deviations, of the environment's own actions: a client applies its
      samples unchanged, and clips them if the environment requires it.
    - Dict and Tuple: the logits of all discrete parts, one part after the other in the order of the space, then the
      means of all Box parts, then the logarithms of their standard deviations.
    - DQN: log-probabilities of an epsilon-greedy choice at the epsilon among the weights. A client that samples
      from the softmax explores as the sampler does; one that uses the highest is greedy.

    The file has the current statistics of filters. It is at least 160 KiB large.

    Raises:
        ConfigError: The policy is the user's own code, has a memory, stacks frames, has connectors that no graph
            expresses, or observations of integers that float32 does not hold.
    """
    where = "RLlink model"
    networks, graphs, steps, output = _source(where, policy, _ASK)
    assert isinstance(policy, NetworkPolicy)
    preprocess, head = networks.preprocess, networks.backend.head
    if networks.state_sizes or steps.frames or steps.agents:
        raise ConfigError(
            f"{where}: policy {policy.policy_id!r}: it reads states, frames or agent ids, which an RLlink model cannot "
            f"receive, expected a policy that reads observations alone; {_ASK}"
        )
    weights, masked = networks.backend.get_weights(policy.index), preprocess.mask_width > 0
    ends = GraphEnds()
    ends.observe_flat(preprocess, INPUT, functools.partial(steps.add, ends))
    ends.embed(_distribution(graphs.build("evaluate", False, masked)), weights)
    found = f"{PREFIX}{OUTPUT}"
    if head.numbers:
        scale, shift = output.outer_scaling(head.inputs)
        found = ends.add("Mul", found, ends.constant(scale, np.float32))
        found = ends.add("Add", found, ends.constant(shift, np.float32))
    found = head.client_inputs(ends, found, weights, MASK if masked else "")
    ends.result(OUTPUT, np.float32, [ROWS, head.inputs], found)
    missing = LEAST_BYTES - ends.described(policy, {"padding": ""}).ByteSize()
    return bytes(ends.described(policy, {"padding": "0" * max(0, missing)}).SerializeToString())


def onnx_file(model: bytes) -> str:
    """Return a model as messages carry it: base64 of gzip. Equal models give equal text."""
    # Weights hardly become smaller however long it takes; runs, such as padding, are found at once.
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return base64.b64encode(packer.compress(model) + packer.flush()).decode("ascii")


def _distribution(model: bytes) -> onnx.ModelProto:
    """Return what computes the distribution inputs alone."""
    whole = onnx.load_from_string(model)
    part = Extractor(whole).extract_model([given.name for given in whole.graph.input], [OUTPUT])
    used = {name for node in part.graph.node for name in node.input}
    kept = [given for given in part.graph.input if given.name in used]
    del part.graph.input[:]
    part.graph.input.extend(kept)
    return part
