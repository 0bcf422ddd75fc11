"""Leagues: snapshots of policies play, rest and come back, also where agents have different spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import Policy, PolicySpec, RandomPolicy
from menv.algorithms import PPO, Algorithm
from menv.base_env import AgentId
from menv.errors import ConfigError
from tests.worlds import Several

SPACES: dict[str, tuple[gym.Space[Any], gym.Space[Any]]] = {
    "car_0": (gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(3)),
    "car_1": (gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(3)),
    "light": (gym.spaces.Discrete(4), gym.spaces.Box(-1.0, 1.0, (2,))),
}
OBSERVED = {agent: spaces[0] for agent, spaces in SPACES.items()}
ACTED = {agent: spaces[1] for agent, spaces in SPACES.items()}
SMALL = {
    "seed": 1, "rollout_fragment_length": 12, "train_batch_size": 12, "sgd_minibatch_size": 12, "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [8]},
}  # fmt: skip


class Crossing(Several):
    """Two cars and a light."""

    possible_agents, length = tuple(SPACES), 6
    observation_spaces, action_spaces = OBSERVED, ACTED

    def see(self, agent: str) -> Any:
        return self.at % 4 if agent == "light" else np.full(3, self.at / 6, np.float32)


class Cars:
    """A mapping to one policy for cars and one for lights, which can go to workers."""

    def __init__(self, car: str, light: str = "light") -> None:
        self.car, self.light = car, light

    def __call__(self, agent_id: AgentId, *args: Any, **kwargs: Any) -> str:
        return self.light if agent_id == "light" else self.car


def league(**settings: Any) -> dict[str, Any]:
    multiagent = {"policies": ["car", "light"], "policy_mapping_fn": Cars("car")}
    return {"env": Crossing, **SMALL, "multiagent": multiagent, **settings}


def play_a_season(algo: Algorithm) -> None:
    """Let "car" rest, then its first snapshot as well, then remove the second one."""
    algo.add_policy("car_1", policy_mapping_fn=Cars("car_1"))
    algo.add_policy("car_2", policy_mapping_fn=Cars("car_2"))
    algo.train()
    algo.add_policy("light_1", policy_mapping_fn=Cars("car_1", "light_1"))
    algo.remove_policy("car_2", policy_mapping_fn=Cars("car_1", "light_1"))
    algo.train()


def check_goes_on(algo: Algorithm, path: Path, config: dict[str, Any]) -> None:
    """Save, load, let a policy that rested play again."""
    multiagent = {"policy_mapping_fn": Cars("car_1", "light_1")}
    with PPO.from_checkpoint(algo.save(path), {**config, "multiagent": multiagent}) as again:
        spaces = {name: again.get_policy(name).observation_space for name in again.get_weights()}
        assert spaces == {
            "car": OBSERVED["car_0"], "light": OBSERVED["light"], "car_1": OBSERVED["car_0"],
            "light_1": OBSERVED["light"],
        }  # fmt: skip
        again.add_policy("car_3", policy=again.get_policy("car"), policy_mapping_fn=Cars("car_3", "light"))
        result = again.train()
        assert {"car_3", "light"} <= set(result["policy_reward_mean"]) | set(result["info"])


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="in process"),
        pytest.param({"num_workers": 1, "engine": "process"}, id="workers", marks=pytest.mark.slow),
        pytest.param(
            {"remote_worker_envs": True, "engine": "process"},
            id="remote environments",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "evaluation_interval": 1,
                "evaluation_duration": 1,
                "evaluation_num_workers": 1,
                "engine": "process",
            },
            id="evaluation workers",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_policies_of_agents_with_other_spaces_may_rest_and_continue_from_a_checkpoint(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with PPO(league(**settings)) as algo:
        play_a_season(algo)
        check_goes_on(algo, tmp_path, {"env": Crossing})


OBS = [np.array(obs, np.float32) for obs in ([0.1, 0.5, -0.5], [1.0, 0.0, 0.2])]


def answers(policy: Policy) -> Any:
    return policy.compute_actions(OBS, explore=False)[2]["action_logp"].tolist()


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_policy_of_a_checkpoint_joins_another_run_with_its_statistics(
    trained: bool, num_workers: int, tmp_path: Path
) -> None:
    with PPO(league(observation_filter="MeanStdFilter")) as algo:
        algo.train()
        loaded: Any = Policy.from_checkpoint(algo.save(tmp_path / "one"))
        expected = answers(algo.get_policy("car"))
    # The other run has no filters; the policy brings its own.
    with PPO(league(num_workers=num_workers, engine="process")) as other:
        assert answers(other.get_policy("car")) != expected
        to_train = ["light", *(["expert"] if trained else [])]
        expert = other.add_policy(
            "expert", policy=loaded["car"], policy_mapping_fn=Cars("expert"), policies_to_train=to_train
        )
        assert answers(expert) == expected
        for _ in range(2):
            result = other.train()
        assert ("expert" in result["info"]) == trained
        assert (answers(expert) == expected) == (not trained)
        multiagent = {"policy_mapping_fn": Cars("expert")}
        again = PPO.from_checkpoint(other.save(tmp_path / "two"), {"env": Crossing, "multiagent": multiagent})
        with again:
            assert answers(again.get_policy("expert")) == answers(expert)


def test_a_policy_that_cannot_be_copied_is_refused_and_leaves_nothing_behind() -> None:
    with PPO(league()) as algo:
        car = algo.get_policy("car")
        with pytest.raises(ConfigError, match="'past'"):
            algo.add_policy("past", PolicySpec(config={"model": {"fcnet_hiddens": [4]}}), policy=car)
        with pytest.raises(ConfigError, match="'past'"):
            algo.add_policy("past", RandomPolicy, policy=car)
        every: Any = {"car": car}
        with pytest.raises(ConfigError, match="add_policy"):
            algo.add_policy("past", policy=every)
        assert set(algo.get_weights()) == {"car", "light"}
        assert answers(algo.add_policy("past", policy=car)) == answers(car)
        algo.train()
