"""Who is let in: addresses, tokens, web pages, host names."""

from __future__ import annotations

from typing import Any

import pytest

from menv.errors import ConfigError
from menv.serving.transports.access import Access, bearer
from tests.serving.doors import HTTP, TCP, WEBSOCKET, Client, Door, http_response, http_wrap, read_head
from tests.serving.talks import serving

TOKEN = "a-long-token-that-nobody-guesses"
web = pytest.mark.parametrize("door", [HTTP, WEBSOCKET], ids=lambda door: door.name)


def status_of(door: Door, address: tuple[str, int], headers: str) -> int:
    """Return the status of a first request with these headers; a WebSocket that opens counts as 200."""
    with Client(door, address, greets=False) as one:
        one.raw(door.opening(headers) or http_wrap(b"{body", headers))
        status = int(read_head(one.file).split()[1])
        return 200 if status == 101 else status


@pytest.mark.parametrize("address", ["0.0.0.0", "192.168.1.7", "::", "", "example.org"])
def test_an_address_that_others_reach_needs_a_token(address: str) -> None:
    with pytest.raises(ConfigError, match=r"Access\.address: got .* without a token, expected .*; set one"):
        Access(address=address)
    assert Access(address=address, token=TOKEN).token == TOKEN


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


def test_a_token_is_never_shown() -> None:
    access = Access(token=TOKEN)
    assert TOKEN not in repr(access)
    assert TOKEN not in str(access)


@pytest.mark.parametrize("shown", [None, "", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\udcff", "ünïcode"])
def test_only_the_right_token_is_right(shown: str | None) -> None:
    assert not Access(token=TOKEN).admits(shown)
    assert Access(token=TOKEN).admits(TOKEN)
    assert Access().admits(shown)


def test_the_token_of_a_header_is_what_follows_bearer() -> None:
    assert bearer(f"Bearer {TOKEN}") == bearer(f"bearer  {TOKEN} ") == TOKEN
    assert bearer(None) is bearer("Basic abc") is bearer(TOKEN) is None


@web
def test_a_request_of_a_web_page_is_refused_unless_the_page_is_allowed(door: Door) -> None:
    access = Access(allowed_origins=["https://lab.example"])
    with serving(door, access=access) as (server, talks):
        at = server.addresses[0]
        for origin in (
            "https://evil.example",
            "null",
            "http://lab.example",
            "https://lab.example.evil.example",
            "",
        ):
            assert status_of(door, at, f"Host: localhost\r\nOrigin: {origin}\r\n") == 403
        assert status_of(door, at, f"Host: localhost\r\nOrigin: {'https://lab.example'}\r\n" * 2) in (
            400,
            403,
        )
        assert talks.all == []
        assert status_of(door, at, "Host: localhost\r\nOrigin: https://lab.example\r\n") == 200
        assert len(talks.all) == 1


@web
def test_a_name_that_was_made_to_point_here_is_refused(door: Door) -> None:
    with serving(door, access=Access(allowed_hosts=["lab.example"])) as (server, talks):
        at = server.addresses[0]
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "[::2]:80", ""):
            assert status_of(door, at, f"Host: {host}\r\n") == 403
        assert talks.all == []
        for host in ("127.0.0.1", f"127.0.0.1:{at[1]}", "LOCALHOST:1", "lab.example", "[::1]:80"):
            assert status_of(door, at, f"Host: {host}\r\n") == 200


@web
def test_two_hosts_are_refused_whichever_is_the_right_one(door: Door) -> None:
    with serving(door) as (server, talks):
        at = server.addresses[0]
        right = f"127.0.0.1:{at[1]}"
        for first, second in ((right, "evil.example"), ("evil.example", right), (right, right)):
            assert status_of(door, at, f"Host: {first}\r\nHost: {second}\r\n") in (400, 403)
            assert status_of(door, at, f"Host: {first}, {second}\r\n") in (400, 403)
        for host in (
            f"{right}@evil.example",
            f"{right}/evil.example",
            "[::1]evil.example",
            "127.0.0.1:80:80",
        ):
            assert status_of(door, at, f"Host: {host}\r\n") in (400, 403)
        assert talks.all == []


@web
def test_a_server_for_others_is_called_by_any_address_and_by_no_foreign_name(door: Door) -> None:
    access = Access(address="0.0.0.0", token=TOKEN)
    with serving(door, access=access) as (server, _):
        at = ("127.0.0.1", server.addresses[0][1])
        secret = f"Authorization: Bearer {TOKEN}\r\n"
        assert status_of(door, at, f"Host: 192.168.1.7:80\r\n{secret}") == 200
        assert status_of(door, at, f"Host: evil.example\r\n{secret}") == 403


def test_http_needs_the_token_in_every_request() -> None:
    with serving(HTTP, access=Access(token=TOKEN)) as (server, talks):
        at = server.addresses[0]
        for value in ("", f"Authorization: Bearer {TOKEN}x\r\n", f"Authorization: {TOKEN}\r\n"):
            assert status_of(HTTP, at, f"Host: localhost\r\n{value}") == 401
        assert talks.all == []
        assert status_of(HTTP, at, f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n") == 200
        assert [talk.token for talk in talks.all] == [TOKEN]


def test_a_websocket_may_show_its_token_later_but_not_a_wrong_one() -> None:
    with serving(WEBSOCKET, access=Access(token=TOKEN)) as (server, talks):
        at = server.addresses[0]
        assert status_of(WEBSOCKET, at, "Host: localhost\r\nAuthorization: Bearer wrong\r\n") == 401
        assert talks.all == []
        assert status_of(WEBSOCKET, at, "Host: localhost\r\n") == 200
        assert status_of(WEBSOCKET, at, f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n") == 200
        assert [talk.token for talk in talks.all] == [None, TOKEN]


def test_over_tcp_the_token_is_the_conversation_s_to_ask_for() -> None:
    with serving(TCP, access=Access(token=TOKEN)) as (server, talks), Client(TCP, server.addresses[0]) as one:
        assert one.ask(b"{any") == b"{any"
        assert [talk.token for talk in talks.all] == [None]


@web
def test_what_is_refused_says_why_as_an_error(door: Door) -> None:
    with serving(door) as (server, _), Client(door, server.addresses[0], greets=False) as one:
        headers = "Host: localhost\r\nOrigin: https://evil.example\r\n"
        one.raw(door.opening(headers) or http_wrap(b"{body", headers))
        status, headers_back, body = http_response(one.file)
        assert status == 403
        assert headers_back["content-type"] == "application/json"
        assert b"not_allowed: " in body
        assert b"evil" not in body


@pytest.mark.parametrize("path", ["/other", "/rllink/more"])
def test_other_paths_are_not_found(path: str) -> None:
    with serving(HTTP, WEBSOCKET) as (server, talks):
        for door, address in zip((HTTP, WEBSOCKET), server.addresses, strict=True):
            with Client(door, address, greets=False) as one:
                request = door.opening("Host: localhost\r\n") or http_wrap(b"{body")
                one.raw(request.replace(b"/rllink", path.encode(), 1))
                assert b" 404 " in one.file.readline()
        assert talks.all == []


def test_other_methods_are_not_allowed() -> None:
    with serving(HTTP) as (server, _), Client(HTTP, server.addresses[0], greets=False) as one:
        one.raw(b"GET /rllink HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 405 " in one.file.readline()
