"""An `observation_fn` beside clients: those that ask are shown more, those that act by themselves are refused."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from menv.errors import ConfigError
from menv.serving import RLlinkInput
from tests.serving.doors import DOORS, Door
from tests.serving.served import obs_of, served
from tests.serving.voices import Turns, episode

every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)


def moved(agent_obs: Mapping[Any, Any], **_: Any) -> dict[Any, Any]:
    """Show every agent its observation plus 2."""
    return {agent: np.asarray(obs) + np.float32(2) for agent, obs in agent_obs.items()}


SHOWN: dict[str, Any] = {"multiagent": {"observation_fn": moved}}


@every_door
def test_what_a_client_asks_about_is_shown_to_the_policy_as_the_function_says(door: Door) -> None:
    with served(**SHOWN) as one:
        with one.sampling(), one.voice(door) as voice:
            turns = Turns(voice, "e")
            for number in range(3):
                turns.act(obs_of(number))
                turns.pay(1.0)
            turns.end(obs_of(3))
        one.paid()
        expected = np.array([obs_of(number) for number in range(3)], np.float32) + 2
        np.testing.assert_array_equal(one.column("obs"), expected)


@every_door
def test_episodes_that_a_client_played_by_itself_are_refused_with_the_reason(door: Door) -> None:
    with served(**SHOWN) as one:
        with one.sampling():
            voice = one.voice(door)
            played = episode([obs_of(0), obs_of(1)], [0], [1.0], "terminated")
            for kind in ("EPISODES", "EPISODES_AND_GET_STATE"):
                with one.voice(door) as other:
                    answer = other.ask(kind, episodes=[played])
                    assert (answer["type"], answer["code"]) == ("ERROR", "not_allowed")
                    assert f"{kind}: policies here see what an observation_fn makes" in answer["message"]
            turns = Turns(voice, "e")
            turns.act(obs_of(0))
            turns.end(obs_of(1))
            voice.leave()
        assert one.paid() == 0.0
        assert one.refused == 2
        assert len(one.column("obs")) == 1


def test_an_input_for_clients_that_act_by_themselves_is_refused_when_the_algorithm_is_built() -> None:
    before = threading.active_count()
    with pytest.raises(
        ConfigError, match=r"observation_fn: set beside RLlinkInput, .* expected one of the two"
    ):
        served(kind=RLlinkInput, **SHOWN).__enter__()
    assert threading.active_count() == before
