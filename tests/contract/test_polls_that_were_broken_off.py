"""A poll that raises has stepped some copies and not others: the next one says so, and new episodes can begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import BaseEnv, MultiAgentEnv, to_base_env
from menv.base_env import Ready
from menv.errors import CallOrderError, ContractError

AGENTS = ("a", "b")
LENGTH = 5


class Pair(MultiAgentEnv):
    """Two agents who see the number of the step; what `mischief` does in the second step of the first episode."""

    def __init__(self, mischief: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.possible_agents = list(AGENTS)
        self.observation_space = gym.spaces.Box(0.0, 1e3, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.mischief = mischief
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return dict.fromkeys(AGENTS, np.zeros(1, np.float32)), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        reward: Any = 1.0
        if self.mischief is not None and self.steps == 2:
            mischief, self.mischief = self.mischief, None
            reward = mischief()
        obs = dict.fromkeys(AGENTS, np.full(1, self.steps, np.float32))
        over = {"__all__": self.steps == LENGTH}
        return obs, dict.fromkeys(AGENTS, reward), over, {"__all__": False}, {}


class Alone(gym.Env[Any, Any]):
    """The same for one agent."""

    observation_space = gym.spaces.Box(0.0, 1e3, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, mischief: Callable[[], float] | None = None) -> None:
        self.inner = Pair(mischief)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.inner.reset()[0]["a"], {}

    def step(self, action: Any) -> Any:
        obs, rewards, terminateds, _, _ = self.inner.step({})
        return obs["a"], rewards["a"], terminateds["__all__"], False, {}


def interrupted() -> float:
    raise KeyboardInterrupt


def refused() -> float:
    raise ContractError("something of its own")


MISCHIEF = {
    "a reward that is no number": (lambda: float("nan"), ContractError),
    "Ctrl-C": (interrupted, KeyboardInterrupt),
    "a broken contract": (refused, ContractError),
}


def take_turn(base_env: BaseEnv, told: list[Ready]) -> None:
    """Poll, keep what was told, and answer everybody."""
    ready = base_env.poll()
    told.append(ready)
    base_env.send_actions(ready.slots, [0] * len(ready.slots))


@pytest.mark.parametrize("kind", [Pair, Alone])
@pytest.mark.parametrize(("mischief", "error"), MISCHIEF.values(), ids=MISCHIEF)
def test_a_poll_after_one_that_was_broken_off_asks_for_new_episodes(
    kind: Any, mischief: Any, error: type[BaseException]
) -> None:
    envs = [kind(), kind(mischief), kind()]
    base_env = to_base_env(envs[0], make_env=lambda index: envs[index], num_envs=3)
    told: list[Ready] = []
    take_turn(base_env, told)
    take_turn(base_env, told)
    with pytest.raises(error):
        base_env.poll()
    for _ in range(2):
        with pytest.raises(CallOrderError, match=r"broken off.*call try_reset\(\)"):
            base_env.poll()
    base_env.try_reset(1)
    with pytest.raises(CallOrderError, match="broken off"):
        base_env.poll()
    base_env.try_reset()
    for _ in range(LENGTH + 1):
        take_turn(base_env, told)
    # After the reset everybody begins at 0 and plays one whole episode, and another one has begun.
    shown = [[int(one[0]) for one in ready.obs] for ready in told[2:]]
    rows = 3 * (2 if kind is Pair else 1)
    assert shown == [[step] * rows for step in (0, 1, 2, 3, 4, 0)]
    # Whoever joined has ended once, but for those who live now.
    joined = Counter(join.slot for ready in told for join in ready.joined)
    ended = Counter(end.slot for ready in told for end in ready.ended)
    assert joined == {slot: count + 1 for slot, count in ended.items()}
    whole = [episode for ready in told[3:] for episode in ready.episodes]
    assert [(episode.env_steps, episode.terminated) for episode in whole] == [(LENGTH, True)] * 3


@pytest.mark.parametrize("kind", [Pair, Alone])
def test_a_poll_that_succeeds_is_followed_by_others(kind: Any) -> None:
    envs = [kind() for _ in range(2)]
    base_env = to_base_env(envs[0], make_env=lambda index: envs[index], num_envs=2)
    told: list[Ready] = []
    for _ in range(2 * LENGTH):
        take_turn(base_env, told)
    assert sum(len(ready.episodes) for ready in told) == 2
    assert len(base_env.poll().slots) == len(told[-1].slots)
    assert not len(base_env.poll().slots)
