"""Every example runs to its end, with nothing on stderr, and its last line tells what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.house.sources import ROOT, python_files
from tests.warm_python import run_warm


def outcome_of(
    name: str, *arguments: str, seconds: str = "0.1", seed: int = 3, cold: bool = False
) -> tuple[dict[str, Any], str]:
    """Run an example and return its JSON and everything it printed; `cold` has it import everything itself."""
    command = [f"examples/{name}.py", "--seconds", seconds, "--seed", str(seed), "--json", *arguments]
    if cold:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
    else:
        done = run_warm(command)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert outcome["seed"] == seed
    assert outcome["seconds"] > 0
    return outcome, done.stdout


@pytest.mark.slow
def test_tictactoe_counts_the_losses_of_the_best_weights(tmp_path: Path) -> None:
    outcome, printed = outcome_of("tictactoe", "--run-dir", str(tmp_path / "run"))
    assert (tmp_path / "run" / "checkpoints" / "LATEST").is_file()
    assert outcome["games"] == 2000
    by_seat = [outcome[f"losses_vs_random_as_{seat}"] for seat in ("player1", "player2")]
    assert outcome["losses_vs_random"] == sum(by_seat)
    assert 0 <= outcome["losses_vs_random"] <= 2000
    assert 0 <= outcome["losses_vs_perfect"] <= 2000
    assert outcome["losing_lines"] >= 0
    assert outcome["env_steps"] >= 2048
    assert "X" in printed


@pytest.mark.slow
def test_tictactoe_loses_at_most_one_game_in_a_hundred_after_half_a_minute(tmp_path: Path) -> None:
    outcome, _ = outcome_of("tictactoe", "--run-dir", str(tmp_path / "run"), seconds="30")
    assert outcome["losses_vs_random_as_player1"] <= 10
    assert outcome["losses_vs_random_as_player2"] <= 10


@pytest.mark.slow_unless("arguments1")
@pytest.mark.parametrize("arguments", [("--workers", "1", "--overlap"), ("--workers", "0")])
def test_workers_share_out_a_simulator(arguments: tuple[str, ...]) -> None:
    outcome, printed = outcome_of("workers", *arguments)
    assert outcome["env_steps"] == 1600
    assert 0 < outcome["mean_return"] < 50
    assert "a second" in printed


@pytest.mark.slow
def test_cartpole_is_solved() -> None:
    outcome, _ = outcome_of("cartpole", seconds="60")
    assert outcome["solved"] is True


def test_traffic_trains_cars_and_lights() -> None:
    outcome, printed = outcome_of("traffic")
    assert set(outcome["policy_reward_mean"]) == {"cars", "lights"}
    assert outcome["env_steps"] >= 2000
    assert printed.count("\n") > 5


@pytest.mark.parametrize("arguments", [(), pytest.param(("--two-trainers",), marks=pytest.mark.slow)])
def test_two_algorithms_train_on_one_road(arguments: tuple[str, ...]) -> None:
    outcome, _ = outcome_of("ppo_and_dqn", *arguments)
    assert set(outcome["policy_reward_mean"]) == {"cars", "lights"}
    assert outcome["env_steps"] >= 2048 * (1 + len(arguments))


def test_cartpole_reports_its_return_after_each_iteration() -> None:
    outcome, printed = outcome_of("cartpole", cold=True)
    assert outcome["solved"] is False
    assert 5 < outcome["mean_return"] < 450
    assert "mean return" in printed


@pytest.mark.parametrize(("agents", "policies"), [pytest.param("2", "1", marks=pytest.mark.slow), ("5", "3")])
def test_policy_mapping_shares_the_agents_out_among_the_policies(agents: str, policies: str) -> None:
    outcome, _ = outcome_of("policy_mapping", "--num-agents", agents, "--num-policies", policies)
    assert set(outcome["policy_reward_mean"]) == {f"policy_{number}" for number in range(int(policies))}


def test_the_corridor_written_from_scratch_is_solved() -> None:
    outcome, _ = outcome_of("custom_env", seconds="30")
    assert outcome["solved"] is True
    assert outcome["mean_steps"] <= 13


def test_levels_of_agents_train_side_by_side() -> None:
    outcome, printed = outcome_of("hierarchical")
    for name in ("flat", "two_levels", "three_levels"):
        assert outcome[name]["solved"] is False
        assert outcome[name]["env_steps"] >= 4096
        assert -2.01 < outcome[name]["return"] < 0.5
        assert name in printed


@pytest.mark.slow
def test_levels_of_agents_learn_what_their_example_says() -> None:
    outcome, _ = outcome_of("hierarchical", seconds="60")
    assert all(outcome[name]["solved"] for name in ("flat", "two_levels", "three_levels"))


def test_self_play_prints_the_win_rate_of_each_iteration_and_of_its_exam() -> None:
    outcome, printed = outcome_of("self_play")
    assert outcome["opponents"] == 1
    assert 0.3 < outcome["won"] <= 1.0
    assert "iteration 1: " in printed
    assert f"{outcome['won']:.1%} won" in printed.splitlines()[-2]


@pytest.mark.parametrize(
    "opponents", [pytest.param(["always_same"], marks=pytest.mark.slow), ["beat_last_move", "always_same"]]
)
def test_rock_paper_scissors_counts_the_points_against_each_opponent(opponents: list[str]) -> None:
    outcome, printed = outcome_of("rock_paper_scissors", "--opponents", *opponents)
    assert list(outcome["points"]) == opponents
    assert all(-10.0 <= points <= 10.0 for points in outcome["points"].values())
    assert outcome["env_steps"] >= 2048
    assert all(name in printed for name in opponents)


def test_rock_paper_scissors_draws_curves_and_writes_them_for_tensorboard(tmp_path: Path) -> None:
    picture, runs = tmp_path / "points.png", tmp_path / "runs"
    outcome_of("rock_paper_scissors", "--model", "lstm", "--plot", str(picture), "--logdir", str(runs))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [file.name.startswith("events") for file in runs.iterdir()] == [True]


def test_the_two_step_game_prints_what_qmix_reaches_and_independent_learners_beside_it() -> None:
    outcome, printed = outcome_of("two_step_game")
    assert {outcome["qmix"], outcome["independent"]} <= {0.0, 1.0, 7.0, 8.0}
    assert "qmix: " in printed
    assert "independent: " in printed


@pytest.mark.slow
def test_qmix_reaches_the_best_return_of_the_two_step_game() -> None:
    outcome, _ = outcome_of("two_step_game", seconds="8")
    assert outcome["qmix"] == 8.0


def test_a_step_of_one_policy_changes_the_layers_that_it_shares_with_another() -> None:
    outcome, printed = outcome_of("shared_layers")
    assert set(outcome["policy_reward_mean"]) == {"careful", "hasty"}
    parts = [f"{number}.{part}" for number in (0, 1) for part in ("bias", "weight")]
    assert outcome["changed"] == [f"{role}.{part}" for role in ("policy", "value") for part in parts]
    assert "the first steps of 'careful' changed" in printed


@pytest.mark.parametrize("way", ["postprocess", "critic_obs"])
def test_central_critics_are_trained_beside_independent_learners(way: str) -> None:
    outcome, printed = outcome_of("centralized_critic", "--way", way)
    assert list(outcome["returns"]) == [way, "independent"]
    assert all(0.0 <= mean <= 8.0 for mean in outcome["returns"].values())
    assert f"{way}: return" in printed


@pytest.mark.slow
@pytest.mark.parametrize("way", ["postprocess", "critic_obs"])
def test_central_critics_find_the_best_return_of_the_two_step_game(way: str) -> None:
    outcome, _ = outcome_of("centralized_critic", "--way", way, seconds="15")
    assert outcome["returns"][way] == 8.0


@pytest.mark.slow
def test_an_observation_function_shows_a_critic_what_the_policy_ignores() -> None:
    outcome, _ = outcome_of("centralized_critic_2", seconds="5")
    assert outcome["return"] == 8.0


@pytest.mark.slow
def test_a_stored_policy_acts_in_another_cartpole_through_two_connectors() -> None:
    outcome, printed = outcome_of("adapt_policy", seconds="3")
    assert outcome["mean_return"] >= 100.0
    assert "Seen" in printed


@pytest.mark.slow
def test_logs_of_a_clever_and_a_careless_policy_are_read() -> None:
    outcome, printed = outcome_of("offline_logs")
    assert outcome["careless"] < outcome["clever"]
    assert 5 < outcome["learned"] <= 500
    assert "mean returns" in printed


@pytest.mark.slow
def test_logs_alone_teach_more_than_the_careless_policy_knew() -> None:
    outcome, _ = outcome_of("offline_logs", seconds="40")
    assert outcome["learned"] > outcome["careless"] + 50


@pytest.mark.slow
def test_a_shoal_gathers() -> None:
    distances: list[float] = []
    # A machine that is busy comes to one iteration in the first of these times.
    for seconds in ("3", "30"):
        outcome, printed = outcome_of("shoal", seconds=seconds)
        distances = [float(line.split()[-2]) for line in printed.splitlines()[:-1]]
        if len(distances) > 2:
            break
    assert distances[-1] < distances[0]
    assert outcome["mean"] == pytest.approx(-50 * distances[-1], abs=0.05)


@pytest.mark.slow
def test_pistons_train_on_pictures() -> None:
    outcome, printed = outcome_of("pistonball")
    assert set(outcome["policy_reward_mean"]) <= {"default_policy"}
    assert outcome["num_env_steps_sampled"] >= 512
    assert "policy_reward_mean" in printed


@pytest.mark.slow
def test_pistons_push_the_ball_to_the_left() -> None:
    outcome, _ = outcome_of("pistonball", seconds="60")
    assert outcome["policy_reward_mean"]["default_policy"] > 80.0


def test_every_example_is_tested_here() -> None:
    names = {path.stem for path in python_files(ROOT, ("examples",))}
    tested = {
        "tictactoe",
        "traffic",
        "cartpole",
        "policy_mapping",
        "custom_env",
        "hierarchical",
        "ppo_and_dqn",
    }
    critics = {"centralized_critic", "centralized_critic_2"}
    others = {
        "adapt_policy",
        "self_play",
        "rock_paper_scissors",
        "shared_layers",
        "two_step_game",
        "pistonball",
        "offline_logs",
        "shoal",
        "workers",
    }
    # `tests/serving/test_serving_examples.py` starts these in pairs.
    pairs = {f"{name}_{end}" for name in ("cartpole", "rllink", "unity3d") for end in ("server", "client")}
    # `tests/playing` starts `examples/browser_tictactoe/play.py` with a real browser.
    assert names == tested | critics | others | pairs | {"play"}
