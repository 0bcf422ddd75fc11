"""What is learned of rock-paper-scissors by who sees the opponent's last hand alone, with a memory and without."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from examples.rock_paper_scissors import CONFIG, MODELS
from menv import Episode
from menv.algorithms import PPO
from menv.envs import RockPaperScissors
from tests.learning.runs import SEEDS

pytestmark = pytest.mark.slow

BOTH = ("always_same", "beat_last_move")
ROUNDS = 250_000
# Who draws its hand by the one that it sees, and remembers nothing, wins 1.24 points of ten from `BeatLastMove` at best
# (the best of 12 numbers, looked for from 12 beginnings); a mean of 1,000 episodes scatters by 0.1.
WITHOUT_A_MEMORY = 1.6


def points_of(seed: int, model: str, opponents: tuple[str, ...]) -> dict[str, float]:
    """Return the points against each opponent, means of the last 1,000 episodes."""

    def policy_for(agent_id: str, episode: Episode) -> str:
        return "learner" if agent_id == "player1" else str(episode.rng.choice(opponents))

    policies = {name: CONFIG["multiagent"]["policies"][name] for name in ("learner", *opponents)}
    config: dict[str, Any] = {
        **CONFIG, "seed": seed, "model": MODELS[model], "metrics_num_episodes_for_smoothing": 1000,
        "multiagent": {"policies": policies, "policy_mapping_fn": policy_for},
    }  # fmt: skip
    with PPO(env=RockPaperScissors, config=config) as algorithm:
        result = algorithm.train()
        while result["num_env_steps_sampled"] < ROUNDS:
            result = algorithm.train()
    return {name: -result["policy_reward_mean"][name] for name in opponents}


def median_points(model: str, *opponents: str) -> dict[str, float]:
    """Return the median of three seeds' points against each opponent."""
    found = [points_of(seed, model, opponents) for seed in SEEDS]
    return {name: statistics.median(points[name] for points in found) for name in opponents}


def test_without_a_memory_it_beats_one_that_always_shows_the_same_hand() -> None:
    assert median_points("feed_forward", "always_same")["always_same"] >= 7.0


def test_without_a_memory_it_hardly_beats_one_that_beats_its_last_hand() -> None:
    assert -1.0 <= median_points("feed_forward", "beat_last_move")["beat_last_move"] <= WITHOUT_A_MEMORY


def test_without_a_memory_it_beats_only_one_of_them_when_it_meets_both() -> None:
    points = median_points("feed_forward", *BOTH)
    assert points["always_same"] >= 7.0
    assert points["beat_last_move"] <= WITHOUT_A_MEMORY


def test_a_recurrent_policy_beats_both() -> None:
    points = median_points("lstm", *BOTH)
    assert min(points.values()) >= 5.0
