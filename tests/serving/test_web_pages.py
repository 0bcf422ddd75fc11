"""Pages of other origins in a real browser: those that are allowed play, those whose host name was re-bound do not."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from menv.serving import Access
from tests.browser import Browser
from tests.serving.doors import HTTP
from tests.serving.served import Served, served

TOKEN = "a-long-and-random-text-that-nobody-guesses"
NAMES = "--host-resolver-rules=MAP *.example 127.0.0.1"
ASK = """
fetch({url!r}, {{method: "POST", headers: {{authorization: "Bearer {token}", "content-type": "application/json"}},
  body: JSON.stringify({{type: "GET_CONFIG"}})}}).then(answer => answer.json()).then(one => one.type)
  .catch(error => "not readable")"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[int]:
    """The port of a web server with an empty page."""
    (tmp_path / "index.html").write_text("<!doctype html><title>a page</title>")
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(tmp_path))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def asked(browser: Browser, one: Served, token: str = TOKEN) -> str:
    """Return the type of the answer that the open page reads."""
    url = f"http://trainer.example:{one.envs.addresses[0][1]}/rllink"
    return str(browser.evaluate(ASK.format(url=url, token=token)))


def test_a_page_on_another_origin_plays_if_its_origin_is_allowed_and_it_knows_the_token(pages: int) -> None:
    page = f"http://lab.example:{pages}"
    access = Access(address="0.0.0.0", token=TOKEN, allowed_origins=[page])
    with Browser(NAMES) as browser, served(doors=(HTTP,), settings={"access": access}) as one:
        browser.open(f"{page}/")
        assert asked(browser, one) == "SET_CONFIG"
        assert asked(browser, one, "wrong") == "ERROR"
        browser.open(f"http://evil.example:{pages}/")
        assert asked(browser, one) == "not readable"


def test_a_page_whose_name_was_re_bound_reads_nothing_of_a_server_without_a_token(pages: int) -> None:
    with Browser(NAMES) as browser, served(doors=(HTTP,)) as one:
        own = f"http://evil.example:{one.envs.addresses[0][1]}"
        browser.open(f"{own}/health")
        ask = ASK.format(url=f"{own}/rllink", token="")
        assert browser.evaluate(ask) == "ERROR"
