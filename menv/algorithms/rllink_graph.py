"""A policy as the ONNX file that RLlink clients read: one input, one output, the current weights.

A server asks for a model after each update and sends the text of `onnx_file`. The graph is built once; later models
are the same bytes with other numbers in them. Needs onnx, but neither torch nor ONNX Runtime.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from onnx.utils import Extractor

import menv
from menv.algorithms.networks.stock_spec import EPSILON
from menv.algorithms.onnx_export import MASK, PREFIX, ROWS, GraphEnds, filtered
from menv.connectors.action_output import ActionOutput
from menv.connectors.built_in import (
    ClipActionsConnector,
    ClipRewardAgentConnector,
    ConvertToNumpyConnector,
    ImmutableActionsConnector,
)
from menv.connectors.connector import Connector
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.obs_preprocessor import ObsPreprocessorConnector
from menv.connectors.pipeline import ActionPlan, action_plan, is_passive, leaf_connectors
from menv.errors import ConfigError
from menv.inference.action_heads import LEAST_CHANCE, ActionHead
from menv.inference.network_policy import NetworkPolicy
from menv.policy import Policy

Array = npt.NDArray[Any]

INPUT = "onnx::Gemm_0"
"""The input's name, to which clients have grown used."""
OUTPUT = "dist_inputs"
"""The output's name, which they do not ask for."""
LEAST_BYTES = 160 * 1024
"""Old clients open their file for reading while the end of it is in a write buffer of up to 128 KiB: of a file that is
smaller they see nothing."""

_PADDING = "padding"
_GZIP = 16 + zlib.MAX_WBITS  # zlib then writes the header of a gzip file, without a time
# The highest logit stays the highest where epsilon is 1, for clients that take it.
_MOST_EPSILON = 1.0 - 1e-6
_LEFT_TO_CLIENTS = (ClipActionsConnector, ConvertToNumpyConnector, ImmutableActionsConnector)
_ASK = "let clients ask for each action (GET_ACTION)"
_INSTEAD = f'{_ASK}, or use PolicyClient with inference_mode="local"'


