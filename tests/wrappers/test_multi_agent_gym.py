"""Environments of gymnasium's kind in which several agents act, in tuples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import check_env
from menv.algorithms import PPO
from menv.base_env import ALL, COMMON
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.registry import make_env
from menv.wrappers import MultiAgentGym
from tests.worlds import Alone, like

BOX = gym.spaces.Box(0.0, 99.0, (1,), np.float32)
Step = tuple[Any, Any, Any, Any, Any]


def seen(*numbers: float) -> tuple[Any, ...]:
    return tuple(np.array([number], np.float32) for number in numbers)


class Scripted(gym.Env[Any, Any]):
    """Returns what a script says, and keeps what it was given."""

    def __init__(self, observation_space: Any, action_space: Any, reset: Any, *steps: Step) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.script, self.given, self.seeds = [reset, *steps], list[Any](), list[Any]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return self.script[0]

    def step(self, action: Any) -> Any:
        self.given.append(action)
        return self.script[len(self.given)]


ACTS = gym.spaces.Tuple(
    (gym.spaces.Discrete(4), gym.spaces.Discrete(4, start=2), gym.spaces.Box(-1, 1, (2,)))
)
ANSWERS = {"agent_0": 1, "agent_1": 3, "agent_2": np.zeros(2, np.float32)}


def wrapped(*steps: Any) -> MultiAgentGym:
    """Return three agents in an episode that goes on as the steps say."""
    env = MultiAgentGym(Scripted(gym.spaces.Tuple((BOX,) * 3), ACTS, (seen(1, 2, 3), {}), *steps))
    env.reset(seed=7)
    return env


class Foragers(Alone):
    """Each of three agents earns its action; the episode ends after 4 steps."""

    observation_space, length = gym.spaces.Tuple((BOX,) * 3), 4
    action_space = gym.spaces.Tuple((gym.spaces.Discrete(3),) * 3)

    def see(self) -> Any:
        return seen(*[float(self.at)] * 3)

    def pay(self, action: Any) -> Any:
        return [int(chosen) for chosen in action]

    def info(self) -> Any:
        return {"time": self.at}


def test_places_are_agents_with_different_spaces() -> None:
    env = wrapped()
    assert env.possible_agents == env.agents == ["agent_0", "agent_1", "agent_2"]
    assert env.get_action_space("agent_1") == gym.spaces.Discrete(4, start=2)
    assert env.get_observation_space("agent_2") == BOX
    obs, infos = env.reset()
    assert {agent: float(value[0]) for agent, value in obs.items()} == {
        "agent_0": 1,
        "agent_1": 2,
        "agent_2": 3,
    }
    assert (infos, env.env.seeds) == ({}, [7, None])


@pytest.mark.parametrize(
    ("terminated", "truncated", "over"),
    [
        (True, False, (True, False)),
        (np.False_, np.True_, (False, True)),
        ([True] * 3, [False] * 3, (True, False)),
        ([True, True, False], np.array([False, False, True]), (False, True)),
        ([False] * 3, False, (False, False)),
    ],
)
def test_the_episode_ends_when_the_flags_of_all_are_set(terminated: Any, truncated: Any, over: Any) -> None:
    env = wrapped((seen(4, 5, 6), [0.5, 1, np.float64(2)], terminated, truncated, {"score": 3}))
    obs, rewards, terminateds, truncateds, infos = env.step(ANSWERS)
    assert env.env.given[0] == tuple(ANSWERS.values())
    assert rewards == {"agent_0": 0.5, "agent_1": 1, "agent_2": 2}
    assert list(obs) == list(ANSWERS)
    assert (terminateds, truncateds) == ({ALL: over[0]}, {ALL: over[1]})
    assert infos == {COMMON: {"score": 3}}
    if any(over):
        with pytest.raises(CallOrderError):
            env.step({})


@pytest.mark.parametrize("paid", [1.5, np.float32(1.5), np.array(1.5)])
def test_one_reward_is_paid_to_each(paid: Any) -> None:
    assert wrapped((seen(1, 2, 3), paid, False, False, {})).step(ANSWERS)[1] == dict.fromkeys(ANSWERS, 1.5)


def test_the_checker_finds_nothing_and_ppo_trains_with_a_policy_for_each() -> None:
    assert check_env(lambda context: MultiAgentGym(Foragers())) == []
    settings = {"num_envs_per_worker": 2, "rollout_fragment_length": 8, "train_batch_size": 16, "seed": 0}
    policies = ["agent_0", "agent_1", "agent_2"]
    multi = {"policies": policies, "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id}
    with PPO(env=lambda context: MultiAgentGym(Foragers()), config={**settings, "multiagent": multi}) as algo:
        batches = algo.sample().policy_batches
        for policy in policies:
            assert batches[policy]["rewards"].tolist() == batches[policy]["actions"].tolist()
            assert batches[policy]["terminateds"].sum() == 4
        assert algo.train()["episode_len_mean"] == 4


def stepped(*values: Any) -> Callable[[], Any]:
    return lambda: wrapped(values).step(ANSWERS)


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (lambda: MultiAgentGym(gym.make("CartPole-v1")), ConfigError),
        (lambda: MultiAgentGym(3), ConfigError),
        (lambda: MultiAgentGym(Scripted(gym.spaces.Tuple((BOX, BOX)), ACTS, None)), ConfigError),
        (lambda: MultiAgentGym(Scripted({"a": BOX}, {"a": gym.spaces.Discrete(2)}, None)), ConfigError),
        (stepped(seen(1, 2), 0.0, False, False, {}), ContractError),
        (stepped({"agent_0": 1}, 0.0, False, False, {}), ContractError),
        (stepped(seen(1, 2, 3), [1, 2], False, False, {}), ContractError),
        (stepped(seen(1, 2, 3), 0.0, [True, True], False, {}), ContractError),
        (stepped(seen(1, 2, 3), 0.0, [None] * 3, False, {}), ContractError),
        (stepped(seen(1, 2, 3), 0.0, "no", False, {}), ContractError),
        (stepped(seen(1, 2, 3), 0.0, [True, False, False], False, {}), ContractError),
        (stepped(seen(1, 2, 3), 0.0, False, {}), ContractError),
        (lambda: MultiAgentGym(Foragers()).step({}), CallOrderError),
        (lambda: wrapped().step({"agent_0": 1}), ContractError),
    ],
)
def test_what_has_another_form_is_refused_in_one_line(run: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        run()
    assert "MultiAgentGym" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        ([1.0, 2.0], False),
        ([1.0, 2.0], True),
        ({"agent_0": 1.0}, False),
        (0.0, [True, False]),
        (0.0, {"agent_0": True}),
        (0.0, np.array([True, False])),
    ],
    ids=str,
)
def test_a_multi_agent_environment_passed_as_single_agent_is_pointed_to_the_wrapper(values: Any) -> None:
    reward, flag = values
    spaces = gym.spaces.Tuple((BOX, BOX)), gym.spaces.Tuple((gym.spaces.Discrete(2),) * 2)
    algo = PPO(
        env=lambda context: Scripted(*spaces, (seen(1, 2), {}), (seen(3, 4), reward, flag, False, {})),
        config={"rollout_fragment_length": 1, "train_batch_size": 1},
    )
    with pytest.raises(ContractError, match="MultiAgentGym"):
        algo.sample()
    algo.stop()


def test_an_environment_that_counts_its_agents_is_wrapped_without_being_asked() -> None:
    assert isinstance(make_env(like(Foragers, n_agents=3)), MultiAgentGym)
    # A Tuple of as many parts as there are agents is needed: of these, one agent acts on all parts.
    assert isinstance(make_env(like(Foragers, n_agents=2)), Foragers)
    assert isinstance(make_env(Foragers), Foragers)
