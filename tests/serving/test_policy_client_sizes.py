"""Local clients whose steps are large: what they send stays below what servers take unless they are told otherwise."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.errors import EpisodeError
from menv.serving.client.policy_client import PolicyClient
from menv.serving.limits import Limits
from tests.serving.courses import Course

WIDE = gym.spaces.Box(-1.0, 1.0, (375_000,), np.float32)
LISTS = gym.spaces.Dict({"seen": gym.spaces.Box(-1.0, 1.0, (500,), np.float32)})
HUNDREDS = gym.spaces.Tuple([gym.spaces.Box(-1.0, 1.0, (4,), np.float32)] * 25)


@pytest.mark.slow_unless("many choices", "numbers in lists", "a wide observation")
@pytest.mark.parametrize(("config", "seen", "steps"), [
    ({"action_space": gym.spaces.Discrete(1000)}, np.zeros(3, np.float32), 1500),
    ({"model": {"use_lstm": True, "lstm_cell_size": 256}}, np.zeros(3, np.float32), 2500),
    ({"action_space": HUNDREDS}, np.zeros(3, np.float32), 2500),
    ({"observation_space": LISTS}, {"seen": [0.123] * 500}, 1000),
    ({"observation_space": WIDE, "model": {"fcnet_hiddens": [2]}}, np.zeros(375_000, np.float32), 5),
], ids=["many choices", "a memory", "a wide action", "numbers in lists", "a wide observation"])  # fmt: skip
def test_no_episode_is_too_large_for_a_server_however_much_a_step_holds(
    config: dict[str, Any], seen: Any, steps: int
) -> None:
    with (
        Course(config, env_steps_per_sample=10_000) as course,
        PolicyClient(course.address, "local", update_interval=None, timeout=20) as client,
    ):
        name = client.start_episode()
        for step in range(steps):
            client.get_action(name, seen)
            client.log_returns(name, float(step))
        client.end_episode(name, seen)
        client.update_policy_weights()
        assert course.has_rewards([float(step) for step in range(steps)])


IMAGE = gym.spaces.Box(0, 255, (28_000,), np.uint8)
BLACK = np.zeros(28_000, np.uint8)


def crowd(count: int) -> dict[str, Any]:
    """Return the config of so many agents that see images."""
    names = [f"a{number}" for number in range(count)]
    return {
        "observation_space": dict.fromkeys(names, IMAGE),
        "action_space": dict.fromkeys(names, gym.spaces.Discrete(2)),
        "model": {"fcnet_hiddens": [2]},
    }


@pytest.mark.parametrize("steps", [1, 3])
def test_agents_that_come_in_great_numbers_fit_beside_what_others_did_before(steps: int) -> None:
    everybody = [f"a{number}" for number in range(60)]
    with (
        Course(crowd(60), env_steps_per_sample=10_000) as course,
        PolicyClient(course.address, "local", update_interval=None, timeout=20) as client,
    ):
        name, paid = client.start_episode(), 0.0
        for seen in [["a0"]] * 60 + [everybody] * steps:
            client.get_action(name, dict.fromkeys(seen, BLACK))
            client.log_returns(name, dict.fromkeys(seen, paid))
            paid += 1.0
        client.end_episode(name, dict.fromkeys(everybody, BLACK))
        client.update_policy_weights()
        late = [float(number) for number in range(60, 60 + steps) for _ in everybody]
        assert course.has_rewards([float(number) for number in range(60)] + late)


def test_agents_that_live_for_one_step_are_sent_in_time() -> None:
    with (
        Course(crowd(200), env_steps_per_sample=10_000) as course,
        PolicyClient(course.address, "local", update_interval=None, timeout=20) as client,
    ):
        name = client.start_episode()
        for number in range(200):
            done = {} if number == 0 else {f"a{number - 1}": BLACK}
            assert client.get_action(name, {**done, f"a{number}": BLACK}).keys() == {f"a{number}"}
            client.log_returns(name, {f"a{number}": float(number)}, None, {f"a{number}": True})
        client.end_episode(name, {})
        client.update_policy_weights()
        assert course.has_rewards([float(number) for number in range(200)])


def test_a_step_that_fits_in_no_message_names_the_limit_with_which_it_does() -> None:
    def plays(course: Course, mode: Any) -> None:
        with PolicyClient(course.address, mode, update_interval=None, timeout=20) as client:
            name, everybody = (
                client.start_episode(),
                dict.fromkeys([f"a{number}" for number in range(100)], BLACK),
            )
            client.get_action(name, everybody)
            client.log_returns(name, dict.fromkeys(everybody, 1.0))
            client.end_episode(name, everybody)
            client.update_policy_weights()

    with Course(crowd(100), env_steps_per_sample=10_000) as course:
        with pytest.raises(
            EpisodeError, match=r"raise Limits\.max_body .* or use inference_mode='remote'"
        ) as caught:
            plays(course, "local")
        plays(course, "remote")
        assert course.has_rewards([1.0] * 100)
    found = re.search(r"raise Limits\.max_body on the server to (\d+)", str(caught.value))
    assert found is not None
    limits = Limits(max_body=int(found[1]))
    with Course(crowd(100), env_steps_per_sample=10_000, limits=limits) as course:
        plays(course, "local")
        assert course.has_rewards([1.0] * 100)
