"""SIGTERM and SIGHUP save a run as Ctrl-C does, and a job that is started again goes on with its run."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from menv.algorithms import PPO
from menv.cli.main import main
from menv.tracking import Run, Tracker
from tests.house.sources import ROOT

SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}
OPTIONS = [word for key, value in SMALL.items() for word in ("--config", f"{key}={value}")]
TRAIN = [sys.executable, "-m", "menv.cli", "train", "tictactoe", "--no-zoo", *OPTIONS, "--run-dir", "run"]
SCRIPT = f"""
from menv import DefaultCallbacks
from menv.algorithms import PPO

class Says(DefaultCallbacks):
    def on_train_result(self, **kwargs):
        print("iteration", flush=True)

with PPO(env="tictactoe", config={{**{SMALL}, "callbacks": Says}}) as algo:
    try:
        algo.learn(10**12, run_dir="run")
    except KeyboardInterrupt:
        print("goes on", flush=True)
    finally:
        print("leaves", flush=True)
"""
SIGNALS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def started() -> Iterator[Any]:
    """A function that starts a program and returns it once it has printed a line that contains a text."""
    programs: list[subprocess.Popen[str]] = []

    def start(command: list[str], text: str, before: str = "") -> subprocess.Popen[str]:
        shell = ["bash", "-c", f'{before} exec "$@"', "bash"]
        program = subprocess.Popen(
            [*shell, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        programs.append(program)
        assert program.stdout is not None
        assert any(text in line for line in program.stdout)
        return program

    yield start
    for program in programs:
        with program:
            program.kill()


def iterations() -> int:
    return int(Path("run/checkpoints/LATEST").read_text())


@pytest.mark.slow_unless("15")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_script_that_is_terminated_while_it_learns_saves_the_run_and_ends(
    started: Any, number: signal.Signals
) -> None:
    # As in what a shell starts in the background.
    script = started([sys.executable, "-c", SCRIPT], "iteration", 'trap "" INT;')
    # A service manager and a closing terminal send several signals at once.
    for one in (number, *SIGNALS):
        script.send_signal(one)
    said, _ = script.communicate(timeout=60)
    ended = signal.Signals(script.returncode - 128)
    assert ended in SIGNALS, said
    assert iterations() == len(list(Run("run").results())) >= 1
    assert f"ended by {ended.name}; PPO.from_checkpoint('run') resumes the run" in said
    assert "leaves" in said
    assert "goes on" not in said


class Handlers(Tracker):
    """Notes the handlers while a run is under way."""

    def result(self, result: Any) -> None:
        self.seen = [signal.getsignal(number) for number in SIGNALS]


def seen_while_learning(**how: Any) -> list[Any]:
    handlers = Handlers()
    with PPO(env="tictactoe", config=SMALL) as algo:
        algo.learn(64, trackers=[handlers], **how)
    return handlers.seen


@pytest.fixture
def default_handlers() -> Iterator[list[Any]]:
    """Ray sets a handler of SIGTERM wherever it was started before."""
    default = [signal.SIG_DFL] * len(SIGNALS)
    before = [signal.signal(number, handler) for number, handler in zip(SIGNALS, default, strict=True)]
    yield default
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def test_handlers_of_a_program_its_threads_and_runs_that_save_nothing_keep_their_signals(
    default_handlers: list[Any],
) -> None:
    default = default_handlers
    assert signal.SIG_DFL not in seen_while_learning(run_dir="saved")
    assert [signal.getsignal(number) for number in SIGNALS] == default
    assert seen_while_learning() == default
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(seen_while_learning(run_dir="thread")))
    thread.start()
    thread.join()
    assert found == default
    own: list[Any] = [lambda *_: None, signal.SIG_IGN]
    for number, handler in zip(SIGNALS, own, strict=True):
        signal.signal(number, handler)
    assert seen_while_learning(run_dir="own") == own
    assert [signal.getsignal(number) for number in SIGNALS] == own


def test_a_terminal_that_closes_ends_training_with_a_checkpoint() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(TRAIN[0], TRAIN)
    while not Path("run/progress.csv").exists() or Run("run").progress()["training_iteration"].size < 2:
        assert os.read(terminal, 1 << 16)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    assert iterations() == Run("run").progress()["training_iteration"][-1] >= 2


@pytest.mark.slow
def test_nohup_keeps_a_run_alive_when_its_terminal_closes(started: Any) -> None:
    run = started([*TRAIN, "--json"], "training_iteration", 'trap "" HUP;')
    run.send_signal(signal.SIGHUP)
    assert "training_iteration" in run.stdout.readline()
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM


def test_a_job_that_is_started_again_continues_where_it_was_saved(started: Any) -> None:
    job = [*TRAIN, "--policies", "per-agent", "--seed", "3", "--resume-or-start"]
    # Lines are printed before the run folder is written.
    killed = started([*job, "--json"], '"training_iteration": 3')
    killed.kill()
    killed.communicate()
    # It has saved nothing, so the second attempt begins anew.
    assert not Path("run/checkpoints").exists()
    assert len(list(Run("run").results())) >= 2
    terminated = started([*job, "--json"], "training_iteration")
    terminated.send_signal(signal.SIGTERM)
    terminated.communicate(timeout=60)
    done = iterations()
    assert done >= 1
    stop = ["--stop", f"training_iteration={done + 2}"]
    for _ in range(2):
        # A job that is started once more has nothing to do.
        assert main([*job[3:], *stop]) == 0
        assert [one["training_iteration"] for one in Run("run").results()] == list(range(1, done + 3))
        assert iterations() == done + 2


@pytest.mark.parametrize("wrong", [[], ["--resume", "run", "--run-dir", "run"]])
def test_an_attempt_has_to_name_its_run_folder(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tictactoe", "--resume-or-start", *wrong]) == 2
    assert "--run-dir DIR --resume-or-start" in capsys.readouterr().err
