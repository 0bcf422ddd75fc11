"""What a whole run of the tests does: what its processes keep together, begin with, and never look through."""

from __future__ import annotations

import faulthandler
import gc
import logging
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import cloudpickle
import pytest
from hypothesis import settings

# A shell ignores Ctrl-C in what it starts in the background, and processes that tests start would inherit that.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test asserts a time, and on a busy machine any example may take long.
settings.register_profile("menv", deadline=None)
settings.load_profile("menv")

ON_RAY = (
    "tests/checkpoints/test_other_machines.py::test_without_ray",
    "tests/engines/",
    "tests/remote_envs/test_as_in_one_process.py",
    "tests/remote_envs/test_losses.py",
    "tests/soak/test_killed_workers.py",
    "tests/tune/",
    "tests/verify/test_verify_backends.py",
    "tests/workers/test_evaluations.py::test_evaluations_are_played_on_ray_as_in_processes",
    "tests/workers/test_learning.py::test_cartpole_is_solved_while_a_worker_is_killed_every_five_seconds",
    "tests/workers/test_on_ray.py",
)
"""Which tests use Ray, beside those whose parameter begins with "ray-"; of several processes, one starts it."""

RAY_CPUS = 4
"""As many as the tests need, whatever there are."""

PROGRAMS = (
    "tests/bundles/test_own_modules.py",
    "tests/docs/",
    "tests/node/",
    "tests/remote_envs/test_page.py",
    "tests/test_benchmarks.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/verify/test_page.py",
)
"""Which tests run programs; one process has their parent, which has imported torch."""

COLD = tuple(f"tests/engines/test_{name}.py" for name in ("drivers", "interrupted_links"))
"""Where engines start processes from nothing: how these begin and end is tested there."""

LONG = ("tests/workers/test_nothing_grows.py",)
"""What would be waited for if it came last, as those above would be."""

TOGETHER = {"programs": PROGRAMS, "house": ("tests/house/",)}
"""Which others are handed out as if they were one file, those of the house because they read all files."""


HANG_S = 900

_stderr = 2
_watched_at = -math.inf


def pytest_configure() -> None:
    global _stderr
    # Before pytest captures what a test writes.
    _stderr = os.dup(2)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """End a run whose test hangs, with the stack of each thread.

    `faulthandler_timeout` of pytest starts a thread for each test and waits for its end, which takes longer than most
    tests where other processes are busy.
    """
    global _watched_at
    if item.get_closest_marker("soak"):
        faulthandler.cancel_dump_traceback_later()
    elif time.monotonic() > _watched_at + HANG_S / 10:
        faulthandler.dump_traceback_later(HANG_S, exit=True, file=_stderr)
        _watched_at = time.monotonic()


def pytest_sessionfinish() -> None:
    # A process that has no tests left waits for the others.
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module", autouse=True)
def _homes_are_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the engine start forks of a process that has imported menv, except where the start is what is tested."""
    with ExitStack() as stack:
        if sys.platform == "linux" and not request.node.nodeid.startswith(COLD):
            from tests.warm_homes import forked_homes

            stack.enter_context(forked_homes())
        yield


@pytest.fixture(scope="module")
def sent_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send what a file of tests defines to other processes as a whole: to import the file would import torch there."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session", autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let menv write temporary files, such as crash capsules, into pytest's folder, which is deleted later."""
    tempfile.tempdir = str(tmp_path_factory.mktemp("temporary"))


@pytest.fixture(scope="session", autouse=True)
def _crashes_need_no_pause() -> Iterator[None]:
    """Replace environments that crash again and again at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("menv.adapters.local_envs.PAUSE", 0.0)
        yield


@pytest.fixture(autouse=True)
def _a_run_without_a_seed_repeats(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the seeds of runs that state none from the test's name: a test passes always or never."""
    monkeypatch.setattr("secrets.randbits", random.Random(request.node.nodeid).getrandbits)


@pytest.fixture(autouse=True)
def _gpu(request: pytest.FixtureRequest) -> None:
    """Skip tests marked `gpu` where torch finds no GPU."""
    if request.node.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("torch finds no GPU here")


@contextmanager
def ray_with_room() -> Iterator[None]:
    """Have a Ray with so many CPUs in this process; others of this machine are not joined.

    One that runs here already, started by whoever needed less, gives way.
    """
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    if ray.is_initialized() and ray.cluster_resources().get("CPU", 0) != RAY_CPUS:
        ray.shutdown()
    mine = not ray.is_initialized()
    if mine:
        ray.init(
            address="local", num_cpus=RAY_CPUS, include_dashboard=False, log_to_driver=False,
            logging_level=logging.ERROR, object_store_memory=400_000_000,
        )  # fmt: skip
    yield
    if mine:
        ray.shutdown()


@pytest.fixture(scope="session")
def running_ray() -> Iterator[None]:
    """Ray, started once for all tests of a process that use it, because that takes seconds."""
    with ray_with_room():
        yield


def on_ray(nodeid: str) -> bool:
    """Return whether a test uses Ray."""
    return nodeid.startswith(ON_RAY) or "[ray-" in nodeid or "-ray-" in nodeid


def mark_slow_ones(items: list[pytest.Item], whole: bool) -> None:
    """Mark the tests of a function as slow unless their parameters match what its `slow_unless` names.

    Raises:
        UsageError: If a function has no such test, though all its tests are here.
    """
    kept: dict[str, bool] = {}
    for item in items:
        if isinstance(item, pytest.Function) and (mark := item.get_closest_marker("slow_unless")):
            name, _, parameters = item.nodeid.partition("[")
            quick = any(fnmatchcase(parameters[:-1], pattern) for pattern in mark.args)
            kept[name] = kept.get(name, False) or quick
            if not quick:
                item.add_marker(pytest.mark.slow)
    if whole and not all(kept.values()):
        names = ", ".join(name for name, quick in kept.items() if not quick)
        raise pytest.UsageError(f"slow_unless names none of the parameters of {names}")


def values_of(item: pytest.Function) -> set[tuple[object, ...]]:
    """Return the value that a test has from each of its `parametrize`."""
    together = [mark.args[0] for mark in item.iter_markers("parametrize")]
    together = [names.replace(",", " ").split() if isinstance(names, str) else names for names in together]
    return {(*names, *(id(item.callspec.params[name]) for name in names)) for names in together}


def mark_other_products(items: list[pytest.Item]) -> None:
    """Mark the tests of a function with `each_value` as slow, but for a few that have each value once."""
    functions: dict[str, dict[pytest.Item, set[tuple[object, ...]]]] = {}
    for item in items:
        quick = not item.get_closest_marker("slow") and item.get_closest_marker("each_value")
        if quick and isinstance(item, pytest.Function):
            functions.setdefault(item.nodeid.partition("[")[0], {})[item] = values_of(item)
    for values in functions.values():
        missing = set[tuple[object, ...]]().union(*values.values())
        while missing:
            kept = max(values, key=lambda item: len(values[item] & missing))
            missing -= values.pop(kept)
        for item in values:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_slow_ones(items, whole=not any("::" in one for one in config.args))
    mark_other_products(items)
    if hasattr(config, "workerinput"):
        first = (*PROGRAMS, *LONG)
        items.sort(key=lambda item: not (on_ray(item.nodeid) or item.nodeid.startswith(first)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    # Thousands of tests and the libraries that they import stay: nothing to look through, now or at each collection.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files, and some as if they were one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if on_ray(nodeid):
                return "on Ray"
            own = (name for name, places in TOGETHER.items() if nodeid.startswith(places))
            return next(own, str(super()._split_scope(nodeid)))

    return Files(config, log)
