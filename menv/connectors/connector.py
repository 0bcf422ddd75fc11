"""Connectors: their base classes, what they take and return, and the registry of their names.

An `AgentConnector` stands between an environment's observations and a policy, an `ActionConnector` between a policy's
answer and the action that the environment gets. Users subclass them; pipelines call them. The built-in ones also work
on whole batches of rows. A saved pipeline names its connectors, never a module to import, so reading one runs no code
of the file's choice.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import gymnasium as gym
import numpy as np

from menv.base_env import Column
from menv.errors import ConfigError, ContractError, UnknownNameError
from menv.sample_batch import SampleBatch
from menv.spaces import OutsideSpaceError

if TYPE_CHECKING:
    from menv.policy import Policy

MASK = "action_mask"

PolicyOutput: TypeAlias = tuple[Any, Any, Mapping[str, Any]]
"""The action, the parts of the recurrent state, and fetches such as `action_logp`."""


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
        marked: How many members of a group the preprocessor marks as present or absent; see `ObsPreprocessor`.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    initial_states: Sequence[Any] = ()
    observation_space: Any = None
    action_space: Any = None
    view_requirements: Mapping[str, Any] = field(default_factory=dict)
    is_policy_recurrent: bool = False
    marked: int = 0

    @classmethod
    def from_policy(cls, policy: Policy) -> Self:
        """Return the context of a policy."""
        states, spaces = policy.get_initial_state(), (policy.observation_space, policy.action_space)
        return cls(dict(policy.config), states, *spaces, is_policy_recurrent=bool(states))

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
        """Let statistics grow."""
        self.is_training = True

    def in_eval(self) -> None:
        """Let statistics stay unchanged."""
        self.is_training = False

    def to_state(self) -> tuple[str, Any]:
        """Return the registered name and the parameters, which JSON can hold.

        Raises:
            ContractError: A subclass does not define it.
        """
        raise _undefined(type(self), "to_state")

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return a connector with the parameters that `to_state` returned."""
        raise _undefined(cls, "from_state")

    def known(self, what: str) -> Any:
        """Return a required attribute of the context; ContractError if there is none."""
        value = getattr(self.ctx, what, None)
        if value is None:
            raise ContractError(
                f"{self.name}: its context has no {what}, expected one; pass ConnectorContext.from_policy(policy)"
            )
        return value

    def __str__(self) -> str:
        return self.name


def _undefined(kind: type[Connector], method: str) -> ContractError:
    return ContractError(f"{kind.__name__}.{method}: not defined; define it in your class")


_classes: dict[str, type[Connector]] = {}


def register_connector(name: str, cls: type[Connector]) -> None:
    """Register a class under a name; ConfigError if the name is taken or `cls` is not a subclass of Connector."""
    if not (isinstance(cls, type) and issubclass(cls, Connector)):
        raise ConfigError(
            f"register_connector: {name!r} is {cls!r}, expected a subclass of Agent- or ActionConnector; pass one"
        )
    if _class_of(name) is not None:
        raise ConfigError(
            f"register_connector: {name!r} is registered already, expected a new name; choose one"
        )
    _classes[name] = cls


def _class_of(name: str) -> Any:
    """Return the class that is registered, or built in, under a name; None if there is none."""
    found = _classes.get(name) or getattr(import_module("menv.connectors"), str(name), None)
    known = isinstance(found, type) and issubclass(found, Connector)
    return found if known and found not in (Connector, AgentConnector, ActionConnector) else None


def get_connector(name: str, ctx: ConnectorContext | None = None, params: object = None) -> Connector:
    """Return a connector of a registered class, with parameters from `to_state`, or the defaults of the class.

    Raises:
        UnknownNameError: Nothing is registered under the name.
        ConfigError: The parameters do not fit the class.
    """
    cls = _class_of(name)
    if cls is None:
        near = difflib.get_close_matches(
            str(name), [*import_module("menv.connectors").__all__, *_classes], 1, 0.5
        )
        hint = f"did you mean {near[0]!r}?" if near else "call register_connector in this process first"
        raise UnknownNameError(f"connector {name!r}: not registered, expected a registered name; {hint}")
    made: Connector = cls.from_state(ctx or ConnectorContext(), params)
    return made


