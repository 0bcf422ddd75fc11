"""Training goes on where an environment raises now and then, and says so."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks
from menv.algorithms import PPO
from menv.errors import ConfigError, EnvCrashError, EnvFaultWarning
from tests.algorithms_e2e.test_callbacks import spying
from tests.checkpoints.runs import SMALL, resumed_twice, trained, weights_of
from tests.inside import base_env
from tests.warm_homes import the_parent
from tests.worlds import Alone, Sharing, like, raising

pytestmark = pytest.mark.filterwarnings("ignore::menv.errors.EnvFaultWarning")
LENGTH = 6
OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)


class Rickety(Alone):
    """Raises in some steps and some resets; its seed decides in which, but for the first reset."""

    observation_space, length = OBS, LENGTH
    in_steps, in_resets = 0.02, 0.1

    def see(self) -> Any:
        if not self.at and self.np_random.random() < self.in_resets and self.episode:
            raise OSError("the simulator does not answer")
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def pay(self, action: Any) -> float:
        if self.np_random.random() < self.in_steps:
            raise ZeroDivisionError("no wheels")
        return 1.0


class RicketyTeam(Sharing):
    """The same for two agents that take turns; both are paid in every step."""

    kind = Rickety

    def shown(self) -> Any:
        return self.possible_agents[self.at % 2]


both_kinds = pytest.mark.parametrize("kind", [Rickety, RicketyTeam])


@both_kinds
def test_lost_episodes_are_counted_and_reported_but_in_no_mean(kind: Any) -> None:
    with PPO(env=kind, config=SMALL) as algo:
        results = [algo.train() for _ in range(4)]
    counts = [result["num_faulty_episodes"] for result in results]
    assert sum(counts) > 3
    assert [result["faulty_episodes_total"] for result in results] == np.cumsum(counts).tolist()
    last = results[-1]
    assert last["first_fault"] in [
        f"{text} of env {index} (test_faults.py:{line})"
        for index in range(3)
        for line in range(30, 50)
        for text in (
            "ZeroDivisionError: no wheels in step",
            "OSError: the simulator does not answer in reset",
        )
    ]
    assert last["sampler_results"]["first_fault"] == last["first_fault"]
    assert {result["episode_len_mean"] for result in results} == {LENGTH}
    assert {result["episode_reward_min"] for result in results} == {LENGTH}
    assert sum(result["episodes_this_iter"] for result in results) > 40


def test_each_cause_is_warned_of_once() -> None:
    with PPO(env=Rickety, config=SMALL) as algo, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = trained(algo, 4)
    told = [str(one.message) for one in caught if one.category is EnvFaultWarning]
    assert result["faulty_episodes_total"] > 3
    assert sorted(text.split(":")[0] for text in told) == ["OSError", "ZeroDivisionError"]
    assert all("restart_failed_sub_environments=False" in text and "\n" not in text for text in told)


@pytest.mark.each_value
@both_kinds
@pytest.mark.parametrize("pieces", [False, True])
def test_callbacks_hear_of_the_new_environment_and_not_of_the_end_of_the_lost_episode(
    kind: Any, pieces: bool
) -> None:
    hooks = ["on_sub_environment_created", "on_episode_start", "on_episode_end"]
    spy, calls = spying(*hooks, *(["on_postprocess_trajectory"] if pieces else []))
    with PPO(env=kind, config={**SMALL, "callbacks": spy, "env_config": {"a": 1}}) as algo:
        results = [algo.train() for _ in range(4)]
        envs = base_env(algo).get_sub_environments()
    crashes = results[-1]["faulty_episodes_total"]
    created = [call for hook, call in calls if hook == hooks[0]]
    assert len(created) >= 3 + crashes > 6
    for call in created:
        assert call["env_context"].vector_index == call["env_index"]
        assert call["env_context"]["a"] == 1
    assert all(any(call["sub_environment"] is env for call in created) for env in envs)
    ended = [call["episode"] for hook, call in calls if hook == hooks[2]]
    assert {episode.length for episode in ended} == {LENGTH}
    assert len(ended) == sum(result["episodes_this_iter"] for result in results)
    started = [call["episode"] for hook, call in calls if hook == hooks[1]]
    assert len(set(map(id, started))) == len(started) > len(ended) + 3
    lost_in_steps = len(started) - len(ended) - 3
    assert lost_in_steps <= crashes


@pytest.mark.each_value
@both_kinds
@pytest.mark.parametrize("unit", ["episodes", "timesteps"])
def test_an_evaluation_plays_another_episode_for_one_that_was_lost(kind: Any, unit: str) -> None:
    settings = {
        "evaluation_duration": 30 * (1 if unit == "episodes" else LENGTH),
        "evaluation_duration_unit": unit,
    }
    lost = 0
    with PPO(env=kind, config={**SMALL, **settings}) as algo:
        for _ in range(3):
            result = algo.evaluate()["evaluation"]
            lost += result["num_faulty_episodes"]
            assert result["episode_len_mean"] == LENGTH
            if unit == "episodes":
                assert result["episodes_this_iter"] == 30
    assert lost > 3


@both_kinds
def test_the_run_ends_at_the_first_one_where_that_is_asked_for(kind: Any) -> None:
    config = {**SMALL, "restart_failed_sub_environments": False}
    with PPO(env=kind, config=config) as algo, pytest.raises(EnvCrashError) as caught:
        trained(algo, 4)
    assert isinstance(caught.value.__cause__, OSError | ZeroDivisionError)
    config = {
        **SMALL,
        "evaluation_config": {"restart_failed_sub_environments": False},
        "evaluation_duration": 90,
    }
    with PPO(env=kind, config=config) as algo:
        assert trained(algo, 4)["faulty_episodes_total"] > 3
        with pytest.raises(EnvCrashError):
            algo.evaluate()


@both_kinds
def test_a_plain_bug_ends_the_run_at_its_first_cause(kind: Any) -> None:
    with (
        PPO(env=like(kind, step=raising(KeyError("wheel"))), config=SMALL) as algo,
        pytest.raises(EnvCrashError) as caught,
    ):
        algo.train()
    assert "KeyError: 'wheel'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.slow_unless("RicketyTeam")
@both_kinds
def test_a_run_in_which_environments_crash_is_the_same_again_and_continues_from_a_checkpoint(
    kind: Any, tmp_path: Path
) -> None:
    given = {"env": kind}
    with PPO(env=kind, config=SMALL) as algo, PPO(env=kind, config=SMALL) as twin:
        before = trained(algo, 3)
        assert before["faulty_episodes_total"] > 3
        algo.save(tmp_path)
        trained(algo, 3)
        trained(twin, 6)
        assert weights_of(twin) == weights_of(algo)
    resumed = resumed_twice(PPO, tmp_path, 1, config=given)
    assert resumed["faulty_episodes_total"] >= before["faulty_episodes_total"]
    assert resumed["first_fault"] == before["first_fault"]


def test_a_callback_that_raises_does_not_count_as_an_environment_crash() -> None:
    class Raises(DefaultCallbacks):
        created = 0

        def on_sub_environment_created(self, **kwargs: Any) -> None:
            Raises.created += 1
            if Raises.created > 3:
                raise LookupError("no licence left")

    with PPO(env=Rickety, config={**SMALL, "callbacks": Raises}) as algo, pytest.raises(LookupError):
        trained(algo, 4)
    assert Raises.created == 4


# Environments that cannot be closed, or not before they were used, when an algorithm stops.


TINY: dict[str, Any] = {
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 2,
    "num_envs_per_worker": 4,
}


def test_all_environments_are_closed_where_one_cannot_be() -> None:
    closed: list[int] = []

    class Closes(Alone):
        def close(self) -> None:
            closed.append(1)
            raise OSError(f"no window of number {len(closed)}")

    algorithm = PPO(env=lambda context: Closes(), config=TINY)
    algorithm.sample()
    algorithm.evaluate()
    with pytest.raises(EnvCrashError, match="OSError") as caught:
        algorithm.stop()
    assert isinstance(caught.value.__cause__, OSError)
    # Those of the evaluation too.
    assert len(closed) == 8


# Raises when all is there.
Refusing = like(DefaultCallbacks, on_algorithm_init=raising(ArithmeticError("not today")))


@pytest.mark.usefixtures("sent_whole")
@pytest.mark.parametrize("kept_from", [{"callbacks": Refusing}, {"evaluation_interval": 1}])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_nothing_stays_open_where_a_run_cannot_be_built_to_its_end(
    kept_from: dict[str, Any], num_workers: int
) -> None:
    closed: list[int] = []

    closes = like(Alone, close=lambda self: closed.append(1))
    the_parent()  # It forks what the engine starts, and stays.
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    workers = {"num_workers": num_workers, "engine": "process"}
    own = {"evaluation_config": {"env": "Pendulum-v1"}}
    with pytest.raises((ArithmeticError, ConfigError)) as caught:
        PPO(env=lambda context: closes(), config={**TINY, **workers, **own, **kept_from})
    # As long as somebody looks at the error, nothing of the run is let go of by itself.
    assert caught.traceback
    assert children.read_text() == before
    assert len(closed) == (1 if num_workers else 4)
