"""A rollout worker: samples in another process, created from a `WorkerInit` and kept up to date by `PolicyUpdate`s.

`menv.algorithms.remote_rollouts` starts it and requests fragments. It imports no torch, unless a policy acts with it.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from menv import rng
from menv.adapters.validation import check_worker
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts import LocalRollouts, Tree, freeze
from menv.algorithms.worker_messages import (
    Fragment,
    PolicyUpdate,
    WorkerCounters,
    WorkerInit,
    WorkerPolicies,
    create_envs,
    network_policies,
    synced_filters,
)
from menv.callbacks import overrides, read_callbacks
from menv.errors import EnvFaultWarning
from menv.metrics import Metrics
from menv.sampling.custom_policy_group import CustomPolicyGroup
from menv.sampling.digest import Digest
from menv.workers.engine import BREAK
from menv.workers.watchdog import Watchdog, creation_limit, limited
from menv.workers.worker_process import set_log_level

Filters = dict[str, list[tuple[int, Any]]]
_ALWAYS = ("always", None, EnvFaultWarning)


def import_runtime() -> None:
    """Import what a worker needs, while no worker is needed yet."""
    import menv.inference.onnx_backend  # noqa: F401 - the slowest one


class Breakable:
    """A context that the signal `BREAK` ends with KeyboardInterrupt; sent outside of it, it ends the next one."""

    def __init__(self) -> None:
        self._inside = self._due = False
        # An actor of Ray may call this in another thread.
        if threading.current_thread() is threading.main_thread():
            signal.signal(BREAK, self._on_signal)

    def __enter__(self) -> None:
        self._inside = True
        if self._due:
            self._break()

    def __exit__(self, *_: object) -> None:
        self._inside = False

    def _on_signal(self, *_: Any) -> None:
        self._due = True
        if self._inside:
            self._break()

    def _break(self) -> None:
        self._inside = self._due = False
        raise KeyboardInterrupt


class RolloutWorker:
    """Samples the share of the sub-environments that its placement says."""

    def __init__(self, worker_init: WorkerInit) -> None:
        config = open_settings(worker_init)
        self._worker_policies = worker_init.worker_policies
        self._metrics = Metrics(0)
        # Remote environments are watched from here.
        seconds = None if config.remote_worker_envs else config.env_timeout
        if config.seed is not None:
            rng.seed_process(worker_init.seed, worker_init.placement.worker_index)
        with limited(creation_limit(seconds)):
            first, base_env = create_envs(config, worker_init.placement)
        check_worker(
            f"worker {worker_init.placement.worker_index}",
            base_env,
            first,
            worker_init.declared,
            worker_init.num_envs,
        )
        callbacks = read_callbacks(config["callbacks"])
        self._rollouts = LocalRollouts(
            config,
            base_env,
            worker_init.worker_policies,
            callbacks,
            worker_init.seed,
            self._metrics,
            worker_init.placement,
        )
        # Callbacks here must see complete batches.
        looked_at = any(overrides(callbacks, hook) for hook in ("on_postprocess_trajectory", "on_sample_end"))
        self._rollouts.later = config.overlap and not looked_at
        self._rollouts.breakable = Breakable()
        self._rollouts.guard = Watchdog(seconds, self._progress)

    def sample(
        self, weights_seq_no: int | None, explore: bool, update: PolicyUpdate | None = None
    ) -> Fragment | None:
        """Return one fragment, after applying an update; rows carry `weights_seq_no` unless it is None.

        Return None if the driver has broken it off.
        """
        if update is not None:
            self._worker_policies.take(update, range(self._rollouts.sampler.slots_used))
        # The statistics of a received filter already include its buffered changes.
        for policy in self._worker_policies.policies.values():
            for one in synced_filters(policy).values():
                one.reset_state()
        rollouts = self._rollouts
        for group in self._worker_policies.groups:
            group.weights_seq_no = weights_seq_no
        rollouts.sampler.explore = explore
        with collect_warnings() as faults:
            try:
                batch = rollouts.sample()
            except KeyboardInterrupt:
                return None
        counters = WorkerCounters(
            rollouts.env_steps, rollouts.agent_steps, rollouts.left_out, Digest(*rollouts.digest.state()),
            len(rollouts.sampler.running),
        )  # fmt: skip
        return Fragment(batch, counters, self._metrics.take(), self._seen(), faults, rollouts.timers.take())

    def follow(self, worker_policies: WorkerPolicies) -> None:
        """Switch to the current policies; running episodes keep theirs."""
        own = self._worker_policies
        added = worker_policies.groups[len(own.groups) :]
        for mine, newer in zip(own.groups, worker_policies.groups, strict=False):
            mine.update_policies(newer)
        groups = [*own.groups, *added]
        # The new policies refer to copies of the groups; the groups here know the running episodes.
        home: dict[int, Any] = {
            id(newer): mine for newer, mine in zip(worker_policies.groups, groups, strict=True)
        }
        policies = dict(worker_policies.policies)
        for policy in network_policies(policies).values():
            policy.networks = home[id(policy.networks)]
        for group in own.groups:
            if isinstance(group, CustomPolicyGroup):
                known = dict(zip(group.policy_ids, group.policies, strict=True))
                policies |= {name: policy for name, policy in known.items() if name in policies}
        own.postprocessor = worker_policies.postprocessor.over(groups, policies, own.postprocessor.left_out)
        own.policy_map, own.policies = worker_policies.policy_map, policies
        freeze(own)
        self._rollouts.sampler.policies = policies
        self._rollouts.follow(added)
        own.groups = groups

    def running_ids(self) -> set[int] | None:
        return self._rollouts.running_ids()

    def seats_playing(self) -> set[str]:
        return self._rollouts.seats_playing()

    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        return self._rollouts.call_envs(method, args)

    def state(self) -> Tree:
        return self._rollouts.state()

    def check_restartable(self) -> None:
        self._rollouts.check_restartable()

    def restart(self, seed: int) -> None:
        self._metrics.take()
        self._rollouts.restart(seed)

    def resume(self, tree: Mapping[str, Any]) -> int:
        return self._rollouts.resume(tree)

    def stop(self) -> None:
        self._rollouts.stop()

    def _progress(self) -> int:
        steps = getattr(self._rollouts.base_env, "env_steps", None)
        return 0 if steps is None else int(steps.sum())

    def _seen(self) -> Filters:
        found: Filters = {}
        for policy_id, policy in self._worker_policies.policies.items():
            for position, one in synced_filters(policy).items():
                if one.is_training:
                    found.setdefault(policy_id, []).append((position, one.as_serializable()))
                    one.reset_state()
        return found


def open_settings(worker_init: WorkerInit) -> AlgorithmConfig:
    """Return the settings of a worker, after registering the driver's environment names here."""
    config = worker_init.settings.config
    if worker_init.placement.recreated and config.seed is not None:
        config = replace(config, seed=worker_init.seed)
    set_log_level(config.log_level)
    worker_init.settings.registered.register()
    return config


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect warnings of faults, which the driver shows; show others as usual, each once."""
    faults: list[str] = []
    show = warnings.showwarning

    def hear(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
        if issubclass(category, EnvFaultWarning):
            faults.append(str(message))
        else:
            show(message, category, *args, **kwargs)

    # Not by `catch_warnings`: after that, and after each change of a filter, Python shows all warnings again.
    if not warnings.filters or warnings.filters[0][:3] != _ALWAYS:
        warnings.simplefilter("always", EnvFaultWarning)
    warnings.showwarning = hear
    try:
        yield faults
    finally:
        warnings.showwarning = show
