"""What the driver and its workers exchange: settings, policy updates, fragments and counters.

`remote_rollouts` is one end, `rollout_worker` the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.postprocessing import BatchPostprocessor
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.pipeline import PolicyConnectors, carry_frames
from menv.inference.network_policy import NetworkPolicy
from menv.metrics import MetricsSnapshot, Timers
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.registry import RegisteredEnv
from menv.sample_batch import MultiAgentBatch
from menv.sampling.digest import Digest
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.sampler import SamplerState


class PolicyUpdate(NamedTuple):
    """Changes of the policies since the last update, by policy id.

    `filters` holds for each policy positions among its agent connectors, each with a filter whose statistics to copy;
    `table` is that of the mapping, None if it has not changed.
    """

    weights: Mapping[str, Mapping[str, Any]]
    connectors: Mapping[str, PolicyConnectors]
    filters: Mapping[str, Sequence[tuple[int, Any]]]
    table: Any = None


@dataclass(eq=False, repr=False)
class PolicyView:
    """The policies as sampling needs them; `PolicySet` has more. It is pickled as a whole: its parts share objects.

    `policy_map` maps agents to policies, `groups` act together, `postprocessor` prepares fragments for learning.
    """

    policy_map: PolicyMap
    policies: dict[str, Policy]
    groups: list[PolicyGroup]
    postprocessor: BatchPostprocessor

    def take(self, update: PolicyUpdate) -> None:
        """Apply an update; running agent episodes keep their stacked frames.

        The replacement of a lost worker lacks policies that were removed since.
        """
        if update.table is not None:
            self.policy_map.table = update.table
        for policy_id, own in update.connectors.items():
            policy = self.policies.get(policy_id)
            if isinstance(policy, NetworkPolicy):
                carry_frames(policy.networks.connectors[policy.index].agent, own.agent)
                policy.networks.connectors[policy.index] = own
        for policy_id, weights in update.weights.items():
            if policy_id in self.policies:
                self.policies[policy_id].set_weights(weights)
        mine = synced_filters(self.policies)
        for policy_id, filters in update.filters.items():
            for position, theirs in filters if policy_id in mine else ():
                mine[policy_id][position].sync(theirs)


def network_policies(policies: Mapping[str, Policy]) -> dict[str, NetworkPolicy]:
    """Return the policies that act by networks."""
    return {name: policy for name, policy in policies.items() if isinstance(policy, NetworkPolicy)}


def synced_filters(
    policies: Mapping[str, Policy],
) -> dict[str, dict[int, MeanStdObservationFilterAgentConnector]]:
    """Return the filters with merged statistics of each policy, by their position among its agent connectors."""
    return {
        name: {
            position: one
            for position, one in enumerate(policy.agent_connectors.connectors)
            if isinstance(one, MeanStdObservationFilterAgentConnector)
        }
        for name, policy in network_policies(policies).items()
    }


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings for workers, and the environments that are registered by name.

    Errors about settings that cannot be pickled name these fields.
    """

    config: AlgorithmConfig
    registered: RegisteredEnv


@dataclass(slots=True)
class WorkerCounters:
    """Counters of a fragment, or sums of several.

    `left_out` counts rows that could not be learned from.
    """

    env_steps: int = 0
    agent_steps: int = 0
    left_out: int = 0
    digest: Digest = field(default_factory=Digest)

    @classmethod
    def of(cls, state: SamplerState) -> Self:
        """Return the counters in the state of a sampler."""
        return cls(state.env_steps, state.agent_steps, digest=Digest(*state.digest))

    def add(self, other: WorkerCounters) -> None:
        self.env_steps += other.env_steps
        self.agent_steps += other.agent_steps
        self.left_out += other.left_out
        self.digest.add(other.digest)


class Fragment(NamedTuple):
    """A worker's fragment, ready to be learned from, and its counters.

    All but the batch cover the time since the previous fragment; `filters` are as in `PolicyUpdate`. `state` is what
    another worker would continue from, without counters.
    """

    batch: MultiAgentBatch
    counters: WorkerCounters
    state: SamplerState
    metrics: MetricsSnapshot
    filters: Mapping[str, Sequence[tuple[int, Any]]]
    warnings: Sequence[str]
    timers: Timers


def joined_state(workers: Sequence[SamplerState], total: WorkerCounters, pieces: int) -> SamplerState:
    """Return the states of workers as the state of one sampler; `total` holds the counters of the run."""
    return SamplerState(
        total.env_steps,
        total.agent_steps,
        pieces,
        total.digest.state(),
        [count for one in workers for count in one.steps],
        [count for one in workers for count in one.begun],
        sum(one.running for one in workers),
    )


def split_state(state: SamplerState, count: int, each: int) -> list[SamplerState]:
    """Return the state of one sampler as that of `count` workers with `each` sub-environments and no counters."""
    total, steps, begun = count * each, state.steps, state.begun
    if len(steps) != total:
        # Other sub-environments: none may repeat a random number of the old ones.
        steps = [max(steps, default=0)] * total
    if len(begun) != total:
        begun = [max(begun, default=0)] * total
    return [
        SamplerState(steps=steps[first : first + each], begun=begun[first : first + each])
        for first in range(0, total, each)
    ]
