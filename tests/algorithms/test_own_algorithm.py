"""An algorithm written outside menv, as examples/own_algorithm.py does, works wherever menv's own algorithms work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.own_algorithm import A2C, A2CRecipe
from menv.algorithms import PPO, PPOConfig, register_algorithm
from menv.algorithms.algorithm import Algorithm
from menv.cli.main import main
from menv.envs import TicTacToe
from menv.errors import UnknownNameError
from menv.policy_spec import PolicySpec
from menv.tracking import Run
from tests.checkpoints.forged import forge
from tests.house.sources import ROOT

FILE = f"{ROOT}/examples/own_algorithm.py:A2C"
ONCE = ["--config", "train_batch_size=80", "--stop", "training_iteration=1"]
PLAYERS = {"player1": "ppo", "player2": "a2c"}


def config(num_workers: int = 0) -> PPOConfig:
    """Return settings of short batches."""
    return PPOConfig(env="CartPole-v1", num_envs_per_worker=2, train_batch_size=40, rollout_fragment_length=10,
                     num_workers=num_workers, seed=3)  # fmt: skip


def mixed(algorithm: Any) -> dict[str, Any]:
    """Return settings of a game in which PPO plays against another algorithm."""
    policies = {"ppo": None, "a2c": PolicySpec(algorithm=algorithm, config={"lr": 0.003})}
    return {
        "train_batch_size": 64,
        "seed": 1,
        "multiagent": {"policies": policies, "policy_mapping_fn": list(PLAYERS.items())},
    }


class RegisteredA2C(A2CRecipe):
    name = "RegisteredA2C"


class OwnA2C(A2C):
    recipe = RegisteredA2C()


@pytest.fixture(scope="module")
def registered() -> None:
    """Register an algorithm."""
    register_algorithm("RegisteredA2C", RegisteredA2C())


def run_menv(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process, which knows no algorithm but menv's."""
    command = [sys.executable, "-W", "ignore", "-m", "menv.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_own_algorithm_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    with A2C(config()) as algo:
        for _ in range(3):
            algo.train()
        folder = algo.save(tmp_path)
        algo.restore(folder)
        expected = [algo.train() for _ in range(3)][-1]
    with A2C.from_checkpoint(folder) as resumed:
        result = [resumed.train() for _ in range(3)][-1]
    assert result["digest"] == expected["digest"]
    assert result["info"] == expected["info"]


@pytest.mark.slow
def test_an_own_algorithm_samples_in_workers() -> None:
    with A2C(config(num_workers=2)) as algo:
        assert algo.train()["num_env_steps_trained"] >= 40


@pytest.mark.usefixtures("registered")
def test_a_registered_algorithm_trains_a_policy_next_to_ppo_and_resumes_without_its_class(
    tmp_path: Path,
) -> None:
    with PPO(env=TicTacToe, config=mixed("RegisteredA2C")) as algo:
        algo.train()
        folder, weights = algo.save(tmp_path), algo.get_weights()
        result = algo.train()
    # Statistics of the learners: A2C reports no KL divergence.
    assert "kl" in result["info"]["ppo"]
    assert {*result["info"]["a2c"]} >= {"policy_loss", "vf_loss", "entropy"}
    assert "kl" not in result["info"]["a2c"]
    with PPO.from_checkpoint(folder, env=TicTacToe) as resumed:
        np.testing.assert_equal(resumed.get_weights(), weights)
        assert "kl" not in resumed.train()["info"]["a2c"]


@pytest.mark.usefixtures("registered")
def test_an_own_algorithm_shares_layers_with_ppo_by_set_weights() -> None:
    shared = {"model": {"shared_layers": "board", "fcnet_hiddens": [8], "fcnet_activation": "tanh"}}
    settings = mixed("RegisteredA2C")
    settings["multiagent"]["policies"] = {
        "ppo": PolicySpec(config=shared),
        "a2c": PolicySpec(algorithm="RegisteredA2C", config=shared),
    }
    with PPO(env=TicTacToe, config=settings) as algo:
        before = algo.get_weights()["a2c"]
        algo.train()
        ppo, a2c = (algo.get_weights()[name] for name in ("ppo", "a2c"))
    for name in ("policy.0.weight", "policy.0.bias", "value.0.weight", "value.0.bias"):
        np.testing.assert_array_equal(ppo[name], a2c[name])
        assert (a2c[name] != before[name]).any()
    assert (ppo["policy.out.weight"] != a2c["policy.out.weight"]).any()


@pytest.mark.usefixtures("registered")
def test_a_checkpoint_of_a_registered_algorithm_needs_no_class(tmp_path: Path) -> None:
    with OwnA2C(config()) as algo:
        algo.train()
        folder, weights = algo.save(tmp_path), algo.get_weights()
    with Algorithm.from_checkpoint(folder) as resumed:
        assert resumed.recipe.name == "RegisteredA2C"
        np.testing.assert_equal(resumed.get_weights(), weights)


def test_an_installed_package_makes_its_algorithm_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[menv.algorithms]\nShopA2C = shop_algorithm:Recipe\n")
    (tmp_path / "shop_algorithm.py").write_text(
        "from examples.own_algorithm import A2CRecipe\nclass Recipe(A2CRecipe):\n    name = 'ShopA2C'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with PPO(env=TicTacToe, config=mixed("ShopA2C")) as algo:
        assert "kl" not in algo.train()["info"]["a2c"]


@pytest.mark.parametrize(
    ("algorithm", "near"), [("PP0", "'PPO'"), ("Nothing", "register_algorithm"), (3, "register_algorithm")]
)
def test_an_unknown_algorithm_is_refused(algorithm: Any, near: str) -> None:
    with pytest.raises(UnknownNameError, match=r"policies\['a2c'\]: algorithm=") as caught:
        PPO(env=TicTacToe, config=mixed(algorithm))
    assert near in str(caught.value)


@pytest.mark.parametrize("name", ["Unheard", "evil_algorithm:Recipe"])
def test_a_checkpoint_imports_no_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "evil_algorithm.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with A2C(config()) as algo:
        folder = Path(algo.save(tmp_path / "checkpoints"))
    forge(folder, "manifest.json", ["algorithm"], name)
    with pytest.raises(UnknownNameError, match="algorithm"):
        Algorithm.from_checkpoint(folder)
    assert "evil_algorithm" not in sys.modules


@pytest.mark.slow
def test_the_command_line_trains_resumes_and_evaluates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained = run_menv("train", "CartPole-v1", "--run", FILE, *ONCE, "--run-dir", "run")
    assert "menv evaluate run --trust" in trained.stderr
    refused = run_menv("evaluate", "run", "--episodes", "1")
    assert refused.returncode == 2
    assert "menv evaluate run --episodes 1 --trust" in refused.stderr
    assert run_menv("evaluate", "run", "--episodes", "1", "--trust").returncode == 0
    assert run_menv("train", "--resume", "run", "--trust", "--stop", "training_iteration=2").returncode == 0


def test_a_zoo_file_has_a_table_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text('envs = ["CartPole-v1"]\n[A2C]\nlr = 0.125\n[PPO]\nlr = 0.25\n')
    train = ["train", "CartPole-v1", "--run", FILE, *ONCE, "--run-dir", "run", "--zoo"]
    assert main([*train, "my.toml"]) == 0
    assert "my.toml [A2C]: lr=0.125" in capsys.readouterr().out
    assert Run("run").config["algorithm"] == "A2C"
    assert main([*train, "my.toml:PPO"]) == 2
    assert "--run" in capsys.readouterr().err


def test_a_subclass_of_ppo_keeps_its_own_defaults_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fast_ppo.py").write_text(
        "from menv.algorithms import PPO, PPOConfig\n"
        "class FastPPO(PPO):\n"
        "    @classmethod\n"
        "    def get_default_config(cls):\n"
        "        return PPOConfig(lr=0.125)\n"
    )
    arguments = [
        "train",
        "CartPole-v1",
        "--no-zoo",
        "--run",
        "fast_ppo.py:FastPPO",
        *ONCE,
        "--run-dir",
        "run",
    ]
    assert main(arguments) == 0
    (line,) = Path("run/results.jsonl").read_text().splitlines()
    assert json.loads(line)["info"]["default_policy"]["cur_lr"] == 0.125


@pytest.mark.slow
def test_a_sweep_searches_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(
        f'env = "CartPole-v1"\nrun = {json.dumps(FILE)}\n[stop]\ntraining_iteration = 1\n[config]\n'
        "train_batch_size = 80\n[space]\nlr = {float = [1e-4, 1e-2], log = true}\n"
    )
    assert main(["sweep", "sweep.toml", "--trials", "1", "--dir", "sweep"]) == 0
    assert json.loads(Path("sweep/best.json").read_text())["lr"] > 0
