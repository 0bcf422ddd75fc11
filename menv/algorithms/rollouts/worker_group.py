"""The workers of a run or of its evaluations: requests to them, and replacements of lost workers.

A lost worker costs the episodes that ran in it: a new one replaces it, with the current policies, and samples its
fragment again. `PolicySync` sends only what has changed, so weights of policies that do not learn are sent once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from menv.adapters.validation import Declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.environments import WorkerPlacement
from menv.algorithms.rollouts.rollout_worker import RolloutWorker, import_runtime
from menv.algorithms.rollouts.worker_messages import (
    PolicyUpdate,
    PolicyView,
    WorkerSettings,
    network_policies,
    synced_filters,
)
from menv.connectors.pipeline import PolicyConnectors
from menv.errors import (
    WORKER,
    CallOrderError,
    EnvCrashError,
    EnvFault,
    EnvFaultWarning,
    NoRoomError,
    WorkerLostError,
    first_clause,
)
from menv.metrics import Metrics
from menv.policy import Policy, weights_of
from menv.sampling.sampler import SamplerState
from menv.workers.engine import CREATE, Engine, RemoteActor, T, Ts, in_a_line
from menv.workers.messages import sealed
from menv.workers.registered_envs import known_here


class PolicySync:
    """Knows which policies have changed since workers received them; `version` grows when weights change."""

    def __init__(self, policy_view: PolicyView) -> None:
        self._policy_view = policy_view
        self.version = 1
        # Each policy that workers have, with how often its weights had been set, and the version of its pipelines.
        self._weights: dict[str, tuple[Policy, int]] = {}
        self._pipelines: dict[str, int] = {}
        self._table: Any = None
        # Policies whose filters have changed since the last update.
        self._moved: set[str] = set()
        self.mark_sent()

    def worker_policies(self) -> PolicyView:
        """Return the policies for workers."""
        policy_view = self._policy_view
        return PolicyView(
            policy_view.policy_map, policy_view.policies, list(policy_view.groups), policy_view.postprocessor
        )

    def mark_sent(self) -> None:
        """Record that workers have the current policies."""
        before, policies = self._weights, self._policy_view.policies
        # Workers keep their custom policy objects, so weights set meanwhile must still be sent.
        stay = before.keys() - network_policies(policies)
        self.version += bool(before and self._changed().keys() - stay)
        self._weights = {
            name: before[name] if name in stay else (policy, policy._weights_version)
            for name, policy in policies.items()
        }
        # Edited pipelines of earlier policies, and their statistics, must still be sent.
        self._pipelines = {
            name: self._pipelines.get(name, own.version) for name, own in self._connectors().items()
        }
        self._table = self._policy_view.policy_map.table

    @contextmanager
    def sending(self) -> Iterator[PolicyUpdate]:
        """Yield what workers lack; if the block raises, the next update includes it again."""
        policies, pipelines = self._policy_view.policies, self._connectors()
        changed, moved = self._changed(), {*self._moved}
        edited = {name: own for name, own in pipelines.items() if own.version != self._pipelines.get(name)}
        synced = synced_filters(policies)
        filters = {
            name: [(place, one.copy()) for place, one in synced[name].items()]
            for name in sorted(moved)
            if name in pipelines
        }
        weights = {name: weights_of(policies[name]) for name in changed}
        table = self._policy_view.policy_map.table
        yield PolicyUpdate(weights, edited, filters, None if table is self._table else table)
        self._weights |= changed
        self._pipelines |= {name: own.version for name, own in edited.items()}
        self._moved -= moved
        self._table = table
        self.version += bool(changed)

    def resend_filters(self) -> None:
        """Include all filters in the next update, for evaluation workers."""
        synced = synced_filters(self._policy_view.policies)
        self._moved |= {name for name, filters in synced.items() if filters}

    def merge_filters(self, seen: Mapping[str, Sequence[tuple[int, Any]]]) -> None:
        """Merge what the filters of a worker have seen."""
        synced = synced_filters(self._policy_view.policies)
        for policy_id, filters in seen.items():
            mine = synced.get(policy_id, {})
            for place, theirs in filters:
                if place in mine:
                    mine[place].apply_changes(theirs)
                    self._moved.add(policy_id)

    def _changed(self) -> dict[str, tuple[Policy, int]]:
        """Return the policies that workers lack, with how often their weights were set."""
        found = {}
        for name, policy in self._policy_view.policies.items():
            before, version = self._weights.get(name, (None, 0))
            # Another policy may have the name by now.
            if before is not policy or version != policy._weights_version:
                found[name] = policy, policy._weights_version
        return found

    def _connectors(self) -> dict[str, PolicyConnectors]:
        return {
            name: policy.networks.connectors[policy.index]
            for name, policy in network_policies(self._policy_view.policies).items()
        }


PAUSES = (0.0, 0.5, 2.0)
"""Seconds before each replacement without an answer in between; after the last one the error is raised."""


class WorkerGroup:
    """Equal workers in other processes, by index; lost ones are replaced a few times.

    The driver knows what a worker is created from: settings, the current policies, and in `states` the counts that it
    continues from. So a worker that is lost, interrupted, or to begin elsewhere is just created again, with the next
    request to it.

    `early` are processes that the engine has started already and that hold no worker, `settings` those from before
    callbacks received the algorithm, `declared` the spaces of the driver's environment. `metrics` record the episodes
    of lost workers as faulty. Training continues without workers that Ray has no room for: they are `absent` until it
    has. `each` is the number of sub-environments of a worker, `lost` counts replaced workers, and `policy_sync` knows
    which policies the workers have.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        policy_view: PolicyView,
        seed: int,
        engine: Engine,
        num_envs: int,
        metrics: Metrics,
        early: Sequence[RemoteActor] = (),
        *,
        settings: WorkerSettings | None = None,
        declared: Declared | None = None,
        in_evaluation: bool = False,
    ) -> None:
        count = config.num_workers
        self.seed = seed
        self.states: list[SamplerState | None] = [None] * count
        self.absent: set[int] = set()
        self.lost = 0
        # Callbacks may hold the algorithm or open files later, which workers do not need.
        self._settings = settings or sealed_settings(config)
        self.policy_sync = PolicySync(policy_view)
        self._engine = engine
        self.each = num_envs
        self._metrics = metrics
        self._declared = declared or {}
        self._in_evaluation = in_evaluation
        self._stopped = False
        self._warned: set[str] = set()
        # Errors of each worker since its last answer, the first cause first.
        self._errors: list[list[WorkerLostError]] = [[] for _ in range(count)]
        # The latest requests to each, at least those without an answer.
        self._asked: list[list[str]] = [[CREATE] for _ in range(count)]
        # Workers that have answered since they were created, and workers that replace a lost one.
        self._ready: set[int] = set()
        self._recreated: set[int] = set()
        # Workers that are created before their next request, and whether in another process.
        self._outdated: dict[int, bool] = dict.fromkeys(range(count), False)
        self._actors = [*early] or [
            engine.start(import_runtime, label=self._placement(index).label) for index in range(count)
        ]

    def __len__(self) -> int:
        return len(self.states)

    @contextmanager
    def update(self) -> Iterator[PolicyUpdate | None]:
        """Yield a parcel of what workers lack of the policies, None if that is nothing; see `PolicySync.sending`."""
        with self.policy_sync.sending() as update:
            yield self._engine.put(update) if any(update) else None

    def policies(self) -> PolicyView:
        """Return a parcel of the current policies."""
        return self._engine.put(self.policy_sync.worker_policies())

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers."""
        return [actor.pid for actor in self._actors]

    def warn(self, lines: Sequence[str]) -> None:
        """Show warnings of workers, each once."""
        for line in lines:
            if line not in self._warned:
                self._warned.add(line)
                warnings.warn(line, EnvFaultWarning, stacklevel=2)

    def present(self) -> list[int]:
        """Return the indices of the workers that there is room for."""
        for index in [*self.absent]:
            if self._actors[index].pid is not None:
                # Ray has placed it by now; it gets the current policies.
                self.absent.discard(index)
                self._outdated[index] = False
        return [index for index in range(len(self)) if index not in self.absent]

    def pending(self, index: int) -> int:
        """Return how many answers of a worker are due, those to its creation included."""
        return 0 if index in self._outdated else self._actors[index].pending

    def due(self, index: int, method: Callable[..., object]) -> int:
        """Return how many answers of a method are due."""
        pending = self.pending(index)
        return self._asked[index][-pending:].count(method.__name__) if pending else 0

    def running(self, index: int) -> int:
        """Return how many episodes a worker plays; a new one plays one in each sub-environment."""
        state = self.states[index]
        return self.each if state is None else state.running or self.each

    def ask(self, index: int, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        """Request a call of a worker's method."""
        if index in self._outdated:
            self._create(index, elsewhere=self._outdated[index])
        self._actors[index].ask(method, *args)
        # Answers come in the order of the requests.
        self._asked[index] = [*self._asked[index], method.__name__][-self._actors[index].pending :]

    def answer(self, index: int) -> Any:
        """Return a worker's next answer.

        None is also the answer to its creation, and what is returned where it was replaced or has no room: then the
        caller repeats its requests.
        """
        try:
            value = self._actors[index].answer()
        except NoRoomError as error:
            self._leave_out(index, error)
            return None
        except WorkerLostError as error:
            self._replace(index, error)
            return None
        except Exception as error:
            if index not in self._ready:
                # All its answers are this error.
                self.outdate(index)
                if self._errors[index] and isinstance(error, EnvCrashError):
                    # Environments could be created before, so the cause may be temporary.
                    lost = WorkerLostError(
                        f"{self._actors[index].label}: took the place of a lost one and could not begin: "
                        f"{first_clause(error)}; fix what raised"
                    )
                    lost.__cause__ = error
                    self._replace(index, lost)
                    return None
            raise
        if value is not None:
            self._ready.add(index)
            self._errors[index].clear()
        return value

    def result(self, index: int, method: Callable[[Any, *Ts], T], *args: *Ts) -> T | None:
        """Return the answer to a worker's last request, this one, also of its replacement; None without room for it."""
        while True:
            actor, value = self._actors[index], None
            while self._actors[index] is actor and self.pending(index):
                value = self.answer(index)
            if self._actors[index] is actor or index in self.absent:
                return value
            self.ask(index, method, *args)

    def call(self, index: int, method: Callable[[Any, *Ts], T], *args: *Ts) -> T | None:
        """Call a worker's method, on its replacement if it is lost; None for one that Ray cannot place."""
        self.ask(index, method, *args)
        return self.result(index, method, *args)

    def call_all(self, method: Callable[[Any, *Ts], T], *args: *Ts) -> list[T]:
        """Call a method of all workers in parallel."""
        for index in range(len(self)):
            self.ask(index, method, *args)
        found: list[Any] = [self.result(index, method, *args) for index in range(len(self))]
        return found

    def outdate(self, index: int) -> None:
        """Let a worker be created again before its next request, in another process if it is busy."""
        self._outdated.setdefault(index, self._actors[index].pending > 0)

    def start_from(self, seed: int, states: Sequence[SamplerState | None]) -> None:
        """Let all workers be created again, to sample from these states with a seed."""
        self.seed, self.states = seed, [*states]
        for index in range(len(self)):
            self.outdate(index)

    def kill_busy(self) -> list[int]:
        """End the processes that have not answered; return the indices of their workers."""
        busy = [index for index in range(len(self)) if self.pending(index)]
        for index in busy:
            self._actors[index].kill()
            self._outdated[index] = True
        return busy

    def stop(self) -> None:
        self._stopped = True
        self._engine.stop()

    def _create(self, index: int, elsewhere: bool = True) -> None:
        """Create a worker, in another process if `elsewhere`."""
        self._outdated[index] = elsewhere
        self._ready.discard(index)
        policies, placement = self.policy_sync.worker_policies(), self._placement(index)
        init = (
            self._settings, placement, policies, self.seed, self._declared, self.each, self.states[index]
        )  # fmt: skip
        if elsewhere:
            self._actors[index].kill()
            self._actors[index] = self._engine.start(RolloutWorker, *init, label=placement.label)
            self._asked[index] = [CREATE]
        else:
            self._actors[index].create(RolloutWorker, *init)
            self._asked[index].append(CREATE)
        del self._outdated[index]

    def _placement(self, index: int) -> WorkerPlacement:
        return WorkerPlacement(index + 1, index in self._recreated, self._in_evaluation)

    def _leave_out(self, index: int, error: NoRoomError) -> None:
        """Continue without a worker, if there are others; a new one waits for room."""
        self._create(index)
        running = len(self) - len(self.absent) - 1
        if not running or self._in_evaluation:
            self.absent.clear()
            raise error
        self.absent.add(index)
        warnings.warn(
            f"{in_a_line(first_clause(error))}: training continues with {running} of {len(self)} workers, expected all "
            "of them; the others join when there is room",
            EnvFaultWarning,
            stacklevel=2,
        )

    def _replace(self, index: int, error: WorkerLostError) -> None:
        """Start another worker in place of a lost one.

        Raises WorkerLostError with the first cause after too many losses without an answer in between.
        """
        self._check_running()
        # An interruption of this process is not the worker's fault.
        blamed, errors = not self._actors[index].was_interrupted, self._errors[index]
        fault = EnvFault(index, 0, WORKER, in_a_line(str(error)), (type(error).__name__, "", 0))
        for _ in range(self.running(index)):
            self._metrics.record_faulty(fault.line)
        self._metrics.faults.append({**fault.described(), "actions": None})
        self.lost += 1
        self._recreated.add(index)
        # The next one must not repeat the numbers that this one may have been lost with.
        before = self.states[index] or SamplerState(steps=[0] * self.each, begun=[0] * self.each)
        self.states[index] = replace(before, steps=[steps + 1 for steps in before.steps], running=0)
        if blamed:
            errors.append(error)
            if len(errors) > len(PAUSES):
                self._outdated[index] = True
                raise self._too_many(errors) from error
            time.sleep(PAUSES[len(errors) - 1])
        self._create(index)
        self._check_running()

    def _too_many(self, errors: list[WorkerLostError]) -> WorkerLostError:
        head = first_clause(errors[-1])
        last = f", the last: {head}" if isinstance(errors[-1].__cause__, EnvCrashError) else ""
        lost = WorkerLostError(
            f"{errors[0]}\n(the first of {len(errors)} times without a fragment in between{last}, expected at most "
            f"{len(PAUSES)}; fix what ends the process)"
        )
        errors.clear()
        return lost

    def _check_running(self) -> None:
        if self._stopped:
            # A worker may have been started since.
            self._engine.stop()
            raise CallOrderError("sample: this algorithm was stopped meanwhile; build a new one")


def sealed_settings(config: AlgorithmConfig) -> WorkerSettings:
    """Return the current settings for workers that start later, pickled."""
    config = replace(config, evaluation_config=None, input=None)
    return sealed(WorkerSettings(config, known_here(config.env)))
