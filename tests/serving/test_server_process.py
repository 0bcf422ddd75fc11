"""A server in its process: /health, /metrics, its log, Ctrl-C, and what it imports."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from menv.serving import Access
from tests.house.sources import ROOT
from tests.serving.doors import HTTP, TCP
from tests.serving.served import Served, obs_of, served
from tests.serving.voices import Turns, Voice, episode

TOKEN = "a long and random text"


def page(one: Served, path: str, token: str | None = None) -> str:
    host, port = one.envs.addresses[0]
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{host}:{port}{path}", headers=headers)
    ) as answer:
        return str(answer.read().decode())


def figures(one: Served, token: str | None = None) -> dict[str, float]:
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(page(one, "/metrics", token))
        for sample in family.samples
    }


def test_metrics_count_what_clients_do_on_two_servers_of_one_process() -> None:
    with served(doors=(HTTP,)) as one, served(doors=(HTTP,)) as other, one.sampling():
        with Voice(HTTP, one.envs.addresses[0]) as voice:
            voice.greet()
            turns = Turns(voice, "mine")
            turns.act(obs_of(0))
            turns.act(obs_of(1))
            assert voice.ask("GET_ACTION", episode_id="unknown", observation=obs_of(0))["type"] == "ERROR"
            number = voice.ask("GET_STATE", form="weights")["weights_seq_no"]
            voice.bring(episode([obs_of(0)] * 2, [0], [1.0], "terminated"), weights_seq_no=number - 1)
            found = figures(one)
        assert (found["menv_clients"], found["menv_open_episodes"], found["menv_actions_total"]) == (1, 1, 2)
        assert found["menv_action_latency_seconds_bucket +Inf"] == 2
        assert found["menv_action_latency_seconds_sum"] > 0
        assert (found["menv_staleness_updates_count"], found["menv_staleness_updates_sum"]) == (1, 1)
        assert found["menv_refusals_total unknown_episode"] == 1
        assert figures(other)["menv_actions_total"] == 0


def test_health_needs_no_token_and_metrics_need_the_servers() -> None:
    with served(doors=(HTTP,), settings={"access": Access(token=TOKEN)}) as one:
        assert page(one, "/health") == "ok\n"
        for wrong in (None, "another"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                page(one, "/metrics", wrong)
        assert figures(one, TOKEN)["menv_clients"] == 0


def test_connections_and_refusals_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "menv.serving"),
        served(doors=(HTTP,)) as one,
        Voice(HTTP, one.envs.addresses[0]) as voice,
    ):
        voice.greet()
        voice.refused("NO_SUCH_TYPE")
    said = [record.getMessage() for record in caplog.records if record.name == "menv.serving"]
    assert [re.sub(r"127.*?\d( |$)|: .*", "", line) for line in said] == [
        "serving at ", "http client connected", "refused, unknown_type", "http client left", "stopped",
    ]  # fmt: skip


def at_once(do: Callable[[], Any]) -> None:
    do()


def in_a_loop(do: Callable[[], Any]) -> None:
    """Call as notebooks do: another thread serves then."""

    async def called() -> None:
        do()

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(called())
    finally:
        loop.close()


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
        sessions: Any = one.source.sessions
        send = sessions._send

        def interrupted(*decided: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            send(*decided)

        monkeypatch.setattr(sessions, "_send", interrupted)
        turns.tell("GET_ACTION", observation=obs_of(0))
        with pytest.raises(KeyboardInterrupt):
            one.sample(steps=1_000)
        assert voice.hear()["type"] == "ACTION"


@pytest.mark.parametrize("way", [at_once, in_a_loop])
def test_ctrl_c_ends_a_wait_for_clients(way: Callable[[Callable[[], Any]], None]) -> None:
    main = threading.main_thread().ident
    assert main is not None
    with served(doors=(TCP,), settings={"idle_timeout": 20.0}) as one:
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            way(one.algo.sample)
        assert time.monotonic() - begun < 10.0


def test_a_second_ctrl_c_is_raised_at_once() -> None:
    came = []

    def twice() -> None:
        for number in range(2):
            signal.raise_signal(signal.SIGINT)
            came.append(number)

    with served(doors=(TCP,)) as one, one.envs.unbroken(), pytest.raises(KeyboardInterrupt):
        twice()
    assert came == [0]


OURS = "from menv.serving.transports import access, server, tcp, transport"
START = """
from menv.serving.transports.server import Server
from menv.serving.transports.{module} import {transport}
server = Server(None, [{transport}()])
server.start()
server.stop()
print("started")
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_transports_import_nothing_heavy_until_they_are_used() -> None:
    heavy = ("starlette", "uvicorn", "h11", "torch", "onnxruntime", "ray")
    done = python(f"{OURS}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("transport", "package"),
    [("HttpTransport", "starlette"), ("HttpTransport", "uvicorn")],
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    transport: str, package: str
) -> None:
    done = python(
        f"import sys\nsys.modules['{package}'] = None"
        + START.format(module=transport.removesuffix("Transport").lower(), transport=transport)
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"menv.errors.MissingExtraError: {transport}: ")
    assert last.endswith("run: pip install 'menv-rl[serve]'")
    assert done.stdout == ""


def test_tcp_needs_none_of_them() -> None:
    missing = "import sys\nfor name in ('starlette', 'uvicorn'):\n    sys.modules[name] = None"
    assert python(missing + START.format(module="tcp", transport="TcpTransport")).stdout == "started\n"
