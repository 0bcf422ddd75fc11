"""Answers that are made beside the server's loop, where another thread stops everything meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from menv.errors import CallOrderError, ConfigError
from menv.serving.session import SamplerTaskQueue
from tests.serving.talks import eventually

EACH = 3
ROUNDS = 200


async def _answers_of_one_that_stops() -> list[BaseException | object]:
    """Return what the requests of a queue get that another thread stops at the same time."""
    later: list[object] = []
    loop = asyncio.get_running_loop()

    def post(callback: Callable[[], object]) -> None:
        loop.call_soon_threadsafe(callback)

    queue = SamplerTaskQueue(lambda: None, post)
    stopping = threading.Thread(target=queue.stop, args=(CallOrderError("over"),), daemon=True)
    made = [asyncio.ensure_future(queue.make(lambda: "made")) for _ in range(EACH)]
    stopping.start()
    queue.add_later(queue, later.append)
    answers = await asyncio.gather(*made, return_exceptions=True)
    await loop.run_in_executor(None, stopping.join)
    await asyncio.sleep(0)
    return [*answers, *later]


def test_requests_are_answered_once_whether_weights_were_made_or_the_server_was_stopped() -> None:
    answers: Counter[str] = Counter()
    for _ in range(ROUNDS):
        answers.update(map(str, asyncio.run(_answers_of_one_that_stops())))
    assert answers.keys() <= {"made", "over"}
    assert answers.total() == (EACH + 1) * ROUNDS


def test_what_cannot_be_made_is_raised_and_a_bug_before_a_request_is_reported() -> None:
    posted: list[Callable[[], object]] = []
    queue = SamplerTaskQueue(lambda: None, posted.append)

    def refuse() -> None:
        raise ConfigError("policy 'p': it has no such form")

    with pytest.raises(ConfigError, match="no such form"):
        asyncio.run(queue.make(refuse))
    queue.prepare(lambda: 1 / 0)
    assert eventually(lambda: len(posted) == 1)
    with pytest.raises(ZeroDivisionError):
        posted[0]()
    queue.stop(CallOrderError("over"))
    queue.prepare(refuse)
    with pytest.raises(CallOrderError, match="over"):
        asyncio.run(queue.make(refuse))
