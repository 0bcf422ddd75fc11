"""Scripted environments that crash: what happens in one is kept over all the sub-environments that take its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from menv import to_base_env
from menv.base_env import ALL
from tests.contract.scripted import AGENTS, Ended, Script, ScriptedEnv, Seen, SoloGym


class CrashError(Exception):
    """What a `CrashingEnv` raises; the text counts them."""


class World:
    """One sub-environment through all its copies.

    Args:
        script: What each copy plays; episodes are numbered on from copy to copy.
        number: Of the world.
        steps: Calls of `step` in this world, from 1, that raise before anything happens.
        resets: Calls of `reset`, likewise; in a copy that was never reset they count as "replacement".
        most: Crashes without a finished episode in between; those beyond do not happen.
        settings: See `ScriptedEnv`.
    """

    def __init__(
        self,
        script: Script,
        number: int = 0,
        *,
        steps: Collection[int] = (),
        resets: Collection[int] = (),
        most: int = 2,
        **settings: Any,
    ) -> None:
        self.script, self.number, self.settings = script, number, settings
        self.due = {"step": set(steps), "reset": set(resets)}
        self.most = most
        self.calls: Counter[str] = Counter()
        self.crashes: list[str] = []
        self.series = 0
        self.games: list[CrashingEnv] = []
        self.resets: list[dict[str, Any]] = []
        self.paid: Counter[str] = Counter()
        self.shown: list[Seen] = []
        self.ended: list[Ended] = []
        self.lost: list[Ended] = []
        self.finished: list[int] = []
        self.complaints: list[str] = []

    def make(self) -> CrashingEnv:
        game = CrashingEnv(self)
        self.games.append(game)
        return game

    def make_solo(self) -> SoloGym:
        env = SoloGym(self.script, self.number)
        env.game = self.make()
        return env

    @property
    def missing(self) -> set[Seen]:
        """The last rows of lost lives: nobody knows what came of them."""
        lives = {end[:4] for end in self.lost}
        return set({row[:4]: row for row in self.shown if row[:4] in lives}.values())


class CrashingEnv(ScriptedEnv):
    """A `ScriptedEnv` that raises where its world says so."""

    def __init__(self, fate: World) -> None:
        super().__init__(fate.script, fate.number, **fate.settings)
        self.fate = fate
        self.fresh = True
        self.resets, self.paid, self.complaints = fate.resets, fate.paid, fate.complaints
        self.shown, self.ended = fate.shown, fate.ended

    def reset(self, **kwargs: Any) -> Any:
        if self._breaks("reset"):
            self.ended += [self.end_of(agent, False, True, None) for agent in sorted(self.alive)]
            raise CrashError(f"number {len(self.fate.crashes)}")
        self.fresh = False
        return super().reset(**kwargs)

    def step(self, action_dict: Any) -> Any:
        if self._breaks("step"):
            if set(action_dict) != self.asked:
                self.complaints.append(f"asked {sorted(self.asked)}, answered {sorted(action_dict)}")
            self.fate.lost += [self.end_of(agent, False, True, None) for agent in sorted(self.alive)]
            raise CrashError(f"number {len(self.fate.crashes)}")
        result = super().step(action_dict)
        if result[2][ALL] or result[3][ALL]:
            self.fate.series = 0
            self.fate.finished.append(self.episode)
        return result

    def _breaks(self, where: str) -> bool:
        fate = self.fate
        assert self is fate.games[-1], "a closed sub-environment was used"
        fate.calls[where] += 1
        breaks = fate.calls[where] in fate.due[where] and fate.series < fate.most
        if breaks:
            fate.series += 1
            fate.crashes.append("replacement" if self.fresh else where)
        return breaks


def together(worlds: list[World], *, solo: bool = False, **settings: Any) -> Any:
    """Return worlds as one base env."""
    for world in worlds:
        if solo:
            world.settings["agents"] = "a"
    make = [world.make_solo if solo else world.make for world in worlds]
    return to_base_env(make[0](), lambda index: make[index](), len(worlds), **settings)


def every_letter(counts: Counter[str]) -> dict[str, int]:
    return {agent: int(counts[agent]) for agent in AGENTS}
