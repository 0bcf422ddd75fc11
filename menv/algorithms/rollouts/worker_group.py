"""The workers of a run or of its evaluations: requests to them, and replacements of lost workers.

A lost worker costs the episodes that ran in it: a new one replaces it, with the current policies, and gets its
requests. `PolicySync` sends only what has changed, so weights of policies that do not learn are sent once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from menv import rng
from menv.adapters.validation import Declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.environments import WorkerPlacement
from menv.algorithms.rollouts.rollout_worker import import_runtime
from menv.algorithms.rollouts.worker_messages import (
    PolicyUpdate,
    PolicyView,
    WorkerInit,
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
from menv.policy import weights_of
from menv.workers.engine import Engine, RemoteActor, T, Ts
from menv.workers.pipe_channel import can_be_pickled, sealed
from menv.workers.process_engine import in_a_line
from menv.workers.registered_envs import known_here
from menv.workers.watchdog import creation_limit, where_it_hung

Weights = Mapping[str, Any]


class PolicySync:
    """Compares the current policies with what workers have received; `version` grows when weights change."""

    def __init__(self, policy_view: PolicyView) -> None:
        self._policy_view = policy_view
        self.version = 1
        self._weights: dict[str, Weights] = {}
        self._versions: dict[str, int] = {}
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
            name: before[name] if name in stay else weights_of(policy) for name, policy in policies.items()
        }
        # Edited pipelines of earlier policies, and their statistics, must still be sent.
        self._versions = {
            name: self._versions.get(name, own.version) for name, own in self._pipelines().items()
        }
        self._table = self._policy_view.policy_map.table

    def next_update(self) -> PolicyUpdate:
        """Return what has changed since the last call."""
        weights = self._changed()
        pipelines = self._pipelines()
        edited = {name: own for name, own in pipelines.items() if own.version != self._versions.get(name)}
        synced = synced_filters(self._policy_view.policies)
        filters = {
            name: [(place, one.copy()) for place, one in synced[name].items()]
            for name in sorted(self._moved)
            if name in pipelines
        }
        self._weights.update(weights)
        self._versions.update({name: own.version for name, own in edited.items()})
        self._moved.clear()
        self.version += bool(weights)
        before, self._table = self._table, self._policy_view.policy_map.table
        return PolicyUpdate(weights, edited, filters, None if self._table is before else self._table)

    def mark_unsent(self, update: PolicyUpdate) -> None:
        """Include an update again in the next one: some workers have not received it."""
        # Not removed: `mark_sent` treats unknown policies as received.
        self._weights.update({name: {} for name in update.weights})
        self._versions.update(dict.fromkeys(update.connectors, -1))
        self._moved |= update.filters.keys()
        self._table = None if update.table is not None else self._table

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

    def _changed(self) -> dict[str, Weights]:
        found: dict[str, Weights] = {}
        for name, policy in self._policy_view.policies.items():
            before, now = self._weights.get(name), weights_of(policy)
            # Another policy may have the name by now, with weights of other names.
            if before is None or before.keys() != now.keys() or not _equal(before, now):
                found[name] = now
        return found

    def _pipelines(self) -> dict[str, PolicyConnectors]:
        return {
            name: policy.networks.connectors[policy.index]
            for name, policy in network_policies(self._policy_view.policies).items()
        }


def _equal(before: Weights, now: Weights) -> bool:
    return all(np.array_equal(before[key], now[key]) for key in now)


_PLACED_AGAIN_S = 10.0
"""How long the others wait for Ray to place a replacement."""


PAUSES = (0.0, 0.5, 2.0)
"""Seconds before each replacement without an answer in between; after the last one the worker is given up."""


class WorkerGroup:
    """Equal workers in other processes, by index; lost ones are replaced a few times.

    `make` creates a worker from its `WorkerInit`. `early` are processes that the engine has started already and that
    hold no worker, `first` the settings before callbacks received the algorithm, `declared` the spaces of the driver's
    environment. `on_lost` gets the index of a lost worker, and its crash record, before it is replaced. With
    `leaves_out` the group continues without workers that Ray has no room for: they are `absent` until it has.
    `lost` counts replaced workers, and `replaced`, by worker, determines what each samples.
    """

    def __init__(
        self,
        make: Callable[[WorkerInit], object],
        config: AlgorithmConfig,
        policy_sync: PolicySync,
        seed: int,
        engine: Engine,
        num_envs: int,
        on_lost: Callable[[int, Any], None],
        early: Sequence[RemoteActor] = (),
        *,
        label: str = "worker",
        first: WorkerSettings | None = None,
        declared: Declared | None = None,
        leaves_out: bool = False,
    ) -> None:
        self.seed = seed
        self.absent: set[int] = set()
        self.lost = 0
        self.replaced = [0] * config.num_workers
        self._make = make
        self._config = config
        self._policy_sync = policy_sync
        self._engine = engine
        self._each = num_envs
        self._on_lost = on_lost
        self._label = label
        self._declared = declared or {}
        self._leaves_out = leaves_out
        self._stopped = False
        self._warned: set[str] = set()
        # Errors of each worker since its last answer, the first cause first.
        self._errors: list[list[WorkerLostError]] = [[] for _ in self.replaced]
        # Workers that could not be created, and those that were given up.
        self._unusable: set[int] = set()
        self._first = first
        # All processes start before the first is sent its worker.
        self._actors = [*early] or [
            engine.start(import_runtime, label=f"{label} {index + 1}") for index in range(len(self))
        ]
        # Answers of each worker that are due until it exists.
        self._creating = [1] * len(self)
        for index in range(len(self)):
            self.create_again(index)
        self._first = first or sealed_settings(config)

    def __len__(self) -> int:
        return len(self.replaced)

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
        """Return the indices of running workers, after waiting for Ray to place the others."""
        problem = None
        for index, actor in enumerate(self._actors if self._engine.name == "ray" else ()):
            if actor.pid is not None:
                if index in self.absent:
                    # Ray has placed it by now; it gets the current policies.
                    self.absent.discard(index)
                    self.create_again(index)
            elif index not in self.absent:
                self._engine.wait([actor])
                ended = getattr(actor, "ended", None)
                if isinstance(ended, NoRoomError):
                    problem = ended
                    self._leave_out(index, str(ended))
        if problem is not None and len(self.absent) == len(self):
            self.absent.clear()
            raise problem
        return [index for index in range(len(self)) if index not in self.absent]

    def _leave_out(self, index: int, why: str) -> None:
        self.absent.add(index)
        self.renew(index)
        running = len(self) - len(self.absent)
        if running:
            warnings.warn(
                f"{in_a_line(first_clause(why))}: training continues with {running} of {len(self)} "
                "workers, expected all of them; the others join when there is room",
                EnvFaultWarning,
                stacklevel=2,
            )

    def is_created(self, index: int) -> bool:
        """Return whether a worker is known to exist."""
        return not self._creating[index]

    def outstanding(self, index: int) -> int:
        """Return how many answers to requests are due."""
        return max(0, self._actors[index].pending - self._creating[index])

    def ask(self, index: int, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        """Request a call of a worker's method."""
        self._actors[index].ask(method, *args)

    def answer(self, index: int) -> Any:
        """Return a worker's answer; WorkerLostError if it is lost, or replaced a lost one and could not be created."""
        try:
            self._wait_until_created(index)
            value = self._actors[index].answer()
        except EnvCrashError as error:
            if not self._errors[index]:
                raise
            # Environments could be created before, so the cause may be temporary.
            self._unusable.add(index)
            reason = first_clause(error)
            raise WorkerLostError(
                f"{self._actors[index].label}: took the place of a lost one and could not begin: {reason}; "
                "fix what raised"
            ) from error
        self._errors[index].clear()
        return value

    def _wait_until_created(self, index: int) -> None:
        while self._creating[index]:
            try:
                self._actors[index].answer()
            except WorkerLostError:
                raise
            except Exception:
                self._unusable.add(index)
                raise
            self._creating[index] -= 1

    def signal(self, index: int) -> bool:
        """Let a worker break off what it is doing, once it is created; return whether it can."""
        # The next request raises the error.
        with suppress(Exception):
            self._wait_until_created(index)
            return self._actors[index].signal()
        return False

    def settle(self, index: int) -> None:
        """Discard answers that no caller waits for any more; restart a worker that could not begin."""
        while self.outstanding(index):
            # Old errors do not concern the next request; a lost worker raises again.
            with suppress(Exception):
                self.answer(index)
        if index in self._unusable:
            self.renew(index)

    def call(self, index: int, method: Callable[[Any, *Ts], T], *args: *Ts) -> T | None:
        """Call a worker's method, on its replacement if it is lost; None for one that Ray cannot place."""
        self.settle(index)
        self.ask(index, method, *args)
        return self._sure_answer(index, method, *args)

    def ask_all(self, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        """Request a method call of each worker."""
        for index in range(len(self)):
            self.settle(index)
            self.ask(index, method, *args)

    def answers(self, method: Callable[[Any, *Ts], T], *args: *Ts) -> list[T]:
        """Return the answers to `ask_all`; a lost worker's replacement is asked again."""
        found: list[Any] = [self._sure_answer(index, method, *args) for index in range(len(self))]
        return found

    def call_all(self, method: Callable[[Any, *Ts], T], *args: *Ts) -> list[T]:
        """Call a method of all workers in parallel."""
        self.ask_all(method, *args)
        return self.answers(method, *args)

    def _sure_answer(self, index: int, method: Callable[[Any, *Ts], T], *args: *Ts) -> T | None:
        while True:
            try:
                answer: T = self.answer(index)
                return answer
            except WorkerLostError as error:
                self.replace(index, error)
                if index in self.absent:
                    return None
                self.ask(index, method, *args)

    def kill_busy(self) -> bool:
        """End the processes that have not answered; return whether there are any."""
        busy = [actor for actor in self._actors if actor.pending]
        for actor in busy:
            actor.kill()
        return bool(busy)

    def stand_in(self, replaced: Sequence[int]) -> None:
        """Let each worker sample as one that was replaced so often; those of another number of workers do not count."""
        for index, times in enumerate(replaced if len(replaced) == len(self) else [0] * len(self)):
            # Its environments got their seeds when they were created.
            if times or self.replaced[index]:
                self.replaced[index] = times
                self.create_again(index)

    def create_again(self, index: int) -> None:
        """Create a worker in its process, with the current policies."""
        self.settle(index)
        self._actors[index].create(self._make, self._worker_init(index))
        self._creating[index] += 1

    def renew(self, index: int) -> None:
        """Start a worker in another process and forget its errors."""
        self._errors[index].clear()
        self._start_again(index)

    def _start_again(self, index: int) -> None:
        """Replace a process; after an interruption, `settle` finishes this."""
        self._unusable.add(index)
        self._actors[index].kill()
        self._creating[index] = 1
        self._actors[index] = self._started(index)
        self._unusable.discard(index)

    def _started(self, index: int) -> RemoteActor:
        return self._engine.start(self._make, self._worker_init(index), label=f"{self._label} {index + 1}")

    def _worker_init(self, index: int) -> WorkerInit:
        """Return what a worker is created from; a replacement samples with another seed."""
        settings = _settings(self._config)
        if self._first is not None and not can_be_pickled(settings):
            # Callbacks may hold the algorithm or open files by now, which workers do not need.
            settings = self._first
        times = self.replaced[index]
        seed = rng.key(self.seed, index, times) >> 2 if times else self.seed
        placement = WorkerPlacement(index + 1, recreated=times > 0)
        return WorkerInit(
            settings, placement, self._policy_sync.worker_policies(), seed, self._declared, self._each
        )

    def replace(self, index: int, error: WorkerLostError) -> None:
        """Start another worker in place of a lost one; the caller repeats its requests.

        Raises WorkerLostError with the first cause after too many losses without an answer in between.
        """
        self._check_running()
        error = self._explained(index, error)
        fault = EnvFault(index, 0, WORKER, in_a_line(str(error)), (type(error).__name__, "", 0))
        self._on_lost(index, {**fault.described(), "actions": None})
        self._count_loss(index, error)
        self._start_again(index)
        self._check_running()
        actor = self._actors[index]
        if self._engine.name == "ray" and len(self.absent) + 1 < len(self) and self._leaves_out:
            # A lost node may leave no room; the other workers do not wait for one.
            self._engine.wait([actor], _PLACED_AGAIN_S)
            if actor.pid is None:
                self._leave_out(index, f"{actor.label}: Ray has not placed it within {_PLACED_AGAIN_S:g} s")

    def _explained(self, index: int, error: WorkerLostError) -> WorkerLostError:
        """Return the error with what hung, if a watchdog ended the process; raise it if nothing was created yet."""
        hung, seconds = where_it_hung(str(error)), self._config.env_timeout
        if hung is None or seconds is None:
            return error
        created = self.is_created(index)
        # Progress is counted in env steps; callbacks and policies run between them.
        late = (
            f"an environment, or a callback or a custom policy, did not return for env_timeout={seconds:g} s"
            if created
            else f"an environment was not created within {creation_limit(seconds):g} s"
        )
        head = first_clause(error)
        if not self.lost and not created:
            self._unusable.add(index)
            lost = WorkerLostError(
                f"{head}: {late}, from {hung}; fix what it waits for, or raise env_timeout above that"
            )
            raise lost from error
        return WorkerLostError(f"{head}: {late}, from {hung}{str(error)[len(head) :]}")

    def _count_loss(self, index: int, error: WorkerLostError) -> None:
        """Count a loss and pause; raise after too many. An interruption of this process is not the worker's fault."""
        errors = self._errors[index]
        blamed = not self._actors[index].was_interrupted
        errors += [error] if blamed else []
        self.lost += 1
        self.replaced[index] += 1
        if len(errors) > len(PAUSES):
            # Not replaced before the next request, e.g. while the run is saved.
            self._unusable.add(index)
            head = first_clause(error)
            last = f", the last: {head}" if isinstance(error.__cause__, EnvCrashError) else ""
            lost = WorkerLostError(
                f"{errors[0]}\n(the first of {len(errors)} times without a fragment in between{last}, expected at most "
                f"{len(PAUSES)}; fix what ends the process)"
            )
            raise lost from error
        time.sleep(PAUSES[len(errors) - 1] if blamed else 0.0)

    def stop(self) -> None:
        self._stopped = True
        self._engine.stop()

    def _check_running(self) -> None:
        if self._stopped:
            # A worker may have been started since.
            self._engine.stop()
            raise CallOrderError("sample: this algorithm was stopped meanwhile; build a new one")


def sealed_settings(config: AlgorithmConfig) -> WorkerSettings:
    """Return the current settings for workers that start later, pickled."""
    return sealed(_settings(config))


def _settings(config: AlgorithmConfig) -> WorkerSettings:
    config = replace(config, evaluation_config=None, input=None)
    return WorkerSettings(config, known_here(config.env, config.env_config))
