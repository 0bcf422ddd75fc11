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
from menv.algorithms.rollouts.local_rollouts import LocalRollouts
from menv.callbacks import DefaultCallbacks
from menv.envs import TicTacToe
from menv.sample_batch import SampleBatch
from tests.checkpoints.runs import resumed_twice, weights_of
from tests.inside import base_env, metrics
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
def test_training_goes_on_after_an_interrupt(env: Any, due: int, what: str) -> None:
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
def test_a_run_that_was_interrupted_can_be_saved_and_goes_on_from_there(env: Any, tmp_path: Path) -> None:
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


def test_fragments_of_a_batch_that_was_not_full_are_forgotten_by_a_restore(
    tmp_path: Path,
) -> None:
    with PPO(env=CountedAgents, config=SMALL) as algo:
        algo.train()
        early = algo.save(tmp_path / "early")
        # In the second of the two fragments of a batch.
        interrupted(algo, 47)
        late = algo.save(tmp_path / "late")
        for folder in (late, early):
            with PPO.from_checkpoint(folder, env=CountedAgents) as again:
                wanted = again.train()
                weights = weights_of(again)
            algo.restore(folder)
            found = algo.train()
            assert [
                found[key] for key in ("digest", "num_agent_steps_sampled", "num_agent_steps_trained")
            ] == [wanted[key] for key in ("digest", "num_agent_steps_sampled", "num_agent_steps_trained")]
            assert weights_of(algo) == weights


@pytest.mark.parametrize("workers", [0, 1])
def test_the_same_holds_beside_processes(workers: int) -> None:
    """Where environments live elsewhere it is a callback that raises: in this process, and in a worker."""
    seen = itertools.count()

    class Nervous(DefaultCallbacks):
        def on_episode_step(self, **_: Any) -> None:
            if next(seen) == 40:
                raise LookupError("by mistake")

    config = {**SMALL, "callbacks": Nervous, "engine": "process", "num_workers": workers,
              "remote_worker_envs": not workers}  # fmt: skip
    with PPO(env="CartPole-v1", config=config) as algo:
        with pytest.raises(Exception, match="by mistake"):
            train_on(algo)
        assert algo.train()["num_env_steps_sampled"] >= 60
        assert algo.train()["num_env_steps_sampled"] >= 120


class Slips:
    """Raises at one of its calls."""

    def __init__(self) -> None:
        self.left = 10**9

    def __call__(self, *_: Any, **__: Any) -> str:
        self.left -= 1
        if self.left == 0:
            raise LookupError("by mistake")
        return "one"


@pytest.mark.parametrize(
    "seat", ["policy_mapping_fn", "on_episode_start", "on_episode_end", "on_episode_step"]
)
def test_a_function_of_the_users_that_raises_once_does_not_end_the_run(seat: str) -> None:
    slips = Slips()
    callbacks = type("Own", (DefaultCallbacks,), {seat: lambda _, **__: slips()})
    multiagent = {
        "policies": {"one"},
        "policy_mapping_fn": slips if seat == "policy_mapping_fn" else "one".format,
    }
    with PPO(env=CountedAgents, config={**SMALL, "callbacks": callbacks, "multiagent": multiagent}) as algo:
        algo.train()
        slips.left = 20
        with pytest.raises(Exception, match="by mistake"):
            train_on(algo)
        for _ in range(3):
            for batch in algo.sample().policy_batches.values():
                check_rows(batch)


@pytest.mark.parametrize("unit", ["episodes", "timesteps"])
def test_an_evaluation_that_was_interrupted_begins_again(unit: str) -> None:
    config = {
        **SMALL,
        "evaluation_duration": 6 if unit == "episodes" else 42,
        "evaluation_duration_unit": unit,
    }
    with PPO(env=Counted, config=config) as algo:
        algo.evaluate()
        Counted.due = 20
        with pytest.raises(KeyboardInterrupt):
            algo.evaluate()
        for _ in range(2):
            told = algo.evaluate()["evaluation"]
            assert (told["episodes_this_iter"], told["episode_len_mean"]) == (6, LENGTH)
        assert algo.train()["num_episodes_not_resumed"] == 0


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
        algo._rollouts.state()


@pytest.mark.slow_unless("gym")
@pytest.mark.parametrize("env", [Counted, CountedAgents], ids=["gym", "agents"])
def test_beginning_again_may_be_interrupted_anywhere(env: type) -> None:
    """Whatever is raised while a fragment is given up, no step is forgotten."""
    with PPO(env=env, config=TINY) as algo:
        rollouts = algo._rollouts
        assert isinstance(rollouts, LocalRollouts)
        rollouts.sample()
        for instruction in itertools.count(1, 29):
            Counted.due = 3
            with pytest.raises(KeyboardInterrupt):
                rollouts.sample()
            steps, rows = rollouts.env_steps, rollouts.digest.rows
            interrupted = raised_at(instruction, rollouts._recover)
            assert rollouts.sample().env_steps() == rollouts.env_steps - steps
            assert rollouts.digest.rows > rows > 0
            if not interrupted:
                break
        assert instruction > 500


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
