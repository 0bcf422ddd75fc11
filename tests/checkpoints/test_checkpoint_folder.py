"""Folders of checkpoints: whole or not there, refused by name when they are not as they were written."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv.errors import ConfigError
from menv.inference.checkpoint_folder import (
    FORMAT,
    find_checkpoint,
    read_files,
    read_manifest,
    write_checkpoint,
)

CONTENT: dict[str, Any] = {
    "state.json": {"iteration": 3, "text": "é"},
    "weights.safetensors": {
        "a/w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a/transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "a/none": np.zeros((0, 3)),
        "a/one": np.array(7, np.uint64),
        "a/flags": np.array([True, False]),
    },
}


def written(root: Path, number: int = 3) -> Path:
    return write_checkpoint(root, number, {"kind": "test"}, CONTENT)


def loaded(path: Path) -> dict[str, Any]:
    folder = find_checkpoint(path)
    return read_files(folder, read_manifest(folder))


def test_a_file_instead_of_the_folder_is_named_and_kept(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(ConfigError, match="save"):
        written(tmp_path / "runs")
    assert (tmp_path / "runs").read_text() == "mine"


def test_a_checkpoint_inside_a_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(ConfigError, match=rf"save: {folder} .*'{tmp_path}'"):
        written(folder, 4)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "new" / "runs")
    assert folder == tmp_path / "new" / "runs" / "000003"
    files = loaded(tmp_path / "new" / "runs")
    assert files["state.json"] == CONTENT["state.json"]
    for name, array in CONTENT["weights.safetensors"].items():
        found = files["weights.safetensors"][name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)


def test_the_latest_is_found_and_any_other_by_its_number(tmp_path: Path) -> None:
    for number in (1, 2, 12):
        written(tmp_path, number)
    assert find_checkpoint(tmp_path).name == "000012"
    assert find_checkpoint(str(tmp_path / "000001")).name == "000001"
    assert (tmp_path / "LATEST").read_text() == "000012\n"


def test_one_of_the_same_number_is_replaced(tmp_path: Path) -> None:
    written(tmp_path)
    write_checkpoint(tmp_path, 3, {}, {"state.json": {"iteration": "again"}})
    assert loaded(tmp_path) == {"state.json": {"iteration": "again"}}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000003", "LATEST"]


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    written(tmp_path)
    for name, age in ((".writing-000004-0123abcd", 7200), (".writing-000005-0123abcd", 0), (".mine-1", 7200)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text("{")
        os.utime(tmp_path / name, times=(time.time() - age,) * 2)
    assert loaded(tmp_path)["state.json"] == CONTENT["state.json"]
    written(tmp_path, 4)
    left = [".mine-1", ".writing-000005-0123abcd", "000003", "000004", "LATEST"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "weights.safetensors"])
def test_a_changed_byte_is_refused_by_the_name_of_its_file(name: str, tmp_path: Path) -> None:
    folder = written(tmp_path)
    original = (folder / name).read_bytes()
    rng = random.Random(7)
    for place in {0, len(original) - 1, *rng.sample(range(len(original)), min(60, len(original)))}:
        changed = bytearray(original)
        changed[place] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(bytes(changed))
        with pytest.raises(ConfigError, match=f"{name}: "):
            loaded(tmp_path)
    (folder / name).write_bytes(original)
    loaded(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (written(tmp_path) / "weights.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"weights\.safetensors"):
        loaded(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "format": FORMAT + 1, "menv_version": "9.9"})
    )
    with pytest.raises(ConfigError, match="format 2"):
        loaded(tmp_path)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path, r"manifest\.json"), (tmp_path / "nowhere", "nowhere")):
        with pytest.raises(ConfigError, match=why):
            find_checkpoint(path)


@pytest.mark.parametrize("says", ["", "../../etc", "000004", "\xff"])
def test_a_file_that_names_no_checkpoint_is_refused(says: str, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "LATEST").write_text(says, "latin-1")
    with pytest.raises(ConfigError, match="000003"):
        find_checkpoint(tmp_path)


def test_a_failed_save_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    def add(folder: Path) -> dict[str, Any]:
        (folder / "more").mkdir()
        raise OSError("no space left")

    written(tmp_path)
    with pytest.raises(OSError, match="no space left"):
        write_checkpoint(tmp_path, 3, {}, {"state.json": {"new": True}}, add)
    assert loaded(tmp_path)["state.json"] == CONTENT["state.json"]
    written(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000003", "000004", "LATEST"]


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.mark.parametrize("number", [3, 4])
def test_a_complete_checkpoint_is_found_wherever_writing_stops(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    stop = 0

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise Killed
            return function(*args, **kwargs)

        return call

    found: list[str] = []
    while not found or found[-1] != "complete":
        stop, root = stop + 1, tmp_path / str(stop)
        written(root)
        calls = 0
        with monkeypatch.context() as patched:
            for name in ("replace", "fsync", "mkdir", "open"):
                patched.setattr(os, name, counted(getattr(os, name)))
            patched.setattr(shutil, "rmtree", counted(shutil.rmtree))
            try:
                write_checkpoint(root, number, {}, {"state.json": {"new": True}})
                found.append("complete")
            except Killed:
                found.append("new" if "new" in loaded(root)["state.json"] else "old")
        assert "new" in loaded(root)["state.json"] or found[-1] == "old"
        write_checkpoint(root, number + 1, {}, {"state.json": {"next": True}})
        assert loaded(root) == {"state.json": {"next": True}}
    assert found == sorted(found, key=["old", "new", "complete"].index)
    assert len(found) > 10


# Which checkpoints stay in a folder where an earlier run has left some with higher numbers.


# A process that is killed while it saves leaves a checkpoint that loads.


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_checkpoint_loads_after_each_of_20_kills(tmp_path: Path) -> None:
    script = [sys.executable, "-m", "tests.checkpoints.saving_until_killed", str(tmp_path), "20", "1"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, interrupted = map(int, done.stdout.split())
    assert told == 20
    assert interrupted > 0
