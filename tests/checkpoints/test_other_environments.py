"""A resumed run knows its last result; in another environment means begin anew, and teams keep their size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import ConfigError, MultiAgentEnv
from menv.algorithms import DQN, PPO, QMIX
from menv.migration_hints import Result


class Team(MultiAgentEnv):
    """Each of `n` agents is paid `pay` in each of five steps."""

    def __init__(self, context: Any) -> None:
        self.possible_agents = [f"agent_{place}" for place in range(context.get("n", 3))]
        self.observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.pay = float(context.get("pay", 1))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.steps = 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return {agent: np.zeros(2, np.float32) for agent in self.possible_agents}

    def step(self, action_dict: Any) -> Any:
        self.steps += 1
        over = {"__all__": self.steps >= 5}
        return self._obs(), dict.fromkeys(action_dict, self.pay), over, {"__all__": False}, {}


def grouped(context: Any) -> Any:
    team = Team(context)
    return team.with_agent_groups({"team": team.possible_agents})


SMALL: dict[str, Any] = {"train_batch_size": 50, "seed": 0}


def test_learn_with_a_bound_that_is_reached_returns_the_last_result_also_of_a_resumed_run(
    tmp_path: Path,
) -> None:
    # A tuple, and more episodes in an iteration than the window has.
    config = {**SMALL, "env_config": {"n": 2, "size": (3, 4)}, "metrics_num_episodes_for_smoothing": 3}
    with PPO(env=Team, config=config) as algo:
        assert algo.learn(0) == Result(algo.counts())
        trained = algo.learn(100)
        assert type(trained) is Result
        assert trained["training_iteration"] == 2
        assert algo.learn(100) == algo.learn(stop={"episode_reward_mean": 10}) == trained
        algo.save(tmp_path)
    with PPO.from_checkpoint(tmp_path, env=Team) as algo:
        assert algo.learn(100) == algo.last_result == trained
        assert type(algo.learn(100)) is Result
        assert algo.iteration == 2
    with PPO(env=Team, config=config) as algo:
        algo.restore(tmp_path)
        assert algo.learn(100) == trained


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_means_begin_anew_in_another_environment(kind: Any, tmp_path: Path) -> None:
    config = {**SMALL, "evaluation_duration": 2, "env_config": {"pay": 1}}
    with kind(env=Team, config={**config, "always_attach_evaluation_results": True}) as algo:
        assert algo.train()["episode_reward_mean"] == 15.0
        algo.evaluate()
        algo.save(tmp_path)
    with kind.from_checkpoint(tmp_path, env=Team) as algo:
        assert algo.train()["episode_reward_min"] == 15.0
    with kind.from_checkpoint(tmp_path, env=Team, config={"env_config": {"pay": 4}}) as algo:
        assert algo.last_result == {}
        result = algo.train()
        assert "evaluation" not in result
        assert result["episode_reward_min"] == result["episode_reward_mean"] == 60.0
        assert result["training_iteration"] == 2
        assert result["episodes_total"] > result["episodes_in_window"]


TEAMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "MAPPO": (PPO, Team, {"critic_obs": "all_agents"}),
    "QMIX": (QMIX, grouped, {}),
    "VDN": (QMIX, grouped, {"mixer": "vdn"}),
}


@pytest.mark.parametrize("name", TEAMS)
def test_another_size_of_a_team_is_named_where_its_networks_do_not_fit(name: str, tmp_path: Path) -> None:
    kind, env, own = TEAMS[name]
    with kind(env=env, config={**SMALL, **own}) as algo:
        algo.save(tmp_path)
        weights = algo.get_weights()
    message = rf"a network of {name} fits teams of one size, so keep the number of agents"
    with pytest.raises(ConfigError, match=message):
        kind.from_checkpoint(tmp_path, env=env, config={"env_config": {"n": 4}})
    with kind(env=env, config={**SMALL, **own, "env_config": {"n": 4}}) as algo:
        with pytest.raises(ConfigError, match=message):
            algo.restore(tmp_path)
        with pytest.raises(ConfigError, match="default_policy"):
            algo.set_weights(weights)


@pytest.mark.parametrize(("mixer", "name"), [("qmix", "QMIX"), ("vdn", "VDN"), (None, "QMIX")])
def test_another_size_of_a_team_is_named_where_evaluations_have_it(mixer: Any, name: str) -> None:
    evaluation = {"evaluation_interval": 1, "evaluation_config": {"env_config": {"n": 4}}}
    with pytest.raises(ConfigError, match=f"evaluation_config: .*{name} fits teams of one size"):
        QMIX(env=grouped, config={**SMALL, **evaluation, "mixer": mixer})
    # A centralized critic plays no part in evaluations.
    config = {**SMALL, "critic_obs": "all_agents", "evaluation_duration": 2, **evaluation}
    with PPO(env=Team, config=config) as algo:
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] == 20.0


def test_independent_policies_fit_teams_of_any_size(tmp_path: Path) -> None:
    with PPO(env=Team, config=SMALL) as algo:
        algo.save(tmp_path)
    with PPO.from_checkpoint(tmp_path, env=Team, config={"env_config": {"n": 4}}) as algo:
        assert algo.train()["episode_reward_mean"] == 20.0
