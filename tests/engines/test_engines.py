"""Both engines: whoever uses one sees no difference."""

import os
import re
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv.errors import ConfigError, EnvFaultWarning, NoRoomError
from tests.engines.homes import Counter, Stubborn, Unmakeable, raise_secret
from tests.engines.peers import (
    Engine,
    RemoteActor,
    RemoteError,
    RemoteTraceback,
    UnsendableError,
    asked,
    make_engine,
    started,
)
from tests.engines.processes import PATIENCE_S, eventually, files_left, lives, open_files


@pytest.fixture(scope="module", params=["process", pytest.param("ray", marks=pytest.mark.slow)])
def there(request: pytest.FixtureRequest) -> Iterator[RemoteActor]:
    """A peer of each engine for those tests that only ask it: to start one takes a while."""
    if request.param == "ray":
        request.getfixturevalue("running_ray")
    engine = make_engine(request.param)
    peer = started(engine)
    yield peer
    assert peer.pending == 0
    engine.stop(grace=1.0)


def test_an_object_lives_in_another_process_and_keeps_what_it_knows(engine: Engine) -> None:
    peer = started(engine, Counter, 5)
    assert peer.pid not in {None, os.getpid()}
    assert [asked(peer, Counter.add, number) for number in (1, 2)] == [6, 8]
    assert peer.pending == 0


def test_answers_come_in_the_order_of_the_questions(there: RemoteActor) -> None:
    for number in range(50):
        there.ask(Counter.echo, number)
    assert there.pending == 50
    assert [there.answer() for _ in range(50)] == [*range(50)]


@pytest.mark.alone
def test_asking_does_not_wait_for_the_answer(engine: Engine) -> None:
    peer = started(engine)
    before = time.monotonic()
    peer.ask(Counter.sleep, 1.0)
    peer.ask(Counter.echo, np.ones(1_000_000))
    assert time.monotonic() - before < 0.9
    assert peer.answer() == 1.0
    assert peer.answer().sum() == 1_000_000


