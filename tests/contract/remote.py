"""Scripted games that are played in other processes, and what they say of themselves from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from menv import to_base_env
from menv.base_env import BaseEnv
from tests.contract.recycled import RecycledEngine
from tests.contract.scripted import Script, ScriptedEnv, SoloGym
from tests.engines.peers import Engine, EngineName, RemoteActor, make_engine

LOCK_STEP = 99_999_999
_POOLS: dict[EngineName, list[RemoteActor]] = {"process": [], "ray": []}
_USED: list[RecycledEngine] = []


@cache
def _starter(name: EngineName) -> Engine:
    return make_engine(name, cpus=0.0)


def engine(name: EngineName) -> Engine:
    """Return an engine for one test, with processes of tests before."""
    _USED.append(RecycledEngine(_starter(name), _POOLS[name]))
    return _USED[-1]


def hand_back() -> None:
    """Take the processes back that have been given to engines."""
    while _USED:
        _USED.pop().stop()


@dataclass(frozen=True)
class Make:
    """Creates the game of a sub-environment."""

    scripts: Sequence[Script]
    solo: bool
    salt: bool = False

    def __call__(self, index: int) -> Any:
        kind: Callable[..., Any] = SoloGym if self.solo else ScriptedEnv
        return kind(self.scripts[index], index, salt=self.salt)


class FarGame:
    """A scripted game in another process: its attributes are asked for."""

    def __init__(self, base_env: BaseEnv, index: int) -> None:
        self._base_env, self._index = base_env, index

    def __getattr__(self, name: str) -> Any:
        return self._base_env.call(self._index, "tell", name)


def remote(
    make: Callable[[int], Any],
    num_envs: int,
    *,
    wait: float = LOCK_STEP,
    on: EngineName = "process",
    **settings: Any,
) -> BaseEnv:
    """Return sub-environments in processes that are used again after."""
    return to_base_env(
        make(0),
        make,
        num_envs,
        remote_envs=True,
        remote_env_batch_wait_ms=wait,
        engine=engine(on),
        **settings,
    )
