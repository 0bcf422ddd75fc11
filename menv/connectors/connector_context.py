"""ConnectorContext: what connectors may know of the policy that they stand before or behind.

Connectors and pipelines are created with one. It knows spaces and settings, no networks and no environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from menv.policy import Policy


@dataclass(frozen=True)
class ConnectorContext:
    """What connectors may know.

    Attributes:
        config: Settings of the policy.
        initial_states: Parts of the recurrent state that a life begins with.
        observation_space: What the policy's preprocessing takes.
        action_space: What the environment takes.
        view_requirements: Columns of the model's input by name, each a `ViewRequirement`.
        is_policy_recurrent: Whether the policy has a recurrent state.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    initial_states: Sequence[Any] = ()
    observation_space: Any = None
    action_space: Any = None
    view_requirements: Mapping[str, Any] = field(default_factory=dict)
    is_policy_recurrent: bool = False

    @classmethod
    def from_policy(cls, policy: Policy) -> Self:
        """Return the context of a policy."""
        states = policy.get_initial_state()
        return cls(
            dict(policy.config),
            states,
            policy.observation_space,
            policy.action_space,
            is_policy_recurrent=bool(states),
        )

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: nobody changes it, and spaces are large."""
        return self
