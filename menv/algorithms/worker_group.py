"""The workers of a run: requests to them, their fragments, and replacements of lost workers.

A lost worker costs the episodes that ran in it: a new one replaces it, with the current policies, and samples its
fragment. `PolicySync` sends only what has changed, so weights of policies that do not learn are sent once.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from menv import rng
from menv.adapters.validation import Declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollout_worker import RolloutWorker, WorkerSlot
from menv.algorithms.rollouts import PolicyView
from menv.algorithms.worker_messages import (
    Fragment,
    PolicyUpdate,
    WorkerCounters,
    WorkerInit,
    WorkerPlacement,
    WorkerPolicies,
    WorkerSettings,
    synced_filters,
)
from menv.connectors.pipeline import PolicyConnectors
from menv.errors import CallOrderError, EnvFaultWarning, NoRoomError, WorkerLostError
from menv.inference.network_policy import NetworkPolicy
from menv.metrics import Metrics
from menv.policy import weights_of
from menv.workers.actor_group import ActorGroup
from menv.workers.engine import Engine, RemoteActor, T, Ts
from menv.workers.pipe_channel import SealedValue, can_be_pickled
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
        # Policies whose filters have changed since the last update.
        self._moved: set[str] = set()
        self.mark_sent()

    def worker_policies(self) -> WorkerPolicies:
        """Return the policies for workers."""
        policy_view = self._policy_view
        return WorkerPolicies(
            policy_view.policy_map, policy_view.policies, list(policy_view.groups), policy_view.postprocessor
        )

    def mark_sent(self) -> None:
        """Record that workers have the current policies."""
        before, policies = self._weights, self._policy_view.policies
        # Workers keep their custom policy objects, so weights set meanwhile must still be sent.
        stay = {name for name in before if not isinstance(policies.get(name), NetworkPolicy)}
        self.version += bool(before and self._changed().keys() - stay)
        self._weights = {
            name: before[name] if name in stay else weights_of(policy) for name, policy in policies.items()
        }
        # Edited pipelines of earlier policies, and their statistics, must still be sent.
        self._versions = {
            name: self._versions.get(name, own.version) for name, own in self._pipelines().items()
        }

    def next_update(self) -> PolicyUpdate:
        """Return what has changed since the last call."""
        weights = self._changed()
        pipelines = self._pipelines()
        edited = {name: own for name, own in pipelines.items() if own.version != self._versions.get(name)}
        filters = {
            name: [
                (place, one.as_serializable())
                for place, one in synced_filters(self._policy_view.policies[name]).items()
            ]
            for name in sorted(self._moved)
            if name in pipelines
        }
        self._weights.update(weights)
        self._versions.update({name: own.version for name, own in edited.items()})
        self._moved.clear()
        self.version += bool(weights)
        return PolicyUpdate(weights, edited, filters)

    def mark_unsent(self, update: PolicyUpdate) -> None:
        """Include an update again in the next one: some workers have not received it."""
        # Not removed: `mark_sent` treats unknown policies as received.
        self._weights.update({name: {} for name in update.weights})
        self._versions.update(dict.fromkeys(update.connectors, -1))
        self._moved |= update.filters.keys()

    def resend_filters(self) -> None:
        """Include all filters in the next update, for evaluation workers."""
        self._moved |= {name for name, policy in self._policy_view.policies.items() if synced_filters(policy)}

    def merge_filters(self, seen: Mapping[str, Sequence[tuple[int, Any]]]) -> None:
        """Merge what the filters of a worker have seen."""
        for policy_id, filters in seen.items():
            mine = (
                synced_filters(self._policy_view.policies[policy_id])
                if policy_id in self._policy_view.policies
                else {}
            )
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
            for name, policy in self._policy_view.policies.items()
            if isinstance(policy, NetworkPolicy)
        }


def _equal(before: Weights, now: Weights) -> bool:
    return all(np.array_equal(before[key], now[key]) for key in now)


class FragmentQueue:
    """Fragments of one worker that nothing has consumed yet, and counters of consumed ones.

    Fragments of a lost worker may still wait here, so the worker that samples may be another one than the worker whose
    fragment is learned from. `asked` counts requests without an answer; `error` was raised instead of a fragment;
    `counters` are the worker's after its last consumed fragment, `past_counters` belong to the workers before it.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.running = 0
        self.error: Exception | None = None
        self.counters = WorkerCounters()
        self.past_counters = WorkerCounters()
        # Each with whether it is the first fragment of a replacement.
        self._waiting: deque[tuple[Fragment, bool]] = deque()
        self._other = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting_steps(self) -> int:
        """Env steps of the fragments that wait; any thread may ask."""
        return sum(fragment.batch.env_steps() for fragment, _ in list(self._waiting))

    @property
    def before(self) -> WorkerCounters:
        """Counters of the workers before the current one, as far as their fragments were consumed."""
        total = WorkerCounters()
        total.add(self.past_counters)
        if self._other or any(other for _, other in self._waiting):
            total.add(self.counters)
        return total

    def check(self) -> None:
        """Raise the stored error, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def put(self, fragment: Fragment) -> None:
        self.asked -= 1
        self._waiting.append((fragment, self._other))
        self._other, self.running = False, fragment.running

    def take(self) -> Fragment:
        """Return the oldest fragment, which is counted from now on."""
        fragment, other = self._waiting.popleft()
        if other:
            self.past_counters.add(self.counters)
        self.counters = WorkerCounters.after(fragment)
        return fragment

    def drop(self, policy_id: str) -> None:
        """Drop the data of a removed policy; a new policy may get its id."""
        for place, (fragment, other) in enumerate(self._waiting):
            fragment.batch.policy_batches.pop(policy_id, None)
            filters = {name: seen for name, seen in fragment.filters.items() if name != policy_id}
            self._waiting[place] = fragment._replace(filters=filters), other

    def lose(self) -> None:
        """Record that the worker is lost and replaced; its fragments still wait."""
        self.asked = self.running = 0
        self._other = True


_PLACED_AGAIN_S = 10.0
"""How long the others wait for Ray to place a replacement."""


class WorkerGroup:
    """Workers, by index.

    `early` are processes that the engine has started already, `first` the settings before callbacks received the
    algorithm, `declared` the spaces of the driver's environment. With `leaves_out` sampling continues without workers
    that Ray has no room for: they are `absent` until it has. `ahead` is how many fragments may be requested before the
    current one is learned from; `recreated` lists replaced workers, from 1; `updated` holds workers that received the
    last update.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        policy_sync: PolicySync,
        seed: int,
        metrics: Metrics,
        engine: Engine,
        num_envs: int,
        early: Sequence[RemoteActor] = (),
        *,
        make: Callable[[WorkerInit], Any] = RolloutWorker,
        label: str = "worker",
        first: SealedValue | None = None,
        declared: Declared | None = None,
        leaves_out: bool = False,
    ) -> None:
        self._seed = seed
        self._leaves_out = leaves_out
        self._declared = declared or {}
        self.queues = [FragmentQueue() for _ in range(config.num_workers)]
        self.ahead = config.max_staleness if config.overlap else 0
        self.recreated: list[int] = []
        self.updated: set[int] = set()
        self.absent: set[int] = set()
        self._config = config
        self._policy_sync = policy_sync
        self._metrics = metrics
        self._engine = engine
        self._each = num_envs
        self._stopped = False
        self._first = first
        self._group = ActorGroup(
            engine,
            functools.partial(WorkerSlot, make),
            WorkerSlot.take,
            self._worker_init,
            config.num_workers,
            label,
            early,
        )
        self._first = first or sealed_settings(config)

    def __len__(self) -> int:
        return len(self.queues)

    @property
    def lost(self) -> int:
        """Number of workers lost so far."""
        return self._group.lost

    @property
    def replaced(self) -> list[int]:
        """How often each worker was replaced, which determines what it samples."""
        return list(self._group.replaced)

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers."""
        return [peer.pid for peer in self._group.actors]

    def present(self) -> list[int]:
        """Return the indices of running workers, after waiting for Ray to place the others."""
        problem = None
        for index, peer in enumerate(self._group.actors if self._engine.name == "ray" else ()):
            if peer.pid is not None:
                if index in self.absent:
                    # Ray has placed it by now; it gets the current policies.
                    self.absent.discard(index)
                    self._group.initialize_again(index)
            elif index not in self.absent:
                self._engine.wait([peer])
                ended = getattr(peer, "ended", None)
                if isinstance(ended, NoRoomError):
                    problem = ended
                    self._leave_out(index, str(ended))
        if problem is not None and len(self.absent) == len(self):
            self.absent.clear()
            raise problem
        return [index for index in range(len(self)) if index not in self.absent]

    def _leave_out(self, index: int, why: str) -> None:
        """Continue without a worker until Ray has placed it."""
        self.absent.add(index)
        self._group.renew(index)
        running = len(self) - len(self.absent)
        if running:
            warnings.warn(
                f"{in_a_line(why).partition(', expected ')[0]}: training continues with {running} of {len(self)} "
                "workers, expected all of them; the others join when there is room",
                EnvFaultWarning,
                stacklevel=2,
            )

    def prepare(self, update: PolicyUpdate | None = None) -> None:
        """Wait for a fragment of each worker, and request fragments ahead of time; `update` may be a parcel."""
        for index in self.present():
            queue = self.queues[index]
            queue.check()
            self._forget_taken(index)
            if not queue.asked and not queue:
                self.ask(index, update)
        for index, queue in enumerate(self.queues):
            # No fragment is consumed before all have arrived: if a worker raises, the others' wait for the next call.
            while not queue and index not in self.absent:
                if not queue.asked:
                    self.ask(index, update)
                self.fetch(index)
        for index in set(range(len(self))) - self.absent:
            queue = self.queues[index]
            # Ahead of time: with the weights of now, which the learner will have left behind by then. One of those that
            # wait is about to be taken.
            while queue.asked + len(queue) <= self.ahead:
                self.ask(index, update)

    def ask(self, index: int, update: PolicyUpdate | None = None, times: int = 1) -> None:
        """Request one or several fragments."""
        number = self._policy_sync.version if self.ahead else None
        for _ in range(times):
            if not self.queues[index].asked:
                self._group.settle(index)
            self._group.ask(index, RolloutWorker.sample, number, self._config.explore, update)
            if update is not None:
                self.updated.add(index)
            self.queues[index].asked += 1

    def fetch(self, index: int) -> None:
        """Wait for all requested fragments of a worker, or of its replacement."""
        queue = self.queues[index]
        self._forget_taken(index)
        asked = queue.asked
        while queue.asked:
            try:
                fragment = self._group.answer(index)
            except WorkerLostError as error:
                self._replace(index, error)
                if index in self.absent:
                    return
                self.ask(index, times=asked)
                continue
            except Exception:
                # An error is an answer too. A worker that could not be created sends no other.
                queue.asked = queue.asked - 1 if self._group.is_initialized(index) else 0
                raise
            asked -= 1
            self._put(index, fragment)
            if not self.ahead:
                return

    def _put(self, index: int, fragment: Fragment | None) -> None:
        queue = self.queues[index]
        if fragment is not None:
            queue.put(fragment)
            return
        # It was broken off.
        queue.asked -= 1
        self._metrics.episodes_not_resumed += queue.running or self._each

    def break_off(self) -> None:
        """End the fragments that workers are sampling, and wait for those that end anyway."""
        for index in range(len(self)):
            self._forget_taken(index)
        # All of them are signalled before the first wait.
        broken = [
            index for index, queue in enumerate(self.queues) if queue.asked and self._group.signal(index)
        ]
        for index in broken:
            queue = self.queues[index]
            while queue.asked:
                try:
                    self._put(index, self._group.answer(index))
                except Exception as error:
                    queue.error = error
                    break
                # With `overlap` more than one is requested.
                if queue.asked:
                    self._group.signal(index)

    def kill_busy(self) -> bool:
        """End the processes that have not answered; return whether there are any."""
        busy = [peer for peer in self._group.actors if peer.pending]
        for peer in busy:
            peer.kill()
        return bool(busy)

    def _forget_taken(self, index: int) -> None:
        """Forget requests whose answers an interrupted call has already received."""
        queue = self.queues[index]
        queue.asked = min(queue.asked, self._group.outstanding(index))

    def sure(self, index: int, method: Callable[[Any, *Ts], T], *args: *Ts) -> T | None:
        """Call a worker's method, on its replacement if it is lost; None for one that Ray cannot place."""
        try:
            self.fetch(index)
        except WorkerLostError:
            # A warning was given and a replacement starts, so the run can still be saved.
            pass
        except Exception as error:
            # Raise it at the next fragment; a worker that could not be created raises again.
            if self._group.is_initialized(index):
                self.queues[index].error = error
        if index in self.absent:
            return None
        self._group.settle(index)
        self._group.ask(index, method, *args)
        return self._answer(index, method, *args)

    def sure_of_all(self, method: Callable[[Any, *Ts], T], *args: *Ts) -> list[T]:
        """Call a method of each present worker, one after the other."""
        found: dict[int, Any] = {index: self.sure(index, method, *args) for index in self.present()}
        return [value for index, value in found.items() if index not in self.absent]

    def ask_all(self, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        """Request a method call of each worker."""
        for index in range(len(self)):
            self._group.settle(index)
            self._group.ask(index, method, *args)

    def answers(self, method: Callable[[Any, *Ts], T], *args: *Ts) -> list[T]:
        """Return the answers to `ask_all`; a lost worker's replacement is asked again."""
        found: list[Any] = [self._answer(index, method, *args) for index in range(len(self))]
        return found

    def all_at_once(self, method: Callable[[Any, *Ts], T], *args: *Ts) -> list[T]:
        """Call a method of all workers in parallel."""
        self.ask_all(method, *args)
        return self.answers(method, *args)

    def brief_again(self) -> None:
        """Re-create each worker with the current policies, in its process."""
        for index in range(len(self)):
            self._group.initialize_again(index)

    def restart(self, seed: int) -> None:
        """Restart each worker with another seed and discard its counters."""
        self._seed = seed
        for index in range(len(self)):
            self.sure(index, RolloutWorker.restart, seed)
            self.queues[index] = FragmentQueue()

    def stand_in(self, replaced: Sequence[int]) -> None:
        """Let each worker sample as one that was replaced so often."""
        for index, times in enumerate(replaced):
            # Its environments got their seeds when they were created.
            if times or self._group.replaced[index]:
                self._group.replaced[index] = times
                self._group.initialize_again(index)

    def begins_anew(self, index: int) -> None:
        """Record that an absent worker resumes nothing and must sample other numbers."""
        self.queues[index].lose()
        self._group.replaced[index] += 1

    def renew(self) -> None:
        """Re-create all workers; discard their fragments."""
        for index in range(len(self)):
            self._group.renew(index)
            self.queues[index] = FragmentQueue()

    def stop(self) -> None:
        self._stopped = True
        self._engine.stop()

    def _answer(self, index: int, method: Callable[[Any, *Ts], T], *args: *Ts) -> T | None:
        """Wait for an answer; if the worker is lost, ask its replacement."""
        while True:
            try:
                answer: T = self._group.answer(index)
                return answer
            except WorkerLostError as error:
                self._replace(index, error)
                if index in self.absent:
                    return None
                self._group.ask(index, method, *args)

    def _worker_init(self, index: int, times: int) -> WorkerInit:
        """Return what a worker is created from; a replacement samples with another seed."""
        settings: WorkerSettings | SealedValue = _settings(self._config)
        if self._first is not None and not can_be_pickled(settings):
            # Callbacks may hold the algorithm or open files by now, which workers do not need.
            settings = self._first
        seed = rng.key(self._seed, index, times) >> 2 if times else self._seed
        placement = WorkerPlacement(index + 1, recreated=times > 0)
        return WorkerInit(
            settings, placement, self._policy_sync.worker_policies(), seed, self._declared, self._each
        )

    def _replace(self, index: int, error: WorkerLostError) -> None:
        """Replace a lost worker; its running episodes count as faulty."""
        self._check_running()
        hung = where_it_hung(str(error))
        if hung is not None and self._config.env_timeout is not None:
            head, expected, rest = str(error).partition(", expected ")
            told = f"{head}: {self._overdue(index)}, from {hung}"
            if not self._group.lost and not self._group.is_initialized(index):
                self._group.give_up(index)
                raise WorkerLostError(
                    f"{told}, expected it to be there; fix what it waits for, or raise env_timeout above that"
                ) from error
            error = WorkerLostError(f"{told}{expected}{rest}")
        line = in_a_line(str(error))
        for _ in range(self.queues[index].running or self._each):
            self._metrics.record_faulty(line)
        self.queues[index].lose()
        self.recreated.append(index + 1)
        self._group.replace(index, error)
        self._check_running()
        warnings.warn(
            f"{line}: the episodes that ran in it are lost and another worker was started, expected none to end; "
            "look at what it wrote to stderr",
            EnvFaultWarning,
            stacklevel=2,
        )
        peer = self._group.actors[index]
        if self._engine.name == "ray" and len(self.absent) + 1 < len(self) and self._leaves_out:
            # A lost node may leave no room; the other workers do not wait for one.
            self._engine.wait([peer], _PLACED_AGAIN_S)
            if peer.pid is None:
                self._leave_out(index, f"{peer.label}: Ray has not placed it within {_PLACED_AGAIN_S:g} s")

    def _overdue(self, index: int) -> str:
        seconds = self._config.env_timeout
        if self._group.is_initialized(index):
            # Progress is counted in env steps; callbacks and policies run between them.
            return f"an environment, or a callback or a custom policy, did not return for env_timeout={seconds:g} s"
        return f"an environment was not created within {creation_limit(seconds):g} s"

    def _check_running(self) -> None:
        if self._stopped:
            # A worker may have been started since.
            self._engine.stop()
            raise CallOrderError("sample: this algorithm was stopped meanwhile; build a new one")


def sealed_settings(config: AlgorithmConfig) -> SealedValue:
    """Return the current settings for workers that start later, pickled."""
    return SealedValue(_settings(config))


def _settings(config: AlgorithmConfig) -> WorkerSettings:
    config = replace(config, evaluation_config=None, input=None)
    return WorkerSettings(config, known_here(config.env, config.env_config))


F = TypeVar("F", bound=Callable[..., Any])


def locked(method: F) -> F:
    """Hold `self.lock` during a method: concurrent requests would receive each other's answers."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        with self.lock:
            return method(self, *args, **given)

    return call  # type: ignore[return-value]
