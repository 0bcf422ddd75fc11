"""A resumed run knows its last result; in another environment means begin anew, and teams keep their size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from menv import ConfigError
from menv.algorithms import DQN, PPO, QMIX
from tests.worlds import Several


class Team(Several):
    """Each of `n` agents is paid `pay` in each of five steps."""

    length = 5

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.possible_agents = [f"agent_{place}" for place in range(context.get("n", 3))]

    def pay(self, actions: Any) -> Any:
        return dict.fromkeys(actions, float(self.config.get("pay", 1)))


def grouped(context: Any) -> Any:
    team = Team(context)
    return team.with_agent_groups({"team": team.possible_agents})


SMALL: dict[str, Any] = {"train_batch_size": 50, "seed": 0}


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_means_begin_again_in_another_environment(kind: Any, tmp_path: Path) -> None:
    config: dict[str, Any] = {**SMALL, "evaluation_duration": 2, "env_config": {"pay": 1}}
    if kind is DQN:
        config["num_steps_sampled_before_learning_starts"] = 100_000
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
    message = f"'default_policy': .*{name}"
    with pytest.raises(ConfigError, match=message):
        kind.from_checkpoint(tmp_path, env=env, config={"env_config": {"n": 4}})
    with kind(env=env, config={**SMALL, **own, "env_config": {"n": 4}}) as algo:
        with pytest.raises(ConfigError, match=message):
            algo.restore(tmp_path)
        with pytest.raises(ConfigError, match="default_policy"):
            algo.set_weights(weights)


def test_independent_policies_fit_teams_of_any_size(tmp_path: Path) -> None:
    with PPO(env=Team, config=SMALL) as algo:
        algo.save(tmp_path)
    with PPO.from_checkpoint(tmp_path, env=Team, config={"env_config": {"n": 4}}) as algo:
        assert algo.train()["episode_reward_mean"] == 20.0
