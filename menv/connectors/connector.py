"""Connector: what agent connectors, action connectors and their pipelines have in common.

It knows names, state and whether the policy is being trained; no data.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Self

from menv.errors import ConfigError, ContractError, UnknownNameError
from menv.policy import Policy

# SEAM menv.connectors.connector_context
# ConnectorContext: what connectors may know of the policy that they stand before or behind.
#
# Connectors and pipelines are created with one. It knows spaces and settings, no networks and no
# environments.


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


class Connector:
    """One transform with a name and a state.

    Args:
        ctx: What it may know; a pipeline lends its own to connectors that were made without one.

    Attributes:
        ctx: The context.
        is_training: Whether statistics may grow.
    """

    # Here, so that a subclass whose constructor does not call this one works too.
    ctx: ConnectorContext | None = None
    is_training: bool = True

    def __init__(self, ctx: ConnectorContext | None = None) -> None:
        self.ctx = ctx

    @property
    def name(self) -> str:
        """The name by which pipelines find it, which is its class's."""
        return type(self).__name__

    def in_training(self) -> None:
        """Go on as in training."""
        self.is_training = True

    def in_eval(self) -> None:
        """Go on as in evaluation: whatever is learned from data stays as it is."""
        self.is_training = False

    def to_state(self) -> tuple[str, Any]:
        """Return the registered name and the parameters, which JSON can hold.

        Raises:
            ContractError: A subclass does not define it.
        """
        raise ContractError(
            f"{self.name}.to_state: not defined, expected (name, parameters that JSON can hold); define to_state and "
            "from_state in your class"
        )

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return a connector with the parameters that `to_state` returned."""
        raise ContractError(
            f"{cls.__name__}.from_state: not defined, expected a connector; define to_state and from_state in your "
            "class"
        )

    def known(self, what: str) -> Any:
        """Return an attribute of the context that cannot be done without.

        Raises:
            ContractError: There is none.
        """
        value = getattr(self.ctx, what, None)
        if value is None:
            raise ContractError(
                f"{self.name}: its context has no {what}, expected one; pass ConnectorContext({what}=...) or "
                "ConnectorContext.from_policy(policy)"
            )
        return value

    def __str__(self) -> str:
        return self.name


# SEAM menv.connectors.built_in
# The names of menv's own connectors, and the file in which each lives and registers itself.
#
# The package fetches them by these names, and so does the registry. It imports none of them.


BUILT_IN = {
    "ActionConnectorPipeline": "pipeline",
    "AgentConnectorPipeline": "pipeline",
    "ClipActionsConnector": "action_connector",
    "ClipRewardAgentConnector": "clip_reward",
    "ConvertToNumpyConnector": "action_connector",
    "EnvSamplingAgentConnector": "view_requirement",
    "FlattenDataAgentConnector": "obs_preprocessor",
    "FrameStackAgentConnector": "frame_stack",
    "ImmutableActionsConnector": "action_connector",
    "MeanStdObservationFilterAgentConnector": "mean_std_filter",
    "NormalizeActionsConnector": "action_connector",
    "ObsPreprocessorConnector": "obs_preprocessor",
    "StateBufferConnector": "view_requirement",
    "ViewRequirementAgentConnector": "view_requirement",
}
"""File by name."""


# SEAM menv.connectors.connector_registry
# Names of connectors: what a saved pipeline says, and which class it means.
#
# A state names its class and never where to import it from, so reading one runs no code of the file's choice.


_classes: dict[str, type[Connector]] = {}


def register_connector(name: str, cls: type[Connector]) -> None:
    """Make a class known under a name.

    Raises:
        ConfigError: The name is taken, or `cls` is no subclass of Connector.
    """
    if not (isinstance(cls, type) and issubclass(cls, Connector)):
        raise ConfigError(
            f"register_connector: {name!r} is {cls!r}, expected a subclass of AgentConnector or ActionConnector; "
            "pass the class itself"
        )
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register_connector: {name!r}, expected a name that is not empty; pass a string")
    own = f"menv.connectors.{BUILT_IN[name]}" if name in BUILT_IN else cls.__module__
    if name in _classes or cls.__module__ != own:
        raise ConfigError(
            f"register_connector: {name!r} is a registered connector already, expected a new name; choose another one"
        )
    _classes[name] = cls


def get_connector(name: str, ctx: ConnectorContext | None = None, params: Any = None) -> Connector:
    """Return a connector of a registered class.

    Args:
        name: What it is registered as.
        ctx: What it may know.
        params: What `to_state` returned behind the name; None for the class's own defaults.

    Raises:
        UnknownNameError: Nothing is registered under the name.
        ConfigError: The parameters are none of this class.
    """
    if name in BUILT_IN:
        import_module(f"menv.connectors.{BUILT_IN[name]}")
    if name not in _classes:
        near = difflib.get_close_matches(str(name), {**BUILT_IN, **_classes}, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "call register_connector in this process first"
        raise UnknownNameError(f"connector {name!r}: not registered, expected a registered name; {hint}")
    return _classes[name].from_state(ctx or ConnectorContext(), params)


def keywords(where: str, params: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """Return parameters that are keyword arguments; None is none at all.

    Raises:
        ConfigError: They are no dict, or have an unknown key.
    """
    if params is None:
        return {}
    if not isinstance(params, dict) or not params.keys() <= set(known):
        got = sorted(map(str, params)) if isinstance(params, dict) else type(params).__name__
        raise ConfigError(
            f"{where}: parameters {got}, expected a dict with keys of {list(known)}; pass what to_state returned"
        )
    return dict(params)


# SEAM menv.connectors.stateless
# What connectors without parameters have in common: their name says everything about them.


class Stateless(Connector):
    """A connector that its name says everything about."""

    def to_state(self) -> tuple[str, Any]:
        """Return the name, and no parameters."""
        return self.name, None

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return one."""
        keywords(cls.__name__, params, ())
        return cls(ctx)
