"""Results in event files, as TensorBoard's own reader finds them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

import menv
from menv import DefaultCallbacks
from menv.algorithms import PPO, DQNConfig
from menv.errors import ConfigError, MissingExtraError, NotWrittenError
from menv.tracking import TensorBoard

SMALL = {"train_batch_size": 128, "num_envs_per_worker": 4, "num_sgd_iter": 1, "seed": 0}


def curves(logdir: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of each scalar by tag."""
    reader = EventAccumulator(str(logdir), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(one.step, one.value) for one in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def written(board: TensorBoard, steps: int = 5, **more: Any) -> None:
    board.result({"num_env_steps_sampled": steps, "num_env_steps_sampled_this_iter": steps, **more})


class Extra(DefaultCallbacks):
    """Puts a number of its own into the results."""

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        result["mine"] = {"twice": 2 * result["training_iteration"]}


def test_a_run_logs_each_number_once_over_env_steps_in_groups(tmp_path: Path) -> None:
    config = {**SMALL, "callbacks": [Extra, TensorBoard(tmp_path / "run")], "evaluation_interval": 2,
              "evaluation_duration": 2}  # fmt: skip
    with PPO(env="CartPole-v1", config=config) as algo:
        results = [algo.train() for _ in range(4)]
    found = curves(tmp_path / "run")
    steps = [result["num_env_steps_sampled"] for result in results]
    for tag, keys in {
        "return/mean": ("episode_reward_mean",),
        "return/policy/default_policy/max": ("policy_reward_max", "default_policy"),
        "learner/default_policy/vf_loss": ("info", "learner", "default_policy", "learner_stats", "vf_loss"),
        "mine/twice": ("mine", "twice"),
        "evaluation/return/mean": ("evaluation", "episode_reward_mean"),
        "time/total_s": ("time_total_s",),
    }.items():
        wanted: list[Any] = []
        for step, result in zip(steps, results, strict=True):
            value: Any = result
            for key in keys:
                value = value.get(key) if value else None
            if value is not None:
                wanted.append((step, pytest.approx(value)))
        assert found[tag] == wanted
    assert len(found["evaluation/return/mean"]) == 2
    assert not any(
        "sampler_results" in tag or "hist_stats" in tag or tag.startswith("info/") for tag in found
    )


def test_only_finite_numbers_are_curves(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {
        "int": 3, "float": 0.5, "numpy": np.float32(0.25), "count": np.int64(7), "deep": {"er": {1: 2.0, "a b": 4}},
        "none": None, "flag": True, "text": "x", "list": [1.0], "array": np.zeros(3), "nan": math.nan,
        "infinite": -math.inf, "numpy flag": np.bool_(True), "complex": np.complex64(1), "empty": {},
        "custom_metrics": {"\ud800": 1.0, "../../x": 2.0},
    }  # fmt: skip
    written(TensorBoard(tmp_path), **numbers)
    found = {tag: values for tag, values in curves(tmp_path).items() if not tag.startswith("counts/")}
    assert found == {
        "int": [(5, 3.0)], "float": [(5, 0.5)], "numpy": [(5, 0.25)], "count": [(5, 7.0)], "deep/er/1": [(5, 2.0)],
        "deep/er/a b": [(5, 4.0)], "custom_metrics/\\ud800": [(5, 1.0)], "custom_metrics/../../x": [(5, 2.0)],
    }  # fmt: skip


def test_an_obstacle_to_writing_events_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (None, ""):
        with pytest.raises(ConfigError, match="TensorBoard"):
            TensorBoard(path)  # type: ignore[arg-type]
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(NotWrittenError, match="mine"):
        written(TensorBoard(tmp_path / "mine"))
    assert (tmp_path / "mine").read_text() == "kept"
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(MissingExtraError, match="tensorboard"):
        written(TensorBoard(tmp_path))


# An installation without the extra `train` is told in a line what it lacks, and what to run.


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
    monkeypatch.delitem(sys.modules, "menv.algorithms.networks.onnx_export", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        needing()
    assert str(caught.value) == (
        f"{who}: the package {package} is not installed; run: pip install 'menv-rl[train]'"
    )