def keywords(where: str, params: object, known: tuple[str, ...]) -> dict[str, Any]:
    """Return parameters as keyword arguments, {} for None; ConfigError for an unknown key."""
    if params is None:
        return {}
    if not isinstance(params, dict) or not params.keys() <= set(known):
        got = sorted(map(str, params)) if isinstance(params, dict) else type(params).__name__
        raise ConfigError(
            f"{where}: parameters {got}, expected a dict with keys of {list(known)}; pass what to_state returned"
        )
    return dict(params)


class ByArguments(Connector):
    """A connector whose state is its name and the arguments of its constructor."""

    _arguments: ClassVar[tuple[str, ...]] = ()

    def to_state(self) -> tuple[str, Any]:
        return self.name, {name: getattr(self, name) for name in self._arguments} or None

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        return cls(ctx, **keywords(cls.__name__, params, cls._arguments))


@dataclass(slots=True)
class ActionConnectorDataType:
    """What action connectors take and give for one agent.

    Attributes:
        env_id: The sub-environment.
        agent_id: The agent.
        input_dict: What the policy was shown.
        output: `(action, states, fetches)`.
    """

    env_id: Any
    agent_id: Any
    input_dict: Any
    output: PolicyOutput


@dataclass(slots=True)
class AgentConnectorDataType:
    """What agent connectors take and give for one agent.

    Attributes:
        env_id: The sub-environment.
        agent_id: The agent.
        data: A dict of columns, such as `SampleBatch.NEXT_OBS`; or an `AgentConnectorsOutput`.
    """

    env_id: Any
    agent_id: Any
    data: Any


@dataclass(slots=True)
class AgentConnectorsOutput:
    """What a whole pipeline makes of one agent's data.

    Attributes:
        raw_dict: The columns that came in; action connectors see them.
        sample_batch: What the model is shown, with one row.
    """

    raw_dict: Mapping[str, Any]
    sample_batch: Mapping[str, Any]


