"""A user's module as a network: `TorchCustom` runs it, `CustomGraphs` exports its acting graphs.

`build_module` checks that it keeps the contract of `custom_model`. Training and acting use torch. The graphs are for
policies on disk: torch's exporter writes them once, in some seconds, and the tails are the ones of stock networks.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from menv.algorithms.networks.custom_model import VALUE_SCALE, VALUE_SHIFT
from menv.algorithms.networks.graph_builder import ActingGraph
from menv.algorithms.networks.stock_graphs import add_policy
from menv.algorithms.networks.stock_spec import UnitWeights
from menv.connectors.action_output import each_part
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError, in_words
from menv.inference.acting_graphs import GraphKind
from menv.inference.heads.head import masked
from menv.inference.model_check import refuse_unsafe_model
from menv.migration_hints import warn_of_uncalled

if TYPE_CHECKING:
    from menv.algorithms.networks.custom_model import CustomSpec

_TRIAL_ROWS, _TRIAL_STEPS = 2, 3
_MOST_LAYERS = 50
"""Maximum number of layers for which pairs are tried."""
_BODY = "module/"
"""Prefix of the names of all values of the module in its graph."""
_FIRST_ROWS = 3
_MOST_SHOWN = 200
_LOGS = ("torch.onnx", "torch.fx.experimental.symbolic_shapes", "torch.export")


class TorchCustom:
    """The module of `spec` over `params`, whose current values every call reads.

    Attributes:
        obs_size: F, numbers in a flat observation.
    """

    def __init__(self, spec: CustomSpec, params: Mapping[str, Tensor]) -> None:
        self.obs_size = spec.obs_size
        self._structure = spec.structure
        self._of_q_values = spec.head.is_value_based
        device = next(iter(params.values())).device
        # Everything that is not learned must be the same in all processes that run this network.
        self._module = build_module(spec, 0)
        self._params = {name: params[name] for name in learned(self._module)}
        self._scale, self._shift = params.get(VALUE_SCALE), params.get(VALUE_SHIFT)
        first = [part.to(device) for part in initial_state(self._module)]
        self._module.to(device)
        self._state_sizes = [len(part) for part in first]
        self._first_state = torch.cat(first) if first else torch.zeros(0, device=device, dtype=torch.float32)

    def dist_inputs(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> Tensor:
        return self.both(obs, mask, state)[0]

    def values(self, obs: Tensor, state: Tensor | None = None) -> Tensor:
        """Return [N] state values; of Q-values the highest of each row."""
        return self.both(obs, None, state)[1]

    def both(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        found = self._run(self._shown(obs)) if state is None else self._unrolled(obs, state)
        outputs: Tensor = found[0] if isinstance(found, tuple) else found
        values = outputs.amax(-1) if self._of_q_values else found[1]
        if self._scale is not None and self._shift is not None:
            values = values * self._scale + self._shift
        return masked(outputs, mask), values

    def step(self, obs: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and the state after them."""
        outputs, *_, after = self._unrolled(obs, state)
        # States are stored as differences from the initial state, so that every episode begins with zeros.
        return masked(outputs, mask), torch.cat(list(after), 1) - self._first_state

    def _run(self, *inputs: Any) -> Any:
        return torch.func.functional_call(self._module, self._params, inputs)

    def _unrolled(self, obs: Tensor, state: Tensor) -> tuple[Any, ...]:
        shown = laid_out(self._shown(obs), len(state))
        parts = list(torch.split(state + self._first_state, self._state_sizes, 1))
        *outputs, after = self._run(shown, parts)
        return (*(one.flatten(0, 1) for one in outputs), after)

    def _shown(self, obs: Tensor) -> Any:
        # A copy, because the module may write into it.
        return self._structure(obs.to(torch.float32, copy=True))


def laid_out(value: Any, sequences: int) -> Any:
    """Return rows [N, ...] as [B, N / B, ...], within dicts and tuples too."""
    return each_part(value, lambda rows: rows.reshape(sequences, -1, *rows.shape[1:]))


def initial_state(module: nn.Module) -> list[Tensor]:
    """Return the parts of the state that a module begins with, [S] each; [] without one."""
    found: Any = getattr(module, "get_initial_state", list)()
    if not isinstance(found, list | tuple) or any(part.ndim != 1 or not len(part) for part in found):
        raise ConfigError("get_initial_state: expected a list of tensors of one axis, [torch.zeros(size)]")
    return [part.detach().float().cpu() for part in found]


