"""Connector: the base of agent connectors, action connectors and their pipelines, and the registry of their names.

A saved pipeline names its connectors, never a module to import, so reading one runs no code of the file's choice.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Self

from menv.errors import ConfigError, ContractError, UnknownNameError
from menv.policy import Policy


@dataclass(frozen=True)
class ConnectorContext:
    """The policy's properties that connectors and pipelines may use.

    Attributes:
        config: Settings of the policy.
        initial_states: Parts of the initial recurrent state.
        observation_space: The policy's observations before preprocessing.
        action_space: The environment's actions.
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
        """Return itself: it is immutable, and spaces are large."""
        return self


class Connector:
    """One transform with a name and a state.

    Args:
        ctx: The context; a pipeline sets its own on connectors without one.

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
        """Switch to training: statistics grow."""
        self.is_training = True

    def in_eval(self) -> None:
        """Switch to evaluation: statistics stay unchanged."""
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
        """Return a required attribute of the context.

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
"""The module of each built-in connector, which registers it on import."""


_classes: dict[str, type[Connector]] = {}


def register_connector(name: str, cls: type[Connector]) -> None:
    """Register a class under a name.

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
        name: Its registered name.
        ctx: Its context.
        params: The parameters from `to_state`; None for the defaults of the class.

    Raises:
        UnknownNameError: Nothing is registered under the name.
        ConfigError: The parameters do not fit the class.
    """
    if name in BUILT_IN:
        import_module(f"menv.connectors.{BUILT_IN[name]}")
    if name not in _classes:
        near = difflib.get_close_matches(str(name), {**BUILT_IN, **_classes}, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "call register_connector in this process first"
        raise UnknownNameError(f"connector {name!r}: not registered, expected a registered name; {hint}")
    return _classes[name].from_state(ctx or ConnectorContext(), params)


def keywords(where: str, params: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """Return parameters as keyword arguments, {} for None; ConfigError for an unknown key."""
    if params is None:
        return {}
    if not isinstance(params, dict) or not params.keys() <= set(known):
        got = sorted(map(str, params)) if isinstance(params, dict) else type(params).__name__
        raise ConfigError(
            f"{where}: parameters {got}, expected a dict with keys of {list(known)}; pass what to_state returned"
        )
    return dict(params)


class Stateless(Connector):
    """A connector without parameters: its state is its name."""

    def to_state(self) -> tuple[str, Any]:
        """Return the name, and no parameters."""
        return self.name, None

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return a connector."""
        keywords(cls.__name__, params, ())
        return cls(ctx)
