"""A rollout worker: samples in another process, created from a `WorkerInit` and kept up to date by `PolicyUpdate`s.

`remote_rollouts` starts it and requests fragments. It imports no torch, unless a policy acts with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from menv import rng
from menv.adapters.validation import check_worker
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.environments import create_envs
from menv.algorithms.rollouts.local_rollouts import LocalRollouts, freeze
from menv.algorithms.rollouts.worker_messages import (
    Fragment,
    PolicyUpdate,
    PolicyView,
    WorkerCounters,
    WorkerInit,
    network_policies,
    synced_filters,
)
from menv.callbacks import read_callbacks
from menv.errors import EnvFaultWarning
from menv.metrics import Metrics
from menv.sampling.digest import Digest
from menv.sampling.sampler import SamplerState
from menv.workers.watchdog import Watchdog, creation
from menv.workers.worker_process import set_log_level

Filters = dict[str, list[tuple[int, Any]]]
_ALWAYS = ("always", None, EnvFaultWarning)


def import_runtime() -> None:
    """Import what a worker needs, while no worker is needed yet."""
    import menv.inference.onnx_backend  # noqa: F401 - the slowest one


class RolloutWorker(LocalRollouts):
    """Samples the share of the sub-environments that its placement says."""

    def __init__(self, worker_init: WorkerInit) -> None:
        config, placement = open_settings(worker_init), worker_init.placement
        self._worker_policies = worker_init.worker_policies
        # Remote environments are watched from here.
        seconds = None if config.remote_worker_envs else config.env_timeout
        if config.seed is not None:
            rng.seed_process(worker_init.seed, placement.worker_index)
        with creation(seconds):
            first, base_env = create_envs(config, placement)
        where = f"worker {placement.worker_index}"
        check_worker(where, base_env, first, worker_init.declared, worker_init.num_envs)
        callbacks = read_callbacks(config["callbacks"])
        super().__init__(
            config, base_env, self._worker_policies, callbacks, worker_init.seed, Metrics(0), placement
        )
        self.later = config.overlap and not self.hooked
        self._counted = WorkerCounters()
        self.guard = Watchdog(seconds, self._progress)
        if worker_init.state is not None:
            self.resume(worker_init.state)

    def take(self, update: PolicyUpdate) -> None:
        """Apply an update of the policies."""
        self._worker_policies.take(update)

    def fragment(self, weights_seq_no: int | None, explore: bool) -> Fragment:
        """Return one fragment; rows carry `weights_seq_no` unless it is None."""
        # The statistics of a received filter already include its buffered changes.
        for filters in synced_filters(self._worker_policies.policies).values():
            for one in filters.values():
                one.reset_state()
        for group in self._worker_policies.groups:
            group.weights_seq_no = weights_seq_no
        self.sampler.explore = explore
        with collect_warnings() as faults:
            batch = self.sample()
        counted = self.counters
        counted.digest = Digest(*counted.digest.state())
        counters, self._counted = counted.since(self._counted), counted
        now = self.sampler.state()
        state = SamplerState(steps=now.steps, begun=now.begun, running=now.running)
        return Fragment(
            batch, counters, state, self._metrics.take(), self._seen(), faults, self.timers.take()
        )

    def switch(self, worker_policies: PolicyView) -> None:
        """Switch to the current policies; running episodes keep theirs."""
        own = self._worker_policies
        added = worker_policies.groups[len(own.groups) :]
        for mine, newer in zip(own.groups, worker_policies.groups, strict=False):
            mine.strategy.update_policies(newer.strategy)
        groups = [*own.groups, *added]
        # The new policies refer to copies of the networks; the connectors here know the running episodes.
        home: dict[int, Any] = {
            id(newer.strategy.networks): mine.strategy.networks
            for newer, mine in zip(worker_policies.groups, groups, strict=True)
        }
        policies = dict(worker_policies.policies)
        for policy in network_policies(policies).values():
            policy.networks = home[id(policy.networks)]
        for group in own.groups:
            # Without policies where networks act.
            known = zip(group.policy_ids, group.strategy.policies, strict=False)
            policies |= {name: policy for name, policy in known if name in policies}
        own.postprocessor = worker_policies.postprocessor.over(groups, policies, own.postprocessor.left_out)
        own.policy_map, own.policies = worker_policies.policy_map, policies
        freeze(own)
        self.sampler.policies = policies
        self.follow(added)
        own.groups = groups

    def _progress(self) -> int:
        steps = getattr(self.base_env, "env_steps", None)
        return 0 if steps is None else int(steps.sum())

    def _seen(self) -> Filters:
        found: Filters = {}
        for policy_id, filters in synced_filters(self._worker_policies.policies).items():
            for position, one in filters.items():
                if one.is_training:
                    found.setdefault(policy_id, []).append((position, one.copy()))
                    one.reset_state()
        return found


def open_settings(worker_init: WorkerInit) -> AlgorithmConfig:
    """Return the settings of a worker, after registering the driver's environment names here."""
    config = worker_init.settings.config
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
