"""`info["training_enabled"] = False` excludes a trajectory from training, in every kind of environment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo.utils import parallel_to_aec

from menv import ContractError, VectorEnv
from menv.algorithms import PPO
from menv.errors import EnvFaultWarning
from menv.external_env import ExternalEnv
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.contract.adapters import Tables
from tests.contract.scripted import SixDicts
from tests.worlds import Alone, Calling, InStep, Several
from tests.worlds.pettingzoo import Parallel

STEPS = 5
OBS = gym.spaces.Box(0.0, 1000.0, (2,), np.float32)
ACT = gym.spaces.Discrete(2)


class Course:
    """Says in an info of step `at` of each other episode that no policy may learn from it.

    With `at` 0 that is the info of the reset, with 5 that of the last step.
    """

    episode: int
    at: int
    config: Any

    def seen(self) -> Any:
        return np.array([self.episode + 1, self.at], np.float32)

    def told(self) -> dict[str, Any]:
        due = self.at == self.config.get("at", 3) and not self.episode % 2
        return {"training_enabled": False} if due else {}


class Solo(Course, Alone):
    observation_space, length = OBS, STEPS

    def see(self) -> Any:
        return self.seen()

    def info(self) -> Any:
        return self.told()


class Pair(Course, Several):
    """What is said is said of "a" alone."""

    observation_space, length = OBS, STEPS

    def see(self, agent: Any) -> Any:
        return self.seen() + 500 * (agent == "b")

    def infos(self) -> Any:
        return {"a": self.told(), "b": {}}


class CallingAlone(ExternalEnv):
    def __init__(self, at: int) -> None:
        super().__init__(ACT, OBS)
        self.game = Solo({"at": at})

    def run(self) -> None:
        while True:
            episode, over = self.start_episode(), False
            obs, info = self.game.reset()
            while not over:
                self.log_returns(episode, 0.0, info)
                obs, reward, over, _, info = self.game.step(self.get_action(episode, obs))
                self.log_returns(episode, reward, info)
            self.end_episode(episode, obs)


def gym_vector(mode: AutoresetMode) -> Any:
    return lambda at: SyncVectorEnv([lambda: Solo({"at": at})], autoreset_mode=mode)


KINDS: dict[str, Any] = {
    "gym": lambda at: Solo({"at": at}),
    "vector": lambda at: InStep([Solo({"at": at})]),
    **{mode.name: gym_vector(mode) for mode in AutoresetMode},
    "agents": lambda at: Pair({"at": at}),
    "parallel": lambda at: ParallelPettingZooEnv(Parallel(Pair({"at": at}))),
    "aec": lambda at: PettingZooEnv(parallel_to_aec(Parallel(Pair({"at": at})))),
    "six dicts": lambda at: SixDicts([Pair({"at": at})], "now"),
    "later": lambda at: SixDicts([Pair({"at": at})], "later"),
    "table": lambda at: Tables(Pair({"at": at}).to_base_env()),
    "external": CallingAlone,
    "external agents": lambda at: Calling(Pair({"at": at})),
}


PAIRS = [kind for kind in KINDS if kind not in ("gym", "vector", "external", *AutoresetMode.__members__)]


def rows_of(batch: Any) -> Counter[int]:
    """Return the rows of each episode, those of "b" under 500 more."""
    return Counter(int(obs[0]) for part in batch.policy_batches.values() for obs in part["obs"])


@pytest.mark.slow_unless("*-2")
@pytest.mark.parametrize("at", [0, 2, STEPS])
@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_whose_last_known_info_says_false_is_in_no_batch(kind: str, at: int) -> None:
    # In turns an episode takes two env steps for each of the course.
    turns = 2 if kind == "aec" else 1
    config = {
        "rollout_fragment_length": 20 * turns,
        "train_batch_size": 20,
        "batch_mode": "complete_episodes",
    }
    env = KINDS[kind](at)
    with PPO(env=lambda context: env, config=config) as algo:
        batch = algo.sample()
        result = algo.train()
    assert batch.env_steps() == 20 * turns
    rows = rows_of(batch)
    mine = {episode: count for episode, count in rows.items() if episode < 500}
    assert len(mine) == 2
    assert {(episode % 2, count) for episode, count in mine.items()} == {(0, STEPS)}
    # Nothing was said of "b".
    assert list((rows - Counter(mine)).values()) == [STEPS] * (4 if kind in PAIRS else 0)
    # All episodes are played, and are in the results.
    assert (result["episode_len_mean"], result["num_env_steps_sampled"] >= 40) == (STEPS * turns, True)


@pytest.mark.slow_unless("Solo-remote", "Pair-worker")
@pytest.mark.parametrize(
    "where",
    [{"num_workers": 1}, {"remote_worker_envs": True, "num_envs_per_worker": 2}],
    ids=["worker", "remote"],
)
@pytest.mark.parametrize("env", [Solo, Pair])
def test_it_holds_in_other_processes(env: type, where: dict[str, Any]) -> None:
    config = {"train_batch_size": 40, "rollout_fragment_length": 20, "batch_mode": "complete_episodes"}
    with PPO(env=env, config={**config, "engine": "process", "env_config": {"at": STEPS}, **where}) as algo:
        rows = rows_of(algo.sample())
    assert {episode % 2 for episode in rows if episode < 500} == {0}
    assert set(rows.values()) == {STEPS * where.get("num_envs_per_worker", 1)}


class Changing(Solo):
    """Says one value of a list for each info from the reset on; None says nothing."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__()
        self.values = values

    def told(self) -> Any:
        value = self.values[self.at]
        return {} if value is None else {"training_enabled": value}


