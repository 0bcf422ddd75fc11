"""How sub-environments are hosted in other processes.

`menv.scale.convert` makes it of the settings that users give; `hosts` and `successors` keep to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from menv.adapters.crash_log import TOLERATED


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How sub-environments are hosted elsewhere.

    Attributes:
        batch_wait_ms: Milliseconds that a poll waits for more hosts once one has answered; a large number lets all
            step in lock step.
        env_timeout: Seconds after which a sub-environment that does not answer is given up; None waits for ever.
        per_process: Sub-environments that share a process.
        tolerated: Crashes in a row, of one process or sub-environment without progress, that do not end the run; None
            creates none again that raises, hangs or is killed.
        seed: Gives every reset its own seed; None leaves the environments alone.
        first_index: Index of sub-environment 0 among those of all workers.
    """

    batch_wait_ms: float = 0
    env_timeout: float | None = None
    per_process: int = 1
    tolerated: int | None = TOLERATED
    seed: int | None = None
    first_index: int = 0
