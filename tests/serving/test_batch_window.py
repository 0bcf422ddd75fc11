"""The end of a run of the server's loop: it waits for others as long as somebody is expected, and no longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from menv.serving.transports.server import BatchWindow


@contextmanager
def loop_with_an_end() -> Iterator[tuple[asyncio.AbstractEventLoop, list[str]]]:
    """Yield a loop and what happened in it."""
    loop = asyncio.SelectorEventLoop()
    try:
        yield loop, []
    finally:
        loop.close()


def run(lingering: BatchWindow, loop: asyncio.AbstractEventLoop, *begin: Callable[[], object]) -> float:
    """Run the loop to the end; return how many seconds that took."""
    for one in begin or (lingering.begin,):
        loop.call_soon(one)
    began = time.monotonic()
    loop.run_forever()
    lingering.cancel()
    return time.monotonic() - began


def test_where_nobody_is_waited_for_it_ends_before_another_poll() -> None:
    with loop_with_an_end() as (loop, happened):

        def begin() -> None:
            loop.call_soon(happened.append, "another poll")
            BatchWindow(loop, 60.0, lambda: True, lambda: happened.append("the last")).begin()

        loop.call_soon(begin)
        loop.run_forever()
        assert happened == ["the last"]


def test_it_asks_after_every_poll_until_nobody_is_waited_for() -> None:
    with loop_with_an_end() as (loop, happened):
        answers = iter([False, False, False, True])
        lingering = BatchWindow(loop, 60.0, lambda: next(answers), lambda: happened.append("the last"))
        assert run(lingering, loop) < 30.0
        assert happened == ["the last"]
        assert list(answers) == []


def test_it_takes_no_longer_than_it_may() -> None:
    with loop_with_an_end() as (loop, happened):
        lingering = BatchWindow(loop, 0.01, lambda: False, lambda: happened.append("the last"))
        assert 0.01 <= run(lingering, loop) < 10.0
        assert happened == ["the last"]


def test_it_begins_once() -> None:
    with loop_with_an_end() as (loop, happened):
        answers = iter([False, False, True])
        lingering = BatchWindow(loop, 60.0, lambda: next(answers), lambda: happened.append("the last"))
        run(lingering, loop, lingering.begin, lingering.begin)
        assert happened == ["the last"]
