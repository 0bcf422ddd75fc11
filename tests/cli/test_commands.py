"""The other commands, and what the command as a whole imports and returns."""

import io
import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from rich.console import Console

import menv
from menv.algorithms import PPO
from menv.cli.main import main
from menv.tracking.progress import LiveTable
from tests.house.test_importing import heavy_modules_after, python
from tests.inside import registered


def trained(folder: str, *arguments: str) -> None:
    small = ["--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64"]
    assert (
        main(["train", *arguments, *small, "--no-zoo", "--stop", "training_iteration=1", "--run-dir", folder])
        == 0
    )


def test_evaluate_plays_as_many_episodes_as_it_is_asked_to(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("run", "tictactoe", "--policies", "per-agent")
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["episodes_this_iter"] == 7
    assert len(told["hist_stats"]["policy_player1_reward"]) == 7
    assert main(["evaluate", "run/checkpoints/000001", "--episodes", "7"]) == 0
    first, *policies = capsys.readouterr().out.splitlines()
    assert first.startswith("7 episodes, mean return 0.00 (0.00 to 0.00)")
    assert [line.split()[0] for line in policies] == ["player1", "player2"]


def test_evaluate_takes_settings_and_an_environment_that_the_checkpoint_cannot_know(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(
        "run", "corridor", "--import", "corridors", "--config", "num_workers=1", "--config", "engine=process"
    )
    capsys.readouterr()
    longer = ["--config", "evaluation_config.env_config.length=5"]
    assert main(["evaluate", "run", "--import", "corridors", "--episodes", "3", *longer]) == 0
    spread = "standard deviation 0.00, 95 % interval 5.00 to 5.00"
    said = f"3 episodes, mean return 5.00 (5.00 to 5.00), {spread}, 5.0 env steps long\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("command", ["train", "check", "verify"])
def test_a_name_that_nobody_registered_brings_the_option_that_imports_who_does(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    try:
        status = main([command, "qqq_nothing"])
    except SystemExit as ended:
        status = int(str(ended.code))
    last = capsys.readouterr().err.splitlines()[-1]
    assert (status, last.rpartition("; ")[2][:15]) == (2, "--import MODULE")
    assert last.startswith(f"menv {command}: error: env: 'qqq_nothing' ")


def test_evaluate_and_show_name_a_folder_that_holds_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    for command in ("evaluate", "show"):
        for name in ("empty", "gone"):
            assert main([command, name]) == 2
            (said,) = capsys.readouterr().err.splitlines()
            assert said.startswith(f"menv {command}: error: ")
            assert name in said


def test_show_tells_of_a_run_and_of_a_policy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained("run", "tictactoe", "--policies", "per-agent")
    capsys.readouterr()
    assert main(["show", "run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run run"
    place = lines.index("checkpoint run/checkpoints/000001")
    assert "PPO, 1 iterations" in lines[place + 1]
    assert lines[place + 2].split() == ["environment", "tictactoe"]
    assert [line for line in lines if line.startswith("policy")] == ["policy player1", "policy player2"]
    assert main(["show", "run/checkpoints/000001/policies/player2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "policy player2"
    assert lines[2].split() == ["actions", "Discrete(9)"]


def test_show_needs_no_torch_and_checks_every_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PPO(env="CartPole-v1") as algo:
        algo.export_policy_checkpoint("pole")
    code = "from menv.cli.main import main; assert main(['show', 'pole']) == 0"
    shown = python(f"import os, sys; os.chdir({str(folder)!r}); {code}; assert 'torch' not in sys.modules")
    assert shown.returncode == 0, shown.stderr
    weights = Path("pole/weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert main(["show", "pole"]) == 2
    assert "weights.safetensors" in capsys.readouterr().err


def test_check_and_verify_are_those_of_the_modules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "corridors:Corridor"]) == 0
    assert capsys.readouterr().out == "corridors:Corridor: nothing found\n"
    for command in ("check", "verify"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert capsys.readouterr().out.startswith(f"usage: menv {command} ")


def test_nothing_heavy_is_imported_before_a_command_is_known() -> None:
    assert (
        heavy_modules_after("import menv.cli.main", ("torch", "onnx", "onnxruntime", "ray", "rich", "numpy"))
        == []
    )


def test_commands_that_read_runs_and_environments_import_no_server_and_nothing_heavy() -> None:
    servers = ("torch", "onnxruntime", "starlette", "uvicorn")
    assert heavy_modules_after("import menv.cli.environments, menv.cli.reports", servers) == []


def test_the_command_is_installed_and_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = [one for one in entry_points(group="console_scripts") if one.name == "menv"]
    assert script.load() is main
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"menv {menv.__version__}\n"


@pytest.mark.parametrize(("typed", "meant"), [(["--sedd", "3"], "--seed"), (["--epsiodes=3"], "")])
def test_an_unknown_option_is_answered_with_the_nearest_one(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "CartPole-v1", *typed])
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.partition("; ")[2] == (f"did you mean {meant}?" if meant else "")


def test_on_a_terminal_figures_stand_in_tables_and_names_are_no_markup() -> None:
    screen = io.StringIO()
    name = "[bold]first"
    config = {
        "train_batch_size": 64, "sgd_minibatch_size": 64,
        "multiagent": {
            "policies": [name, "learner"],
            "policy_mapping_fn": lambda agent: name if agent == "player1" else "learner",
        },
    }  # fmt: skip
    with PPO(env="tictactoe", config=config) as algo:
        shown = LiveTable(console=Console(file=screen, width=100))
        shown.begin(algo)
        shown.result(algo.train())
        shown.result(algo.train())
        shown.saved(Path("run/[2]"))
        shown.end("")
    text = screen.getvalue()
    assert "mean return" in text
    assert "learning rate" in text
    assert name in text
    assert any(line.startswith(" learner ") for line in text.splitlines())
    assert "saved run/[2]" in text
    assert sum(line.split()[:2] == ["2", "128"] for line in text.splitlines()) >= 1


def test_a_name_that_a_module_registers_is_told_with_how_to_import_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("run", "corridor", "--import", "corridors")
    del registered()["corridor"]
    Path("run/command.txt").unlink()
    assert main(["evaluate", "run"]) == 2
    assert capsys.readouterr().err.endswith("add --import and the module that registers 'corridor'\n")
