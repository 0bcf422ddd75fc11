"""Ctrl-C in the thread that serves while it samples: it comes soon, and costs no client anything."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.serving.doors import TCP
from tests.serving.served import obs_of, served
from tests.serving.voices import Turns


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
