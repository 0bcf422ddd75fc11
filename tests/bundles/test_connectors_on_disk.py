"""Connectors that are not the usual ones: they go to disk with their state, and are refused where nobody knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from menv import Policy, export_onnx
from menv.algorithms import PPO
from menv.connectors import connector, register_lambda_agent_connector
from menv.errors import ConfigError

SMALL: dict[str, Any] = {
    "num_envs_per_worker": 2,
    "train_batch_size": 200,
    "sgd_minibatch_size": 50,
    "seed": 1,
    "model": {"fcnet_hiddens": [8]},
    "observation_filter": "MeanStdFilter",
}


def test_running_means_are_stored_and_go_on_as_they_were(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.train()
        live: Any = algo.get_policy()
        live.export_checkpoint(tmp_path / "policy")
        loaded: Any = Policy.from_checkpoint(tmp_path / "policy")
        obs = np.random.default_rng(0).uniform(-0.2, 0.2, (50, 4)).astype(np.float32)
        ours, theirs = (one.compute_actions(list(obs), explore=False) for one in (live, loaded))
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[2]["action_logp"], theirs[2]["action_logp"])
        assert str(loaded.agent_connectors) == str(live.agent_connectors)
        assert loaded.agent_connectors.to_state() == live.agent_connectors.to_state()
        export_onnx(live, tmp_path / "policy.onnx")
        (found,) = ort.InferenceSession(tmp_path / "policy.onnx").run(None, {"obs": obs})
        np.testing.assert_array_equal(found, np.array(ours[0]))
        assert 0 < found.sum() < len(found)


def test_a_connector_that_nobody_registered_is_refused_by_name(tmp_path: Path) -> None:
    halved = register_lambda_agent_connector("HalvedOnDisk", lambda data: data)
    with PPO(env="CartPole-v1", config={**SMALL, "observation_filter": "NoFilter"}) as algo:
        policy: Any = algo.get_policy()
        policy.agent_connectors.prepend(halved(None))
        policy.export_checkpoint(tmp_path / "policy")
    loaded: Any = Policy.from_checkpoint(tmp_path / "policy")
    assert loaded.agent_connectors.connectors[0].name == "HalvedOnDisk"
    tables = [value for value in vars(connector).values() if isinstance(value, dict)]
    next(table for table in tables if "HalvedOnDisk" in table).pop("HalvedOnDisk")
    with pytest.raises(ConfigError, match="agent_connectors: connector 'HalvedOnDisk': not registered"):
        Policy.from_checkpoint(tmp_path / "policy")
