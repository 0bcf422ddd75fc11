"""What several hosts have told, as one table.

`menv.scale.remote_envs` hands it out. Rows stand in the order of the sub-environments, whoever answered first; while
the same agents wait, the slots are the very same array.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from menv.base_env import IntArray, Ready
from menv.scale.due import Due, Layout, Rows
from menv.scale.far_host import FarHost

_NO_INFO: Mapping[str, Any] = {}


class Delivered:
    """What the last poll handed out: hosts with the layouts of their rows, and the slots of all."""

    def __init__(self, parts: Sequence[tuple[FarHost, Layout]], slots: Sequence[IntArray]) -> None:
        self.parts = parts
        self.slots = (
            slots[0] if len(slots) == 1 else np.concatenate(slots) if slots else np.zeros(0, np.int64)
        )

    def whole(self, waiting: Mapping[int, IntArray]) -> bool:
        """Return whether all of it waits as it was handed out, with hosts that can be asked."""
        return all(
            waiting.get(index) is slots and index not in host.left
            for host, layout in self.parts
            for index, slots in layout.by_env.items()
        )


def _joined_events(dues: Iterable[Due]) -> Due:
    found = Due()
    for due in dues:
        before = len(found.unclaimed)
        found.joined += due.joined
        found.ended += due.ended
        found.unclaimed += due.unclaimed
        found.episodes += [
            one._replace(unclaimed=one.unclaimed + before) if before else one for one in due.episodes
        ]
        found.faults += due.faults
        found.shared_infos += due.shared_infos
    return found


def handed_out(
    hosts: Iterable[FarHost], env_steps: IntArray, before: Delivered, seats: Sequence[Any]
) -> tuple[Ready, Delivered]:
    """Return what is due, and who waits with it.

    Args:
        hosts: They have nothing due any more afterwards.
        env_steps: [E] is brought up to date.
        before: Who waited last.
        seats: See `Ready.seats`.
    """
    dues: list[Due] = []
    parts: list[tuple[FarHost, Layout]] = []
    rows: list[Rows] = []
    for host in hosts:
        due = host.due
        env_steps[host.first : host.first + host.size] = host.env_steps
        if not due.empty:
            host.due = Due()
            dues.append(due)
            rows += due.rows
            parts += [(host, one.layout) for one in due.rows]
    same = [layout for _, layout in parts] == [layout for _, layout in before.parts]
    delivered = before if same else Delivered(parts, [layout.slots for _, layout in parts])
    obs: list[Any] = list(chain.from_iterable([one.obs for one in rows]))
    infos: list[Mapping[str, Any]] = [_NO_INFO] * len(obs)
    if any(one.infos is not None for one in rows):
        infos = list(chain.from_iterable([one.infos or [_NO_INFO] * len(one.obs) for one in rows]))
    rewards = np.concatenate([one.rewards for one in rows]) if rows else np.zeros(0)
    events = _joined_events(dues)
    ready = Ready(
        delivered.slots, obs, rewards, env_steps, events.joined, events.ended, events.episodes, events.unclaimed,
        infos, {}, seats, (), events.faults, events.shared_infos,
    )  # fmt: skip
    return ready, delivered
