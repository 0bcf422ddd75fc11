"""Exported files do in Node.js, with onnxruntime-web, what the policy does in Python."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import Policy, export_onnx
from menv.spaces import columns_of, paths
from tests.bundles.cases import KINDS, algorithm_of, observations
from tests.doc_blocks import blocks, run_python

HERE = Path(__file__).parent
ROWS = 1000
CHECK = """
import { readFileSync } from "node:fs";
import { act, draw } from "./play.mjs";

const { shown, noise } = JSON.parse(readFileSync("given.json", "utf-8"));
console.log(JSON.stringify([await act(shown), await draw(shown, noise)]));
"""


def run(script: Path, *arguments: str) -> list[str]:
    """Run a script in its folder and return the lines that it prints."""
    done = subprocess.run(
        ["node", script.name, *arguments],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_script_of_deploying_gives_the_actions_that_the_policy_gives(
    node_modules: Path, tmp_path: Path
) -> None:
    python = blocks("docs/how_to/deploying.md", "python")
    for number in (0, 3):
        run_python(tmp_path / f"block_{number}.py", python[number])
    (script,) = blocks("docs/how_to/deploying.md", "js")
    (tmp_path / "node_modules").symlink_to(node_modules, target_is_directory=True)
    (tmp_path / "play.mjs").write_text(script, "utf-8")
    (tmp_path / "check.mjs").write_text(CHECK, "utf-8")
    rng = np.random.default_rng(0)
    shown, noise = rng.uniform(-0.4, 0.4, (ROWS, 4)).astype(np.float32), rng.random((ROWS, 1), np.float32)
    (tmp_path / "given.json").write_text(json.dumps({"shown": shown.tolist(), "noise": noise.tolist()}))

    assert [line.split()[0] for line in run(tmp_path / "play.mjs")] == ["actions", "drawn"]
    greedy, drawn = json.loads(run(tmp_path / "check.mjs")[-1])

    policy: Any = Policy.from_checkpoint(tmp_path / "cartpole_policy")
    wanted = [int(action) for action in policy.compute_actions(list(shown), explore=False)[0]]
    decided = policy.networks.backend.decide(shown, None, noise, 0)
    assert greedy == wanted
    assert drawn == policy.networks.output(decided.actions).tolist()
    assert 0 < sum(greedy) < ROWS
    assert greedy != drawn


@pytest.mark.slow
def test_every_kind_of_policy_acts_the_same_in_node(node_modules: Path, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(node_modules, target_is_directory=True)
    (tmp_path / "run.mjs").write_text((HERE / "run.mjs").read_text("utf-8"), "utf-8")
    requests, wanted = [], []
    for number, kind in enumerate(KINDS):
        with algorithm_of(kind) as algorithm:
            policy: Any = algorithm.get_policy(next(iter(algorithm.get_weights())))
            for explore in (False, True):
                file = export_onnx(policy, tmp_path / f"{number}_{explore}.onnx", explore=explore)
                inputs, outputs = example(policy, explore)
                requests.append(
                    {
                        "file": file.name,
                        "inputs": {
                            name: {
                                "type": str(value.dtype),
                                "dims": value.shape,
                                "data": value.ravel().tolist(),
                            }
                            for name, value in inputs.items()
                        },
                    }
                )
                wanted.append((f"{kind}, explore={explore}", outputs))
    (tmp_path / "requests.json").write_text(json.dumps(requests))
    answers = json.loads(run(tmp_path / "run.mjs", "requests.json")[-1])
    assert len(answers) == len(wanted)
    for (case, outputs), answer in zip(wanted, answers, strict=True):
        assert list(answer) == list(outputs), case
        for name, value in outputs.items():
            found = np.array(answer[name]["data"], value.dtype).reshape(answer[name]["dims"])
            assert answer[name]["type"] == str(value.dtype), case
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5, err_msg=f"{case}, {name}")


def example(policy: Any, explore: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs of an exported policy by name, and what the policy answers to them."""
    networks, rng = policy.networks, np.random.default_rng(0)
    shown, head = observations(policy, 9), networks.backend.head
    noise = head.sample_noise(rng, len(shown))
    state = rng.random((len(shown), sum(networks.state_sizes)), np.float32) if networks.state_sizes else None
    rows, mask = networks.preprocess(shown)
    decision = networks.backend.decide(rows, mask, noise if explore else None, policy.index, state)
    named = paths(policy.observation_space), paths(policy.action_space)
    inputs = zip(named[0], map(np.array, columns_of(policy.observation_space, shown)), strict=True)
    outputs = zip(
        named[1],
        map(np.array, columns_of(policy.action_space, networks.output(decision.actions))),
        strict=True,
    )
    given = {".".join(("obs", *map(str, keys))): value for (keys, _), value in inputs}
    answered = {".".join(("action", *map(str, keys))): value for (keys, _), value in outputs}
    given |= {"noise": noise} if explore else {}
    if state is None:
        return given, answered
    return given | {"state": state}, answered | {"state_after": decision.state}
