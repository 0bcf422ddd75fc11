"""Own environments and classes of a run are used again after consent, and nothing is imported without it."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from menv.cli.main import main
from tests.checkpoints.forged import forge
from tests.inside import registered

SMALL = ["--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64", "--config", "seed=1"]
ONCE = [*SMALL, "--stop", "training_iteration=1"]
CODE = """
from pathlib import Path
from menv import DefaultCallbacks
from corridors import Corridor

class Note(DefaultCallbacks):
    pass

Path(__file__).with_suffix(".imported").touch()
"""


NEXT = {"evaluate": True, "report": False, "watch": True}
"""The commands that `train` ends with, and whether they import the environment."""


@pytest.fixture
def run(folder: Path) -> Iterator[str]:
    """A run of an own environment with own callbacks; its module is not imported any more."""
    (folder / "own_game.py").write_text(CODE)
    arguments = ["own_game:Corridor", "--config", "callbacks=@own_game:Note", *ONCE, "--run-dir", "run"]
    assert main(["train", *arguments]) == 0
    forget(folder)
    yield "run"
    sys.modules.pop("own_game", None)


def forget(folder: Path) -> None:
    for name in ("own_game", "corridors"):
        sys.modules.pop(name, None)
    (folder / "own_game.imported").unlink(missing_ok=True)


def printed_command(error: str) -> list[str]:
    """Return the arguments of the command that an error ends with."""
    program, *arguments = shlex.split(error.strip().rpartition(": ")[2])
    assert program == "menv"
    return arguments


@pytest.mark.parametrize(
    "command", ["evaluate run --episodes 2", "train --resume run --stop training_iteration=2"]
)
def test_the_command_that_the_error_prints_uses_what_the_run_names(
    run: str, folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    capsys.readouterr()
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert "own_game:Corridor, own_game:Note: menv " in error
    assert not Path("own_game.imported").exists()
    assert main(printed_command(error)) == 0
    assert "own_game:Corridor, own_game:Note" in capsys.readouterr().err
    assert Path("own_game.imported").exists()


def test_the_commands_that_a_run_ends_with_import_its_environment(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "own_game.py").write_text(CODE)
    assert main(["train", "own_game:Corridor", *ONCE, "--run-dir", "run"]) == 0
    lines = capsys.readouterr().err.splitlines()
    forget(folder)
    commands = {
        name: shlex.split(line.split(": ")[1]) for line in lines for name in NEXT if f" {name}: " in line
    }
    assert {name: "--trust" in command for name, command in commands.items()} == NEXT
    assert main(commands["evaluate"][1:]) == 0


def test_callbacks_are_not_needed_to_evaluate(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", run, "--env", "corridors:Corridor", "--episodes", "2"]) == 0
    assert capsys.readouterr().out.startswith("2 episodes, mean return 3.00")
    assert not Path("own_game.imported").exists()


def test_modules_of_the_command_are_imported_with_consent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "corridor", "--import", "corridors.py", *ONCE, "--run-dir", "run"]) == 0
    Path("run/command.txt").write_text("menv train corridor --import corridors.py\n")
    del registered()["corridor"]
    forget(folder)
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "1"]) == 2
    error = capsys.readouterr().err
    assert "corridors.py: menv evaluate run --episodes 1 --trust" in error
    assert main(printed_command(error)) == 0


def test_what_has_no_name_is_typed_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "league.py").write_text("policy_for = lambda agent_id, *args, **kwargs: 'default_policy'\n")
    mapping = ["--config", "multiagent.policy_mapping_fn=@league:policy_for"]
    assert main(["train", "tictactoe", *mapping, *ONCE, "--run-dir", "run"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--trust"]) == 2
    assert capsys.readouterr().err.endswith("; add --config multiagent.policy_mapping_fn=@module:name\n")
    assert main(["evaluate", "run", "--episodes", "1", *mapping]) == 0
    evaluated = ["--config", "evaluation_config.multiagent.policy_mapping_fn=@league:policy_for"]
    assert main(["train", "tictactoe", *evaluated, *ONCE, "--run-dir", "other"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "other"]) == 2
    key = "evaluation_config.multiagent.policy_mapping_fn=@module:name"
    assert capsys.readouterr().err.endswith(f"; add --config {key}\n")
    assert main(["evaluate", "other", "--episodes", "1", *evaluated]) == 0


def test_of_a_forged_run_only_the_shown_names_are_imported(
    run: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        (folder / f"{name}_canary.py").write_text(CODE)
    forged = folder / "000001"
    shutil.copytree(folder / "run/checkpoints/000001", forged)
    forge(forged, "manifest.json", ["config", "env"], "first_canary:Corridor")
    forge(
        forged,
        "manifest.json",
        ["config", "model", "custom_model"],
        {"$named": "an instance of second_canary:Note"},
    )
    for command in (
        ["evaluate"],
        ["train", "--stop", "training_iteration=2", "--run-dir", "new", "--resume"],
    ):
        capsys.readouterr()
        assert main([*command, "000001"]) == 2
        assert not list(folder.glob("*.imported"))
        assert main([*command, "000001", "--trust"]) == 2
        shown = capsys.readouterr().err
        assert "first_canary:Corridor, own_game:Note" in shown
        assert {one.stem for one in folder.glob("*.imported")} <= {"first_canary", "own_game"}
        for one in folder.glob("*.imported"):
            one.unlink()
        for module in ("first_canary", "own_game"):
            sys.modules.pop(module, None)


@pytest.mark.parametrize("env", ["pettingzoo:classic/tictactoe_v3", "openspiel:tic_tac_toe"])
def test_environments_of_installed_libraries_need_no_trust(
    folder: Path, capsys: pytest.CaptureFixture[str], env: str
) -> None:
    assert main(["train", env, *ONCE, "--no-zoo", "--run-dir", "run"]) == 0
    assert "--trust" not in capsys.readouterr().err
    assert main(["evaluate", "run", "--episodes", "2"]) == 0
    assert main(["train", "--resume", "run", "--stop", "training_iteration=2"]) == 0
