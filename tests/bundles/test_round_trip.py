"""A policy that comes back from a disk does what it did before, to the last bit, whatever its kind."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import menv
from menv import Policy
from menv.algorithms import PPO
from menv.connectors import connector, register_lambda_agent_connector
from menv.errors import ConfigError, ContractError
from menv.policy import Policy as BasePolicy
from tests.bundles.cases import algorithm_of, observations, same
from tests.house.sources import ROOT
from tests.worlds import Alone


def one(path: Path) -> Policy:
    policy = Policy.from_checkpoint(path)
    assert isinstance(policy, BasePolicy)
    return policy


@pytest.mark.parametrize("kind", ["mlp", "masked", "gru", "worth", "picture"])
def test_a_loaded_policy_can_be_copied_and_sent_to_another_process(kind: str, tmp_path: Path) -> None:
    with algorithm_of(kind) as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
    loaded = one(tmp_path / "policy")
    shown = observations(loaded, 5)
    sent = [pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded)]
    answers = [
        policy.compute_actions(shown) for policy in (loaded, *sent, pickle.loads(pickle.dumps(sent[0])))
    ]
    assert all(same(list(answer), list(answers[0])) for answer in answers)


def test_a_folder_of_several_policies_gives_all_or_some_of_them(tmp_path: Path) -> None:
    policies: dict[str, Any] = {"red": (None, None, None, {}), "blue": (None, None, None, {})}
    settings = {"multiagent": {"policies": policies, "policy_mapping_fn": lambda agent_id, *_, **__: "red"}}
    with PPO(env="CartPole-v1", config=settings) as algorithm:
        for policy_id in policies:
            algorithm.export_policy_checkpoint(tmp_path / "run" / "policies" / policy_id, policy_id)
        live = algorithm.get_policy("blue")
        for folder in (tmp_path / "run", tmp_path / "run" / "policies"):
            found = Policy.from_checkpoint(folder)
            assert isinstance(found, dict)
            assert sorted(found) == ["blue", "red"]
            assert same(found["blue"].get_weights(), live.get_weights())
    some = Policy.from_checkpoint(tmp_path / "run", policy_ids=["red"])
    assert isinstance(some, dict)
    assert list(some) == ["red"]
    assert isinstance(
        Policy.from_checkpoint(str(tmp_path / "run" / "policies" / "red"), ["blue"]), BasePolicy
    )
    with pytest.raises(ConfigError, match="green"):
        Policy.from_checkpoint(tmp_path / "run", policy_ids=["red", "green"])
    alone = Policy.from_checkpoint(tmp_path / "run", "blue")
    assert isinstance(alone, dict)
    assert list(alone) == ["blue"]
    with pytest.raises(ConfigError):
        Policy.from_checkpoint(tmp_path)


def test_act_returns_an_action_and_the_state_after_it_where_there_is_one(tmp_path: Path) -> None:
    with algorithm_of("lstm") as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
        live = algorithm.get_policy()
        loaded = one(tmp_path / "policy")
        states = [live.get_initial_state(), loaded.get_initial_state()]
        for obs in observations(live, 5):
            batches = [part[None] for part in states[0]]
            actions, after, _ = live.compute_actions([obs], batches, explore=False)
            answers = [
                policy.act(obs, state=state) for policy, state in zip((live, loaded), states, strict=True)
            ]
            assert same(*answers)
            assert same(answers[0], (actions[0], [part[0] for part in after]))
            states = [answer[1] for answer in answers]
        with pytest.raises(ContractError, match="state"):
            loaded.act(obs)
    with algorithm_of("mlp") as algorithm:
        policy, obs = algorithm.get_policy(), observations(algorithm.get_policy(), 1)[0]
        assert same(policy.act(obs, state=[]), (policy.act(obs), []))


def test_a_process_that_can_import_neither_torch_nor_onnx_nor_ray_loads_and_acts(tmp_path: Path) -> None:
    with algorithm_of("continuous") as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
        policy = algorithm.get_policy()
        shown = observations(policy, 3)
        wanted = np.array([policy.act(obs) for obs in shown]).tolist()
    code = f"""
        import sys
        for name in ("torch", "onnx", "ray", "onnxscript", "pettingzoo"):
            sys.modules[name] = None
        import numpy
        from menv import Policy
        policy = Policy.from_checkpoint({str(tmp_path / "policy")!r})
        shown = numpy.array({np.array(shown).tolist()}, numpy.float32)
        print([policy.act(obs).tolist() for obs in shown])
        assert not any(name.startswith("menv.algorithms") for name in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(wanted)


def test_a_bundle_never_overwrites_a_folder_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with algorithm_of("mlp") as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
        before = {path: path.read_bytes() for path in (tmp_path / "policy").iterdir()}
        with pytest.raises(ConfigError, match="exists"):
            algorithm.export_policy_checkpoint(tmp_path / "policy")
        (tmp_path / "file").write_text("kept")
        with pytest.raises(ConfigError, match="exists"):
            algorithm.export_policy_checkpoint(tmp_path / "file")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "policy"]
        assert {path: path.read_bytes() for path in (tmp_path / "policy").iterdir()} == before
        with pytest.raises(ConfigError, match="int64"):
            algorithm.get_policy().export_checkpoint(tmp_path / "other", trained={"env_steps": np.int64(1)})
        with pytest.raises(ConfigError, match="'nobody'"):
            algorithm.export_policy_checkpoint(tmp_path / "other", "nobody")


