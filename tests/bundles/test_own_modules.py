"""A torch module of one's own leaves its training too, where torch's exporter can express it."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from menv import Policy, export_onnx
from menv.algorithms import PPO
from menv.algorithms.networks.onnx_export import rllink_model
from menv.errors import ConfigError
from tests.algorithms.test_custom_model import Moody
from tests.bundles.cases import algorithm_of, observations
from tests.checkpoints.runs import SMALL, trained
from tests.house.sources import ROOT


def test_a_custom_module_is_loaded_without_torch(tmp_path: Path) -> None:
    with algorithm_of("frames: own module") as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
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


def test_the_file_of_a_module_for_rllink_clients_gives_its_logits() -> None:
    with algorithm_of("own module, masked") as algorithm:
        policy: Any = algorithm.get_policy()
        shown = observations(policy, 30)
        rows, mask = policy.networks.preprocess(shown)
        whole = np.concatenate((mask.astype(np.float32), rows), 1)
        session = ort.InferenceSession(rllink_model(policy))
        (logits,) = session.run(None, {session.get_inputs()[0].name: whole})
        wanted = policy.networks.backend.evaluate(
            0, rows, mask, policy.networks.backend.decide(rows, mask, None, 0).actions
        )
    assert len({*logits.argmax(1).tolist()}) > 1
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
