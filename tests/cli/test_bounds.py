"""`--stop`: bounds that no result will ever come to are refused, those that may come later are waited for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from menv.algorithms.training.learn import StopRule
from menv.cli.main import main

SMALL = ["--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64"]
OFTEN = ["--config", "evaluation_interval=2", "--config", "evaluation_duration=2"]


def never(result: Mapping[str, Any], key: str) -> str:
    return StopRule({key: 1.0}, evaluates=True).impossible(result)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("policy_reward_mean", "policy_reward_mean/default_policy"),
        ("group_reward_mean", "group_reward_mean"),
        ("digest", " str "),
        ("hist_stats/episode_reward", " list "),
        ("episode_len", "episode_len_mean"),
        ("training_iteration/sum", " training_iteration?"),
        ("external/open_episodes", "docs/reference/results.md"),
        ("evaluation/episode_reward_mean", "--config evaluation_interval=5"),
    ],
)
def test_a_bound_that_no_result_comes_to_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], key: str, why: str
) -> None:
    assert main(["train", "tictactoe", *SMALL, "--stop", f"{key}=-5"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"menv train: error: stop {key}: ")
    assert why in said


def test_a_bound_that_an_evaluation_shows_to_be_wrong_costs_no_iteration(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["--stop", "evaluation/episode_rewards_mean=5", "--run-dir", "run"]
    assert main(["train", "tictactoe", *SMALL, *OFTEN, *wrong]) == 2
    assert "evaluation/episode_reward_mean" in capsys.readouterr().err
    assert Path("run/checkpoints/LATEST").read_text().strip() == "000002"


def test_a_bound_on_evaluations_is_waited_for(folder: Path) -> None:
    assert main(["train", "tictactoe", *SMALL, *OFTEN, "--stop", "evaluation/episode_len_mean=1"]) == 0


def test_agents_that_are_called_by_numbers_are_found(folder: Path) -> None:
    numbers = ["--config", "env_config.numbers=true", "--stop", "agent_reward_mean/1=3"]
    assert main(["train", "corridors:Seats", *SMALL, *numbers]) == 0


def test_what_agents_policies_and_callbacks_may_have_later_is_waited_for() -> None:
    result: dict[str, Any] = {
        "custom_metrics": {}, "policy_reward_mean": {"first": 0.0}, "episode_reward_mean": None,
        "info": {"first": {"kl": 0.1}, "learner": {"first": {"learner_stats": {"kl": 0.1}, "custom_metrics": {}}}},
    }  # fmt: skip
    for key in (
        "custom_metrics/worth_mean",
        "policy_reward_mean/second",
        "episode_reward_mean",
        "info/second/kl",
        "info/learner/second/learner_stats/kl",
        "info/learner/first/custom_metrics/own",
        "evaluation/episode_reward_mean",
    ):
        assert never(result, key) == ""
