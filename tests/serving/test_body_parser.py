"""The process that reads large bodies: killed, too slow, short of memory, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from menv.serving import Limits
from menv.serving.body_parser import BodyParserPool
from menv.serving.protocol import Episodes
from tests.house.sources import ROOT
from tests.serving.receiving import ALONE, INLINE, Receiving, ask, large, receiving, wait_for
from tests.serving.test_large_bodies import PING, an_episode

BODY = large({"type": "EPISODES", "episodes": [an_episode(5)]})


def is_there(pid: int) -> bool:
    """Return whether a process runs, or waits for somebody to ask how it ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def stopped_one(one: Receiving, client: Any) -> int:
    """Return the process that reads large bodies, standing still."""
    client.send(BODY)
    assert client.ask(PING) == b'{"type":"PONG"}'
    one.played()
    pid = one.pid()
    os.kill(pid, signal.SIGSTOP)
    return pid


def under_way(one: Receiving) -> bool:
    # Bodies are handed over in the round of the loop in which they begin to wait.
    return bool(one.parsers._waiting)


def test_a_body_whose_process_is_killed_is_read_by_the_next_one() -> None:
    with receiving() as one, one.client() as client:
        pid = stopped_one(one, client)
        client.send(BODY)
        wait_for(lambda: under_way(one))
        os.kill(pid, signal.SIGKILL)
        assert client.ask(PING) == b'{"type":"PONG"}'
        assert len(one.played()) == 1
        assert one.pid() != pid
        assert not is_there(pid)


def test_who_kills_two_processes_with_a_body_loses_the_connection_and_others_are_read() -> None:
    with receiving() as one, one.client() as bad, one.client() as good:
        pid = stopped_one(one, bad)
        bad.send(BODY)
        wait_for(lambda: under_way(one))
        good.send(BODY)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: one.parsers.pid not in (pid, None))
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.parsers.pid, signal.SIGKILL)
        answer = json.loads(bad.receive())
        assert answer["code"] == "internal"
        assert bad.rest() == b""
        assert good.ask(PING) == b'{"type":"PONG"}'
        assert len(one.played()) == 1


def test_a_body_that_takes_too_long_is_refused_and_the_next_one_is_read() -> None:
    with receiving(handshake_s=1.0) as one, one.client() as slow, one.client() as other:
        assert other.ask(PING) == b'{"type":"PONG"}'
        pid = stopped_one(one, slow)
        slow.send(BODY)
        wait_for(lambda: under_way(one))
        other.send(BODY)
        assert json.loads(slow.receive())["code"] == "too_slow"
        assert other.ask(PING) == b'{"type":"PONG"}'
        assert slow.ask(PING) == b'{"type":"PONG"}'
        assert len(one.played()) == 1
        assert not is_there(pid)


def test_a_body_that_is_dropped_leaves_the_next_one_its_time() -> None:
    async def last() -> Any:
        pool = BodyParserPool(ALONE, Limits(inline_body=INLINE, handshake_s=1.0))
        try:
            await pool.parse(BODY, 32)
            assert pool.pid is not None
            os.kill(pool.pid, signal.SIGSTOP)
            dropped = asyncio.ensure_future(pool.parse(BODY, 32))
            await asyncio.sleep(0.1)
            dropped.cancel()
            return await pool.parse(BODY, 32)
        finally:
            pool.stop()

    request, episodes, _ = asyncio.run(last())
    assert isinstance(request, Episodes)
    assert len(episodes) == 1


def test_what_a_client_sent_before_it_left_is_taken_all_the_same() -> None:
    with receiving() as one, one.client() as other:
        pid = stopped_one(one, other)
        for number in range(3):
            client = one.client()
            client.send(BODY)
            wait_for(partial(lambda number: one.parsers._waiting == number * len(BODY), number + 1))
            client.reset()
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: len(one.sessions.connected) == 1)
        assert other.ask(PING) == b'{"type":"PONG"}'
        assert one.parsers._waiting == 0
        assert len(one.played()) == 3


def _wait_for_two(one: Receiving) -> None:
    wait_for(lambda: under_way(one) and one.parsers._waiting == 2 * len(BODY))


