"""External environments that do what a test tells them, and threads whose faults are not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import ExternalEnv, ExternalMultiAgentEnv
from menv.adapters.external import EnvThreads
from menv.algorithms import PPO
from menv.errors import CallOrderError

OBS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTIONS = gym.spaces.Discrete(3)
SMALL: dict[str, Any] = {"rollout_fragment_length": 10, "train_batch_size": 10, "seed": 1}
# What should happen within a second is waited for so long.
LONG = 10.0


class _Told:
    """Plays `play(env)` in its thread and then waits; other threads may call, too."""

    def __init__(
        self,
        play: Callable[[Any], None] | None = None,
        *,
        observation_space: Any = OBS,
        action_space: Any = ACTIONS,
        max_concurrent: int | None = None,
    ) -> None:
        super().__init__(action_space, observation_space, max_concurrent)  # type: ignore[call-arg]
        self.play = play
        self.over = threading.Event()

    def run(self) -> None:
        if self.play is not None:
            self.play(self)
        self.over.wait()


class Told(_Told, ExternalEnv):
    """Of one agent."""


class ToldTeam(_Told, ExternalMultiAgentEnv):
    """Of several agents."""


@contextmanager
def training(
    env: Any, algorithm: Any = PPO, *, idle_timeout: float | None = None, **config: Any
) -> Iterator[Any]:
    """Build an algorithm for an external environment, and let its thread end after all.

    Args:
        env: The environment.
        algorithm: Its class.
        idle_timeout: Of the adapter, if it shall not be the usual one.
        config: Settings.
    """
    if idle_timeout is None:
        config["env"] = lambda context: env
    else:
        spaces: dict[str, Any] = {"observation_space": OBS, "action_space": ACTIONS}
        one = {**spaces, "possible_agents": ["agent0"], "idle_timeout": idle_timeout}
        config |= {"input": lambda context: EnvThreads(env.broker, [env], **one), **spaces}
    with algorithm(config={**SMALL, **config}) as algo:
        try:
            yield algo
        finally:
            env.over.set()


@contextmanager
def calling(*plays: Callable[[], Any]) -> Iterator[None]:
    """Let each function run in a thread of its own; what one raises is raised here."""
    faults: list[BaseException] = []

    def guarded(play: Callable[[], Any]) -> None:
        try:
            play()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(play,), daemon=True) for play in plays]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(LONG)
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads), "a caller still waits"


def until_stopped(play: Callable[[], object], why: str = "training has stopped") -> Callable[[], None]:
    """Return what plays over and over, until that is refused."""

    def on_and_on() -> None:
        while True:
            play()

    def refused() -> None:
        with pytest.raises(CallOrderError, match=why):
            on_and_on()

    return refused


def obs(number: int, step: int) -> Any:
    """Return an observation that says whose it is."""
    return np.array([number, step], np.float32)


def log_steps(env: Any, episode: str, number: int, steps: int, action: int = 1) -> None:
    """Log so many steps, each of which earns its number."""
    for step in range(steps):
        env.log_action(episode, obs(number, step), action)
        env.log_returns(episode, float(step + 1))


def ask_steps(env: Any, episode: str, number: int, steps: int) -> list[int]:
    """Ask for so many actions, each of which earns its number; return them."""
    actions = []
    for step in range(steps):
        actions.append(int(env.get_action(episode, obs(number, step))))
        env.log_returns(episode, float(step + 1))
    return actions


def rows(batches: Sequence[Any], policy_id: str = "default_policy") -> list[dict[str, Any]]:
    """Return the rows of a policy, in order."""
    return [row for batch in batches if policy_id in batch.policy_batches for row in batch[policy_id].rows()]


def steps_of(batches: Sequence[Any]) -> dict[int, list[int]]:
    """Return the steps in the batches by the number of the episode."""
    found: dict[int, list[int]] = {}
    for row in rows(batches):
        found.setdefault(int(row["obs"][0]), []).append(int(row["obs"][1]))
    return found


def rewards_of(batches: Sequence[Any]) -> Mapping[int, list[float]]:
    """Return the rewards in the batches by the number of the episode."""
    found: dict[int, list[float]] = {}
    for row in rows(batches):
        found.setdefault(int(row["obs"][0]), []).append(float(row["rewards"]))
    return found
