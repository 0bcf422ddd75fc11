"""Steps past the wrappers of `gymnasium.make`: what they return, count and raise is what `env.step` would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from hypothesis import given
from hypothesis import strategies as st

from menv.adapters.wrapped_steps import direct_step
from menv.loop.convert import to_base_env

SPACE = gym.spaces.Box(0, 1000, (1,), np.float32)


class Counting(gym.Env[Any, Any]):
    """Shows its env steps, ends after `length`, raises for the action 2."""

    observation_space = SPACE
    action_space = gym.spaces.Discrete(3)

    def __init__(self, length: int = 1000) -> None:
        self.length, self.at, self.seen = length, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 2:
            raise ArithmeticError("two")
        self.at += 1
        self.seen += 1
        return np.full(1, self.at, np.float32), float(action), self.at >= self.length, False, {"at": self.at}


class Halving(gym.RewardWrapper[Any, Any]):
    """Pays half."""

    def reward(self, reward: Any) -> float:
        return float(reward) / 2


LAYERS: dict[str, Callable[[Any], Any]] = {
    "check": PassiveEnvChecker,
    "order": OrderEnforcing,
    "halve": Halving,
    "limit": lambda env: TimeLimit(env, 5),
    "long_limit": lambda env: TimeLimit(env, 9),
}


def built(layers: list[str], length: int = 1000) -> gym.Env[Any, Any]:
    env: gym.Env[Any, Any] = Counting(length)
    for layer in layers:
        env = LAYERS[layer](env)
    return env


def outcome(step: Any, action: int) -> Any:
    try:
        obs, *rest = step(action)
    except ArithmeticError as error:
        return str(error)
    return (obs.tolist(), *rest)


def layers_of(env: Any) -> list[Any]:
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), max_size=5),
    length=st.integers(1, 8),
    actions=st.lists(st.lists(st.sampled_from([0, 1, 2]), max_size=12), min_size=1, max_size=4),
)
def test_what_is_returned_counted_and_raised_is_what_the_wrappers_say(
    layers: list[str], length: int, actions: list[list[int]]
) -> None:
    """Also past the end of an episode, and after an exception."""
    plain, quick = built(layers, length), built(layers, length)
    for episode in actions:
        plain.reset(seed=1)
        quick.reset(seed=1)
        step = direct_step(quick)
        for action in episode:
            assert outcome(step, action) == outcome(plain.step, action)
            for one, other in zip(layers_of(quick), layers_of(plain), strict=True):
                assert vars(one).get("_elapsed_steps") == vars(other).get("_elapsed_steps")
                assert vars(one).get("checked_step") == vars(other).get("checked_step")
    assert quick.unwrapped.seen == plain.unwrapped.seen  # type: ignore[attr-defined]


def called_in_a_step(env: gym.Env[Any, Any]) -> list[str]:
    """Return the classes of those inside `env` whose `step` a direct step calls."""
    step, called = direct_step(env), []
    inner = layers_of(env)[1:]

    def noting(layer: Any) -> Any:
        real = layer.step

        def noted(action: Any) -> Any:
            called.append(type(layer).__name__)
            return real(action)

        return noted

    for layer in inner:
        layer.step = noting(layer)
    step(0)
    for layer in inner:
        del layer.step
    return called


def test_the_wrappers_of_make_are_passed_by_once_they_have_looked() -> None:
    """In the installed version: all three, the one that looks at two steps after these."""
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    assert called_in_a_step(env) == ["PassiveEnvChecker", "CartPoleEnv"]
    env.step(1)
    env.reset(seed=0)
    assert called_in_a_step(env) == ["CartPoleEnv"]


def test_a_step_that_somebody_put_on_a_wrapper_is_called() -> None:
    """An instance's own, or one of the class."""
    env = built(["limit", "order"])
    env.reset()
    own = env.step
    env.step = lambda action: own(1)  # type: ignore[method-assign]
    assert direct_step(env)(0)[1] == 1.0


def test_a_class_whose_step_was_changed_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    env = built(["limit"])
    env.reset()
    real = TimeLimit.step
    monkeypatch.setattr(TimeLimit, "step", lambda self, action: real(self, 1))
    assert direct_step(env)(0)[1] == 1.0


def test_a_limit_that_is_changed_in_an_episode_counts_at_once() -> None:
    """As those do who lengthen the episodes of `gymnasium.make` by hand."""
    env: Any = built(["limit"])
    env.reset()
    step = direct_step(env)
    env._max_episode_steps = 2
    assert [step(0)[3] for _ in range(2)] == [False, True]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_episodes_of_copies_end_at_the_limit_again_and_again(limit: int) -> None:
    """In the first episode, in which the wrappers still look, and in all that follow."""

    def make_env(index: int) -> gym.Env[Any, Any]:
        return TimeLimit(OrderEnforcing(PassiveEnvChecker(Counting())), limit)

    copies = to_base_env(make_env(0), make_env, 3)
    lengths: list[int] = []
    for _ in range(6 * limit):
        ready = copies.poll()
        lengths += [end.env_steps for end in ready.episodes]
        copies.send_actions(ready.slots, [0] * len(ready.slots))
    assert len(lengths) >= 15
    assert set(lengths) == {limit}
    copies.stop()
