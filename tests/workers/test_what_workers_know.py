"""Policies, connectors, callbacks and names reach workers, and what they learn there comes back."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import (
    DefaultCallbacks,
    PolicySpec,
    RandomPolicy,
    register_env,
)
from menv.algorithms import DQN, PPO
from menv.connectors.connector import register_lambda_agent_connector
from menv.errors import CallOrderError, ConfigError
from tests.checkpoints.runs import SMALL
from tests.workers.crews import PLAYERS, Counting, running, same, weights_of
from tests.worlds import Alone, Several

NAMES = ["default_policy", "newcomer"]


class Counts(DefaultCallbacks):
    """Leaves a number with each episode."""

    def on_episode_end(self, *, worker: Any, episode: Any, **kwargs: Any) -> None:
        episode.custom_metrics["worker"] = float(worker.worker_index)
        episode.media["where"] = worker.worker_index

    def on_postprocess_trajectory(self, *, postprocessed_batch: Any, **kwargs: Any) -> None:
        postprocessed_batch["rewards"] *= 10.0


def to_newcomer(agent_id: Any, episode: Any, *args: Any, **kwargs: Any) -> str:
    return NAMES[1]


def test_adding_policies_is_the_same_run_here_and_in_workers() -> None:
    found = []
    for workers, each in ((0, 4), (2, 2)):
        with running(workers, num_envs_per_worker=each) as algo:
            algo.train()
            algo.add_policy(NAMES[1], policy_mapping_fn=to_newcomer)
            algo.train()
            algo.set_weights({NAMES[1]: algo.get_weights([NAMES[0]])[NAMES[0]]})
            algo.add_policy(
                "own", PolicySpec(policy_class=RandomPolicy), policy_mapping_fn=lambda *a, **k: "own"
            )
            algo.train()
            algo.remove_policy(NAMES[0])
            result = algo.train()
            found.append((result["digest"], weights_of(algo)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


def test_weights_that_are_set_act_in_the_next_fragment() -> None:
    with running(2) as algo:
        algo.sample()
        weights = weights_of(algo)
        biased = {name: value * 0 for name, value in weights["default_policy"].items()}
        name = "policy.out.bias"
        biased[name] = np.broadcast_to(np.array([50.0, 0.0], np.float32), biased[name].shape).copy()
        algo.set_weights({"default_policy": biased})
        assert set(algo.sample()["default_policy"]["actions"]) == {0}


def test_statistics_of_a_filter_are_merged_and_every_worker_acts_with_all_of_them() -> None:
    settings: Mapping[str, Any] = {
        "observation_filter": "MeanStdFilter",
        "env": "tests.workers.crews:Counting",
    }
    with running(0, num_envs_per_worker=4, **settings) as algo:
        for _ in range(3):
            algo.train()
        here = (
            algo.get_policy().agent_connectors["MeanStdObservationFilterAgentConnector"][0].statistics.copy()
        )
    with running(2, num_envs_per_worker=2, **settings) as algo:
        for _ in range(3):
            algo.train()
        there = (
            algo.get_policy().agent_connectors["MeanStdObservationFilterAgentConnector"][0].statistics.copy()
        )
        rows = algo.sample()["default_policy"]
    assert there.count == here.count
    np.testing.assert_allclose(there.mean, here.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(there.squares, here.squares, rtol=1e-4)
    # Both workers subtract the same mean: what they show the network is centred alike.
    halves = [rows["obs"][np.isin(rows["env_id"], part)] for part in ([0, 1], [2, 3])]
    assert all(np.abs(half).max() <= 10.0 for half in halves)


def test_connectors_that_are_edited_in_the_driver_are_those_of_the_workers() -> None:
    with running(1, env="tests.workers.crews:Counting") as algo:
        before = algo.sample()["default_policy"]["obs"]
        policy = algo.get_policy()
        made = register_lambda_agent_connector(
            "Zeroed", lambda data: {**data, "new_obs": np.asarray(data["new_obs"]) * 0}
        )
        policy.agent_connectors.append(made(None))
        algo.sample()
        after = algo.sample()["default_policy"]["obs"]
    assert np.abs(before).max() > 0
    assert np.abs(after).max() == 0


def test_callbacks_about_episodes_run_in_the_workers_and_their_metrics_come_back() -> None:
    with running(2, env="tests.workers.crews:Counting", callbacks=Counts) as algo:
        result = algo.train()
        assert result["custom_metrics"]["worker_min"] == 1.0
        assert result["custom_metrics"]["worker_max"] == 2.0
        assert set(result["episode_media"]["where"]) == {1, 2}
        assert result["episode_reward_mean"] == 5.0
        assert set(algo.sample()["default_policy"]["rewards"]) == {10.0}


def test_a_registered_name_a_lambda_and_a_gym_id_of_this_process_alone_are_known_in_workers() -> None:
    class Local(Counting):
        """Known to this function only."""

    length = random.randint(3, 9)
    register_env("local", lambda context: Local({**context, "length": length}))
    gym.register("KnownToTheDriver-v0", entry_point=lambda **kwargs: Local(kwargs))
    try:
        for env in ("local", lambda context: Local(context), Local, "KnownToTheDriver-v0"):
            with running(1, env=env) as algo:
                result = algo.train()
                assert result["episode_len_mean"] == (length if env == "local" else 5)
    finally:
        del gym.registry["KnownToTheDriver-v0"]


def test_an_observation_fn_and_a_central_critic_work_in_workers() -> None:
    for settings in ({"critic_obs": "all_agents"}, {}):
        found = []
        for workers, each in ((0, 2), (2, 1)):
            with running(
                workers, env="tictactoe", num_envs_per_worker=each, multiagent=PLAYERS, **settings
            ) as algo:
                algo.train()
                found.append(weights_of(algo))
        assert same(*found)


def test_rows_tell_the_number_of_their_weights_and_staleness_is_bounded() -> None:
    for most in (1, 3):
        with running(2, env="tictactoe", overlap=True, max_staleness=most) as algo:
            results = [algo.train() for _ in range(6)]
            assert all(
                0 <= one["staleness"]["mean"] <= one["staleness"]["max"] <= most + 1 for one in results
            )
            assert results[-1]["staleness"]["max"] >= most
            assert results[-1]["staleness"]["mean"] <= most + 0.5
            rows = algo.sample()["default_policy"]["weights_seq_no"]
            assert rows.dtype == np.int64
            assert rows.min() >= 1
    with running(2) as algo:
        assert "weights_seq_no" not in algo.sample()["default_policy"]
        assert "staleness" not in algo.train()


@pytest.mark.slow
def test_checkpoints_go_from_workers_to_workers_and_to_one_process_and_back(tmp_path: Any) -> None:
    with running(2) as algo:
        algo.train()
        algo.train()
        algo.save(tmp_path / "run")
    with PPO.from_checkpoint(tmp_path / "run") as again:
        expected = again.train()["digest"]
    alone = PPO.from_checkpoint(tmp_path / "run", config={"num_workers": 0, "num_envs_per_worker": 4})
    try:
        result = alone.train()
        assert result["num_env_steps_sampled"] == 3 * 128
        assert result["num_episodes_not_resumed"] == 4
        assert result["digest"] == expected
        alone.save(tmp_path / "alone")
    finally:
        alone.stop()
    back = PPO.from_checkpoint(tmp_path / "alone", config={"num_workers": 2, "num_envs_per_worker": 2})
    try:
        result = back.train()
        assert result["num_env_steps_sampled"] == 4 * 128
        assert result["training_iteration"] == 4
    finally:
        back.stop()


class Tells(DefaultCallbacks):
    """Tells what its process has imported."""

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        for name in ("torch", "onnx", "ray", "pettingzoo", "starlette"):
            episode.custom_metrics[name] = float(name in sys.modules)


@pytest.mark.parametrize("kind", [PPO, DQN], ids=lambda kind: kind.__name__)
def test_a_worker_imports_nothing_heavy(kind: Any) -> None:
    with running(1, kind=kind, callbacks=Tells, num_envs_per_worker=8) as algo:
        result = algo.train()
        while not result["custom_metrics"]:
            result = algo.train()
        assert {name: value for name, value in result["custom_metrics"].items() if value} == {}
        assert "torch_max" in result["custom_metrics"]


class Noting(Alone):
    """Notes where it was created."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        with Path(context["notes"]).open("a") as notes:
            notes.write(f"{os.getpid()} {context.worker_index} {context.in_evaluation}\n")


