"""Both engines: a process that ends costs what it was asked, and nothing else."""

import os
import signal
import threading
import time

import pytest

from menv.errors import WorkerLostError
from tests.engines.homes import Counter
from tests.engines.peers import Engine, RemoteActor, asked, make_engine, started
from tests.engines.processes import PATIENCE_S, children, descriptors, eventually, lives

WAYS = {
    "killed": "SIGKILL",
    "exit": "exit code 3",
    "sys.exit": "exit code 4",
    "crash": "SIGSEGV",
}


@pytest.mark.parametrize("how", WAYS)
def test_a_process_that_ends_is_reported_with_its_pid_and_last_output(engine: Engine, how: str) -> None:
    peer, other = started(engine), started(engine, label="worker 2")
    words = "\n".join(f"word {number}" for number in range(30))
    peer.ask(Counter.dies, how, words)
    peer.ask(Counter.add, 1)
    other.ask(Counter.add, 1)
    for _ in range(2):
        with pytest.raises(WorkerLostError, match=rf"^worker 1 \(pid {peer.pid}") as caught:
            peer.answer()
    told = str(caught.value)
    if how == "crash":
        assert "Segmentation fault" in told or engine.name == "process"
    else:
        assert told.endswith("\nword 28\nword 29")
        assert "word 9\n" not in told
    assert WAYS[how] in told or engine.name == "ray"
    assert other.answer() == 1


def test_an_answer_that_arrived_earlier_is_not_lost(engine: Engine) -> None:
    peer = started(engine)
    peer.ask(Counter.add, 5)
    if engine.name == "ray":
        # There an answer leaves in a thread that an exit cuts off.
        assert engine.wait([peer], PATIENCE_S) == [peer]
    peer.ask(Counter.dies, "exit")
    assert peer.answer() == 5
    with pytest.raises(WorkerLostError):
        peer.answer()
    with pytest.raises(WorkerLostError):
        asked(peer, Counter.add, 1)


def test_a_killed_peer_wakes_all_waiting_threads(engine: Engine) -> None:
    peer, other = started(engine), started(engine, label="worker 2")
    peer.ask(Counter.sleep, 60.0)
    other.ask(Counter.sleep, 60.0)
    assert peer.pid is not None
    os.kill(peer.pid, signal.SIGKILL)
    assert engine.wait([other, peer], 30.0) == [peer]
    with pytest.raises(WorkerLostError, match="worker 1"):
        peer.answer()


@pytest.mark.parametrize("how", ["answer", "wait"])
def test_stopping_in_one_thread_wakes_another_one_that_waits(engine: Engine, how: str) -> None:
    for _ in range(3 if engine.name == "process" else 1):
        # The first one's descriptor has the lowest number, which is given away first.
        peers = [engine.start(Counter, label=f"worker {number}") for number in (1, 2)]
        for peer in peers:
            assert peer.answer() is None
            peer.ask(Counter.sleep, 60.0)
        lost: list[bool] = []

        def listen(peers: list[RemoteActor] = peers, lost: list[bool] = lost) -> None:
            if how == "wait":
                assert engine.wait(peers)
            with pytest.raises(WorkerLostError):
                peers[0].answer()
            lost.append(True)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        time.sleep(0.1)
        engine.stop(grace=0.2)
        thread.join(PATIENCE_S)
        assert lost == [True]


def test_a_peer_that_is_killed_has_lost_what_it_was_asked(engine: Engine) -> None:
    peer, other = started(engine), started(engine, label="worker 2")
    pid = peer.pid
    assert pid is not None
    peer.ask(Counter.sleep, 60.0)
    other.ask(Counter.sleep, 0.1)
    peer.kill()
    peer.kill()
    assert engine.wait([other, peer]) == [peer]
    with pytest.raises(WorkerLostError, match="worker 1"):
        peer.answer()
    # It answers each later request with the same error, at once.
    peer.ask(Counter.add, 1)
    assert engine.wait([other, peer]) == [peer]
    with pytest.raises(WorkerLostError):
        peer.answer()
    eventually(lambda: not lives(pid))
    assert other.answer() == 0.1


@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_a_child_that_an_object_leaves_behind_ends_with_it(ends: str) -> None:
    engine = make_engine("process")
    peer = started(engine)
    child = asked(peer, Counter.forks)
    assert lives(child)
    if ends == "killed":
        peer.ask(Counter.dies, "killed")
        with pytest.raises(WorkerLostError):
            peer.answer()
    engine.stop()
    eventually(lambda: not lives(child))
    assert peer.pending == 0


def cycle(engine: Engine, number: int) -> None:
    """Start one, and kill it before or after it has answered."""
    peer = engine.start(Counter, label=f"worker {number}")
    if number % 2:
        peer.answer()
    peer.ask(Counter.echo, b"x" * 100_000)
    peer.kill()
    for _ in range(peer.pending):
        with pytest.raises(WorkerLostError):
            peer.answer()


@pytest.mark.slow
def test_starting_and_killing_leaves_nothing_open(engine: Engine) -> None:
    for number in range(2):
        cycle(engine, number)
    known, open_before = children(), descriptors()
    for number in range(30 if engine.name == "process" else 4):
        cycle(engine, number)
    # A connection of Ray's to the last ones may take a moment to close.
    eventually(lambda: descriptors() <= open_before + 2)
    eventually(lambda: children() <= known)
