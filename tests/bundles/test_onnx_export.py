"""The exported file alone, in plain ONNX Runtime, does what the policy does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from menv import Policy, export_onnx
from menv.algorithms import PPO
from menv.algorithms.networks.onnx_export import rllink_model
from menv.errors import ConfigError
from menv.inference.golden import columns
from menv.spaces import paths
from tests.bundles.cases import KINDS, algorithm_of, few_kinds, observations

ROWS = 9


def feed_of(policy: Any, shown: list[Any]) -> dict[str, Any]:
    space = policy.observation_space
    names = [".".join(("obs", *map(str, keys))) for keys, _ in paths(space)]
    return dict(zip(names, columns(space, shown), strict=True))


def answers(session: Any, feed: dict[str, Any]) -> dict[str, Any]:
    names = [given.name for given in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


@few_kinds
@pytest.mark.parametrize("kind", KINDS)
def test_the_file_takes_raw_observations_and_gives_env_ready_actions(kind: str, tmp_path: Path) -> None:
    with algorithm_of(kind) as algorithm:
        policy: Any = algorithm.get_policy(next(iter(algorithm.get_weights())))
        assert export_onnx(policy, tmp_path / "greedy.onnx") == tmp_path / "greedy.onnx"
        export_onnx(policy, tmp_path / "drawn.onnx", explore=True)
        onnx.checker.check_model(tmp_path / "greedy.onnx", full_check=True)
        networks, shown = policy.networks, observations(policy, ROWS)
        rng, head = np.random.default_rng(0), networks.backend.head
        noise = head.sample_noise(rng, ROWS)
        state = rng.random((ROWS, sum(networks.state_sizes)), np.float32) if networks.state_sizes else None
        rows, mask = networks.preprocess(shown)
        for name, draws in (("greedy", None), ("drawn", noise)):
            decision = networks.backend.decide(rows, mask, draws, policy.index, state)
            wanted = columns(policy.action_space, networks.output(decision.actions))
            feed = feed_of(policy, shown)
            feed.update(
                {key: value for key, value in (("noise", draws), ("state", state)) if value is not None}
            )
            found = answers(ort.InferenceSession(tmp_path / f"{name}.onnx"), feed)
            out = [".".join(("action", *map(str, keys))) for keys, _ in paths(policy.action_space)]
            assert list(found) == out + (["state_after"] if state is not None else [])
            for key, value in zip(out, wanted, strict=True):
                assert found[key].dtype == value.dtype
                np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-5)
            if state is not None:
                np.testing.assert_allclose(found["state_after"], decision.state, rtol=1e-5, atol=1e-6)


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
