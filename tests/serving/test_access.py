"""Who is let in, and how connections are encrypted: addresses, tokens, web pages, host names, certificates."""

from __future__ import annotations

import json
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serving import Access, Limits, PolicyClient, PolicyServerInput, RLlinkInput
from menv.serving.policy_server import TransportName
from menv.serving.protocol import GetConfig
from tests.serving.certificates import made_in, needs_openssl
from tests.serving.courses import keeping, play
from tests.serving.doors import DOORS, HTTP, TCP, Client, Door, every_door, http_response, http_wrap
from tests.serving.served import ACTIONS, OBS, Served, obs_of, played, served
from tests.serving.talks import meeting, serving
from tests.serving.test_ends import the_serving_threads
from tests.serving.voices import Turns

TOKEN = "a-long-and-random-text-that-nobody-guesses"


def status_of(address: tuple[str, int], headers: str) -> int:
    """Return the status of a first request with these headers."""
    with Client(HTTP, address) as one:
        one.raw(http_wrap(b"{body", headers))
        return http_response(one.file)[0]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.4.5", "::1", "localhost"])
def test_loopback_needs_none(address: str) -> None:
    assert Access(address=address).is_loopback


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"token": ""}, "token"),
        ({"token": 7}, "token"),
        ({"ssl_key": "key.pem"}, "ssl_key"),
        ({"allowed_origins": "https://lab.example"}, "allowed_origins"),
        ({"allowed_hosts": "lab.example"}, "allowed_hosts"),
        ({"allowed_origins": None}, "allowed_origins"),
        ({"allowed_origins": [7]}, "allowed_origins"),
        ({"allowed_origins": ["*"]}, "allowed_origins"),
        ({"allowed_origins": ["https://lab.example/"]}, "allowed_origins"),
        ({"allowed_hosts": 7}, "allowed_hosts"),
        ({"allowed_hosts": [None]}, "allowed_hosts"),
        ({"allowed_hosts": ["https://lab.example"]}, "allowed_hosts"),
        ({"ssl_certificate": 7}, "ssl_certificate"),
        ({"address": 2130706433}, "address"),
        ({"address": None, "token": TOKEN}, "address"),
        ({"ssl_certificate": "cert.pem", "ssl_key": 7}, "ssl_key"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_a_named_error(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"Access\.{named}: "):
        Access(**settings)


PAGE = "https://lab.example"
HERE = "Host: localhost\r\n"
SECRET = f"Authorization: Bearer {TOKEN}\r\n"
KEPT_OUT: list[tuple[dict[str, Any], int, list[str]]] = [
    ({"allowed_origins": [PAGE]}, 403, [
        f"{HERE}Origin: {page}\r\n" for page in (
            "https://evil.example", "null", "http://lab.example", "https://lab.example.evil.example", "",
        )
    ]),
    ({"allowed_hosts": ["lab.example"]}, 403, [
        f"Host: {host}\r\n" for host in (
            "evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "[::2]:80", "",
        )
    ]),
    ({"token": TOKEN}, 403, [f"Host: evil.example\r\nOrigin: https://evil.example\r\n{SECRET}"]),
    ({"token": TOKEN}, 401, [
        HERE, *(f"{HERE}Authorization: {wrong}\r\n" for wrong in (f"Bearer {TOKEN}x", TOKEN, f"Basic {TOKEN}")),
    ]),
]  # fmt: skip
LET_IN: list[tuple[dict[str, Any], list[str]]] = [
    ({"allowed_origins": [PAGE]}, [f"{HERE}Origin: {PAGE}\r\n"]),
    ({"allowed_hosts": ["lab.example"]}, [
        f"Host: {host}\r\n" for host in ("127.0.0.1", "127.0.0.1:80", "LOCALHOST:1", "lab.example", "[::1]:80")
    ]),
    *(({"address": address, "token": TOKEN}, [
        f"Host: {host}\r\n{SECRET}" for host in (
            "192.168.1.7:80", "menv.default.svc.cluster.local:9900", "trainer", "xn--bcher-kva.example",
        )
    ]) for address in ("0.0.0.0", "127.0.0.1")),
    ({"token": TOKEN}, [f"{HERE}Authorization: bearer  {TOKEN} \r\n"]),
]  # fmt: skip


def test_pages_names_and_tokens_that_are_not_allowed_are_kept_out_of_every_request() -> None:
    for settings, status, requests in KEPT_OUT:
        with serving(HTTP, access=Access(**settings)) as (server, talks):
            for headers in requests:
                assert status_of(server.addresses[0], headers) == status, headers
            assert talks.all == []
    for settings, requests in LET_IN:
        with serving(HTTP, access=Access(**settings)) as (server, talks):
            for headers in requests:
                assert status_of(("127.0.0.1", server.addresses[0][1]), headers) == 200, headers
            assert {talk.token for talk in talks.all} == {settings.get("token")}


def test_each_refusal_is_logged_once_with_the_option_that_allows_it(caplog: pytest.LogCaptureFixture) -> None:
    strange = (
        "Host: lab.example\r\n",
        "Host: localhost\r\nOrigin: https://page.example\r\n",
        "Host: other\r\n",
    )
    with served(doors=(TCP, HTTP)) as one:
        for headers in strange * 2:
            assert status_of(one.envs.addresses[1], headers) == 403
        assert one.refused == 6
        for number in range(100):
            assert status_of(one.envs.addresses[1], f"Host: n{number}.example\r\n") == 403
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for text, (name, option) in zip(
        told,
        [("'lab.example'", "host"), ("'https://page.example'", "origin"), ("'other'", "host")],
        strict=False,
    ):
        assert name in text
        assert f"menv serve --allow-{option}" in text
    assert len(told) == len(set(told)) == 20


OF_PAGES = Access(token=TOKEN, allowed_origins=[PAGE, "null"])
FROM_PAGE = f"{HERE}Origin: {PAGE}\r\n"


def test_a_page_that_is_allowed_may_send_and_read_over_one_connection() -> None:
    with meeting(HTTP, access=OF_PAGES) as (_server, talks, one):
        # As a browser does before it sends what a page wants to send.
        wants = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, menv-session\r\n"
        one.raw(f"OPTIONS /rllink HTTP/1.1\r\n{FROM_PAGE}{wants}\r\n".encode())
        status, headers, _ = http_response(one.file)
        assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
        assert "Origin" in headers["vary"]
        assert headers["access-control-allow-methods"] == "GET, POST"
        assert {"authorization", "content-type", "menv-session"} <= {
            name.strip().lower() for name in headers["access-control-allow-headers"].split(",")
        }
        assert talks.all == []
        one.raw(http_wrap(b"{body", FROM_PAGE + SECRET))
        status, headers, body = http_response(one.file)
        assert (status, body, headers["access-control-allow-origin"]) == (200, b"{body", PAGE)


BEARER = HERE + SECRET
ASKS: dict[str, Any] = {"settings": {"token": TOKEN}}
REQUESTS: dict[str, dict[str, Any]] = {
    "GET_STATE": {},
    "EPISODES": {"episodes": [played(1)]},
    "EPISODES_AND_GET_STATE": {"episodes": []},
    "GET_POLICIES": {"episode_id": "e", "agent_ids": ["agent0"]},
    "START_EPISODE": {"episode_id": "e"},
    "GET_ACTION": {"episode_id": "e", "observation": obs_of(0)},
    "LOG_RETURNS": {"episode_id": "e", "reward": 1.0},
}


def test_nothing_but_a_greeting_with_the_right_token_is_taken() -> None:
    wrong = [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\u00e9" * 40]
    asked = [*REQUESTS.items(), *(("GET_CONFIG", {"token": token}) for token in wrong)]
    with served(**ASKS) as one:
        for kind, fields in asked:
            with one.voice(TCP) as voice:
                # Whether somebody is there is no secret.
                voice.ping()
                assert voice.refused(kind, **fields) == "not_allowed"
                assert b"{" not in voice.rest()
        assert one.status["open_episodes"] == 0
        with one.sampling(), one.voice(TCP) as voice:
            assert voice.greet(token=TOKEN)["session"]
            turns = Turns(voice, "e")
            assert turns.act(obs_of(0)) in (0, 1)
            turns.end(obs_of(1))


def test_a_peer_without_the_token_has_no_large_body_read() -> None:
    large = json.dumps({"type": "EPISODES", **REQUESTS["EPISODES"]}).encode().rjust(50_000)
    with served(**ASKS, rollout_fragment_length=1) as one:
        with one.voice() as stranger:
            stranger.send(large)
            assert stranger.hear()["code"] == "not_allowed"
            assert stranger.rest() == b""
        with one.voice() as friend:
            friend.greet(token=TOKEN)
            friend.send(large)
            friend.ping()
            assert len(one.sample()["default_policy"]["obs"]) == 1


def test_the_right_token_in_a_header_opens_the_door_without_a_greeting() -> None:
    with served(**ASKS) as one, one.sampling(), one.voice(HTTP, headers=BEARER) as voice:
        assert Turns(voice, "e").act(obs_of(0)) in (0, 1)


@pytest.mark.parametrize("kind", [PolicyServerInput, RLlinkInput])
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "lab.example"])
def test_an_address_that_others_can_reach_needs_a_token_before_anything_is_bound(
    kind: Any, address: str
) -> None:
    ioctx = InputContext(observation_space=OBS, action_space=ACTIONS)
    with pytest.raises(ConfigError, match="token"):
        kind(ioctx, address, 0)
    assert kind(ioctx, address, 0, token=TOKEN).addresses == []


