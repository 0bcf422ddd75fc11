"""Flags and rewards that are views of one buffer: what a step before said is no longer what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv import MultiAgentEnv, to_base_env

AGENTS = ("a", "b")
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
