"""A folder of one's own for each test, whose modules are forgotten afterwards."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from menv import registry
from tests.inside import registered

GAME = '''
"""A corridor, and what settings may name."""
import signal
from threading import Event

import numpy as np
from gymnasium import Env
from gymnasium.spaces import Box, Discrete

from menv import DefaultCallbacks, MultiAgentEnv, register_env


class Corridor(Env):
    observation_space, action_space = Box(0, 99, (1,), np.float32), Discrete(2)

    def __init__(self, config):
        self.length = config.get("length", 3)

    def reset(self, *, seed=None, options=None):
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.place += 1
        return np.full(1, self.place, np.float32), 1.0, self.place >= self.length, False, {}


class Note(DefaultCallbacks):
    def on_train_result(self, *, algorithm, result, **kwargs):
        result["noted"] = algorithm.iteration * 10


class Forget(DefaultCallbacks):
    def on_train_result(self, *, algorithm, result, **kwargs):
        del result["episode_len_mean"]


class Seats(MultiAgentEnv):
    """Agents that are called by what JSON has no keys for."""

    observation_space, action_space = Discrete(10), Discrete(2)

    def __init__(self, context):
        self.possible_agents = list(np.arange(2)) if context.get("numbers") else [(0, 0), (0, 1)]

    def reset(self, *, seed=None, options=None):
        self.left = 3
        return dict.fromkeys(self.possible_agents, self.left), {}

    def step(self, actions):
        self.left -= 1
        obs, rewards = dict.fromkeys(actions, self.left), dict.fromkeys(actions, 1.0)
        return obs, rewards, {"__all__": self.left == 0}, {"__all__": False}, {}


class Duel(Seats):
    """Two agents whose picture may show what they hide; nobody wins."""

    metadata = {"render_modes": ["ansi"]}
    render_mode = "ansi"

    def __init__(self, context):
        self.possible_agents = ["a", "b"]

    def step(self, actions):
        obs, _, *rest = super().step(actions)
        return obs, dict.fromkeys(actions, 0.0), *rest

    def render(self):
        return "two hands"


class Nameless(Seats):
    def __init__(self, context):
        pass


class Crowd(Seats):
    """Agents of two kinds."""

    def __init__(self, context):
        self.possible_agents = ["car_0", "car_1", "light_0"]
        self.action_spaces = {one: Discrete(2 + (one == "light_0")) for one in self.possible_agents}


class Stands(Corridor):
    def reset(self, *, seed=None, options=None):
        # Shells start what runs in the background with this signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("it stands", flush=True)
        Event().wait()


class Falls(Corridor):
    def reset(self, *, seed=None, options=None):
        raise ValueError("it falls")


class Priceless(Corridor):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 1e30, *rest


def broken(config):
    raise RuntimeError("no power")


def seat(agent_id, episode, worker, **kwargs):
    return "seat_" + agent_id[-1]


register_env("corridor", Corridor)
register_env("long_corridor", lambda context: Corridor({"length": 5}))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, empty but for `corridors.py`."""
    (tmp_path / "corridors.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_registered", dict(registered()))
    yield tmp_path
    for name in ("corridors", "league"):
        sys.modules.pop(name, None)