class RLlinkGraph:
    """Makes the ONNX files of one policy.

    A file has one input, `onnx::Gemm_0`, float32 [rows, N]: observations flattened in C order; of Dict and Tuple
    spaces one part after the other in the order of the space, action masks included; a Discrete part is one number.
    Images of bytes are given as they are, 0 to 255. It has one output, `dist_inputs`, float32 [rows, K]:

    - Discrete: a logit for each choice; choice k is the action `start + k`. MultiDiscrete: those of each component, one
      after the other. Choices that a mask forbids have no chance.
    - Box: k means and then k logarithms of standard deviations, of the environment's own actions: a client applies what
      it draws as it is, and clips it if the environment wants that.
    - Dict and Tuple: the logits of all discrete parts, one part after the other in the order of the space, then the
      means of all Box parts, then the logarithms of their standard deviations.
    - DQN: logarithms of the chances of an epsilon-greedy choice at the epsilon among the weights. A client that draws
      from the softmax explores as the sampler does; one that takes the highest is greedy.

    Statistics of filters are those of the moment when a model is made. Not for several threads at once.

    Args:
        policy: Of an algorithm, or from `Policy.from_checkpoint`.

    Attributes:
        policy: The policy.

    Raises:
        ConfigError: The policy is code of a user's own, has a memory, connectors that no graph expresses, or
            observations of integers that float32 does not hold.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = _checked(policy)
        self._version = -1
        self._filters: list[MeanStdObservationFilterAgentConnector]
        self._file: onnx.ModelProto
        self._slots: dict[str, onnx.TensorProto]
        self._shapes: dict[str, tuple[int, ...]]
        self._build()

    def model(self, weights: Mapping[str, Array] | None = None) -> bytes:
        """Return a self-contained ONNX file of at least 160 KiB.

        Args:
            weights: By name, as the policy's `get_weights` returns them; None means its current ones.

        Raises:
            ConfigError: A weight is missing or has another shape, or connectors were added that no graph expresses.
        """
        if self._version != self._connectors_version():
            self._build()
        given = self.policy.get_weights() if weights is None else weights
        for name, shape in self._shapes.items():
            value = given.get(name)
            if value is None or np.shape(value) != shape:
                raise ConfigError(
                    f"RLlinkGraph: weight {name!r} of shape {None if value is None else np.shape(value)}, expected "
                    f"{shape}; give the weights of policy {self.policy.policy_id!r}"
                )
            self._put(PREFIX + name, value)
        for number, one in enumerate(_plan(self.policy)[1]):
            for name, value in zip(_statistics(number), one.applied, strict=True):
                # A filter that has seen nothing does not know yet how wide rows are.
                if len(value):
                    self._put(name, value)
        return bytes(self._file.SerializeToString())

    def _put(self, name: str, value: Array) -> None:
        self._slots[name].raw_data = np.asarray(value, "<f4").tobytes()

    def _connectors_version(self) -> int:
        return self.policy.networks.connectors[self.policy.index].version

    def _build(self) -> None:
        policy, networks = self.policy, self.policy.networks
        graphs, preprocess, head = networks.graphs(), networks.preprocess, networks.backend.head
        assert graphs is not None
        plan, self._filters = _plan(policy)
        self._version = self._connectors_version()
        weights = policy.get_weights()
        ends = GraphEnds()
        ends.observe_flat(preprocess, INPUT, lambda rows: self._filtered(ends, rows, preprocess.size))
        ends.embed(_distribution(graphs.build("evaluate", False, preprocess.mask_width > 0)), weights)
        found = f"{PREFIX}{OUTPUT}"
        if head.numbers:
            output = ActionOutput(networks.action_space, normalize=plan.normalize, clip=plan.clip)
            found = _in_env_units(ends, found, output, head.inputs)
        elif head.is_value_based:
            found = _epsilon_greedy(ends, found, head, weights[EPSILON], preprocess.mask_width > 0)
        ends.result(OUTPUT, TensorProto.FLOAT, [ROWS, head.inputs], found)
        self._file = _file(ends, policy)
        self._slots = {constant.name: constant for constant in self._file.graph.initializer}
        self._shapes = {
            name: np.shape(value) for name, value in weights.items() if PREFIX + name in self._slots
        }

    def _filtered(self, ends: GraphEnds, rows: str, width: int) -> str:
        """Add the filters of means and deviations, their statistics as constants that are written later."""
        for number, one in enumerate(self._filters):
            rows = filtered(ends, rows, (np.zeros(width), np.ones(width)), one.clip, _statistics(number))
        return rows


def onnx_file(model: bytes) -> str:
    """Return a model as messages carry it: base64 of gzip. Equal models give equal text."""
    # Weights hardly become smaller however long it takes; runs, such as padding, are found at once.
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return base64.b64encode(packer.compress(model) + packer.flush()).decode("ascii")


def _checked(policy: Policy) -> NetworkPolicy:
    name = getattr(policy, "policy_id", type(policy).__name__)
    if not isinstance(policy, NetworkPolicy):
        why, instead = f"{type(policy).__name__} is code of your own, which has no graph", _ASK
    elif policy.networks.graphs() is None:
        why, instead = "its network has no acting graphs", _ASK
    elif policy.networks.state_sizes:
        numbers = sum(policy.networks.state_sizes)
        why, instead = f"it remembers {numbers} numbers, for which an RLlink model has no place", _INSTEAD
    else:
        return policy
    raise ConfigError(
        f"RLlinkGraph: policy {name!r}: {why}, expected a stock network without a memory; {instead}"
    )


def _plan(policy: NetworkPolicy) -> tuple[ActionPlan, list[MeanStdObservationFilterAgentConnector]]:
    """Return how actions are scaled, and the filters that rows go through in order."""
    own = policy.networks.connectors[policy.index]
    plan, filters, seen = action_plan(own.action), [], False
    unknown: list[Connector] = [one for one in plan.rest if type(one) not in _LEFT_TO_CLIENTS]
    for one in leaf_connectors(own.agent):
        if type(one) is ObsPreprocessorConnector and not seen:
            seen = True
        elif type(one) is MeanStdObservationFilterAgentConnector and seen:
            filters.append(one)
        elif type(one) is not ClipRewardAgentConnector and not is_passive(one):
            unknown.append(one)
    if unknown or not seen:
        names = ", ".join(one.name for one in unknown) or "no ObsPreprocessorConnector"
        raise ConfigError(
            f"RLlinkGraph: policy {policy.policy_id!r}: connectors that no graph expresses: {names}, expected the "
            f"usual ones and filters of means; leave the others out, or {_INSTEAD}"
        )
    return plan, filters


def _statistics(number: int) -> tuple[str, str]:
    return f"filter_{number}.shift", f"filter_{number}.scale"


def _distribution(model: bytes) -> onnx.ModelProto:
    whole = onnx.load_from_string(model)
    part = Extractor(whole).extract_model([given.name for given in whole.graph.input], [OUTPUT])
    used = {name for node in part.graph.node for name in node.input}
    kept = [given for given in part.graph.input if given.name in used]
    del part.graph.input[:]
    part.graph.input.extend(kept)
    return part


def _in_env_units(ends: GraphEnds, found: str, output: ActionOutput, width: int) -> str:
    """Turn `width` distribution inputs of the network's actions into those of the environment's."""
    scale, shift = output.outer_scaling(width)
    found = ends.add("Mul", found, ends.constant(scale, np.float32))
    return ends.add("Add", found, ends.constant(shift, np.float32))


def _epsilon_greedy(ends: GraphEnds, worth: str, head: ActionHead, epsilon: Array, masked: bool) -> str:
    """Turn Q-values into logarithms of the chances of an epsilon-greedy choice."""
    count, last, one = head.sizes[0], ends.constant([-1]), ends.constant(1.0, np.float32)
    by_component, by_row = ends.constant([-1, count]), ends.constant([-1, head.inputs])
    worth = ends.add("Reshape", worth, by_component)
    best = ends.add("ArgMax", worth, axis=-1, keepdims=1)
    best = ends.add("Cast", ends.add("Equal", ends.constant(np.arange(count)), best), to=TensorProto.FLOAT)
    share = ends.constant(epsilon, np.float32, PREFIX + EPSILON)
    share = ends.add("Min", share, ends.constant(_MOST_EPSILON, np.float32))
    if masked:
        legal = ends.add("Cast", ends.add("Reshape", MASK, by_component), to=TensorProto.FLOAT)
    else:
        legal = ends.constant(np.ones(count), np.float32)
    total = ends.add("Max", ends.add("ReduceSum", legal, last, keepdims=1), one)
    any_legal = ends.add("Mul", share, ends.add("Div", legal, total))
    chance = ends.add("Add", any_legal, ends.add("Mul", best, ends.add("Sub", one, share)))
    chance = ends.add("Max", chance, ends.constant(LEAST_CHANCE, np.float32))
    return ends.add("Reshape", ends.add("Log", chance), by_row)


def _file(ends: GraphEnds, policy: NetworkPolicy) -> onnx.ModelProto:
    about = {"menv": menv.__version__, "policy_id": policy.policy_id, _PADDING: ""}
    model = ends.described(about)
    missing = LEAST_BYTES - model.ByteSize()
    if missing > 0:
        about[_PADDING] = "0" * missing
        helper.set_model_props(model, about)
    return model
