"""A rollout worker: samples in another process, kept up to date by `PolicyUpdate`s.

`remote_rollouts` requests fragments to learn from, `evaluation_runner` the quotas of evaluations. It imports no torch,
unless a policy acts with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from menv import rng
from menv.adapters.adapter import Adapter
from menv.adapters.validation import Declared, check_worker
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.environments import WorkerPlacement, create_envs, create_evaluation_envs
from menv.algorithms.rollouts.evaluation import Evaluation, EvaluationShare
from menv.algorithms.rollouts.local_rollouts import LocalRollouts, freeze
from menv.algorithms.rollouts.worker_messages import (
    Fragment,
    PolicyUpdate,
    PolicyView,
    WorkerSettings,
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

_ALWAYS = ("always", None, EnvFaultWarning)


def import_runtime() -> None:
    """Import what a worker needs, while no worker is needed yet."""
    import menv.inference.onnx_backend  # noqa: F401 - the slowest one


class RolloutWorker:
    """Samples the share of the sub-environments that its placement says: fragments, or the quotas of evaluations.

    `declared` are the spaces of the driver's environment; `num_envs` is the number of sub-environments of each worker;
    `state` is what it continues from, None at the start of a run.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        placement: WorkerPlacement,
        policies: PolicyView,
        seed: int,
        declared: Declared,
        num_envs: int,
        state: SamplerState | None,
    ) -> None:
        config = settings.config
        set_log_level(config.log_level)
        settings.registered.register()
        self._placement, self._policies = placement, policies
        self._declared, self._num_envs = declared, num_envs
        # Remote environments are watched from here.
        self._seconds = None if config.remote_worker_envs else config.env_timeout
        if config.seed is not None:
            rng.seed_process(seed, placement.worker_index)
        self._metrics = Metrics(0)
        self._rollouts: LocalRollouts
        self._evaluation: Evaluation
        self._source: LocalRollouts | Evaluation
        if placement.in_evaluation:
            # It creates its environments when it begins, with separate random numbers.
            callbacks = read_callbacks(config["callbacks"])
            self._source = self._evaluation = Evaluation(
                config, self._policies, self._make_envs, callbacks, seed, placement
            )
        else:
            base_env, callbacks = self._make_envs(config), read_callbacks(config["callbacks"])
            self._source = self._rollouts = LocalRollouts(
                config, base_env, self._policies, callbacks, seed, self._metrics, placement
            )
            self._rollouts.later = config.overlap and not self._rollouts.hooked
        self._source.guard = Watchdog(self._seconds, self._progress)
        if state is not None and not placement.in_evaluation:
            self._rollouts.resume(state)

    def _make_envs(self, config: AlgorithmConfig) -> Adapter:
        placement = self._placement
        with creation(self._seconds):
            first, base_env = (
                create_evaluation_envs(config, None, placement)
                if placement.in_evaluation
                else create_envs(config, placement)
            )
        num_envs = 0 if placement.in_evaluation else self._num_envs
        check_worker(placement.label, base_env, first, self._declared, num_envs)
        return base_env

    def take(self, update: PolicyUpdate) -> None:
        """Apply an update of the policies."""
        self._policies.take(update)

    def quota(self, number: int, update: PolicyUpdate | None) -> EvaluationShare:
        """Run the episodes of evaluation `number`, after an update while no episode is running."""
        if update is not None:
            self.take(update)
        with collect_warnings() as faults:
            return self._evaluation.play(number)._replace(warnings=faults)

    def fragment(self, weights_seq_no: int | None, explore: bool) -> Fragment:
        """Return one fragment; rows carry `weights_seq_no` unless it is None."""
        rollouts = self._rollouts
        # The statistics of a received filter already include its buffered changes.
        for filters in synced_filters(self._policies.policies).values():
            for one in filters.values():
                one.reset_state()
        for group in self._policies.groups:
            group.weights_seq_no = weights_seq_no
        rollouts.sampler.explore = explore
        with collect_warnings() as faults:
            batch = rollouts.sample()
        counters, sampler = rollouts.counters, rollouts.sampler
        counters.digest = Digest(*counters.digest.state())
        # The next fragment counts from 0.
        sampler.env_steps = sampler.agent_steps = self._policies.postprocessor.left_out = 0
        sampler.digest = Digest()
        now = sampler.state()
        state = SamplerState(steps=now.steps, begun=now.begun, running=now.running)
        metrics, timers = self._metrics.take(), rollouts.timers.take()
        seen: dict[str, list[tuple[int, Any]]] = {}
        for policy_id, filters in synced_filters(self._policies.policies).items():
            for position, one in filters.items():
                if one.is_training:
                    seen.setdefault(policy_id, []).append((position, one.copy()))
                    one.reset_state()
        return Fragment(batch, counters, state, metrics, seen, faults, timers)

    def switch(self, worker_policies: PolicyView) -> None:
        """Switch to the current policies; running episodes keep theirs."""
        own = self._policies
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
        self._rollouts.sampler.policies = policies
        self._rollouts.follow(added)
        own.groups = groups

    def running_ids(self) -> set[int] | None:
        return self._rollouts.running_ids()

    def seats_playing(self) -> set[str]:
        return self._rollouts.seats_playing()

    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """Call a method of its sub-environments."""
        return self._source.call_envs(method, args)

    def stop(self) -> None:
        """Close the environments."""
        self._source.stop()

    def _progress(self) -> int:
        steps = getattr(self._source.base_env, "env_steps", None)
        return 0 if steps is None else int(steps.sum())


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
