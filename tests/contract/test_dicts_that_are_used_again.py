"""Environments that return the very same dicts in each step, with other contents: every step is looked at anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

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


def test_a_flag_that_is_set_in_a_dict_of_before_ends_its_agent() -> None:
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


def test_an_episode_that_ends_in_a_dict_of_before_begins_anew() -> None:
    quiet: dict[str, dict[str, Any]] = {}
    polls = polls_of([quiet, quiet, {"truncateds": {"__all__": True}}])
    assert [truncateds["__all__"] for *_, truncateds, _, _ in polls] == [False, False, False, True]
    assert [obs["a"].item() for obs, *_ in polls] == [0.0, 1.0, 2.0, 0.0]


def test_rewards_and_infos_that_appear_in_dicts_of_before_are_told() -> None:
    quiet: dict[str, dict[str, Any]] = {}
    news: dict[str, dict[str, Any]] = {"rewards": {"b": 2.5}, "infos": {"a": {"lap": 1}}}
    polls = polls_of([quiet, quiet, news, quiet])
    assert [rewards["b"] for _, rewards, *_ in polls] == [0.0, 0.0, 0.0, 2.5, 0.0]
    assert [infos["a"] for *_, infos, _ in polls] == [{}, {}, {}, {"lap": 1}, {}]


def test_an_info_of_the_whole_environment_that_appears_in_a_dict_of_before_is_told() -> None:
    base_env = to_base_env(SameDicts([{}, {}, {"infos": {"__common__": {"weather": "rain"}}}, {}]))
    told = []
    for _ in range(5):
        ready = base_env.poll()
        told.append([shared.info for shared in ready.shared_infos])
        base_env.send_actions(ready.slots, [0] * len(ready.slots))
    assert told == [[], [], [], [{"weather": "rain"}], []]


class OneDictForAll(SameDicts):
    """Copies that write what they return into dicts of their class."""

    shared: ClassVar[dict[str, dict[str, Any]]] = {
        name: {} for name in ("obs", "paid", "over", "cut", "told")
    }

    def __init__(self, number: int) -> None:
        super().__init__([{"rewards": {"a": 10.0 * number + step}} for step in range(6)])
        self._script.append({"terminateds": {"__all__": True}, "rewards": {"b": 10.0 * number}})
        self._obs, self._rewards, self._terminateds, self._truncateds, self._infos = self.shared.values()


class OneListForAll(OneDictForAll):
    """The same in a list."""

    def step(self, actions: Any) -> Any:
        return [*super().step(actions)]


@pytest.mark.parametrize("kind", [OneDictForAll, OneListForAll])
@pytest.mark.parametrize("num_envs", [2, 5])
def test_copies_that_write_into_the_same_dicts_keep_their_own_rewards(
    kind: type[OneDictForAll], num_envs: int
) -> None:
    base_env = to_base_env(kind(0), make_env=kind, num_envs=num_envs)
    paid: dict[int, list[float]] = {number: [] for number in range(num_envs)}
    last: dict[int, float] = {}
    for _ in range(8):
        ready = base_env.poll()
        for slot, reward in zip(ready.slots.tolist(), ready.rewards.tolist(), strict=True):
            env_id, agent = ready.seats[slot]
            if agent == "a" and len(paid[env_id]) < 7:
                paid[env_id].append(reward)
        last |= {end.env_id: end.reward for end in ready.ended if end.agent_id == "b"}
        base_env.send_actions(ready.slots, [0] * len(ready.slots))
    assert paid == {number: [0.0, *(10.0 * number + step for step in range(6))] for number in range(num_envs)}
    assert last == {number: 10.0 * number for number in range(num_envs)}


# Flags and rewards that are views of one buffer: what a step before said is no longer what they hold.


STEPS = 12


def columns(buffer: Any) -> list[Any]:
    """Arrays of one element."""
    return [buffer[index : index + 1] for index in range(len(buffer))]


def scalars(buffer: Any) -> list[Any]:
    """Arrays without dimensions."""
    return [buffer[index, ...] for index in range(len(buffer))]


def tensors(buffer: Any) -> list[Any]:
    return list(torch.from_numpy(buffer))


def copies(buffer: Any) -> list[Any]:
    """Numbers of their own, for comparison."""
    return [buffer.item(index) for index in range(len(buffer))]


class Buffered(MultiAgentEnv):
    """Two agents, at once or in turns; a ends after three steps, everybody after six.

    Args:
        parts: What is put into the dicts, of the buffers that every step writes into.
        turns: Whether they act in turns, both to the end; then they are paid from the fourth step on.
    """

    def __init__(self, parts: Callable[[Any], list[Any]], *, turns: bool) -> None:
        super().__init__()
        self.possible_agents = list(AGENTS)
        self.observation_space = gym.spaces.Box(-1e3, 1e3, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._parts, self._turns = parts, turns
        self._done, self._pay, self._step = np.zeros(3, np.bool_), np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._step = 0
        self._done[:] = False
        return self._shown(), {}

    def step(self, actions: Any) -> Any:
        self._step += 1
        self._done[:] = self._step == 3 and not self._turns, False, self._step == 6
        self._pay[:] = 0.0
        if not self._turns or self._step >= 4:
            self._pay[:] = self._step, 10.0 * self._step
        ends, pay = self._parts(self._done), self._parts(self._pay)
        acted = AGENTS if self._turns or self._step <= 3 else "b"
        rewards = {agent: pay[AGENTS.index(agent)] for agent in acted}
        return (
            self._shown(),
            rewards,
            dict(zip((*AGENTS, "__all__"), ends, strict=True)),
            {"__all__": False},
            {},
        )

    def _shown(self) -> dict[str, Any]:
        live = AGENTS[self._step % 2] if self._turns else AGENTS if self._step <= 3 else "b"
        return {agent: np.full(1, self._step, np.float32) for agent in live}


def told(parts: Callable[[Any], list[Any]], *, turns: bool) -> list[Any]:
    """Return what each poll says."""
    base_env = to_base_env(Buffered(parts, turns=turns))
    found = []
    for _ in range(STEPS):
        ready = base_env.poll()
        ends = [(end.agent_id, end.reward, end.terminated) for end in ready.ended]
        episodes = [(episode.env_steps, episode.terminated) for episode in ready.episodes]
        rows = [ready.seats[slot][1] for slot in ready.slots.tolist()]
        found.append((rows, ready.rewards.tolist(), ends, episodes))
        base_env.send_actions(ready.slots, [0] * len(ready.slots))
    return found


@pytest.mark.parametrize("parts", [columns, scalars, tensors])
def test_ends_are_seen_in_flags_that_are_views_of_a_buffer(parts: Callable[[Any], list[Any]]) -> None:
    expected = told(copies, turns=False)
    assert [ends for _, _, ends, _ in expected[3:7]] == [[("a", 3.0, True)], [], [], [("b", 60.0, True)]]
    assert expected[6][3] == [(6, True)]
    assert told(parts, turns=False) == expected


@pytest.mark.parametrize("parts", [columns, scalars, tensors])
def test_rewards_are_seen_in_numbers_that_are_views_of_a_buffer(parts: Callable[[Any], list[Any]]) -> None:
    expected = told(copies, turns=True)
    # Who is to act is paid for what it did before, from the fourth step on, and both at the end.
    assert [rewards for _, rewards, _, _ in expected[:6]] == [[0.0], [0.0], [0.0], [0.0], [4.0], [90.0]]
    assert sum(reward for _, reward, _ in expected[6][2]) == 5.0 + 6.0 + 60.0
    assert told(parts, turns=True) == expected
