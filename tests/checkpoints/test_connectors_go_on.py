"""The statistics of connectors are part of a checkpoint; what they remember of running episodes is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from menv import PolicySpec
from menv.algorithms import PPO
from menv.connectors import register_lambda_agent_connector
from menv.errors import ConfigError
from tests.checkpoints.runs import SMALL, resumed_twice, trained, weights_of

register_lambda_agent_connector("Unchanged", lambda data: data)


def test_running_means_continue_bit_for_bit(tmp_path: Path) -> None:
    config: dict[str, Any] = {**SMALL, "observation_filter": "MeanStdFilter"}
    with PPO(env="CartPole-v1", config=config) as algo:
        trained(algo, 2)
        path = algo.save(tmp_path)
        before = algo.get_policy().agent_connectors.to_state()  # type: ignore[attr-defined]
    with PPO.from_checkpoint(path) as algo:
        assert algo.get_policy().agent_connectors.to_state() == before  # type: ignore[attr-defined]
    resumed_twice(PPO, path, 2)


OTHERS: list[dict[str, Any]] = [
    {"observation_filter": "NoFilter"},
    {"agent_connectors": ["Unchanged"]},
    {"clip_actions": True},
    {"multiagent": {"policies": {"default_policy": PolicySpec(config={"observation_filter": "NoFilter"})}}},
]


@pytest.mark.parametrize("other", OTHERS)
def test_other_settings_of_connectors_that_continue_are_refused(
    other: dict[str, Any], tmp_path: Path
) -> None:
    config: dict[str, Any] = {**SMALL, "observation_filter": "MeanStdFilter"}
    with PPO(env="CartPole-v1", config=config) as algo:
        path = algo.save(tmp_path)
    message = f"policy 'default_policy' .*({'|'.join([*other, 'observation_filter'])})"
    with pytest.raises(ConfigError, match=f"^from_checkpoint: {message}"):
        PPO.from_checkpoint(path, other)
    with PPO(env="CartPole-v1", config={**config, **other}) as algo:
        before = weights_of(algo)
        with pytest.raises(ConfigError, match=f"^restore: {message}"):
            algo.restore(path)
        assert weights_of(algo) == before


def test_settings_of_connectors_may_be_given_again_and_make_those_that_have_no_state(tmp_path: Path) -> None:
    pair = ("FrameStackAgentConnector", {"num_frames": 3})
    config: dict[str, Any] = {**SMALL, "observation_filter": "MeanStdFilter", "agent_connectors": [pair]}
    with PPO(env="CartPole-v1", config=config) as algo:
        algo.save(tmp_path / "kept")
    PPO.from_checkpoint(tmp_path / "kept", config).stop()
    with PPO(env="Pendulum-v1", config=SMALL) as algo:
        algo.save(tmp_path / "made")
    with PPO.from_checkpoint(tmp_path / "made", {"clip_actions": True}) as algo:
        assert "ClipActionsConnector" in str(algo.get_policy().action_connectors)  # type: ignore[attr-defined]
