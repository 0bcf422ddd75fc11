"""Acting for agents that are known by env and id, through the connectors: as in sampling, without a sampler."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.connectors import (
    AgentConnectorDataType,
    ConnectorContext,
    register_lambda_action_connector,
    register_lambda_agent_connector,
)
from menv.errors import ContractError
from menv.sample_batch import SampleBatch

SMALL = {"num_envs_per_worker": 2, "rollout_fragment_length": 40, "train_batch_size": 80, "seed": 5}
NEXT_OBS = SampleBatch.NEXT_OBS


def asked(policy: Any, obs: Any, whose: tuple[Any, Any] = ("env", "agent"), **flags: bool) -> Any:
    data = {NEXT_OBS: obs, **flags}
    (output,) = policy.answer_agents([AgentConnectorDataType(*whose, data)], explore=False)
    return output


def observations(count: int = 12) -> Any:
    return np.random.default_rng(1).uniform(-0.1, 0.1, (count, 4)).astype(np.float32)


@pytest.mark.parametrize("settings", [{}, {"observation_filter": "MeanStdFilter"}])
def test_one_agent_at_a_time_gets_what_a_batch_gets(settings: dict[str, Any]) -> None:
    with PPO(env="CartPole-v1", config={**SMALL, **settings}) as algo:
        algo.train()
        policy: Any = algo.get_policy()
        before = policy.agent_connectors.to_state()
        rows = observations()
        many = policy.compute_actions(list(rows), explore=False)
        for row, action, logp in zip(rows, many[0], many[2]["action_logp"], strict=True):
            found = asked(policy, row)
            assert found[0] == action
            np.testing.assert_allclose(found[2]["action_logp"], logp, rtol=1e-5)
        assert policy.agent_connectors.to_state() == before
        algo.train()
        assert (policy.agent_connectors.to_state() == before) == (not settings)


def test_each_agents_state_is_kept_and_ends_with_its_life() -> None:
    model = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8}
    with PPO(env="CartPole-v1", config={**SMALL, "model": model}) as algo:
        policy: Any = algo.get_policy()
        rows = observations(4)
        state = [part[None] for part in policy.get_initial_state()]
        expected = []
        for row in rows:
            _, state, fetches = policy.compute_actions([row], state, explore=False)
            expected.append(fetches["action_logp"][0])
        found = []
        for row in rows:
            found.append(asked(policy, row)[2]["action_logp"])
            asked(policy, row * 2, ("env", "another"))
            asked(policy, row * 3, ("elsewhere", "agent"))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert asked(policy, rows[0])[2]["action_logp"] != pytest.approx(expected[0], rel=1e-6)
        asked(policy, rows[0], terminateds=True)
        assert asked(policy, rows[0])[2]["action_logp"] == pytest.approx(expected[0], rel=1e-5)


def test_a_policy_of_one_environment_acts_in_another_one_through_two_connectors() -> None:
    def to_old(data: dict[str, Any]) -> dict[str, Any]:
        data[NEXT_OBS] = data[NEXT_OBS][:-2]
        return data

    fewer = register_lambda_agent_connector("test_answer_agents.fewer", to_old)
    more = register_lambda_action_connector(
        "test_answer_agents.more",
        lambda actions, states, fetches: (np.hstack((actions, [0])), states, fetches),
    )
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.train()
        policy: Any = algo.get_policy()
        ctx = ConnectorContext.from_policy(policy)
        policy.agent_connectors.remove("FlattenDataAgentConnector")
        policy.agent_connectors.prepend(fewer(ctx))
        policy.action_connectors.append(more(ctx))
        space = gym.spaces.MultiDiscrete([2, 2])
        for row in observations():
            wide = np.hstack((row, [8.0, 6.0]))
            found = asked(policy, wide)[0]
            assert space.contains(found)
            assert policy.act(wide).tolist() == found.tolist()


def test_a_missing_connector_is_named_by_what_is_missing() -> None:
    with PPO(env="CartPole-v1", config={**SMALL, "model": {"use_lstm": True}}) as algo:
        policy: Any = algo.get_policy()
        policy.agent_connectors.remove("StateBufferConnector")
        with pytest.raises(ContractError, match="state_in_0"):
            asked(policy, np.zeros(4, np.float32))
