"""How connections end: peers that vanish and servers that stop, in whatever state a connection is."""

from __future__ import annotations

import gc
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from menv.errors import CallOrderError, ConfigError, ContractError
from menv.serving.transports.server import Server
from menv.serving.transports.tcp import TcpConnection, TcpTransport
from menv.serving.transports.transport import Arrival
from tests.engines.processes import open_files
from tests.house.sources import ROOT
from tests.serving.doors import HTTP, PATIENCE_S, TCP, Client, Door, every_door
from tests.serving.few_descriptors import FEW
from tests.serving.talks import FLOOD, HOLD, LATE, Talks, eventually, meeting, serving


def no_word(one: Client) -> None:
    """Connected, and nothing sent."""


def in_a_header(one: Client) -> None:
    one.raw(one.door.wrap(b"{body")[:3])


def in_a_body(one: Client) -> None:
    one.raw(one.door.wrap(bytes(5_000))[:-1])


def waiting(one: Client) -> None:
    one.send(HOLD)


def waiting_a_little(one: Client) -> None:
    one.send(LATE)


def being_replied_to(one: Client) -> None:
    # More than fits into the buffers between us, so that it is still on its way.
    for _ in range(20):
        one.send(FLOOD)


def half_closed(one: Client) -> None:
    one.send(HOLD)
    one.socket.shutdown(socket.SHUT_WR)


def refused(one: Client) -> None:
    one.raw(b"no protocol\r\n\r\n" * 10)


STATES = (no_word, in_a_header, in_a_body, waiting, waiting_a_little, being_replied_to, half_closed, refused)
every_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)


def the_serving_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "menv-serving"]


def connections_in_memory() -> int:
    gc.collect()
    return sum(issubclass(type(one), (TcpConnection, Arrival, H11Protocol)) for one in gc.get_objects())


@pytest.mark.each_value
@every_door
@every_state
@pytest.mark.parametrize("leave", [Client.leave, Client.reset], ids=["closed", "reset"])
def test_a_peer_that_vanishes_is_gone_for_its_conversation_and_nobody_else(
    door: Door, state: Callable[[Client], None], leave: Callable[[Client], None]
) -> None:
    with serving(door) as (server, talks):
        healthy = Client(door, server.addresses[0])
        leaving = Client(door, server.addresses[0])
        state(leaving)
        assert healthy.ask(b"{before") == b"{before"
        leave(leaving)
        assert eventually(lambda: server.connections == 1)
        assert healthy.ask(b"{after") == b"{after"
        healthy.leave()
        assert eventually(lambda: server.connections == 0)
        # Over HTTP the next connection may go on with the same conversation.
        assert door is HTTP or eventually(lambda: talks.losses == [1] * len(talks.all))


@pytest.mark.each_value
@every_door
@every_state
def test_stop_ends_whatever_is_going_on_and_frees_port_and_thread(
    door: Door, state: Callable[[Client], None]
) -> None:
    server = Server(talks := Talks(), [door.make()])
    talks.late = lambda callback: threading.Timer(0.01, server.post, (callback,)).start()
    server.start()
    one = Client(door, server.addresses[0])
    state(one)
    if state in (waiting, waiting_a_little, being_replied_to, half_closed):
        assert eventually(lambda: talks.bodies)
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < PATIENCE_S
    assert the_serving_threads() == []
    assert server.connections == 0
    assert talks.losses == [1] * len(talks.all)
    assert (server.faults.count, server.faults.kept) == (0, [])
    one.rest()
    one.leave()
    again = Server(Talks(), [door.make(server.addresses[0][1])])
    again.start()
    with Client(door, again.addresses[0]) as two:
        assert two.ask(b"{again") == b"{again"
    again.stop()


@every_door
def test_a_reply_that_is_written_when_the_server_stops_still_arrives(door: Door) -> None:
    server = Server(talks := Talks(), [door.make()])
    server.start()
    one = Client(door, server.addresses[0])
    one.send(HOLD)
    assert eventually(lambda: talks.bodies)

    def reply_and_stop() -> None:
        talks.all[0].held[0](b"{" + bytes(100_000))
        server.stop()

    server.post(reply_and_stop)
    assert one.receive() == b"{" + bytes(100_000)
    one.leave()
    server.stop()
    assert the_serving_threads() == []


