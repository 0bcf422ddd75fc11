"""Environments with one fault each, and the rule that every message about them keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.errors import MenvError
from tests.worlds import Alone, InStep, Several

UNIT: Any = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
GOOD = np.zeros(3, np.float32)


class Faulty(Several):
    """Two agents, five env steps an episode; subclasses change one thing."""

    possible_agents, observation_space, length = ("ann", "bob"), UNIT, 5

    def see(self, agent: str) -> Any:
        return GOOD


class Sees(Faulty):
    """Shows bob `bad` at env step `when` of an episode, in a space of its own."""

    bad: Any = GOOD
    good: Any = GOOD
    space: gym.Space[Any] = UNIT
    when = 3

    def __init__(self, context: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.observation_space = self.space

    def see(self, agent: str) -> Any:
        return self.bad if agent == "bob" and self.at == self.when else self.good


def seeing(bad: Any, space: gym.Space[Any] = UNIT, good: Any = GOOD, when: int = 3) -> type[Sees]:
    return type("Sees", (Sees,), {"bad": bad, "space": space, "good": good, "when": when})


class FaultyGym(Alone):
    """One agent, five env steps an episode."""

    observation_space, length = UNIT, 5

    def see(self) -> Any:
        return GOOD


class Handwritten(InStep):
    """Two of them in step; subclasses break one thing."""

    def __init__(self, context: Any = None) -> None:
        super().__init__([FaultyGym(), FaultyGym()])


SMALL: dict[str, Any] = {
    "rollout_fragment_length": 10,
    "train_batch_size": 10,
    "sgd_minibatch_size": 10,
    "num_sgd_iter": 1,
}


def refusal(env: Any, config: Mapping[str, Any] | None = None, error: type[Exception] = MenvError) -> str:
    """Build, train and return the message of the error, which must say what to expect and to do next."""
    with pytest.raises(error) as caught:
        PPO(env=env, config={**SMALL, **(config or {})}).train()
    assert isinstance(caught.value, MenvError)
    return checked(str(caught.value))


def told(call: Callable[[], Any], error: type[Exception] = MenvError) -> str:
    """Return the one clear line with which a call is refused."""
    with pytest.raises(error) as caught:
        call()
    return checked(str(caught.value))


def checked(message: str) -> str:
    """Return a message that keeps the form `<where>: <what>, expected <rule>; <next step>`."""
    where, colon, rest = message.partition(": ")
    assert colon, f"no place in {message!r}"
    assert where
    what, semicolon, next_step = rest.rpartition("; ")
    assert "expected" in what or "outside [" in what, f"no rule in {message!r}"
    assert semicolon, f"no next step in {message!r}"
    assert len(next_step) > 10
    assert "\n" not in message, "more than one line"
    assert len(message) < 700, "too long for one clear line"
    return message