def shown(one: Served) -> str:
    """Return everything that people get to see of a server."""
    server, sessions = one.envs.server, one.envs.sessions
    objects = [one.envs, server, sessions, sessions.access, *sessions.connected]
    return repr([*objects, *map(vars, sessions.connected), one.status, server.faults.kept, one.results])


def test_a_token_is_in_no_repr_no_error_and_no_result() -> None:
    answers: list[Any] = []
    with served(**ASKS) as one:
        with one.training():
            for door in DOORS:
                with one.voice(door, headers=BEARER) as voice:
                    answers += [
                        voice.greet(token=TOKEN),
                        voice.ask("GET_ACTION", episode_id=TOKEN[:3], observation=0),
                    ]
            with one.voice(TCP) as voice:
                answers.append(voice.ask("GET_CONFIG", token=TOKEN + "x"))
            assert one.status["messages_refused"] >= 3
        assert TOKEN not in shown(one)
    assert TOKEN not in repr(answers)
    assert TOKEN not in repr((Access(token=TOKEN), GetConfig(token=TOKEN, session=TOKEN)))
    with pytest.raises(ConfigError) as caught:
        Access(address="0.0.0.0", token=TOKEN, ssl_key=TOKEN[:5])
    assert TOKEN not in str(caught.value)


ODD = [TOKEN + "\n", " " + TOKEN, TOKEN + "\r\nX: 1", "\ud800" + TOKEN]


