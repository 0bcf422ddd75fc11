"""The two-step game of Rashid et al. 2018 (QMIX, section 5), a test of credit assignment in teams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import ALL
from menv.errors import CallOrderError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

AGENTS = ("agent_1", "agent_2")
FIRST, STATE_2A, STATE_2B = 0, 1, 2
PAYOFFS = {STATE_2A: ((7.0, 7.0), (7.0, 7.0)), STATE_2B: ((0.0, 1.0), (1.0, 8.0))}
"""What the team earns in the second step, by the actions of agent_1 and agent_2."""


class TwoStepGame(MultiAgentEnv):
    """Two agents earn 7 together for sure, or 8 if both dare to trust each other.

    - Step 1: action 0 of agent_1 leads to state 2A, action 1 to 2B; agent_2 has no say.
    - Step 2: the team earns `PAYOFFS[state][action of agent_1][action of agent_2]`. The best is 8, by
      action 1 in all three decisions that count; independent learners settle for 7.
    - Reward: each agent gets half of what the team earns, so that the sum over the team is the payoff.
    - Observation: float32 [5], the state (first, 2A, 2B) and the agent (agent_1, agent_2) as one-hot codes.
    - End: terminated after the second step; the last observations show state 2A or 2B.

    Args:
        config: `{"one_hot_state_encoding": bool, "with_state": bool}`, True and False by default. Without the
            code an observation is a number from 0 to 5: the state, and 3 more for agent_2. With the state it is
            `{"obs": the observation, "state": what `state()` returns}`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        config = config or {}
        self._one_hot = bool(config.get("one_hot_state_encoding", True))
        self._with_state = bool(config.get("with_state", False))
        self.possible_agents = list(AGENTS)
        space: gym.Space[Any] = (
            gym.spaces.Box(0.0, 1.0, (5,), np.float32) if self._one_hot else gym.spaces.Discrete(6)
        )
        whole = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
        self.observation_space = (
            gym.spaces.Dict({"obs": space, "state": whole}) if self._with_state else space
        )
        self.action_space = gym.spaces.Discrete(2)
        self._state = FIRST

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Go back to the first state; the game is deterministic, so `seed` has no effect."""
        self._state = FIRST
        self.agents = list(AGENTS)
        return self._observe(), {}

    def state(self) -> npt.NDArray[np.float32]:
        """Return the state for a centralized critic, as a one-hot code, float32 [3]."""
        code = np.zeros(3, np.float32)
        code[self._state] = 1.0
        return code

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Play one of the two steps.

        Raises:
            CallOrderError: The game is over, or never began.
            ContractError: The actions are not 0 or 1 for both agents.
        """
        if not self.agents:
            raise CallOrderError("TwoStepGame.step: no game is running, expected reset first; call reset")
        if action_dict.keys() != set(AGENTS) or any(action not in (0, 1) for action in action_dict.values()):
            raise ContractError(
                f"TwoStepGame.step: got {action_dict!s:.80}, expected 0 or 1 for each of "
                f"{', '.join(AGENTS)}; answer both"
            )
        first, second = (int(action_dict[agent]) for agent in AGENTS)
        over = self._state != FIRST
        payoff = PAYOFFS[self._state][first][second] if over else 0.0
        if over:
            self.agents = []
        else:
            self._state = STATE_2B if first else STATE_2A
        flags: AgentDict = dict.fromkeys((*AGENTS, ALL), over)
        return self._observe(), dict.fromkeys(AGENTS, payoff / 2), flags, {ALL: False}, {}

    def _observe(self) -> AgentDict:
        obs: AgentDict = {}
        for number, agent in enumerate(AGENTS):
            shown = self._shown_to(number)
            obs[agent] = {"obs": shown, "state": self.state()} if self._with_state else shown
        return obs

    def _shown_to(self, number: int) -> Any:
        if not self._one_hot:
            return np.int64(self._state + 3 * number)
        code = np.zeros(5, np.float32)
        code[[self._state, 3 + number]] = 1.0
        return code
