"""What sessions want done in the sampler's thread, where another thread stops everything meanwhile."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from menv.errors import CallOrderError
from menv.serving.errands import Errands

EACH = 3
ROUNDS = 3_000


def test_errands_are_answered_once_whichever_thread_takes_them() -> None:
    posted: list[Callable[[], object]] = []
    errands = Errands(lambda: None, posted.append)
    answers: Counter[int] = Counter()
    faults: list[BaseException] = []
    nobody: Any = None
    together = threading.Barrier(2)

    def stop() -> None:
        try:
            for _ in range(ROUNDS):
                together.wait()
                errands.fail(CallOrderError("over"))
                together.wait()
        except BaseException as fault:
            faults.append(fault)
            together.abort()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    try:
        for number in range(ROUNDS):
            for errand in range(EACH * number, EACH * number + EACH):
                errands.add(lambda _: None, lambda _, errand=errand: answers.update([errand]))  # type: ignore[misc]
            together.wait()
            errands.run(nobody)
            together.wait()
    except threading.BrokenBarrierError:
        pass
    finally:
        sys.setswitchinterval(before)
    stopping.join()
    assert faults == []
    for post in posted:
        post()
    assert answers == dict.fromkeys(range(EACH * ROUNDS), 1)
