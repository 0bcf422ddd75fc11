"""Results in event files, as TensorBoard's own reader finds them."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

import menv
from menv import DefaultCallbacks
from menv.algorithms import PPO, DQNConfig, TensorBoardCallbacks, TensorBoardWriter, plot_curves
from menv.errors import ConfigError, MissingExtraError, NotWrittenError
from tests.bad_input.broken_envs import checked

SMALL = {"train_batch_size": 128, "num_envs_per_worker": 4, "num_sgd_iter": 1, "seed": 0}


def curves(logdir: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of each scalar by tag."""
    reader = EventAccumulator(str(logdir), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(one.step, one.value) for one in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


class Extra(DefaultCallbacks):
    """Puts a number of its own into the results."""

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        result["mine"] = {"twice": 2 * result["training_iteration"]}


def test_a_run_leaves_its_numbers_over_env_steps(tmp_path: Path) -> None:
    config = {**SMALL, "callbacks": [Extra, TensorBoardCallbacks(tmp_path / "run")], "evaluation_interval": 2,
              "evaluation_duration": 2}  # fmt: skip
    with PPO(env="CartPole-v1", config=config) as algo:
        results = [algo.train() for _ in range(4)]
    found = curves(tmp_path / "run")
    steps = [result["num_env_steps_sampled"] for result in results]
    assert len(set(steps)) == 4

    def wanted(*keys: str) -> Any:
        values = []
        for step, result in zip(steps, results, strict=True):
            value: Any = result
            for key in keys:
                value = value.get(key) if value else None
            if value is not None:
                values.append((step, pytest.approx(value)))
        return values

    for keys in (
        ("episode_reward_mean",),
        ("policy_reward_max", "default_policy"),
        ("agent_reward_mean", "agent0"),
        ("info", "learner", "default_policy", "learner_stats", "vf_loss"),
        ("mine", "twice"),
        ("evaluation", "episode_reward_mean"),
        ("time_total_s",),
    ):
        assert found["/".join(keys)] == wanted(*keys)
    assert len(found["evaluation/episode_reward_mean"]) == 2


def test_nothing_is_written_twice(tmp_path: Path) -> None:
    config = {**SMALL, "callbacks": TensorBoardCallbacks(tmp_path), "evaluation_interval": 1}
    with PPO(env="CartPole-v1", config=config) as algo:
        algo.train()
    tags = curves(tmp_path).keys()
    assert not any("sampler_results" in tag for tag in tags)
    assert not any(tag.startswith(("info/default_policy/", "hist_stats/")) for tag in tags)
    assert {"info/learner/default_policy/learner_stats/cur_lr", "sampler_perf/learn_time_s"} <= tags


def test_only_finite_numbers_are_curves(tmp_path: Path) -> None:
    result = {
        "int": 3, "float": 0.5, "numpy": np.float32(0.25), "count": np.int64(7), "deep": {"er": {1: 2.0, "a b": 4}},
        "none": None, "flag": True, "text": "x", "list": [1.0], "array": np.zeros(3), "nan": math.nan,
        "infinite": -math.inf, "numpy flag": np.bool_(True), "complex": np.complex64(1), "empty": {},
    }  # fmt: skip
    with TensorBoardWriter(tmp_path) as writer:
        writer.write(result, 5)
    assert curves(tmp_path) == {
        "int": [(5, 3.0)], "float": [(5, 0.5)], "numpy": [(5, 0.25)], "count": [(5, 7.0)], "deep/er/1": [(5, 2.0)],
        "deep/er/a b": [(5, 4.0)],
    }  # fmt: skip


def test_names_that_no_file_can_hold_are_written_with_escapes(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        writer.write({"custom_metrics": {"\ud800": 1.0, "../../x": 2.0}}, 1)
    found = EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]
    assert found == ["custom_metrics/\\ud800", "custom_metrics/../../x"]


def test_a_policy_may_be_called_learner(tmp_path: Path) -> None:
    settings = {"multiagent": {"policies": ["learner"], "policy_mapping_fn": lambda agent_id: "learner"}}
    config = {**SMALL, **settings, "callbacks": TensorBoardCallbacks(tmp_path)}
    with PPO(env="CartPole-v1", config=config) as algo:
        algo.train()
    assert len(curves(tmp_path)["info/learner/learner/learner_stats/kl"]) == 1


def test_what_has_been_written_can_be_read_before_anybody_closes(tmp_path: Path) -> None:
    gc.collect()
    threads = threading.active_count()
    writer = TensorBoardWriter(tmp_path)
    writer.write({"a": 1.0}, 1)
    assert curves(tmp_path) == {"a": [(1, 1.0)]}
    writer.close()
    writer.close()
    writer.write({"a": 2.0}, 2)
    assert curves(tmp_path)["a"][-1] == (2, 2.0)
    del writer
    gc.collect()
    assert threading.active_count() == threads


def test_nothing_is_imported_or_created_before_the_first_result(tmp_path: Path) -> None:
    lines = [
        "import sys",
        "from menv.algorithms import TensorBoardCallbacks, plot_curves",
        f"callbacks = TensorBoardCallbacks({str(tmp_path / 'run')!r})",
        "print(sorted({'tensorboard', 'PIL', 'torch'} & set(sys.modules)))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(
        MissingExtraError, match="the package tensorboard is not installed, expected it"
    ) as caught:
        TensorBoardWriter(tmp_path).write({"a": 1.0}, 1)
    checked(str(caught.value))


def test_a_folder_that_is_none_or_has_no_room_is_named(tmp_path: Path) -> None:
    for path in (None, ""):
        with pytest.raises(ConfigError, match=r"TensorBoardWriter: .* expected a path"):
            TensorBoardCallbacks(path)  # type: ignore[arg-type]
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(
        NotWrittenError, match=r"TensorBoardWriter: the event file in .*mine cannot be written"
    ):
        TensorBoardWriter(tmp_path / "mine").write({"lr": 1.0}, 1)
    assert (tmp_path / "mine").read_text() == "kept"


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