@pytest.mark.parametrize(
    ("told", "learned"),
    [
        ([None, False, None, None, None, None], False),
        ([False, None, None, None, True, None], True),
        ([True, False, True, False, None, None], False),
        ([np.bool_(False), None, None, None, None, np.array([True])], True),
        ([None, None, None, None, None, 0], False),
    ],
)
@pytest.mark.parametrize("as_vector", [False, True])
def test_the_last_info_that_says_so_decides(told: list[Any], learned: bool, as_vector: bool) -> None:
    env: Any = Changing(told)
    if as_vector:
        env = VectorEnv.vectorize_gym_envs(existing_envs=[env], num_envs=1)
    config = {"rollout_fragment_length": 10, "train_batch_size": 10, "batch_mode": "complete_episodes"}
    with PPO(env=lambda context: env, config=config) as algo:
        assert sum(rows_of(algo.sample()).values()) == 10 * learned


def test_a_value_that_is_not_a_flag_is_named_with_its_agent() -> None:
    env = Changing([None, None, "no", None, None, None])
    config = {"rollout_fragment_length": 10, "train_batch_size": 10}
    where = r"env 0, agent 'agent0': info\['training_enabled'\] is str"
    with PPO(env=lambda context: env, config=config) as algo, pytest.raises(ContractError, match=where):
        algo.sample()


@pytest.mark.parametrize(
    "kind", ["gym", "vector", *AutoresetMode.__members__, "agents", "six dicts", "table"]
)
def test_rows_that_left_before_are_counted_in_a_warning(kind: str) -> None:
    env = KINDS[kind](STEPS)
    with PPO(env=lambda context: env, config={"rollout_fragment_length": 3, "train_batch_size": 3}) as algo:
        assert {number: count for number, count in rows_of(algo.sample()).items() if number < 500} == {1: 3}
        with pytest.warns(EnvFaultWarning, match="after 3 timesteps of these trajectories had left"):
            rows = rows_of(algo.sample())
        assert 1 not in rows
        rows += rows_of(algo.sample()) + rows_of(algo.sample())
    assert (rows[1], rows[2]) == (0, STEPS)


def test_a_group_is_excluded_as_long_as_the_last_info_of_a_member_says_false() -> None:
    class Later(Pair):
        def infos(self) -> Any:
            # "a" says False in the third step of each other episode; "b" says True, which changes nothing for "a".
            if not self.at:
                return super().infos()
            again = self.episode % 4 == 2 and self.at == 4
            return {
                "a": {"training_enabled": True} if again else self.told(),
                "b": {"training_enabled": True},
            }

    config = {"rollout_fragment_length": 20, "train_batch_size": 20, "batch_mode": "complete_episodes"}
    with PPO(env=lambda context: Later().with_agent_groups({"g": ["a", "b"]}), config=config) as algo:
        batch = algo.sample().policy_batches["default_policy"]
    episodes = Counter(int(obs[0]) % 4 for obs in batch["obs"])
    assert episodes == {2: STEPS, 3: STEPS, 0: STEPS}
