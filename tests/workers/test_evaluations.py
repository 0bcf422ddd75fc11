"""Evaluations that workers play: the same episodes as in one process, in less time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from menv import DefaultCallbacks, PolicySpec, RandomPolicy
from menv.algorithms import PPO
from menv.errors import EnvCrashError, EnvFaultWarning
from tests.engines.processes import lives
from tests.workers.crews import PLAYERS, ROADS, Counting, Dying, running, same, weights_of

GAMES: dict[str, dict[str, Any]] = {
    "one agent": {"env": "CartPole-v1"},
    "means of observations": {"env": "CartPole-v1", "observation_filter": "MeanStdFilter"},
    "turns": {"env": "tictactoe", "multiagent": PLAYERS},
    "agents that leave": {"env": "traffic", "multiagent": ROADS},
    "env steps": {"env": "CartPole-v1", "evaluation_duration_unit": "timesteps", "evaluation_duration": 90},
    "recurrent": {
        "env": "CartPole-v1",
        "model": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8},
    },
    "own torch": {"env": "CartPole-v1", "inference": "torch"},
}


class Noting(DefaultCallbacks):
    """Notes who plays in evaluations."""

    def on_episode_end(self, *, worker: Any, episode: Any, **kwargs: Any) -> None:
        """Tell where it was."""
        episode.custom_metrics["played_by"] = worker.worker_index
        episode.custom_metrics["of"] = worker.num_workers


def evaluated(players: int, each: int, rounds: int = 3, **settings: Any) -> list[dict[str, Any]]:
    """Return what evaluations between iterations told."""
    settings = {"evaluation_duration": 7, "evaluation_config": {"num_envs_per_worker": each}} | settings
    with running(0, evaluation_num_workers=players, **settings) as algo:
        found = []
        for _ in range(rounds):
            algo.train()
            found.append(algo.evaluate()["evaluation"])
        return found


@pytest.mark.slow_unless("recurrent")
@pytest.mark.parametrize("game", GAMES)
def test_two_workers_play_what_one_process_plays(game: str) -> None:
    assert evaluated(2, 2, **GAMES[game]) == evaluated(0, 4, **GAMES[game])


def test_training_notices_nothing_of_it() -> None:
    def trained(**settings: Any) -> Any:
        with running(1, **settings) as algo:
            result = [algo.train() for _ in range(3)][-1]
            return weights_of(algo), result["digest"]

    plain, beside = trained(), trained(evaluation_num_workers=1, evaluation_interval=1)
    assert same(plain[0], beside[0])
    assert plain[1] == beside[1]


def test_episodes_are_spread_over_the_workers_and_their_callbacks_are_told() -> None:
    with running(0, evaluation_num_workers=3, callbacks=Noting, evaluation_duration=9) as algo:
        metrics = algo.evaluate()["evaluation"]["custom_metrics"]
    assert (metrics["played_by_min"], metrics["played_by_mean"], metrics["played_by_max"]) == (1, 2, 3)
    assert metrics["of_mean"] == 3


def test_policies_that_come_and_another_mapping_are_known_to_workers() -> None:
    def to(name: str) -> Any:
        return lambda agent_id, episode, worker, **kwargs: name

    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to("one")}
    with running(0, evaluation_num_workers=2, multiagent=multiagent) as algo:
        assert set(algo.evaluate()["evaluation"]["policy_reward_mean"]) == {"one"}
        algo.add_policy("random", PolicySpec(RandomPolicy), policy_mapping_fn=to("random"))
        assert set(algo.evaluate()["evaluation"]["policy_reward_mean"]) == {"random"}
    own = {"multiagent": {"policy_mapping_fn": to("two")}}
    with running(0, evaluation_num_workers=2, multiagent=multiagent, evaluation_config=own) as algo:
        algo.train()
        assert set(algo.evaluate()["evaluation"]["policy_reward_mean"]) == {"two"}


def test_a_worker_that_dies_is_replaced_and_all_episodes_are_played(tmp_path: Path) -> None:
    settings = {"env": Counting, "evaluation_duration": 8, "evaluation_num_workers": 2}
    own = {"evaluation_config": {"env": Dying, "env_config": {"flag": str(tmp_path / "died")}}}
    with running(0, **settings, **own) as algo:
        with pytest.warns(EnvFaultWarning, match=r"evaluation worker 2.*another worker was started"):
            found = algo.evaluate()["evaluation"]
        assert found["hist_stats"]["episode_lengths"] == [5] * 8
        assert found["num_faulty_episodes"] == 2
        assert algo.evaluate()["evaluation"]["hist_stats"]["episode_lengths"] == [5] * 8


def test_an_environment_that_cannot_be_made_there_is_named(tmp_path: Path) -> None:
    with running(0, env=Counting, evaluation_num_workers=1, evaluation_config={"env": NoMap}) as algo:
        with pytest.raises(EnvCrashError, match="the map is missing"):
            algo.evaluate()
        assert algo.train()["episodes_total"] > 0


class NoMap(Counting):
    """Cannot be made."""

    def __init__(self, config: Any) -> None:
        raise OSError("the map is missing")


def resumed(path: Path, players: int, each: int) -> Mapping[str, Any]:
    """Return what a restored run's next evaluation tells."""
    changes = {"evaluation_num_workers": players, "evaluation_config": {"num_envs_per_worker": each}}
    with PPO.from_checkpoint(path, config=changes) as algo:
        return dict(algo.evaluate()["evaluation"])


