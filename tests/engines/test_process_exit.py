"""What a process does before it ends, although it does not take its interpreter apart."""

from __future__ import annotations

import atexit
import io
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import pytest

from menv.errors import EnvFaultWarning
from menv.workers.engine import RemoteActor
from menv.workers.process_engine import ProcessEngine

_kept: list[Any] = []


class Writer:
    """Writes and does not close.

    Args:
        folder: Of its files.
        how: Who refers to the file at the end, or what writes it.
    """

    def __init__(self, folder: str, how: str) -> None:
        self.path = Path(folder) / "written"
        getattr(self, how)()

    def a_module(self) -> None:
        file = self.path.open("w")
        file.write("everything")
        _kept.append(file)

    def a_module_in_bytes(self) -> None:
        file = self.path.open("wb")
        file.write(b"everything")
        _kept.append(file)

    def a_ring(self) -> None:
        self.file: IO[Any] = self.path.open("w")
        self.file.write("everything")
        self.itself = self

    def a_function_at_exit(self) -> None:
        atexit.register(self.path.write_text, "everything")

    def a_thread(self) -> None:
        threading.Thread(target=self._write_late).start()

    def _write_late(self) -> None:
        time.sleep(0.3)
        self.path.write_text("everything")

    def a_stream_in_place_of_stdout(self) -> None:
        sys.stdout = _Held(self.path)
        sys.stdout.write("everything")

    def a_finalizer_in_a_ring(self) -> None:
        ring = _Last(self.path)
        ring.itself = ring


class _Held(io.TextIOBase):
    """Keeps what is written until it is flushed."""

    def __init__(self, path: Path) -> None:
        self._path, self._text = path, ""

    def write(self, text: str) -> int:
        self._text += text
        return len(text)

    def flush(self) -> None:
        self._path.write_text(self._text)


class _Last:
    itself: _Last

    def __init__(self, path: Path) -> None:
        self._path = path

    def __del__(self) -> None:
        self._path.write_text("everything")


class Leaver:
    """Raises when it is stopped, or leaves a folder that is deleted at the end."""

    def __init__(self, folder: str, *, raises: bool) -> None:
        self._raises = raises
        _kept.append(tempfile.TemporaryDirectory(dir=folder))

    def stop(self) -> None:
        if self._raises:
            raise RuntimeError("nothing works")


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    engine = ProcessEngine()
    yield engine
    engine.stop()


@pytest.mark.parametrize(
    "how",
    ["a_module", "a_module_in_bytes", "a_ring", "a_function_at_exit", "a_thread", "a_stream_in_place_of_stdout",
     "a_finalizer_in_a_ring"],
)  # fmt: skip
def test_what_was_written_is_there_when_the_engine_has_stopped(
    engine: ProcessEngine, tmp_path: Path, how: str
) -> None:
    assert engine.start(Writer, str(tmp_path), how, label="worker 1").answer() is None
    engine.stop()
    assert (tmp_path / "written").read_text() == "everything"


@pytest.mark.parametrize("raises", [False, True])
def test_the_exit_code_tells_whether_the_object_could_be_stopped(
    engine: ProcessEngine, tmp_path: Path, raises: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    peer = engine.start(_leaver, str(tmp_path), raises, label="worker 1")
    assert peer.answer() is None
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.warns(EnvFaultWarning, match="exit code 1.*nothing works") if raises else nullcontext():
        engine.stop()
    assert code(peer) == raises
    assert not list(tmp_path.iterdir())
    assert ("nothing works" in capfd.readouterr().err) == raises


def code(peer: RemoteActor) -> int | None:
    """Return the exit code of a peer's process."""
    process: Any = peer._process  # type: ignore[attr-defined]
    return process.poll()  # type: ignore[no-any-return]


def _leaver(folder: str, raises: bool) -> Leaver:
    return Leaver(folder, raises=raises)
