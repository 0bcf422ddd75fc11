"""Every example runs to its end, with nothing on stderr, draws a picture into its run folder and prints its outcome."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.house.sources import ROOT, python_files
from tests.warm_python import run_warm

QUICK: dict[str, tuple[str, ...]] = {
    "adapt_policy": (),
    "card_game": (),
    "centralized_critic": (),
    "cartpole": (),
    "custom_env": (),
    "global_state": (),
    "hierarchical": ("--levels", "3"),
    "leduc_poker": (),
    "offline_logs": (),
    "pistonball": (),
    "policy_mapping": ("--num-agents", "3", "--num-policies", "3"),
    "ppo_and_dqn": (),
    "rock_paper_scissors": ("--model", "lstm"),
    "self_play": (),
    "shoal": (),
    "sumo_traffic_lights": ("--days", "1"),
    "tictactoe": (),
    "two_step_game": (),
    "two_trainers": (),
    "vmas_balance": (),
    "workers": ("--num-workers", "0"),
}
"""Flags of a short run of each example."""
SLOW = {
    *("adapt_policy", "card_game", "leduc_poker", "offline_logs", "pistonball", "ppo_and_dqn"),
    *("hierarchical", "rock_paper_scissors", "self_play", "shoal", "sumo_traffic_lights", "tictactoe"),
    *("two_trainers", "vmas_balance", "workers"),
}
ELSEWHERE = {"cartpole_client", "cartpole_server", "rllink_client", "unity3d_client", "unity3d_server"}
"""Examples that `tests/serving/test_serving_examples.py` runs in pairs."""


def outcome_of(name: str, *flags: str, folder: Path, seconds: str = "0.1", seed: int = 3) -> dict[str, Any]:
    """Run an example in a folder and return the JSON that it prints last."""
    script = str(ROOT / "examples" / f"{name}.py")
    done = run_warm([script, "--seconds", seconds, "--seed", str(seed), *flags], folder, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    pictures = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("wrote ")]
    assert pictures
    for picture in pictures:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    return outcome


@pytest.mark.slow_unless(*sorted(set(QUICK) - SLOW))
@pytest.mark.parametrize("name", sorted(QUICK))
def test_an_example_runs_and_draws_a_picture(name: str, tmp_path: Path) -> None:
    assert outcome_of(name, *QUICK[name], folder=tmp_path)


def test_every_example_is_tested_and_says_how_to_run_it() -> None:
    files = {path.stem: path.read_text("utf-8") for path in python_files(ROOT, ("examples",))}
    assert set(files) == {
        *QUICK,
        *ELSEWHERE,
        "shared_layers",
        "connect_four",
        "flags",
        "frozen_server",
        "own_algorithm",
        "person_against_policy",
        "sumo_town",
        "tictactoe_play",
        "windy_maze",
    }
    silent = [name for name, text in files.items() if f"examples/{name}.py" not in text.split('"""')[1]]
    assert silent == ["flags", "tictactoe_play"]


def test_an_example_imports_all_that_it_needs() -> None:
    command = [sys.executable, "examples/cartpole.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert "--seconds" in done.stdout


@pytest.mark.slow
def test_a_frozen_server_answers_a_client(tmp_path: Path) -> None:
    assert outcome_of("frozen_server", folder=tmp_path)["mean_return"] > 5


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "flags", "seconds", "bounds"),
    [
        ("adapt_policy", (), 3, {"mean_return": (100, 500)}),
        ("card_game", (), 40, {"random": (-1, -0.4)}),
        ("cartpole", (), 60, {"mean_return": (450, 500)}),
        ("centralized_critic", ("--way", "critic_obs"), 15, {"central": (8, 8)}),
        ("centralized_critic", ("--way", "postprocess"), 15, {"central": (8, 8)}),
        ("custom_env", (), 30, {"mean_steps": (12, 13)}),
        ("own_algorithm", (), 60, {"mean_return": (450, 500)}),
        ("hierarchical", ("--levels", "1"), 60, {"return": (0.45, 1)}),
        ("hierarchical", ("--levels", "2"), 60, {"return": (0.35, 1)}),
        ("hierarchical", ("--levels", "3"), 60, {"return": (0.85, 1)}),
        ("leduc_poker", (), 40, {"exploitability": (0, 1.5)}),
        ("pistonball", (), 60, {"return": (80, 101)}),
        ("shoal", (), 10, {"mean_distance": (0, 1)}),
        ("two_step_game", (), 8, {"qmix": (8, 8)}),
        ("tictactoe", (), 120, {"losses_vs_random_as_player1": (0, 10), "losses_vs_random_as_player2": (0, 10)}),
    ],
)  # fmt: skip
def test_an_example_learns_what_it_says(
    name: str, flags: tuple[str, ...], seconds: int, bounds: dict[str, tuple[float, float]], tmp_path: Path
) -> None:
    outcome = outcome_of(name, *flags, folder=tmp_path, seconds=str(seconds))
    for key, (low, high) in bounds.items():
        assert low <= outcome[key] <= high, outcome


@pytest.mark.slow
@pytest.mark.alone
def test_learned_traffic_lights_beat_fixed_times_and_the_longest_queue(tmp_path: Path) -> None:
    waits = outcome_of("sumo_traffic_lights", folder=tmp_path, seconds="120")
    assert waits["learned"] < waits["longest_queue"] < waits["fixed_time"]


@pytest.mark.slow
@pytest.mark.alone
def test_logs_teach_more_than_the_careless_policy_knew(tmp_path: Path) -> None:
    outcome = outcome_of("offline_logs", folder=tmp_path, seconds="40")
    assert outcome["careless"] + 50 < outcome["learned"]


def test_shared_layers_change_for_both_policies(tmp_path: Path) -> None:
    outcome = outcome_of("shared_layers", folder=tmp_path)
    parts = [f"{number}.{part}" for number in (0, 1) for part in ("bias", "weight")]
    assert outcome["changed"] == [f"{role}.{part}" for role in ("policy", "value") for part in parts]


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "examples" / "first_steps.ipynb").read_text("utf-8")
    assert '"outputs": []' in text
    assert "SECONDS = 30.0" in text
    notebook = nbformat.reads(text.replace("SECONDS = 30.0", "SECONDS = 0.1"), as_version=4)  # type: ignore[no-untyped-call]
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with warnings.catch_warnings():
        # Of the kernel's client, not of what runs in it.
        warnings.simplefilter("ignore")
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    assert "env steps" in outputs[0]["text"]
    assert any("image/png" in one.get("data", {}) for one in outputs)
    assert not [one for one in outputs if one["output_type"] == "error" or one.get("name") == "stderr"]