def test_a_restored_run_plays_the_next_evaluation_wherever_it_is_played(tmp_path: Path) -> None:
    settings = {"evaluation_num_workers": 2, "evaluation_config": {"num_envs_per_worker": 2}}
    with running(0, **settings) as algo:
        for _ in range(2):
            algo.evaluate()
        algo.save(tmp_path)
        after = algo.evaluate()["evaluation"]
    assert resumed(tmp_path, 2, 2) == after
    assert resumed(tmp_path, 0, 4) == after
    # With other sub-environments it plays other episodes, as many.
    assert resumed(tmp_path, 1, 3)["episodes_total"] == 30


def test_stop_ends_the_processes() -> None:
    with running(0, env=Telling, evaluation_num_workers=2, evaluation_duration=4) as algo:
        pids = {int(reward) for reward in algo.evaluate()["evaluation"]["hist_stats"]["episode_reward"]}
        assert len(pids) == 2
        assert all(map(lives, pids))
    assert not any(map(lives, pids))


class Telling(Counting):
    """Pays the id of its process in its first step."""

    def step(self, action: Any) -> Any:
        import os

        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(os.getpid() if self.at == 1 else 0), terminated, truncated, info


@pytest.mark.slow_unless("2")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_play_with_the_weights_of_before_while_an_iteration_trains(num_workers: int) -> None:
    class Order(DefaultCallbacks):
        heard: list[str] = []  # noqa: RUF012

        def on_evaluate_end(self, **kwargs: Any) -> None:
            self.heard.append("end")

        def on_learn_on_batch(self, **kwargs: Any) -> None:
            self.heard.append("learn")

    settings = {"evaluation_num_workers": 2, "evaluation_duration": 6, "observation_filter": "MeanStdFilter"}
    beside = {"evaluation_interval": 2, "evaluation_parallel_to_training": True, "callbacks": Order}
    with running(num_workers, **settings, **beside) as algo:
        results = [algo.train() for _ in range(5)]
    assert ["evaluation" in result for result in results] == [False, True, False, True, False]
    assert Order.heard == ["learn", "learn", "end"] * 2 + ["learn"]
    with running(num_workers, **settings) as algo:
        for result in results[:4]:
            if "evaluation" in result:
                assert algo.evaluate()["evaluation"] == result["evaluation"]
            algo.train()
    assert results[1]["evaluation"]["episodes_this_iter"] == 6


@pytest.mark.slow
def test_what_was_begun_is_saved_with_the_run_and_forgotten_after_an_error(tmp_path: Path) -> None:
    class Stops(DefaultCallbacks):
        def on_learn_on_batch(self, **kwargs: Any) -> None:
            if not (tmp_path / "stopped").exists():
                (tmp_path / "stopped").touch()
                raise ZeroDivisionError("no learning today")

    settings = {
        "evaluation_num_workers": 2,
        "evaluation_interval": 1,
        "evaluation_parallel_to_training": True,
    }
    with running(0, callbacks=Stops, **settings) as algo:
        with pytest.raises(ZeroDivisionError):
            algo.train()
        algo.save(tmp_path / "run")
        assert algo.evaluate()["evaluation"]["episodes_total"] == 10
        assert algo.train()["evaluation"]["episodes_this_iter"] == 10
    with PPO.from_checkpoint(tmp_path / "run", config={"callbacks": None}) as algo:
        assert algo.train()["evaluation"]["episodes_total"] == 10


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
def test_evaluations_are_played_on_ray_as_in_processes() -> None:
    assert evaluated(2, 2, 1, engine="ray") == evaluated(2, 2, 1)


# Evaluations beside training: what happens while workers play.
