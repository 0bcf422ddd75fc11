"""Environments with one fault each, and the rule that every message about them keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.base_env import ALL
from menv.errors import MenvError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

UNIT = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
GOOD = np.zeros(3, np.float32)


class Faulty(MultiAgentEnv):
    """Two agents, five env steps an episode; subclasses change one thing."""

    def __init__(self, context: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.possible_agents = ["ann", "bob"]
        self.observation_space: gym.Space[Any] = UNIT
        self.action_space = gym.spaces.Discrete(2)
        self.at = 0

    def observe(self, agent: str) -> Any:
        return GOOD

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        self.at = 0
        return {agent: self.observe(agent) for agent in self.possible_agents}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        self.at += 1
        obs = {agent: self.observe(agent) for agent in self.possible_agents}
        return obs, dict.fromkeys(obs, 1.0), {ALL: self.at == 5}, {ALL: False}, {}


class Sees(Faulty):
    """Shows bob `bad` at env step `when` of an episode, in a space of its own."""

    bad: Any = GOOD
    good: Any = GOOD
    space: gym.Space[Any] = UNIT
    when = 3

    def __init__(self, context: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.observation_space = self.space

    def observe(self, agent: str) -> Any:
        return self.bad if agent == "bob" and self.at == self.when else self.good


def seeing(bad: Any, space: gym.Space[Any] = UNIT, good: Any = GOOD, when: int = 3) -> type[Sees]:
    return type("Sees", (Sees,), {"bad": bad, "space": space, "good": good, "when": when})


class FaultyGym(gym.Env[Any, Any]):
    """One agent, five env steps an episode."""

    observation_space: gym.Space[Any] = UNIT
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)

    def __init__(self, context: Mapping[str, Any] | None = None) -> None:
        self.at = 0

    def observe(self) -> Any:
        return GOOD

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self.observe(), 1.0, self.at == 5, False, {}


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
