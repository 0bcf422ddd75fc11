"""Web pages over HTTP: a browser asks whether a page may talk to the server, and reads in responses what it may see."""

from __future__ import annotations

from typing import BinaryIO

from menv.serving import Access, Limits
from tests.serving.doors import HTTP, Client, http_wrap
from tests.serving.talks import serving

TOKEN = "a-long-and-random-text-that-nobody-guesses"
PAGE = "https://lab.example"
ACCESS = Access(token=TOKEN, allowed_origins=[PAGE, "null"])
FROM_PAGE = f"Host: localhost\r\nOrigin: {PAGE}\r\n"
SECRET = f"Authorization: Bearer {TOKEN}\r\n"


def response(file: BinaryIO) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body; a 204 has none."""
    status = int(file.readline().split()[1])
    headers = {}
    while (line := file.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    return status, headers, file.read(int(headers.get("content-length", 0)))


def asks(origin: str = f"Origin: {PAGE}\r\n", host: str = "localhost") -> bytes:
    """Return what a browser asks before it sends what a page wants to send."""
    wants = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, menv-session\r\n"
    return f"OPTIONS /rllink HTTP/1.1\r\nHost: {host}\r\n{origin}{wants}\r\n".encode()


def test_a_page_that_is_allowed_may_send_and_read_over_one_connection() -> None:
    with serving(HTTP, access=ACCESS) as (server, talks), Client(HTTP, server.addresses[0]) as one:
        one.raw(asks())
        status, headers, _ = response(one.file)
        assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
        assert "Origin" in headers["vary"]
        assert headers["access-control-allow-methods"] == "POST"
        assert {"authorization", "content-type", "menv-session"} <= {
            name.strip().lower() for name in headers["access-control-allow-headers"].split(",")
        }
        assert talks.all == []
        one.raw(http_wrap(b"{body", FROM_PAGE + SECRET))
        status, headers, body = response(one.file)
        assert (status, body, headers["access-control-allow-origin"]) == (200, b"{body", PAGE)


def test_a_page_that_is_allowed_reads_why_its_request_is_refused() -> None:
    with serving(HTTP, access=ACCESS) as (server, _):
        for wrong, expected in (("", 401), (f"{SECRET}menv-session: short\r\n", 400)):
            with Client(HTTP, server.addresses[0]) as one:
                one.raw(http_wrap(b"{body", FROM_PAGE + wrong))
                status, headers, body = response(one.file)
                assert (status, headers["access-control-allow-origin"]) == (expected, PAGE)
                assert b"ERROR" in body


def test_a_page_that_is_not_allowed_is_told_nothing_that_its_browser_would_pass_on() -> None:
    with serving(HTTP, access=ACCESS) as (server, _):
        for request, expected in (
            (asks("Origin: https://evil.example\r\n"), 400),
            (asks(""), 405),
            (http_wrap(b"{body", f"Host: localhost\r\nOrigin: https://evil.example\r\n{SECRET}"), 403),
            (http_wrap(b"{body", f"Host: localhost\r\n{SECRET}"), 200),
        ):
            with Client(HTTP, server.addresses[0]) as one:
                one.raw(request)
                status, headers, _ = response(one.file)
                assert status == expected
                assert "access-control-allow-origin" not in headers


def test_browsers_that_only_ask_take_nobody_s_place() -> None:
    with serving(HTTP, access=ACCESS, limits=Limits(max_connections=2)) as (server, _):
        crowd = []
        for _ in range(4):
            crowd.append(Client(HTTP, server.addresses[0]))
            crowd[-1].raw(asks())
            assert response(crowd[-1].file)[0] == 200
        with Client(HTTP, server.addresses[0]) as late:
            late.raw(http_wrap(b"{body", FROM_PAGE + SECRET))
            assert response(late.file)[0] == 200
        for one in crowd:
            one.leave()
