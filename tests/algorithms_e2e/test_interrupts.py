"""Ctrl-C, or anything else that is raised in the midst of a fragment, and what can be done afterwards."""

from __future__ import annotations

import gc
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from menv.algorithms import DQN, PPO
from menv.envs import TicTacToe
from menv.sample_batch import SampleBatch
from menv.tracking import Run
from tests.checkpoints.runs import resumed_twice
from tests.inside import base_env, metrics, sampler
from tests.interrupting import Alarm, raised_at
from tests.worlds import Alone, Several

LENGTH = 7


class Counted(Alone):
    """Shows how many steps there were; raises once when it is told to.

    Attributes:
        due: How many steps or resets of all environments are left until it raises; below 0 for never.
        what: It raises in "step" or "reset".
        error: What it raises.
    """

    observation_space, length = Box(0, 100, (1,), np.float32), LENGTH
    due, what, error = -1, "step", KeyboardInterrupt

    def see(self) -> Any:
        _count_down("step" if self.at else "reset")
        return super().see()


class CountedAgents(Several):
    """Two agents in the same way, one of which pauses every other step."""

    observation_space, length = Counted.observation_space, LENGTH

    def shown(self) -> Any:
        return self.possible_agents if self.at % 2 == 0 else ["a"]

    def pay(self, actions: Any) -> Any:
        return dict.fromkeys(self.possible_agents, 1.0)

    def observe(self) -> Any:
        _count_down("step" if self.at else "reset")
        return super().observe()


def _count_down(what: str) -> None:
    if what == Counted.what and Counted.due >= 0:
        Counted.due -= 1
        if Counted.due < 0:
            raise Counted.error


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    yield
    Counted.due, Counted.what, Counted.error = -1, "step", KeyboardInterrupt


def in_step(_: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Counted] * 3)


SMALL = {"num_envs_per_worker": 3, "rollout_fragment_length": 10, "train_batch_size": 60, "seed": 3,
         "sgd_minibatch_size": 32, "num_sgd_iter": 2, "model": {"fcnet_hiddens": [8]}}  # fmt: skip
TINY = {**SMALL, "num_envs_per_worker": 2, "rollout_fragment_length": 6, "train_batch_size": 12}
ENVS: list[Any] = [Counted, CountedAgents, in_step]


def interrupted(
    algo: Any, due: int, what: str = "step", error: type[BaseException] = KeyboardInterrupt
) -> None:
    """Let a train() end in the midst of a fragment."""
    Counted.due, Counted.what, Counted.error = due, what, error  # type: ignore[assignment]
    with pytest.raises(error):
        train_on(algo)


def train_on(algo: Any, alarm: float = 0.0) -> None:
    """Train until something is raised, at the latest by a timer of so many seconds, if it has some."""
    signal.setitimer(signal.ITIMER_REAL, alarm)
    for _ in range(1000):
        algo.train()


def check_rows(batch: SampleBatch) -> None:
    """Check that trajectories are such as the environments make: they begin anew, and nobody's steps are missing."""
    for eps_id in np.unique(batch[SampleBatch.EPS_ID]):
        for agent in np.unique(batch["agent_index"]):
            rows = (batch[SampleBatch.EPS_ID] == eps_id) & (batch["agent_index"] == agent)
            seen = batch[SampleBatch.OBS][rows].reshape(-1).tolist()
            assert seen == sorted(set(seen))
            if len(seen):
                # Each env step pays 1, and no row is without its reward but for the one that still waits.
                total, last = float(batch[SampleBatch.REWARDS][rows].sum()), batch[SampleBatch.NEXT_OBS][rows]
                over = bool(batch["terminateds"][rows][-1])
                assert total == (LENGTH if over else float(last.reshape(-1)[-1])) - seen[0]


@pytest.mark.each_value
@pytest.mark.parametrize("env", ENVS, ids=["gym", "agents", "vectorised"])
@pytest.mark.parametrize(
    ("due", "what"), [(0, "step"), (1, "step"), (47, "step"), (200, "step"), (5, "reset")]
)
def test_training_continues_after_an_interrupt(env: Any, due: int, what: str) -> None:
    with PPO(env=env, config=SMALL) as algo:
        before = algo.train()
        interrupted(algo, due, what)
        for _ in range(2):
            result = algo.train()
        assert result["training_iteration"] >= before["training_iteration"] + 2
        assert 1 <= result["num_episodes_not_resumed"] <= 3
        assert result["num_env_steps_sampled"] % 30 == 0
        for _ in range(3):
            for batch in algo.sample().policy_batches.values():
                check_rows(batch)
        # All that ended did so after all their steps.
        assert result["episode_len_mean"] == LENGTH


