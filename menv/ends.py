"""Trajectories that ended since the last fragment, as columns; kept by `menv.ledger`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from menv.base_env import End


@dataclass(slots=True)
class Ends:
    """Trajectories that ended, in the order in which they did; lists of numbers leave the collector alone.

    Attributes:
        slots: The slots that they had.
        rewards: Earned since their last rows.
        terminated: Flags.
        truncated: Flags.
        obs: Final observations, None where the environment gave none.
        infos: The info dicts that came with the ends.
        rows: Rows that had been written then.
        env_steps: Env steps of the sub-environment then, where rows are dated.
        withdrawn: Indices of the ends that take the trajectory's last row with them.
    """

    slots: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    obs: list[Any] = field(default_factory=list)
    infos: list[Mapping[str, Any]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    env_steps: list[int] = field(default_factory=list)
    withdrawn: set[int] = field(default_factory=set)

    def add(self, end: End, rows: int) -> None:
        """Note an end after so many rows."""
        if end.withdrawn:
            self.withdrawn.add(len(self.slots))
        self.slots.append(end.slot)
        self.rewards.append(end.reward)
        self.terminated.append(end.terminated)
        self.truncated.append(end.truncated)
        self.obs.append(end.obs)
        self.infos.append(end.info)
        self.rows.append(rows)
