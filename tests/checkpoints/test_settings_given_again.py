"""Settings come back from a checkpoint; functions, classes and unknown environments have to be given again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec, RandomPolicy
from menv.algorithms import DQN, PPO, DQNConfig, PPOConfig, PPOPolicy, QMIXConfig
from menv.algorithms.config.read_config import read_config
from menv.algorithms.config.stored_config import restored_config, stored_config
from menv.callbacks import DefaultCallbacks
from menv.envs import TwoStepGame
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.policy_map import PolicyMap
from tests.checkpoints.runs import SMALL, by_seat, trained, weights_of
from tests.worlds import Alone, like

TWO: dict[str, Any] = {"policies": ["a", "b"], "policy_mapping_fn": by_seat}
CONFIGS: list[tuple[Any, dict[str, Any]]] = [
    (PPOConfig, {}),
    (
        PPOConfig,
        {**SMALL, "lambda": 0.9, "lr_schedule": [[0, 1e-3], [1000, 1e-4]], "vf_clip_param": float("inf")},
    ),
    (
        PPOConfig,
        {"model": {"conv_filters": [[16, [8, 8], 4]], "use_lstm": True}, "env_config": {"size": (3, 4)}},
    ),
    (DQNConfig, {"replay_buffer_config": {"type": "PrioritizedReplayBuffer"}, "seed": np.int64(5)}),
    (DQNConfig, {"exploration_config": {"epsilon_timesteps": 77}, "evaluation_config": {"explore": False}}),
    (QMIXConfig, {"mixer": "vdn"}),
]


@pytest.mark.parametrize(("kind", "given"), CONFIGS)
def test_settings_that_json_can_hold_come_back(kind: Any, given: dict[str, Any]) -> None:
    config = read_config(kind, {"env": "CartPole-v1", **given})
    found = restored_config(kind, stored_config(config, PolicyMap()), None)
    for field in dataclasses.fields(config):
        if field.name not in ("multiagent", "env_config"):
            assert getattr(found, field.name) == getattr(config, field.name), field.name
    assert list(found.env_config) == list(config.env_config)


# Ends at once.
Corridor = like(Alone, length=1)


class Quiet(DefaultCallbacks):
    """Does nothing."""


class OwnRandom(RandomPolicy):
    """A class that is not menv's."""


@pytest.mark.parametrize(
    ("wanted", "config"),
    [
        ("env", {"env": Corridor}),
        ("env", {"env": "menv.envs.tictactoe:TicTacToe", "multiagent": TWO}),
        ("multiagent", {"env": "tictactoe", "multiagent": TWO}),
        ("callbacks", {"env": Corridor, "callbacks": Quiet}),
        ("multiagent", {"env": "tictactoe", "multiagent": {**TWO, "policies": {"a": None, "b": OwnRandom}}}),
    ],
)
def test_objects_stored_by_name_must_be_passed_again(
    wanted: str, config: dict[str, Any], tmp_path: Path
) -> None:
    with PPO(config={**SMALL, **config}) as algo:
        algo.save(tmp_path)
    given = {key: config[key] for key in ("env", "multiagent", "callbacks") if key in config}
    others = {key: value for key, value in given.items() if key != wanted}
    with pytest.raises(ConfigError, match=rf"config\['{wanted}'\]"):
        PPO.from_checkpoint(tmp_path, others)
    PPO.from_checkpoint(tmp_path, given).stop()


def test_classes_that_menv_offers_are_known(tmp_path: Path) -> None:
    policies = {"a": (PPOPolicy, None, None, {}), "b": RandomPolicy}
    multiagent = {"policies": policies, "policy_mapping_fn": by_seat}
    with PPO(env=TwoStepGame, config={**SMALL, "multiagent": multiagent}) as algo:
        trained(algo, 1)
        algo.save(tmp_path)
        wanted = weights_of(algo)
    mapped = {"multiagent": {"policy_mapping_fn": by_seat}}
    with PPO.from_checkpoint(tmp_path, mapped) as again:
        assert again.config.env is TwoStepGame
        assert type(again.get_policy("b")) is RandomPolicy
        assert weights_of(again) == wanted
        assert trained(again, 1)["training_iteration"] == 2


def test_the_spaces_of_classic_tuples_come_back(tmp_path: Path) -> None:
    box = gym.spaces.Box(0.0, 1.0, (5,), np.float32)
    tuples = {name: (None, box, gym.spaces.Discrete(2), {"gamma": 0.5}) for name in "ab"}
    multiagent = {"policies": tuples, "policy_mapping_fn": by_seat}
    with PPO(env=TwoStepGame, config={**SMALL, "multiagent": multiagent}) as algo:
        algo.save(tmp_path)
    mapped = {"multiagent": {"policy_mapping_fn": by_seat}}
    with PPO.from_checkpoint(tmp_path, mapped) as again:
        assert again.get_policy("b").observation_space == box
        assert trained(again, 1)["training_iteration"] == 1


