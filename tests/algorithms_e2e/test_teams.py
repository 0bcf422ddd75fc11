"""`common_reward` and `agent_ids`: what teams are paid, and how agents that share a policy know themselves."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import DQN, PPO, QMIX
from menv.envs import TwoStepGame
from menv.errors import ConfigError
from tests.algorithms_e2e.shifts import NUMBERS, Shifts
from tests.worlds import InArrays, like

SMALL: dict[str, Any] = {
    "seed": 1,
    "rollout_fragment_length": 5,
    "train_batch_size": 5,
    "sgd_minibatch_size": 5,
}
# "a", "b" and "c" act in the steps that PRESENT of `Shifts` says, and who acts is paid the step: in step 3 "a" and "c"
# are paid 3 each, "b" pauses, and the team has three agents.
PAID = {
    None: {"a": [1, 2, 3, 5], "b": [1, 2, 4, 5], "c": [2, 3, 4, 5]},
    "sum": {"a": [2, 6, 6, 15], "b": [2, 6 + 6, 8, 15], "c": [6, 6, 8, 15]},
    "mean": {"a": [1, 2, 2, 5], "b": [1, 2 + 2, 4, 5], "c": [2, 2, 4, 5]},
}


def paid(batch: Any, agents: str = "abc") -> dict[str, list[float]]:
    return {
        agent: batch["rewards"][batch["obs"][:, 0] == number].tolist()
        for number, agent in enumerate(agents, 1)
    }


@pytest.mark.parametrize(
    "where", [{}, {"num_workers": 1, "engine": "process"}, {"remote_worker_envs": True}], ids=str
)
@pytest.mark.parametrize("how", PAID)
def test_all_agents_of_an_environment_are_paid_what_their_team_earns(how: Any, where: dict[str, Any]) -> None:
    if where.get("remote_worker_envs"):
        where = {**where, "engine": "process"}
    config = {**SMALL, **where, "common_reward": how, "evaluation_duration": 1}
    with PPO(env=Shifts, config={**config, "evaluation_config": {"common_reward": None}}) as algo:
        assert paid(algo.sample()["default_policy"]) == PAID[how]
        result = algo.train()
        assert result["unclaimed_rewards"] == 0.0
        assert result["episode_reward_mean"] == sum(map(sum, PAID[how].values()))
        score = algo.evaluate()["evaluation"]["episode_reward_mean"]
    assert score == sum(map(sum, PAID[None].values()))


class Fields(InArrays):
    """Two worlds of three agents for three steps; agents are paid 1, 2 and 3, and the first one dies after step 1."""

    possible_agents, length = tuple("abc"), 3
    observation_spaces = dict.fromkeys("abc", gym.spaces.Box(0.0, 9.0, (2,), np.float32))
    action_spaces = dict.fromkeys("abc", gym.spaces.Discrete(2))

    def observe(self) -> Any:
        return np.stack([np.full((2, 2), (number, self.at), np.float32) for number in (1, 2, 3)], 1)

    def pay(self, actions: Any) -> Any:
        return np.tile([float(self.at == 1), 2.0, 3.0], (2, 1))

    def done(self) -> Any:
        return np.tile([True, self.at == 3, self.at == 3], (2, 1))


@pytest.mark.parametrize(
    ("how", "by_agent"),
    [
        (None, {"a": [1], "b": [2, 2, 2], "c": [3, 3, 3]}),
        ("sum", {"a": [6], "b": [6, 5, 5], "c": [6, 5, 5]}),
        ("mean", {"a": [2], "b": [2, 2.5, 2.5], "c": [2, 2.5, 2.5]}),
    ],
)
def test_worlds_as_arrays_pay_a_team_as_dicts_do(how: Any, by_agent: dict[str, list[float]]) -> None:
    config = {**SMALL, "rollout_fragment_length": 3, "train_batch_size": 6, "common_reward": how}
    with PPO(env=Fields, config=config) as algo:
        batch = algo.sample()["default_policy"]
        assert paid(batch.take(np.flatnonzero(batch["env_id"] == 0))) == by_agent
        assert algo.train()["unclaimed_rewards"] == 0.0


def test_a_team_reward_of_a_single_agent_or_of_recorded_rewards_is_refused() -> None:
    with pytest.raises(ConfigError, match="common_reward"):
        PPO(env="CartPole-v1", config={"common_reward": "sum"})
    with pytest.raises(ConfigError, match="common_reward"):
        DQN(env="CartPole-v1", config={"common_reward": "sum", "input": "games/*.parquet"})
    with pytest.raises(ConfigError, match="common_reward"):
        PPO(env=Shifts, config={"common_reward": "product"})


CODES = {agent: np.eye(3)[place].tolist() for place, agent in enumerate(NUMBERS)}


@pytest.mark.slow_unless("onnx-*")
@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("inference", ["onnx", "torch"])
def test_agents_that_share_a_policy_see_who_they_are(algorithm: Any, inference: str) -> None:
    config = {"seed": 1, "rollout_fragment_length": 5, "agent_ids": True, "inference": inference}
    with algorithm(env=Shifts, config={**config, "env_config": {"truncate": True}}) as algo:
        batch = algo.sample()["default_policy"]
        for name in ("obs", "new_obs"):
            for row in batch[name].tolist():
                assert row[2:] == CODES["abc"[int(row[0]) - 1]]
        assert algo.train()["episodes_total"] > 0
        assert algo.evaluate()["evaluation"]["episodes_this_iter"] == 10


def test_a_critic_of_all_agents_shows_the_code_of_the_own_agent_alone() -> None:
    with PPO(env=Shifts, config={**SMALL, "agent_ids": True, "critic_obs": "all_agents"}) as algo:
        row = algo.sample()["default_policy"]["critic_obs"][1]
        assert row.tolist() == [1.0, 1.0, *CODES["a"], 2.0, 1.0, 1.0, 3.0, 1.0, 1.0]
        algo.train()


def test_agents_that_see_the_same_learn_to_act_differently() -> None:
    # One step; a pair is paid if exactly one of them chose 1, and both see the same.
    apart = like(
        Shifts,
        possible_agents=("a", "b"),
        length=1,
        shown=lambda self: "ab",
        see=lambda self, agent: np.zeros(2, np.float32),
        pay=lambda self, actions: dict.fromkeys(actions, float(sorted(actions.values()) == [0, 1])),
        dead=lambda self, actions: "",
    )
    scores = {}
    for agent_ids in (False, True):
        config = {"agent_ids": agent_ids, "num_envs_per_worker": 32, "train_batch_size": 256, "seed": 0,
                  "evaluation_config": {"explore": False}}  # fmt: skip
        with PPO(env=apart, config=config) as algo:
            for _ in range(20):
                algo.train()
            scores[agent_ids] = algo.evaluate()["evaluation"]["episode_reward_mean"]
    assert scores == {False: 0.0, True: 2.0}


def test_agent_codes_that_cannot_be_used_are_refused_by_name() -> None:
    unlisted = like(Shifts, possible_agents=(), get_agent_ids=lambda self: set())
    with pytest.raises(ConfigError, match="agent_ids"):
        PPO(env=unlisted, config={**SMALL, "agent_ids": True})
    grouped = {"multiagent": {"policies": {"default_policy": PolicySpec()}}, "agent_ids": True}
    with pytest.raises(ConfigError, match="agent_ids"):
        QMIX(
            env=lambda context: TwoStepGame(context).with_agent_groups({"team": ["agent_1", "agent_2"]}),
            config=grouped,
        )
