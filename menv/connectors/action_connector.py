"""ActionConnector: a transform between a policy's answer and the action that the environment gets.

Users subclass it; `ActionConnectorPipeline` calls it, once for each agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.connectors.action_output import with_range
from menv.connectors.connector import Connector, Stateless, register_connector
from menv.errors import ContractError
from menv.spaces import OutsideSpaceError, own_copy, why_outside

PolicyOutput: TypeAlias = tuple[Any, Any, Mapping[str, Any]]
"""The action, the parts of the recurrent state, and fetches such as `action_logp`."""


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


class ActionConnector(Connector):
    """Base of action connectors; override `transform`."""

    def __call__(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer to one agent, transformed.

        Raises:
            ContractError: `transform` returned something else, or an output that is not the three of an answer.
        """
        out = self.transform(ac_data)
        if not isinstance(out, ActionConnectorDataType):
            raise ContractError(
                f"{self.name}.transform: returned {type(out).__name__}, expected ActionConnectorDataType; return the "
                "one that came in, changed"
            )
        if not isinstance(out.output, tuple | list) or len(out.output) != 3:
            raise ContractError(
                f"{self.name}.transform: output is {type(out.output).__name__}, expected (actions, states, fetches); "
                "put the changed action into a tuple with the other two"
            )
        return out

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer to one agent, transformed."""
        raise ContractError(
            f"{self.name}.transform: not defined, expected the agent's answer; define transform"
        )


def with_action(ac_data: ActionConnectorDataType, action: Any) -> ActionConnectorDataType:
    """Return the same answer with another action."""
    output: PolicyOutput = (action, ac_data.output[1], ac_data.output[2])
    return ActionConnectorDataType(ac_data.env_id, ac_data.agent_id, ac_data.input_dict, output)


Array = npt.NDArray[Any]


class ConvertToNumpyConnector(Stateless, ActionConnector):
    """Makes numpy arrays of actions and states."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer in arrays."""
        action, states, fetches = ac_data.output
        output = (_each(action, np.asarray), _each(states, np.asarray), fetches)
        return ActionConnectorDataType(ac_data.env_id, ac_data.agent_id, ac_data.input_dict, output)


class NormalizeActionsConnector(Stateless, ActionConnector):
    """Scales bounded Box actions from [-1, 1] to the bounds; integers are shifted by the lower bound."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer with its action scaled."""
        return with_action(ac_data, _fitted(ac_data.output[0], self.known("action_space"), _scaled))


class ClipActionsConnector(Stateless, ActionConnector):
    """Clips Box actions into the bounds."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer with its action clipped."""
        return with_action(ac_data, _fitted(ac_data.output[0], self.known("action_space"), _clipped))


class ImmutableActionsConnector(Stateless, ActionConnector):
    """Write-protects actions, so that an environment that changes one in place gets an error."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer with its action write-protected; numbers are unchanged."""
        return with_action(ac_data, _each(ac_data.output[0], _protected))


@dataclass(frozen=True)
class CustomSteps:
    """The settings `normalize_actions`, `clip_actions` and `clip_rewards` for a custom policy of an action space."""

    space: gym.Space[Any]
    normalize: bool
    clip: bool
    clip_rewards: bool | float

    def __call__(self, action: Any) -> Any:
        for given, change in ((self.normalize, _scaled), (self.clip, _clipped)):
            action = _fitted(action, self.space, change) if given else action
        return action


def element(action: Any, space: gym.Space[Any]) -> Any:
    """Return an action as a write-protected copy in the dtypes of its space; OutsideSpaceError if it is outside."""
    action = own_copy(action)
    with suppress(TypeError, KeyError, ValueError, IndexError):
        action = _fitted(action, space, lambda value, box: value.astype(box.dtype, copy=False))
    why = why_outside(space, action, "action")
    if why is not None:
        raise OutsideSpaceError(0, why)
    return _each(action, _protected)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _each(part, change) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_each(part, change) for part in value)
    if isinstance(value, list) and not all(isinstance(part, int | float) for part in value):
        return [_each(part, change) for part in value]
    return change(value)


def _protected(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _fitted(value: Any, space: gym.Space[Any], change: Callable[[Array, gym.spaces.Box], Array]) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _fitted(value[key], part, change) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_fitted(part, own, change) for part, own in zip(value, space.spaces, strict=True))
    return change(np.asarray(value), space) if isinstance(space, gym.spaces.Box) else value


def _scaled(value: Array, space: gym.spaces.Box) -> Array:
    low, high = space.low, space.high
    finite = with_range(low, high)
    if space.dtype.kind in "iu":
        shifted: Array = np.clip(value + np.where(finite, low, 0), low, high).astype(space.dtype)
        return shifted
    least, most = np.where(finite, low, 0.0), np.where(finite, high, 0.0)
    scaled = np.where(finite, least + (value + 1.0) * (most - least) / 2.0, value)
    bounded: Array = np.clip(scaled, low, high).astype(space.dtype)
    return bounded


def _clipped(value: Array, space: gym.spaces.Box) -> Array:
    clipped: Array = np.clip(value, space.low, space.high)
    return clipped


for _kind in (
    ConvertToNumpyConnector, NormalizeActionsConnector, ClipActionsConnector, ImmutableActionsConnector,
):  # fmt: skip
    register_connector(_kind.__name__, _kind)
