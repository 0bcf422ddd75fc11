"""Policies that see several observations at once: on disk, and asked by hand along whole episodes of several agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import Policy, export_onnx, local_policy_inference
from menv.connectors import AgentConnector, register_connector
from menv.errors import ConfigError, ContractError
from menv.sample_batch import SampleBatch
from tests.bundles.cases import algorithm_of, observations, same


def loaded_of(algorithm: Any, folder: Path) -> Any:
    algorithm.export_policy_checkpoint(folder / "policy")
    return Policy.from_checkpoint(folder / "policy")


@pytest.mark.slow_unless("vector", "lstm", "picture")
@pytest.mark.parametrize("kind", ["vector", "lstm", "picture", "picture of three colours", "continuous"])
def test_a_loaded_policy_does_by_hand_what_the_sampler_did(kind: str, tmp_path: Path) -> None:
    with algorithm_of(
        f"frames: {kind}", explore=False, rollout_fragment_length=60, num_envs_per_worker=2
    ) as algorithm:
        batch = algorithm.sample()["default_policy"]
        loaded = loaded_of(algorithm, tmp_path)
    image = loaded.observation_space.shape if kind.startswith("picture") else (1, 1, 3)
    newest = (
        batch["obs"]
        .reshape(-1, *image[:2], 3, image[2])[..., 2, :]
        .reshape(-1, *loaded.observation_space.shape)
    )
    life = 0
    for row, t in enumerate(batch["t"].tolist()):
        life += t == 0
        ((action, states, fetches),) = local_policy_inference(loaded, life, "any", newest[row], explore=False)
        sampled = loaded.networks.output(batch["actions"][row : row + 1])
        assert same(action, sampled[0])
        assert fetches["action_logp"] == pytest.approx(batch["action_logp"][row], abs=1e-5)
        if states and row + 1 < batch.count and batch["t"][row + 1]:
            assert same(states, [batch[f"state_in_{number}"][row + 1] for number in range(len(states))])
    assert life > 6


@pytest.mark.parametrize("kind", ["frames: vector", "agent ids"])
def test_one_observation_of_an_unknown_agent_is_refused_with_the_alternative(
    kind: str, tmp_path: Path
) -> None:
    with algorithm_of(kind) as algorithm:
        live: Any = algorithm.get_policy()
        obs = observations(live, 1)[0]
        for policy in (live, loaded_of(algorithm, tmp_path)):
            for ask, asked in ((policy.act, obs), (policy.compute_actions, [obs])):
                with pytest.raises(ContractError, match="local_policy_inference"):
                    ask(asked)


class Twice(AgentConnector):
    """Shows an observation and its squares."""

    def transform(self, ac_data: Any) -> Any:
        obs = ac_data.data[SampleBatch.NEXT_OBS]
        ac_data.data[SampleBatch.NEXT_OBS] = np.concatenate((obs, obs * obs))
        return ac_data

    def space(self, space: Any, width: int) -> Any:
        return space, 2 * width

    def to_state(self) -> Any:
        return "TwiceOnDisk", None

    @classmethod
    def from_state(cls, ctx: Any, params: Any) -> Any:
        return cls(ctx)


register_connector("TwiceOnDisk", Twice)


def test_frames_with_connectors_that_no_graph_expresses_are_refused(tmp_path: Path) -> None:
    with algorithm_of("frames: vector") as algorithm:
        policy: Any = algorithm.get_policy()
        policy.agent_connectors.remove("FrameStackAgentConnector")
        with pytest.raises(ConfigError, match="ObsPreprocessor"):
            export_onnx(policy, tmp_path / "policy.onnx")
    with algorithm_of("frames: vector") as algorithm:
        policy = algorithm.get_policy()
        policy.agent_connectors.append(Twice(None))
        with pytest.raises(ConfigError, match=r"FrameStack.*Twice"):
            export_onnx(policy, tmp_path / "policy.onnx")
