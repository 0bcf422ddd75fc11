"""Ids of episodes: those that are made up, those of one's own, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from menv.errors import EpisodeError
from tests.external.told import Told, obs


def test_an_id_is_made_up_of_32_hex_digits_and_never_twice() -> None:
    env = Told()
    made = {env.start_episode() for _ in range(100)}
    assert len(made) == 100
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in made)


def test_an_id_of_ones_own_is_returned() -> None:
    assert Told().start_episode("mine") == "mine"


@pytest.mark.parametrize("name", [["mine"], {"id": "mine"}, ("mine", []), np.zeros(2), None, 1.5])
def test_what_can_be_no_id_is_an_episode_that_was_not_found(name: Any) -> None:
    env = Told()
    calls: dict[str, Callable[[], object]] = {
        "get_action": lambda: env.get_action(name, obs(0, 0)),
        "log_action": lambda: env.log_action(name, obs(0, 0), 0),
        "log_returns": lambda: env.log_returns(name, 1.0),
        "end_episode": lambda: env.end_episode(name, obs(0, 0)),
    }
    for call, do in calls.items():
        with pytest.raises(
            EpisodeError, match=f"{call}: episode .* was not found, expected one that is open"
        ):
            do()
