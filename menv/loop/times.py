"""Where the time of sampling goes.

A `menv.loop.sampler` keeps one `Times`, and whoever goes round for it adds to them; workers send theirs with each
fragment.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Self


@dataclass(slots=True)
class Times:
    """Seconds since somebody took them.

    Attributes:
        env: In environments: their steps and resets, what turns their answers into rows, and waiting for those that are
            elsewhere or call.
        act: In deciding: networks, policies of one's own, draws, connectors of actions.
        complete: In what is added to a fragment before anybody learns: values, advantages, postprocessing.
    """

    env: float = 0.0
    act: float = 0.0
    complete: float = 0.0

    def add(self, other: Times) -> None:
        """Add those of somebody else."""
        self.env += other.env
        self.act += other.act
        self.complete += other.complete

    def take(self) -> Self:
        """Return them, and begin anew."""
        taken = type(self)(*astuple(self))
        self.env = self.act = self.complete = 0.0
        return taken

    def as_seconds(self) -> dict[str, float]:
        """Return them under the names that results have."""
        return {f"{field.name}_time_s": getattr(self, field.name) for field in fields(self)}