def test_nothing_is_left_when_a_server_stops_with_bodies_under_way() -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with receiving() as one, one.client() as client:
        stopped_one(one, client)
        one.parsers.stop()
    before = open_files()
    for _ in range(3):
        with receiving() as one, one.client() as client, one.client() as other:
            pid = stopped_one(one, client)
            client.send(BODY)
            other.send(BODY)
            _wait_for_two(one)
            one.server.stop()
            one.parsers.stop()
            assert not is_there(pid)
    assert open_files() <= before


def test_stopping_twice_and_without_a_body_is_fine() -> None:
    with receiving() as one:
        one.parsers.stop()
        one.parsers.stop()
        assert one.parsers.pid is None


def test_a_process_that_has_ended_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as one, one.client() as client:
        client.send(BODY)
        assert client.ask(PING) == b'{"type":"PONG"}'
        pid = one.pid()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: pid not in [child.pid for child in multiprocessing.active_children()])
        sent: list[object] = []
        with monkeypatch.context() as patched:
            patched.setattr("os.kill", lambda *signal_: sent.append(signal_))
            one.parsers.stop()
        assert not sent


SERVER = """
import sys, time
from tests.serving.receiving import receiving
with receiving() as one, one.client() as client:
    client.send(b" " * 4000 + b'{"type": "EPISODES", "episodes": []}')
    while not one.parsers.parsed:
        time.sleep(0.01)
    print(one.pid(), flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
def test_the_process_ends_when_its_server_is_killed(how: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_there(pid)
        server.send_signal(how)
        server.wait()
        wait_for(lambda: not is_there(pid) or _is_a_zombie(pid))


def _is_a_zombie(pid: int) -> bool:
    """Return whether a process has ended and nobody has asked how, which is up to whoever adopts it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_interrupt_from_the_keyboard_is_the_servers() -> None:
    with receiving() as one, one.client() as client:
        client.send(BODY)
        assert client.ask(PING) == b'{"type":"PONG"}'
        pid = one.pid()
        os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        client.send(BODY)
        assert client.ask(PING) == b'{"type":"PONG"}'
        assert (len(one.played()), one.pid()) == (2, pid)


def test_a_body_that_needs_more_memory_than_there_is_for_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("menv.serving.body_parser.MEMORY_FACTOR", 0)
    with receiving(max_body=40_000_000) as one, one.client() as client:
        rows = b",".join([b"[0,0,0,0]"] * 2_000_000)
        episode = b'{"is_terminated": true, "is_truncated": true, "obs": [%b]}' % rows
        answer = json.loads(client.ask(b'{"type": "EPISODES", "episodes": [%b]}' % episode))
        assert answer["code"] == "too_large"
        assert ask(client, "PING") == {"type": "PONG"}
        assert one.parsers.parsed == 1


def test_a_fault_on_the_way_to_the_process_is_noted_and_costs_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(*_: object) -> None:
        raise ZeroDivisionError

    with receiving(faults=1) as one, one.client() as client, one.client() as other:
        with monkeypatch.context() as patched:
            patched.setattr(one.parsers, "_in_turn", fails)
            assert json.loads(client.ask(BODY))["code"] == "internal"
            assert client.rest() == b""
        other.send(BODY)
        assert other.ask(PING) == b'{"type":"PONG"}'
        assert len(one.played()) == 1


def test_bodies_are_read_here_where_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o755)
    resource_tracker.ensure_running()
    before = multiprocessing.active_children()
    monkeypatch.setattr("menv.serving.body_parser._START_S", 0.5)
    for executable in ("/no/such/file", "/bin/false", hangs):
        monkeypatch.setattr("multiprocessing.spawn._python_exe", os.fsencode(executable))
        with receiving() as one, one.client() as client:
            for _ in range(2):
                client.send(BODY)
                assert client.ask(PING) == b'{"type":"PONG"}'
            assert len(one.played()) == 2
            assert (one.parsers.usable, one.parsers.parsed) == (False, 0)
            wait_for(lambda: set(multiprocessing.active_children()) <= set(before))
