"""OnnxBackend: acting with ONNX Runtime on the CPU: P policies of one architecture, whole batches of rows, no torch.

The sampler calls `decide`; a closed fragment calls `evaluate` and `values`. Weights are one contiguous array [P, ...]
per name that every run reads, so learning changes the next decision without rebuilding anything. A row's result is
bit-identical in every batch: single rows are padded to two, because ONNX Runtime rounds batches of one row differently.

A `GraphSession` gets new arrays every time, for batches that are large or never the same; a `BoundSession` copies its
rows into buffers that ONNX Runtime knows already, which saves 3 us per run. Few rows of several policies take one run
of their stacked networks, in which every policy computes all rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from menv.errors import ConfigError
from menv.inference.acting_graphs import ActingGraphs, GraphKind, StoredGraphs
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

Feed: TypeAlias = dict[str, npt.NDArray[Any]]

Run: TypeAlias = Callable[[], Any]

_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(bool)": np.bool_,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
}
_FLOAT = np.dtype(np.float32)


Columns: TypeAlias = Mapping[str, npt.NDArray[Any] | None]
"""Inputs of R rows by name: obs [R, F] with any strides, mask, noise and state as the graph has them; of stacked
networks `pick` and `which` [R], too."""


@dataclass(frozen=True, slots=True)
class GraphSession:
    """An open session with the weights of one policy, or of all policies, stacked.

    Attributes:
        feed: Reused by every run: only the arrays of rows are replaced. Weights may change in place.
        shared: The weights of `feed` as ONNX Runtime sees them; they share its memory.
        rows: The other inputs, by name.
    """

    session: ort.InferenceSession
    feed: Feed
    shared: dict[str, ort.OrtValue]
    rows: dict[str, Any]
    outputs: list[str]

    @classmethod
    def of(cls, session: ort.InferenceSession, weights: Feed) -> GraphSession:
        shared = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
        rows = {given.name: given for given in session.get_inputs() if given.name not in weights}
        return cls(session, dict(weights), shared, rows, [output.name for output in session.get_outputs()])

    def run(self, columns: Columns) -> Feed:
        """Return the outputs of R rows; a single one is computed twice."""
        for name, given in self.rows.items():
            column = columns[name]
            assert column is not None
            column = np.concatenate((column, column)) if len(column) == 1 else column
            # Stacked networks have one lane of rows.
            self.feed[name] = column[None] if len(given.shape) > column.ndim else column
        count = len(columns["obs"] if columns["obs"] is not None else ())
        outputs = self.session.run(self.outputs, self.feed)
        return {name: output[:count] for name, output in zip(self.outputs, outputs, strict=True)}


class BoundSession:
    """Runs an "act" or "greedy" graph on one number of rows, through fixed buffers.

    A single row is computed twice, because ONNX Runtime rounds batches of one row differently. The session keeps
    `runner`, because an `OrtValue` need not keep its array alive.
    """

    def __init__(self, runner: GraphSession, rows: int) -> None:
        computed = max(rows, 2)
        sizes = {"R": computed, "L": 1, "D": computed}
        buffers = {name: _buffer(given, sizes) for name, given in runner.rows.items()}
        results = {given.name: _buffer(given, sizes) for given in runner.session.get_outputs()}
        self._run, self._held = bound_run(runner, buffers, results)
        self._buffers = [(name, one, (rows, *one.shape[1:][-1:]), one.dtype) for name, one in buffers.items()]
        self._answer = results["action"][:rows]
        self._inputs: Floats | None = results["dist_inputs"][:rows] if "dist_inputs" in results else None
        self._after: Floats | None = results["state_after"][:rows] if "state_after" in results else None
        self._is_finite = _finite_check(results)

    def __call__(self, columns: Columns) -> Decision:
        """Return the decision on R rows, in new arrays."""
        for name, buffer, shape, dtype in self._buffers:
            given = columns[name]
            # Assignment alone would silently convert types and broadcast columns.
            if given is None or given.shape != shape or given.dtype != dtype:
                found = "missing" if given is None else f"{given.dtype} {list(given.shape)}"
                raise ConfigError(
                    f"OnnxBackend: {name} is {found}, expected {dtype} {list(shape)}; convert it before acting"
                )
            buffer[...] = given
        self._run()
        inputs = None if self._inputs is None else self._inputs.copy()
        after = None if self._after is None else self._after.copy()
        return Decision(self._answer.copy(), inputs, after, self._is_finite())


MOST_MEMORY = 1 << 29
"""Bytes of all values that models of files compute at once in a process."""


@functools.cache
def _bound_memory() -> None:
    """Give sessions that ask for it one arena of limited memory; ONNX Runtime has one for each process."""
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(info, ort.OrtArenaCfg(MOST_MEMORY, -1, -1, -1))


def open_session(model: bytes, *, bounded: bool = False) -> ort.InferenceSession:
    """Open a session on the CPU that uses one thread and never spins; `bounded` for a model of a file."""
    options = ort.SessionOptions()
    # This fusion would change the rounding of wide layers; the graphs use Gemm where it does not.
    disabled = ["MatMulAddFusion"]
    if bounded:
        _bound_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
        # It would compute constants of any size before the first run, outside of the arena.
        disabled.append("ConstantFolding")
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Without this the first bytes may select a format that `model_check` has not examined.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return ort.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
    )


def bound_run(runner: GraphSession, inputs: Feed, outputs: Feed) -> tuple[Run, object]:
    """Return a function that runs a graph from and into arrays, and an object that the caller keeps alive with it.

    `InferenceSession.run_with_iobinding` also checks for graphs captured by other devices, which costs 1 us or more per
    run, so the private method under it is called where it exists.
    """
    session, binding = runner.session, runner.session.io_binding()
    for name, value in runner.shared.items():
        binding.bind_ortvalue_input(name, value)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    found = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in outputs.items()}
    for name, value in found.items():
        binding.bind_ortvalue_output(name, value)
    inner: Any = getattr(session, "_sess", None)
    bound: Any = getattr(binding, "_iobinding", None)
    if bound is not None and hasattr(inner, "run_with_iobinding"):
        run = partial(inner.run_with_iobinding, bound, None)
    else:
        run = partial(session.run_with_iobinding, binding)
    return run, (runner, binding, inputs, outputs, values, found)


def _buffer(node: Any, sizes: Mapping[str, int]) -> npt.NDArray[Any]:
    return np.zeros([sizes.get(size, size) for size in node.shape], _DTYPES[node.type])


def _finite_check(outputs: Mapping[str, npt.NDArray[Any]]) -> Callable[[], bool]:
    """Return a function that checks whether outputs are finite; they may change in place later."""
    checks = [
        partial(all_finite, outputs[name], choices=True)
        for name in ("dist_inputs", "q_values")
        if name in outputs
    ]
    if outputs["action"].dtype == _FLOAT:
        checks.append(partial(all_finite, outputs["action"], choices=False))
    return checks[0] if len(checks) == 1 else lambda: all(check() for check in checks)


BoundKey: TypeAlias = tuple[GraphKind, int | None, bool, int]
"""Graph, policy (None: all of them stacked), whether every choice is allowed, number of rows."""

# About 115 wasted rows of a 2x64 network, or 43 of 2x128, cost as much as another run, 12 us. A row costs its number of
# weights and a constant.
_RUN_WORK = 2_200_000
_ROW_WORK = 10_000

# Batches up to this size use bound buffers; at about three times this size the copy costs what binding saves.
_BOUND_NUMBERS = 16_384
# Buffers are kept for this many row counts. Binding a new one costs 17 us.
_BOUND_RUNNERS = 256


class OnnxBackend(ActingBackend):
    """The `ActingBackend` that runs ONNX graphs on the CPU, in one thread.

    Each graph is built when first needed (a session opens in 4 to 8 ms). Weights that differ in names or shapes between
    policies are a ConfigError.
    """

    name = "onnx"

    def __init__(
        self, graphs: ActingGraphs, head: ActionHead, weights: Sequence[Weights], state_size: int = 0
    ) -> None:
        super().__init__(head, weights[0], state_size)
        self._graphs = graphs
        # [P, ...] by name; P is `_policies`.
        self._stacks = {name: np.empty((0, *shape), np.float32) for name, shape in self.shapes.items()}
        self._policies = 0
        for one in weights:
            self._append(one)
        numbers = sum(math.prod(shape) for shape in self.shapes.values())
        self._spare_rows = _RUN_WORK // (_ROW_WORK + numbers) if graphs.stacks else 0
        self._sessions: dict[tuple[GraphKind, bool, bool], ort.InferenceSession] = {}
        self._numbers_a_row = head.mask_width + head.noise_width + state_size
        self._runners: dict[tuple[GraphKind, int | None, bool], GraphSession] = {}
        self._bound: dict[BoundKey, BoundSession] = {}

    def __reduce__(self) -> Any:
        weights = [self.get_weights(policy) for policy in range(self.policies)]
        if not isinstance(self._graphs, StoredGraphs):
            # Built once: the back-end is pickled again whenever policies are added or removed.
            self._graphs = StoredGraphs.of(self._graphs, masks=self.head.mask_width > 0)
        return OnnxBackend, (self._graphs, self.head, weights, self.state_size)

    @property
    def obs_size(self) -> int:
        inputs = self._session("act", False, False).get_inputs()
        return next(int(given.shape[1]) for given in inputs if given.name == "obs")

    @property
    def policies(self) -> int:
        return self._policies

    def decide(
        self,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        which: Which = None,
        state: Floats | None = None,
    ) -> Decision:
        kind: GraphKind = "greedy" if noise is None else "act"
        if which is None or isinstance(which, int):
            return self._answer(kind, which or 0, obs, mask, noise, state)
        rows = len(which)
        if rows < 2 or self._policies == 1:
            return self._answer(kind, int(which[0]) if rows else 0, obs, mask, noise, state)
        others, spare = (self._policies - 1) * rows, self._spare_rows
        # Every policy computes all rows where that costs less than one run for each policy that has rows; most may have
        # none: past versions of one that learns, or removed ones.
        if others > spare and (rows > spare or others > spare * (len(set(which.tolist())) + 1)):
            return self._decide_each(partial(self._answer, kind), which, (obs, mask, noise, state))
        return self._answer(kind, None, obs, mask, noise, state, which)

    def _evaluated(
        self, policy: int, obs: Rows, mask: Flags | None, actions: Actions, state: Floats | None
    ) -> ForwardOutputs:
        if len(obs) == 0:
            return ForwardOutputs(np.empty((0, self.head.inputs), np.float32), np.empty(0, np.float32))
        columns = {"obs": obs, "actions": actions, "mask": mask, "state": state}
        found = self._runner("evaluate", policy, mask is not None).run(columns)
        return ForwardOutputs(found["dist_inputs"], found["logp"])

    def _valued(self, policy: int, obs: Rows, state: Floats | None) -> Floats:
        if len(obs) == 0:
            return np.empty(0, np.float32)
        return self._runner("values", policy, False).run({"obs": obs, "state": state})["values"]

    def critic_state(self, policy: int, obs: Rows, state: Floats) -> Floats:
        return self._runner("values", policy, False).run({"obs": obs, "state": state})["state_after"]

    def add_policy(self, weights: Weights | None = None) -> int:
        self._append(self.get_weights(0) if weights is None else weights)
        # They hold views of arrays that have been replaced.
        self._runners.clear()
        self._bound.clear()
        return self.policies - 1

    def set_weights(self, policy: int, weights: Weights) -> None:
        self._require_policy(policy)
        for name, value in self._checked(weights).items():
            self._stacks[name][policy] = value

    def get_weights(self, policy: int) -> dict[str, Floats]:
        self._require_policy(policy)
        return {name: stack[policy].copy() for name, stack in self._stacks.items()}

    def _append(self, weights: Weights) -> None:
        checked = self._checked(weights)
        for name, stack in self._stacks.items():
            self._stacks[name] = np.concatenate([stack, checked[name][None]])
        self._policies += 1

    def _checked(self, weights: Weights) -> dict[str, Floats]:
        """Return weights as float32; ConfigError for a name or shape that differs."""
        check_shapes("OnnxBackend", weights, self.shapes)
        return {name: np.asarray(weights[name], np.float32) for name in self.shapes}

    def extract_policy(self, policy: int) -> OnnxBackend:
        one = OnnxBackend(self._graphs, self.head, [self.get_weights(policy)], self.state_size)
        # Sessions hold no weights, and several threads may run one.
        one._sessions = self._sessions
        return one

    def _answer(
        self,
        kind: GraphKind,
        policy: int | None,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        state: Floats | None,
        which: npt.NDArray[np.int64] | None = None,
    ) -> Decision:
        """Run one policy on rows, or all of them if `policy` is None."""
        rows = len(obs)
        columns: dict[str, npt.NDArray[Any] | None] = {
            "obs": obs,
            "mask": mask,
            "noise": noise,
            "state": state,
        }
        if which is not None:
            columns |= {"which": which, "pick": which * rows + np.arange(rows)}
        key = (kind, policy, mask is None, rows)
        bound = self._bound.get(key)
        if bound is None:
            if rows == 0:
                return self._empty(0)
            if rows > 1 and obs.size + rows * self._numbers_a_row > _BOUND_NUMBERS:
                found = self._runner(kind, policy, mask is not None).run(columns)
                return Decision(
                    found["action"],
                    found.get("dist_inputs"),
                    found.get("state_after"),
                    _finite_check(found)(),
                )
            bound = BoundSession(self._runner(kind, policy, mask is not None), rows)
            if len(self._bound) == _BOUND_RUNNERS:
                self._bound.clear()
            self._bound[key] = bound
        return bound(columns)

    def _runner(self, kind: GraphKind, policy: int | None, masked: bool) -> GraphSession:
        """Return the runner of one policy, or of all of them stacked if `policy` is None."""
        key = kind, policy, masked
        if key in self._runners:
            return self._runners[key]
        if policy is not None:
            self._require_policy(policy)
        session = self._session(kind, policy is None, masked)
        weights: Feed = {}
        for given in session.get_inputs() + session.get_overridable_initializers():
            if given.name in self._stacks:
                stack = self._stacks[given.name]
                weights[given.name] = (
                    stack.reshape(len(stack), *given.shape[1:]) if policy is None else stack[policy]
                )
        runner = GraphSession.of(session, weights)
        self._runners[key] = runner
        return runner

    def _session(self, kind: GraphKind, stacked: bool, masked: bool) -> ort.InferenceSession:
        key = (kind, stacked, masked)
        if key not in self._sessions:
            bounded = isinstance(self._graphs, StoredGraphs) and self._graphs.bounded
            self._sessions[key] = open_session(self._graphs.build(kind, stacked, masked), bounded=bounded)
        return self._sessions[key]
