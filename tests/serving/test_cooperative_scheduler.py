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
    log.append(f"{name} is done")


def test_works_take_turns_with_each_other_and_with_the_loop() -> None:
    log: list[str] = []

    async def run() -> None:
        slices = CooperativeScheduler()
        works = [
            asyncio.create_task(slices.run(work(name, count, log))) for name, count in (("a", 4), ("b", 2))
        ]
        while not all(one.done() for one in works):
            log.append("loop")
            await asyncio.sleep(0)

    asyncio.run(run())
    assert [one for one in log if one != "loop"] == ["a", "b", "a", "b", "a", "b is done", "a", "a is done"]
    assert max(len(part) for part in " ".join(log).split("loop")) < len(" a b is done ")


def test_what_work_raises_is_passed_on_and_cancelled_work_is_not_done_and_the_next_one_is() -> None:
    log: list[str] = []

    def fails() -> Iterator[None]:
        time.sleep(1.5 * SLICE_S)
        yield
        raise ZeroDivisionError

    async def run() -> None:
        slices = CooperativeScheduler()
        failing, cancelled, last = (
            asyncio.create_task(slices.run(one)) for one in (fails(), work("x", 3, log), work("y", 1, log))
        )
        await asyncio.sleep(0)
        cancelled.cancel()
        await last
        with pytest.raises(ZeroDivisionError):
            await failing

    asyncio.run(run())
    assert log == ["y", "y is done"]
