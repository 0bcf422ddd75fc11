"""A torch module of one's own leaves its training too, where torch's exporter can express it."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime as ort
import pytest

from menv import Policy, export_onnx, local_policy_inference
from menv.algorithms import DQN, PPO
from menv.algorithms.algorithm import Algorithm
from menv.algorithms.networks.onnx_export import rllink_model
from menv.errors import ConfigError
from tests.algorithms.test_custom_model import Eye, Moody, Net
from tests.algorithms.test_custom_model_state import QRemembering
from tests.bundles.cases import FOUR, LIMITED, MASKED, VECTOR, Spaces, livelier, observations
from tests.bundles.stacked import STACK
from tests.bundles.test_onnx_export import feed_of
from tests.checkpoints.runs import SMALL, trained
from tests.house.sources import ROOT


class Seen(Net):
    """Takes a part of the observations, and a number of its own that is not learned."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space["seen"], num_outputs)
        self.register_buffer("scale", 2 * self.body.bias.detach().mean() + 3)
        self.policy.bias.requires_grad_(False)

    def forward(self, obs: Any) -> Any:
        return super().forward(obs["seen"] * self.scale)


CASES: dict[str, tuple[type[Algorithm], Any, Any, Any, dict[str, Any]]] = {
    "masked": (PPO, MASKED, FOUR, Seen, {}),
    "continuous, of stacked frames": (PPO, VECTOR, LIMITED, Net, {"agent_connectors": STACK}),
    "picture": (PPO, gym.spaces.Box(0, 255, (10, 10, 1), np.uint8), FOUR, Eye, {}),
    "worth with a memory": (DQN, VECTOR, FOUR, QRemembering, {}),
}


def owning(kind: str) -> Algorithm:
    algorithm, seen, acts, module, settings = CASES[kind]
    made = algorithm(
        env=lambda context: Spaces(seen, acts),
        config={"seed": 3, **settings, "model": {"custom_model": module}},
    )
    livelier(made)
    return made


def told(policy: Any, shown: list[Any], explore: bool | None) -> tuple[list[Any], Any]:
    """Return what a policy does along one life, as numbers, and how probable that was."""
    answers = [local_policy_inference(policy, 0, 0, obs, explore=explore)[0] for obs in shown]
    policy.agent_connectors.reset(0)
    return [answer[0] for answer in answers], [answer[2]["action_logp"] for answer in answers]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow)
        if kind.startswith(("picture", "worth", "masked"))
        else kind
        for kind in CASES
    ],
)
def test_a_custom_module_acts_without_torch_as_it_does_with_torch(kind: str, tmp_path: Path) -> None:
    with owning(kind) as algorithm:
        policy: Any = algorithm.get_policy()
        algorithm.export_policy_checkpoint(tmp_path / "policy")
        export_onnx(policy, tmp_path / "policy.onnx")
        shown = observations(policy, 12)
        for explore in (False, None):
            loaded: Any = Policy.from_checkpoint(tmp_path / "policy")
            policy._calls = 0
            ours, theirs = (told(one, shown, explore) for one in (policy, loaded))
            np.testing.assert_allclose(np.array(theirs[0]), np.array(ours[0]), atol=1e-4)
            np.testing.assert_allclose(theirs[1], ours[1], atol=1e-4)
            assert len(set(map(str, ours[0]))) > 1
        assert {*loaded.get_weights()} == {*policy.get_weights()}
    code = f"""
        import sys
        for name in ("torch", "onnx", "onnxscript"):
            sys.modules[name] = None
        from menv import Policy
        Policy.from_checkpoint({str(tmp_path / "policy")!r})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_file_of_a_module_does_what_the_policy_does_and_rllink_clients_have_one_too(
    tmp_path: Path,
) -> None:
    with owning("masked") as algorithm:
        policy: Any = algorithm.get_policy()
        export_onnx(policy, tmp_path / "policy.onnx")
        shown = observations(policy, 30)
        rows, mask = policy.networks.preprocess(shown)
        actions, _, _ = policy.compute_actions(shown, explore=False)
        whole = np.concatenate((mask.astype(np.float32), rows), 1)
        session = ort.InferenceSession(rllink_model(policy))
        (logits,) = session.run(None, {session.get_inputs()[0].name: whole})
        wanted = policy.networks.backend.evaluate(
            0, rows, mask, policy.networks.backend.decide(rows, mask, None, 0).actions
        )
    (found,) = ort.InferenceSession(tmp_path / "policy.onnx").run(None, feed_of(policy, shown))
    assert found.tolist() == list(actions)
    assert len(set(found.tolist())) > 1
    np.testing.assert_allclose(logits, wanted.dist_inputs, rtol=1e-5, atol=1e-5)


def test_a_module_that_no_graph_expresses_is_refused_by_name_and_its_run_is_saved(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with PPO(env="CartPole-v1", config={**SMALL, "model": {"custom_model": Moody}}) as algorithm:
        policy = algorithm.get_policy()
        for write in (policy.export_checkpoint, functools.partial(export_onnx, policy)):
            with pytest.raises(ConfigError, match="Moody") as caught:
                write(tmp_path / "policy")
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 500
        trained(algorithm, 1)
        algorithm.save(tmp_path / "run")
    with PPO.from_checkpoint(tmp_path / "run", config={"model": {"custom_model": Moody}}) as again:
        assert again.iteration == 1
    # The exporter has words of its own for it.
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ConfigError, match="Moody"):
        Policy.from_checkpoint(tmp_path / "run")
