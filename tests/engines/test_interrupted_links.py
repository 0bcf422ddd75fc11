"""Processes whose link was interrupted in the midst of a message: they are lost, and the reason is told."""

import itertools

import pytest

from menv.errors import WorkerLostError
from tests.engines.homes import Counter
from tests.engines.peers import make_engine
from tests.interrupting import raised_at


def test_a_process_lost_to_an_interrupt_is_reported_as_interrupted() -> None:
    engine = make_engine("process")
    try:
        peer = engine.start(Counter, label="worker 1")
        peer.answer()
        for instruction in itertools.count(1):
            peer.ask(Counter.add, 1)
            engine.wait([peer])
            interrupted = raised_at(instruction, peer.answer)
            if peer.was_interrupted:
                break
            assert interrupted
            while peer.pending:
                peer.answer()
        assert interrupted
        peer.ask(Counter.add, 1)
        with pytest.raises(WorkerLostError, match=r"worker 1.*interrupted"):
            peer.answer()
    finally:
        engine.stop()
