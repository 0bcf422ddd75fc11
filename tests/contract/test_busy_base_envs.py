"""A user's own `BaseEnv` whose sub-environments take their time, or are paid while they wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import BaseEnv, to_base_env
from menv.base_env import Ready
from menv.errors import CallOrderError, ContractError
from tests.worlds import Alone, Sharing


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


def test_a_sub_environment_without_waiting_agents_is_stepped_once() -> None:
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


def test_rewards_of_waiting_agents_are_held_for_their_next_rows_without_a_step() -> None:
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
    with pytest.raises(ContractError, match=name):
        base_env.poll()


# A poll that raises has stepped some copies and not others: the next one says so, and new episodes can begin.


LENGTH = 5


class Single(Alone):
    """What `mischief` does in the second step of the first episode."""

    length = LENGTH

    def __init__(self, mischief: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.mischief = mischief

    def pay(self, action: Any) -> float:
        return self.mischief() if self.mischief and (self.episode, self.at) == (0, 2) else 1.0


class Pair(Sharing):
    """The same for two agents."""

    kind = Single


def interrupted() -> float:
    raise KeyboardInterrupt


def refused() -> float:
    raise ContractError("something of its own")


MISCHIEF = {
    "a reward that is not a number": (lambda: float("nan"), ContractError),
    "Ctrl-C": (interrupted, KeyboardInterrupt),
    "a broken contract": (refused, ContractError),
}


def take_turn(base_env: BaseEnv, told: list[Ready]) -> None:
    """Poll, keep what was told, and answer everybody."""
    ready = base_env.poll()
    told.append(ready)
    base_env.send_actions(ready.slots, [0] * len(ready.slots))


@pytest.mark.parametrize("kind", [Pair, Single])
@pytest.mark.parametrize(("mischief", "error"), MISCHIEF.values(), ids=MISCHIEF)
def test_a_poll_after_an_interrupted_one_asks_for_new_episodes(
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
        with pytest.raises(CallOrderError, match="try_reset"):
            base_env.poll()
    base_env.try_reset(1)
    with pytest.raises(CallOrderError):
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
