"""Callbacks of an end see the environment as it ended: the reset comes after them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from menv import DefaultCallbacks
from menv.algorithms import PPO
from menv.wrappers import ParallelPettingZooEnv
from tests.contract.scripted import SixDicts
from tests.worlds import Alone, InStep, Several
from tests.worlds.pettingzoo import Parallel

SMALL = {
    "rollout_fragment_length": 30,
    "train_batch_size": 60,
    "sgd_minibatch_size": 30,
    "num_sgd_iter": 1,
    "num_envs_per_worker": 2,
    "seed": 3,
}
OBS, ACTIONS = Box(0, 100, (1,)), Discrete(2)
LENGTHS = (7, 8)
"""Env steps of each episode of the two sub-environments; the score counts them."""


class Lone(Alone):
    """One agent; it alone knows the score, which is the env step."""

    observation_space = OBS

    def __init__(self, config: Any = None, length: int = 0) -> None:
        super().__init__(config, length or LENGTHS[config.vector_index])

    def told(self) -> float:
        return self.at


class Pair(Several):
    """Two agents; with `silent`, nobody acts in the last two steps."""

    observation_space = OBS

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.length = LENGTHS[config.vector_index]

    def shown(self) -> Any:
        return "" if self.config.get("silent") and self.at > self.length - 2 else "ab"

    def pay(self, actions: Any) -> Any:
        return {"a": 1.0, "b": 1.0}

    def told(self) -> float:
        return self.at


def game(config: Any) -> Any:
    return ParallelPettingZooEnv(Parallel(Pair(config)))


def fleet(config: Any) -> Any:
    return InStep([Lone(length=length) for length in LENGTHS])


def six_dicts(config: Any) -> Any:
    pairs = [Pair(config) for _ in LENGTHS]
    for pair, length in zip(pairs, LENGTHS, strict=True):
        pair.length = length
    return SixDicts(pairs, "now")


def vectorised(mode: AutoresetMode, lengths: tuple[int, int]) -> Callable[[Any], Any]:
    def create(config: Any) -> Any:
        return SyncVectorEnv([partial(Lone, length=length) for length in lengths], autoreset_mode=mode)

    return create


class Look(DefaultCallbacks):
    """Puts the score that the environment tells into the results."""

    def on_episode_step(self, *, base_env: Any, episode: Any, env_index: int, **kwargs: Any) -> None:
        episode.user_data["score"] = base_env.call(env_index, "told")

    def on_episode_end(self, *, base_env: Any, episode: Any, env_index: int, **kwargs: Any) -> None:
        score = base_env.call(env_index, "told")
        episode.hist_data["off"] = [score - episode.length, episode.user_data["score"] - episode.length]
        episode.hist_data["length"] = [episode.length]


WORLDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gymnasium": (Lone, {}),
    "gymnasium, one copy": (Lone, {"num_envs_per_worker": 1}),
    "gymnasium elsewhere": (Lone, {"remote_worker_envs": True}),
    "agents": (Pair, {}),
    "agents elsewhere": (Pair, {"remote_worker_envs": True}),
    "whole episodes": (Pair, {"batch_mode": "complete_episodes"}),
    "a worker": (Pair, {"num_workers": 1}),
    "a central critic": (Pair, {"critic_obs": "all_agents"}),
    "steps without an agent": (Pair, {"env_config": {"silent": True}}),
    "steps without an agent elsewhere": (Pair, {"env_config": {"silent": True}, "remote_worker_envs": True}),
    "PettingZoo": (game, {}),
    "VectorEnv": (fleet, {"num_envs_per_worker": 1}),
    "six dicts": (six_dicts, {"num_envs_per_worker": 1}),
    "vector, next step": (vectorised(AutoresetMode.NEXT_STEP, LENGTHS), {}),
    "vector, next step, together": (vectorised(AutoresetMode.NEXT_STEP, (7, 7)), {}),
    "vector, by hand": (vectorised(AutoresetMode.DISABLED, LENGTHS), {}),
}


@pytest.mark.slow_unless("gymnasium", "*y", "agents", "*s", "a c*", "*t", "P*", "V*", "v*")
@pytest.mark.parametrize("name", WORLDS)
def test_the_hooks_of_an_end_see_the_environment_as_it_ended_and_change_nothing(name: str) -> None:
    env, settings = WORLDS[name]
    with PPO(env=env, config={**SMALL, **settings, "callbacks": Look}) as algo:
        own = algo.train()
        looked = algo.evaluate()["evaluation"]["hist_stats"]
    for found in (own["hist_stats"], looked):
        assert len(found["off"]) >= 6
        assert set(found["off"]) == {0.0}
        assert set(found["length"]) <= set(LENGTHS)
    with PPO(env=env, config={**SMALL, **settings}) as algo:
        alone = algo.train()
    assert own["digest"] == alone["digest"]
    assert own["agent_reward_mean"] == alone["agent_reward_mean"]
    assert {name: own["hist_stats"][name] for name in alone["hist_stats"]} == alone["hist_stats"]


def test_a_hook_may_prepare_or_begin_the_next_episode_itself() -> None:
    class Longer(DefaultCallbacks):
        def on_episode_end(self, *, base_env: Any, env_index: int, **kwargs: Any) -> None:
            if env_index:
                base_env.get_sub_environments()[env_index].length += 1
                base_env.try_reset(env_index)

    for env in (Lone, Pair):
        with PPO(env=env, config={**SMALL, "rollout_fragment_length": 40, "callbacks": Longer}) as algo:
            result = algo.train()
        assert sorted(result["hist_stats"]["episode_lengths"]) == [*[7] * 5, 8, 9, 10, 11]
