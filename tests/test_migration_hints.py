"""Old names: the table as data, and where it is read."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import pickle
import re
import warnings
from typing import Any

import gymnasium as gym
import pytest
import torch

import menv
from menv.algorithms import PPO, Algorithm, DQNConfig, ModelConfig, PPOConfig, PPOPolicy, QMIXConfig
from menv.migration_hints import HINTS, ONLY_VALUES
from tests.house.sources import ROOT

RUN: dict[str, Any] = {"train_batch_size": 16, "rollout_fragment_length": 8, "evaluation_duration": 1}


@pytest.mark.parametrize("owner", HINTS)
def test_every_import_that_a_hint_names_can_be_written(owner: str) -> None:
    for advice in HINTS[owner].values():
        for found in re.findall(r"from \S+ import \w+", advice):
            exec(found, {})
        for name in re.findall(r"menv\.[\w.]+", advice):
            package, _, last = name.rpartition(".")
            assert hasattr(importlib.import_module(package), last), advice


def test_every_old_name_is_on_the_page_of_classic_names() -> None:
    page = (ROOT / "docs" / "reference" / "classic.md").read_text("utf-8")
    words = set(re.findall(r"\w+", page))
    assert not {name for rows in HINTS.values() for name in rows} - words


def test_old_names_are_not_names_here() -> None:
    owners = {"PPOPolicy": PPOPolicy, "Module": torch.nn.Module, "Algorithm": Algorithm}
    uncalled = {f"uncalled method of {name}": kind for name, kind in owners.items()}
    for owner, kind in {"Algorithm": Algorithm, **uncalled}.items():
        assert not [name for name in HINTS[owner] if hasattr(kind, name)]


def test_ignored_settings_are_not_settings() -> None:
    configs = (PPOConfig, DQNConfig, QMIXConfig, ModelConfig, type(DQNConfig().replay_buffer_config))
    known = {field.name for one in configs for field in dataclasses.fields(one)}
    unknown = HINTS["ignored setting"].keys() | ONLY_VALUES.keys()
    assert not unknown & (known - {"exploration_config"})


@pytest.mark.parametrize("package", ["menv", "menv.algorithms", "menv.serving", "menv.wrappers", "menv.envs"])
def test_a_package_says_where_an_old_name_is_and_where_one_of_another_package_is(package: str) -> None:
    module = importlib.import_module(package)
    elsewhere = {
        "PPO": "menv.algorithms",
        "BaseEnv": "menv",
        "PettingZooEnv": "menv.wrappers",
        "TicTacToe": "menv.envs",
    }
    cases = {name: f"write from {home} import {name}" for name, home in elsewhere.items() if home != package}
    for name, advice in {**cases, "make_vec_env": HINTS["import"]["make_vec_env"]}.items():
        with pytest.raises(ImportError, match=f"^{package} has no '{name}'; {re.escape(advice)}$"):
            exec(f"from {package} import {name}", {})
        with pytest.raises(AttributeError, match=rf"'{name}'.*; {re.escape(advice)}$"):
            getattr(module, name)
    with pytest.raises(AttributeError, match="trian"):
        _ = module.trian


def test_an_algorithm_and_its_results_say_what_stands_for_old_names() -> None:
    with PPO(env="CartPole-v1", config=RUN) as algo:
        with pytest.raises(AttributeError, match="call_envs"):
            _ = algo.workers  # type: ignore[attr-defined]
        result = algo.train()
        with pytest.raises(KeyError, match="episode_reward_mean"):
            algo.evaluate()["env_runners"]  # type: ignore[typeddict-item]
        assert algo.compute_single_action([0.0] * 4, explore=False) in (0, 1)
    assert HINTS["result"].keys() & result.keys() == set()
    for key, advice in HINTS["result"].items():
        with pytest.raises(KeyError) as caught:
            result[key]  # type: ignore[literal-required]
        assert caught.value.args == (f"{key}: {advice}",)
        if advice.startswith("it is called "):
            assert advice.removeprefix("it is called ") in result
    with pytest.raises(KeyError, match=r"^'episode_reward_maen'$"):
        result["episode_reward_maen"]  # type: ignore[typeddict-item]
    assert (
        json.loads(json.dumps(result))
        == result
        == copy.deepcopy(result)
        == pickle.loads(pickle.dumps(result))
    )


@pytest.mark.parametrize(
    "statement",
    [
        "from menv.algorithms.ppo import PPO, PPOConfig",
        "from menv.algorithms.dqn import DQN, DQNConfig",
        "from menv.algorithms.qmix import QMIX, QMIXConfig",
        "from menv.algorithms.callbacks import DefaultCallbacks, make_multi_callbacks",
        "from menv.tune import register_env",
    ],
)
def test_imports_at_the_paths_of_rllib_work(statement: str) -> None:
    found: dict[str, Any] = {}
    exec(statement, found)
    for name in found.keys() - {"__builtins__"}:
        assert found[name] is getattr(menv if hasattr(menv, name) else menv.algorithms, name)


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("from menv.algorithms.ppo import PPOTrainer", "menv.algorithms import PPO$"),
        ("from menv.algorithms import ppo; ppo.PPOTrainer", "menv.algorithms import PPO$"),
        ("from menv.algorithms.dqn import DQNTrainer", "menv.algorithms import DQN$"),
        *(
            (f"from menv.algorithms import {name}", "PPO, DQN, SAC and QMIX")
            for name in ("pg", "a2c", "IMPALA")
        ),
    ],
)
def test_imports_of_missing_names_say_what_to_write(statement: str, advice: str) -> None:
    with pytest.raises((ImportError, AttributeError), match=advice):
        exec(statement, {})


def test_getting_a_key_of_the_new_api_from_a_result_warns_and_gives_the_default() -> None:
    result = menv.migration_hints.Result(episode_reward_mean=2.5)
    with pytest.warns(
        UserWarning, match=r"'env_runners'.*episode_reward_mean and policy_reward_mean are keys"
    ):
        assert result.get("env_runners", {}) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.get("episode_reward_mean") == 2.5
        # An iteration without an evaluation, and a key that no library has.
        assert result.get("evaluation") is None
        assert result.get("hits", 3) == 3


@pytest.mark.parametrize(
    ("name", "here"),
    [("num_env_runners", "num_workers"), ("minibatch_size", "sgd_minibatch_size"), ("lambda", "lambda_")],
)
def test_assigning_to_a_setting_names_a_replacement_that_works(name: str, here: str) -> None:
    config = PPOConfig()
    with pytest.raises(dataclasses.FrozenInstanceError, match=rf"dataclasses.replace\(config, {here}=...\)"):
        setattr(config, name, 1)
    changes: dict[str, Any] = {here: 1}
    assert getattr(dataclasses.replace(config, **changes), here) == 1


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("learners", "num_gpus"),
        ("checkpointing", "save_every"),
        ("experimental", "out"),
        ("python_environment", "out"),
    ],
)
def test_methods_of_the_newest_configs_say_what_to_call(method: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        getattr(PPOConfig(), method)


def test_a_policy_says_where_view_requirements_are_and_a_subclass_may_have_some() -> None:
    space = gym.spaces.Discrete(2)

    class Own(menv.Policy):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.view_requirements = {"obs": None}

    policy = menv.Policy(space, space)
    assert not hasattr(policy, "view_requirements")
    with pytest.raises(AttributeError, match="ViewRequirementAgentConnector"):
        policy.view_requirements  # noqa: B018
    assert Own(space, space).view_requirements == {"obs": None}
