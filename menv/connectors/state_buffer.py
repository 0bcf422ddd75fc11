"""StateBufferConnector: what a policy answered to an agent last is shown to it with the next observation.

Where rows are sampled, the ledger does this for whole batches; then there is nothing to do here.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from menv.connectors.action_data import ActionConnectorDataType, PolicyOutput
from menv.connectors.agent_connector import AgentConnector, columns_of
from menv.connectors.agent_rows import AgentConnectorDataType, AgentRows
from menv.connectors.connector_registry import register_connector
from menv.connectors.flat_actions import flat_action_space
from menv.connectors.stateless import Stateless
from menv.errors import ContractError
from menv.sample_batch import SampleBatch


class StateBufferConnector(Stateless, AgentConnector):
    """Adds the last action (zeros at first), `state_out_0` and so on, and the last fetches to an agent's data.

    Attributes:
        memory: By (env, agent), what whoever asks the policy by hand remembers of them until `reset`.
    """

    at_ends = False

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._last: dict[Hashable, dict[Hashable, PolicyOutput]] = {}
        self.memory: dict[tuple[Hashable, Hashable], Any] = {}

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with what the policy answered last; a last observation ends its life here.

        Raises:
            ContractError: Nobody says whose the data are.
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
        """Remember what the policy answered."""
        env_id, agent_id = self._whose(output)
        self._last.setdefault(env_id, {})[agent_id] = output.output

    def over_rows(self, rows: AgentRows) -> None:
        """Do nothing: the ledger shows policies their states."""

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
                f"{self.name}: env_id {data.env_id!r}, agent_id {data.agent_id!r}, expected both; say whose data it is"
            )
        return data.env_id, data.agent_id


register_connector("StateBufferConnector", StateBufferConnector)
