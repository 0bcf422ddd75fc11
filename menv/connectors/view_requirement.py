"""ViewRequirementAgentConnector: an agent's columns, of this timestep and earlier ones, as a model's input of one row.

Samplers pass whole rows to networks, so these connectors do nothing to batches; they serve `answer_agents`.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from menv.connectors.action_connector import ActionConnectorDataType, PolicyOutput
from menv.connectors.action_output import flat_action_space
from menv.connectors.agent_connector import (
    MASK,
    AgentConnector,
    AgentConnectorDataType,
    AgentConnectorsOutput,
    AgentRows,
    columns_of,
)
from menv.connectors.connector import Stateless, register_connector
from menv.errors import ConfigError, ContractError
from menv.sample_batch import SampleBatch


@dataclass(frozen=True)
class ViewRequirement:
    """One column of a model's input.

    For example `ViewRequirement("obs", shift="-2:0")` is the last three observations, the latest last.

    Attributes:
        data_col: The source column; None for the one of its own name.
        space: Accepted for compatibility. Steps before the first are zeros of the column's own shape.
        shift: Steps from now, 0 or less; rewards and actions start at -1. A range such as "-2:0", both ends included,
            or a list gives one value for each step, [K, ...].
        used_for_compute_actions: Whether it is needed to act; without it `shift` may be positive.
        used_for_training: Accepted for compatibility. Training batches have every column.
    """

    data_col: str | None = None
    space: gym.Space[Any] | None = None
    shift: int | str | Sequence[int] = 0
    used_for_compute_actions: bool = True
    used_for_training: bool = True

    def __post_init__(self) -> None:
        if self.used_for_compute_actions and max(self.shifts) > 0:
            raise ConfigError(
                f"ViewRequirement: shift={self.shift!r}, expected 0 or less; only the past is known when acting, "
                "unless used_for_compute_actions=False"
            )

    @property
    def shifts(self) -> list[int]:
        """The steps of `shift`, in order."""
        shift: Any = self.shift
        with suppress(TypeError, ValueError):
            if isinstance(shift, str):
                first, last = map(int, shift.split(":"))
                shift = range(first, last + 1)
            steps = [operator.index(step) for step in (shift if isinstance(shift, Iterable) else [shift])]
            if steps and not isinstance(shift, bool):
                return steps
        raise ConfigError(
            f"ViewRequirement: shift={self.shift!r:.60}, expected an integer, a list of integers or a range such as "
            '"-2:0"; correct it'
        )


class ViewRequirementAgentConnector(Stateless, AgentConnector):
    """Builds the model's input from the context's `view_requirements`.

    Without any it is the observation, the action mask if there is one, and the recurrent states.
    """

    at_ends = False

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # Columns of each agent's last steps, the latest first.
        self._before: dict[Hashable, dict[Hashable, list[Mapping[str, Any]]]] = {}

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with an `AgentConnectorsOutput`.

        Raises:
            ContractError: There is no new observation, or a column is missing.
        """
        data = columns_of(self, ac_data)
        if SampleBatch.NEXT_OBS not in data:
            raise ContractError(
                f"{self.name}: columns {sorted(data)}, expected {SampleBatch.NEXT_OBS!r} among them; put the "
                "observation there"
            )
        wanted = self._wanted(data)
        agents = self._before.setdefault(ac_data.env_id, {})
        steps = [data, *agents.get(ac_data.agent_id, ())]
        shown = {name: np.asarray(self._value(name, view, steps))[None] for name, view in wanted.items()}
        if data.get(SampleBatch.TERMINATEDS) or data.get(SampleBatch.TRUNCATEDS):
            agents.pop(ac_data.agent_id, None)
        else:
            deepest = -min((min(view.shifts) for view in wanted.values()), default=0)
            agents[ac_data.agent_id] = steps[: max(deepest, 0)]
        if not agents:
            del self._before[ac_data.env_id]
        output = AgentConnectorsOutput(data, shown)
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, output)

    def over_rows(self, rows: AgentRows) -> None:
        """Do nothing: networks read the rows."""

    def reset(self, env_id: Any) -> None:
        """Forget an environment's agents."""
        self._before.pop(env_id, None)

    def forget(self, env_id: Any, agent_id: Any) -> None:
        """Forget one agent."""
        self._before.get(env_id, {}).pop(agent_id, None)

    def _wanted(self, data: Mapping[str, Any]) -> dict[str, ViewRequirement]:
        required = {} if self.ctx is None else self.ctx.view_requirements
        if required:
            return {name: view for name, view in required.items() if view.used_for_compute_actions}
        wanted = {SampleBatch.OBS: ViewRequirement(SampleBatch.OBS)}
        if MASK in data:
            wanted[MASK] = ViewRequirement()
        number = 0
        while f"state_out_{number}" in data:
            wanted[SampleBatch.STATE_IN.format(number)] = ViewRequirement(f"state_out_{number}", shift=-1)
            number += 1
        return wanted

    def _value(self, name: str, view: ViewRequirement, steps: list[Mapping[str, Any]]) -> Any:
        values = [self._value_at(name, view.data_col or name, -shift, steps) for shift in view.shifts]
        return np.stack(values) if isinstance(view.shift, Iterable) else values[0]

    def _value_at(self, name: str, column: str, back: int, steps: list[Mapping[str, Any]]) -> Any:
        if column == SampleBatch.OBS:
            column = SampleBatch.NEXT_OBS
        elif back and column != SampleBatch.NEXT_OBS:
            # The reward of the last action comes with this observation.
            back -= 1
        if column not in steps[0]:
            raise ContractError(
                f"{self.name}: no column {column!r} for {name!r}, expected one of {sorted(steps[0])}; add it in a "
                "connector before this one, such as StateBufferConnector"
            )
        return steps[back][column] if back < len(steps) else np.zeros_like(steps[0][column])