@pytest.mark.parametrize("token", ODD)
def test_a_token_as_a_file_holds_it_is_refused_where_it_is_given_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match=r"Access\.token") as caught:
        Access(token=token)
    assert TOKEN not in str(caught.value)
    for scheme in ("tcp", "http"):
        with pytest.raises(ConfigError, match="token") as caught:
            # Before anybody is looked for there.
            PolicyClient(f"{scheme}://127.0.0.1:9", "remote", token=token, timeout=60)
        assert TOKEN not in str(caught.value)


pytestmark = needs_openssl


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made_in(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def encrypted(files: tuple[Path, Path]) -> Access:
    return Access(ssl_certificate=files[0], ssl_key=files[1])


@pytest.fixture
def trusting(files: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files[0])


@every_door
def test_plain_bytes_at_a_tls_port_cost_only_their_connection(
    door: Door, encrypted: Access, trusting: ssl.SSLContext
) -> None:
    with serving(door, access=encrypted) as (server, talks):
        healthy = Client(door, server.addresses[0], tls=trusting)
        assert isinstance(healthy.socket, ssl.SSLSocket)
        assert healthy.socket.version() in ("TLSv1.2", "TLSv1.3")
        with Client(door, server.addresses[0]) as plain:
            plain.raw(b"00000016{no handshake at all}" * 10)
            assert b"{" not in plain.rest()
        assert healthy.echo(b"{" + bytes(500_000)) == b"{" + bytes(500_000)
        assert len(talks.all) == 1
        healthy.leave()


@every_door
def test_messages_that_lie_there_together_are_read_one_by_one(
    door: Door, encrypted: Access, trusting: ssl.SSLContext
) -> None:
    bodies = [b"{%d" % number for number in range(50)]
    with (
        serving(door, access=encrypted) as (server, _),
        Client(door, server.addresses[0], tls=trusting) as one,
    ):
        assert one.echo(b"{in") == b"{in"
        ready = threading.Event()
        server.post(ready.wait)
        for body in bodies:
            # A record of TLS each.
            one.send(body)
        ready.set()
        assert [one.receive() for _ in bodies] == bodies


def test_a_handshake_that_never_ends_is_not_waited_for(encrypted: Access, trusting: ssl.SSLContext) -> None:
    with serving(TCP, access=encrypted, limits=Limits(handshake_s=0.5)) as (server, _):
        with Client(TCP, server.addresses[0]) as one:
            one.raw(b"\x16\x03\x01")
            assert one.rest() == b""
        with Client(TCP, server.addresses[0], tls=trusting) as two:
            assert two.echo(b"{in") == b"{in"


@every_door
def test_stop_ends_connections_and_handshakes(
    door: Door, encrypted: Access, trusting: ssl.SSLContext
) -> None:
    with (
        serving(door, access=encrypted) as (server, talks),
        Client(door, server.addresses[0]) as halfway,
        Client(door, server.addresses[0], tls=trusting) as one,
    ):
        halfway.raw(b"\x16\x03\x01")
        assert one.echo(b"{in") == b"{in"
        server.stop()
        assert the_serving_threads() == []
        assert talks.losses == [1]


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
        key = made_in(tmp_path)[1]
    access = Access(ssl_certificate=certificate, ssl_key=key)
    with pytest.raises(ConfigError, match=r"Access\.ssl_certificate"):
        served(settings={"access": access}).__enter__()
    assert the_serving_threads() == []


# A client that waits would fail with another error after as long.
PATIENCE = 60


@pytest.mark.slow_unless("tcp")
@pytest.mark.parametrize("transport", ["tcp", "http"])
def test_a_client_is_told_at_once_of_a_certificate_that_does_not_hold(
    transport: TransportName, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = transport + "s"
    with keeping(transport=transport, access=Access(ssl_certificate=files[0], ssl_key=files[1])) as course:
        with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
            PolicyClient(f"{scheme}://localhost:{course.port}", "remote", timeout=PATIENCE)
        monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
        with pytest.raises(ConfigError, match=r"'127\.0\.0\.1'"):
            PolicyClient(f"{scheme}://127.0.0.1:{course.port}", "remote", timeout=PATIENCE)
        with PolicyClient(f"{scheme}://localhost:{course.port}", "remote", timeout=PATIENCE) as client:
            play(client, [1.0, 2.0])
        assert course.has_rewards([1.0, 2.0])
