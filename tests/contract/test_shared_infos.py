"""Infos of a whole sub-environment, under "__common__": callbacks see the latest, each episode its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from menv import BaseEnv, DefaultCallbacks, MultiAgentEnv, to_base_env
from menv.algorithms import PPO
from menv.errors import ContractError

SPACES = (Box(0, 99, (1,), np.float32), Discrete(2))


class Counted(MultiAgentEnv):
    """Episodes of 3 env steps; says which it is and how far, but in the step in which nobody waits it says more."""

    def __init__(self, config: Any) -> None:
        self.possible_agents = ["a", "b"]
        self.observation_space, self.action_space = SPACES
        self.number, self.quiet = 0, config.get("quiet", ())
        self.wrong = config.get("wrong", False)

    def told(self) -> dict[str, Any]:
        if self.wrong and self.at == 2:
            return {"__common__": "late"}
        return {} if self.at in self.quiet else {"__common__": {"episode": self.number, "at": self.at}}

    def obs(self, *agents: str) -> dict[str, Any]:
        return {agent: np.array([self.at], np.float32) for agent in agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.number, self.at = self.number + 1, 0
        return self.obs("a", "b"), self.told()

    def step(self, actions: Any) -> Any:
        self.at += 1
        over = self.at == 4
        # After the second step nobody waits.
        obs = self.obs() if self.at == 2 else self.obs("a", "b")
        return obs, {}, {"__all__": over}, {"__all__": False}, {**self.told(), **({"a": {}} if obs else {})}


class Own(BaseEnv):
    """The same as a `BaseEnv` of one's own."""

    observation_space, action_space = SPACES
    num_envs = 1

    def __init__(self, config: Any) -> None:
        self.env, self.possible_agents = Counted(config), ["a", "b"]
        self.next: Any = None

    def poll(self, timeout: float | None = None) -> Any:
        if self.next is None:
            obs, infos = self.env.reset()
            self.next = obs, {}, {"__all__": False}, {"__all__": False}, infos
        while not self.next[0]:
            self.next = self.env.step({})
        found, self.next = self.next, ({}, {}, {"__all__": False}, {"__all__": False}, {})
        return *({0: part} for part in found), {}

    def send_actions(self, actions: Any) -> None:  # type: ignore[override]
        self.next = self.env.step(actions[0])

    def try_reset(self, env_id: Any = None, **kwargs: Any) -> Any:
        obs, infos = self.env.reset()
        return {0: obs}, {0: infos}


class Seen(DefaultCallbacks):
    """What is seen when."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, Any]] = []

    def note(self, hook: str, episode: Any) -> None:
        info = episode.last_info_for("__common__")
        self.lines.append((hook, (info["episode"], info["at"]) if info else None))

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        self.note("start", episode)

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        self.note("step", episode)

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        self.note("end", episode)


def seen(env: Any, **config: Any) -> list[tuple[str, Any]]:
    callbacks = Seen()
    size = {"rollout_fragment_length": 8, "train_batch_size": 8}
    with PPO(env=env, config={**size, "callbacks": callbacks, **config}) as algo:
        algo.sample()
    return callbacks.lines


WHOLE = [
    ("start", (1, 0)),
    ("step", (1, 1)),
    ("step", (1, 3)),
    ("step", (1, 4)),
    ("end", (1, 4)),
    ("start", (2, 0)),
]


@pytest.mark.parametrize("env", [Counted, Own], ids=["MultiAgentEnv", "BaseEnv"])
def test_each_hook_sees_the_info_of_its_own_step(env: Any) -> None:
    assert seen(env)[:6] == WHOLE


def test_so_it_is_where_environments_live_in_processes_of_their_own() -> None:
    lines = seen(Counted, remote_worker_envs=True, engine="process")
    assert lines[:6] == WHOLE


def test_an_info_goes_to_no_other_episode() -> None:
    lines = seen(Counted, env_config={"quiet": (0, 4)})
    assert lines[:4] == [("start", None), ("step", (1, 1)), ("step", (1, 3)), ("step", (1, 3))]
    assert lines[4:6] == [("end", (1, 3)), ("start", None)]


def test_the_view_of_six_dicts_has_it() -> None:
    base_env = to_base_env(Counted({}), make_env=lambda index: Counted({}), num_envs=2)
    infos = base_env.poll()[4]
    assert infos[0] == {"a": {}, "b": {}, "__common__": {"episode": 1, "at": 0}}
    base_env.stop()


def test_one_that_is_no_dict_is_refused() -> None:
    with pytest.raises(ContractError, match=r"'__common__': info is str, expected a dict"):
        seen(Counted, env_config={"wrong": True})
