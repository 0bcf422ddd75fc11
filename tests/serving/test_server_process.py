"""A server in its process: /health, /metrics, its log, Ctrl-C, and what it imports."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from menv import DefaultCallbacks
from menv.serving import Access
from tests.house.sources import ROOT
from tests.serving.doors import HTTP, PATIENCE_S, TCP
from tests.serving.served import Served, obs_of, served
from tests.serving.voices import Turns, Voice
from tests.worlds import like

TOKEN = "a long and random text"


def page(one: Served, path: str, token: str = "") -> str:
    host, port = one.envs.addresses[0]
    request = urllib.request.Request(
        f"http://{host}:{port}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def figures(one: Served, token: str = "") -> dict[str, float]:
    """Return the samples of `GET /metrics`."""
    samples = (line.rpartition(" ") for line in page(one, "/metrics", token).splitlines() if line[0] != "#")
    return {name: float(value) for name, _, value in samples}


def test_health_needs_no_token_and_metrics_need_the_servers() -> None:
    with served(doors=(HTTP,), settings={"access": Access(token=TOKEN)}) as one:
        assert page(one, "/health") == "ok\n"
        for wrong in ("", "another"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                page(one, "/metrics", wrong)
        assert figures(one, TOKEN)["menv_clients_connected"] == 0


def test_metrics_count_the_requests_of_clients_since_the_start() -> None:
    with served(doors=(HTTP,)) as one, served(doors=(HTTP,)) as other, one.sampling():
        with Voice(HTTP, one.envs.addresses[0]) as voice:
            voice.greet()
            turns = Turns(voice, "mine")
            turns.act(obs_of(0))
            one.envs.status()
            turns.act(obs_of(1))
            assert voice.ask("GET_ACTION", episode_id="unknown", observation=obs_of(0))["type"] == "ERROR"
            found = figures(one)
        assert found.pop("menv_action_latency_seconds_total") > 0
        assert found == {
            "menv_clients_connected": 1, "menv_open_episodes": 1, "menv_actions_total": 2,
            "menv_messages_refused_total": 1,
        }  # fmt: skip
        assert figures(other)["menv_actions_total"] == 0


def test_a_callback_may_ask_the_server_whose_clients_it_watches() -> None:
    told: list[str] = []
    one: Served
    curious = like(DefaultCallbacks, on_episode_step=lambda self, **_: told.append(page(one, "/health")))
    with served(doors=(HTTP,), callbacks=curious) as one, one.sampling(), one.voice(HTTP) as voice:
        turns = Turns(voice, "mine")
        for step in range(3):
            turns.act(obs_of(step))
    assert told == ["ok\n", "ok\n"]


def test_what_the_servers_own_thread_has_read_ends_the_next_wait_of_the_sampler() -> None:
    with served() as one:
        server = one.envs.server
        assert server.borrow()
        read = threading.Event()
        server.interrupt()
        server.post(read.set)
        assert read.wait(PATIENCE_S)
        began = time.monotonic()
        server.run(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2
        server.give_back()


def test_connections_and_refusals_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "menv.serving"),
        served(doors=(HTTP,)) as one,
        Voice(HTTP, one.envs.addresses[0]) as voice,
    ):
        voice.greet(client="a game\n")
        voice.refused("NO_SUCH_TYPE")
    said = [record.getMessage() for record in caplog.records if record.name == "menv.serving"]
    assert [re.sub(r"127.*?\d( |$)|: .*", "", line) for line in said] == [
        "serving at ", "http client connected", r"http client is 'a game\n'",
        "refused, unknown_type", "http client left", "stopped",
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_what_was_decided_is_answered_before_ctrl_c_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(doors=(TCP,)) as one, one.voice() as voice:
        with one.sampling():
            turns = Turns(voice, "e")
        sessions: Any = one.envs.sessions
        send = sessions._send

        def interrupted(*decided: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            send(*decided)

        monkeypatch.setattr(sessions, "_send", interrupted)
        turns.tell("GET_ACTION", observation=obs_of(0))
        with pytest.raises(KeyboardInterrupt):
            one.sample(steps=1_000)
        assert voice.hear()["type"] == "ACTION"


def test_ctrl_c_ends_a_wait_for_clients() -> None:
    main = threading.main_thread().ident
    assert main is not None
    with served(doors=(TCP,), settings={"idle_timeout": 20.0}) as one:
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            one.algo.sample()
        assert time.monotonic() - begun < 10.0


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_transports_import_nothing_heavy_until_they_are_used() -> None:
    heavy = ("starlette", "uvicorn", "h11", "torch", "onnxruntime", "ray")
    ours = "from menv.serving.transports import access, server, tcp"
    done = python(f"{ours}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(package: str) -> None:
    done = python(f"import sys\nsys.modules['{package}'] = None\nimport menv.serving.transports.http")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("menv.errors.MissingExtraError: HttpTransport: ")
    assert last.endswith("run: pip install 'menv-rl[serve]'")
