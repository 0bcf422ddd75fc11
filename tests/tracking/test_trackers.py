"""Trackers: what they log by the official clients without a network, and what is said without these."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from menv.algorithms import PPO
from menv.cli.main import main
from menv.envs.connect_four import ConnectFour
from menv.errors import MissingExtraError
from menv.tracking import CSV, JSONL, MLflow, Run, TensorBoard, WeightsAndBiases
from menv.wrappers import RecordEpisodes

SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}
TRAIN = [
    "train", "tictactoe", "--no-save", "--stop", "training_iteration=1",
    "--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64",
]  # fmt: skip
RECORDED = """
from menv.envs.connect_four import ConnectFour
from menv.wrappers import RecordEpisodes


def game(context):
    return RecordEpisodes(ConnectFour({"render_mode": "rgb_array"}), "run/videos", every=100)
"""


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


@pytest.mark.slow
def test_both_services_have_settings_curves_videos_and_checkpoints_of_a_run_without_a_network(
    tmp_path: Path,
) -> None:
    (tmp_path / "game.py").write_text(RECORDED)
    services = {
        "WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": (tmp_path / "ml").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "menv.cli", "train", "game.py:game", "--stop", "training_iteration=2", "--run-dir", "run",
        "--wandb", "games", "--mlflow", "games", "--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **services}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "raised" not in done.stderr
    mean = Run(tmp_path / "run").progress()["episode_reward_mean"][-1]

    (run,) = (path.parent for path in (tmp_path / "ml").glob("*/*/params"))
    assert (run / "params/sgd_minibatch_size").read_text() == "64"
    _, value, step = (run / "metrics/return/mean").read_text().splitlines()[-1].split()
    assert (float(value), step) == (mean, "128")
    assert (run / "artifacts/videos/episode-000000.gif").stat().st_size > 100
    assert (run / "artifacts/checkpoints/000002/manifest.json").is_file()

    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    written = path.read_bytes()
    # A record that crosses a block of 32 KiB continues after a header of 7 bytes.
    joined = b"".join(written[at + 7 : at + 2**15] for at in range(0, len(written), 2**15))
    run_id = path.stem.removeprefix("run-").encode()
    parts = (
        b"sgd_minibatch_size",
        b"return/mean",
        f"{mean}".encode(),
        b"videos/episode-000000",
        b"checkpoint-" + run_id,
    )
    assert [part for part in parts if part not in joined] == []
    assert list(path.parent.rglob("*.gif"))


def test_trackers_are_callbacks_of_a_config(tmp_path: Path) -> None:
    def env(context: Any) -> Any:
        return RecordEpisodes(ConnectFour({"render_mode": "rgb_array"}), tmp_path / "videos", every=100)

    trackers = [
        CSV(tmp_path / "new" / "progress.csv"), JSONL(tmp_path / "results.jsonl"),
        TensorBoard(tmp_path / "events", videos=tmp_path / "videos"),
    ]  # fmt: skip
    with PPO(env=env, config={**SMALL, "callbacks": trackers}) as algo:
        results = [algo.train() for _ in range(2)]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["digest"] for line in lines] == [result["digest"] for result in results]
    columns, *rows = (tmp_path / "new" / "progress.csv").read_text().splitlines()
    mean = columns.split(",").index("episode_reward_mean")
    assert [float(row.split(",")[mean]) for row in rows] == [one["episode_reward_mean"] for one in results]
    reader = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [one.step for one in reader.Scalars("return/mean")] == [64, 128]
    assert b"sgd_minibatch_size" in reader.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    (video,) = reader.Images("videos/episode-000000")
    assert video.encoded_image_string == (tmp_path / "videos" / "episode-000000.gif").read_bytes()


def test_a_service_follows_train_as_callbacks_and_travels_to_workers_without_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", client)
    tracker = MLflow("games")
    with PPO(env="tictactoe", config={**SMALL, "callbacks": [tracker]}) as algo:
        algo.train()
    assert [name for name, _, _ in client.calls] == [
        "set_experiment",
        "start_run",
        "log_params",
        "log_metrics",
    ]
    # A module is no part of a pickle.
    assert isinstance(pickle.loads(pickle.dumps(tracker)), MLflow)


@pytest.mark.parametrize(
    ("tracker", "package", "begin", "end"),
    [(WeightsAndBiases, "wandb", "init", "finish"), (MLflow, "mlflow", "start_run", "end_run")],
)
def test_a_service_begins_a_run_for_each_call_of_learn_or_refuses_it_before_the_training(
    monkeypatch: pytest.MonkeyPatch, tracker: Any, package: str, begin: str, end: str
) -> None:
    client, service = Client(package), tracker("games")
    monkeypatch.setitem(sys.modules, package, client)
    with PPO(env="tictactoe", config=SMALL) as algo:
        algo.learn(64, trackers=[service])
        algo.learn(128, trackers=[service])
        assert [name for name, _, _ in client.calls if name in (begin, end)] == [begin, end] * 2
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtraError, match=f"the package {package} is not installed"):
            algo.learn(192, trackers=[service])
        assert algo.iteration == 2


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