@pytest.mark.parametrize("env", ENVS, ids=["gym", "agents", "vectorised"])
def test_a_run_that_was_interrupted_can_be_saved_and_continues_from_there(env: Any, tmp_path: Path) -> None:
    with PPO(env=env, config=SMALL) as algo:
        algo.train()
        interrupted(algo, 31)
        sampled = algo.counts()["num_env_steps_sampled"]
        algo.save(tmp_path)
    result = resumed_twice(PPO, tmp_path, 1, config={"env": env})
    assert result["num_env_steps_sampled"] == sampled + result["num_env_steps_sampled_this_iter"]


@pytest.mark.parametrize(
    "env", [pytest.param(Counted, marks=pytest.mark.slow), CountedAgents], ids=["gym", "agents"]
)
def test_a_run_in_other_processes_can_be_saved_and_restored_where_it_is(env: Any, tmp_path: Path) -> None:
    config = {**SMALL, "engine": "process", "remote_worker_envs": True, "train_batch_size": 30}
    with PPO(env=env, config=config) as algo:
        algo.train()
        send, left = base_env(algo).send_actions, itertools.count()

        def interrupted_once(*args: Any) -> None:
            if next(left) == 5:
                raise KeyboardInterrupt
            send(*args)

        base_env(algo).send_actions = interrupted_once
        with pytest.raises(KeyboardInterrupt):
            algo.train()
        algo.save(tmp_path)
        expected = [algo.train()["digest"] for _ in range(2)]
        for _ in range(2):
            algo.restore(tmp_path)
            assert [algo.train()["digest"] for _ in range(2)] == expected


def test_ctrl_c_while_a_result_is_built_ends_the_run_after_that_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def info(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return {}

    monkeypatch.setattr("menv.algorithms.algorithm.learner_info", info)
    with PPO(env=CountedAgents, config=SMALL) as algo, pytest.raises(KeyboardInterrupt):
        algo.learn(10**6, run_dir=tmp_path / "run")
    assert [one["training_iteration"] for one in Run(tmp_path / "run").results()] == [1]
    assert (tmp_path / "run" / "checkpoints" / "LATEST").read_text().strip() == "000001"


@pytest.mark.slow_unless("agents")
@pytest.mark.parametrize(
    ("make", "stride"),
    [
        (lambda: PPO(env=Counted, config=TINY), 101),
        (lambda: PPO(env=CountedAgents, config=TINY), 151),
        (lambda: PPO(env=CountedAgents, config={**TINY, "batch_mode": "complete_episodes"}), 233),
        (
            lambda: PPO(env=CountedAgents, config=TINY | {"model": {"fcnet_hiddens": [8], "use_lstm": True}}),
            229,
        ),
        (lambda: DQN(env=Counted, config={"num_envs_per_worker": 2, "seed": 0}), 187),
    ],
    ids=["gym", "agents", "whole episodes", "memory", "dqn"],
)
def test_sampling_may_be_interrupted_anywhere(make: Callable[[], Any], stride: int) -> None:
    with make() as algo:
        algo.sample()
        algo.sample()
        for instruction in itertools.count(1, stride):
            before = metrics(algo).episodes_not_resumed
            if not raised_at(instruction, algo.sample):
                break
            batch = algo.sample()
            assert batch.env_steps() >= 4
            for rows in batch.policy_batches.values():
                check_rows(rows)
            assert metrics(algo).episodes_not_resumed - before <= 2
        assert instruction > 5000
        sampler(algo).state()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: PPO(env="CartPole-v1", config=SMALL), marks=pytest.mark.slow),
        lambda: PPO(env=TicTacToe, config={**SMALL, "num_sgd_iter": 20}),
        pytest.param(
            lambda: PPO(
                env=CountedAgents, config={**SMALL, "model": {"fcnet_hiddens": [8], "use_lstm": True}}
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: DQN(
                env="CartPole-v1",
                config={"num_envs_per_worker": 3, "seed": 0, "num_steps_sampled_before_learning_starts": 20},
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["gym", "agents", "memory", "dqn"],
)
def test_an_alarm_may_ring_anywhere(make: Callable[[], Any]) -> None:
    """While environments step, networks act, rows are written and weights are learned."""
    rng = np.random.default_rng(0)

    def ring(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    # Python ignores what is raised in them; hypothesis, once imported, has one.
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    try:
        with make() as algo:
            algo.train()
            for _ in range(15):
                with pytest.raises(Alarm):
                    train_on(algo, rng.uniform(0.001, 0.06))
                result = algo.train()
            assert all(
                np.isfinite(value).all()
                for weights in algo.get_weights().values()
                for value in weights.values()
            )
            assert result["num_env_steps_sampled"] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks
