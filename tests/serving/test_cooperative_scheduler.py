"""Long work of the serving thread is done in slices, and everybody gets a turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from menv.serving.transports.server import SLICE_S, CooperativeScheduler


def work(name: str, slices: int, log: list[str]) -> Iterator[None]:
    for _ in range(slices):
        time.sleep(1.5 * SLICE_S)
        log.append(name)
        yield


def test_short_work_is_done_at_once() -> None:
    done: list[object] = []
    CooperativeScheduler().run(iter([None] * 3), done.append)
    assert done == [None]


def test_works_take_turns_with_each_other_and_with_the_loop() -> None:
    log: list[str] = []

    async def run() -> None:
        slices, ended = CooperativeScheduler(), asyncio.Event()
        slices.run(work("a", 4, log), lambda error: log.append("a is done"))
        slices.run(work("b", 2, log), lambda error: log.append("b is done"))
        slices.run(iter([]), lambda error: ended.set())
        while not ended.is_set() or "a is done" not in log:
            log.append("loop")
            await asyncio.sleep(0)

    asyncio.run(run())
    assert [one for one in log if one != "loop"] == ["a", "a", "b", "a", "b", "a", "b is done", "a is done"]
    assert max(len(part) for part in " ".join(log).split("loop")) < len(" a b is done ")


def test_what_work_raises_is_handed_on_and_the_next_goes_on() -> None:
    found: list[object] = []

    def fails() -> Iterator[None]:
        time.sleep(1.5 * SLICE_S)
        yield
        raise ZeroDivisionError

    async def run() -> None:
        slices = CooperativeScheduler()
        slices.run(fails(), found.append)
        slices.run(iter([None]), found.append)
        dropped = work("dropped", 1, [])
        slices.run(dropped, found.append)
        slices.drop(dropped)
        while len(found) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(5 * SLICE_S)

    asyncio.run(run())
    assert isinstance(found[0], ZeroDivisionError)
    assert found[1:] == [None]


@pytest.mark.parametrize("count", [1, 3])
def test_dropped_work_is_never_done(count: int) -> None:
    log: list[str] = []

    async def run() -> None:
        slices = CooperativeScheduler()
        works = [work("x", 3, log) for _ in range(count)]
        for one in works:
            slices.run(one, lambda error: log.append("done"))
        for one in works:
            slices.drop(one)
        await asyncio.sleep(10 * SLICE_S)

    asyncio.run(run())
    assert log == ["x"]
