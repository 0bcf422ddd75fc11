"""`menv sweep` searches settings in processes, survives kills and crashes, and its best settings train."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from menv.cli.main import main
from menv.tracking import Run
from tests.house.sources import ROOT

SWEEP = """
env = "tictactoe"
options = "--no-zoo --policies shared"
seeds = 2
stop = {training_iteration = 2}
config = {train_batch_size = 64, sgd_minibatch_size = 32, num_sgd_iter = 1}

[space]
lr = {float = [1e-4, 1e-2], log = true}
model.fcnet_hiddens = {choice = [[8], [16, 16]]}
"""
COMMAND = [sys.executable, "-m", "menv.cli", "sweep", "sweep.toml"]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs find menv here."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def by_shell(command: str) -> str:
    """Run a command that menv has printed, and return its output; the shell finds the run folders."""
    command = f"{sys.executable} -m menv.cli {command.removeprefix('menv ')}"
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout


def write(text: str = SWEEP, **replaced: str) -> None:
    for line, other in replaced.items():
        old = next(one for one in text.splitlines() if one.startswith(line))
        text = text.replace(old, other)
    Path("sweep.toml").write_text(text)


def trials(folder: str = "runs/sweep") -> list[tuple[str, dict[str, Any], float | None]]:
    """Return state, settings and score of the trials that Optuna has stored."""
    import optuna

    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder}/sweep.db")
    return [(one.state.name, one.params, one.value) for one in study.trials]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        status = main(["sweep", "sweep.toml", *arguments])
    except SystemExit as end:
        status = int(str(end.code))
    err = capsys.readouterr().err
    assert status == 2, err
    return err


@pytest.mark.parametrize(
    ("replaced", "named"),
    [
        ({"lr": "lr = {float = [1e-2, 1e-4]}"}, "sweep: lr"),
        ({"lr": "lr = {choice = []}"}, "sweep: lr"),
        ({"lr": "lr = {float = [0.1, 0.2], logs = true}"}, "sweep: lr"),
        ({"lr": "gamma = {}"}, "sweep: gamma"),
        ({"lr": "lr = 0.1"}, "sweep: lr"),
        ({"seeds": "metrik = 'a'"}, "'metric'"),
        ({"seeds": "direction = 'up'"}, "direction is 'up'"),
        ({"seeds": "pruner = 'median'\npruner_options = {n = 1}"}, "MedianPruner"),
        ({"stop": ""}, "no stop"),
        ({"lr": "", "model": ""}, "no space"),
        ({"options": "grid = {gamma = 0.9}"}, "sweep: gamma"),
        ({"options": "options = \"--policies 'x\""}, "quotation"),
        ({"config": "config = {env_config = {since = 2026-01-01}}"}, "date"),
    ],
)  # fmt: skip
def test_a_wrong_sweep_is_one_line_before_a_trial_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], replaced: dict[str, str], named: str
) -> None:
    write(**replaced)
    err = refused(capsys)
    assert (named in err, err.count("\n")) == (True, 1), err
    assert not Path("runs").exists()


def test_without_optuna_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "menv.cli.sweep", raising=False)
    assert main(["sweep", "sweep.toml"]) == 1
    assert "menv-rl[sweep]" in capsys.readouterr().err


def test_a_damaged_folder_and_one_that_is_a_file_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    Path("runs/sweep").mkdir(parents=True)
    Path("runs/sweep/sweep.db").write_text("no data base " * 100)
    assert "sweep.db: " in refused(capsys)
    Path("file").touch()
    assert main(["sweep", "sweep.toml", "--dir", "file"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replaced", "named"),
    [
        ({"lr": "lrr = {float = [0.0, 1.0]}"}, "'lr'"),
        ({"options": "options = '--polices shared'"}, "--polices"),
        ({"env": "env = 'tictactow'"}, "env: 'tictactow'"),
        ({"seeds": "metric = 'episode_rewad_mean'"}, "episode_reward_mean"),
        ({"seeds": "metric = 'evaluation/episode_reward_mean'"}, "evaluation_interval"),
        ({"seeds": "metric = 'policy_reward_mean/absent'"}, "policy_reward_mean/absent"),
    ],
)
def test_what_is_wrong_in_every_trial_ends_the_sweep_after_its_first_run(
    folder: Path, capsys: pytest.CaptureFixture[str], replaced: dict[str, str], named: str
) -> None:
    write(**replaced)
    err = refused(capsys)
    assert (named in err, err.count("\n")) == (True, 1), err
    # The same command runs it once the file is correct.
    write(seeds="seeds = 1")
    assert main(["sweep", "sweep.toml", "--trials", "1"]) == 0
    assert [state for state, *_ in trials()] == ["FAIL", "COMPLETE"]


@pytest.mark.slow
def test_a_killed_sweep_resumes_and_its_best_settings_train(folder: Path) -> None:
    write()
    with subprocess.Popen(
        [*COMMAND, "--jobs", "2", "--trials", "3"], stdout=subprocess.PIPE, text=True
    ) as sweep:
        assert sweep.stdout is not None
        assert sweep.stdout.readline().startswith("trial ")
        sweep.kill()
    # The runs end by themselves.
    time.sleep(5)
    assert main(["sweep", "sweep.toml", "--jobs", "2", "--trials", "3"]) == 0
    done = [one for one in trials() if one[0] == "COMPLETE"]
    assert len(done) == 3
    assert len([*Path("runs/sweep").glob("trial-*-seed-0")]) == 3
    best = max(done, key=lambda one: float(one[2] or 0))
    config = json.loads(Path("runs/sweep/best.json").read_text())
    assert config["lr"] == best[1]["lr"]
    assert config["model"]["fcnet_hiddens"] == json.loads(best[1]["model.fcnet_hiddens"])
    assert config["train_batch_size"] == 64
    trained = ["tictactoe", "--no-zoo", "--config", "runs/sweep/best.json", "--stop", "training_iteration=1"]
    assert main(["train", *trained, "--no-save"]) == 0


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_that_can_be_resumed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(stop="stop = {training_iteration = 100000}")
    with subprocess.Popen(
        [*COMMAND, "--jobs", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        saved = Path("runs/sweep/trial-000-seed-0/progress.csv")
        while not saved.exists():
            assert sweep.poll() is None
            time.sleep(0.05)
        sweep.send_signal(signal.SIGINT)
        _, err = sweep.communicate(timeout=60)
    assert (sweep.returncode, "resume: menv sweep sweep.toml" in err, err.count("\n")) == (130, True, 2)
    assert Path("runs/sweep/trial-000-seed-0/checkpoints/LATEST").exists()
    write(stop="stop = {training_iteration = 99999}")
    assert "runs/sweep" in refused(capsys)


BRITTLE = """