class EnvSamplingAgentConnector(Stateless, AgentConnector):
    """Does nothing; older pipelines contain it."""

    at_ends = False

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent unchanged."""
        return ac_data

    def over_rows(self, rows: AgentRows) -> None:
        """Do nothing."""


register_connector("ViewRequirementAgentConnector", ViewRequirementAgentConnector)
register_connector("EnvSamplingAgentConnector", EnvSamplingAgentConnector)


class StateBufferConnector(Stateless, AgentConnector):
    """Adds the last action (zeros at first), `state_out_0` and so on, and the last fetches to an agent's data.

    Attributes:
        memory: By (env, agent), state that `local_policy_inference` keeps until `reset`.
    """

    at_ends = False

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._last: dict[Hashable, dict[Hashable, PolicyOutput]] = {}
        self.memory: dict[tuple[Hashable, Hashable], Any] = {}

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with the policy's last output; a final observation ends the agent episode here.

        Raises:
            ContractError: env_id or agent_id is missing.
        """
        env_id, agent_id = self._whose(ac_data)
        data = dict(columns_of(self, ac_data))
        agents = self._last.setdefault(env_id, {})
        action, states, fetches = agents.get(agent_id) or self._first()
        data.update(fetches)
        data[SampleBatch.ACTIONS] = action
        data.update({f"state_out_{number}": state for number, state in enumerate(states)})
        if data.get(SampleBatch.TERMINATEDS) or data.get(SampleBatch.TRUNCATEDS):
            agents.pop(agent_id, None)
        if not agents:
            del self._last[env_id]
        return AgentConnectorDataType(env_id, agent_id, data)

    def on_policy_output(self, output: ActionConnectorDataType) -> None:
        """Store the policy's output."""
        env_id, agent_id = self._whose(output)
        self._last.setdefault(env_id, {})[agent_id] = output.output

    def over_rows(self, rows: AgentRows) -> None:
        """Do nothing: the rollout buffer passes policies their states."""

    def reset(self, env_id: Any) -> None:
        """Forget an environment's agents."""
        self._last.pop(env_id, None)
        for key in [key for key in self.memory if key[0] == env_id]:
            self.memory.pop(key, None)

    def forget(self, env_id: Any, agent_id: Any) -> None:
        """Forget one agent."""
        self._last.get(env_id, {}).pop(agent_id, None)
        self.memory.pop((env_id, agent_id), None)

    def _first(self) -> PolicyOutput:
        space = flat_action_space(self.known("action_space"))
        states = [] if self.ctx is None else list(self.ctx.initial_states)
        shape: tuple[int, ...] = space.shape or ()
        if isinstance(space, gym.spaces.Tuple):
            # Choices and numbers are one row of floats.
            shape = (sum(int(np.prod(leaf.shape or ())) for leaf in space.spaces),)
        return np.zeros(shape, space.dtype or np.float32), states, {}

    def _whose(self, data: AgentConnectorDataType | ActionConnectorDataType) -> tuple[Any, Any]:
        if data.env_id is None or data.agent_id is None:
            raise ContractError(
                f"{self.name}: env_id {data.env_id!r}, agent_id {data.agent_id!r}, expected both; pass its ids"
            )
        return data.env_id, data.agent_id


register_connector("StateBufferConnector", StateBufferConnector)
