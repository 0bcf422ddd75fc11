"""Vectorised environments that are wrong, or are called wrongly: each fault has one clear line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

from menv import VectorEnv, to_base_env
from menv.algorithms import PPO
from menv.errors import ConfigError, ContractError
from tests.bad_input.broken_envs import GOOD, SMALL, UNIT, FaultyGym, Handwritten, checked, refusal, told
from tests.worlds import like

TWO = gym.spaces.Discrete(2)


class Noting(FaultyGym):
    """Notes its seeds and counts its steps."""

    def __init__(self, index: Any = 0) -> None:
        super().__init__()
        self.seeds: list[Any] = []
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return super().step(action)


def test_more_environments_than_num_envs_are_refused_and_the_list_is_left_alone() -> None:
    given = [Noting(), Noting(), Noting()]
    message = told(lambda: VectorEnv.vectorize_gym_envs(Noting, given, num_envs=2), ConfigError)
    assert "3 existing_envs" in message
    assert "num_envs=2" in message
    assert len(given) == 3
    one = [Noting()]
    env = VectorEnv.vectorize_gym_envs(Noting, one, num_envs=3)
    assert len(one) == 1
    assert env.num_envs == len(env.get_sub_environments()) == 3
    assert env.get_sub_environments()[0] is one[0]
    env.get_sub_environments().clear()
    assert len(env.get_sub_environments()) == 3


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, "2", None, True], ids=repr)
def test_an_invalid_number_of_environments_is_refused(num_envs: Any) -> None:
    assert "num_envs" in told(lambda: VectorEnv(UNIT, TWO, num_envs), ConfigError)
    assert "num_envs" in told(lambda: VectorEnv.vectorize_gym_envs(Noting, num_envs=num_envs), ConfigError)


def test_missing_environments_need_make_env() -> None:
    assert "make_env" in told(lambda: VectorEnv.vectorize_gym_envs(num_envs=2), ConfigError)
    assert "make_env" in told(lambda: VectorEnv.vectorize_gym_envs(None, [Noting()], num_envs=2), ConfigError)


def test_a_handwritten_environment_trains() -> None:
    with PPO(env=Handwritten, config=SMALL) as algorithm:
        result = algorithm.train()
    assert result["episode_reward_mean"] == 5.0


@pytest.mark.parametrize("method", ["vector_reset", "reset_at", "vector_step"])
def test_a_method_that_is_not_written_is_named(method: str) -> None:
    env = type("Unfinished", (Handwritten,), {method: getattr(VectorEnv, method)})
    message = refusal(env, error=ContractError)
    assert f"Unfinished.{method}" in message


NAN = float("nan")
STEPS: list[tuple[str, int, Any]] = [
    ("ME097", 0, [GOOD]), ("ME097", 1, [1.0] * 3), ("ME097", 1, 1.0), ("ME097", 2, False), ("ME097", 4, {}),
    ("ME097", 0, {0: GOOD, 1: GOOD}), ("ME025", 1, [1.0, "much"]), ("ME025", 1, ["1", "2"]), ("ME026", 1, [1.0, NAN]),
    ("ME024", 2, ["no", "no"]), ("ME024", 3, [{}, {}]), ("ME024", 2, [False, None]), ("ME029", 4, [{}, None]),
]  # fmt: skip
"""The finding, and which of the five lists is replaced by what."""


def refused_as(method: str, broken: Callable[[Any], Any]) -> str:
    """Return the finding of the error about an environment whose method returns something else."""
    good = getattr(Handwritten, method)

    def bad(self: Any, *args: Any, **kwargs: Any) -> Any:
        return broken(good(self, *args, **kwargs))

    with (
        pytest.raises(ContractError) as caught,
        PPO(env=type("Broken", (Handwritten,), {method: bad})) as algo,
    ):
        algo.train()
    assert method in checked(str(caught.value))
    return caught.value.finding


@pytest.mark.parametrize(("finding", "part", "value"), STEPS)
def test_a_list_of_another_form_is_named_with_its_method(finding: str, part: int, value: Any) -> None:
    assert refused_as("vector_step", lambda result: (*result[:part], value, *result[part + 1 :])) == finding


@pytest.mark.parametrize(
    ("finding", "method", "broken"),
    [
        ("ME020", "vector_step", lambda result: None),
        ("ME020", "vector_step", lambda result: 1.0),
        ("ME020", "vector_step", lambda result: result[:4]),
        ("ME011", "vector_reset", lambda result: result[0]),
        ("ME011", "vector_reset", lambda result: (*result, [])),
        ("ME097", "vector_reset", lambda result: ([GOOD], result[1])),
        ("ME097", "vector_reset", lambda result: (1.0, result[1])),
        ("ME097", "vector_reset", lambda result: (result[0], None)),
        ("ME011", "reset_at", lambda result: result[0]),
        ("ME029", "reset_at", lambda result: (result[0], "fine")),
    ],
)
def test_a_return_value_of_another_form_is_named_with_its_method(
    finding: str, method: str, broken: Callable[[Any], Any]
) -> None:
    assert refused_as(method, broken) == finding


def test_a_last_observation_that_is_none_is_refused() -> None:
    class NoLast(Handwritten):
        def vector_step(self, actions: Any) -> Any:
            _, rewards, terminateds, *rest = super().vector_step(actions)
            return [None if over else GOOD for over in terminateds], rewards, terminateds, *rest

    message = refusal(NoLast, error=ContractError)
    assert re.search("vector_step, env 0: .*None", message)


OldReset = like(Noting, reset=lambda self, **kwargs: GOOD)
OldStep = like(Noting, step=lambda self, action: (GOOD, 1.0, False, {}))
NoSeed = like(Noting, reset=lambda self: (GOOD, {}))


@pytest.mark.parametrize("old", [OldReset, OldStep, NoSeed])
def test_an_environment_of_the_old_gym_api_is_pointed_to_the_wrapper(old: type[Noting]) -> None:
    message = told(
        lambda: PPO(
            env=lambda context: VectorEnv.vectorize_gym_envs(old, num_envs=2), config={**SMALL, "seed": 1}
        ).train(),
        ContractError,
    )
    assert message.startswith("env 0 ")
    assert "menv.wrappers.LegacyGym" in message


def test_a_missing_autoreset_mode_is_asked_for() -> None:
    class Silent(SyncVectorEnv):
        @property
        def metadata(self) -> Any:
            return {}

        @metadata.setter
        def metadata(self, value: Any) -> None: ...

    assert "AutoresetMode" in told(lambda: to_base_env(Silent([Noting])), ConfigError)


def test_parameters_that_are_missing_are_named_with_the_right_ones() -> None:
    old = like(VectorEnv, vector_reset=lambda self: [GOOD, GOOD])
    message = told(
        lambda: PPO(env=lambda context: old(UNIT, TWO, 2), config={**SMALL, "seed": 1}).sample(),
        ContractError,
    )
    assert "vector_reset(self, *, seeds=None, options=None)" in message