def test_arrays_arrive_unchanged(there: RemoteActor) -> None:
    for size in (0, 1, 1_000, 10_000_000):
        values: dict[str, Any] = {
            "floats": np.random.default_rng(0).random(size, np.float32),
            "backwards": np.arange(size)[::-2],
            "matrix": np.asfortranarray(np.ones((3, size // 100), np.uint8)),
            "words": np.array(["a", "längere"], object),
            "number": np.float64(size),
        }
        back = asked(there, Counter.echo, values)
        for name, value in values.items():
            np.testing.assert_array_equal(back[name], value)
            assert back[name].dtype == value.dtype


def test_a_parcel_is_packed_once_and_sent_to_many(engine: Engine) -> None:
    peers = [started(engine, label=f"worker {index}") for index in range(3)]
    array = np.arange(100_000)
    parcel, small = engine.put(array), engine.put([1, 2])
    array[:] = 0
    for index, peer in enumerate(peers):
        peer.ask(Counter.add, index, parcel)
        peer.ask(Counter.add, 0, small)
    del parcel
    total = 99_999 * 50_000
    assert [[peer.answer(), peer.answer()] for peer in peers] == [
        [total + index, total + index + 3] for index in range(3)
    ]


def test_large_arrays_need_no_open_files_and_are_writable() -> None:
    engine = make_engine("process")
    peer = started(engine)
    parcel = engine.put(np.full(10_000, -1))
    with files_left(0):
        kept = [asked(peer, Counter.echo, np.full(10_000, number)) for number in range(20)]
        kept.append(asked(peer, Counter.echo, parcel))
    assert [(one == number).all() for number, one in zip([*range(20), -1], kept, strict=True)] == [True] * 21
    for one in kept:
        one[:] = 1
    engine.stop()


@pytest.mark.parametrize("free", [0, 2, 5])
def test_a_process_without_free_file_descriptors_is_named(free: int) -> None:
    engine, there = make_engine("process"), open_files()
    with files_left(free), pytest.raises(NoRoomError, match="worker 1"):
        started(engine)
    # Nothing is left open, and there is room again. A file of an earlier test may have been closed in the meantime.
    assert set(open_files()) <= set(there)
    assert asked(started(engine), Counter.echo, 1) == 1
    engine.stop()


def test_finished_peers_are_returned_in_the_given_order(engine: Engine) -> None:
    slow, *quick = [started(engine, label=f"worker {index}") for index in range(3)]
    slow.ask(Counter.sleep, 1.5)
    for peer in quick:
        peer.ask(Counter.echo, 1)
    eventually(lambda: engine.wait([quick[1], slow, quick[0]], 0.0) == [quick[1], quick[0]])
    assert engine.wait([slow], 0.0) == []
    assert engine.wait([slow, quick[0]]) == [quick[0]]
    assert engine.wait([slow], PATIENCE_S) == [slow]
    assert slow.answer() == 1.5


@pytest.mark.alone
def test_waiting_ends_when_its_time_is_over(engine: Engine) -> None:
    peer = started(engine)
    peer.ask(Counter.sleep, 60.0)
    before = time.monotonic()
    assert engine.wait([peer], 0.3) == []
    assert 0.25 < time.monotonic() - before < 3.0
    peer.kill()


def test_what_a_method_raises_arrives_with_its_remote_traceback(there: RemoteActor) -> None:
    there.ask(Counter.raises, KeyError("a key"))
    there.ask(Counter.echo, 1)
    with pytest.raises(KeyError, match="a key") as caught:
        there.answer()
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in worker 1:" in str(caught.value.__cause__)
    assert "homes.py" in str(caught.value.__cause__)
    assert there.answer() == 1


def test_a_users_exception_keeps_its_class_across_processes(engine: Engine) -> None:
    class OwnError(Exception):
        pass

    def fail() -> None:
        raise OwnError("mine")

    with pytest.raises(OwnError, match="mine"):
        asked(started(engine, lambda: Counter()), Counter.raises, OwnError("mine"))
    with pytest.raises(OwnError, match="mine"):
        started(engine, fail)


def test_an_exception_that_cannot_be_pickled_is_quoted(engine: Engine) -> None:
    with pytest.raises(RemoteError, match="SecretError") as caught:
        started(engine, raise_secret)
    assert "in raise_secret" in str(caught.value.__cause__)


def test_what_names_a_module_that_cannot_be_imported_elsewhere_says_what_to_do(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = types.ModuleType("plugin_of_a_file")
    exec("class Game:\n    def size(self):\n        return 1", plugin.__dict__)
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    said = "'plugin_of_a_file'.*sys.path"
    peer = engine.start(plugin.Game, label="worker 1")
    peer.ask(plugin.Game.size)
    for _ in range(2):
        with pytest.raises(UnsendableError, match=said):
            peer.answer()


def test_an_object_that_cannot_be_made_answers_every_question_with_the_reason(engine: Engine) -> None:
    peer = engine.start(Unmakeable, "no room", label="worker 1")
    peer.ask(Counter.add, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="no room"):
            peer.answer()
    with pytest.raises(ValueError, match="no room"):
        asked(peer, Counter.add, 1)


def test_an_argument_that_cannot_be_pickled_is_named_in_one_line(engine: Engine) -> None:
    peer, lock, own = started(engine), threading.Lock(), Counter()
    own.__dict__["lock_of_mine"] = lock

    class Knowing(Counter):
        shared = lock

        def __init__(self) -> None:
            super().__init__()

    named: list[tuple[Any, str]] = [
        ({"a": [1, lock]}, "args[0]['a'][1] is a lock"),
        ({"steps": (step for step in [1])}, "args[0]['steps'] is a generator"),
        (own, "args[0].lock_of_mine is a lock"),
        (lambda: lock, "args[0]'s variable 'lock' is a lock"),
        (Knowing, "args[0].shared is a lock"),
        (partial(max, key=lock), "args[0].keywords['key'] is a lock"),
    ]
    for value, told in named:
        with pytest.raises(UnsendableError, match=f"^{re.escape(f'worker 1, echo: {told}')}") as caught:
            peer.ask(Counter.echo, value)
        assert len(str(caught.value).splitlines()) == 1
    assert (peer.pending, asked(peer, Counter.echo, 1)) == (0, 1)


def test_one_whose_peer_is_dropped_ends(engine: Engine, tmp_path: Path) -> None:
    peer = make_engine(engine.name).start(Counter, 0, str(tmp_path), label="worker 1")
    peer.answer()
    pid = peer.pid
    assert pid is not None
    del peer
    eventually(lambda: not lives(pid))


def test_objects_are_stopped_before_their_processes_end(engine: Engine, tmp_path: Path) -> None:
    peers = [started(engine, Counter, 0, str(tmp_path), label=f"worker {index}") for index in range(2)]
    pids = [peer.pid for peer in peers]
    engine.stop()
    assert {path.name for path in tmp_path.iterdir()} == set(map(str, pids))
    eventually(lambda: not any(lives(pid) for pid in pids if pid))


@pytest.mark.parametrize("busy", [False, True])
def test_an_object_that_does_not_stop_is_ended_when_its_time_is_over(engine: Engine, busy: bool) -> None:
    peer = started(engine, Stubborn)
    if busy:
        peer.ask(Counter.sleep, 60.0)
    pid, before = peer.pid, time.monotonic()
    assert pid is not None
    # Whoever is busy has a reason.
    with (
        nullcontext()
        if busy
        else pytest.warns(EnvFaultWarning, match=rf"worker 1 \(pid {pid}\): did not end")
    ):
        engine.stop(grace=0.5)
    eventually(lambda: not lives(pid))
    assert time.monotonic() - before < 10.0
    engine.stop()


def test_an_engine_can_be_used_again_after_it_was_stopped(engine: Engine) -> None:
    started(engine)
    engine.stop()
    assert asked(started(engine), Counter.add, 2) == 2


def test_an_unknown_engine_is_refused_and_none_takes_ray_where_it_is() -> None:
    with pytest.raises(ConfigError, match=r"'rray'.*'process', 'ray'"):
        make_engine("rray")  # type: ignore[arg-type]
    assert make_engine("process").name == "process"


@pytest.mark.parametrize(("module", "name", "value"), [(sys, "platform", "win32"), (os, "name", "nt")])
def test_other_processes_are_refused_in_a_line_where_the_system_is_windows(
    module: Any, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, name, value)
        errors = []
        for engine in ("process", None):
            with pytest.raises(ConfigError) as caught:
                make_engine(engine)
            errors.append(str(caught.value))
    assert errors == [errors[0]] * 2
    assert "on Windows, expected Linux or macOS; leave num_workers" in errors[0]
