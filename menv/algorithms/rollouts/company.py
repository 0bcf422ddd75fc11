"""The policies as a worker has them, and what it is told of them.

`menv.algorithms.rollouts.headlines` makes both in the driver; whoever samples or plays in a worker has a company and
lets it take the news.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from menv.algorithms.rollouts.completion import Completion
from menv.connectors.default_pipelines import leaf_connectors
from menv.connectors.kept_lives import hand_on_lives
from menv.connectors.mean_std_filter import SyncedFilterAgentConnector
from menv.connectors.policy_connectors import PolicyConnectors
from menv.loop.cohort import Cohort
from menv.loop.net_policy import NetPolicy
from menv.policy import Policy
from menv.policy_map import PolicyMap


class News(NamedTuple):
    """What has changed of the policies since the last news.

    Attributes:
        weights: By policy id.
        connectors: Pipelines that were edited, by policy id.
        filters: By policy id: the place in its agent connectors, and a filter whose statistics are to be taken over.
    """

    weights: Mapping[str, Mapping[str, Any]]
    connectors: Mapping[str, PolicyConnectors]
    filters: Mapping[str, Sequence[tuple[int, Any]]]

    @property
    def empty(self) -> bool:
        """Whether nothing has changed."""
        return not (self.weights or self.connectors or self.filters)

    def of(self, policy_ids: Collection[str]) -> News:
        """Return what is told of some policies."""
        weights, connectors, filters = self
        return News(
            {name: own for name, own in weights.items() if name in policy_ids},
            {name: own for name, own in connectors.items() if name in policy_ids},
            {name: own for name, own in filters.items() if name in policy_ids},
        )


@dataclass(slots=True)
class Company:
    """The policies, as a worker has them; a `Crew`. It is pickled in one go, because its parts know each other.

    Attributes:
        policy_map: Who answers for whom.
        policies: The policy objects by id.
        cohorts: Who answers together.
        completion: Makes fragments ready to be learned from.
    """

    policy_map: PolicyMap
    policies: Mapping[str, Policy]
    cohorts: list[Cohort]
    completion: Completion

    def take(self, news: News, slots: Sequence[int]) -> None:
        """Let policies be as they are in the driver.

        Args:
            news: Of them.
            slots: On which lives may be lived here that connectors remember; the driver knows nothing of them.
        """
        # Who takes the place of a lost worker has not all whom it is told of, if some were removed since.
        news = news.of(self.policies)
        for policy_id, own in news.connectors.items():
            policy = self.policies[policy_id]
            assert isinstance(policy, NetPolicy)
            before = policy.networks.connectors[policy.index]
            hand_on_lives(before.agent, own.agent, slots)
            policy.networks.connectors[policy.index] = own  # type: ignore[index]
        for policy_id, weights in news.weights.items():
            self.policies[policy_id].set_weights(weights)
        for policy_id, filters in news.filters.items():
            mine = synced(self.policies[policy_id])
            for place, theirs in filters:
                mine[place].sync(theirs)


def synced(policy: Policy) -> dict[int, SyncedFilterAgentConnector]:
    """Return the filters of a policy whose statistics are merged, by their place among its agent connectors."""
    if not isinstance(policy, NetPolicy):
        return {}
    return {
        place: one
        for place, one in enumerate(leaf_connectors(policy.agent_connectors))
        if isinstance(one, SyncedFilterAgentConnector)
    }
