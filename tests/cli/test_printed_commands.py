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
from tests.house.sources import ROOT
from tests.warm_python import run_warm

SMALL = ["--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64", "--config", "seed=1"]
ONCE = [*SMALL, "--stop", "training_iteration=1"]
RUN = "my runs/one"
PLACES = {
    "menv/algorithms/training/crash_capsules.py",  # test_the_command_of_a_crash_capsule_repeats_the_fault
    "menv/cli/train.py",  # tests/cli/test_sweep.py
    "menv/cli/show.py",  # test_export_copies_policies_that_need_no_torch
    "menv/cli/sweep.py",  # tests/cli/test_sweep.py
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
    if arguments[0] not in ("train", "serve"):
        done = run_warm(["-m", "menv.cli", *arguments], Path.cwd())
        assert done.returncode == 0, done.stdout + done.stderr
        return True
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
    assert status == 128 + signal.SIGINT, "".join(said)
    return True


@pytest.fixture(autouse=True)
def _own(folder: Path) -> Iterator[None]:
    yield
    sys.modules.pop("corridors", None)


ENDS = {
    "tictactoe": {"play"},
    "tictactoe --self-play": {"play", "match"},
    "corridors:Duel --self-play": {"play", "match"},
    "corridors:Corridor": set(),
}
"""What runs end with beside the commands that all have."""


@pytest.mark.slow_unless("tictactoe")
@pytest.mark.parametrize("env", ENDS)
def test_the_commands_that_a_run_ends_with(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *env.split(), *ONCE, "--run-dir", RUN]) == 0
    commands = printed(capsys.readouterr().err)
    assert commands.keys() == {"evaluate", "report", "watch"} | ENDS[env]
    for arguments in commands.values():
        assert works(arguments)


@pytest.mark.slow
def test_the_commands_of_errors_about_people_and_matches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error names what is missing; what it says is added until the command works."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["train", "corridors:Duel", "--self-play", *ONCE, "--run-dir", RUN]) == 0
    capsys.readouterr()
    for command in (["play", RUN], ["watch", RUN], ["match", f"{RUN}:easy", RUN]):
        for _ in range(3):
            sys.modules.pop("corridors", None)
            if main(command) == 0:
                break
            error = capsys.readouterr().err.splitlines()[-1]
            whole = re.search(r": menv (.*)$", error)
            command = (
                shlex.split(whole[1]) if whole else [*command, *shlex.split(error.rpartition("write ")[2])]
            )
        assert works(command)
    said = f"{main(['play', RUN, '--as', 'a', '--trust'])}{capsys.readouterr().err}"
    option = re.search(r"with (--[a-z-]+)$", said, re.M)
    assert option
    assert works(["play", RUN, "--as", "a", "--trust", option[1]])


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
