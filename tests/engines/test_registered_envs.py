"""What of the names of environments goes to another process."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from menv import registry
from menv.algorithms import PPO
from menv.errors import EnvCrashError
from menv.registry import make_env, register_env
from menv.workers.registered_envs import known_here
from tests.checkpoints.runs import SMALL
from tests.workers.crews import Counting

MEGABYTES = 6


def ask(context: Any) -> Any:
    return make_env("of the loader", context)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> np.ndarray[Any, Any]:
    """Registers a creator that holds megabytes, and one that asks for it."""
    data = np.zeros(MEGABYTES << 20, np.uint8)
    monkeypatch.setattr(registry, "_registered", {})
    register_env("of the loader", lambda context: Counting({**context, "length": 5 + int(data[0])}))
    register_env("asks", lambda context: make_env("of the loader", context))
    register_env("small", lambda context: Counting(context))
    return data


def size_of(known: Any) -> int:
    return len(cloudpickle.dumps(known))


def test_a_creator_of_megabytes_stays_where_nothing_asks_for_it(
    loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(registry._registered, "asks")
    known = known_here("small")
    assert size_of(known) < 1 << 20
    there = pickle.loads(cloudpickle.dumps(known)).creators
    assert make_env(there["small"]).reset()
    with pytest.raises(
        EnvCrashError, match=r"creator raised ConfigError: env 'of the loader': its creator holds 6 MB"
    ):
        make_env(there["of the loader"])


@pytest.mark.parametrize("env", ["of the loader", "asks", ask, lambda context: make_env("asks", context)])
def test_one_that_is_asked_for_goes_along_whatever_it_holds(loader: Any, env: Any) -> None:
    assert isinstance(make_env(known_here(env).creators["of the loader"]), gym.Env)


def test_one_that_the_settings_name_goes_along(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._registered, "asks")
    make_named = lambda context: make_env(context["inner"], context)  # noqa: E731 - other processes are sent it
    config = {**SMALL, "num_workers": 1, "engine": "process", "env_config": {"inner": "of the loader"}}
    with PPO(env=make_named, config=config) as algo:
        assert algo.train()["episode_len_mean"] == 5
