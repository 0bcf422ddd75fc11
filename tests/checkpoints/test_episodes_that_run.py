"""Running episodes are not part of a checkpoint: a resumed run begins new ones and counts them."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO, PPOConfig
from menv.algorithms.config.read_config import read_config
from menv.algorithms.config.stored_config import restored_config, stored_config
from menv.base_env import ALL, BaseEnv
from menv.callbacks import DefaultCallbacks
from menv.errors import CallOrderError, ConfigError
from menv.policy_map import PolicyMap
from tests.checkpoints.runs import SMALL, trained, weights_of

ENVS = SMALL["num_envs_per_worker"]


def test_sub_environments_that_step_together_begin_anew(tmp_path: Path) -> None:
    def vector(context: Any) -> Any:
        return gym.make_vec("CartPole-v1", num_envs=ENVS, vectorization_mode="sync")

    with PPO(env=vector, config={**SMALL, "num_envs_per_worker": 1}) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path, env=vector) as again:
            assert weights_of(again) == weights_of(algo)
            result = trained(again, 1)
            assert result["num_episodes_not_resumed"] == ENVS
            assert result["num_env_steps_sampled"] >= 3 * SMALL["train_batch_size"]
            again.restore(tmp_path)
            assert weights_of(again) == weights_of(algo)
            assert trained(again, 1)["num_episodes_not_resumed"] == ENVS


class Counter(BaseEnv):
    """A `BaseEnv` of a user's own, which nobody may reset behind its back."""

    observation_space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.at, self.answered = 0, True

    def poll(self, timeout: float | None = None) -> Any:
        if not self.answered:
            return {}, {}, {}, {}, {}, {}
        self.answered = False
        over = {"a": self.at == 7, ALL: self.at == 7}
        return (
            {0: self.seen()},
            {0: {"a": 1.0 * (self.at > 0)}},
            {0: over},
            {0: {ALL: False}},
            {0: {"a": {}}},
            {},
        )

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.at, self.answered = self.at + 1, True

    def try_reset(self, env_id: Any = None, *, seed: Any = None, options: Any = None) -> Any:
        self.at, self.answered = 0, False
        return {0: self.seen()}, {0: {"a": {}}}

    def seen(self) -> Any:
        return {"a": np.full(1, self.at, np.float32)}


def test_a_base_env_of_ones_own_begins_anew_in_a_new_algorithm_and_not_behind_its_back(
    tmp_path: Path,
) -> None:
    with PPO(env=Counter, config={**SMALL, "num_envs_per_worker": 1}) as algo:
        trained(algo, 1)
        algo.save(tmp_path)
        wanted = weights_of(algo)
        with PPO.from_checkpoint(tmp_path, env=Counter) as again:
            assert weights_of(again) == wanted
            result = trained(again, 1)
            assert result["num_episodes_not_resumed"] == 1
            assert result["num_env_steps_sampled"] == 2 * SMALL["train_batch_size"]
        trained(algo, 1)
        before = weights_of(algo)
        with pytest.raises(
            ConfigError, match=r"restore: CustomEnvs cannot begin again.*; load .* with from_checkpoint"
        ):
            algo.restore(tmp_path)
        assert weights_of(algo) == before


class Saving(DefaultCallbacks):
    """Saves where it must not."""

    path: Any = None
    algorithm: Any = None

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        self.algorithm = algorithm

    def on_episode_end(self, **kwargs: Any) -> None:
        self.algorithm.save(self.path)


def test_a_fragment_that_is_being_sampled_is_not_saved(tmp_path: Path) -> None:
    callbacks = Saving()
    callbacks.path = tmp_path
    with (
        PPO(env="CartPole-v1", config={**SMALL, "callbacks": callbacks}) as algo,
        pytest.raises(CallOrderError, match="a fragment is being sampled"),
    ):
        algo.train()
    assert not list(tmp_path.iterdir())


class Short(gym.Env[Any, Any]):
    """Lasts so many steps."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin."""
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on."""
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == self.steps, False, {}


class Looks(DefaultCallbacks):
    """Wants to be told of each episode, so that whole frames are not taken."""

    def on_episode_start(self, **kwargs: Any) -> None:
        """Hear of it."""


def test_vectorised_environments_begin_anew_alike_whether_or_not_somebody_looks_on(tmp_path: Path) -> None:
    def vectorised(context: Any) -> gym.vector.SyncVectorEnv:
        return gym.vector.SyncVectorEnv([lambda: Short(3), lambda: Short(5)])

    stood = []
    for callbacks in (None, Looks):
        # Ends with a fragment: the first sub-environment is done and waits for the step that resets it.
        config = {"seed": 1, "rollout_fragment_length": 3, "train_batch_size": 6, "callbacks": callbacks}
        with PPO(env=vectorised, config=config) as algo:
            algo.train()
            algo.save(tmp_path)
            algo.restore(tmp_path)
            result = algo.train()
            ids = algo.sample()["default_policy"]["eps_id"].tolist()
            stood.append((result["num_episodes_not_resumed"], result["digest"], ids))
    assert stood[0][0] == 1
    assert stood[0] == stood[1]


# What environments are given comes back from a checkpoint as what it was, or has to be given again.


@dataclasses.dataclass
class Options:
    """What somebody may give an environment."""

    size: int = 3


class Point(NamedTuple):
    """Likewise."""

    x: int = 3


class Mode(enum.StrEnum):
    """Likewise."""

    HARD = "hard"


class Level(enum.IntEnum):
    """Likewise."""

    HIGH = 2


class Seconds(float):
    """Likewise."""


class Words(list[str]):
    """Likewise."""


def test_environments_are_given_tuples_again_and_nothing_in_the_place_of_something_else() -> None:
    def again(value: Any) -> Any:
        config = read_config(PPOConfig, {"env": "CartPole-v1", "env_config": {"value": value}})
        stored = json.loads(json.dumps(stored_config(config, PolicyMap())))
        return restored_config(PPOConfig, stored, None).env_config["value"]

    assert again((3, (1, 2.5), [("a",)])) == (3, (1, 2.5), [("a",)])
    of_numpy = again([np.float64(0.5), np.str_("a"), {np.str_("b"): np.int8(1)}, math.inf, True])
    assert of_numpy == [0.5, "a", {"b": 1}, math.inf, True]
    near = (Mode.HARD, [Level.HIGH], Seconds(1.0), Seconds("inf"), Words(), OrderedDict(a=1), {Mode.HARD: 1})
    for value in (Options(), [Point()], *near):
        with pytest.raises(
            ConfigError, match=r"\['value'\].* was an instance of .*, which a checkpoint holds by"
        ):
            again(value)
