"""`python -m menv.checking`: what it prints and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from menv.cli.arguments import run_command
from menv.cli.environments import check as main
from menv.registry import register_env
from tests.house.sources import ROOT

DOUBLES = "tests.checking.test_check_env:Doubles"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "menv.checking", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


class Crashes:
    def __init__(self, context: Any) -> None:
        raise RuntimeError(f"size {context.get('size')}")


def test_a_right_environment_exits_0() -> None:
    done = run("tictactoe")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "tictactoe: nothing found\n"


def test_a_warning_is_a_line_and_exits_0() -> None:
    done = run(DOUBLES)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith("ME034 warning, env step 0: ")


def test_an_error_exits_1_and_json_is_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    register_env("crashes", Crashes)
    assert main(["crashes", "--json", "--config", '{"size": 5}']) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert set(found) == {"code", "severity", "step", "message", "fix"}
    assert (found["code"], found["severity"], found["step"]) == ("ME092", "error", None)
    assert "RuntimeError: size 5" in found["message"]


def test_ignored_codes_neither_show_nor_count(capsys: pytest.CaptureFixture[str]) -> None:
    register_env("crashes", Crashes)
    assert main(["crashes", "--ignore", "ME012, ME092"]) == 0
    assert capsys.readouterr().out == "crashes: nothing found\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no_such_env"],
        ["tictactoe", "--config", "[1]"],
        ["tictactoe", "--config", "{"],
        ["tictactoe", "--ignore", "ME999"],
        ["tictactoe", "--steps", "0"],
        ["tictactoe", "--steps", "many"],
        ["tictactoe", "--seed", "-1"],
    ],
    ids=str,
)
def test_a_wrong_call_exits_2_with_a_line_on_stderr(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        sys.exit(run_command("python -m menv.checking", lambda: main(arguments)))
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "python -m menv.checking: error:" in printed.err


def test_settings_in_single_quotes_show_the_json_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tictactoe", "--config", "{'size': 5}"])
    assert "{'size': 5}" in (said := capsys.readouterr().err)
    assert "line 1 column 2" in said
