"""Trackers of other services: what they call of the official clients, and what is said without these."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from menv.cli.main import main

TRAIN = [
    "train", "tictactoe", "--no-save", "--stop", "training_iteration=1",
    "--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64",
]  # fmt: skip


class Client(ModuleType):
    """Writes down what is called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Client:
            self.calls.append((name, args, kwargs))
            return self

        return call


@pytest.mark.parametrize(
    ("option", "package", "log", "calls"),
    [
        ("--wandb", "wandb", "log", ["init", "log", "finish"]),
        (
            "--mlflow",
            "mlflow",
            "log_metrics",
            ["set_experiment", "start_run", "log_params", "log_metrics", "end_run"],
        ),
    ],
)
def test_a_tracker_logs_each_result_by_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, package: str, log: str, calls: list[str]
) -> None:
    client = Client(package)
    monkeypatch.setitem(sys.modules, package, client)
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, option, "games"]) == 0
    assert [name for name, _, _ in client.calls] == calls
    assert "games" in (*client.calls[0][1], *client.calls[0][2].values())
    assert "'sgd_minibatch_size': " in str(client.calls)
    ((numbers,), steps) = next((args, kwargs) for name, args, kwargs in client.calls if name == log)
    assert steps == {"step": 64}
    assert numbers["counts/training_iteration"] == 1.0
    assert "learner/default_policy/entropy" in numbers


@pytest.mark.parametrize(("option", "package"), [("--wandb", "wandb"), ("--mlflow", "mlflow")])
def test_a_client_that_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*TRAIN, option]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"the package {package} is not installed, expected it; run: pip install {package}")


@pytest.mark.parametrize(("option", "package"), [("--wandb", "wandb"), ("--mlflow", "mlflow")])
def test_a_service_that_refuses_a_run_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, package: str
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ValueError("No API key configured.\nUse a key.")

    client = Client(package)
    client.init = client.set_experiment = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, client)
    assert main([*TRAIN, option]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{option}: ValueError: No API key configured, expected a service that accepts runs" in line
