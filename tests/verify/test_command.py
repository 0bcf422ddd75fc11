"""`python -m menv.verify`: what it prints and how it exits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial

import pytest

from menv.cli.arguments import run_command
from menv.cli.environments import verify as main
from menv.verify.verify import BACKENDS, verify_backends
from tests.house.sources import ROOT

SHORT = ["--envs", "2", "--steps", "60"]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "menv.verify", *arguments]
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_an_environment_that_is_the_same_everywhere_exits_0() -> None:
    done = run("CartPole-v1", *SHORT)
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = done.stdout.splitlines()
    assert first == "'CartPole-v1': the same everywhere (2 environments, 60 env steps, seed 0)"
    # Ray was not asked for.
    assert others.pop().startswith("  left out, workers (ray): Ray does not run")
    assert len({line.rpartition(": ")[2] for line in others}) == 1


@pytest.mark.parametrize(
    "hash_seed", ["1", *[pytest.param(seed, marks=pytest.mark.slow) for seed in ("2", "random")]]
)
def test_an_environment_with_differences_exits_1_and_names_them(hash_seed: str) -> None:
    # Whoever fixes the hashes of all processes is told, too.
    done = run("tests.verify.unsteady:Hashed", *SHORT, PYTHONHASHSEED=hash_seed)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"workers \(process\): .*env 0, env step 0, agent 'agent0'", done.stdout)


def test_seeds_and_settings_are_those_of_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = []
    here = partial(verify_backends, backends=BACKENDS[:2])
    monkeypatch.setattr("menv.verify.verify.verify_backends", here)
    for more in ([], ["--seed", "3"], ["--config", '{"explore": false}']):
        assert main(["tests.verify.unsteady:Walk", *SHORT, *more]) == 0
        printed.append(capsys.readouterr().out.splitlines()[1])
    assert len(set(printed)) == 3


def test_settings_that_are_not_json_are_refused_with_the_position(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tictactoe", "--config", "{bad"])
    assert re.search(r"'\{bad' .*line 1 column 2", capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no_such_env"],
        ["tictactoe", "--config", "[1]"],
        ["tictactoe", "--config", "{"],
        ["tictactoe", "--steps", "0"],
    ],
    ids=str,
)
def test_a_wrong_call_exits_2_with_a_line_on_stderr(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        sys.exit(run_command("python -m menv.verify", lambda: main(arguments)))
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "python -m menv.verify: error:" in printed.err
