"""`menv sweep` searches settings in processes, survives kills and crashes, and its best settings train."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
import pytest

from menv.cli.main import main
from menv.cli.sweep import Sweep, SweepFile
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


def write(text: str = SWEEP, **replaced: str) -> None:
    for line, other in replaced.items():
        old = next(one for one in text.splitlines() if one.startswith(line))
        text = text.replace(old, other)
    Path("sweep.toml").write_text(text)


def table(folder: str = "runs/sweep") -> list[dict[str, str]]:
    with Path(folder, "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("replaced", "error"),
    [
        ({"lr": "lrr = {float = [0.0, 1.0]}"}, "space: unknown key 'lrr', expected a known one; did you mean 'lr'?"),
        ({"model": "model.hidens = {int = [1, 2]}"}, "config['model']: unknown key 'hidens'"),
        ({"config": "config = {gama = 0.9}"}, "config: unknown key 'gama', expected a known one; did you mean 'gamma'"),
        ({"lr": "lr = {float = [1e-2, 1e-4]}"}, "space.lr: "),
        ({"lr": "lr = {choice = []}"}, "space.lr: "),
        ({"lr": "lr = {float = [0.1, 0.2], logs = true}"}, "space.lr: "),
        ({"lr": "gamma = {}"}, "space.gamma: "),
        ({"lr": "lr = 0.1"}, "space.lr: 0.1, expected {float = [low, high]}"),
        ({"lr": "gamma = {float = [0.9, 1.5]}"}, "space: gamma is 1.5, expected"),
        ({"seeds": "metrik = 'a'"}, "sweep.toml: unknown key 'metrik', expected a known one; did you mean 'metric'?"),
        ({"seeds": "direction = 'up'"}, "sweep: direction is 'up', expected one of 'maximize', 'minimize'"),
        ({"seeds": "pruner = 'median'\npruner_options = {n = 1}"}, "sweep: pruner_options of 'median': "),
        ({"stop": ""}, "sweep: no stop, expected one; add [stop] with num_env_steps_sampled"),
        (
            {"stop": "stop = {num_env_steps = 9}"},
            "sweep: stop num_env_steps: results have no such key, expected an existing one; did you mean num_env_steps",
        ),
        (
            {"seeds": "metric = 'episode_rewad_mean'"},
            "sweep: metric episode_rewad_mean: results have no such key, expected an existing one; did you mean "
            "episode_reward_mean",
        ),
        ({"stop": "stop = {training_iteration = 'two'}"}, "expected KEY=NUMBER"),
        ({"lr": "", "model": ""}, "sweep: no space, expected one; add [space] with lr = {float"),
        ({"options": "options = \"--policies 'x\""}, "sweep: No closing quotation, expected"),
        ({"config": "config = {env_config = {since = 2026-01-01}}"}, "sweep: Object of type date is not JSON"),
        ({"options": "options = '--polices shared'"}, "unrecognized arguments: --polices shared; did you mean"),
    ],
)  # fmt: skip
def test_a_wrong_sweep_is_one_line_before_a_trial_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], replaced: dict[str, str], error: str
) -> None:
    write(**replaced)
    try:
        status = main(["sweep", "sweep.toml"])
    except SystemExit as end:
        status = int(str(end.code))
    err = capsys.readouterr().err
    assert (status, error in err) == (2, True), err
    assert not Path("runs").exists()


def test_without_optuna_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "menv.cli.sweep", raising=False)
    assert main(["sweep", "sweep.toml"]) == 1
    assert capsys.readouterr().err == (
        "menv sweep: error: menv sweep: the package optuna is not installed, expected it; run: pip install "
        "'menv-rl[sweep]'\n"
    )


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("sweep.json", "", "runs/sweep: holds another sweep (env, run, "),
        ("sweep.json", "[]", "runs/sweep: holds another sweep (env, run, "),
        ("journal.log", "{}\n", "runs/sweep/journal.log: damaged ("),
        ("journal.log", "{\n{}\n", "runs/sweep/journal.log: damaged ("),
        ("", "", "sweep: the folder runs/sweep cannot be written ("),
    ],
)
def test_a_damaged_folder_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, error: str
) -> None:
    write()
    place = Path("runs/sweep")
    place.parent.mkdir()
    if name:
        place.mkdir()
        (place / "sweep.json").write_text(json.dumps(asdict(SweepFile(**tomllib.loads(SWEEP)))))
    (place / name).write_text(content)
    assert main(["sweep", "sweep.toml"]) in (1, 2)
    assert error in (err := capsys.readouterr().err), err
    assert err.count("\n") == 1


def test_a_journal_without_the_end_of_its_last_line_is_opened(folder: Path) -> None:
    write()
    file = SweepFile(**tomllib.loads(SWEEP))
    place, pruner = Path("s"), optuna.pruners.NopPruner()
    place.mkdir()
    first = Sweep(file, {}, pruner, place, []).study
    first.add_trial(optuna.trial.create_trial(value=1.0))
    journal = place / "journal.log"
    journal.write_bytes(journal.read_bytes() + b'{"op_code":4,"trial')
    second = Sweep(file, {}, pruner, place, []).study
    second.add_trial(optuna.trial.create_trial(value=2.0))
    assert [one.value for one in Sweep(file, {}, pruner, place, []).ranking()] == [2.0, 1.0]


def test_a_table_that_cannot_be_written_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    file = SweepFile(**tomllib.loads(SWEEP))
    place = Path("runs/sweep")
    place.mkdir(parents=True)
    study = Sweep(file, {}, optuna.pruners.NopPruner(), place, []).study
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL))
    # What takes the place of the table fails as a full disk does.
    (place / "trials.csv").mkdir()
    assert main(["sweep", "sweep.toml", "--trials", "1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "menv sweep: error: sweep: the folder runs/sweep cannot be written ([Errno 21] Is a directory"
    )


@pytest.mark.slow
def test_a_killed_sweep_resumes_as_if_it_had_not_stopped_and_its_best_settings_train(folder: Path) -> None:
    write()
    with subprocess.Popen(
        [*COMMAND, "--jobs", "2", "--trials", "2"], stdout=subprocess.PIPE, text=True
    ) as sweep:
        assert sweep.stdout is not None
        assert sweep.stdout.readline().startswith("trial ")
        sweep.kill()
    assert len([one for one in table() if one["state"] == "complete"]) >= 1
    assert main(["sweep", "sweep.toml", "--jobs", "2", "--trials", "2"]) == 0
    assert main(["sweep", "sweep.toml", "--trials", "2", "--dir", "whole"]) == 0
    assert table() == table("whole")
    assert [one["state"] for one in table()] == ["complete"] * 2
    best = max(table(), key=lambda one: float(one["score"]))
    config = json.loads(Path("runs/sweep/best.json").read_text())
    assert config["lr"] == float(best["lr"])
    assert config["train_batch_size"] == 64
    trained = ["tictactoe", "--no-zoo", "--config", "runs/sweep/best.json", "--stop", "training_iteration=1"]
    assert main(["train", *trained, "--no-save"]) == 0
    assert Path("runs/sweep/report.html").exists()


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_that_can_be_resumed(folder: Path) -> None:
    write(stop="stop = {training_iteration = 100000}")
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        saved = Path("runs/sweep/trial-000-seed-0/progress.csv")
        while not saved.exists():
            assert sweep.poll() is None
        sweep.send_signal(signal.SIGINT)
        _, err = sweep.communicate(timeout=60)
    assert (sweep.returncode, err) == (
        130, "interrupted; running trials were saved\n  resume: menv sweep sweep.toml\n"
    )  # fmt: skip
    write(stop="stop = {training_iteration = 99999}")
    assert main(["sweep", "sweep.toml"]) == 2
    assert Path("runs/sweep/trial-000-seed-0/checkpoints/LATEST").exists()


@pytest.mark.slow
def test_trials_are_pruned_and_a_crash_costs_its_trial_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        SWEEP + "env_config.length = {int = [1, 9]}\n",
        env="env = 'game.py:Brittle'",
        options="options = '--no-zoo'",
        seeds="metric = 'episode_len_mean'\npruner = 'median'\npruner_options = {n_startup_trials = 1}",
    )
    Path("game.py").write_text(Path("corridors.py").read_text() + BRITTLE)
    assert main(["sweep", "sweep.toml", "--trials", "4"]) == 0
    found = table()
    assert {one["state"] for one in found} == {"complete", "pruned", "fail"}
    assert {"killed by SIGKILL" in one["error"] for one in found if one["state"] == "fail"} == {True}
    lengths = [int(one["env_config.length"]) for one in found if one["state"] == "complete"]
    assert float(max(found, key=lambda one: float(one["score"] or 0))["score"]) == max(lengths)
    assert "4 trials: 2 completed, 1 pruned, 1 failed" in capsys.readouterr().out


@pytest.mark.slow
def test_failed_trials_are_tried_again_with_their_settings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        SWEEP.partition("lr =")[0] + '"env_config.length" = {choice = [4]}\n',
        env="env = 'game.py:Brittle'",
        options="options = '--no-zoo'",
        seeds="metric = 'episode_len_mean'",
    )
    Path("game.py").write_text(Path("corridors.py").read_text() + BRITTLE)
    assert main(["sweep", "sweep.toml", "--trials", "1"]) == 1
    assert [one["state"] for one in table()] == ["fail"]
    # What ended the trial is mended.
    Path("game.py").write_text(Path("corridors.py").read_text() + BRITTLE.replace("== 4", "== 5"))
    assert main(["sweep", "sweep.toml", "--trials", "1"]) == 1
    for _ in range(2):
        assert main(["sweep", "sweep.toml", "--trials", "1", "--retry-failed"]) == 0
        found = [(one["state"], one["env_config.length"], one["score"]) for one in table()]
        assert found == [("fail", "4", ""), ("complete", "4", "4.0")]
    assert "2 trials: 1 completed, 0 pruned, 1 failed" in capsys.readouterr().out
    assert main(["sweep", "sweep.toml", "--trials", "2", "--retry-failed"]) == 0
    assert [one["state"] for one in table()] == ["fail", "complete", "complete"]


BRITTLE = """

