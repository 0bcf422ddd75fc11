"""Drivers that may open no more files when something large comes, whose memory is a file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from menv.errors import EnvFaultWarning, NoRoomError
from menv.workers.engine import RemoteActor
from menv.workers.process_engine import ProcessEngine
from tests.engines.homes import Counter
from tests.engines.processes import files_left
from tests.workers.crews import running

LARGE = np.arange(100_000.0)
SAID = r"Too many open files, expected room for one more open file .*ulimit -n"


@pytest.fixture
def peer() -> Iterator[RemoteActor]:
    """Something elsewhere that has been asked to send `LARGE` back."""
    engine = ProcessEngine()
    peer = engine.start(Counter, label="worker 1")
    assert peer.answer() is None
    peer.ask(Counter.echo, engine.put(LARGE))
    yield peer
    engine.stop()


def test_what_is_large_is_refused_where_no_file_is_left_and_nobody_waits_for_it(peer: RemoteActor) -> None:
    with files_left(0):
        with pytest.raises(NoRoomError, match=SAID):
            peer.ask(Counter.echo, LARGE)
        with pytest.raises(NoRoomError, match=SAID):
            peer.answer()


def test_what_is_large_is_taken_with_the_last_file_that_is_left(peer: RemoteActor) -> None:
    with files_left(1):
        assert np.array_equal(peer.answer(), LARGE)


@pytest.mark.slow
def test_a_run_goes_on_when_there_are_files_again() -> None:
    with running(1, train_batch_size=4000) as algo:
        algo.train()
        with files_left(0), pytest.raises(NoRoomError, match=SAID):
            algo.train()
        with pytest.warns(EnvFaultWarning, match="another worker was started"):
            assert algo.train()["num_env_steps_sampled_this_iter"] == 4000
