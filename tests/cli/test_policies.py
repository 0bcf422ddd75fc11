"""`--policies` and `--policy`: which policies a run has, and that they come back without being typed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from menv.cli.main import main

SMALL = [
    "--config",
    "train_batch_size=64",
    "--config",
    "sgd_minibatch_size=32",
    "--stop",
    "training_iteration=1",
]


def policies_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the agents' returns of a run's only iteration, by policy."""
    capsys.readouterr()
    assert main(["train", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[0])["policy_reward_mean"]


@pytest.mark.slow_unless("options1-*", "options2-*")
@pytest.mark.parametrize(
    ("options", "policies"),
    [
        (["--policies", "auto"], {"car", "light_0"}),
        (["--policies", "per-agent"], {"car_0", "car_1", "light_0"}),
        (["--policy", "car_*=cars", "--policy", "light_*=lights:DQN"], {"cars", "lights"}),
        (
            ["--policy", "car_0=first", "--policy", "car_*=cars", "--policy", "*=rest"],
            {"first", "cars", "rest"},
        ),
    ],
)
def test_a_run_has_the_policies_that_the_options_say_also_after_it_is_resumed(
    options: list[str], policies: set[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = ["corridors:Crowd"]
    assert set(policies_of(capsys, *env, *options, *SMALL, "--run-dir", "run")) == policies
    again = [*env, "--resume", "run", "--stop", "training_iteration=2"]
    assert set(policies_of(capsys, *again)) == policies
    assert main(["evaluate", "run", "--env", *env, "--episodes", "2", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["policy_reward_mean"]) == policies


@pytest.mark.parametrize(("env", "policy"), [("tictactoe", "player"), ("CartPole-v1", "default_policy")])
def test_agents_with_equal_spaces_share_a_policy_named_without_their_numbers(
    env: str, policy: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(policies_of(capsys, env, "--policies", "auto", *SMALL, "--no-save", "--no-zoo")) == {policy}


def test_runs_of_one_seed_are_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        policies_of(capsys, "CartPole-v1", "--seed", seed, *SMALL, "--run-dir", run)
    first, second, other = (Path(run, "digest.txt").read_text() for run in "abc")
    assert first == second != other


@pytest.mark.parametrize(
    ("option", "value"),
    [("--policy", "cars"), ("--policy", "*=a:"), ("--seed", "-1"), ("--policies", "each")],
)
def test_an_option_that_cannot_be_read_is_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["train", "tictactoe", option, value])
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: " in said
    assert value != "each" or "per-agent" in said


def test_envs_lists_names_of_every_kind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "--import", "corridors"]) == 0
    found = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert found["corridor"] == "registered"
    assert found["tictactoe"] == "built-in"
    assert found["CartPole-v1"] == "gymnasium"
    assert found["pettingzoo:mpe/simple_spread_v3"] == "pettingzoo"
    assert found["openspiel:leduc_poker"] == "openspiel"
    assert found["jumanji:LevelBasedForaging-v0"] == "jumanji"
    assert main(["envs", "TicTacToe"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "tictactoe",
        "pettingzoo:classic/tictactoe_v3",
    ]
    assert main(["envs", "leduk_poker"]) == 2
    assert "'openspiel:leduc_poker'" in capsys.readouterr().err


def test_envs_without_other_libraries_lists_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("pettingzoo", "mpe2", "pyspiel", "jaxmarl", "jumanji", "pgx", "vmas"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["envs"]) == 0
    assert {line.split()[-1] for line in capsys.readouterr().out.splitlines()} <= {
        "registered", "built-in", "gymnasium",
    }  # fmt: skip


@pytest.mark.slow_unless("pettingzoo*", "corridors*")
@pytest.mark.parametrize(
    "name", ["pettingzoo:classic/rps_v2", "openspiel:kuhn_poker", "corridors.py:Corridor"]
)
def test_check_and_verify_take_all_names(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", name, "--steps", "50"]) == 0
    assert main(["verify", name, "--steps", "64", "--envs", "2"]) == 0
    assert "error" not in capsys.readouterr().out
