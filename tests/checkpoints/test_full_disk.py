"""What there is no room for is one line that says what to do, and damages nothing."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from menv import NotWrittenError, Policy, export_onnx
from menv.algorithms import PPO
from tests.checkpoints.runs import SMALL, weights_of


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Have every file end at so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_on_a_full_disk_each_kind_of_file_is_named_and_old_files_stay(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.save(tmp_path / "run")
        weights = weights_of(algo)
        acts = algo.get_policy().act(np.zeros(4, np.float32))
        export_onnx(algo.get_policy(), tmp_path / "policy.onnx")
        model = (tmp_path / "policy.onnx").read_bytes()
        there = sorted(tmp_path.rglob("*"))
        algo.train()
        for size in (0, 500, 1000):
            with no_file_larger_than(size):
                with pytest.raises(NotWrittenError, match="save"):
                    algo.save(tmp_path / "run")
                with pytest.raises(NotWrittenError, match="export_checkpoint") as caught:
                    algo.export_policy_checkpoint(tmp_path / "gone")
                with pytest.raises(NotWrittenError, match="export_onnx"):
                    export_onnx(algo.get_policy(), tmp_path / "policy.onnx")
            assert isinstance(caught.value, OSError)
            assert caught.value.errno == errno.EFBIG
            assert sorted(tmp_path.rglob("*")) == there
        assert (tmp_path / "policy.onnx").read_bytes() == model
        assert algo.save(tmp_path / "run").name == "000001"
    with PPO.from_checkpoint(tmp_path / "run" / "000000") as again:
        assert weights_of(again) == weights
    policies = Policy.from_checkpoint(tmp_path / "run" / "000000")
    assert isinstance(policies, dict)
    assert policies["default_policy"].act(np.zeros(4, np.float32)) == acts
