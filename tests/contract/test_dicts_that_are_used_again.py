"""Environments that return the very same dicts in each step, with other contents: every step is looked at anew."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv import MultiAgentEnv, to_base_env

AGENTS = ("a", "b")


class SameDicts(MultiAgentEnv):
    """Two agents; what comes when is written into five dicts that are never replaced.

    Args:
        script: For each step what is put into rewards, terminateds, truncateds and infos, by agent.
    """

    def __init__(self, script: list[dict[str, dict[str, Any]]]) -> None:
        super().__init__()
        self.possible_agents = list(AGENTS)
        self.observation_space = gym.spaces.Box(-1e3, 1e3, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._script, self._at = script, 0
        self._obs: dict[str, Any] = {}
        self._rewards: dict[str, Any] = {}
        self._terminateds: dict[str, Any] = {}
        self._truncateds: dict[str, Any] = {}
        self._infos: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._at = 0
        self._living = list(AGENTS)
        self._fill(self._obs, {agent: np.zeros(1, np.float32) for agent in AGENTS})
        return self._obs, {}

    def step(self, actions: Any) -> Any:
        entry = self._script[self._at]
        self._at += 1
        self._fill(self._obs, {agent: np.full(1, self._at, np.float32) for agent in self._living})
        self._fill(self._rewards, dict.fromkeys(self._living, 0.0) | entry.get("rewards", {}))
        calm = dict.fromkeys([*self._living, "__all__"], False)
        self._fill(self._terminateds, calm | entry.get("terminateds", {}))
        self._fill(self._truncateds, calm | entry.get("truncateds", {}))
        self._fill(self._infos, {agent: {} for agent in self._living} | entry.get("infos", {}))
        self._living = [agent for agent in self._living if not self._terminateds[agent]]
        return self._obs, self._rewards, self._terminateds, self._truncateds, self._infos

    @staticmethod
    def _fill(kept: dict[str, Any], values: dict[str, Any]) -> None:
        kept.clear()
        kept.update(values)


def polls_of(script: list[dict[str, dict[str, Any]]]) -> list[Any]:
    """Return the six dicts of each poll, with copies of what they hold, for one sub-environment."""
    base_env = to_base_env(SameDicts(script))
    found = []
    for _ in range(len(script) + 1):
        ready = base_env.poll()
        found.append(
            [{agent: value for env in part.values() for agent, value in env.items()} for part in ready]
        )
        base_env.send_actions(ready.slots, [0] * len(ready.slots))
    return found


def test_a_flag_set_late_in_an_old_dict_ends_its_agent() -> None:
    quiet: dict[str, dict[str, Any]] = {}
    polls = polls_of([quiet, quiet, {"terminateds": {"a": True}}, quiet])
    assert [set(obs) for obs, *_ in polls] == [{"a", "b"}, {"a", "b"}, {"a", "b"}, {"b"}, {"b"}]
    assert [terminateds.get("a", False) for _, _, terminateds, *_ in polls] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_rewards_and_infos_that_appear_late_in_old_dicts_are_reported() -> None:
    quiet: dict[str, dict[str, Any]] = {}
    news: dict[str, dict[str, Any]] = {"rewards": {"b": 2.5}, "infos": {"a": {"lap": 1}}}
    polls = polls_of([quiet, quiet, news, quiet])
    assert [rewards["b"] for _, rewards, *_ in polls] == [0.0, 0.0, 0.0, 2.5, 0.0]
    assert [infos["a"] for *_, infos, _ in polls] == [{}, {}, {}, {"lap": 1}, {}]


# Flags and rewards that are views of one buffer: what a step before said is no longer what they hold.


def copies(buffer: Any) -> list[Any]:
    """Numbers of their own, for comparison."""
    return [buffer.item(index) for index in range(len(buffer))]
