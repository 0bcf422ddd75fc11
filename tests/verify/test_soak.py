"""`menv soak` finds environments that leak memory, files or threads, and lets healthy ones pass."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import register_env
from menv.algorithms.crash_capsules import read_capsule
from menv.cli.main import main
from menv.verify.soak import soak

_KEPT: list[Any] = []


class Leaky(gym.Env[Any, Any]):
    """Keeps something in a reset, every 5 ms: a MB of memory, an open file, or a thread; or it raises now and then."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)

    def __init__(self, leaks: str = "") -> None:
        self.leaks = leaks
        self.due = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        if time.monotonic() < self.due:
            return np.zeros(2, np.float32), {}
        self.due = time.monotonic() + 0.005
        if self.leaks == "ends":
            raise OSError("no map\nof the world")
        if self.leaks == "memory":
            _KEPT.append(np.ones(1 << 17))
        elif self.leaks == "files":
            _KEPT.append(open(os.devnull))  # noqa: SIM115 - that is the leak
        elif self.leaks == "threads":
            _KEPT.append(threading.Event())
            threading.Thread(target=_KEPT[-1].wait, daemon=True).start()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.leaks == "raises" and self.t == 15 and action == 1:
            raise ValueError("lost\nthe ball")
        return np.zeros(2, np.float32), 1.0, self.t >= 20, False, {}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    register_env("leaky", lambda context: Leaky(**context))
    yield
    for one in _KEPT:
        if hasattr(one, "close"):
            one.close()
        elif hasattr(one, "set"):
            one.set()
    _KEPT.clear()


@pytest.mark.parametrize(
    ("leaks", "figure"), [("memory", "memory_mb"), ("files", "files"), ("threads", "threads")]
)
def test_leaks_are_found(leaks: str, figure: str) -> None:
    report = soak("leaky", {"env_config": {"leaks": leaks}}, seconds=1.5)
    assert figure in report.grows
    assert not report.passed


def test_a_healthy_environment_passes_and_its_faults_have_capsules() -> None:
    report = soak("leaky", {"env_config": {"leaks": "raises"}}, seconds=1.5)
    assert not report.grows, report
    assert report.passed
    assert len(report.faults) == 5
    assert read_capsule(report.faults[0].rpartition("menv replay ")[2]).line.startswith(
        "ValueError: lost the ball"
    )


def test_an_error_that_ends_the_soak_is_one_line_of_the_report() -> None:
    report = soak("leaky", {"env_config": {"leaks": "ends"}}, seconds=1.5)
    assert not report.passed
    (line,) = [line for line in str(report).splitlines() if "no map" in line or "of the world" in line]
    assert line.startswith("  ended: env 0 reset, env step 0: raised OSError: no map of the world; ")
    assert read_capsule(line.rpartition("menv replay ")[2]).where == "reset"


@pytest.mark.slow
def test_killed_workers_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "CartPole-v1", "--minutes", "0.2", "--workers", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kills"] > 3
    assert report["faults"] == []


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "CartPole-v1", "--minutes", "-1"]) == 2
    assert "soak: seconds is -60.0, expected a number above 0" in capsys.readouterr().err
    for text in ('{"lrr": 1}', "lrr=1"):
        assert main(["soak", "CartPole-v1", "--config", text]) == 2
        assert "unknown key 'lrr', expected a known one; did you mean 'lr'?" in capsys.readouterr().err
