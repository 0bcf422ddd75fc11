"""What a host has told and no poll has handed out yet.

`menv.scale.far_host` keeps one a host; there is more than one piece of news in it only where somebody reset, called or
lost a sub-environment between two polls. Slots and sub-environments are those of the whole `RemoteEnvs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from menv.base_env import End, EpisodeEnd, FloatArray, IntArray, Join, SharedInfo, Unclaimed
from menv.fault import Fault
from menv.scale.news import Events


class Layout:
    """Who waits together.

    Attributes:
        slots: [R] their slots.
        by_env: The slots of each sub-environment.
        own: [R] their slots as the host numbers them.
    """

    __slots__ = ("by_env", "own", "slots")

    def __init__(self, slots: IntArray, own: IntArray, by_env: Mapping[int, IntArray]) -> None:
        self.slots = slots
        self.own = own
        self.by_env = by_env

    def without(self, gone: set[int]) -> tuple[Layout, list[int]]:
        """Return the layout of those who are not in `gone`, and their places in this one."""
        places = [place for place, slot in enumerate(self.slots.tolist()) if slot not in gone]
        by_env = {
            index: np.array([slot for slot in slots.tolist() if slot not in gone], np.int64)
            for index, slots in self.by_env.items()
        }
        kept = {index: slots for index, slots in by_env.items() if len(slots)}
        return Layout(self.slots[places], self.own[places], kept), places


@dataclass(slots=True)
class Rows:
    """Agents that wait, with what they see.

    Attributes:
        layout: Who.
        obs: R observations.
        rewards: [R].
        infos: R info dicts, None where all are empty.
    """

    layout: Layout
    obs: Sequence[Any]
    rewards: FloatArray
    infos: Sequence[Mapping[str, Any]] | None

    def without(self, gone: set[int]) -> Rows:
        """Return the rows of those who are not in `gone`."""
        layout, places = self.layout.without(gone)
        infos = None if self.infos is None else [self.infos[place] for place in places]
        return Rows(layout, [self.obs[place] for place in places], self.rewards[places], infos)


@dataclass(slots=True)
class Due:
    """Rows and events; see `Ready`."""

    rows: list[Rows] = field(default_factory=list)
    joined: list[Join] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)
    episodes: list[EpisodeEnd] = field(default_factory=list)
    unclaimed: list[Unclaimed] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    shared_infos: list[SharedInfo] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to hand out."""
        return not (
            self.rows or self.ended or self.episodes or self.unclaimed or self.joined or self.faults
            or self.shared_infos
        )  # fmt: skip

    def add(self, rows: Rows | None, events: Events | None) -> None:
        """Add what happened next."""
        if events is not None:
            ended, early = self._folded(events.ended) if self.rows or self.joined else (events.ended, [])
            before = len(self.unclaimed) + len(early)
            self.ended += ended
            self.unclaimed += [*early, *events.unclaimed]
            self.episodes += [
                one if not before else one._replace(unclaimed=one.unclaimed + before)
                for one in events.episodes
            ]
            self.joined += events.joined
            self.faults += events.faults
            # Those of episodes that are over by now are not of anybody's.
            over = {one.env_id for one in events.episodes}
            self.shared_infos = [one for one in self.shared_infos if one.env_id not in over]
            self.shared_infos += events.shared_infos
        if rows is not None and len(rows.layout.slots):
            self.rows.append(rows)

    def drop(self, slots: set[int]) -> None:
        """Forget rows that were answered before a poll handed them out."""
        self.rows = [rows.without(slots) for rows in self.rows]

    def shown(self) -> dict[int, IntArray]:
        """Return the slots of the rows of each sub-environment."""
        return {index: slots for rows in self.rows for index, slots in rows.layout.by_env.items()}

    def _folded(self, ended: Sequence[End]) -> tuple[list[End], list[Unclaimed]]:
        """Let ends take rows and joins with them that nobody was told of.

        Returns:
            The ends of trajectories that were told of, and what was paid to others.
        """
        joined = {join.slot: join for join in self.joined}
        shown = {
            slot: (rows, place) for rows in self.rows for place, slot in enumerate(rows.layout.slots.tolist())
        }
        told: list[End] = []
        early: list[Unclaimed] = []
        for end in ended:
            reward, obs = end.reward, end.obs
            if end.slot in shown:
                rows, place = shown[end.slot]
                reward += float(rows.rewards[place])
                obs = rows.obs[place] if obs is None else obs
                # What the last action led to is known after all.
                end = end._replace(reward=reward, obs=obs, withdrawn=False)
            if end.slot not in joined:
                told.append(end)
            elif reward:
                early.append(Unclaimed(end.env_id, end.agent_id, reward, joined[end.slot].env_index))
        gone = {end.slot for end in ended}
        self.joined = [join for join in self.joined if join.slot not in gone]
        self.drop(gone & set(shown))
        return told, early
