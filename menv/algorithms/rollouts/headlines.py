"""Headlines: what of an algorithm's policies its workers do not know yet.

`menv.algorithms.rollouts.worker_rollouts` asks it for the news before each fragment. What has not changed is not
sent: weights of policies that do not learn go out once, with the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from menv.algorithms.rollouts.company import Company, News, synced
from menv.algorithms.rollouts.rollouts import Crew
from menv.connectors.policy_connectors import PolicyConnectors
from menv.loop.net_policy import NetPolicy
from menv.policy import weights_of

Weights = Mapping[str, Any]


class Headlines:
    """Compares the policies of now with what workers have been told.

    Args:
        crew: The policies; workers are made from what they are now.

    Attributes:
        version: Number of the weights of now: it grows when some have changed.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.version = 1
        self._weights: dict[str, Weights] = {}
        self._versions: dict[str, int] = {}
        # Policies whose filters have seen something since the last news.
        self._moved: set[str] = set()
        self.told()

    def company(self) -> Company:
        """Return the policies as workers are made from them, or follow them."""
        crew = self._crew
        return Company(crew.policy_map, crew.policies, list(crew.cohorts), crew.completion)

    def told(self) -> None:
        """Note that workers have got the policies as they are now."""
        before, policies = self._weights, self._crew.policies
        # Policies of one's own stay the objects that workers have: what was set meanwhile is news still.
        stay = {name for name in before if not isinstance(policies.get(name), NetPolicy)}
        self.version += bool(before and self._changed().keys() - stay)
        self._weights = {
            name: before[name] if name in stay else weights_of(policy) for name, policy in policies.items()
        }
        # Edited pipelines of policies that were there before are news still, and so are their statistics.
        self._versions = {
            name: self._versions.get(name, own.version) for name, own in self._pipelines().items()
        }

    def news(self) -> News:
        """Return what has changed since the last time."""
        weights = self._changed()
        pipelines = self._pipelines()
        edited = {name: own for name, own in pipelines.items() if own.version != self._versions.get(name)}
        filters = {
            name: [(place, one.as_serializable()) for place, one in synced(self._crew.policies[name]).items()]
            for name in sorted(self._moved)
            if name in pipelines
        }
        self._weights.update(weights)
        self._versions.update({name: own.version for name, own in edited.items()})
        self._moved.clear()
        self.version += bool(weights)
        return News(weights, edited, filters)

    def untold(self, news: News) -> None:
        """Let the next news tell again of what some workers have not heard."""
        # Not taken out: what is not known here at all is taken to be known to workers, see `told`.
        self._weights.update({name: {} for name in news.weights})
        self._versions.update(dict.fromkeys(news.connectors, -1))
        self._moved |= news.filters.keys()

    def tell_filters(self) -> None:
        """Let the next news tell of all filters, for those who look on while others sample."""
        self._moved |= {name for name, policy in self._crew.policies.items() if synced(policy)}

    def absorb(self, seen: Mapping[str, Sequence[tuple[int, Any]]]) -> None:
        """Merge what the filters of a worker have seen."""
        for policy_id, filters in seen.items():
            mine = synced(self._crew.policies[policy_id]) if policy_id in self._crew.policies else {}
            for place, theirs in filters:
                if place in mine:
                    mine[place].apply_changes(theirs)
                    self._moved.add(policy_id)

    def _changed(self) -> dict[str, Weights]:
        found: dict[str, Weights] = {}
        for name, policy in self._crew.policies.items():
            before, now = self._weights.get(name), weights_of(policy)
            # Another policy may have the name by now, with weights of other names.
            if before is None or before.keys() != now.keys() or not _equal(before, now):
                found[name] = now
        return found

    def _pipelines(self) -> dict[str, PolicyConnectors]:
        return {
            name: policy.networks.connectors[policy.index]
            for name, policy in self._crew.policies.items()
            if isinstance(policy, NetPolicy)
        }


def _equal(before: Weights, now: Weights) -> bool:
    return all(np.array_equal(before[key], now[key]) for key in now)
