"""Scripted games that kill their own process or hang, and write down what they paid before."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from menv.multi_agent_env import AgentDict
from tests.contract.scripted import Script, ScriptedEnv, SoloGym


class DoomedEnv(ScriptedEnv):
    """A `ScriptedEnv` whose steps and resets are counted over all the processes that it lives in.

    Args:
        fate: What happens to it.
        world: Its number.
        agents: See `ScriptedEnv`.
    """

    def __init__(self, fate: Fate, world: int, agents: str) -> None:
        super().__init__(fate.script, world, agents)
        self.fate = fate

    def reset(self, **kwargs: Any) -> Any:
        self._suffer("reset")
        self._note("resets", kwargs)
        return super().reset(**kwargs)

    def step(self, action_dict: AgentDict) -> Any:
        if action_dict:
            # A step in which nobody acts belongs to the one before.
            self._suffer("step")
        before = Counter(self.paid)
        result = super().step(action_dict)
        after = Counter(self.paid)
        after.subtract(before)
        self._note("paid", after)
        return result

    def _suffer(self, where: str) -> None:
        self._note(where, 1)
        count = len(self.fate.noted(where, self.world))
        if (where, self.world, count) in self.fate.dies:
            sys.stderr.write("no wheels\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if (where, self.world, count) in self.fate.hangs:
            time.sleep(1_000)

    def _note(self, name: str, value: Any) -> None:
        with self.fate.file(name, self.world).open("a") as file:
            file.write(f"{json.dumps(value)}\n")


@dataclass(frozen=True)
class Fate:
    """Creates doomed games, and reads what they wrote.

    Attributes:
        folder: Where they write.
        script: What they play.
        solo: Whether they are gymnasium environments.
        dies: Calls, such as ("step", 1, 3) for the third step of world 1, that kill the process.
        hangs: Calls that do not return.
    """

    folder: Path
    script: Script
    solo: bool = False
    dies: Collection[tuple[str, int, int]] = ()
    hangs: Collection[tuple[str, int, int]] = ()

    def __call__(self, index: int) -> Any:
        game = DoomedEnv(self, index, "a" if self.solo else "abcd")
        if not self.solo:
            return game
        env = SoloGym(self.script, index)
        env.game = game
        return env

    def file(self, name: str, world: int) -> Path:
        return self.folder / f"{name}-{world}"

    def noted(self, name: str, world: int) -> list[Any]:
        file = self.file(name, world)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def paid(self, worlds: int) -> Counter[str]:
        """Return what was paid, by agent."""
        total: Counter[str] = Counter()
        for world in range(worlds):
            for paid in self.noted("paid", world):
                total.update(paid)
        return total
