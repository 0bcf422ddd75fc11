"""Every command that menv prints runs as it is printed, in a folder whose name has a blank."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.cli import train as training
from menv.cli.main import COMMANDS, main
from menv.errors import ConfigError, EnvCrashError
from menv.serving import PolicyServerInput
from menv.tracking import Run
from tests.house.sources import ROOT

SMALL = ["--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64", "--config", "seed=1"]
ONCE = [*SMALL, "--stop", "training_iteration=1"]
RUN = "my runs/one"
PLACES = {
    "menv/algorithms/training/crash_capsules.py",  # test_the_command_of_a_crash_capsule_repeats_the_fault
    "menv/cli/show.py",  # test_export_copies_policies_that_need_no_torch
    "menv/cli/sweep.py",  # tests/cli/test_sweep.py
    "menv/cli/train.py",
    "menv/tracking/run_folder.py",
}
"""Files that print whole commands; here, or in the tests named behind them, the commands are run."""
COMMAND = re.compile(rf"(?<!\()menv (?:{'|'.join(COMMANDS)}) (?=--\w|$)")


def printed(text: str) -> dict[str, list[str]]:
    """Return the arguments of the commands in a text, by the word before each."""
    return {
        name: shlex.split(command)[1:] for name, command in re.findall(r"^  (\w+): (menv .*)$", text, re.M)
    }


def works(arguments: list[str]) -> bool:
    """Run a command of menv in a process of its own, without a terminal; one that trains for ever is interrupted."""
    said = []
    with subprocess.Popen(
        [sys.executable, "-m", "menv.cli", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "listening at" in line or (arguments[0] == "train" and "mean return" in line):
                process.send_signal(signal.SIGINT)
        status = process.wait(60)
    ended = 128 + signal.SIGINT if arguments[0] in ("train", "serve") else 0
    assert status == ended, "".join(said)
    return True


@pytest.fixture(autouse=True)
def _own(folder: Path) -> Iterator[None]:
    yield
    sys.modules.pop("corridors", None)


@pytest.mark.slow_unless("tictactoe")
@pytest.mark.parametrize("env", ["tictactoe", "corridors:Corridor"])
def test_the_commands_that_a_run_ends_with(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", env, *ONCE, "--run-dir", RUN]) == 0
    commands = printed(capsys.readouterr().err)
    expected = {"evaluate", "report", "watch"} | ({"play"} if env == "tictactoe" else set())
    assert commands.keys() == expected
    for arguments in commands.values():
        assert works(arguments)


def interrupted(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `menv train` or `menv serve` in this process until its first iteration is over."""

    def stop(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("menv.algorithms.algorithm.Algorithm.train", stop)
        assert main(arguments) == 128 + signal.SIGINT


def test_the_command_that_resumes_an_interrupted_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["--config", "callbacks=@corridors:Note", "--import", "corridors"]
    interrupted(["train", "corridor", *SMALL, *settings, "--run-dir", RUN], monkeypatch)
    resume = printed(capsys.readouterr().err)["resume"]
    assert resume == ["train", "--resume", RUN, "--trust"]
    assert works(resume)


def by_clients() -> None:
    """Begin a run of a program that is a server, without an environment."""
    spaces = {
        "observation_space": gym.spaces.Box(-1, 1, (3,), np.float32),
        "action_space": gym.spaces.Discrete(2),
    }
    source = {"input": lambda ioctx: PolicyServerInput(ioctx, port=0, idle_timeout=0.05)}
    with PPO(config={**source, **spaces, "seed": 1}) as algo:
        algo.learn(stop={"training_iteration": 1}, run_dir=RUN)


def test_a_served_run_of_a_program_ends_with_the_command_that_serves_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_clients()
    served = ["serve", RUN, "--port", "0"]
    interrupted(served, monkeypatch)
    commands = printed(capsys.readouterr().err)
    # Without an environment nothing can be evaluated.
    assert commands == {"resume": served, "report": ["report", RUN]}
    assert works(commands["resume"])
    assert works(commands["report"])


def test_a_served_checkpoint_continues_in_the_run_folder_that_it_got(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with PPO(env="tictactoe", config={"seed": 1}) as algo:
        algo.save("saved")
    interrupted(["serve", "saved", "--port", "0"], monkeypatch)
    said = capsys.readouterr().err
    (own,) = Path("runs").iterdir()
    assert printed(said)["resume"] == ["serve", str(own), "--port", "0"]
    assert works(printed(said)["resume"])


def test_the_command_of_an_error_about_a_used_folder() -> None:
    assert main(["train", "tictactoe", *ONCE, "--run-dir", RUN]) == 0
    with PPO(env="tictactoe", config={"seed": 1}) as algo, pytest.raises(ConfigError) as raised:
        algo.learn(stop={"training_iteration": 1}, run_dir=RUN)
    command = str(raised.value).rpartition(" with menv ")[2]
    assert works(shlex.split(command))


def test_the_command_of_a_crash_capsule_repeats_the_fault() -> None:
    Path("falling.py").write_text(
        "from corridors import Corridor\nfrom menv import register_env\n\n"
        "class Falling(Corridor):\n    def step(self, action):\n        raise OSError('fell')\n\n"
        "register_env('falling', Falling)\n"
    )
    sys.path.insert(0, os.getcwd())
    try:
        from falling import Falling  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    for env, options in ((Falling, ["--env", "falling:Falling"]), ("falling", ["--import", "falling"])):
        with (
            PPO(env=env, config={"seed": 1, "restart_failed_sub_environments": False}) as algo,
            pytest.raises(EnvCrashError) as raised,
        ):
            algo.learn(100, run_dir=f"{RUN}-{options[0]}")
        arguments = shlex.split(str(raised.value).rpartition("replay it with: menv ")[2])
        assert arguments[2:] == options
        assert works(arguments)
    sys.modules.pop("falling")


@pytest.mark.parametrize("name", [b"run-\xff", b"it's \\ \xc3\xa9\xff9", b"\x1b[31mred", b"two\nlines"])
def test_the_commands_of_a_run_whose_path_is_no_text_run_in_a_shell(
    name: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path, settings = os.fsdecode(name), os.fsdecode(name + b".json")
    Path(settings).write_text('{"seed": 1}')
    assert main(["train", "tictactoe", *ONCE, "--config", settings, "--run-dir", path]) == 0
    said = capsys.readouterr().err
    assert "\x1b" not in said
    (report,) = re.findall("^  report: menv report (.*?)\n(?=  watch)", said, re.MULTILINE | re.DOTALL)
    # What a shell gets, as a terminal shows the characters.
    assert words_of(f"menv report {report}") == [b"menv", b"report", name]
    typed = os.fsencode(shlex.join(["menv", "train", "--config", settings]))
    Path(path, "command.txt").write_bytes(typed)
    assert os.fsencode(Run(path).command) == typed
    with PPO(env="tictactoe", config={"seed": 1}) as algo, pytest.raises(ConfigError) as raised:
        algo.learn(stop={"training_iteration": 1}, run_dir=path)
    command = str(raised.value).rpartition(" with ")[2]
    assert words_of(command) == [b"menv", b"train", b"--resume", name]


def words_of(command: str) -> list[bytes]:
    """Return the words that a shell makes of a command that is copied from a terminal."""
    script = f"printf '%s\\0' {command}".encode()
    done = subprocess.run(["bash"], input=script, capture_output=True, check=True)
    return done.stdout.split(b"\0")[:-1]


def test_the_examples_of_the_help_are_taken() -> None:
    examples = [line.strip() for line in training._EXAMPLES.splitlines()[1:]]
    Path("settings.toml").touch()
    for example in examples:
        with contextlib.redirect_stderr(io.StringIO()):
            assert training.train_parser("menv train").parse_args(shlex.split(example)[2:])


def test_no_other_file_of_the_library_prints_a_command() -> None:
    found = set()
    for path in sorted((ROOT / "menv").rglob("*.py")):
        for one in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = one.value if isinstance(one, ast.Constant) else None
            words = [getattr(word, "value", None) for word in one.elts] if isinstance(one, ast.List) else []
            if (isinstance(text, str) and COMMAND.search(text)) or words[:1] == ["menv"]:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == PLACES