class Brittle(Corridor):
    def reset(self, **kwargs):
        if self.length == 4:
            import os
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**kwargs)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replaced", "error"),
    [
        ({"seeds": "metric = 'evaluation/episode_reward_mean'"}, "this run makes no evaluations"),
        (
            {"stop": 'stop = {"info/learner/default_policy/learner_stats/entropi" = 1}'},
            "sweep: stop info/learner/default_policy/learner_stats/entropi: results have no such key",
        ),
        ({"env": "env = 'tictactow'"}, "menv sweep: error: env: 'tictactow' is not known, expected"),
    ],
)
def test_what_is_wrong_in_every_trial_ends_the_sweep(
    folder: Path, capsys: pytest.CaptureFixture[str], replaced: dict[str, str], error: str
) -> None:
    write(**replaced)
    assert main(["sweep", "sweep.toml", "--jobs", "2"]) == 2
    err = capsys.readouterr().err
    assert error in err
    assert not Path("runs/sweep").exists()


@pytest.mark.slow
def test_a_trial_without_the_metric_fails_alone_once_another_has_reported_it(folder: Path) -> None:
    write(
        seeds="metric = 'evaluation/episode_len_mean'",
        stop="stop = {training_iteration = 1}",
        lr="evaluation_interval = {choice = [0, 1]}",
        model="",
    )
    assert main(["sweep", "sweep.toml", "--trials", "3"]) == 0
    # The sampler of Optuna has a seed.
    assert [one["state"] for one in table()] == ["complete", "complete", "fail"]
    assert "this run makes no evaluations" in table()[2]["error"]


@pytest.mark.slow
def test_a_metric_of_a_policy_that_never_joins_ends_the_sweep_after_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(seeds="metric = 'policy_reward_mean/absent'")
    assert main(["sweep", "sweep.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no result of a whole run has a number of policy_reward_mean/absent, expected one" in line
    # What was trained is not deleted.
    assert [one.name for one in Path("runs/sweep").glob("trial-*")] == ["trial-000-seed-0"]
