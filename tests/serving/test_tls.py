"""TLS on every transport, with a certificate made for the test."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from menv.errors import ConfigError
from menv.serving import Access, Limits
from menv.serving.transports.server import Server
from tests.serving.certificates import made_in, needs_openssl
from tests.serving.doors import DOORS, HEADERS, HTTP, Client, Door
from tests.serving.talks import CLOSE, LATE, Talks, eventually, serving
from tests.serving.test_ends import connections_in_memory, the_serving_threads

pytestmark = needs_openssl
every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made_in(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def access(files: tuple[Path, Path]) -> Access:
    return Access(ssl_certificate=files[0], ssl_key=files[1])


@pytest.fixture
def trusting(files: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files[0])


@every_door
def test_a_client_that_trusts_the_certificate_talks(
    door: Door, access: Access, trusting: ssl.SSLContext
) -> None:
    body = b"{" + bytes(500_000)
    with serving(door, access=access) as (server, _), Client(door, server.addresses[0], tls=trusting) as one:
        assert isinstance(one.socket, ssl.SSLSocket)
        assert one.socket.version() in ("TLSv1.2", "TLSv1.3")
        assert one.ask(body) == body
        one.send(LATE)
        assert one.receive() == LATE
        one.send(CLOSE)
        assert one.receive() == CLOSE
        one.rest()


@every_door
def test_a_client_that_does_not_trust_it_does_not_talk(door: Door, access: Access) -> None:
    with serving(door, access=access) as (server, talks):
        with pytest.raises(ssl.SSLCertVerificationError):
            Client(door, server.addresses[0], tls=ssl.create_default_context())
        assert talks.all == []


@every_door
def test_plain_bytes_at_a_tls_port_cost_only_their_connection(
    door: Door, access: Access, trusting: ssl.SSLContext
) -> None:
    with serving(door, access=access) as (server, talks):
        healthy = Client(door, server.addresses[0], tls=trusting)
        with Client(door, server.addresses[0], greets=False) as plain:
            plain.raw(b"00000016{no handshake at all}" * 10)
            assert b"{" not in plain.rest()
        assert healthy.ask(b"{fine") == b"{fine"
        assert len(talks.all) == 1
        healthy.leave()


def test_older_tls_is_refused(access: Access, trusting: ssl.SSLContext) -> None:
    context = access.tls()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@every_door
def test_a_handshake_that_never_ends_is_not_waited_for_and_counts(
    door: Door, access: Access, trusting: ssl.SSLContext
) -> None:
    with serving(door, access=access, limits=Limits(handshake_s=0.5, max_connections=2)) as (server, _):
        with Client(door, server.addresses[0], greets=False) as one:
            one.raw(b"\x16\x03\x01")
            assert one.rest() == b""
        with Client(door, server.addresses[0], tls=trusting) as two:
            assert two.ask(b"{in") == b"{in"


@every_door
def test_stop_ends_connections_and_handshakes(door: Door, access: Access, trusting: ssl.SSLContext) -> None:
    server = Server(talks := Talks(), [door.make()], access=access)
    server.start()
    halfway = socket.create_connection(server.addresses[0])
    halfway.sendall(b"\x16\x03\x01")
    one = Client(door, server.addresses[0], tls=trusting)
    assert one.ask(b"{in") == b"{in"
    server.stop()
    assert the_serving_threads() == []
    assert talks.losses == [1]
    one.rest()
    one.leave()
    halfway.close()
    assert (server.connections, server.faults.kept) == (0, [])


@every_door
def test_somebody_too_many_is_told_so(door: Door, access: Access, trusting: ssl.SSLContext) -> None:
    with (
        serving(door, access=access, limits=Limits(max_connections=1)) as (server, _),
        Client(door, server.addresses[0], tls=trusting) as inside,
    ):
        assert inside.ask(b"{in") == b"{in"
        with Client(door, server.addresses[0], tls=trusting, greets=False) as outside:
            outside.raw(door.opening(HEADERS) or (door.wrap(b"{") if door is HTTP else b""))
            assert b"too_many: " in outside.rest()
        assert inside.ask(b"{still in") == b"{still in"


@every_door
def test_handshakes_that_never_end_take_nobody_s_place(
    door: Door, access: Access, trusting: ssl.SSLContext
) -> None:
    with (
        serving(door, access=access, limits=Limits(max_connections=3)) as (server, _),
        Client(door, server.addresses[0], tls=trusting) as inside,
    ):
        assert inside.ask(b"{in") == b"{in"
        crowd = [Client(door, server.addresses[0], greets=False) for _ in range(10)]
        for one in crowd:
            with contextlib.suppress(OSError):
                one.raw(b"\x16\x03\x01")
        with Client(door, server.addresses[0], tls=trusting) as late:
            assert late.ask(b"{in as well") == b"{in as well"
            assert inside.ask(b"{still in") == b"{still in"
        for one in crowd:
            one.leave()


@every_door
def test_a_peer_that_vanishes_is_noticed(door: Door, access: Access, trusting: ssl.SSLContext) -> None:
    with serving(door, access=access) as (server, talks):
        one = Client(door, server.addresses[0], tls=trusting)
        assert one.ask(b"{in") == b"{in"
        one.reset()
        assert eventually(lambda: server.connections == 0)
        talks.all[0].closes.clear()
        assert eventually(lambda: connections_in_memory() == 0)


@pytest.mark.parametrize("spoilt", ["missing", "no certificate", "another key"])
def test_a_certificate_that_cannot_be_used_is_a_named_error(
    spoilt: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = files
    if spoilt == "missing":
        certificate = tmp_path / "none.pem"
    elif spoilt == "no certificate":
        certificate = tmp_path / "text.pem"
        certificate.write_text("hello", "utf-8")
    else:
        key = tmp_path / "key.pem"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=60
        )
    server = Server(Talks(), [DOORS[0].make()], access=Access(ssl_certificate=certificate, ssl_key=key))
    with pytest.raises(ConfigError, match=r"Access\.ssl_certificate: .* cannot be used .*; check both paths"):
        server.start()
    assert the_serving_threads() == []
