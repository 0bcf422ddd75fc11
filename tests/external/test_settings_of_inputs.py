"""Settings that cannot work with an `input` are refused when the algorithm is built, and not hours later."""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.errors import ConfigError
from menv.serving.policy_server import PolicyServerInput
from menv.workers.engines import make_engine

SPACES: dict[str, Any] = {
    "observation_space": gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
    "action_space": gym.spaces.Discrete(2),
}


def never(ioctx: Any) -> Any:
    raise AssertionError("no server is started before the settings have been looked at")


@pytest.mark.parametrize("setting", [{"evaluation_interval": 2}, {"evaluation_num_workers": 1}])
def test_evaluations_without_an_environment_are_refused_at_once(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(
        ConfigError, match=rf"^{name}: . with an input and no env, expected .*evaluation_config"
    ):
        PPO(config={**SPACES, **setting, "input": never})


def test_evaluations_in_an_environment_of_their_own_are_played_beside_an_input() -> None:
    config = {
        **SPACES, "observation_space": gym.make("CartPole-v1").observation_space, "evaluation_interval": 1,
        "evaluation_duration": 1, "evaluation_config": {"env": "CartPole-v1"}, "train_batch_size": 8,
        "sgd_minibatch_size": 8, "input": lambda ioctx: PolicyServerInput(ioctx, port=0, idle_timeout=0.01),
    }  # fmt: skip
    with PPO(config=config) as algo:
        assert algo.train()["evaluation"]["episode_len_mean"] > 0


@pytest.mark.parametrize(("module", "name", "value"), [(sys, "platform", "win32"), (os, "name", "nt")])
def test_other_processes_are_refused_in_a_line_where_the_system_is_windows(
    module: Any, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, name, value)
        errors = []
        for engine in ("process", None):
            with pytest.raises(ConfigError) as caught:
                make_engine(engine)
            errors.append(str(caught.value))
    assert errors == [errors[0]] * 2
    assert "on Windows, expected Linux or macOS; leave num_workers" in errors[0]