class NotingPair(Several):
    """Notes where it was created, and has two agents of unlike spaces."""

    length = 1
    observation_spaces = {"a": gym.spaces.Discrete(2), "b": gym.spaces.Discrete(3)}  # noqa: RUF012
    action_spaces = {"a": gym.spaces.Discrete(2), "b": gym.spaces.Discrete(4)}  # noqa: RUF012

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        Noting(context)

    def see(self, agent: str) -> Any:
        return self.at


OF_BOTH = {
    "env": NotingPair,
    "multiagent": {"policies": ["a", "b"], "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id},
}
SPECS = {
    name: PolicySpec(None, NotingPair.observation_spaces[name], NotingPair.action_spaces[name])
    for name in "ab"
}


@pytest.mark.slow_unless("by_policy")
@pytest.mark.parametrize(
    "settings",
    [
        {"observation_space": Noting.observation_space, "action_space": Noting.action_space},
        {
            **OF_BOTH,
            "observation_space": NotingPair.observation_spaces,
            "action_space": NotingPair.action_spaces,
        },
        {**OF_BOTH, "multiagent": {**OF_BOTH["multiagent"], "policies": SPECS}},  # type: ignore[dict-item]
    ],
    ids=["one", "by_agent", "by_policy"],
)
def test_with_workers_and_spaces_the_driver_creates_no_environment(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    own = {"env": Noting, "env_config": {"notes": str(notes)}, "num_envs_per_worker": 1, **settings}
    with running(1, **own) as algo:
        assert algo.train()["episodes_this_iter"] > 0
        found = [line.split() for line in notes.read_text().splitlines()]
        assert {int(pid) for pid, *_ in found} == set(algo.worker_pids())
        assert {(index, played) for _, index, played in found} == {("1", "False")}
        algo.evaluate()
        assert notes.read_text().splitlines()[-1].split()[1:] == ["0", "True"]


# Environments that are named by a file or by another library, in worker processes.


FILE = """
import os
import gymnasium as gym

class Corridor(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def __init__(self, length=9):
        self.length, self.at = length, 0

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.at += 1
        return self.observation_space.sample() * 0, 1.0, self.at == self.length, False, {}
"""


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with `games/menv_corridor.py`."""
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "menv_corridor.py").write_text(FILE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("menv_corridor", None)


@pytest.mark.usefixtures("games")
@pytest.mark.parametrize("where", ["workers", "remote environments"])
def test_workers_find_the_environment_of_a_file_from_any_folder(where: str) -> None:
    remote = {"num_workers": 1} if where == "workers" else {"remote_worker_envs": True}
    config = {**SMALL, **remote, "engine": "process", "env_config": {"length": 4}}
    with PPO(env="games/menv_corridor.py:Corridor", config=config) as algo:
        assert algo.train()["episode_len_mean"] == 4


# Where workers run ahead, actions are told as they were drawn, and states are judged by the critic of now.


KINDS: dict[str, dict[str, Any]] = {
    "choices": {},
    "numbers": {"env": "Pendulum-v1"},
    "memory": {"model": {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8}},
    "two policies": {"env": "tictactoe", "multiagent": PLAYERS},
    "clipped rewards": {"clip_rewards": 0.5},
}


@pytest.mark.slow_unless("memory", "two policies")
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_values_are_those_of_now_and_probabilities_those_of_the_draw(settings: dict[str, Any]) -> None:
    with running(2, overlap=True, lr=0.01, **settings) as algo:
        # By their number, which begins with 1.
        weights = [{}, weights_of(algo)]
        for _ in range(3):
            algo.train()
            weights.append(weights_of(algo))
        batch = algo.sample()
        assert batch.policy_batches
        for name, rows in batch.policy_batches.items():
            policy = algo.get_policy(name)
            backend, index = policy.networks.backend, policy.index
            names = [name for name in rows if name.startswith("state_in_")]
            state = np.concatenate([rows[name] for name in names], 1) if names else None
            values = backend.values(index, rows["obs"], state)
            np.testing.assert_array_equal(rows["vf_preds"], values)
            numbers = rows["weights_seq_no"]
            assert set(numbers.tolist()) <= {2, 3}
            for number in np.unique(numbers).tolist():
                acted = numbers == number
                backend.set_weights(index, weights[number][name])
                mask = rows.get("action_mask")
                told = backend.evaluate(index, rows["obs"], mask, rows["actions"], state)
                np.testing.assert_allclose(rows["action_logp"][acted], told.logp[acted], rtol=1e-5, atol=1e-6)
                assert not np.array_equal(
                    backend.values(index, rows["obs"], state)[acted], rows["vf_preds"][acted]
                )
            backend.set_weights(index, weights[4][name])


# Methods of environments are called wherever these live.


CONFIG = {"train_batch_size": 40, "rollout_fragment_length": 10, "seed": 0, "engine": "process"}
PLACES: dict[str, dict[str, Any]] = {
    "here": {"num_envs_per_worker": 4},
    "workers": {"num_envs_per_worker": 2, "num_workers": 2},
    "ahead": {"num_envs_per_worker": 2, "num_workers": 2, "overlap": True},
    "remote": {"num_envs_per_worker": 4, "remote_worker_envs": True},
}
every_place = pytest.mark.parametrize("place", PLACES)


class Levels(Alone):
    """Pays its level."""

    length, level = 5, 0

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.seat = (context.worker_index, context.vector_index)

    def pay(self, action: Any) -> float:
        return float(self.level)

    def set_level(self, level: int) -> tuple[Any, int]:
        if level < 0:
            raise ValueError("below the ground")
        before, self.level = self.level, level
        return self.seat, before


@pytest.mark.slow_unless("here", "remote")
@every_place
def test_every_sub_environment_is_called_once_in_their_order(place: str) -> None:
    with PPO(env=Levels, config={**CONFIG, **PLACES[place]}) as algo:
        algo.train()
        first, second = algo.call_envs("set_level", 2), algo.call_envs("set_level", 3)
        assert [before for _, before in first] == [0] * 4
        assert second == [(seat, 2) for seat, _ in first]
        assert sorted({seat for seat, _ in first}) == [seat for seat, _ in first]
        # Those that sample ahead have done so before.
        ahead = 2 if place == "ahead" else 0
        paid = [algo.sample()["default_policy"]["rewards"][-1] for _ in range(ahead + 1)]
        assert paid[-1] == 3.0


class Floors(Levels):
    """Its level holds for a whole episode, from the reset on."""

    def reset(self, **asked: Any) -> Any:
        self.floor = self.level
        return super().reset(**asked)

    def pay(self, action: Any) -> float:
        return float(self.floor)


EVALUATIONS: dict[str, dict[str, Any]] = {
    "here": {},
    "workers": {"evaluation_num_workers": 2, "engine": "process", "num_envs_per_worker": 1},
    "remote": {"remote_worker_envs": True, "engine": "process"},
    "parallel": {
        "evaluation_num_workers": 1, "engine": "process", "evaluation_parallel_to_training": True,
        "evaluation_interval": 1,
    },
    "in lockstep": {"env": lambda context: gym.vector.SyncVectorEnv([lambda: Floors(context)] * 2)},
}  # fmt: skip


@pytest.mark.slow_unless("here", "in lockstep")
@pytest.mark.parametrize("place", EVALUATIONS)
def test_a_curriculum_reaches_whole_episodes_of_evaluations_and_these_alone(place: str) -> None:
    config = {
        "env": Floors,
        **CONFIG,
        "num_envs_per_worker": 2,
        "evaluation_duration": 4,
        **EVALUATIONS[place],
    }

    def evaluated(algo: PPO) -> list[float]:
        found: list[float] = algo.evaluate()["evaluation"]["hist_stats"]["episode_reward"]
        return found

    with PPO(config=config) as algo:
        assert [before for _, before in algo.call_envs("set_level", 1, evaluation=True)] == [0, 0]
        assert evaluated(algo) == evaluated(algo) == [5.0] * 4
        assert [before for _, before in algo.call_envs("set_level", 2, evaluation=True)] == [1, 1]
        assert evaluated(algo) == evaluated(algo) == [10.0] * 4
        result = algo.train()
        assert result["episode_reward_max"] == 0.0
        # Another mapping brings other environments of evaluations.
        algo.add_policy("beside", policy_mapping_fn=lambda agent_id, *args, **kwargs: "default_policy")
        assert evaluated(algo) == evaluated(algo) == [10.0] * 4
        if place == "parallel":
            algo.call_envs("set_level", 3, evaluation=True)
            assert algo.train()["evaluation"]["episode_reward_mean"] == 15.0


@pytest.mark.slow_unless("here", "workers")
@every_place
def test_what_a_method_raises_arrives_and_the_run_continues(place: str) -> None:
    with PPO(env=Levels, config={**CONFIG, **PLACES[place]}) as algo:
        with pytest.raises(ValueError, match="below the ground"):
            algo.call_envs("set_level", -1)
        with pytest.raises(ConfigError, match="'set_levle'"):
            algo.call_envs("set_levle", 1)
        assert algo.train()["num_env_steps_sampled"] == 40
    with pytest.raises(CallOrderError, match="call_envs"):
        algo.call_envs("set_level", 1)


def test_a_callback_leads_through_a_curriculum() -> None:
    class Harder(DefaultCallbacks):
        def on_train_result(self, *, algorithm: Any, result: Any, **kwargs: Any) -> None:
            algorithm.call_envs("set_level", result["training_iteration"])

    with PPO(env=Levels, config={**CONFIG, **PLACES["workers"], "callbacks": Harder}) as algo:
        assert [algo.train()["sampler_results"]["hist_stats"]["episode_reward"][-1] for _ in range(3)] == [
            0,
            5,
            10,
        ]


def test_where_nothing_can_be_called_that_is_said() -> None:
    def made(context: Any) -> Any:
        return gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")

    with (
        PPO(env=made, config=CONFIG) as algo,
        pytest.raises(ConfigError, match="sub-environment 0"),
    ):
        algo.call_envs("reset")
