"""The latest checkpoint is read while whoever saves deletes those of before."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from menv import Policy
from menv.algorithms import PPO
from menv.inference.checkpoint_folder import (
    keep_only,
    read_checkpoint,
    read_files,
    read_manifest,
    write_checkpoint,
)
from tests.checkpoints.runs import SMALL


def written(root: Path, number: int) -> Path:
    return write_checkpoint(root, number, {"number": number}, {"a.json": {}, "b.json": {}})


def content(folder: Path) -> Any:
    manifest = read_manifest(folder)
    read_files(folder, manifest)
    return manifest["number"]


def test_where_the_latest_is_deleted_while_it_is_read_the_next_one_is(tmp_path: Path) -> None:
    written(tmp_path, 1)
    seen = []

    def read(folder: Path) -> Any:
        seen.append(folder.name)
        if len(seen) < 4:
            written(tmp_path, len(seen) + 1)
            keep_only(tmp_path, set())
        return content(folder)

    assert read_checkpoint(tmp_path, read) == 4
    assert seen == ["000001", "000002", "000003", "000004"]


def test_policies_of_a_run_that_saves_all_the_time_load(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.save(tmp_path)
        over = threading.Event()

        def save() -> None:
            while not over.is_set():
                algo.iteration += 1
                algo.save(tmp_path, keep_last=1)

        saving = threading.Thread(target=save)
        saving.start()
        try:
            for _ in range(15):
                policies = Policy.from_checkpoint(tmp_path)
                assert isinstance(policies, dict)
                assert policies["default_policy"].act(np.zeros(4, np.float32)) in (0, 1)
                PPO.from_checkpoint(tmp_path).stop()
        finally:
            over.set()
            saving.join()
