"""`sampler_perf` says what of an iteration the environments, the policies and the completion of batches took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from menv import Policy, PolicySpec
from menv.algorithms import PPO, PPOPolicy
from tests.contract.scripted import SixDicts
from tests.worlds import Alone, InStep, Sharing

NAP = 0.004
STEPS = 16


class SlowGym(Alone):
    """Sleeps in each step, and goes on for ever."""

    length = 0

    def pay(self, action: Any) -> float:
        time.sleep(NAP)
        return 1.0


class SlowPair(Sharing):
    """Likewise, for two agents."""

    kind = SlowGym


class SlowWorlds(InStep):
    """Likewise, two worlds at once."""

    def __init__(self, context: Any = None) -> None:
        super().__init__([Alone(length=0), Alone(length=0)])

    def vector_step(self, actions: Any) -> Any:
        time.sleep(NAP)
        return super().vector_step(actions)


def slow_answers(context: Any) -> SixDicts:
    """Return a `BaseEnv` that steps when it is answered."""
    return SixDicts([SlowPair()], "now")


class Ponders(Policy):
    """Sleeps before it decides."""

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the first action for everybody."""
        time.sleep(NAP)
        return np.zeros(len(obs_batch), np.int64), [], {}


class LooksBack(PPOPolicy):
    """Sleeps over each trajectory."""

    def postprocess_trajectory(self, batch: Any, others: Any = None, episode: Any = None) -> Any:
        """Sleep."""
        time.sleep(NAP)
        return batch


def trained(env: Any, **config: Any) -> PPO:
    """Return an algorithm with iterations of `STEPS` env steps."""
    settings = {
        "train_batch_size": STEPS,
        "rollout_fragment_length": STEPS,
        "sgd_minibatch_size": STEPS,
        "seed": 0,
    }
    return PPO(env=env, config={**settings, **config})


def times_of(algo: PPO) -> dict[str, float]:
    """Return what an iteration took."""
    perf: dict[str, float] = algo.train()["sampler_perf"]
    assert perf.keys() == {"sample_time_s", "learn_time_s", "env_time_s", "act_time_s", "complete_time_s"}
    return perf


@pytest.mark.each_value
@pytest.mark.parametrize("env", [SlowGym, SlowPair, SlowWorlds, slow_answers])
def test_slow_steps_count_as_environment_time(env: Callable[..., Any]) -> None:
    with trained(env) as algo:
        for _ in range(2):
            perf = times_of(algo)
            slept = NAP * STEPS / (2 if env is SlowWorlds else 1)
            assert slept <= perf["env_time_s"]
            assert perf["env_time_s"] + perf["act_time_s"] + perf["complete_time_s"] <= perf["sample_time_s"]
            # All that the policy and the batches need is far less than that sleep.
            assert perf["act_time_s"] < perf["env_time_s"]


def test_a_slow_policy_counts_as_acting_time() -> None:
    multiagent = {"policies": {"p": PolicySpec(policy_class=Ponders)}, "policies_to_train": []}
    with trained("tictactoe", multiagent=multiagent) as algo:
        perf = times_of(algo)
    assert perf["act_time_s"] >= NAP * STEPS
    assert perf["env_time_s"] < perf["act_time_s"]


def test_slow_postprocessing_counts_as_completion_time() -> None:
    multiagent = {"policies": {"p": PolicySpec(policy_class=LooksBack)}}
    with trained(SlowGym, multiagent=multiagent, num_envs_per_worker=4, rollout_fragment_length=4) as algo:
        perf = times_of(algo)
    assert perf["complete_time_s"] >= NAP * 4


@pytest.mark.slow_unless("True")
@pytest.mark.usefixtures("sent_whole")
@pytest.mark.parametrize("overlap", [False, True])
def test_times_of_workers_add_up(overlap: bool) -> None:
    with trained(
        SlowGym, num_workers=2, engine="process", overlap=overlap, rollout_fragment_length=STEPS // 2
    ) as algo:
        perf = times_of(algo)
        assert perf["env_time_s"] >= NAP * STEPS
        assert perf["act_time_s"] > 0
        assert perf["complete_time_s"] > 0
