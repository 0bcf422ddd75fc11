"""Connectors of users that remember lives are told of every end, also of one that nobody sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from menv import local_policy_inference
from menv.algorithms import PPO
from menv.connectors import (
    ActionConnectorDataType,
    AgentConnector,
    AgentConnectorDataType,
    FrameStackAgentConnector,
    register_connector,
)
from tests.worlds import Several, like


class OwnFrames(FrameStackAgentConnector):
    """Called agent by agent, as everything is that a user changes."""

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        return super().transform(ac_data)

    def to_state(self) -> tuple[str, Any]:
        return "OwnFrames", super().to_state()[1]


register_connector("OwnFrames", OwnFrames)


class Returns(Several):
    """An agent ends in the third env step without a last observation, and is back with the fifth."""

    possible_agents, length = ("one", "other"), 8

    def shown(self) -> Any:
        return ["one"] if self.at in (3, 4) else self.possible_agents

    def dead(self, actions: Any) -> Any:
        return ["other"] if self.at == 3 else []


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


def test_connectors_see_the_same_network_rows_in_local_inference_as_in_training() -> None:
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


# Every agent that acted is paid 1; the last step shows nothing.
Pays = like(
    Returns,
    shown=lambda self: [] if self.at == 8 else Returns.shown(self),
    pay=lambda self, actions: dict.fromkeys(actions, 1.0),
)


def test_a_reward_is_changed_even_if_a_trajectory_ends_without_a_last_observation() -> None:
    config = {"seed": 0, "rollout_fragment_length": 24, "train_batch_size": 24}
    with PPO(env=Pays, config=config) as algo:
        policy: Any = algo.get_policy()
        policy.agent_connectors.prepend(Doubles())
        batch = algo.sample()["default_policy"]
    assert len(batch) == 3 * (8 + 3 + 3)
    assert batch["rewards"].tolist() == [2.0] * len(batch)
