"""`TableChecks` finds what contradicts itself in the tables of a user's own `BaseEnv`, for `check_env` and `strict`.

It keeps its own books of slots, poll by poll, and calls nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from menv.adapters.validation import by_sub_environment, check_answers
from menv.base_env import ALL, COMMON, AgentId, End, EnvId, EpisodeEnd, Join, Ready, Unclaimed
from menv.errors import ContractError


class TableChecks:
    """The tables of one environment.

    Attributes:
        was_reset: Whether a sub-environment was reset since the last poll, which ends agents that wait.
    """

    def __init__(self, where: str, num_envs: int, seats: Sequence[tuple[EnvId, AgentId]]) -> None:
        self.was_reset = False
        self._where, self._num_envs, self._seats = where, num_envs, seats
        # The seats of living agents by slot, and the indices of running episodes.
        self._living: dict[int, tuple[EnvId, AgentId]] = {}
        self._running: dict[EnvId, int] = {}
        self._waits: set[int] = set()
        # Env steps by index: of the last table, and of the last rows of a sub-environment.
        self._steps: dict[int, int] = {}
        self._had_rows: dict[int, int] = {}

    def check(self, ready: Ready) -> None:
        """Raise a `ContractError` for the first fault."""
        try:
            self._count(np.asarray(ready.env_steps))
            self._check_kinds(ready)
            for end in ready.ended:
                self._end(end)
            for episode in ready.episodes:
                self._end_episode(episode, len(ready.unclaimed))
            for join in ready.joined:
                self._join(join)
            self._check_rows(ready, np.asarray(ready.slots))
        except (TypeError, AttributeError, ValueError) as error:
            self._expect(False, "a part", f"of another type ({error})", "the types of menv.Ready")
        self.was_reset = False

    def answer(self, slots: Any, actions: Any) -> None:
        """Record answers; raise unless they answer all waiting agents of their sub-environments."""
        for env_id, answers in by_sub_environment(slots, actions, self._seats).items():
            waiting = [self._seats[slot][1] for slot in self._waits if self._seats[slot][0] == env_id]
            check_answers(env_id, waiting, answers)
        self._waits.difference_update(int(slot) for slot in slots)

    def _expect(self, holds: bool, part: str, got: str, rule: str) -> None:
        if not holds:
            fix = "fix the table that poll returns"
            raise ContractError(f"{self._where}: {part}: {got}, expected {rule}; {fix}", "ME100")

    def _count(self, steps: Any) -> None:
        well = steps.ndim == 1 and steps.dtype.kind in "iu" and len(steps) >= self._num_envs
        rule = f"[{self._num_envs or 'E'}] integers"
        self._expect(well, "env_steps", f"{steps.dtype} of shape {steps.shape}", rule)
        for index, now in enumerate(steps.tolist()):
            before = self._steps.get(index, now)
            got = f"{now} of sub-environment {index}, after {before}"
            self._expect(now >= before, "env_steps", got, "never less than before")
            self._steps[index] = now

    def _check_kinds(self, ready: Ready) -> None:
        self._expect(not ready.played, "played", "parts of episodes", "none")
        kinds = {"ended": End, "episodes": EpisodeEnd, "unclaimed": Unclaimed, "joined": Join}
        for part, kind in kinds.items():
            for entry in getattr(ready, part):
                self._expect(isinstance(entry, kind), part, type(entry).__name__, f"menv.{kind.__name__}")
                index = getattr(entry, "env_index", 0)
                self._expect(index in self._steps, part, f"env_index {index!r}", "its place in env_steps")

    def _end(self, end: End) -> None:
        who = f"agent {end.agent_id!r} of env {end.env_id!r}"
        lives = self._living.get(end.slot) == (end.env_id, end.agent_id)
        self._expect(lives, "ended", f"{who} does not live on slot {end.slot}", "the slot of its Join, once")
        flagged = end.terminated or end.truncated
        self._expect(flagged, "ended", f"{who} is neither terminated nor truncated", "one of both")
        answered = end.slot not in self._waits or end.withdrawn or self.was_reset
        self._expect(answered, "ended", f"{who} ends while it waits for an action", "an answer first")
        self._expect(isinstance(end.info, dict), "ended", f"the info of {who} is not a dict", "a dict")
        del self._living[end.slot]
        self._waits.discard(end.slot)
        self._had_rows.pop(self._running[end.env_id], None)

    def _end_episode(self, episode: EpisodeEnd, unclaimed: int) -> None:
        left = [agent for env_id, agent in self._living.values() if env_id == episode.env_id]
        name = f"the episode of env {episode.env_id!r}"
        self._expect(
            not left, "episodes", f"{name} ended while agents {left[:8]} live on", "their ends first"
        )
        counted = 0 <= episode.unclaimed <= unclaimed and episode.env_steps >= 0
        self._expect(
            counted, "episodes", f"{name} is {episode}", "its length, and entries of `unclaimed` before it"
        )
        index = self._running.pop(episode.env_id, episode.env_index)
        self._expect(index == episode.env_index, "episodes", f"{name} ran at index {index}", "that index")

    def _join(self, join: Join) -> None:
        seat, who = (join.env_id, join.agent_id), f"agent {join.agent_id!r} of env {join.env_id!r}"
        self._expect(join.agent_id not in (ALL, COMMON), "joined", f"{who} joins", "another name")
        free = join.slot >= 0 and join.slot not in self._living and seat not in self._living.values()
        self._expect(
            free, "joined", f"{who} joins on slot {join.slot}", "a free slot, and one life at a time"
        )
        self._running.setdefault(join.env_id, join.env_index)
        runs = [env_id for env_id, index in self._running.items() if index == join.env_index]
        self._expect(
            runs == [join.env_id],
            "joined",
            f"{who} has the index of {runs}",
            "its own until its episode ends",
        )
        self._living[join.slot] = seat
        self._had_rows.pop(join.env_index, None)

    def _check_rows(self, ready: Ready, slots: Any) -> None:
        well = slots.ndim == 1 and (not len(slots) or slots.dtype.kind in "iu")
        self._expect(well, "slots", f"{slots.dtype} of shape {slots.shape}", "[R] integers")
        rows = Counter(slots.tolist())
        for slot, times in rows.items():
            self._expect(
                slot in self._living,
                "slots",
                f"a row for slot {slot}, on which no agent lives",
                "a Join first",
            )
            once = times == 1 and slot not in self._waits
            self._expect(
                once, "slots", f"agent {self._living[slot]} waits already", "each row once, before its answer"
            )
        for join in ready.joined:
            self._expect(
                join.slot in rows, "joined", f"slot {join.slot} has no row", "a row in the same poll"
            )
        for index in {self._running[self._living[slot][0]] for slot in rows}:
            now = self._steps[index]
            got = f"{now} at new rows of sub-environment {index}, as at earlier rows"
            self._expect(now > self._had_rows.get(index, -1), "env_steps", got, "more")
            self._had_rows[index] = now
        for part in ("rewards", "obs", *(("infos",) if ready.infos is not None else ())):
            count = len(getattr(ready, part))
            self._expect(count == len(slots), part, f"{count} rows for {len(slots)} slots", "one for each")
        self._expect(
            rows.keys() >= set(ready.taken), "taken", f"actions for {set(ready.taken)}", "slots of rows"
        )
        self._waits.update(rows)