def test_stop_may_be_called_twice_and_by_several_threads_and_before_start() -> None:
    server = Server(Talks(), [TcpTransport()])
    server.start()
    threads = [threading.Thread(target=server.stop) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.stop()
    assert the_serving_threads() == []
    server.post(lambda: pytest.fail("the server has stopped"))
    never = Server(Talks(), [TcpTransport()])
    never.stop()
    with pytest.raises(CallOrderError, match=r"Server\.start: called"):
        never.start()


def test_a_conversation_that_blocks_is_named_by_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("menv.serving.transports.server._JOIN_S", 0.2)
    goes_on = threading.Event()
    server = Server(Talks(), [TcpTransport()])
    server.start()
    server.post(goes_on.wait)
    with pytest.raises(ContractError, match=r"Server\.stop: the serving thread is busy"):
        server.stop()
    goes_on.set()
    server.stop()
    assert eventually(lambda: the_serving_threads() == [])


def test_a_server_starts_once() -> None:
    with serving(TCP) as (server, _), pytest.raises(CallOrderError, match="make another Server"):
        server.start()


def test_a_taken_port_is_a_named_error_and_leaves_nothing_running() -> None:
    with serving(TCP) as (server, _):
        before = open_files()
        port = server.addresses[0][1]
        second = Server(Talks(), [TcpTransport(), TcpTransport(port)])
        with pytest.raises(
            ConfigError, match=f"port {port} at 127.0.0.1 is taken .*; choose port=0"
        ) as caught:
            second.start()
        assert isinstance(caught.value.__cause__, OSError)
        assert len(the_serving_threads()) == 1
        gc.collect()
        assert open_files() == before


def test_what_stops_uvicorn_from_starting_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def startup(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(uvicorn.Server, "startup", startup)
    with pytest.raises(ZeroDivisionError):
        Server(Talks(), [HTTP.make()]).start()
    assert the_serving_threads() == []


def test_the_loggers_of_other_servers_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi")]
    caplog.set_level(logging.INFO, "uvicorn.error")
    handler = logging.NullHandler()
    loggers[1].addHandler(handler)
    before = [(one.level, one.propagate, list(one.handlers)) for one in loggers]
    with meeting(HTTP) as (_server, _, one):
        assert one.ask(b"{in") == b"{in"
        one.raw(b"no protocol\r\n\r\n")
        one.rest()
        assert [(one.level, one.propagate, list(one.handlers)) for one in loggers] == before
    loggers[0].info("of another server")
    loggers[1].removeHandler(handler)
    assert caplog.messages == ["of another server"]


def test_who_is_connected_goes_on_while_there_are_no_file_descriptors_left() -> None:
    command = [sys.executable, "-m", "tests.serving.few_descriptors"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        with Client(TCP, address) as healthy:
            assert healthy.ask(b"{before") == b"{before"
            crowd = [Client(TCP, address) for _ in range(2 * FEW)]
            for _ in range(50):
                assert healthy.ask(b"{goes on") == b"{goes on"
            for one in crowd:
                one.leave()
            with Client(TCP, address) as late:
                assert late.ask(b"{serves again") == b"{serves again"
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")


def test_several_ports_of_several_kinds_serve_at_once() -> None:
    with serving(TCP, HTTP, TCP) as (server, talks):
        assert len({port for _, port in server.addresses}) == 3
        for door, address in zip((TCP, HTTP, TCP), server.addresses, strict=True):
            with Client(door, address) as one:
                assert one.ask(b"{hello") == b"{hello"
        assert [talk.peer.transport for talk in talks.all] == ["tcp", "http", "tcp"]


def test_what_a_posted_callback_raises_is_kept_and_hurts_nobody() -> None:
    with meeting(TCP, faults=1) as (server, _, one):
        server.post(lambda: 1 // 0)
        assert one.ask(b"{goes on") == b"{goes on"
        assert [type(fault) for fault in server.faults.kept] == [ZeroDivisionError]


@every_door
def test_a_connection_that_is_reset_between_requests_is_forgotten(door: Door) -> None:
    with serving(door) as (server, talks):
        one = Client(door, server.addresses[0])
        assert one.ask(b"{first") == b"{first"
        one.reset()
        assert eventually(lambda: server.connections == 0)
        talks.all[0].closes.clear()
        assert eventually(lambda: connections_in_memory() == 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@every_door
def test_port_and_peers_are_let_go_also_where_a_process_that_was_forked_lives_on(door: Door) -> None:
    waits, ends = os.pipe()
    with serving(door) as (server, _):
        address = server.addresses[0]
        peer = Client(door, address)
        assert peer.ask(b"{in") == b"{in"
        child = os.fork()
        if not child:
            os.close(ends)
            os.read(waits, 1)
            os._exit(0)
    try:
        with peer:
            peer.rest()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, PATIENCE_S)
        transport = door.make(address[1])
        with Server(Talks(), [transport]) as again, Client(door, again.addresses[0]) as one:
            assert one.ask(b"{in") == b"{in"
    finally:
        os.close(ends)
        os.waitpid(child, 0)
        os.close(waits)
