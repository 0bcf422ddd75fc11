"""Masks of PettingZoo games: in the observation, in infos, late, and left alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.errors import ConfigError, ContractError
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.wrappers_pettingzoo.small_games import OBS, Together, Turns

# PettingZoo 1.27 asks for its new `make`, which older versions do not have; the modules are what people use.
pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")

PLAN = {"a": (6, "terminated"), "b": (6, "terminated")}
MASKED = gym.spaces.Dict({"observation": OBS, "action_mask": gym.spaces.Box(0, 1, (3,), np.int8)})


def wrapped(interface: Any, masks: str, from_infos: bool | None = None) -> Any:
    if interface is Turns:
        return PettingZooEnv(Turns(PLAN, masks=masks), action_mask_from_infos=from_infos)
    return ParallelPettingZooEnv(Together(PLAN, masks=masks), action_mask_from_infos=from_infos)


both = pytest.mark.parametrize("interface", [Turns, Together])


def two_steps(env: Any) -> list[dict[str, Any]]:
    """Return all observations of a reset and the two steps after it."""
    shown = [env.reset()[0]]
    for _ in range(2):
        shown.append(env.step(dict.fromkeys(shown[-1], 0))[0])
    return shown


@both
@pytest.mark.parametrize("from_infos", [None, True])
def test_masks_in_infos_are_added_to_the_observation(interface: Any, from_infos: bool | None) -> None:
    env = wrapped(interface, "always", from_infos)
    assert env.get_observation_space("a") == env.get_observation_space("b") == MASKED
    assert env.get_observation_space("a") is env.get_observation_space("a")
    for obs in two_steps(env):
        for agent, value in obs.items():
            assert MASKED.contains(value)
            # Only "a" is told a mask; who is told none may do anything.
            assert value["action_mask"].tolist() == ([1, 0, 1] if agent == "a" else [1, 1, 1])


@both
def test_a_mask_that_turns_up_late_is_refused_by_name(interface: Any) -> None:
    with pytest.raises(ContractError, match="action_mask_from_infos"):
        two_steps(wrapped(interface, "late"))


@both
def test_a_late_mask_is_used_when_it_was_announced(interface: Any) -> None:
    env = wrapped(interface, "late", True)
    masks = [obs["a"]["action_mask"].tolist() for obs in two_steps(env) if "a" in obs]
    assert masks[0] == [1, 1, 1]
    assert set(map(tuple, masks[1:])) == {(1, 0, 1)}


@both
def test_masks_can_be_left_in_infos(interface: Any) -> None:
    env = wrapped(interface, "always", False)
    assert env.get_observation_space("a") is OBS
    obs, infos = env.reset()
    assert OBS.contains(obs["a"])
    assert infos["a"]["action_mask"].tolist() == [1, 0, 1]


def test_a_mask_in_the_observation_stays_where_it_is() -> None:
    from pettingzoo.classic import tictactoe_v3

    game = tictactoe_v3.env()
    env = PettingZooEnv(game)
    assert env.get_observation_space("player_1") is game.observation_space("player_1")
    env.reset()
    obs = env.step({"player_1": 4})[0]["player_2"]
    assert obs["action_mask"].tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    assert sorted(obs) == ["action_mask", "observation"]


def test_a_turn_based_game_converted_to_parallel_is_pointed_to_the_aec_wrapper() -> None:
    from pettingzoo.classic import tictactoe_v3
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel

    def game(context: Any) -> ParallelPettingZooEnv:
        return ParallelPettingZooEnv(turn_based_aec_to_parallel(tictactoe_v3.env()))

    with PPO(env=game) as algo, pytest.raises(ContractError, match="'player_2'"):
        algo.sample()
    # Who only takes the other wrapper is not sent back.
    with pytest.raises(ConfigError, match="AEC"):
        PettingZooEnv(turn_based_aec_to_parallel(tictactoe_v3.env()))
    with PPO(env=lambda context: PettingZooEnv(tictactoe_v3.env()), config={"seed": 0}) as algo:
        assert algo.sample().env_steps() > 0


@both
def test_a_policy_never_takes_a_move_that_the_mask_in_infos_forbids(interface: Any) -> None:
    config: dict[str, Any] = {"num_envs_per_worker": 2, "rollout_fragment_length": 40, "seed": 0}
    with PPO(env=lambda context: wrapped(interface, "always"), config=config) as algo:
        rows = algo.sample()["default_policy"]
    acted = np.bincount(rows["actions"][rows["agent_index"] == 0], minlength=3)
    assert acted[1] == 0
    assert acted.sum() >= 40
    assert 1 in rows["actions"][rows["agent_index"] == 1]


def test_a_mask_in_infos_may_be_gymnasiums_tuple_of_one_for_each_component() -> None:
    class Joint(Together):
        """The second component of "a"'s actions has one choice left, which is another one at odd steps."""

        def action_space(self, agent: str) -> Any:
            return gym.spaces.MultiDiscrete([3, 2])

        def _infos(self, agents: list[str]) -> dict[str, Any]:
            odd = self.steps % 2
            mask = np.ones(3, np.int8), np.array([1 - odd, odd], np.int8)
            return {agent: {"action_mask": mask} if agent == "a" else {} for agent in agents}

    config: dict[str, Any] = {"rollout_fragment_length": 40, "seed": 0}
    with PPO(env=lambda context: ParallelPettingZooEnv(Joint(PLAN)), config=config) as algo:
        space: Any = algo.get_policy().observation_space
        assert space["action_mask"].shape == (5,)
        rows = algo.sample()["default_policy"]
    of_a = rows["agent_index"] == 0
    assert (rows["actions"][of_a, 1] == rows["t"][of_a] % 2).all()
    assert {*rows["actions"][~of_a, 1].tolist()} == {0, 1}
