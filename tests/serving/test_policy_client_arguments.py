"""What no message can hold is refused in the call that brings it, and costs neither the episode nor what was paid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.errors import ConfigError, ContractError, EpisodeError
from menv.serving.client.policy_client import PolicyClient
from tests.serving.courses import OBSERVATIONS, Course, observation

HALF = "half of a \ud83d"
PAIR: dict[str, Any] = {
    "observation_space": dict.fromkeys("ab", OBSERVATIONS),
    "action_space": dict.fromkeys("ab", gym.spaces.Discrete(2)),
}
every_mode = pytest.mark.parametrize("mode", ["local", "remote"])


def both(step: int) -> dict[str, Any]:
    return dict.fromkeys("ab", observation(step))


@pytest.mark.parametrize(("settings", "why"), [
    ({"client": HALF}, "client is 'half of a .*expected a text"),
    ({"client": 5}, "client is 5, expected a text"),
    ({"session": HALF}, "session is 'half of a .*expected None or"),
    ({"session": ""}, "session is '', expected None or"),
    ({"update_interval": "often"}, "update_interval='often', expected seconds"),
    ({"update_interval": float("nan")}, "update_interval=nan, expected seconds"),
    ({"update_interval": -1.0}, r"update_interval=-1\.0, expected seconds"),
    ({"seed": 1.5}, r"seed=1\.5, expected a whole number"),
    ({"seed": "x"}, "seed='x', expected a whole number"),
])  # fmt: skip
def test_a_setting_that_no_client_can_have_is_refused_before_anybody_is_called(
    settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"PolicyClient: {why}"):
        PolicyClient("http://127.0.0.1:1", timeout=20, **settings)


@every_mode
def test_an_episode_that_cannot_begin_is_refused_in_either_mode(mode: Any) -> None:
    with Course() as course, PolicyClient(course.address, mode, update_interval=None, timeout=20) as client:
        with pytest.raises(ConfigError, match=r"the id is 'half of a .*that UTF-8 has"):
            client.start_episode(HALF)
        for wrong in ("False", 1, None):
            with pytest.raises(ContractError, match=r"training_enabled is .*expected True or False"):
                client.start_episode("e", wrong)  # type: ignore[arg-type]
        name = client.start_episode("e", training_enabled=np.True_)  # type: ignore[arg-type]
        client.get_action(name, observation(0))
        client.log_returns(name, 4.0)
        flags: list[Any] = ["False", [False], np.array([True, False])]
        for flag in flags:
            with pytest.raises(ContractError, match=r"truncated is .*expected True or False"):
                client.end_episode(name, observation(1), flag)
        client.end_episode(name, observation(1), np.bool_(False))  # type: ignore[arg-type]
        client.update_policy_weights()
        assert course.has_rewards([4.0])
        assert course.column("terminateds").tolist() == [True]


@pytest.mark.slow_unless("told[0-4]*-local", "told[5-9]*-remote")
@every_mode
@pytest.mark.parametrize(("told", "why"), [
    (({5: 1.0},), "agent 5, expected a text"),
    (({HALF: 1.0},), "agent 'half of a "),
    (({"": 1.0},), "agent '', expected a text"),
    (({"a": 1.0}, {7: {}}), "agent 7, expected a text"),
    (({"a": 1.0}, {"a": 7}), "info is int, expected a dict"),
    (({"a": 1.0}, None, {HALF: True}), "agent 'half of a "),
    (({"a": 1.0}, None, {7: True}), "agent 7, expected a text"),
    (({"a": 1.0}, None, {"a": "False"}), "the done flag of 'a' is str, expected True or False"),
    (({"a": 1.0}, None, {"a": np.array([True, False])}), "the done flag of 'a' is ndarray"),
    (({"a": 10**400},), "the reward of 'a' is inf, expected a finite number"),
])  # fmt: skip
def test_what_cannot_be_told_of_an_agent_is_refused_at_once_and_the_episode_goes_on(
    mode: Any, told: tuple[Any, ...], why: str
) -> None:
    with (
        Course(PAIR) as course,
        PolicyClient(course.address, mode, update_interval=None, timeout=20) as client,
    ):
        name = client.start_episode()
        client.get_action(name, both(0))
        with pytest.raises(ContractError, match=f"log_returns: .*{why}"):
            client.log_returns(name, *told)
        client.log_returns(name, {"a": 2.0, "b": 4.0}, None, {"b": np.False_})  # type: ignore[dict-item]
        client.get_action(name, both(1))
        client.end_episode(name, both(2))
        client.update_policy_weights()
        assert course.has_rewards([2.0, 4.0, 0.0, 0.0])


def test_local_observations_of_several_agents_are_dicts_by_agents_that_messages_can_name() -> None:
    with (
        Course(PAIR) as course,
        PolicyClient(course.address, "local", update_interval=None, timeout=20) as client,
    ):
        name = client.start_episode()
        with pytest.raises(
            ContractError, match=r"get_action: .* observation is ndarray, expected a dict by agent"
        ):
            client.get_action(name, observation(0))
        with pytest.raises(ContractError, match=r"get_action: .*agent 'half of a "):
            client.get_action(name, {"a": observation(0), HALF: observation(0)})
        client.get_action(name, both(0))
        client.log_returns(name, {"a": 2.0, "b": 4.0})
        for wrong in (observation(1), None):
            with pytest.raises(ContractError, match=r"end_episode: .*expected a dict by agent"):
                client.end_episode(name, wrong)
        client.end_episode(name, both(1))
        client.update_policy_weights()
        assert course.has_rewards([2.0, 4.0])


@every_mode
@pytest.mark.parametrize("name", [["mine"], {"id": "mine"}, ("mine", []), None, 1.5])
def test_what_can_be_no_id_is_an_episode_that_was_not_found(mode: Any, name: Any) -> None:
    with Course() as course, PolicyClient(course.address, mode, timeout=20) as client:
        calls: dict[str, Callable[[], object]] = {
            "get_action": lambda: client.get_action(name, observation(0)),
            "log_action": lambda: client.log_action(name, observation(0), 0),
            "log_returns": lambda: client.log_returns(name, 1.0),
            "end_episode": lambda: client.end_episode(name, observation(0)),
        }
        for call, do in calls.items():
            with pytest.raises(
                EpisodeError, match=f"{call}: episode .* was not found, expected one that is open"
            ):
                do()
