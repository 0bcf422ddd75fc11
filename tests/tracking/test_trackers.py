"""Trackers: what they log by the official clients, what a service that goes away costs, what resumed runs continue."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from menv import DefaultCallbacks
from menv.algorithms import PPO
from menv.cli.main import main
from menv.envs import TicTacToe
from menv.tracking import CSV, JSONL, MLflow, Run, TensorBoard, Tracker, WeightsAndBiases
from menv.wrappers import RecordEpisodes
from tests.later import Later
from tests.tracking.wandb_server import wandb_server
from tests.worlds import Several

if TYPE_CHECKING:
    from tests.tracking.mlflow_server import Server

wandb, in_wandb, mlflow = (
    Later("wandb"),
    Later("tests.tracking.wandb_file"),
    Later("tests.tracking.mlflow_server"),
)
event_files = Later("tensorboard.backend.event_processing.event_accumulator")

ROOT = Path(__file__).parents[2]

SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}
TRAIN = [
    "train", "tictactoe", "--no-save", "--stop", "training_iteration=1",
    "--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64",
]  # fmt: skip
RECORDED = """
from menv.envs import TicTacToe
from menv.wrappers import RecordEpisodes


def game(context):
    return RecordEpisodes(TicTacToe({"render_mode": "rgb_array"}), "run/videos", every=100)
"""


class Agents(Several):
    """Agents with the given names: the first is paid 0, the next one 1, and so on, once."""

    length = 1

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.possible_agents = list(context["names"])

    def pay(self, actions: Any) -> Any:
        return {agent: float(place) for place, agent in enumerate(self.possible_agents)}


class After(Tracker):
    """Does something after an iteration."""

    def __init__(self, iteration: int, does: Callable[[], object]) -> None:
        self.iteration, self.does = iteration, does

    def result(self, result: Mapping[str, Any]) -> None:
        if result["training_iteration"] == self.iteration:
            self.does()


def interrupt() -> None:
    raise KeyboardInterrupt


class Breaks(DefaultCallbacks):
    def on_train_result(self, *, result: Any, **kwargs: Any) -> None:
        if result["training_iteration"] == 2:
            raise RuntimeError("no such file")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with mlflow.mlflow_server(tmp_path / "ml") as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        yield server


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    # W&B reads its settings once.
    wandb.teardown()
    yield tmp_path
    wandb.teardown()


def run_of(tmp_path: Path, iterations: int, *trackers: Tracker, **config: Any) -> None:
    with PPO(env="tictactoe", config={**SMALL, **config}) as algo:
        algo.learn(stop={"training_iteration": iterations}, run_dir=tmp_path / "run", trackers=trackers)


@pytest.mark.slow_unless("hangs")
@pytest.mark.parametrize("goes", ["hangs", "is killed"])
def test_training_and_signals_do_not_wait_for_a_service_that_goes_away(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture, goes: str
) -> None:
    away = After(2, server.answers.clear if goes == "hangs" else server.close)
    # If the third iteration waited for the service, the eighth one would not come.
    with pytest.raises(KeyboardInterrupt):
        run_of(tmp_path, 9, away, MLflow("games"), After(8, interrupt))
    assert (tmp_path / "run/checkpoints/000008").is_dir()
    (line,) = (one.message for one in caplog.records if "not sent: " in one.message)
    # The second result was sent, or was under way.
    assert re.search(r"mlflow: not sent: [67] results, 1 checkpoint, 1 end \(", line)


def test_ctrl_c_does_not_wait_for_a_tracker(tmp_path: Path) -> None:
    ended = []

    def is_slow() -> None:
        signal.raise_signal(signal.SIGINT)
        ended.append("the result was logged")

    with pytest.raises(KeyboardInterrupt):
        run_of(tmp_path, 4, After(2, is_slow))
    assert ended == []
    assert (tmp_path / "run/checkpoints/000002").is_dir()


def test_a_service_that_answers_again_has_the_whole_run(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    run_of(tmp_path, 6, After(2, server.breaks.set), MLflow("games"), After(6, server.breaks.clear))
    (run,) = server.runs()
    assert server.steps(run) == [64, 128, 192, 256, 320, 384]
    assert run.info.status == "FINISHED"
    assert "not sent" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("service", ["mlflow", "wandb"])
def test_sigterm_saves_and_ends_a_run_whose_service_hangs(
    tmp_path: Path, server: Server, service: str
) -> None:
    command = [
        sys.executable, "-m", "menv.cli", *TRAIN[:2], "--run-dir", "run", f"--{service}", "--save-every", "1",
        *TRAIN[5:],
    ]  # fmt: skip
    with (
        wandb_server(server.answers) as address,
        subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "HOME": str(tmp_path), "WANDB_BASE_URL": address, "WANDB_API_KEY": "k" * 40},
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("saved"):
                server.answers.clear()
                break
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"{service}: not sent: " in said
    assert "menv train --resume run" in said
    assert Run(tmp_path / "run").progress()["training_iteration"][-1] == int(
        (tmp_path / "run" / "checkpoints" / "LATEST").read_text()
    )


NAMES = [
    "/robot_1",
    "a/../b",
    "..",
    ".",
    "",
    "a:b",
    "a#b",
    "a_b",
    "//",
    "x" * 300,
    "x" * 301,
    "é" * 200,
    "a\nb",
    "robot 1",
]


def test_each_agent_has_its_curve_in_every_service_whatever_its_name(server: Server, offline: Path) -> None:
    config = {**SMALL, "env_config": {"names": NAMES}}
    with PPO(env=Agents, config=config) as algo:
        algo.learn(64, run_dir="run", trackers=[MLflow("games"), WeightsAndBiases("games")])
    expected = [float(place) for place in range(len(NAMES))]
    (run,) = server.runs()
    (row,) = in_wandb.logged_runs(offline)[0].rows
    table = {name: column[-1] for name, column in Run("run").progress().items()}
    events = event_files.EventAccumulator("run").Reload()
    scalars = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    for numbers in (run.data.metrics, row, scalars):
        of_agents = [
            value for name, value in numbers.items() if name.startswith("return/agent/") and "mean" in name
        ]
        assert sorted(of_agents) == expected
        assert numbers["return/mean"] == sum(expected)
    assert sorted(value for name, value in table.items() if name.startswith("agent_reward_mean/")) == expected
    assert run.data.metrics["return/agent/robot 1/mean"] == len(NAMES) - 1


def test_a_resumed_run_continues_its_runs_and_loses_no_steps(server: Server, offline: Path) -> None:
    with PPO(env="tictactoe", config=SMALL) as algo:
        services = [MLflow("games"), WeightsAndBiases("games")]
        algo.learn(256, run_dir="runs/mine", save_every=2, trackers=services)
    # What a process leaves that was killed after its fourth iteration.
    Path("runs/mine/checkpoints/LATEST").write_text("000002")
    assert main(["train", "--resume", "runs/mine", "--stop", "training_iteration=6"]) == 0
    (run,) = server.runs()
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert server.steps(run) == [64, 128, 192, 256, 192, 256, 320, 384]
    first, second = in_wandb.logged_runs(offline)
    assert (first.name, first.run_id) == ("mine", second.run_id)
    steps = [[row["counts/num_env_steps_sampled"] for row in one.rows] for one in (first, second)]
    assert steps == [[64, 128, 192, 256], [192, 256, 320, 384]]
    events = event_files.EventAccumulator("runs/mine").Reload()
    assert [one.step for one in events.Scalars("return/mean")] == [64, 128, 192, 256, 320, 384]


def test_the_run_of_a_service_that_is_down_is_resumed_without_it(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_of(tmp_path, 1, MLflow("games"))
    server.close()
    with PPO.from_checkpoint(tmp_path / "run") as algo:
        assert algo.learn(128, run_dir=tmp_path / "run")["training_iteration"] == 2
    assert "mlflow: not sent: 1 result, 1 checkpoint, 1 end (" in caplog.text


def test_services_know_how_a_run_ended(server: Server, offline: Path) -> None:
    with PPO(env="tictactoe", config={**SMALL, "callbacks": Breaks}) as algo, pytest.raises(RuntimeError):
        algo.learn(256, trackers=[MLflow("games"), WeightsAndBiases("games")])
    with PPO(env="tictactoe", config=SMALL) as algo, pytest.raises(KeyboardInterrupt):
        algo.learn(256, trackers=[MLflow("games"), WeightsAndBiases("games"), After(2, interrupt)])
    with PPO(env="tictactoe", config=SMALL) as algo:
        algo.learn(128, trackers=[MLflow("games"), WeightsAndBiases("games")])
    assert [run.info.status for run in server.runs()] == ["FAILED", "KILLED", "FINISHED"]
    assert [one.exit_code for one in in_wandb.logged_runs(offline)] == [1, 1, 0]


@pytest.mark.slow_unless("*FAILED")
@pytest.mark.parametrize(("last_line", "status"), [("", "FINISHED"), ("1 / 0", "FAILED")])
def test_a_service_that_follows_train_as_callbacks_ends_with_the_process(
    tmp_path: Path, server: Server, last_line: str, status: str
) -> None:
    code = f"""
