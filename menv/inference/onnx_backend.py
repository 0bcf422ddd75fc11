"""OnnxBackend: acting with ONNX Runtime on the CPU: P policies of one architecture, whole batches of rows, no torch.

The sampler calls `decide`; a closed fragment calls `evaluate` and `values`. Weights are one contiguous array [P, ...]
per name that every run reads, so learning changes the next decision without rebuilding anything. A row's result is
bit-identical in every batch: single rows are padded to two, because ONNX Runtime rounds batches of one row differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from menv.inference.acting_graphs import ActingGraphs, GraphKind, StoredGraphs
from menv.inference.action_heads import ActionHead
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
    check_shapes,
    fill_in,
    taken,
)
from menv.inference.onnx_sessions import (
    BoundSession,
    Feed,
    GraphSession,
    PolicyBatches,
    PolicyBatchLayout,
    open_session,
)


class WeightStacks:
    """The weights of P policies of one architecture: an array [P, ...] for each name.

    Attributes:
        shapes: Shapes of one policy's weights, by sorted name.
        policies: P.
    """

    def __init__(self, weights: Sequence[Weights]) -> None:
        self.shapes = {name: np.shape(weights[0][name]) for name in sorted(weights[0])}
        self.policies = 0
        # [at least P, ...]: with room for more, so that adding a policy does not copy the others each time.
        self._room = {name: np.empty((0, *shape), np.float32) for name, shape in self.shapes.items()}
        self.append(weights)

    @property
    def numbers_each(self) -> int:
        """Number of parameters of one policy."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> Floats:
        """Return the [P, ...] weights of a name; `put` writes to them until a policy is appended."""
        return self._room[name][: self.policies]

    def append(self, weights: Sequence[Weights]) -> None:
        """Copy in the weights of more policies; a name or shape that differs is a ConfigError, here and in `put`."""
        checked = [self._checked(one) for one in weights]
        first, end = self.policies, self.policies + len(checked)
        for name, room in self._room.items():
            if end > len(room):
                # Untouched memory costs nothing.
                self._room[name] = np.empty((max(end, 2 * len(room)), *self.shapes[name]), np.float32)
                self._room[name][:first] = room[:first]
            for place, one in enumerate(checked, first):
                self._room[name][place] = one[name]
        self.policies = end

    def put(self, policy: int, weights: Weights) -> None:
        """Replace the weights of one policy."""
        for name, value in self._checked(weights).items():
            self._room[name][policy] = value

    def of(self, policy: int) -> dict[str, Floats]:
        """Return copies of one policy's weights."""
        return {name: room[policy].copy() for name, room in self._room.items()}

    def _checked(self, weights: Weights) -> dict[str, Floats]:
        check_shapes("OnnxBackend", weights, self.shapes)
        return {name: np.asarray(weights[name], np.float32) for name in self.shapes}


BoundKey: TypeAlias = tuple[GraphKind, int | None, bool, int, int]
"""Graph, policy (None: all of them stacked), whether every choice is allowed, number of rows, depth of lanes."""

# About 115 wasted rows of a 2x64 network, or 43 of 2x128, cost as much as another run, 12 us. A row costs its number of
# weights and a constant.
_RUN_WORK = 2_200_000
_ROW_WORK = 10_000

