"""`make_multi_agent`: copies of a single-agent environment as agents 0, 1, ..."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.base_env import ALL
from menv.env_context import EnvContext
from menv.envs import TicTacToe, make_multi_agent
from menv.errors import CallOrderError, ConfigError, ContractError
from tests.worlds import Alone, like


class Countdown(Alone):
    """Ends after as many steps as its first action says; odd numbers are truncations, 6 is both."""

    observation_space = action_space = gym.spaces.Discrete(10)
    closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return 0, {"seed": seed, "options": options}

    def see(self) -> Any:
        return self.at

    def step(self, action: int) -> Any:
        self.at += 1
        over, odd = self.at >= action, action % 2 == 1
        return self.at, float(action), over and not odd, over and (odd or action == 6), {}

    def close(self) -> None:
        self.closed = True


def copies(num_agents: int, **config: Any) -> Any:
    env = make_multi_agent(Countdown)({"num_agents": num_agents, **config})
    env.reset()
    return env


def test_agents_are_numbered_from_0_and_there_is_one_by_default() -> None:
    assert make_multi_agent(Countdown)().possible_agents == [0]
    env = copies(3)
    assert env.agents == env.possible_agents == [0, 1, 2]
    assert env.get_observation_space(2) == gym.spaces.Discrete(10)
    assert env.get_action_space(2) == gym.spaces.Discrete(10)


def test_a_gymnasium_id_gets_the_rest_of_the_config() -> None:
    env = make_multi_agent("Pendulum-v1")({"num_agents": 2, "g": 3.5})
    assert [copy.unwrapped.g for copy in env.envs] == [3.5, 3.5]  # type: ignore[attr-defined]


def test_copies_know_the_place_that_the_context_names() -> None:
    env: Any = make_multi_agent(Countdown)(EnvContext({"num_agents": 2}, worker_index=3, vector_index=5))
    assert [(copy.config.worker_index, copy.config.vector_index) for copy in env.envs] == [(3, 5)] * 2


def test_each_copy_gets_a_separate_seed_that_the_given_one_determines() -> None:
    def seeds(seed: int | None) -> list[Any]:
        _, infos = copies(4).reset(seed=seed)
        return [infos[agent]["seed"] for agent in range(4)]

    assert seeds(7)[0] == 7
    assert seeds(7) == seeds(7)
    assert len({*seeds(7), *seeds(8), *seeds(9)}) == 12
    assert seeds(None) == [None] * 4


def test_the_same_seed_gives_the_same_episode() -> None:
    env = make_multi_agent("CartPole-v1")({"num_agents": 2})
    first, _ = env.reset(seed=5)
    again, _ = env.reset(seed=5)
    assert all(np.array_equal(first[agent], again[agent]) for agent in (0, 1))
    assert not np.array_equal(first[0], first[1])


def test_a_finished_agent_is_observed_once_more_and_never_again() -> None:
    env = copies(2)
    obs, rewards, terminateds, truncateds, _ = env.step({0: 1, 1: 4})
    assert obs == {0: 1, 1: 1}
    assert rewards == {0: 1.0, 1: 4.0}
    assert truncateds == {0: True, 1: False, ALL: False}
    assert terminateds == {0: False, 1: False, ALL: False}
    assert env.agents == [1]
    obs, *_ = env.step({1: 4})
    assert obs == {1: 2}


@pytest.mark.parametrize(
    ("actions", "terminated"),
    [
        ([{0: 1, 1: 9}, {1: 2}], True),
        ([{0: 2, 1: 9}, {0: 2, 1: 9}, {1: 3}], False),
        ([{0: 9, 1: 9}, {0: 2, 1: 2}], True),
        ([{0: 9, 1: 9}, {0: 2, 1: 1}], False),
        ([{0: 1, 1: 1}], False),
    ],
)
def test_the_agents_that_end_last_decide_how_the_episode_ends(
    actions: list[dict[int, int]], terminated: bool
) -> None:
    env = copies(2)
    for answers in actions:
        assert env.agents
        *_, terminateds, truncateds, _ = env.step(answers)
    assert env.agents == []
    assert (terminateds[ALL], truncateds[ALL]) == (terminated, not terminated)


@pytest.mark.parametrize("wrong", [7, 0])
def test_an_unknown_or_finished_agent_that_acts_is_named(wrong: int) -> None:
    env = copies(2)
    env.step({0: 1, 1: 9})
    with pytest.raises(ContractError, match=f"agent {wrong} "):
        env.step({wrong: 1})


def test_step_before_reset_and_after_the_end_asks_for_reset() -> None:
    env = make_multi_agent(Countdown)()
    with pytest.raises(CallOrderError, match="reset"):
        env.step({})
    env.reset()
    env.step({0: 1})
    with pytest.raises(CallOrderError, match="reset"):
        env.step({0: 1})


@pytest.mark.parametrize("num_agents", [0, -1, 1.5, "two"])
def test_a_number_of_agents_that_makes_no_sense_is_refused(num_agents: Any) -> None:
    with pytest.raises(ConfigError):
        make_multi_agent(Countdown)({"num_agents": num_agents})


@pytest.mark.parametrize("original", [3, None, {"num_agents": 2}])
def test_a_creator_that_makes_no_environment_is_refused_at_once(original: Any) -> None:
    with pytest.raises(ConfigError, match="make_multi_agent"):
        make_multi_agent(original)


def test_an_old_step_of_four_values_is_explained() -> None:
    env = make_multi_agent(like(Countdown, step=lambda self, action: (0, 0.0, False, {})))()
    env.reset()
    with pytest.raises(ContractError, match="agent 0"):
        env.step({0: 1})


def test_an_old_reset_is_explained() -> None:
    env = make_multi_agent(like(Countdown, reset=lambda self: 0))({"num_agents": 2})
    for seed in (None, 1):
        with pytest.raises(ContractError, match="LegacyGym"):
            env.reset(seed=seed)


def test_copies_of_an_env_of_many_agents_are_refused() -> None:
    with pytest.raises(ContractError, match="TicTacToe"):
        make_multi_agent(TicTacToe)()


def test_close_closes_every_copy() -> None:
    env = copies(3)
    env.close()
    assert all(copy.closed for copy in env.envs)


def test_render_shows_the_copy_of_agent_0() -> None:
    env = make_multi_agent("CartPole-v1")({"num_agents": 2, "render_mode": "rgb_array"})
    env.reset(seed=0)
    assert env.render().shape == (400, 600, 3)
    env.close()


def test_all_copies_are_closed_even_if_one_raises() -> None:
    env = copies(3)
    env.envs[0].close = partial(open, "no such file")
    with pytest.raises(FileNotFoundError):
        env.close()
    assert [copy.closed for copy in env.envs[1:]] == [True, True]
