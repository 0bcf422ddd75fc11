"""Names of environments in processes that `to_base_env` starts, and what those processes say of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

import menv
from menv import registry
from menv.algorithms import PPO
from menv.registry import make_env, register_env
from tests.checkpoints.runs import SMALL
from tests.workers.crews import Counting

PACKAGE = """
import gymnasium as gym

from tests.workers.crews import Counting

for number in range(60):
    gym.register(f"Crowded-{number}-v0", entry_point="crowded_envs:Counting", kwargs={"config": {"length": 5}})
"""


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers two names that only this process knows."""
    monkeypatch.setattr(registry, "_registered", {})
    register_env("counted here", lambda context: Counting({**context, "length": 4}))
    spec = EnvSpec("CountedHere-v0", lambda **settings: Counting({"length": 4}))
    monkeypatch.setitem(gym.registry, spec.id, spec)


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An id of a package that registered sixty when it was imported."""
    (tmp_path / "crowded_envs.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("crowded_envs")
    yield "Crowded-3-v0"
    for name in [name for name in gym.registry if name.startswith("Crowded-")]:
        del gym.registry[name]
    del sys.modules["crowded_envs"]


def played(make: Any) -> int:
    """Return the length of the first episode of two remote copies."""
    envs = menv.to_base_env(make(0), make, 2, remote_envs=True, engine="process")
    try:
        ready = envs.poll()
        while not ready.episodes:
            envs.send_actions(ready.slots, [0] * len(ready.slots))
            ready = envs.poll()
        return int(ready.episodes[0].env_steps)
    finally:
        envs.stop()


@pytest.mark.slow_unless("register_env")
@pytest.mark.parametrize(
    "make",
    [
        lambda index: make_env("counted here", {}),
        lambda index: gym.make("CountedHere-v0"),
        lambda index=0: make_env("counted here"),
    ],
    ids=["register_env", "gymnasium", "a default"],
)
def test_a_function_that_asks_for_a_name_of_this_process_finds_it_elsewhere(names: None, make: Any) -> None:
    assert played(make) == 4


@pytest.mark.slow_unless("workers")
@pytest.mark.parametrize("far", [{"num_workers": 2}, {"remote_worker_envs": True}], ids=["workers", "remote"])
def test_a_package_that_registers_its_ids_again_in_another_process_is_not_warned_of(
    crowded: str, far: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with PPO(env=lambda context: gym.make(crowded), config={**SMALL, **far, "engine": "process"}) as algo:
        assert algo.train()["episode_len_mean"] == 5
    assert "Overriding" not in capfd.readouterr().err