# Batches of at most so many numbers use bound buffers; at about three times as many the copy costs what binding saves.
_BOUND_NUMBERS = 16_384
# Buffers are kept for so many row counts. Binding a new one costs 17 us; at the limit only one newcomer in eight
# replaces the oldest, so row counts that never repeat cost hardly more than unbound runs.
_BOUND_RUNNERS = 256
_NEWCOMERS = 8


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
        self._stacks = WeightStacks(weights)
        self._spare_rows = _RUN_WORK // (_ROW_WORK + self._stacks.numbers_each) if graphs.stacks else 0
        self._plan = PolicyBatchLayout(self._stacks.policies, self._spare_rows)
        self._sessions: dict[tuple[GraphKind, bool, bool], ort.InferenceSession] = {}
        self._numbers_a_row = head.mask_width + head.noise_width + state_size
        self._runners: dict[tuple[GraphKind, int | None, bool], GraphSession] = {}
        self._bound: dict[BoundKey, BoundSession] = {}
        self._newcomers = 0

    def __reduce__(self) -> Any:
        weights = [self.get_weights(policy) for policy in range(self.policies)]
        if not isinstance(self._graphs, StoredGraphs):
            # Built once: the back-end is pickled again whenever policies are added or removed.
            self._graphs = StoredGraphs.of(self._graphs, masks=self.head.mask_width > 0)
        return OnnxBackend, (self._graphs, self.head, weights, self.state_size)

    @property
    def obs_size(self) -> int:
        """F, numbers in a flat observation."""
        inputs = self._session("act", False, False).get_inputs()
        return next(int(given.shape[1]) for given in inputs if given.name == "obs")

    @property
    def policies(self) -> int:
        """P, the number of policies."""
        return self._stacks.policies

    def decide(
        self,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        which: Which = None,
        state: Floats | None = None,
    ) -> Decision:
        """See `ActingBackend.decide`."""
        kind: GraphKind = "greedy" if noise is None else "act"
        if which is None or isinstance(which, int):
            return self._answer(kind, which or 0, obs, mask, noise, None, state)
        rows = len(which)
        if rows < 2 or self._stacks.policies == 1:
            return self._answer(kind, int(which[0]) if rows else 0, obs, mask, noise, None, state)
        lanes = self._plan.lanes_of(which)
        if lanes is None:
            return self._grouped(kind, which, obs, mask, noise, state)
        return self._answer(kind, None, obs, mask, noise, lanes, state)

    def _evaluated(
        self, policy: int, obs: Rows, mask: Flags | None, actions: Actions, state: Floats | None
    ) -> ForwardOutputs:
        rows = len(obs)
        if rows == 0:
            return ForwardOutputs(np.empty((0, self.head.inputs), np.float32), np.empty(0, np.float32))
        runner = self._runner("evaluate", policy, mask is not None)
        runner.feed["obs"] = _two_or_more(obs)
        runner.feed["actions"] = _two_or_more(actions)
        if mask is not None:
            runner.feed["mask"] = _two_or_more(mask)
        if state is not None:
            runner.feed["state"] = _two_or_more(state)
        inputs, logp = runner.run()
        return ForwardOutputs(inputs[:rows], logp[:rows])

    def _valued(self, policy: int, obs: Rows, state: Floats | None) -> Floats:
        if len(obs) == 0:
            return np.empty(0, np.float32)
        runner = self._runner("values", policy, False)
        runner.feed["obs"] = _two_or_more(obs)
        if state is not None:
            runner.feed["state"] = _two_or_more(state)
        values: Floats = runner.run()[0]
        return values[: len(obs)]

    def add_policy(self, weights: Weights | None = None) -> int:
        """Add a policy and return its index; without weights it copies policy 0."""
        self._stacks.append([self.get_weights(0) if weights is None else weights])
        # They hold views of arrays that have been replaced or are too short now.
        self._runners.clear()
        self._bound.clear()
        self._plan = PolicyBatchLayout(self.policies, self._spare_rows)
        return self.policies - 1

    def set_weights(self, policy: int, weights: Weights) -> None:
        """Copy `weights` in."""
        self._require_policy(policy)
        self._stacks.put(policy, weights)

    def get_weights(self, policy: int) -> dict[str, Floats]:
        """Return copies of one policy's weights."""
        self._require_policy(policy)
        return self._stacks.of(policy)

    def extract_policy(self, policy: int) -> OnnxBackend:
        """See `ActingBackend.extract_policy`."""
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
        lanes: PolicyBatches | None,
        state: Floats | None,
    ) -> Decision:
        """Run one policy on rows, or all of them in lanes if `policy` is None."""
        rows = len(obs)
        key = (kind, policy, mask is None, rows, 0 if lanes is None else lanes.depth)
        bound = self._bound.get(key)
        if bound is None:
            if rows == 0:
                return self._empty(0)
            if rows > 1 and not self._worth_binding(obs.size + rows * self._numbers_a_row):
                runner = self._runner(kind, policy, mask is not None)
                return runner.answer(obs, mask, noise, lanes, state)
            bound = self._bind(key)
        return bound(obs, mask, noise, lanes, state)

    def _bind(self, key: BoundKey) -> BoundSession:
        kind, policy, unmasked, rows, depth = key
        runner = self._runner(kind, policy, not unmasked)
        bound = BoundSession(runner, rows, depth)
        self._bound[key] = bound
        if len(self._bound) > _BOUND_RUNNERS:
            del self._bound[next(iter(self._bound))]
        return bound

    def _worth_binding(self, numbers: int) -> bool:
        self._newcomers += 1
        full = len(self._bound) >= _BOUND_RUNNERS
        return numbers <= _BOUND_NUMBERS and (not full or self._newcomers % _NEWCOMERS == 0)

    def _grouped(
        self,
        kind: GraphKind,
        which: npt.NDArray[np.int64],
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        state: Floats | None,
    ) -> Decision:
        found = self._empty(len(which))
        order = np.argsort(which, kind="stable")
        own = which[order]
        self._require_policy(int(own[0]))
        self._require_policy(int(own[-1]))
        finite, begin = True, 0
        # Only the policies that have rows: there may be many more.
        for end in (*(np.flatnonzero(own[1:] != own[:-1]) + 1).tolist(), len(own)):
            rows = order[begin:end]
            part = self._answer(
                kind,
                int(own[begin]),
                obs[rows],
                taken(mask, rows),
                taken(noise, rows),
                None,
                taken(state, rows),
            )
            fill_in(found, rows, part)
            finite, begin = finite and part.is_finite, end
        return found._replace(is_finite=finite)

    def _runner(self, kind: GraphKind, policy: int | None, masked: bool) -> GraphSession:
        """Return the runner of one policy, or of all of them stacked if `policy` is None."""
        runner = self._runners.get((kind, policy, masked))
        if runner is None:
            runner = self._new_runner(kind, policy, masked)
            self._runners[kind, policy, masked] = runner
        return runner

    def _new_runner(self, kind: GraphKind, policy: int | None, masked: bool) -> GraphSession:
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
        return GraphSession.of(session, weights, self.policies if policy is None else 0)

    def _session(self, kind: GraphKind, stacked: bool, masked: bool) -> ort.InferenceSession:
        key = (kind, stacked, masked)
        if key not in self._sessions:
            self._sessions[key] = open_session(self._graphs.build(kind, stacked, masked))
        return self._sessions[key]


def _two_or_more(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate((rows, rows)) if len(rows) == 1 else rows
