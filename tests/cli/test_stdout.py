"""What is printed goes nowhere, or cannot be printed: the run is saved, and no command shows a traceback."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from menv.cli.main import main
from tests.house.sources import ROOT

COMMAND = [sys.executable, "-m", "menv.cli"]
SMALL = ["--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64"]
ENDLESS = [*COMMAND, "train", "corridors:Corridor", *SMALL, "--run-dir", "run"]
ONCE = [*SMALL, "--stop", "training_iteration=1"]
# As a shell starts it: what is printed is held back until there is much of it.
AS_EVER = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
ENV = {**AS_EVER, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def closed() -> Iterator[int]:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def ended(stdout: int, *command: str) -> tuple[int, list[str]]:
    """Return the exit status of a command and the lines that it wrote to stderr."""
    done = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=ENV, timeout=120, check=False
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.slow_unless("table")
@pytest.mark.parametrize("how", ["table", "--json"])
def test_a_run_whose_reader_has_gone_ends_with_a_checkpoint(folder: Path, closed: int, how: str) -> None:
    status, (said,) = ended(closed, *ENDLESS, *([how] if how.startswith("-") else []))
    assert status == 1
    assert said.startswith("menv train: error: stdout: ")
    assert Path("run/checkpoints/LATEST").read_text().strip() == "000001"


@pytest.mark.slow
def test_a_run_whose_disk_is_full_ends_with_a_checkpoint_that_is_elsewhere(folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        status, (said,) = ended(full.fileno(), *ENDLESS)
    assert (status, "No space left on device" in said) == (1, True)
    assert Path("run/checkpoints/LATEST").read_text().strip() == "000001"


@pytest.mark.slow
def test_ctrl_c_that_ends_the_reader_too_leaves_a_checkpoint(folder: Path) -> None:
    with subprocess.Popen(
        ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENV
    ) as run:
        assert run.stdout is not None
        seen = [run.stdout.readline() for _ in range(5)]
        # While it stands still, so that both are there when it goes on.
        run.send_signal(signal.SIGSTOP)
        run.stdout.close()
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGCONT)
        assert run.wait(timeout=120) == 128 + signal.SIGINT
    assert int(Path("run/checkpoints/LATEST").read_text()) >= int(seen[-1].split()[0])


@pytest.mark.slow_unless("show", "check")
@pytest.mark.parametrize("command", ["show", "evaluate", "check", "verify"])
def test_a_command_whose_reader_has_gone_ends_without_a_word(folder: Path, closed: int, command: str) -> None:
    asked = {
        "show": ["run"],
        "evaluate": ["run", "--env", "corridors:Corridor", "--episodes", "2"],
        "check": ["corridors:Corridor"],
        "verify": ["corridors:Corridor", "--envs", "2", "--steps", "20"],
    }
    main(["train", "corridors:Corridor", *ONCE, "--run-dir", "run"])
    assert ended(closed, *COMMAND, command, *asked[command]) == (1, [])


@pytest.mark.slow_unless("check")
@pytest.mark.parametrize("command", ["check", "verify"])
def test_ctrl_c_ends_a_command_without_a_word(folder: Path, command: str) -> None:
    asked = [*COMMAND, command, "corridors:Stands"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "it stands\n"
            run.send_signal(signal.SIGINT)
            assert run.communicate(timeout=120) == ("", "")
        finally:
            run.kill()
    assert run.returncode == 128 + signal.SIGINT


def test_what_an_environment_raises_in_verify_is_shown_and_one_line(folder: Path) -> None:
    with open(os.devnull, "wb") as nowhere:
        status, said = ended(nowhere.fileno(), *COMMAND, "verify", "corridors:Falls")
    assert (status, said[-2]) == (1, "ValueError: it falls")
    assert said[-1].startswith("menv verify: error: env 0 reset, env step 0: raised ValueError: it falls")
    assert not any(os.path.join("menv", "verify") in line for line in said)
