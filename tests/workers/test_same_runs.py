"""One seed is one run, however the sub-environments are spread over workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv import DefaultCallbacks
from menv.algorithms import DQN
from tests.workers.crews import PLAYERS, ROADS, running, same, weights_of

GAMES: dict[str, dict[str, Any]] = {
    "one agent": {"env": "CartPole-v1"},
    "turns, a policy each": {"env": "tictactoe", "multiagent": PLAYERS},
    "turns, one policy": {"env": "tictactoe"},
    "agents that leave": {"env": "traffic", "multiagent": ROADS},
    "recurrent": {
        "env": "CartPole-v1",
        "model": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8},
    },
    "continuous": {"env": "Pendulum-v1"},
    "whole episodes": {"env": "CartPole-v1", "batch_mode": "complete_episodes"},
}


# What is not a part of the run itself.
BY_THE_CLOCK = {"time_this_iter_s", "time_total_s", "sampler_perf", "num_worker_restarts"}


class Looks(DefaultCallbacks):
    """Wants to be told of each episode, so that they are recorded one by one."""

    def on_episode_start(self, **kwargs: Any) -> None:
        """Hear of it."""


def trained(num_workers: int, each: int, iterations: int = 3, **settings: Any) -> tuple[str, Any, Any]:
    """Return the digest of a run, its weights and its results; means reach back over a part of an iteration."""
    window = {"metrics_num_episodes_for_smoothing": 7}
    with running(num_workers, num_envs_per_worker=each, **window, **settings) as algo:
        results = [without_clocks(algo.train()) for _ in range(iterations)]
        return results[-1]["digest"], weights_of(algo), results


def without_clocks(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a result says about the run."""
    kept = {key: value for key, value in result.items() if key not in BY_THE_CLOCK}
    return {**kept, "sampler_results": {**kept["sampler_results"], "sampler_perf": None}}


@pytest.mark.slow_unless("agents that leave")
@pytest.mark.parametrize("game", GAMES)
def test_two_workers_train_bit_identically_to_one_process(game: str) -> None:
    here = trained(0, 4, **GAMES[game])
    there = trained(2, 2, **GAMES[game])
    assert here[0] == there[0]
    assert same(here[1], there[1])
    assert here[2] == there[2]


@pytest.mark.slow_unless("agents that leave")
@pytest.mark.parametrize("game", ["one agent", "agents that leave"])
def test_remote_environments_have_the_results_of_one_process(game: str) -> None:
    here, there = (trained(0, 4, 4, remote_worker_envs=remote, **GAMES[game]) for remote in (False, True))
    assert same(here[1], there[1])
    assert here[2] == there[2]


def test_results_are_those_of_whole_frames_where_callbacks_look_at_episodes() -> None:
    assert trained(0, 4, 4)[2] == trained(0, 4, 4, callbacks=Looks)[2]


def test_one_worker_or_four_train_alike_and_other_seeds_do_not() -> None:
    one, four = trained(1, 4), trained(4, 1)
    assert one[0] == four[0]
    assert same(one[1], four[1])
    assert one[2] == four[2]
    assert trained(1, 4, seed=4)[0] != one[0]


def test_dqn_trains_alike_with_workers() -> None:
    settings = {
        "kind": DQN,
        "train_batch_size": 16,
        "training_intensity": 4,
        "rollout_fragment_length": 4,
        "num_steps_sampled_before_learning_starts": 32,
        "min_sample_timesteps_per_iteration": 32,
    }
    here, there = trained(0, 4, 5, **settings), trained(2, 2, 5, **settings)
    assert here[0] == there[0]
    assert same(here[1], there[1])


def test_fragments_may_be_written_into_and_hold_infos() -> None:
    with running(1, env="tests.workers.crews:Counting") as algo:
        batch = algo.sample()["default_policy"]
        batch["rewards"][:] = 2.0
        assert batch["infos"][0] == {}
        assert set(np.unique(batch["env_id"])) == {0, 1}


def test_overlapped_runs_repeat_too() -> None:
    first, again = (trained(2, 2, 4, overlap=True) for _ in range(2))
    assert first[0] == again[0]
    assert same(first[1], again[1])


def test_workers_begin_with_weights_that_were_set_before_the_first_fragment() -> None:
    with running(1, overlap=True) as algo:
        weights = algo.get_weights()
        moved = {name: {key: value + 0.1 for key, value in own.items()} for name, own in weights.items()}
        algo.set_weights(moved)
        rows = algo.sample()["default_policy"]
        fresh = algo.get_policy().networks.backend.evaluate(0, rows["obs"], None, rows["actions"])
        np.testing.assert_allclose(fresh.logp, rows["action_logp"], atol=1e-5)
        assert (rows["t"][0], rows["unroll_id"][0]) == (0, 0)
