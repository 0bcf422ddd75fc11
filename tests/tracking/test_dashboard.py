"""`menv dashboard` in a process: its stream of events, its page in a browser, and who may read it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from menv.cli.main import main
from menv.errors import ConfigError
from menv.tracking import RunFolder
from menv.tracking.dashboard import Dashboard
from tests.browser import Browser
from tests.house.sources import ROOT
from tests.tracking.test_report import result, run_folder


@contextmanager
def dashboard(root: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `menv dashboard` on a free port; yields the process and the port."""
    command = [sys.executable, "-m", "menv.cli", "dashboard", str(root), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.endswith("(Ctrl-C ends it)\n")
        try:
            yield process, int(line.split(":")[3].split("/")[0])
        finally:
            process.kill()


class Stream:
    """The messages of a dashboard, as a browser gets them."""

    def __init__(self, port: int, *names: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._connection.request("GET", "/events?" + "&".join(f"run={name}" for name in names))
        self._response = self._connection.getresponse()
        assert self._response.headers["content-type"].startswith("text/event-stream")

    def message(self) -> dict[str, Any]:
        """Return the next message."""
        line = self._response.readline().decode()
        assert line.startswith("data: ")
        assert self._response.readline() == b"\n"
        return dict(json.loads(line.removeprefix("data: ")))

    def close(self) -> None:
        """Leave, as a browser does that is closed."""
        self._response.close()
        self._connection.close()


def test_the_stream_follows_runs_and_ends_with_the_process(tmp_path: Path) -> None:
    run_folder(tmp_path / "old", [result(1, {"p": 0.0})])
    os.utime(tmp_path / "old" / "progress.csv", (1, 1))
    folder = RunFolder(tmp_path / "new", {"algorithm": "PPO", "env": "tictactoe", "config": {}}, command="x")
    folder.result(result(1, {"p": 1.0}))
    with dashboard(tmp_path) as (process, port):
        stream = Stream(port)
        first = stream.message()
        assert [(one["name"], one["running"], one["chosen"]) for one in first["runs"]] == [
            ("new", True, True),
            ("old", False, False),
        ]
        assert first["data"]["sections"][0]["charts"][0]["lines"][0]["mean"] == [1]
        folder.result(result(2, {"p": 3.0}))
        assert stream.message()["data"]["sections"][0]["charts"][0]["lines"][0]["mean"] == [1, 3]
        folder.close()
        assert not stream.message()["runs"][0]["running"]
        both = Stream(port, "old", "new", "..", "none")
        assert [one["chosen"] for one in both.message()["runs"]] == [True, True]
        both.close()
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert time.monotonic() - began < 2
        stream.close()


@pytest.mark.slow
def test_the_page_follows_the_run_that_is_chosen(tmp_path: Path) -> None:
    run_folder(tmp_path / "old", [result(1, {"p": 5.0})])
    os.utime(tmp_path / "old" / "progress.csv", (1, 1))
    folder = RunFolder(tmp_path / "new", {"algorithm": "PPO", "env": "tictactoe", "config": {}}, command="x")
    folder.result(result(1, {"p": 1.0}))
    with dashboard(tmp_path) as (_, port), Browser() as browser:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait_for("document.querySelector('h1')?.innerText === 'tictactoe'")
        assert browser.text("#head p") == "new, PPO"
        folder.result(result(2, {"p": 3.0}))
        browser.wait_for("document.querySelector('.tiles').innerText.includes('200')")
        browser.click(".runs input[value=old]")
        browser.wait_for("document.querySelector('#head p').innerText.startsWith('2 runs')")
        assert browser.evaluate("location.search") == "?run=new&run=old"
        assert (browser.text(".error"), browser.logged) == ("", [])
    folder.close()


def test_runs_that_cannot_be_shown_are_a_sentence(tmp_path: Path) -> None:
    run_folder(tmp_path / "a", [result(1, {"p": 0.0})])
    run_folder(tmp_path / "b", [result(1, {"p": 0.0})], env="CartPole-v1")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text("{")
    with dashboard(tmp_path) as (_, port):
        stream = Stream(port, "a", "b")
        message = stream.message()
        stream.close()
        assert "runs of 2 different environments" in message["error"]
        assert sorted(one["name"] for one in message["runs"]) == ["a", "b"]


def test_pages_of_other_sites_cannot_read_it(tmp_path: Path) -> None:
    run_folder(tmp_path / "a", [])
    with dashboard(tmp_path) as (_, port):
        for host, status in (("evil.example", 400), (f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/", headers={"Host": host})
            response = connection.getresponse()
            assert response.status == status
            assert "Access-Control-Allow-Origin" not in response.headers
            connection.close()


def test_wrong_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Dashboard(tmp_path)
    port = first.url.rpartition(":")[2].rstrip("/")
    assert main(["dashboard", str(tmp_path), "--port", port]) == 2
    assert f"port {port} cannot be used" in capsys.readouterr().err
    first.stop()
    first.run()
    with pytest.raises(ConfigError, match="there is no folder"):
        Dashboard(tmp_path / "none")
    with pytest.raises(SystemExit, match="2"):
        main(["dashboard", str(tmp_path), "--port", "70000"])
    assert "expected a port from 0 to 65535" in capsys.readouterr().err
