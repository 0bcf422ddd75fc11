"""Playing a task in workers: samplers in other processes, each with a share of the sub-environments.

`menv.verify.backends` has it in its table, once for each engine. What comes back are the records of the shares.
"""

from __future__ import annotations

from typing import Any

from menv.registry import Known
from menv.scale.engine import EngineName
from menv.scale.engines import make_engine
from menv.scale.known_names import known_here
from menv.verify.record import Record
from menv.verify.shares import play_share, shares
from menv.verify.task import Task

_WORKERS = 2


def play_in_workers(task: Task, engine_name: EngineName) -> Record:
    """Play a task in two workers.

    Raises:
        UnsendableError: The environment cannot be described to another process.
    """
    engine, record = make_engine(engine_name), Record()
    try:
        peers = [
            engine.start(
                _Player, task, known_here(task.env, task.settings), number, label=f"worker {number + 1}"
            )
            for number in range(min(_WORKERS, task.num_envs))
        ]
        for peer in peers:
            peer.ask("play")
        for peer in peers:
            peer.answer()
            record.add(peer.answer())
    finally:
        engine.stop()
    return record


class _Player:
    """Lives in a worker."""

    def __init__(self, task: Task, known: Known, number: int) -> None:
        known.tell()
        self._task = task
        self._number = number

    def play(self) -> Any:
        """Return the record of this worker's share."""
        record = Record()
        play_share(self._task, shares(self._task, _WORKERS)[self._number], record)
        return record
