"""How connections end: peers that vanish and servers that stop, in whatever state a connection is."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from menv.errors import CallOrderError, ConfigError
from tests.engines.processes import open_files
from tests.serving.doors import HTTP, PATIENCE_S, TCP, Client, Door, every_door
from tests.serving.talks import FLOOD, HOLD, LATE, Server, Talks, eventually, meeting, serving


def half_close(one: Client) -> None:
    one.send(HOLD)
    one.socket.shutdown(socket.SHUT_WR)


STATES: dict[str, Callable[[Client], object]] = {
    "no word": lambda one: None,
    "in a header": lambda one: one.raw(one.door.wrap(b"{body")[:3]),
    "in a body": lambda one: one.raw(one.door.wrap(bytes(5_000))[:-1]),
    "refused": lambda one: one.raw(b"no protocol\r\n\r\n" * 10),
    "waiting": lambda one: one.send(HOLD),
    "waiting a little": lambda one: one.send(LATE),
    # More than fits into the buffers between us, so that it is still on its way.
    "being replied to": lambda one: one.raw(one.door.wrap(FLOOD) * 20),
    "half closed": half_close,
}
HEARD = list(STATES)[4:]
"""Those in which a whole body has been sent."""
every_state = pytest.mark.parametrize("state", STATES)


def the_serving_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "menv-serving"]


@pytest.mark.each_value
@every_door
@every_state
@pytest.mark.parametrize("leave", [Client.leave, Client.reset], ids=["closed", "reset"])
def test_a_peer_that_vanishes_is_gone_for_its_conversation_and_nobody_else(
    door: Door, state: str, leave: Callable[[Client], None]
) -> None:
    with serving(door) as (server, talks):
        healthy = Client(door, server.addresses[0])
        leaving = Client(door, server.addresses[0])
        STATES[state](leaving)
        assert healthy.echo(b"{before") == b"{before"
        leave(leaving)
        assert eventually(lambda: server.connections == 1)
        assert healthy.echo(b"{after") == b"{after"
        healthy.leave()
        assert eventually(lambda: server.connections == 0)
        # Over HTTP the next connection may go on with the same conversation.
        assert door is HTTP or eventually(lambda: talks.losses == [1] * len(talks.all))


@pytest.mark.each_value
@every_door
@every_state
def test_stop_ends_all_conversations_and_frees_port_and_thread(door: Door, state: str) -> None:
    with serving(door) as (server, talks):
        one = Client(door, server.addresses[0])
        STATES[state](one)
        if state in HEARD:
            assert eventually(lambda: talks.bodies)
        begun = time.monotonic()
        server.stop()
        assert time.monotonic() - begun < PATIENCE_S
        assert the_serving_threads() == []
    one.rest()
    one.leave()
    with (
        Server(Talks(), [door.make(server.addresses[0][1])]) as again,
        Client(door, again.addresses[0]) as two,
    ):
        assert two.echo(b"{again") == b"{again"


def test_stop_may_be_called_twice_and_by_several_threads_and_before_start() -> None:
    server = Server(Talks(), [TCP.make()])
    server.start()
    with ThreadPoolExecutor(5) as pool:
        for stopping in [pool.submit(server.stop) for _ in range(5)]:
            stopping.result()
    server.stop()
    with pytest.raises(CallOrderError):
        server.start()
    assert the_serving_threads() == []
    server.post(lambda: pytest.fail("the server has stopped"))
    never = Server(Talks(), [TCP.make()])
    never.stop()
    with pytest.raises(CallOrderError, match="start"):
        never.start()


def test_a_taken_port_is_a_named_error_and_leaves_nothing_running() -> None:
    with serving(TCP) as (server, _):
        # Files of earlier tests that wait for the collector.
        gc.collect()
        before = open_files()
        port = server.addresses[0][1]
        second = Server(Talks(), [TCP.make(), TCP.make(port)])
        with pytest.raises(ConfigError, match=f"port {port}") as caught:
            second.start()
        assert isinstance(caught.value.__cause__, OSError)
        assert len(the_serving_threads()) == 1
        gc.collect()
        assert open_files() == before


def test_what_a_posted_callback_raises_is_kept_and_hurts_nobody() -> None:
    with meeting(TCP, faults=1) as (server, _, one):
        server.post(lambda: 1 // 0)
        assert one.echo(b"{goes on") == b"{goes on"
        assert [type(fault) for fault in server.faults.kept] == [ZeroDivisionError]
