"""Answers that are made beside the server's loop, where another thread stops everything meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from menv.errors import CallOrderError, ConfigError
from menv.serving.protocol import BadMessageError, ErrorCode
from menv.serving.session import SamplerTaskQueue
from tests.serving.talks import eventually

EACH = 3
ROUNDS = 200


def test_errands_are_answered_once_whether_they_were_made_or_the_server_was_stopped() -> None:
    answers: Counter[int] = Counter()
    for number in range(ROUNDS):
        posted: list[Callable[[], object]] = []
        errands = SamplerTaskQueue(lambda: None, posted.append)
        stopping = threading.Thread(target=errands.stop, args=(CallOrderError("over"),), daemon=True)
        for errand in range(EACH * number, EACH * number + EACH):
            errands.add(lambda: None, lambda _, errand=errand: answers.update([errand]))  # type: ignore[misc]
        stopping.start()
        errands.add_later(errands, lambda _, number=number: answers.update([-number]))  # type: ignore[misc]
        stopping.join()
        for post in posted:
            post()
    assert answers == dict.fromkeys(range(1 - ROUNDS, EACH * ROUNDS), 1) | {0: 2}


def test_what_cannot_be_made_is_answered_and_a_fault_of_the_servers_is_noted() -> None:
    posted: list[Callable[[], object]] = []
    errands = SamplerTaskQueue(lambda: None, posted.append)
    answers: list[object] = []

    def refuse() -> None:
        raise ConfigError("policy 'p': it has no such form")

    errands.add(refuse, answers.append)
    errands.add(lambda: 1 / 0, answers.append)
    assert eventually(lambda: len(posted) == 2)
    errands.stop(CallOrderError("over"))
    posted[0]()
    with pytest.raises(ZeroDivisionError):
        posted[1]()
    refused, internal = answers
    assert isinstance(refused, ConfigError)
    assert isinstance(internal, BadMessageError)
    assert internal.code == ErrorCode.INTERNAL
