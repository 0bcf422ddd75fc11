"""A user's own `BaseEnv` whose sub-environments take their time, or are paid while they wait."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import BaseEnv, to_base_env
from menv.base_env import Ready
from menv.errors import ContractError


class Slow(BaseEnv):
    """Sub-environment 0 answers at once, 1 at every second poll; in one step of the latter nobody waits."""

    observation_space = gym.spaces.Box(-1e3, 1e3, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = [0, 0]
        self.asked = [0, 0]
        self.sent: list[Any] = []
        self.polls = 0

    def send_actions(self, action_dict: Any, actions: Any = None) -> None:
        self.sent.append(action_dict)
        for env_id in action_dict:
            self.asked[env_id] += 1

    def poll(self, timeout: float | None = None) -> Any:
        self.polls += 1
        obs: Any = {}
        if self.polls == 1:
            return {env_id: {"a": np.zeros(1, np.float32)} for env_id in (0, 1)}, {}, {}, {}, {}, {}
        for env_id in (0, 1):
            if self.asked[env_id] and (env_id == 0 or self.polls % 2 == 0):
                self.asked[env_id] -= 1
                self.steps[env_id] += 1
                empty = env_id == 1 and self.steps[1] == 1
                obs[env_id] = {} if empty else {"a": np.full(1, self.steps[env_id], np.float32)}
        return obs, {env_id: {"a": 1.0} for env_id in obs}, {}, {}, {}, {}


def test_a_sub_environment_in_which_nobody_waits_is_told_to_go_on_once() -> None:
    inner = Slow()
    base_env = to_base_env(inner)
    shown: list[list[tuple[Any, int, float]]] = []
    for turn in range(8):
        ready: Ready = base_env.poll()
        rows = zip(ready.slots.tolist(), ready.obs, ready.rewards.tolist(), strict=True)
        shown.append([(ready.seats[slot][0], int(obs[0]), reward) for slot, obs, reward in rows])
        # The agent of the slow one is answered once, at the beginning.
        answered = [env_id for env_id, _, _ in shown[-1] if env_id == 0 or turn == 0]
        base_env.send_actions({env_id: {"a": 0} for env_id in answered})
    assert inner.steps[1] == 2
    assert [entry for entries in shown for entry in entries if entry[0] == 1] == [(1, 0, 0.0), (1, 2, 2.0)]
    assert [sent for sent in inner.sent if sent.get(1) == {}] == [{0: {"a": 0}, 1: {}}]


class Paying(BaseEnv):
    """Two sub-environments of two agents; the second is paid while its agents wait."""

    observation_space = gym.spaces.Box(-1e3, 1e3, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.polls = 0
        self.sent: list[Any] = []

    def send_actions(self, action_dict: Any, actions: Any = None) -> None:
        self.sent.append(action_dict)

    def poll(self, timeout: float | None = None) -> Any:
        self.polls += 1
        seen = {agent: np.full(1, self.polls, np.float32) for agent in "ab"}
        if self.polls == 1:
            return {0: seen, 1: seen}, {}, {}, {}, {}, {}
        if self.polls in (2, 3):
            return {0: seen}, {0: {"a": 1.0, "b": 1.0}, 1: {"a": 0.0, "b": 0.25}}, {}, {}, {}, {}
        return {0: seen, 1: seen}, {1: {"a": 8.0}}, {}, {}, {}, {}


def test_rewards_for_agents_that_wait_are_held_for_their_next_rows_and_nobody_steps() -> None:
    inner = Paying()
    base_env = to_base_env(inner)

    def turn(*env_ids: int) -> Ready:
        ready: Ready = base_env.poll()
        base_env.send_actions({env_id: {"a": 0, "b": 0} for env_id in env_ids})
        return ready

    turn(0)
    ready = turn(0)
    assert [ready.seats[slot][0] for slot in ready.slots.tolist()] == [0, 0]
    assert ready.env_steps.tolist() == [1, 0]
    ready = turn(0, 1)
    assert ready.env_steps.tolist() == [2, 0]
    assert base_env.held_rewards() == {1: {"b": 0.5}}
    ready = turn()
    assert ready.env_steps.tolist() == [3, 1]
    assert ready.rewards.tolist() == [0.0, 0.0, 8.0, 0.5]
    assert inner.sent == [{0: {"a": 0, "b": 0}}] * 2 + [{0: {"a": 0, "b": 0}, 1: {"a": 0, "b": 0}}]


class Restless(Slow):
    """One sub-environment that steps at every poll, answered or not."""

    def poll(self, timeout: float | None = None) -> Any:
        self.polls += 1
        return {0: {"a": np.full(1, self.polls, np.float32)}}, {0: {"a": 1.0}}, {}, {}, {}, {}


def test_six_dicts_may_show_an_agent_again_before_it_is_answered() -> None:
    inner = Restless()
    base_env = to_base_env(inner)
    polls: list[Ready] = [base_env.poll() for _ in range(3)]
    assert [ready.slots.tolist() for ready in polls] == [[0]] * 3
    assert [ready.env_steps.tolist() for ready in polls] == [[0], [1], [2]]
    assert [ready.rewards.tolist() for ready in polls] == [[1.0]] * 3
    base_env.send_actions(polls[-1].slots, [1])
    base_env.poll()
    assert inner.sent == [{0: {"a": 1}}]


@pytest.mark.parametrize("part", [2, 3])
def test_flags_of_agents_alone_are_refused(part: int) -> None:
    class Agents(Slow):
        def poll(self, timeout: float | None = None) -> Any:
            parts = [*super().poll()]
            parts[part] = {env_id: {"a": True} for env_id in parts[0]}
            return tuple(parts) if self.polls > 1 else (parts[0], {}, {}, {}, {}, {})

    base_env = to_base_env(Agents())
    base_env.poll()
    base_env.send_actions({0: {"a": 0}})
    name = "terminateds" if part == 2 else "truncateds"
    with pytest.raises(ContractError, match=rf"^env 0 step.*: {name} has no '__all__', expected '__all__'"):
        base_env.poll()
