"""Policies that see several observations at once: on disk, and asked by hand along whole episodes of several agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from menv import Policy, export_onnx, local_policy_inference
from menv.connectors import AgentConnector, register_connector
from menv.errors import ConfigError, ContractError
from menv.sample_batch import SampleBatch
from menv.spaces import columns_of, paths
from tests.bundles.cases import observations, same
from tests.bundles.stacked import STACKS, Herd, stacking


def loaded_of(algorithm: Any, folder: Path) -> Any:
    algorithm.export_policy_checkpoint(folder / "policy")
    return Policy.from_checkpoint(folder / "policy")


def played(policies: list[Any], kind: str, explore: bool | None) -> list[list[Any]]:
    """Return what each policy answers along two episodes at a time, which go where the first one leads."""
    envs = [Herd(*STACKS[kind][1:3]) for _ in range(2)]
    answers: list[list[Any]] = [[] for _ in policies]
    for episode in range(2):
        shown = [env.reset(seed=10 * episode + number)[0] for number, env in enumerate(envs)]
        over: list[dict[str, bool]] = [{}, {}]
        for _ in range(10):
            for number, env in enumerate(envs):
                asked: dict[str, Any] = {"env_id": number, "explore": explore}
                ends = [
                    over[number].get(agent, False) or over[number].get("__all__", False)
                    for agent in shown[number]
                ]
                agents, obs = list(shown[number]), list(shown[number].values())
                for policy, own in zip(policies, answers, strict=True):
                    own.append(
                        local_policy_inference(policy, agent_id=agents, obs=obs, terminated=ends, **asked)
                    )
                if over[number].get("__all__"):
                    continue
                taken = {
                    agent: answer[0]
                    for agent, answer, ended in zip(agents, answers[0][-1], ends, strict=True)
                    if not ended
                }
                shown[number], _, over[number], _, _ = env.step(taken)
    return answers


@pytest.mark.slow_unless("vector", "masked", "continuous", "lstm", "picture", "worth", "behind running means")
@pytest.mark.parametrize("kind", STACKS)
def test_a_loaded_policy_answers_as_the_live_one_along_episodes_bit_for_bit(
    kind: str, tmp_path: Path
) -> None:
    with stacking(kind) as algorithm:
        algorithm.train()
        live: Any = algorithm.get_policy()
        loaded = loaded_of(algorithm, tmp_path)
        for explore in (False, None):
            wanted, found = played([live, loaded], kind, explore)
            assert same(wanted, found)
            told = {
                (str(action), float(fetches["action_logp"])) for one in wanted for action, _, fetches in one
            }
            assert len(told) > 1


@pytest.mark.slow_unless("vector", "lstm", "picture")
@pytest.mark.parametrize("kind", ["vector", "lstm", "picture", "picture of three colours", "continuous"])
def test_a_loaded_policy_does_by_hand_what_the_sampler_did(kind: str, tmp_path: Path) -> None:
    with stacking(kind, explore=False, rollout_fragment_length=60) as algorithm:
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


def test_one_observation_of_an_unknown_agent_is_refused_with_the_alternative(tmp_path: Path) -> None:
    with stacking("vector") as algorithm:
        loaded = loaded_of(algorithm, tmp_path)
    obs = observations(loaded, 1)[0]
    for ask, asked in ((loaded.act, obs), (loaded.compute_actions, [obs])):
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


@pytest.mark.slow_unless("vector", "masked", "continuous", "lstm", "picture", "worth", "behind running means")
@pytest.mark.parametrize("kind", STACKS)
def test_the_onnx_file_is_given_frames_and_does_what_the_policy_does(kind: str, tmp_path: Path) -> None:
    with stacking(kind) as algorithm:
        algorithm.train()
        policy: Any = algorithm.get_policy()
        export_onnx(policy, tmp_path / "policy.onnx")
        export_onnx(policy, tmp_path / "drawn.onnx", explore=True)
        shown = observations(policy, 8)
        wanted = [local_policy_inference(policy, 0, 0, obs, explore=False)[0] for obs in shown]
    onnx.checker.check_model(tmp_path / "policy.onnx", full_check=True)
    session = ort.InferenceSession(tmp_path / "policy.onnx")
    frames, masks = np.maximum(np.arange(8)[:, None] + np.arange(-2, 1), 0), {"action_mask"}
    space = policy.observation_space
    feed = {
        ".".join(("obs", *map(str, keys))): column if masks & {*keys} else column[frames]
        for (keys, _), column in zip(paths(space), map(np.array, columns_of(space, shown)), strict=True)
    }
    names = [given.name for given in session.get_outputs()]
    state = np.zeros((1, sum(policy.networks.state_sizes)), np.float32)
    for row, (action, _, _) in enumerate(wanted):
        own = {name: column[row : row + 1] for name, column in feed.items()}
        found = dict(
            zip(names, session.run(names, {**own, "state": state} if state.size else own), strict=True)
        )
        state = found.get("state_after", state)
        for (keys, _), value in zip(
            paths(policy.action_space), map(np.array, columns_of(policy.action_space, [action])), strict=True
        ):
            np.testing.assert_allclose(
                found[".".join(("action", *map(str, keys)))], value, rtol=1e-5, atol=1e-5
            )
    assert session.get_modelmeta().custom_metadata_map["frames"] == "3"


def test_frames_with_connectors_that_no_graph_expresses_are_refused(tmp_path: Path) -> None:
    with stacking("vector") as algorithm:
        policy: Any = algorithm.get_policy()
        policy.agent_connectors.remove("FrameStackAgentConnector")
        with pytest.raises(ConfigError, match="ObsPreprocessor"):
            export_onnx(policy, tmp_path / "policy.onnx")
    with stacking("vector") as algorithm:
        policy = algorithm.get_policy()
        policy.agent_connectors.append(Twice(None))
        with pytest.raises(ConfigError, match=r"FrameStack.*Twice"):
            export_onnx(policy, tmp_path / "policy.onnx")
