"""`menv serve --frozen`: it needs no torch, and `--reload` brings the weights of each new checkpoint."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import menv
from menv.algorithms import DQN, PPO, SAC
from menv.cli.main import main
from menv.serving import PolicyClient
from menv.serving.limits import Limits
from tests.cli.servers import line_with, serving
from tests.worlds import Several

SMALL = {"train_batch_size": 16, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "seed": 0}
FILTERED = {**SMALL, "observation_filter": "MeanStdFilter"}


class Alike(Several):
    """Two agents that are paid nothing."""

    def pay(self, actions: Any) -> Any:
        return {}


def leaning(algo: PPO, action: int) -> PPO:
    """Let the policy of CartPole always take one action."""
    weights = algo.get_weights()["default_policy"]
    weights["policy.out.bias"] = np.array([40.0, -40.0] if action == 0 else [-40.0, 40.0], np.float32)
    algo.set_weights({"default_policy": weights})
    return algo


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose only checkpoint always takes action 0."""
    with PPO(env="CartPole-v1", config=FILTERED) as algo:
        algo.train()
        leaning(algo, 0).save(tmp_path / "run" / "checkpoints")
    return tmp_path / "run"


def save_next(run: Path, action: int, config: Any = FILTERED) -> Path:
    """Save another checkpoint, of a policy that always takes this action."""
    with PPO(env="CartPole-v1", config=config) as algo:
        algo.iteration = int((run / "checkpoints" / "LATEST").read_text()) + 1
        return leaning(algo, action).save(run / "checkpoints")


def actions_of(client: PolicyClient) -> set[int]:
    episode = client.start_episode()
    actions = {int(client.get_action(episode, [0.0, 0.1, 0.0, 0.1])) for _ in range(4)}
    client.end_episode(episode, [0.0, 0.0, 0.0, 0.0], truncated=True)
    return actions


def test_a_frozen_server_without_torch_takes_the_weights_of_new_checkpoints(run: Path) -> None:
    with (
        serving(str(run), "--frozen", "--reload") as (address, output),
        PolicyClient(address, "remote") as client,
    ):
        assert actions_of(client) == {0}
        second = save_next(run, 1)
        line_with(f"serving the policies of {second}", output)
        assert actions_of(client) == {1}
        # Checkpoints that are still being copied, of another network, and with other filters: the weights stay.
        whole = shutil.copytree(second, run / "whole")
        (second / "policies" / "default_policy" / "weights.safetensors").write_bytes(b"half")
        (run / "checkpoints" / "LATEST").write_text(f"{second.name}\n")
        assert "weights.safetensors" in line_with("the server keeps its weights", output)
        save_next(run, 0, {**FILTERED, "model": {"fcnet_hiddens": [8]}})
        line_with("the server keeps its weights", output)
        save_next(run, 0, SMALL)
        line_with("other observation filters", output)
        assert actions_of(client) == {1}
        shutil.rmtree(second)
        whole.rename(second)
        last = save_next(run, 0)
        line_with(f"serving the policies of {last}", output)
        assert actions_of(client) == {0}


def test_a_frozen_server_gives_the_policies_of_a_snapshot(tmp_path: Path) -> None:
    """The snapshots 1 and 2 always take action 1, the run and the others action 0."""
    run, league = tmp_path / "run", {"snapshot_interval": 1, "win_if": "highest_return"}
    with PPO(env=Alike, config={**FILTERED, "lr": 0.0, "self_play": league}) as algo:
        for action in (1, 1, 0):
            leaning(algo, action).train()
        algo.save(run / "checkpoints")
    for option, action in (("snapshot_2", 1), ("snapshot_3", 0)):
        env = ["--env", f"{__name__}:Alike"]
        with (
            serving(str(run), "--frozen", "--policy", option, *env) as (address, _),
            PolicyClient(address, "remote") as client,
        ):
            episode = client.start_episode()
            found = client.get_action(episode, dict.fromkeys("ab", np.zeros(1, np.float32)))
            assert found == dict.fromkeys("ab", action)
    assert main(["serve", str(run), "--frozen", "--policy", "snapshot_9", *env]) == 2


def test_a_running_episode_goes_on_with_the_new_weights(run: Path) -> None:
    with (
        serving(str(run), "--frozen", "--reload") as (address, output),
        PolicyClient(address, "remote") as client,
    ):
        episode = client.start_episode()
        assert client.get_action(episode, [0.0] * 4) == 0
        save_next(run, 1)
        line_with("serving the policies of", output)
        assert client.get_action(episode, [0.0] * 4) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--reload"], "--reload: "),
        (["--level", "easy"], "--level: "),
        (["--frozen", "--level", "easy"], "'easy'"),
        (["--frozen", "--max-body", "0"], "Limits.max_body"),
    ],
)
def test_serve_refuses_options_that_contradict_each_other(
    run: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(run), *arguments]) == 2
    assert error in capsys.readouterr().err


def test_reload_refuses_a_single_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint,) = (run / "checkpoints").glob("0*")
    assert main(["serve", str(checkpoint), "--frozen", "--reload"]) == 2
    assert "--reload" in capsys.readouterr().err


def test_every_limit_is_an_option_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {f"--{one.name.replace('_', '-')}" for one in fields(Limits)} <= shown


ACTS = """
import sys
sys.modules.update(dict.fromkeys(["torch", "onnxscript", "tensorboard", "rich"]))
from menv.algorithms import Algorithm
for folder in sys.argv[1:]:
    with Algorithm.from_checkpoint(folder, {"multiagent": {"policies_to_train": []}, "num_gpus": 0}) as algo:
        assert not algo.train()["info"]["learner"]
"""


@pytest.mark.slow
def test_algorithms_that_train_nothing_need_no_torch(tmp_path: Path) -> None:
    kinds: dict[str, tuple[type[Any], str, dict[str, Any]]] = {
        "lstm": (PPO, "CartPole-v1", {**SMALL, "model": {"use_lstm": True}, "num_gpus": 0}),
        "dqn": (DQN, "CartPole-v1", {"train_batch_size": 16, "seed": 0}),
        "sac": (SAC, "Pendulum-v1", {"train_batch_size": 16, "seed": 0}),
    }
    for name, (kind, env, config) in kinds.items():
        with kind(env=env, config=config) as algo:
            algo.train()
            algo.save(tmp_path / name)
    environment = {**os.environ, "PYTHONPATH": str(Path(menv.__file__).parents[1])}
    folders = [str(tmp_path / name) for name in kinds]
    done = subprocess.run(
        [sys.executable, "-c", ACTS, *folders], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_run_with_self_play_is_served_frozen(tmp_path: Path) -> None:
    config = {**SMALL, "self_play": {"enabled": True}}
    with PPO(env="tictactoe", config=config) as algo:
        algo.train()
        algo.save(tmp_path / "run" / "checkpoints")
        obs = algo.get_policy().observation_space.sample()
    with (
        serving(str(tmp_path / "run"), "--frozen") as (address, _),
        PolicyClient(address, "remote") as client,
    ):
        episode = client.start_episode()
        assert client.get_action(episode, {"player1": obs})["player1"] in range(9)
