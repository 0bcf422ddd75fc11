"""A graph that is ready to run: an open session together with the weights of one policy, or of all.

`OnnxActing` makes and keeps them. A `GraphSession` is handed new arrays every time, for batches that are large or
never the same; a `BoundSession` copies its rows into buffers that ONNX Runtime was shown once, which saves
3 us a run. Nothing here knows where weights come from or whose rows these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from menv.errors import ConfigError
from menv.inference.backend import Decision, Flags, Floats, PolicyBatches, Rows, all_finite

Feed: TypeAlias = dict[str, npt.NDArray[Any]]

Run: TypeAlias = Callable[[], Any]

_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(bool)": np.bool_,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
}
_FLOAT = np.dtype(np.float32)
_FLAG = np.dtype(np.bool_)


@dataclass(frozen=True, slots=True)
class GraphSession:
    """An open session, its weights already in the feed.

    Attributes:
        session: Runs the graph.
        feed: Reused by every run: only the rows' own arrays are replaced.
        shared: The weights of `feed` as ONNX Runtime sees them; they share its memory.
        outputs: Names of the graph's outputs.
        policies: P of stacked networks, 0 of one policy.
    """

    session: ort.InferenceSession
    feed: Feed
    shared: dict[str, ort.OrtValue]
    outputs: list[str]
    policies: int = 0

    @classmethod
    def of(cls, session: ort.InferenceSession, weights: Feed, policies: int = 0) -> GraphSession:
        """Return a runner of `session` with these weights, which may change in place later."""
        shared = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
        outputs = [output.name for output in session.get_outputs()]
        return cls(session, dict(weights), shared, outputs, policies)

    def run(self) -> Sequence[Any]:
        """Run the graph on what is in the feed now."""
        outputs: Sequence[Any] = self.session.run(self.outputs, self.feed)
        return outputs

    def answer(
        self,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        lanes: PolicyBatches | None,
        state: Floats | None,
    ) -> Decision:
        """Return the decisions of R >= 2 rows; arguments as for `BoundSession`."""
        feed = self.feed
        if lanes is not None:
            feed["pick"] = lanes.places
            if any(given.name == "which" for given in self.session.get_inputs()):
                feed["which"] = lanes.which
            obs = lanes.spread(obs, self.policies)
            state = None if state is None else lanes.spread(state, self.policies)
        feed["obs"] = obs
        if state is not None:
            feed["state"] = state
        if mask is not None:
            feed["mask"] = mask
        if noise is not None:
            feed["noise"] = noise
        outputs = dict(zip(self.outputs, self.run(), strict=True))
        finite = _soundness(outputs)()
        return Decision(outputs["action"], outputs.get("dist_inputs"), outputs.get("state_after"), finite)


class BoundSession:
    """Runs an "act" or "greedy" graph on one number of rows, through fixed buffers.

    A lone row is computed twice, because ONNX Runtime rounds batches of one row differently.

    Args:
        runner: Session and weights; kept, because an `OrtValue` need not keep its array alive.
        rows: R, at least 1.
        depth: Of the lanes that rows are laid out in, 0 for none.
    """

    __slots__ = (
        "_answer",
        "_buffers",
        "_draws",
        "_held",
        "_inputs",
        "_mask",
        "_mask_shape",
        "_noise",
        "_noise_shape",
        "_obs",
        "_obs_dtype",
        "_obs_shape",
        "_pick",
        "_results",
        "_run",
        "_sound",
        "_which",
    )

    def __init__(self, runner: GraphSession, rows: int, depth: int = 0) -> None:
        session = runner.session
        computed = max(rows, 2)
        sizes = {"R": computed, "L": runner.policies if depth else 1, "D": depth or computed}
        buffers = {
            given.name: _buffer(given, sizes)
            for given in session.get_inputs()
            if given.name not in runner.shared
        }
        results = {given.name: _buffer(given, sizes) for given in session.get_outputs()}
        self._buffers, self._results = buffers, results
        self._run, self._held = bound_run(runner, buffers, results)

        self._answer = results["action"][:rows]
        self._inputs: Floats | None = results["dist_inputs"][:rows] if "dist_inputs" in results else None
        self._sound = _soundness(results)
        nothing = np.empty(0)
        self._obs, self._mask, self._noise, self._pick, self._which = (
            buffers.get(name, nothing) for name in ("obs", "mask", "noise", "pick", "which")
        )
        self._draws = "noise" in buffers
        self._obs_shape = (rows, self._obs.shape[-1])
        self._obs_dtype = self._obs.dtype
        self._mask_shape = (rows, *self._mask.shape[1:])
        self._noise_shape = (rows, *self._noise.shape[1:])

    def __call__(
        self,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        lanes: PolicyBatches | None = None,
        state: Floats | None = None,
    ) -> Decision:
        """Return the decisions of R rows, in arrays of the caller's own.

        Args:
            obs: [R, F]; copied, so it may be read-only or a view with any strides.
            mask: [R, choices], None if the graph has no mask.
            noise: [R, width], None if the graph draws nothing.
            lanes: Where the rows are computed, None if the graph is of one policy.
            state: For a `RecurrentSession`; nothing here remembers.

        Raises:
            ConfigError: An array has another shape or type than the graph needs.
        """
        self._fill(obs, mask, noise, lanes)
        self._run()
        inputs = None if self._inputs is None else self._inputs.copy()
        return Decision(self._answer.copy(), inputs, None, self._sound())

    def _fill(self, obs: Rows, mask: Flags | None, noise: Floats | None, lanes: PolicyBatches | None) -> None:
        # Assigning alone would convert types and repeat columns without a word.
        if obs.shape != self._obs_shape or obs.dtype != self._obs_dtype:
            raise _unfit("obs", obs, self._obs_shape, self._obs_dtype)
        if lanes is None:
            self._obs[...] = obs
        else:
            lanes.put(obs, self._obs)
            self._pick[...] = lanes.places
            if self._which.size:
                self._which[...] = lanes.which
        if mask is not None:
            if mask.shape != self._mask_shape or mask.dtype != _FLAG:
                raise _unfit("mask", mask, self._mask_shape, _FLAG)
            self._mask[...] = mask
        if self._draws:
            if noise is None or noise.shape != self._noise_shape or noise.dtype != _FLOAT:
                raise _unfit("noise", noise, self._noise_shape, _FLOAT)
            self._noise[...] = noise


class FixedBatchSession(BoundSession):
    """A `BoundSession` that decides in two steps, as `Steady` says; of networks without a memory.

    Args:
        runner: See `BoundSession`.
        rows: R, at least 1.
    """

    __slots__ = ()

    def load(self, obs: Rows, mask: Flags | None, noise: Floats | None) -> None:
        """Take R rows in; see `Steady.take`."""
        self._fill(obs, mask, noise, None)

    def decide(self) -> Decision:
        """Return what is decided; see `Steady.decide`."""
        self._run()
        return Decision(self._answer.copy(), self._inputs, None, self._sound())


class RecurrentSession(BoundSession):
    """A `BoundSession` of a network that is told a state before each row and tells the one after it."""

    __slots__ = ("_after", "_state", "_state_shape")

    def __init__(self, runner: GraphSession, rows: int, depth: int = 0) -> None:
        super().__init__(runner, rows, depth)
        self._state = self._buffers["state"]
        self._state_shape = (rows, self._state.shape[-1])
        self._after = self._results["state_after"][:rows]

    def __call__(
        self,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        lanes: PolicyBatches | None = None,
        state: Floats | None = None,
    ) -> Decision:
        """Return the decisions of R rows, told `state` [R, S]; see `BoundSession`."""
        if state is None or state.shape != self._state_shape or state.dtype != _FLOAT:
            raise _unfit("state", state, self._state_shape, _FLOAT)
        if lanes is None:
            self._state[...] = state
        else:
            lanes.put(state, self._state)
        actions, inputs, _, finite = super().__call__(obs, mask, noise, lanes)
        return Decision(actions, inputs, self._after.copy(), finite)


def open_session(model: bytes) -> ort.InferenceSession:
    """Open a session on the CPU that uses one thread and never spins."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Told from the first bytes it could be a format that nobody has looked into; see `model_scan`.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # This fusion would change the rounding of wide layers; the graphs use Gemm where it does not.
    return ort.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=["MatMulAddFusion"]
    )


def bound_run(runner: GraphSession, inputs: Feed, outputs: Feed) -> tuple[Run, object]:
    """Return what runs a graph from and into arrays, and what the caller keeps as long: nothing else need hold it.

    What `InferenceSession.run_with_iobinding` looks at besides are graphs that other devices have captured, at 1 us and
    more a run. Where what it calls in the end goes by another name, it is called itself.
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


def _soundness(outputs: Mapping[str, npt.NDArray[Any]]) -> Callable[[], bool]:
    """Return what tells whether the actions among outputs mean anything; these may change in place later."""
    checks = [
        partial(all_finite, outputs[name], choices=True)
        for name in ("dist_inputs", "q_values")
        if name in outputs
    ]
    if outputs["action"].dtype == _FLOAT:
        checks.append(partial(all_finite, outputs["action"], choices=False))
    return checks[0] if len(checks) == 1 else lambda: all(check() for check in checks)


def _unfit(
    name: str, given: npt.NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> ConfigError:
    found = "missing" if given is None else f"{given.dtype} {list(given.shape)}"
    return ConfigError(
        f"OnnxActing: {name} is {found}, expected {dtype} {list(shape)}; convert it before acting"
    )
