"""What an environment leaves running, however it was started, and what is not its fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from menv.checking import check_env
from tests.bad_input.broken_envs import GOOD, FaultyGym

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell of all children")


class Quiet(FaultyGym):
    """Nothing is wrong with it."""

    def observe(self) -> Any:
        return GOOD.copy()


class Simulated(Quiet):
    """Its simulator is a program of its own, which nobody closes."""

    started: list[subprocess.Popen[bytes]]

    def __init__(self, context: Any = None) -> None:
        super().__init__()
        self.simulator = subprocess.Popen(SLEEPER)
        self.started.append(self.simulator)


@pytest.fixture(autouse=True)
def simulators() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Has all simulators, and ends those that are left."""
    Simulated.started = []
    yield Simulated.started
    for one in Simulated.started:
        one.kill()
        one.wait()


def left_by(env: Any) -> list[str]:
    """Return what the findings say of processes that are left."""
    found = {one.code: one.message for one in check_env(env, env_steps=20)}
    assert set(found) <= {"ME082"}, found
    return list(found.values())


def test_simulators_that_close_leaves_running_are_named(simulators: list[Any]) -> None:
    (message,) = left_by(Simulated)
    assert "still running after close" in message
    assert any(f"(process {one.pid})" in message for one in simulators)
    assert all(one.poll() is None for one in simulators)


@pytest.mark.slow
def test_children_of_a_fork_are_named_too() -> None:
    children: list[int] = []

    class Forking(Quiet):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            child = os.fork()
            if not child:
                os.execv(SLEEPER[0], SLEEPER)
            children.append(child)

    try:
        (message,) = left_by(Forking)
        assert any(f"(process {child})" in message for child in children)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.parametrize("waits", [False, True])
def test_simulators_that_close_has_ended_are_not_there(waits: bool) -> None:
    class Closing(Simulated):
        def close(self) -> None:
            self.simulator.kill()
            if waits:
                self.simulator.wait()

    assert left_by(Closing) == []


def test_what_ran_before_is_not_the_environments(simulators: list[Any]) -> None:
    simulators.append(subprocess.Popen(SLEEPER))
    assert left_by(Quiet) == []


def test_helpers_that_python_starts_for_itself_are_not_the_environments() -> None:
    # In a program of its own, in which there are none yet.
    program = """
import multiprocessing, time
from multiprocessing import resource_tracker, shared_memory
from tests.checking.test_closing import Quiet
from menv.checking import check_env

class Shared(Quiet):
    def __init__(self, context=None):
        super().__init__()
        self.memory = shared_memory.SharedMemory(create=True, size=64)
        self.process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,))
        self.process.start()

    def close(self):
        if self.process is not None:
            self.memory.close()
            self.memory.unlink()
            self.process.kill()
            self.process.join()
            self.process = None

found = check_env(Shared, env_steps=20)
assert resource_tracker._resource_tracker._pid and multiprocessing.forkserver._forkserver._forkserver_pid
print([str(one) for one in found])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
