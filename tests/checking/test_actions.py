"""Who decides while an environment is checked: chance, within masks and spaces, or a given function."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.checking import check_env
from menv.errors import ConfigError
from tests.bad_input.broken_envs import UNIT, Faulty, FaultyGym
from tests.checking.test_check_env import codes
from tests.worlds import Several, like


def test_given_actions_decide() -> None:
    taken: list[Any] = []

    class Notes(Faulty):
        def step(self, action_dict: Any) -> Any:
            taken.extend(action_dict.values())
            if action_dict["bob"] != 1:
                raise ValueError("against the rules")
            return super().step(action_dict)

    assert codes(check_env(Notes)) == ["ME090"]
    taken.clear()
    assert check_env(Notes, actions=lambda obs, agent_id: int(agent_id == "bob")) == []
    assert set(taken) == {0, 1}
    with pytest.raises(ConfigError, match="'ann'"):
        check_env(Notes, actions=lambda obs, agent_id: 2)


def test_random_given_actions_do_not_look_like_a_broken_seed() -> None:
    rng = np.random.default_rng()

    class Echo(FaultyGym):
        last = 0

        def see(self) -> Any:
            return np.full(3, self.last if self.at else 0, np.float32)

        def pay(self, action: Any) -> float:
            self.last = int(action)
            return 1.0

    assert check_env(Echo, actions=lambda obs, agent_id: int(rng.integers(2))) == []


@pytest.mark.parametrize("space", [
    gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([3])]),
], ids=str)  # fmt: skip
def test_random_actions_keep_to_the_mask_which_holds_for_all_parts(space: Any) -> None:
    class Doors(FaultyGym):
        observation_space: Any = gym.spaces.Dict(
            {"action_mask": gym.spaces.Box(0, 1, (5,), np.int8), "view": UNIT}
        )
        action_space = space

        def see(self) -> Any:
            mask = np.array([0, 1, 1, 0, 1] if self.at % 2 else [1, 0, 1, 0, 0], np.int8)
            return {"action_mask": mask, "view": np.zeros(3, np.float32)}

        def step(self, action: Any) -> Any:
            first, second = np.flatnonzero(np.asarray(gym.spaces.flatten(space, action)))
            assert self.see()["action_mask"][[first, second]].all(), "a forbidden choice"
            return super().step(action)

    assert check_env(Doors) == []


class Pair(Several):
    """Two who act as one, each behind doors of which some are shut."""

    flags = (np.array([0, 1, 1], np.int8), np.array([1, 0, 0], np.int8))
    observation_space = gym.spaces.Dict({"action_mask": gym.spaces.Box(0, 1, (3,), np.int8), "view": UNIT})
    action_space = gym.spaces.Discrete(3)
    length = 5

    def see(self, agent: Any) -> Any:
        return {"action_mask": self.flags[self.at % 2].copy(), "view": np.zeros(3, np.float32)}

    def pay(self, actions: Any) -> Any:
        for action in actions.values():
            assert self.flags[(self.at - 1) % 2][action], "a forbidden choice"
        return super().pay(actions)


def test_masks_of_a_group_that_allow_a_member_nothing_or_do_not_fit_are_found() -> None:
    shut = like(Pair, flags=(np.array([1, 1, 0], np.int8), np.zeros(3, np.int8)))

    wide = like(Pair, action_space=gym.spaces.Discrete(2))
    found = check_env(lambda context: shut().with_agent_groups({"team": ["a", "b"]}))
    assert "none of 6" in next(one.message for one in found if one.code == "ME050")
    found = check_env(lambda context: wide().with_agent_groups({"team": ["a", "b"]}))
    assert "6 flags" in next(one.message for one in found if one.code == "ME051")


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
        gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        gym.spaces.Box(0.0, np.inf, (), np.float32),
        gym.spaces.Discrete(3, start=5),
        gym.spaces.MultiDiscrete([2, 3], start=[1, 2]),
        gym.spaces.Box(0, 9, (2,), np.int32),
        gym.spaces.MultiBinary(3),
        gym.spaces.Text(4),
        gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Tuple([gym.spaces.Discrete(3)])}),
    ],
    ids=str,
)
def test_random_actions_are_in_their_space(space: Any) -> None:
    class Takes(FaultyGym):
        action_space = space

        def step(self, action: Any) -> Any:
            assert space.contains(action), action
            return super().step(action)

    assert set(codes(check_env(Takes, env_steps=50))) <= {"ME005"}


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([2, 3])]), []),
        (gym.spaces.Dict({"a": gym.spaces.Box(-1.0, 1.0, (2,)), "b": gym.spaces.Box(0.0, 1.0, ())}), []),
        (gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(-1.0, 1.0, (2,))]), []),
        (gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.MultiBinary(2)]), ["ME005"]),
    ],
    ids=str,
)
def test_nested_actions_of_stock_networks_are_not_a_finding(space: Any, found: list[str]) -> None:
    assert codes(check_env(like(FaultyGym, action_space=space), env_steps=20)) == found
