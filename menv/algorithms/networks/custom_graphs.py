"""CustomGraphs: ONNX acting graphs of a user's module for exported policies, written by torch's exporter.

Training and acting use torch. The exporter takes some seconds and runs once; the tails are the ones of stock networks.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor, nn

from menv.algorithms.networks.graph_builder import GraphBuilder
from menv.algorithms.networks.stock_graphs import add_policy
from menv.algorithms.networks.torch_custom import build_module, initial_state, learned
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError
from menv.inference.acting_graphs import GraphKind
from menv.inference.model_check import refuse_unsafe_model

if TYPE_CHECKING:
    from menv.algorithms.networks.custom_model import CustomSpec

_BODY = "module/"
"""Prefix of the names of all values in the module."""
_FIRST_ROWS = 3
_MOST_SHOWN = 200
_LOGS = ("torch.onnx", "torch.fx.experimental.symbolic_shapes", "torch.export")


class CustomGraphs:
    """Builds the acting graphs of one `CustomSpec`; it has no stacked graphs and none of state values."""

    stacks = False

    def __init__(self, spec: CustomSpec) -> None:
        self.spec = spec
        self._body: onnx.ModelProto | None = None
        self._why_not = ""

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return a serialized model."""
        assert not stacked, "modules have no stacked graphs"
        assert kind != "values", "exported modules have no graph of values"
        graph = _Builder(self.spec, self._exported())
        add_policy(graph, self.spec.head, kind, masked)
        return graph.serialised(kind, {})

    def _exported(self) -> onnx.ModelProto:
        if self._body is None and not self._why_not:
            try:
                self._body = _exported(_Rows(self.spec))
                refuse_unsafe_model(self._body.SerializeToString(), "module")
            except Exception as error:
                # The exporter raises errors of any kind, and so does the module.
                self._body, self._why_not = None, _summary(error)
        if self._body is None:
            name = getattr(self.spec.model, "__name__", type(self.spec.model).__name__)
            raise ConfigError(
                f"custom_model {name}: torch.onnx cannot express it ({self._why_not}), expected a forward without "
                "branches and loops that depend on numbers; change it, or leave acting to processes that have the "
                "module, and torch"
            )
        return self._body


def _summary(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.{_MOST_SHOWN}}"


class _Rows(nn.Module):
    """A module as acting needs it: rows [R, F], and the state [R, S] if there is one, to outputs and the next state."""

    first: Tensor

    def __init__(self, spec: CustomSpec) -> None:
        super().__init__()
        self.module = build_module(spec, 0)
        self._structure = spec.structure
        first = initial_state(self.module)
        self.state_sizes = [len(part) for part in first]
        self.register_buffer("first", torch.cat(first) if first else torch.zeros(0, dtype=torch.float32))

    def forward(self, rows: Tensor, state: Tensor | None = None) -> Any:
        """Return outputs [R, D], and with a state the one after them."""
        shown = self._structure(rows)
        if state is None:
            found = self.module(shown)
            return found[0] if isinstance(found, tuple) else found
        # `torch.split` is exported as a sequence, whose size the model check cannot bound.
        whole, sizes = state + self.first, self.state_sizes
        parts = [whole.narrow(1, sum(sizes[:place]), size) for place, size in enumerate(sizes)]
        outputs, *_, after = self.module(_one_step(shown), parts)
        return outputs.flatten(0, 1), torch.cat(list(after), 1) - self.first


def _one_step(value: Any) -> Any:
    """Return rows [R, ...] as sequences of one, [R, 1, ...], within dicts and tuples too."""
    if isinstance(value, Tensor):
        return value.unsqueeze(1)
    if isinstance(value, Mapping):
        return {name: _one_step(part) for name, part in value.items()}
    return tuple(_one_step(part) for part in value)


def _exported(rows: _Rows) -> onnx.ModelProto:
    size, width = rows._structure.size, sum(rows.state_sizes)
    widths = (size, width) if width else (size,)
    given = [torch.zeros(_FIRST_ROWS, one, dtype=torch.float32) for one in widths]
    count = torch.export.Dim("R")
    shapes = tuple({0: count} for _ in given)
    with _quietly():
        # The optimizer would fold weights together.
        program = torch.onnx.export(
            rows, tuple(given), dynamo=True, dynamic_shapes=shapes, optimize=False, verbose=False,
            input_names=["rows", "state"][: len(given)], output_names=["outputs", "after"][: len(given)],
        )  # fmt: skip
    assert program is not None
    model = program.model_proto
    names = {id(param): name for name, param in learned(rows.module).items()}
    params = dict(rows.named_parameters(remove_duplicate=False))
    own = {name: names[id(param)] for name, param in params.items() if id(param) in names}
    _rename(model.graph, own)
    return model


@contextmanager
def _quietly() -> Iterator[None]:
    logs = [logging.getLogger(name) for name in _LOGS]
    levels = [log.level for log in logs]
    # It prints graphs that it cannot export. Replacing stderr would affect all threads.
    try:
        prints = vars(importlib.import_module("torch.export._trace"))
    except ImportError:  # a private module of torch
        prints = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for log in logs:
            log.setLevel(logging.CRITICAL)
        prints["print"] = lambda *words, **more: None
        try:
            yield
        finally:
            prints.pop("print", None)
            for log, level in zip(logs, levels, strict=True):
                log.setLevel(level)


def _rename(graph: onnx.GraphProto, learned_names: Mapping[str, str]) -> None:
    outside = {"": "", "state": "state", **learned_names}

    def own(name: str) -> str:
        return outside.get(name, f"{_BODY}{name}")

    for node in graph.node:
        node.name = f"{_BODY}{node.name}"
        for ends in (node.input, node.output):
            ends[:] = [own(name) for name in ends]
    for constant in graph.initializer:
        constant.name = own(constant.name)


class _Builder(GraphBuilder):
    """A graph whose policy is a module that has been exported."""

    own_deviations = True

    def __init__(self, spec: CustomSpec, body: onnx.ModelProto) -> None:
        super().__init__(spec, False)  # type: ignore[arg-type] # nothing of a stock network is asked for
        self.opset, self.ir_version = body.opset_import[0].version, body.ir_version
        pixels = ObsPreprocessor(spec.observation_space).dtype == np.uint8
        self.given("obs", TensorProto.UINT8 if pixels else TensorProto.FLOAT, ["R", spec.obs_size])
        self.nodes.append(
            onnx.helper.make_node("Cast", ["obs"], [f"{_BODY}rows"], "Cast_obs", to=TensorProto.FLOAT)
        )
        if spec.state_sizes:
            self.given("state", TensorProto.FLOAT, ["R", sum(spec.state_sizes)])
        shapes = spec.weight_shapes()
        for constant in body.graph.initializer:
            if constant.name in shapes:
                self.weight(constant.name, shapes[constant.name])
            else:
                self.constants.append(constant)
        self.nodes.extend(body.graph.node)

    def policy_outputs(self) -> str:
        """Return what the module gives first."""
        return f"{_BODY}outputs"

    def state_after(self) -> str:
        """Return the state that it gives."""
        return f"{_BODY}after"
