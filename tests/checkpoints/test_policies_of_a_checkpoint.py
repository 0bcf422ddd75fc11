"""The policies of a training checkpoint act by themselves, where nothing can train them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import Policy, PolicySpec, RandomPolicy
from menv.algorithms import PPO
from menv.errors import ConfigError, UnknownNameError
from tests.bundles.cases import observations, same
from tests.checkpoints.runs import SMALL, by_seat, trained
from tests.house.sources import ROOT

TWO: dict[str, Any] = {"policies": ["a", "b"], "policy_mapping_fn": by_seat}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two policies that was saved after each of two iterations."""
    root = tmp_path_factory.mktemp("saved")
    with PPO(env="tictactoe", config={**SMALL, "multiagent": TWO}) as algo:
        for _ in range(2):
            algo.train()
            algo.save(root)
        live: Any = algo.get_policy("a")
        shown = observations(live, 5)
        cells = [[np.asarray(obs[key]).tolist() for key in obs] for obs in shown]
        wanted = {name: [int(algo.get_policy(name).act(obs)) for obs in shown] for name in "ab"}
        weights = {
            name: float(algo.get_policy(name).get_weights()["policy.out.weight"].sum()) for name in "ab"
        }
    told = {"keys": list(live.observation_space.spaces), "shown": cells, "wanted": wanted, "weights": weights}
    (root / "told.json").write_text(json.dumps(told))
    return root


def policies(path: Path, policy_ids: Any = None) -> dict[str, Any]:
    found = Policy.from_checkpoint(path, policy_ids)
    assert isinstance(found, dict)
    return found


def changed(saved: Path, to: Path) -> Path:
    shutil.copytree(saved, to)
    return to / "000002"


def test_in_a_process_without_torch_they_answer_as_when_they_were_saved(saved: Path) -> None:
    code = f"""
        import json, sys
        for name in ("torch", "onnx", "ray", "onnxscript"):
            sys.modules[name] = None
        import numpy
        from menv import Policy
        told = json.load(open({str(saved / "told.json")!r}))
        for path in ({str(saved)!r}, {str(saved / "000002")!r}):
            policies = Policy.from_checkpoint(path)
            assert sorted(policies) == ["a", "b"]
            for name, policy in policies.items():
                spaces = policy.observation_space.spaces
                shown = [
                    {{key: numpy.array(value, spaces[key].dtype) for key, value in zip(told["keys"], obs)}}
                    for obs in told["shown"]
                ]
                assert [int(policy.act(obs)) for obs in shown] == told["wanted"][name], name
                assert float(policy.get_weights()["policy.out.weight"].sum()) == told["weights"][name], name
        assert list(Policy.from_checkpoint({str(saved)!r}, policy_ids=["b"])) == ["b"]
        assert list(Policy.from_checkpoint({str(saved)!r}, "a")) == ["a"]
        assert not any(name.startswith("menv.algorithms") for name in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_each_numbered_folder_has_the_policies_of_its_iteration(saved: Path) -> None:
    first, second = policies(saved / "000001"), policies(saved / "000002")
    assert not same(first["a"].get_weights(), second["a"].get_weights())
    assert same(policies(saved)["a"].get_weights(), second["a"].get_weights())
    manifest = json.loads((saved / "000002" / "policies" / "a" / "policy.json").read_text())
    assert manifest["trained"] == {"algorithm": "PPO", "env_steps": 192, "iterations": 2}
    alone = Policy.from_checkpoint(saved / "000002" / "policies" / "a")
    assert isinstance(alone, Policy)
    assert same(alone.get_weights(), second["a"].get_weights())


def test_a_missing_policy_is_refused_with_the_existing_ones(saved: Path) -> None:
    with pytest.raises(UnknownNameError, match="'c'"):
        Policy.from_checkpoint(saved, policy_ids=["a", "c"])


@pytest.mark.parametrize("name", ["policy.json", "weights.safetensors"])
def test_a_changed_byte_is_refused_by_the_name_of_its_file_and_training_continues(
    name: str, saved: Path, tmp_path: Path
) -> None:
    folder = changed(saved, tmp_path / "run")
    path = folder / "policies" / "b" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=rf"policies/b/{name}: "):
        Policy.from_checkpoint(tmp_path / "run")
    assert list(policies(tmp_path / "run", ["a"])) == ["a"]
    with PPO.from_checkpoint(tmp_path / "run", policy_mapping_fn=by_seat) as algo:
        assert algo.iteration == 2


def test_a_missing_policy_is_named(saved: Path, tmp_path: Path) -> None:
    folder = changed(saved, tmp_path / "run")
    shutil.rmtree(folder / "policies" / "a")
    with pytest.raises(ConfigError, match=r"policy\.json"):
        Policy.from_checkpoint(folder)


def test_policies_without_a_form_on_disk_are_left_out_and_say_why(tmp_path: Path) -> None:
    given = {"learns": PolicySpec(), "random": PolicySpec(policy_class=RandomPolicy)}
    own = {**SMALL, "multiagent": {"policies": given, "policy_mapping_fn": lambda agent, *_, **__: "learns"}}
    with PPO(env="CartPole-v1", config=own) as algo:
        trained(algo, 1)
        algo.save(tmp_path / "two")
    assert list(policies(tmp_path / "two")) == ["learns"]
    with pytest.raises(ConfigError, match="RandomPolicy"):
        Policy.from_checkpoint(tmp_path / "two", policy_ids=["random"])


def test_a_policy_that_cannot_be_written_does_not_stop_the_run_from_being_saved(tmp_path: Path) -> None:
    with PPO(env="Pendulum-v1", config={"model": {"fcnet_hiddens": [8], "fcnet_activation": "relu"}}) as algo:
        # Numbers whose product overflows, which is an error here, whatever other threads make of warnings.
        huge = {name: np.full_like(array, 3e38) for name, array in algo.get_policy().get_weights().items()}
        algo.set_weights({"default_policy": huge})
        with np.errstate(over="raise"):
            algo.save(tmp_path)
    with pytest.raises(ConfigError, match="FloatingPointError"):
        Policy.from_checkpoint(tmp_path)


def test_a_path_that_leads_to_no_folder_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.zip").write_bytes(b"PK")
    where = re.escape(str(tmp_path))
    for load in (Policy.from_checkpoint, PPO.from_checkpoint):
        for path, why in (
            ("runs/a", f"runs/a in {where}"),
            (tmp_path / "gone", f"{where}/gone"),
            ("run.zip", r"run\.zip"),
            ("", "''"),
        ):
            with pytest.raises(ConfigError, match=why):
                load(path)