from menv.algorithms import PPO
from menv.tracking import MLflow

if __name__ == "__main__":
    config = {{**{SMALL!r}, "callbacks": [MLflow("games")], "num_workers": 1, "engine": "process"}}
    with PPO(env="tictactoe", config=config) as algo:
        algo.train()
        algo.train()
        {last_line}
"""
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=200
    )
    assert done.returncode == bool(last_line)
    (run,) = server.runs()
    assert (server.steps(run), run.info.status) == ([64, 128], status)


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
        return RecordEpisodes(TicTacToe({"render_mode": "rgb_array"}), tmp_path / "videos", every=100)

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
    reader = event_files.EventAccumulator(str(tmp_path / "events")).Reload()
    assert [one.step for one in reader.Scalars("return/mean")] == [64, 128]
    assert b"sgd_minibatch_size" in reader.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    (video,) = reader.Images("videos/episode-000000")
    assert video.encoded_image_string == (tmp_path / "videos" / "episode-000000.gif").read_bytes()


@pytest.mark.parametrize(("option", "package"), [("--wandb", "wandb"), ("--mlflow", "mlflow")])
def test_a_client_that_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*TRAIN, option]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"the package {package} is not installed; run: pip install {package}")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_service_that_refuses_a_run_is_one_line_and_leaves_no_folder(tmp_path: Path, package: str) -> None:
    command = [sys.executable, "-m", "menv.cli", *TRAIN[:2], "--run-dir", "run", *TRAIN[3:], f"--{package}"]
    # W&B misses its key, and no server listens at port 1.
    settings = {
        "HOME": str(tmp_path), "MLFLOW_TRACKING_URI": "http://127.0.0.1:1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert re.search(rf"--{package}: \w+: .+, expected a service that accepts runs; see the settings", line)
    assert not (tmp_path / "run").exists()
