"""Crash capsules are written for faults of environments, and `menv replay` repeats them."""

from __future__ import annotations

import ctypes  # noqa: F401
import errno
import json
import shlex
import signal  # noqa: F401
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import EnvFaultWarning, register_env
from menv.algorithms import PPO, PPOConfig
from menv.algorithms.training.crash_capsules import CrashCapsules, read_capsule
from menv.cli.main import main
from menv.errors import ConfigError, ContractError, EnvCrashError
from menv.redaction import LEFT_OUT
from menv.verify.replay import ANOTHER, NONE, SAME, replay
from tests.engines.homes import leave
from tests.worlds import Several


class Cliff(gym.Env[Any, Any]):
    """Fails in the first step from `goal` on that has action 1; `goal` comes from the seed of the reset."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Discrete(3)
    mode = "raise"

    def __init__(self, shift: int = 12, token: str = "", maps: Any = ()) -> None:
        self.shift = shift

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.goal = 0, self.shift + int(self.np_random.integers(20))
        if self.mode == "reset" and self.np_random.random() < 0.4:
            raise OSError("no map")
        if self.mode == "lost":
            leave(7)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.mode != "reset" and self.t >= self.goal and action == 1:
            if self.mode == "exit":
                leave(0)
            if self.mode == "raise":
                raise ZeroDivisionError(f"no wheels at {self.t} before {self.goal}")
            return (np.zeros(3, np.float32), 1.0, False, False, {}) if self.mode == "obs" else None
        return np.zeros(2, np.float32), 1.0, self.t >= 60, False, {}


class Pairs(Several):
    """Two agents act by turns, whose actions are vectors; the sum of them decides the fault."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    length, sum = 91, 0.0

    def shown(self) -> Any:
        return "ab"[self.at % 2]

    def see(self, agent: Any) -> Any:
        return np.zeros(1, np.float32)

    def pay(self, actions: Any) -> Any:
        self.sum = float(sum(action.sum() for action in actions.values())) + (
            self.sum if self.at > 1 else 0.0
        )
        if self.at > 25 and self.sum > 0:
            raise ValueError(f"sum {self.sum!r} in step {self.at}")
        return {}


SETTINGS: dict[str, Any] = {
    "seed": 3, "num_envs_per_worker": 3, "rollout_fragment_length": 17, "train_batch_size": 600, "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [4]}, "restart_failed_sub_environments": False,
}  # fmt: skip


RECORD: dict[str, Any] = {
    "where": "reset", "line": "no map", "origin": ["OSError", "a.py", 1], "traceback": "", "worker_index": 0,
    "vector_index": 0, "seed": 3, "env_index": 0, "began": 0, "actions": [],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    register_env("cliff", mode("raise"))
    register_env("pairs", Pairs)


def crash(**config: Any) -> Path:
    """Train until the environment ends the run; return the capsule that the message names."""
    with PPO({"env": "cliff", **SETTINGS, **config}) as algo, pytest.raises(EnvCrashError) as raised:
        algo.learn(20_000)
    command = str(raised.value).rpartition("; replay it with: menv replay ")[2]
    path, *imports = shlex.split(command)
    assert imports in (["--import", __name__], ["--env", "MODULE:CLASS"])
    return Path(path)


def mode(name: str) -> Callable[[Any], Cliff]:
    def create(context: Any) -> Cliff:
        env = Cliff(**context)
        env.mode = name
        return env

    return create


@pytest.mark.parametrize("env", ["cliff", "pairs"])
def test_a_fault_is_repeated_from_its_capsule(env: str) -> None:
    path = crash(env=env)
    report = replay(path)
    capsule = read_capsule(path)
    assert report.verdict == SAME
    assert report.env_steps == sum(len(one) for one in capsule.actions_by_agent().values()) > 10
    assert capsule.line in str(report)


def test_a_reset_that_fails_is_repeated() -> None:
    register_env("cliff", mode("reset"))
    assert replay(crash()).verdict == SAME


@pytest.mark.parametrize("kind", ["obs", "none"])
def test_a_broken_contract_leaves_no_capsule(kind: str, tmp_path: Path) -> None:
    register_env("cliff", mode(kind))
    with PPO({"env": "cliff", **SETTINGS}) as algo, pytest.raises(ContractError):
        algo.learn(20_000, run_dir=tmp_path / "run")
    assert not (tmp_path / "run" / "crashes").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"), [("raise", {"num_workers": 1}), ("raise", {"remote_worker_envs": True})]
)
def test_faults_in_other_processes_are_repeated(kind: str, settings: dict[str, Any]) -> None:
    register_env("cliff", mode(kind))
    path = crash(**settings)
    assert replay(path).verdict == SAME


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exit", "lost"])
def test_the_action_that_ends_a_process_is_in_its_capsule(kind: str) -> None:
    register_env("cliff", mode(kind))
    path = crash(remote_worker_envs=True, engine="process", num_envs_per_worker=1)
    assert replay(path, env=mode("raise")).verdict == (ANOTHER if kind == "exit" else NONE)


def test_a_capsule_that_cannot_be_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    capsules = CrashCapsules(PPOConfig(env="cliff"))
    assert capsules.write({**RECORD, "actions": [["a", [object()]]]}) == ""
    monkeypatch.setattr(Path, "write_bytes", full)
    assert capsules.write(RECORD) == ""
    assert list(tmp_path.iterdir()) == []


def test_an_episode_that_was_lost_leaves_a_capsule_in_the_run_folder(tmp_path: Path) -> None:
    config = {**SETTINGS, "restart_failed_sub_environments": True}
    with (
        PPO({"env": "cliff", **config}) as algo,
        pytest.warns(EnvFaultWarning, match=r"; replay it with: menv replay"),
    ):
        result = algo.learn(1200, run_dir=tmp_path / "run")
    capsules = sorted((tmp_path / "run" / "crashes").iterdir())
    # The first five of one cause.
    assert len(capsules) == min(5, result["faulty_episodes_total"]) > 1
    assert [replay(path).verdict for path in capsules] == [SAME] * len(capsules)


def test_secrets_are_left_out_and_asked_for() -> None:
    nested = {"url": "https://me:hunter33@host/x", "credentials": {"user": "hunter44", "parts": ["hunter55"]}}
    path = crash(env_config={"shift": 12, "token": "hunter22", "maps": [nested]})
    assert "hunter" not in path.read_text()
    assert read_capsule(path).env_config["token"] == LEFT_OUT
    with pytest.raises(ConfigError, match="token, maps"):
        replay(path)
    assert replay(path, env_config={"token": "another", "maps": []}).verdict == SAME


def test_the_command_prints_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    path = crash()
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.startswith("same fault: ZeroDivisionError: no wheels")
    assert main(["replay", str(path), "--env", "CartPole-v1"]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "report", "version": "0.1.0"}, "kind"),
        ({"version": 2}, "version 2"),
        ({"kind": "menv run"}, "kind"),
        ({"began": "soon"}, "began"),
        ({"arrays": {"0": ["object", [1], [0]]}}, "'object'"),
        ({"arrays": {}}, r"\$array"),
        ({"env": "elsewhere:Cliff"}, "elsewhere:Cliff"),
        ({"actions": None}, "actions|array"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = crash()
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=message) as refused:
        replay(path)
    assert "\n" not in str(refused.value)


def test_a_missing_and_a_cut_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_bytes(crash().read_bytes()[:200])
    with pytest.raises(ConfigError):
        replay(tmp_path / "cut.json")
    with pytest.raises(ConfigError):
        replay(tmp_path / "none.json")
