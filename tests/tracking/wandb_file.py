"""Reads the files that wandb writes without a network: blocks of 32 KiB with records, as in a LevelDB log."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

messages: Any = wandb_internal_pb2


@dataclass
class Logged:
    """One run in a file.

    Attributes:
        run_id: Its id.
        name: Its name.
        config: Its settings.
        rows: What was logged, a row per call.
        artifacts: Their names.
        exit_code: None while its end is not written.
    """

    run_id: str = ""
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)
    exit_code: int | None = None


def logged_runs(folder: Path) -> list[Logged]:
    """Return the runs that wandb wrote in a working folder and that have ended, the oldest first."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    until = time.monotonic() + 30
    # The process of wandb may write the last records after the end of the run.
    while any((run := _run(path)).exit_code is None for path in files):
        assert time.monotonic() < until, run
        time.sleep(0.05)
    return [_run(path) for path in files]


def _run(path: Path) -> Logged:
    found = Logged()
    for data in _records(path.read_bytes()):
        record = messages.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run_id, found.name = record.run.run_id, record.run.display_name
        elif kind == "config":
            found.config |= {
                "/".join(one.nested_key) or one.key: json.loads(one.value_json)
                for one in record.config.update
            }
        elif kind == "history":
            items = record.history.item
            found.rows.append(
                {"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in items}
            )
        elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
            found.artifacts.append(record.request.log_artifact.artifact.name)
        elif kind == "artifact":
            found.artifacts.append(record.artifact.name)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _records(data: bytes) -> Iterator[bytes]:
    at, parts = 7, b""
    while at + 7 <= len(data):
        room = 2**15 - at % 2**15
        if room < 7:
            at += room
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        # Whole records and last parts.
        if kind in (1, 4):
            yield parts
            parts = b""
