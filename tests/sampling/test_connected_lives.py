"""Connectors of users that remember lives are told of every end, also of one that nobody sees."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv import MultiAgentEnv, local_policy_inference
from menv.algorithms import PPO
from menv.connectors import (
    ActionConnectorDataType,
    AgentConnector,
    AgentConnectorDataType,
    FrameStackAgentConnector,
    register_connector,
)


class OwnFrames(FrameStackAgentConnector):
    """Called agent by agent, as everything is that a user changes."""

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        return super().transform(ac_data)

    def to_state(self) -> tuple[str, Any]:
        return "OwnFrames", super().to_state()[1]


register_connector("OwnFrames", OwnFrames)


class Returns(MultiAgentEnv):
    """An agent ends in the third env step without a last observation, and is back with the fifth."""

    def __init__(self, context: Any) -> None:
        self.possible_agents = ["one", "other"]
        self.observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def _seen(self, *agents: str) -> dict[Any, Any]:
        return {agent: np.array([self.steps], np.float32) for agent in agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.steps = 0
        return self._seen("one", "other"), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.steps += 1
        agents = ["one"] if self.steps in (3, 4) else ["one", "other"]
        ends = {"__all__": self.steps == 8, **({"other": True} if self.steps == 3 else {})}
        return self._seen(*agents), {}, ends, {"__all__": False}, {}


def rows(connector: str) -> list[list[float]]:
    config = {"seed": 0, "train_batch_size": 8, "agent_connectors": [(connector, {"num_frames": 3})]}
    with PPO(env=Returns, config=config) as algo:
        return sorted(algo.sample()["default_policy"]["obs"].tolist())


def test_an_agent_that_returns_is_shown_nothing_of_a_life_that_ended_unseen() -> None:
    assert [5.0, 5.0, 5.0] in rows("OwnFrames")
    assert rows("OwnFrames") == rows("FrameStackAgentConnector")


def test_one_agent_is_forgotten_by_hand() -> None:
    config = {"seed": 0, "agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})]}
    with PPO(env=Returns, config={**config, "model": {"use_lstm": True}}) as algo:
        policy: Any = algo.get_policy()

        def ask(agent: str, number: float) -> list[Any]:
            obs = np.array([number], np.float32)
            return [
                part.tolist() for part in local_policy_inference(policy, 0, agent, obs, explore=False)[0][1]
            ]

        first, of_other = ask("one", 1.0), ask("other", 1.0)
        assert first == of_other != ask("one", 1.0)
        policy.agent_connectors.forget(0, "one")
        assert ask("one", 1.0) == first != ask("other", 1.0)


def test_who_looks_at_answers_is_shown_the_networks_row_by_hand_as_in_training() -> None:
    seen: list[Any] = []

    class Looks(AgentConnector):
        def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
            return ac_data

        def on_policy_output(self, output: ActionConnectorDataType) -> None:
            seen.append(output.input_dict["obs"].tolist())

    with PPO(
        env=Returns, config={"seed": 0, "train_batch_size": 1, "observation_filter": "NoFilter"}
    ) as algo:
        policy: Any = algo.get_policy()
        policy.agent_connectors.prepend(Looks())
        algo.sample()
        sampled = len(seen)
        local_policy_inference(policy, 0, "one", np.array([0.0], np.float32), explore=False)
    assert sampled
    assert seen[sampled:] == [[0.0]] == seen[:1]


class Doubles(AgentConnector):
    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        assert ac_data.data["new_obs"].shape == (1,)
        ac_data.data["rewards"] = 2 * ac_data.data["rewards"]
        return ac_data


class Pays(Returns):
    """Every agent that acted is paid 1; the last step shows nothing."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        obs, _, *rest = super().step(actions)
        return {} if rest[0]["__all__"] else obs, dict.fromkeys(actions, 1.0), *rest


def test_a_reward_is_changed_also_where_a_life_ends_without_a_last_observation() -> None:
    config = {"seed": 0, "rollout_fragment_length": 24, "train_batch_size": 24}
    with PPO(env=Pays, config=config) as algo:
        policy: Any = algo.get_policy()
        policy.agent_connectors.prepend(Doubles())
        batch = algo.sample()["default_policy"]
    assert len(batch) == 3 * (8 + 3 + 3)
    assert batch["rewards"].tolist() == [2.0] * len(batch)
