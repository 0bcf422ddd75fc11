"""What a file holds reaches no terminal as a command: what is not printable is shown escaped."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from menv.algorithms import PPO
from menv.cli.main import main
from tests.cli.test_sweep import SWEEP

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\u202e\x9b31m"
"""A title, a cleared screen, a line that is written again, text from right to left, and a colour in one byte."""
SHOWN = r"\x1b]0;owned\x07\x1b[2J\r\u202e\x9b31m"
SMALL: dict[str, Any] = {"rollout_fragment_length": 16, "train_batch_size": 32, "sgd_minibatch_size": 32}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("received") / "run"
    with PPO(env="tictactoe", config={**SMALL, "model": {"fcnet_hiddens": [4]}}) as algo:
        algo.learn(32, run_dir=place)
    return place


def texts_in(tree: Any, *path: Any) -> Iterator[list[Any]]:
    """Yield the places of the texts of a JSON value."""
    if isinstance(tree, str):
        yield list(path)
    elif isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from texts_in(tree[key], *path, key)


def put(tree: Any, path: list[Any]) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = HOSTILE


def is_harmless(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


def said_by(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with suppress(SystemExit):
        main([*map(str, arguments)])
    said = capsys.readouterr()
    assert is_harmless(said.out), (arguments, said.out)
    assert is_harmless(said.err), (arguments, said.err)
    return said.out + said.err


def test_no_text_of_a_run_commands_the_terminal(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    settings = json.loads((run / "config.json").read_text())
    for path in texts_in(settings):
        if path[:1] == ["config"] and len(path) > 2:
            continue
        changed = json.loads(json.dumps(settings))
        put(changed, path)
        (folder / "config.json").write_text(json.dumps(changed))
        said_by(capsys, "show", folder)
        said_by(capsys, "report", folder)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "digest.txt").write_text(HOSTILE)
    assert SHOWN in said_by(capsys, "show", folder)
    for name in ("config.json", "results.jsonl", "progress.csv", "command.txt", "checkpoints/LATEST"):
        before = (run / name).read_bytes()
        for content in (
            HOSTILE.encode(),
            before.replace(b",", b"," + HOSTILE.encode(), 1),
            b"\x9b\xff" + before,
        ):
            (folder / name).write_bytes(content)
            for command in ("show", "report", "evaluate"):
                said_by(capsys, command, folder)
        (folder / name).write_bytes(before)


@pytest.mark.parametrize(
    "command",
    [
        ["train", "tictactoe", "--no-save", "--config", "FILE.json"],
        ["train", "tictactoe", "--no-save", "--config", "FILE.toml"],
        ["train", "tictactoe", "--no-save", "--config", f"lr={HOSTILE}"],
        ["train", "tictactoe", "--no-save", "--config", HOSTILE],
        ["train", HOSTILE, "--no-save"],
        ["train", f"{HOSTILE}:Class", "--no-save"],
        ["train", "tictactoe", "--no-save", "--run", HOSTILE],
        ["train", "--resume", HOSTILE],
        ["train", "tictactoe", "--import", f"{HOSTILE}.py"],
        ["sweep", "FILE.toml"],
        ["sweep", "SWEEP.toml"],
        ["replay", "CAPSULE.json", "--env", "tictactoe"],
        ["replay", "ENV.json"],
        ["replay", HOSTILE],
        ["show", HOSTILE],
        ["report", HOSTILE],
        ["plot", HOSTILE],
        ["check", HOSTILE],
        ["verify", HOSTILE],
        ["export", HOSTILE],
        ["serve", HOSTILE],
        ["serve", "tictactoe", "--token-file", HOSTILE],
        ["watch", HOSTILE],
        ["play", HOSTILE],
        ["envs", HOSTILE],
        ["doctor", HOSTILE],
        [HOSTILE],
    ],
)  # fmt: skip
def test_no_argument_and_no_file_that_one_names_commands_the_terminal(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE.json").write_text(json.dumps({HOSTILE: 1, "lr": HOSTILE}))
    Path("FILE.toml").write_text(f"{json.dumps(HOSTILE)} = 1\n")
    Path("SWEEP.toml").write_text(SWEEP.replace('env = "', f'env = "{json.dumps(HOSTILE)[1:-1]}', 1))
    capsule = {
        "kind": "menv crash capsule", "version": 1, "config": {}, "where": "step", "line": HOSTILE, "actions": [],
        "origin": [HOSTILE, HOSTILE, 1], "traceback": HOSTILE, "arrays": {}, "versions": {}, "env": "unknown",
        "env_config": {}, "algorithm": HOSTILE, "worker_index": 0, "vector_index": 0, "num_workers": 0, "seed": 1,
        "env_index": 0, "began": 0,
    }  # fmt: skip
    Path("CAPSULE.json").write_text(json.dumps(capsule))
    Path("ENV.json").write_text(json.dumps({**capsule, "env": HOSTILE}))
    assert said_by(capsys, *command)
