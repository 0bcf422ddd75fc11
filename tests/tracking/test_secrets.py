"""Secrets of settings: they stand in checkpoints of the run folder, and in nothing else that a run writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from menv.algorithms import PPO
from menv.cli.main import main
from menv.errors import ConfigError
from menv.tracking import Run

SECRETS = ("hunter2222", "passw0rd", "abcdefgh", "evaluat0r", "of-the-environment", "1234")
SETTINGS = {
    "env_config": {"api_token": SECRETS[0], "url": f"postgres://me:{SECRETS[1]}@host/x", "size": 3},
    "evaluation_config": {"env_config": {"accessKey": SECRETS[3]}},
}
TRAIN = [
    sys.executable, "-m", "menv.cli", "train", "tictactoe", "--run-dir", "run", "--stop", "training_iteration=1",
    "--config", json.dumps(SETTINGS), "--config", f"env_config.db.password={SECRETS[2]}",
    "--config", 'env_config.other={"pass_token": "1234"}', "--wandb", "games", "--mlflow", "games",
    "--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64",
    "--config", f"env_config.said={SECRETS[4]}",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and with what W&B and MLflow wrote of it."""
    place = tmp_path_factory.mktemp("secrets")
    services = {
        "WANDB_MODE": "offline", "WANDB_DATA_DIR": str(place / "staged"), "WANDB_CACHE_DIR": str(place / "cache"),
        "MLFLOW_TRACKING_URI": (place / "ml").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true",
        "GAME_TOKEN": SECRETS[4],
    }  # fmt: skip
    done = subprocess.run(
        TRAIN, cwd=place, env={**os.environ, **services}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "not sent" not in done.stderr
    return place


def holding(folder: Path, secret: str) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and secret.encode() in path.read_bytes():
            yield str(path.relative_to(folder))


@pytest.mark.parametrize("secret", SECRETS[:-1])
def test_only_the_checkpoint_of_a_run_holds_its_secrets(folder: Path, secret: str) -> None:
    assert main(["report", str(folder / "run")]) == 0
    elsewhere = [one for one in holding(folder, secret) if not one.startswith("run/checkpoints/")]
    assert elsewhere == []
    assert list(holding(folder / "run/checkpoints", secret)) == ["000001/manifest.json"]


def test_settings_that_are_not_secret_are_logged(folder: Path) -> None:
    config = Run(folder / "run").config["config"]
    assert config["env_config"]["size"] == 3
    assert config["env_config"]["api_token"] == "<left out>"
    (param,) = folder.glob("ml/*/*/params/env_config.size")
    assert param.read_text() == "3"
    command = Run(folder / "run").command
    assert "env_config.db.password=<left out>" in command
    assert """'env_config.other={"pass_token": "<left out>"}'""" in command
    assert "train_batch_size=64" in command


def test_show_leaves_secrets_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder / "run")]) == 0
    shown = capsys.readouterr().out
    assert "<left out>" in shown
    assert [secret for secret in SECRETS[:4] if secret in shown] == []


def test_a_checkpoint_resumes_with_its_secrets_and_a_logged_one_asks_for_them(folder: Path) -> None:
    with PPO.from_checkpoint(folder / "run") as algo:
        assert algo.config.env_config["api_token"] == "hunter2222"
    (artifact,) = folder.glob("ml/*/*/artifacts/checkpoints/000001")
    with pytest.raises(ConfigError, match="api_token"):
        PPO.from_checkpoint(artifact)
    given = {"env_config": {"api_token": "another"}, "evaluation_config": None}
    with PPO.from_checkpoint(artifact, config=given) as algo:
        assert algo.iteration == 1