class Brittle(Corridor):
    def reset(self, **kwargs):
        if self.length > 6:
            import os
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**kwargs)
"""


@pytest.mark.slow
def test_trials_are_pruned_and_failed_ones_continue_with_their_settings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        SWEEP.partition("lr =")[0] + '"env_config.length" = {int = [1, 9]}\n',
        env="env = 'game.py:Brittle'",
        options="options = '--no-zoo'",
        seeds="metric = 'episode_len_mean'\npruner = 'median'\npruner_options = {n_startup_trials = 1}",
    )
    Path("game.py").write_text(Path("corridors.py").read_text() + BRITTLE)
    assert main(["sweep", "sweep.toml", "--trials", "5"]) == 0
    found = trials()
    assert len(found) == 5
    assert {one[0] for one in found} == {"COMPLETE", "PRUNED", "FAIL"}
    failed = [one[1]["env_config.length"] for one in found if one[0] == "FAIL"]
    assert {length > 6 for length in failed} == {True}
    # What ended the trials is mended.
    Path("game.py").write_text(Path("corridors.py").read_text() + BRITTLE.replace("> 6", "> 9"))
    assert main(["sweep", "sweep.toml", "--trials", "5"]) == 0
    assert len(trials()) == 5
    for _ in range(2):
        assert main(["sweep", "sweep.toml", "--trials", "5", "--retry-failed"]) == 0
        assert [one[1]["env_config.length"] for one in trials()[5:]] == failed
        assert {one[0] for one in trials()[5:]} <= {"COMPLETE", "PRUNED"}
    assert capsys.readouterr().out.count("best:") == 4


GRID = """
env = "menv.envs:TwoStepGame"
run = ["PPO", "VDN"]
seeds = 2
options = "--no-zoo"
stop = {num_env_steps_sampled = 32}
config = {num_envs_per_worker = 4, train_batch_size = 32}
grid = {gamma = [0.9, 1.0]}
"""


@pytest.mark.slow
def test_a_grid_trains_every_algorithm_with_every_setting_and_seed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(GRID)
    assert main(["sweep", "sweep.toml", "--jobs", "2"]) == 0
    params = [one[1] for one in trials()]
    pairs = [(json.loads(one["run"]), json.loads(one["gamma"])) for one in params]
    assert sorted(pairs) == [("PPO", 0.9), ("PPO", 1.0), ("VDN", 0.9), ("VDN", 1.0)]
    for number, (run, gamma) in enumerate(pairs):
        for seed in (0, 1):
            config = Run(f"runs/sweep/trial-{number:03d}-seed-{seed}").config
            assert config["algorithm"] == {"PPO": "PPO", "VDN": "QMIX"}[run]
            assert (config["config"]["gamma"], config["config"]["seed"]) == (gamma, seed)
    printed = capsys.readouterr().out.splitlines()
    (table,) = [line.removeprefix("table: ") for line in printed if line.startswith("table: ")]
    # The header, and a line for each combination.
    assert by_shell(f"{table} --episodes 2").count(r" \\") == 5
    # Nothing is left to do.
    assert main(["sweep", "sweep.toml"]) == 0
    assert len(trials()) == 4


@pytest.mark.slow
def test_the_command_trains_a_run_for_each_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--no-zoo", "--stop", "training_iteration=1", "--config", "train_batch_size=64"]
    assert main(["train", "tictactoe", "--seeds", "2", "--jobs", "2", "--run-dir=runs/two", *small]) == 0
    assert [Run(f"runs/two/seed-{seed}").config["config"]["seed"] for seed in (0, 1)] == [0, 1]
    (plot,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("plot: ")]
    assert by_shell(plot.removeprefix("plot: ")) == "wrote two.png\n"
    assert main(["train", "tictactoe", "--seeds", "2", "--seed", "1"]) == 2
    assert main(["train", "tictactoe", "--seeds", "1", "--run-dir", "runs/no", "--run", "PPOX"]) == 2
    assert "PPOX" in Path("runs/no/seed-0.log").read_text()
