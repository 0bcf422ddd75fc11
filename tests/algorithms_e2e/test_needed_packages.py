"""An installation without the extra `train` is told in a line what it lacks, and what to run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import menv
from menv.algorithms import PPO, DQNConfig, plot_curves
from menv.errors import MissingExtraError


def trained() -> Any:
    return PPO(env="CartPole-v1")


def built() -> Any:
    return DQNConfig(env="CartPole-v1").build()


def verified() -> Any:
    return menv.verify_backends("CartPole-v1", num_envs=2, env_steps=20)


def exported() -> Any:
    return menv.export_onnx


@pytest.mark.parametrize(
    ("needing", "who", "package"),
    [
        (trained, "PPO", "torch"),
        (trained, "PPO", "onnx"),
        (built, "DQN", "torch"),
        (verified, "verify_backends", "onnx"),
        (exported, "export_onnx", "onnx"),
    ],
)
def test_a_package_of_the_extra_that_is_missing_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, needing: Callable[[], Any], who: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "menv.algorithms.onnx_export", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        needing()
    assert str(caught.value) == (
        f"{who}: the package {package} is not installed, expected it; run: pip install 'menv-rl[train]'"
    )


def test_a_picture_without_pillow_is_refused_likewise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"run: pip install 'menv-rl\[train\]'"):
        plot_curves(tmp_path / "curve.png", {"a": [(0, 1), (1, 2)]})
