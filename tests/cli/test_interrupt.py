"""Ctrl-C ends a run whose environment takes 20 ms a step, wherever it hits, and the run can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from menv.algorithms import PPO
from menv.tracking import Run
from tests.house.sources import ROOT
from tests.warm_python import run_warm

SLOW = """
import sys
import time

from gymnasium.envs.classic_control import CartPoleEnv

from menv import DefaultCallbacks


class Slow(CartPoleEnv):
    def __init__(self, context=None):
        super().__init__()

    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


class Says(DefaultCallbacks):
    def on_learn_on_batch(self, **kwargs):
        print("learning", flush=True)

    def on_sub_environment_created(self, *, env_context, **kwargs):
        if env_context.in_evaluation:
            print("evaluating", flush=True)

    def on_sample_end(self, **kwargs):
        print("sampled", file=sys.stderr, flush=True)
"""
COMMAND = [sys.executable, "-m", "menv.cli", "train"]
SAYS = ["--config", "callbacks=@slow:Says"]
EVALUATES = [
    "--config", "evaluation_interval=1", "--config", "evaluation_duration=500", "--config", "train_batch_size=128",
    "--config", "evaluation_config.env=@slow:Slow",
]  # fmt: skip
CASES = {
    "sampling": ["slow:Slow"],
    "learning": ["CartPole-v1", "--config", "num_sgd_iter=100000"],
    "evaluating": ["CartPole-v1", *EVALUATES],
    "evaluating by a worker": [
        "CartPole-v1", *EVALUATES, "--config", "evaluation_num_workers=1", "--config", "engine=process",
    ],
    "sampling by workers": ["slow:Slow", "--config", "num_workers=2", "--config", "engine=process"],
    "sampling ahead": [
        "slow:Slow", "--config", "num_workers=1", "--config", "engine=process", "--config", "overlap=true",
    ],
}  # fmt: skip


@pytest.mark.slow_unless("learning")
@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_ends_a_run_at_once_and_it_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*COMMAND, *CASES[case], *SAYS, "--run-dir", "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as run:
        assert run.stdout is not None
        until = case if case in ("learning", "evaluating") else "PPO in"
        assert any(line.startswith(until) for line in run.stdout)
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = run.communicate(timeout=60)
    # A fragment, an update or an evaluation would take a minute at least.
    assert time.monotonic() - began < 10
    assert run.returncode == 128 + signal.SIGINT, err
    assert "resume: menv train --resume run" in err
    resumed = [*COMMAND, "--resume", "run", *CASES[case], *SAYS, "--config", "train_batch_size=128"]
    more = [
        "--config",
        "num_sgd_iter=1",
        "--config",
        "evaluation_duration=1",
        "--stop",
        "training_iteration=2",
    ]
    done = run_warm([*resumed, *more][1:], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [one["training_iteration"] for one in Run("run").results()] == [1, 2]


def test_learn_saves_before_ctrl_c_leaves_it(tmp_path: Path) -> None:
    config = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 100_000}
    with PPO(env="CartPole-v1", config=config) as algo:
        before = algo.get_policy().get_weights()
        timer = signal.setitimer(signal.ITIMER_REAL, 1.0)
        assert timer == (0.0, 0.0)
        old = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            with pytest.raises(KeyboardInterrupt) as raised:
                algo.learn(10_000, run_dir=tmp_path / "run")
        finally:
            signal.signal(signal.SIGALRM, old)
        # The iteration is lost, and the policy is the one before it.
        after = algo.get_policy().get_weights()
        assert all((before[name] == after[name]).all() for name in before)
    assert raised.value.__notes__ == [f"PPO.from_checkpoint({str(tmp_path / 'run')!r}) resumes the run"]
    with PPO.from_checkpoint(tmp_path / "run", {"num_sgd_iter": 1}) as algo:
        assert algo.learn(128, run_dir=tmp_path / "run")["training_iteration"] == 1