def build_module(spec: CustomSpec, seed: int) -> nn.Module:
    """Return a new, checked module in evaluation mode; torch's generator is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        try:
            module = spec.model(spec.structure.space, spec.head.inputs, **spec.config).eval()
            state = initial_state(module)
            # Lazy modules create their parameters here.
            with torch.enable_grad():
                found: Any = module(*_trial_inputs(spec, state))
        except Exception as error:
            raise ConfigError(
                f"{_where(spec)}: a trial call failed with {' '.join(in_words(error).split()):.{_MOST_SHOWN}}, "
                f"expected a torch.nn.Module built with {('obs_space', 'num_outputs', *spec.config)}, whose forward "
                f"takes observations of {spec.structure.space}, and a list of states if it has get_initial_state"
            ) from error
    why_not = _why_unfit(spec, module, state, found)
    if why_not is not None:
        raise ConfigError(f"{_where(spec)}: {why_not}; change the module")
    warn_of_uncalled(_where(spec), "Module", type(module))
    return module


def _why_unfit(spec: CustomSpec, module: nn.Module, state: list[Tensor], found: Any) -> str | None:
    """Return why a module with these first outputs cannot be learned or run, None if it can."""
    params = learned(module).values()
    if any(isinstance(part, _BatchNorm) for part in module.modules()):
        return "it has batch normalisation, expected LayerNorm or GroupNorm, because its statistics would never move"
    if not params or any(param.dtype != torch.float32 or param.device.type != "cpu" for param in params):
        return "expected parameters of float32 on the CPU that require gradients"
    rows = (_TRIAL_ROWS, _TRIAL_STEPS) if state else (_TRIAL_ROWS,)
    of_q_values = spec.head.is_value_based
    wanted = [(*rows, spec.head.inputs)] if of_q_values else [(*rows, spec.head.inputs), rows]
    parts = list(found) if isinstance(found, tuple) else [found]
    after = parts.pop() if state and parts else []
    # Values may follow the Q-values.
    parts = parts[:1] if of_q_values else parts
    if _shapes(parts) != wanted or _shapes(after) != [(_TRIAL_ROWS, len(part)) for part in state]:
        return (
            f"forward gave {_shapes(parts)}, expected {wanted} of float32{' and a list of states' if state else ''} "
            f"for {spec.structure.space} in {_TRIAL_ROWS} {'sequences' if state else 'rows'}"
        )
    return None if parts[0].requires_grad else "the outputs of forward have no gradient, expected one"


def _shapes(values: Any) -> list[Any]:
    """Return the shapes of tensors of float32, and the types of other values."""
    return [
        tuple(value.shape) if isinstance(value, Tensor) and value.dtype == torch.float32
        else getattr(value, "dtype", type(value).__name__)
        for value in (values if isinstance(values, list | tuple) else [values])
    ]  # fmt: skip


def _trial_inputs(spec: CustomSpec, state: list[Tensor]) -> tuple[Any, ...]:
    rows = _TRIAL_ROWS * (_TRIAL_STEPS if state else 1)
    obs = spec.structure(torch.zeros(rows, spec.obs_size, dtype=torch.float32))
    return (laid_out(obs, _TRIAL_ROWS), [part.expand(_TRIAL_ROWS, -1) for part in state]) if state else (obs,)


def learned(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a module by name; a shared parameter appears once."""
    return {name: param for name, param in module.named_parameters() if param.requires_grad}


