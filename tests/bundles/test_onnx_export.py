"""Exporting a policy as one file: what is written, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from menv import Policy, export_onnx
from menv.algorithms import PPO
from menv.algorithms.networks.onnx_export import rllink_model
from menv.errors import ConfigError
from tests.bundles.cases import algorithm_of


def test_a_loaded_policy_is_exported_as_the_one_that_was_trained(tmp_path: Path) -> None:
    with algorithm_of("masked") as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
        export_onnx(algorithm.get_policy(), tmp_path / "live.onnx")
    loaded = Policy.from_checkpoint(tmp_path / "policy")
    assert isinstance(loaded, Policy)
    with pytest.raises(ConfigError, match="export_onnx"):
        export_onnx(loaded, tmp_path / "policy")
    export_onnx(loaded, tmp_path / "new" / "loaded.onnx")
    assert (tmp_path / "new" / "loaded.onnx").read_bytes() == (tmp_path / "live.onnx").read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["loaded.onnx"]


def test_a_file_whose_answers_differ_is_refused_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with algorithm_of("continuous") as algorithm:
        policy: Any = algorithm.get_policy()
        scaling = type(policy.networks.output).scaling
        monkeypatch.setattr(
            type(policy.networks.output), "scaling",
            property(lambda self: (scaling.fget(self)[0] * 1.01, *scaling.fget(self)[1:])),
        )  # fmt: skip
        with pytest.raises(ConfigError, match=r"'greedy.0'"):
            export_onnx(policy, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


class Own(Policy):
    """Code of a user's own."""


def test_policies_without_a_graph_are_refused_with_an_alternative(tmp_path: Path) -> None:
    own = Own(gym.spaces.Discrete(2), gym.spaces.Discrete(2))
    with pytest.raises(ConfigError, match="'Own'"):
        own.export_checkpoint(tmp_path / "policy")
    with pytest.raises(ConfigError, match="Own"):
        export_onnx(own, tmp_path / "policy.onnx")
    with pytest.raises(ConfigError, match="policy"):
        export_onnx({"a": own}, tmp_path / "policy.onnx")  # type: ignore[arg-type]
    with algorithm_of("mlp") as algorithm:
        policy: Any = algorithm.get_policy()
        policy.networks.graphs = lambda: None
        with pytest.raises(ConfigError, match="network"):
            policy.export_checkpoint(tmp_path / "policy")
        with pytest.raises(ConfigError, match="network"):
            export_onnx(policy, tmp_path / "policy.onnx")
        with pytest.raises(ConfigError, match="GET_ACTION"):
            rllink_model(policy)
    with PPO(env="CartPole-v1", config={"inference": "torch"}) as algorithm:
        assert isinstance(
            Policy.from_checkpoint(algorithm.export_policy_checkpoint(tmp_path / "policy")), Policy
        )