def test_all_settings_to_pass_again_are_named_at_once(tmp_path: Path) -> None:
    def to_one(*args: Any, **kwargs: Any) -> str:
        return "p0"

    class Hears(DefaultCallbacks):
        pass

    class Own(RandomPolicy):
        pass

    def saved(number: int) -> Path:
        policies = {"p0": None, **{f"p{one}": PolicySpec(Own) for one in range(1, number)}}
        given["multiagent"] = {"policies": policies, "policy_mapping_fn": to_one}
        with PPO(env=Corridor, config={**SMALL, **given}) as algo:
            return algo.save(tmp_path / str(number))

    given: dict[str, Any] = {"callbacks": Hears}
    few = saved(3)
    with pytest.raises(ConfigError, match="config") as told:
        PPO.from_checkpoint(few)
    named = {line.split(" was ")[0] for line in str(told.value).split(": ", 1)[1].split(", config")}
    assert {one.removeprefix("config") for one in named} == {
        "['env']", "['callbacks']", "['multiagent']['policies']['p1']['policy_class']",
        "['multiagent']['policies']['p2']['policy_class']", "['multiagent']['policy_mapping_fn']",
    }  # fmt: skip
    with PPO.from_checkpoint(few, {"env": Corridor, **given}) as again:
        assert again.iteration == 0
    with pytest.raises(ConfigError, match="5 more"):
        PPO.from_checkpoint(saved(11))


def test_some_of_the_policies_can_be_loaded(tmp_path: Path) -> None:
    with PPO(env="tictactoe", config={**SMALL, "multiagent": {**TWO, "policies_to_train": ["b"]}}) as algo:
        trained(algo, 1)
        algo.save(tmp_path)
        with PPO.from_checkpoint(
            tmp_path, policy_ids=["b"], policy_mapping_fn=lambda *args, **kwargs: "b"
        ) as again:
            wanted = {key: value for key, value in weights_of(algo).items() if key.startswith("b/")}
            assert weights_of(again) == wanted
            assert trained(again, 1)["num_episodes_not_resumed"] > 0
    with pytest.raises(ConfigError, match="policy_ids"):
        PPO.from_checkpoint(tmp_path, {"multiagent": TWO}, policy_ids=["c"])
    with PPO.from_checkpoint(tmp_path, policy_ids="a", policy_mapping_fn=lambda *args, **kwargs: "a") as one:
        assert list(one.get_weights()) == ["a"]


def test_a_policy_that_the_checkpoint_has_not_is_added_afterwards(tmp_path: Path) -> None:
    def to_c(*args: Any, **kwargs: Any) -> str:
        return "c"

    with PPO(env="tictactoe", config={**SMALL, "multiagent": TWO}) as algo:
        algo.save(tmp_path)
    three = {"policies": ["a", "b", "c"], "policy_mapping_fn": to_c}
    expected = pytest.raises(ContractError, match="'c'")
    with expected, PPO.from_checkpoint(tmp_path, {"multiagent": three}) as other:
        other.train()
    with PPO.from_checkpoint(tmp_path, {"multiagent": TWO}) as again:
        again.add_policy("c", policy_mapping_fn=to_c)
        assert set(again.sample().policy_batches) == {"c"}


def test_another_algorithm_and_another_network_are_refused(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.save(tmp_path)
        before = weights_of(algo)
        with pytest.raises(ConfigError, match=r"PPO\.from_checkpoint"):
            DQN.from_checkpoint(tmp_path)
        with pytest.raises(ConfigError, match="shape"):
            PPO.from_checkpoint(tmp_path, {"model": {"fcnet_hiddens": [8]}})
        with (
            PPO(env="CartPole-v1", config={**SMALL, "model": {"fcnet_hiddens": [8]}}) as other,
            pytest.raises(ConfigError, match="model"),
        ):
            other.restore(tmp_path)
        algo.add_policy("b", PolicySpec(), policy_mapping_fn=lambda *args, **kwargs: "b")
        with pytest.raises(ConfigError, match="'b', 'default_policy'"):
            algo.restore(tmp_path)
        assert {key: value for key, value in weights_of(algo).items() if not key.startswith("b/")} == before


def test_the_latest_and_the_best_are_kept(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.save(tmp_path, keep_best=("episode_reward_mean", 1))
        means = {}
        for _ in range(5):
            result = algo.train()
            means[result["training_iteration"]] = result["episode_reward_mean"]
            cast(dict[str, Any], result)["own"] = {"worth": -abs(algo.iteration - 2)}
            algo.save(tmp_path, keep_last=2, keep_best=("own/worth", 1))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000004", "000005", "LATEST"]
        algo.save(tmp_path, keep_last=1)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000005", "LATEST"]


def test_a_stopped_algorithm_is_neither_saved_nor_restored(tmp_path: Path) -> None:
    algo = PPO(env="CartPole-v1", config=SMALL)
    algo.save(tmp_path)
    algo.stop()
    with pytest.raises(CallOrderError, match="save"):
        algo.save(tmp_path)
    with pytest.raises(CallOrderError, match="restore"):
        algo.restore(tmp_path)