def test_the_manifest_tells_how_the_policy_was_trained_and_what_is_around_the_graphs(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config={"train_batch_size": 64, "num_envs_per_worker": 4}) as algorithm:
        algorithm.train()
        folder = algorithm.export_policy_checkpoint(tmp_path / "deep" / "policy")
    manifest = json.loads((folder / "policy.json").read_text("utf-8"))
    assert manifest["trained"] == {"algorithm": "PPO", "env_steps": 64, "iterations": 1}
    assert manifest["policy_id"] == "default_policy"
    assert manifest["agent_connectors"][0] == ["ObsPreprocessorConnector", None]
    assert ["NormalizeActionsConnector", None] in manifest["action_connectors"]
    assert manifest["written_with"]["menv"] == menv.__version__


# Connectors that are not the usual ones: they go to disk with their state, and are refused where nobody knows them.


def test_an_unregistered_connector_is_refused_by_name(tmp_path: Path) -> None:
    halved = register_lambda_agent_connector("HalvedOnDisk", lambda data: data)
    with PPO(env="CartPole-v1", config={"seed": 1, "model": {"fcnet_hiddens": [8]}}) as algo:
        policy: Any = algo.get_policy()
        policy.agent_connectors.prepend(halved(None))
        policy.export_checkpoint(tmp_path / "policy")
    loaded: Any = Policy.from_checkpoint(tmp_path / "policy")
    assert loaded.agent_connectors.connectors[0].name == "HalvedOnDisk"
    tables = [value for value in vars(connector).values() if isinstance(value, dict)]
    next(table for table in tables if "HalvedOnDisk" in table).pop("HalvedOnDisk")
    with pytest.raises(ConfigError, match="'HalvedOnDisk'"):
        Policy.from_checkpoint(tmp_path / "policy")


# Action connectors that were taken out or put in are what acts everywhere: on disk, in clients, in checkpoints.


OBS = np.array([0.1, -0.2, 0.3], np.float32)
FAR = gym.spaces.Box(0, 10, (2,), np.float32)


class Adds(Alone):
    """Shows the sum of what was done, so that an episode that goes on elsewhere shows what it was given."""

    observation_space, action_space, length = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), FAR, 0
    sum = 0.0

    def see(self) -> Any:
        return np.full(3, self.sum, np.float32) if self.at else OBS

    def pay(self, action: Any) -> float:
        self.sum = float(action.sum()) + (self.sum if self.at > 1 else 0.0)
        return 0.0


def algorithm() -> PPO:
    algo = PPO(env=Adds, config={"seed": 0, "train_batch_size": 8, "sgd_minibatch_size": 8})
    policy: Any = algo.get_policy()
    policy.action_connectors.remove("NormalizeActionsConnector")
    return algo


def test_explore_in_the_config_is_the_default_of_a_policy_here_and_in_its_folder(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config={"train_batch_size": 200, "explore": False, "seed": 0}) as algo:
        policy = algo.get_policy()
        stored: Any = Policy.from_checkpoint(policy.export_checkpoint(tmp_path / "greedy"))
        obs = [np.array([0.01, 0.0, 0.02, 0.0], np.float32)] * 64
        greedy = policy.act(obs[0])
        for own in (policy, stored):
            assert set(own.compute_actions(obs)[0]) == {greedy}
            assert len(set(own.compute_actions(obs, explore=True)[0])) == 2
    with PPO(env="CartPole-v1", config={"train_batch_size": 200}) as algo:
        stored = Policy.from_checkpoint(algo.get_policy().export_checkpoint(tmp_path / "drawn"))
        for own in (algo.get_policy(), stored):
            assert len(set(own.compute_actions(obs)[0])) == 2
            assert len(set(own.compute_actions(obs, explore=False)[0])) == 1