@dataclass(slots=True)
class AgentRows:
    """R agents of one policy as columns, which built-in connectors change in place.

    Attributes:
        obs: R observations, finally [R, F].
        rewards: [R] since each agent's previous timestep.
        mask: [R, M] allowed actions, set by the preprocessor.
        slots: [R] one integer per agent episode; None if unknown.
        seats: `(env_id, agent_id)` of each row; None if unknown.
        infos: R info dicts, or None.
        terminated: Whether these are final observations of terminated agent episodes.
        truncated: Whether they are of truncated ones.
        learning: Whether statistics may count these rows.
        over: [R] True at final observations among others, which statistics do not count; None if there is none.
    """

    obs: Any
    rewards: Any = None
    mask: Any = None
    slots: Column | None = None
    seats: Sequence[tuple[Any, Any]] | None = None
    infos: Sequence[Mapping[str, Any]] | None = None
    terminated: bool = False
    truncated: bool = False
    learning: bool = False
    over: Column | None = None

    @property
    def final(self) -> bool:
        """Whether these are final observations."""
        return self.terminated or self.truncated

    def array(self) -> Column:
        """Return the observations as [R, F], and keep them so."""
        if not (isinstance(self.obs, np.ndarray) and self.obs.ndim == 2):
            try:
                rows = np.stack([np.ravel(row) for row in self.obs])
            except (TypeError, ValueError):
                rows = np.zeros(0, object)
            if rows.dtype.kind not in "biuf":
                raise OutsideSpaceError(
                    0, "obs: expected arrays of numbers with equal sizes after the agent connectors"
                )
            self.obs = rows if rows.dtype == np.uint8 else rows.astype(np.float32, copy=False)
        result: Column = self.obs
        return result

    def to_agents(self) -> list[AgentConnectorDataType]:
        """Return one object a row."""
        agents = []
        for row, obs in enumerate(self.obs):
            seat: tuple[Any, Any] = (None, None) if self.seats is None else self.seats[row]
            data = {
                SampleBatch.NEXT_OBS: obs,
                SampleBatch.REWARDS: 0.0 if self.rewards is None else float(self.rewards[row]),
                SampleBatch.TERMINATEDS: self.terminated,
                SampleBatch.TRUNCATEDS: self.truncated,
                SampleBatch.INFOS: {} if self.infos is None else self.infos[row],
            }
            if self.mask is not None:
                data[MASK] = self.mask[row]
            agents.append(AgentConnectorDataType(*seat, data))
        return agents

    def take(self, agents: Any, connector: str) -> None:
        """Write the agents that a connector returned for `to_agents` back into the columns."""
        given = list(agents) if isinstance(agents, Sequence) else []
        data: list[Any] = [getattr(agent, "data", None) for agent in given]
        columns_of_each = {SampleBatch.NEXT_OBS: self.obs, SampleBatch.REWARDS: self.rewards, MASK: self.mask}
        needed = {name for name, column in columns_of_each.items() if column is not None}
        whole = all(isinstance(one, dict) and needed <= one.keys() for one in data)
        seats = [(agent.env_id, agent.agent_id) for agent in given if whole]
        if len(seats) != len(self.obs) or self.seats not in (None, seats):
            raise ContractError(
                f"{connector}: returned {len(given)} agents for {len(self.obs)}, expected the same agents in the same "
                f"order, each with {', '.join(sorted(needed))} in its data; return all of them, changed"
            )
        self.obs = [single(columns[SampleBatch.NEXT_OBS]) for columns in data]
        if self.rewards is not None:
            self.rewards = np.array(
                [_reward(columns[SampleBatch.REWARDS], connector) for columns in data], np.float64
            )
        if self.mask is not None:
            self.mask = np.array([columns[MASK] for columns in data], np.bool_)


def _reward(given: Any, connector: str) -> float:
    number = np.asarray(given if isinstance(given, np.ndarray | np.generic | int | float) else None)
    if number.shape or number.dtype.kind not in "biuf" or not np.isfinite(number):
        raise ContractError(f"{connector}: a reward is {given!r}, expected a finite number; return one")
    return float(number)


def as_network_dtype(rows: Column, dtype: np.dtype[Any]) -> Column:
    """Return [R, F] rows in the network's dtype; OutsideSpaceError where uint8 cannot hold a number."""
    if rows.dtype == dtype:
        return rows
    with np.errstate(invalid="ignore"):
        taken: Column = rows.astype(dtype)
    if dtype == np.uint8 and not np.array_equal(taken, rows):
        row, column = np.argwhere(taken != rows)[0]
        raise OutsideSpaceError(
            int(row),
            f"obs: {rows[row, column]} after the agent connectors, expected whole numbers from 0 to 255; leave scaling "
            "of images to the network, or define your connector's space",
        )
    return taken


def single(obs: object) -> Any:
    """Return a float64 array, such as arithmetic on observations returns, as float32."""
    return obs.astype(np.float32) if isinstance(obs, np.ndarray) and obs.dtype == np.float64 else obs