def unit_weights(spec: CustomSpec) -> UnitWeights:
    """Return the weights of the last layer of the values, or of the Q-values.

    They are found by trial: when they double, the values double and no other output changes. Dueling Q-values have
    two such layers.
    """
    module = build_module(spec, 0)
    inputs = _trial_inputs(spec, initial_state(module))
    rng = torch.Generator().manual_seed(0)
    # Uneven weights: with biases of 0, earlier layers would double the values as well.
    params = {
        name: param.detach() + 0.1 * torch.randn(param.shape, generator=rng, dtype=torch.float32)
        for name, param in learned(module).items()
    }
    layers: dict[str, list[str]] = {}
    for name in params:
        layers.setdefault(name.rpartition(".")[0], []).append(name)

    @torch.no_grad()
    def values_and_others(change: Callable[[Tensor], Tensor], *changed: str) -> tuple[Tensor, list[Tensor]]:
        own = {name: change(params[name]) for layer in changed for name in layers.get(layer, [layer])}
        found = torch.func.functional_call(module, {**params, **own}, inputs)
        parts = list(found) if isinstance(found, tuple) else [found]
        others = list(parts.pop()) if spec.state_sizes else []
        return (parts[0], others) if spec.head.is_value_based else (parts[1], [parts[0], *others])

    values, others = values_and_others(torch.clone)

    def is_last(*names: str) -> bool:
        doubled, same = values_and_others(lambda weight: 2.0 * weight, *names)
        return torch.equal(doubled, 2.0 * values) and all(map(torch.equal, same, others))

    sizes = range(1, 3 if len(layers) <= _MOST_LAYERS else 2) if values.any() else ()
    for chosen in chain.from_iterable(combinations(layers, size) for size in sizes):
        if is_last(*chosen):
            names = [name for layer in chosen for name in layers[layer]]
            shifts = [name for name in names if params[name].numel() == 1 and torch.allclose(
                values_and_others(lambda weight: weight + 1.0, name)[0], values + 1.0
            )]  # fmt: skip
            return UnitWeights(dict.fromkeys(names, 1), next(iter(shifts), None))
    return UnitWeights({})


def _where(spec: CustomSpec) -> str:
    return f"model: custom_model {getattr(spec.model, '__name__', type(spec.model).__name__)}"


class CustomGraphs:
    """Builds the acting graphs of one `CustomSpec`; it has no stacked graphs and none of state values."""

    stacks = False

    def __init__(self, spec: CustomSpec) -> None:
        self.spec = spec
        self._body: onnx.ModelProto | None = None
        self._why_not = ""

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        assert not stacked, "modules have no stacked graphs"
        assert kind != "values", "exported modules have no graph of values"
        graph = _CustomGraph(self.spec, self._exported())
        add_policy(graph, self.spec.head, kind, masked)
        return graph.serialised(kind, {})

    def _exported(self) -> onnx.ModelProto:
        if self._body is None and not self._why_not:
            try:
                self._body = _exported(_Rows(self.spec))
                refuse_unsafe_model(self._body.SerializeToString(), "module")
            except Exception as error:
                # The exporter raises errors of any kind, and so does the module.
                while error.__cause__ is not None:
                    error = error.__cause__  # type: ignore[assignment]
                self._body, self._why_not = None, f"{' '.join(in_words(error).split()):.{_MOST_SHOWN}}"
        if self._body is None:
            raise ConfigError(
                f"{_where(self.spec)}: torch.onnx cannot express it ({self._why_not}), expected a forward without "
                "branches and loops that depend on numbers; change it, or let only processes with the module and torch "
                "act"
            )
        return self._body


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
        outputs, *_, after = self.module(each_part(shown, lambda part: part.unsqueeze(1)), parts)
        return outputs.flatten(0, 1), torch.cat(list(after), 1) - self.first


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


class _CustomGraph(ActingGraph):
    """A graph whose policy is a module that has been exported."""

    own_deviations = True

    def __init__(self, spec: CustomSpec, body: onnx.ModelProto) -> None:
        super().__init__(spec.state_sizes)
        self.opsets = [onnx.helper.make_opsetid("", body.opset_import[0].version)]
        self.ir_version = body.ir_version
        pixels = ObsPreprocessor(spec.observation_space).dtype == np.uint8
        self.given("obs", np.uint8 if pixels else np.float32, ["R", spec.obs_size])
        self.cast("obs", np.float32, f"{_BODY}rows")
        if spec.state_sizes:
            self.given("state", np.float32, ["R", sum(spec.state_sizes)])
        shapes = spec.weight_shapes()
        for constant in body.graph.initializer:
            if constant.name in shapes:
                self.weight(constant.name, shapes[constant.name])
            else:
                self.constants.append(constant)
        self.nodes.extend(body.graph.node)

    def policy_outputs(self) -> str:
        return f"{_BODY}outputs"

    def state_after(self) -> str:
        return f"{_BODY}after"
