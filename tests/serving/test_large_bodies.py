"""Large bodies, read by a process beside the server: their order, who waits, and a process that dies or is slow."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.adapters.episode_channel import ChannelStep
from menv.env_context import InputContext
from menv.serving import Access, Limits
from menv.serving.body_parser import BodyParserPool
from menv.serving.episodes import from_pieces, in_pieces, read_episode
from menv.serving.protocol import BadMessageError, Episodes, WireFormat, to_raw
from tests.house.sources import ROOT
from tests.serving import corpus
from tests.serving.corpus import EPISODE, MALFORMED, RICH, several_agents
from tests.serving.doors import HTTP, PATIENCE_S, Client, Door, every_door
from tests.serving.receiving import (
    ALONE,
    INLINE,
    TOGETHER,
    Receiving,
    ask,
    large,
    padded,
    receiving,
    wait_for,
)
from tests.serving.spaces import same, spaces

S = corpus.S
PING = b'{"type": "PING"}'
EVERYWHERE = 10**9


def an_episode(steps: int, seed: int = 0, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.uniform(-10, 10, (steps + 1, 4)).tolist(), "actions": rng.integers(0, 2, steps).tolist(),
        "rewards": rng.normal(size=steps).tolist(), "is_terminated": True, "is_truncated": False, **more,
    }  # fmt: skip


def moves_of(pieces: list[Any]) -> list[Any]:
    """Return everything in pieces of episodes, for `same`."""
    return [
        [
            [piece.env_steps, piece.terminated, piece.truncated, piece.weights_seq_no or -1],
            {
                str(agent): {
                    field.name: value
                    for field in dataclasses.fields(moves)
                    if (value := getattr(moves, field.name)) is not None
                }
                for agent, moves in piece.agents.items()
            },
        ]
        for piece in pieces
    ]


def brought(ioctx: InputContext, body: bytes, inline_body: int) -> Any:
    """Return what comes in of a body, and how many were read elsewhere."""
    with receiving(ioctx, inline_body=inline_body) as one, one.client() as client:
        client.send(body)
        assert client.ask(PING) == b'{"type":"PONG"}'
        return moves_of(one.played()), one.parsers.parsed


MANY: dict[str, tuple[InputContext, dict[str, Any]]] = {
    "short ones": (
        ALONE,
        {"type": "EPISODES", "episodes": [an_episode(n % 4, n, id=str(n)) for n in range(300)]},
    ),
    "a long one": (ALONE, {"type": "EPISODES", "episodes": [an_episode(5_000)]}),
    "all columns": (
        ALONE,
        {
            "type": "EPISODES",
            "weights_seq_no": 4,
            "episodes": [{**RICH, "id": str(n), "t": 0} for n in range(50)],
        },
    ),
    "several agents": (
        TOGETHER,
        {"type": "EPISODES", "episodes": [{**corpus.TOGETHER, "id": str(n)} for n in range(50)]},
    ),
}


@pytest.mark.slow_unless("json-all columns", "msgpack-several agents")
@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode], ids=["json", "msgpack"])
def test_the_same_comes_in_whoever_reads_it(name: str, encode: Any) -> None:
    ioctx, message = MANY[name]
    body = encode(message)
    assert len(body) > INLINE
    here, none = brought(ioctx, body, EVERYWHERE)
    elsewhere, one = brought(ioctx, body, INLINE)
    assert (none, one) == (0, 1)
    assert len(here) == len(message["episodes"])
    assert same(here, elsewhere)


@given(data=st.data(), dialect=st.sampled_from(WireFormat))
@settings(deadline=None, max_examples=60)
def test_episodes_in_any_spaces_are_the_same_after_their_way_between_processes(
    data: Any, dialect: WireFormat
) -> None:
    observation, action, steps = data.draw(spaces), data.draw(spaces), data.draw(st.integers(0, 40))
    both = (observation, action)
    fields = {
        "obs": [observation.sample() for _ in range(steps + 1)], "actions": [action.sample() for _ in range(steps)],
        "rewards": [0.5] * steps, "is_terminated": True, "is_truncated": False,
    }  # fmt: skip
    read = read_episode(to_raw(fields, dialect), lambda _: both, dialect)
    *pauses, again = from_pieces(in_pieces(read), lambda _: both)
    assert again is not None
    assert set(pauses) <= {None}
    for name in ("obs", "actions", "rewards"):
        assert same(getattr(read, name), getattr(again, name))


def test_a_long_column_of_composite_observations_is_read_in_many_small_steps() -> None:
    obs = [{**corpus.SEEN, "word": "ab"}] * 4_001
    fields = {**EPISODE, "obs": obs, "actions": [0] * 4_000, "rewards": [0] * 4_000}
    both = several_agents("masked")
    read = read_episode(to_raw(fields, WireFormat.JSON), lambda _: both, WireFormat.JSON)
    *pauses, again = from_pieces(in_pieces(read), lambda _: both)
    assert len(pauses) > 10
    assert again is not None
    assert same(read.obs, again.obs)


def answers(ioctx: InputContext, inline_body: int) -> dict[str, bytes]:
    """Return what is answered to each malformed body in JSON, made long."""
    found = {}
    with receiving(ioctx, inline_body=inline_body, max_body=50_000_000) as one:
        for name, (body, _) in MALFORMED.items():
            if body.startswith(b"{"):
                with one.client() as client:
                    ask(client, "START_EPISODE", episode_id="e")
                    found[name] = client.ask(padded(body))
    return found


@pytest.mark.parametrize("ioctx", [ALONE, TOGETHER], ids=["one agent", "several agents"])
def test_the_same_is_wrong_with_a_message_whoever_reads_it(ioctx: InputContext) -> None:
    here, elsewhere = answers(ioctx, EVERYWHERE), answers(ioctx, INLINE)
    assert len(here) > 20
    assert here == elsewhere
    assert all(json.loads(answer)["type"] == "ERROR" for answer in here.values())


def test_a_message_that_was_read_elsewhere_is_answered_in_its_own_dialect_with_its_number() -> None:
    image = InputContext(observation_space=S.Box(0, 255, (64, 64), np.uint8), action_space=corpus.ACTIONS)
    obs = np.arange(64 * 64).reshape(64, 64) % 256
    with receiving(image) as one, one.client() as client:
        for name, encode, decode in (
            ("j", msgspec.json.encode, msgspec.json.decode),
            ("m", msgspec.msgpack.encode, msgspec.msgpack.decode),
        ):
            assert ask(client, "START_EPISODE", episode_id=name, seq=0)["type"] == "EPISODE"
            turn: dict[str, Any] = {
                "episode_id": name,
                "observation": obs.tolist(),
                "info": {"a": [1, None]},
                "reward": 0.5,
            }
            taken = client.ask(encode({"type": "LOG_ACTION", "action": 1, "seq": 1, **turn}))
            assert decode(taken) == {"type": "OK", "seq": 1}
            wrong = {**turn, "observation": [*turn["observation"][:-1], [256] * 64]}
            refused = decode(client.ask(encode({"type": "GET_ACTION", "seq": 2, **wrong})))
            assert (refused["code"], refused["seq"]) == ("out_of_range", 2)
            ended = client.ask(encode({"type": "END_EPISODE", "seq": 2, **turn}))
            assert decode(ended) == {"type": "OK", "seq": 2}
        assert one.parsers.parsed == 6
        for line in one.board.collect(0.0):
            for said in line.steps:
                assert isinstance(said, ChannelStep)
                assert said.obs is not None
                assert same(said.obs["agent0"], obs.astype(np.uint8))


@pytest.mark.slow_unless("tcp", "http")
@every_door
def test_messages_of_a_connection_are_taken_in_their_order_and_others_do_not_wait(door: Door) -> None:
    with (
        receiving(ALONE, door) as one,
        one.client(door) as client,
        Client(door, one.server.addresses[0]) as other,
    ):
        client.send(large({"type": "EPISODES", "episodes": [an_episode(1, id="before")]}))
        wait_for(lambda: one.parsers.parsed)
        assert door is not HTTP or json.loads(client.receive()) == {"type": "OK"}
        pid = one.pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            client.send(large({"type": "EPISODES", "episodes": [an_episode(2, id="first")]}))
            client.send(json.dumps({"type": "EPISODES", "episodes": [an_episode(3, id="second")]}).encode())
            client.send(PING)
            # HTTP connections of one name are one conversation.
            for _ in range(50 * (door is not HTTP)):
                assert other.ask(PING) == b'{"type":"PONG"}'
            assert len(one.played()) == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        answered = [json.loads(client.receive())["type"] for _ in range(3 if door is HTTP else 1)]
        assert answered == (["OK", "OK", "PONG"] if door is HTTP else ["PONG"])
        assert [piece.env_steps for piece in one.played()] == [2, 3]


def test_no_more_is_read_from_a_peer_whose_large_body_is_under_way() -> None:
    with receiving() as one, one.client() as client:
        client.send(large({"type": "EPISODES", "episodes": []}))
        wait_for(lambda: one.parsers.parsed)
        os.kill(one.pid(), signal.SIGSTOP)
        # More than sockets hold, and quickly read.
        body = b" " * 60_000 + large({"type": "EPISODES", "episodes": [an_episode(1)]})
        ended = threading.Event()

        def send() -> None:
            for _ in range(300):
                client.send(body)
            ended.set()

        sending = threading.Thread(target=send)
        sending.start()
        assert not ended.wait(0.5)
        assert one.parsers._waiting <= 2 * len(body)
        os.kill(one.pid(), signal.SIGCONT)
        sending.join()
        assert client.ask(PING) == b'{"type":"PONG"}'
        assert sum(piece.env_steps for piece in one.played()) == 300


def test_more_than_may_wait_is_refused() -> None:
    body = large({"type": "EPISODES", "episodes": [an_episode(5)]})
    with receiving(max_large=len(body) + 10) as one, one.client() as first, one.client() as second:
        first.send(large({"type": "EPISODES", "episodes": []}))
        wait_for(lambda: one.parsers.parsed)
        os.kill(one.pid(), signal.SIGSTOP)
        first.send(body)
        wait_for(lambda: one.parsers._waiting)
        assert json.loads(second.ask(body))["code"] == "too_many"
        os.kill(one.pid(), signal.SIGCONT)
        assert first.ask(PING) == b'{"type":"PONG"}'
        assert len(one.played()) == 1


def test_who_has_shown_no_token_has_nothing_read() -> None:
    with receiving(access=Access(token="a token")) as one:
        with one.client() as stranger:
            refused = json.loads(stranger.ask(large({"type": "EPISODES", "episodes": [an_episode(5)]})))
            assert refused["code"] == "not_allowed"
            assert stranger.rest() == b""
        with one.client() as friend:
            assert ask(friend, "GET_CONFIG", token="a token")["type"] == "SET_CONFIG"
            assert one.parsers.pid is None
            friend.send(large({"type": "EPISODES", "episodes": [an_episode(5)]}))
            assert friend.ask(PING) == b'{"type":"PONG"}'
            assert len(one.played()) == 1


def test_messages_of_one_conversation_over_several_connections_are_taken_in_their_order() -> None:
    with receiving(ALONE, HTTP) as one, one.client(HTTP) as first, one.client(HTTP) as second:
        assert json.loads(first.ask(large({"type": "EPISODES", "episodes": []}))) == {"type": "OK"}
        os.kill(one.pid(), signal.SIGSTOP)
        first.send(large({"type": "EPISODES", "episodes": [an_episode(2)]}))
        wait_for(lambda: one.parsers._waiting)
        second.send(json.dumps({"type": "EPISODES", "episodes": [an_episode(3)]}).encode())
        wait_for(lambda: any(session._waiting for session in list(one.sessions.connected)))
        os.kill(one.pid(), signal.SIGCONT)
        assert json.loads(second.receive()) == json.loads(first.receive()) == {"type": "OK"}
        assert [piece.env_steps for piece in one.played()] == [2, 3]


def test_bodies_of_middle_length_of_many_peers_are_not_all_read_before_others_have_their_turn() -> None:
    with receiving(inline_body=100_000) as one:
        crowd = [one.client() for _ in range(9)]
        for client in crowd:
            assert client.ask(PING) == b'{"type":"PONG"}'
        bodies = [
            json.dumps({"type": "EPISODES", "episodes": [an_episode(800, n)]}).encode() for n in range(8)
        ]
        # The thread is held up until everything lies there, the short one last.
        ready = threading.Event()
        one.server.post(ready.wait)
        for client, body in zip(crowd, bodies, strict=False):
            client.send(body)
            time.sleep(0.01)
        crowd[8].send(json.dumps({"type": "EPISODES", "episodes": [an_episode(1)]}).encode())
        time.sleep(0.1)
        ready.set()
        for client in crowd:
            assert client.ask(PING) == b'{"type":"PONG"}'
            client.leave()
        assert one.parsers.parsed == 0
        steps = [piece.env_steps for piece in one.played()]
        assert sorted(steps) == [1, *[800] * 8]
        assert steps.index(1) < 4


def hostile_bodies(size: int) -> list[bytes]:
    """Return bodies that take long to read, and are refused at their end."""
    rows = size // 14
    ints = {"obs": [[0, 0, 0, 0]] * rows, "actions": [0] * rows, "rewards": [0] * rows}
    keys = {format(n, "x"): 0 for n in range(size // 10)}
    return [
        msgspec.json.encode({"type": "EPISODES", "episodes": [{**EPISODE, **ints}]}),
        msgspec.json.encode({"type": "EPISODES", "episodes": [{**EPISODE, "rewards": []}], **keys}),
    ]


def seconds_to_read(body: bytes) -> float:
    start = time.perf_counter()
    with contextlib.suppress(BadMessageError):
        corpus.take(body)
    return time.perf_counter() - start


@pytest.mark.alone
def test_a_healthy_peer_is_answered_beside_eight_that_send_the_worst_bodies() -> None:
    bodies = hostile_bodies(2_000_000)
    with receiving(inline_body=64_000) as one, one.client() as healthy:
        bad = [one.client() for _ in range(8)]
        crowd = [
            threading.Thread(target=client.ask, args=(bodies[number % 2],))
            for number, client in enumerate(bad)
        ]
        for client in bad:
            client.socket.settimeout(10 * PATIENCE_S)
        for thread in crowd:
            thread.start()
        trips = []
        while any(thread.is_alive() for thread in crowd):
            start = time.perf_counter()
            assert healthy.ask(PING) == b'{"type":"PONG"}'
            trips.append(time.perf_counter() - start)
            time.sleep(0.002)
        assert one.parsers.parsed == 8
        for client in bad:
            client.leave()
    # Each of the eight would hold the healthy one up for at least as long as it takes to read.
    reading = min(seconds_to_read(body) for body in bodies)
    assert sum(trip for trip in trips if trip > reading / 2) < 4 * reading


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


def test_a_body_whose_process_is_killed_is_read_by_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "menv.serving")
    with receiving() as one, one.client() as client:
        pid = stopped_one(one, client)
        client.send(BODY)
        wait_for(lambda: under_way(one))
        os.kill(pid, signal.SIGKILL)
        assert client.ask(PING) == b'{"type":"PONG"}'
        assert len(one.played()) == 1
        assert one.pid() != pid
        assert not is_there(pid)
    assert "the process that parses large messages ended, and is started again" in caplog.messages


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

    request, _, episodes = asyncio.run(last())
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