class ActionConnector(Connector):
    """Base of action connectors; override `transform`."""

    def __call__(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer to one agent, transformed; ContractError if `transform` returned none."""
        out = self.transform(ac_data)
        output = out.output if isinstance(out, ActionConnectorDataType) else None
        if not isinstance(output, tuple | list) or len(output) != 3:
            raise ContractError(
                f"{self.name}.transform: returned {type(out).__name__}, expected an ActionConnectorDataType whose "
                "output is (actions, states, fetches); return the argument, changed"
            )
        return out

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer to one agent, transformed."""
        raise _undefined(type(self), "transform")


class AgentConnector(Connector):
    """Base of agent connectors; override `transform`, or `__call__` to see all agents that wait together."""

    keeps_lives: ClassVar[bool] = False
    """Whether it keeps state per agent episode, so it needs to know the agent of each observation."""
    at_ends: ClassVar[bool] = True
    """Whether it needs final observations and rewards as soon as they come, not all at once later."""

    reads_agents: ClassVar[bool] = False
    """Whether `over_rows` reads the seats of the rows."""

    def __call__(self, acd_list: list[AgentConnectorDataType]) -> list[AgentConnectorDataType]:
        """Return the data of the same agents, in the same order; ContractError if `transform` returned none."""
        out = [self.transform(data) for data in acd_list]
        for data in out:
            if not isinstance(data, AgentConnectorDataType):
                raise ContractError(
                    f"{self.name}.transform: returned {type(data).__name__}, expected AgentConnectorDataType"
                )
        return out

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return one agent's data, transformed."""
        raise _undefined(type(self), "transform")

    def over_rows(self, rows: AgentRows) -> None:
        """Transform a whole batch in place; what built-in connectors have in addition to `__call__`."""

    @property
    def takes_rows(self) -> bool:
        """Whether batches go through `over_rows`: only built-in classes themselves define it."""
        kind: Any = type(self)
        return kind is not AgentConnector and "over_rows" in vars(kind)

    def space(self, space: gym.Space[Any], width: int) -> tuple[gym.Space[Any], int]:
        """Return the space and the width of rows behind this connector.

        Args:
            space: Of the observations before it.
            width: Numbers in each of them as a flat row.
        """
        return space, width

    def begin(self, slot: int) -> None:
        """Reset the state of a slot, where a new agent episode begins."""

    def settle(self) -> None:
        """Called when a fragment has been closed, for work that is done once for many rows."""

    def reset(self, env_id: Any) -> None:
        """Forget an environment's agents; its episode ended."""

    def forget(self, env_id: Any, agent_id: Any) -> None:
        """Forget one agent, whose episode ended without a final observation."""

    def on_policy_output(self, output: ActionConnectorDataType) -> None:
        """Called with the policy's output for an agent, before action connectors change it."""


def is_final(data: Mapping[str, Any]) -> bool:
    """Return whether the columns of an agent are at the end of its episode."""
    return bool(data.get(SampleBatch.TERMINATEDS) or data.get(SampleBatch.TRUNCATEDS))


def columns_of(connector: Connector, ac_data: AgentConnectorDataType) -> Mapping[str, Any]:
    """Return the dict of an agent's data."""
    if not isinstance(ac_data.data, dict):
        raise ContractError(
            f"{connector.name}: data is {type(ac_data.data).__name__}, expected a dict of columns; place the connector "
            "before ViewRequirementAgentConnector"
        )
    return ac_data.data


def register_lambda_agent_connector(name: str, fn: Callable[[Any], Any]) -> type[AgentConnector]:
    """Return a class of agent connectors that call a function, registered under a name.

    Args:
        name: Of the class; a saved pipeline refers to it.
        fn: Takes an agent's data, a dict of columns such as `data[SampleBatch.NEXT_OBS]`, and returns it.

    Raises:
        ConfigError: The name is taken.
    """

    def transform(self: AgentConnector, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, fn(columns_of(self, ac_data)))

    made: type[AgentConnector] = _registered(name, AgentConnector, transform)
    return made


def register_lambda_action_connector(
    name: str, fn: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
) -> type[ActionConnector]:
    """Return a class of action connectors that call a function, registered under a name.

    Args:
        name: Of the class; a saved pipeline refers to it.
        fn: Takes an action, the parts of the recurrent state and the fetches, and returns the three.

    Raises:
        ConfigError: The name is taken.
    """

    def transform(self: ActionConnector, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        output = fn(*ac_data.output)
        return ActionConnectorDataType(ac_data.env_id, ac_data.agent_id, ac_data.input_dict, output)

    made: type[ActionConnector] = _registered(name, ActionConnector, transform)
    return made


def _registered(name: str, base: type[Any], transform: Callable[..., Any]) -> Any:
    made = type(name, (ByArguments, base), {"transform": transform, "__doc__": "Calls a function."})
    register_connector(name, made)
    return made
