"""Workers go on where whoever asked them something else than for a fragment was interrupted, or could not ask."""

from __future__ import annotations

import signal
import warnings
from typing import Any

import pytest

from menv.errors import EnvFaultWarning
from tests.interrupting import raised_at
from tests.workers.crews import running
from tests.workers.drivers import ROLLOUTS, WORKERS

EVERY = 59
"""Instructions from one interrupt to the next; a prime number, so that each falls elsewhere in a loop."""
NEWCOMER = {"policy_mapping_fn": lambda *args, **kwargs: "newcomer"}


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answers that are still waited for before Ctrl-C, once; [] for none."""
    left: list[int] = []
    answer = WORKERS.answer

    def answer_or_interrupt(self: Any, index: int) -> Any:
        if left:
            left[0] -= 1
            if left[0] < 0:
                left.clear()
                raise KeyboardInterrupt
        return answer(self, index)

    monkeypatch.setattr(WORKERS, "answer", answer_or_interrupt)
    return left


@pytest.mark.slow_unless("0")
@pytest.mark.parametrize("answers", [0, 1])
def test_an_interrupted_addition_changes_nothing_for_workers(interrupted: list[int], answers: int) -> None:
    with running(2, num_envs_per_worker=1) as undisturbed:
        expected = [undisturbed.train()["digest"]]
        undisturbed.add_policy("newcomer", **NEWCOMER)
        expected += [undisturbed.train()["digest"] for _ in range(2)]
    with running(2, num_envs_per_worker=1) as algo:
        found = [algo.train()["digest"]]
        interrupted.append(answers)
        with pytest.raises(KeyboardInterrupt):
            algo.add_policy("newcomer", **NEWCOMER)
        found += [algo.train()["digest"] for _ in range(2)]
        assert found == expected
        assert algo.train()["num_worker_restarts"] == 0


@pytest.mark.slow_unless("True")
@pytest.mark.parametrize("overlap", [False, True])
def test_the_next_iteration_comes_wherever_a_fragment_was_interrupted(overlap: bool) -> None:
    settings = {
        "rollout_fragment_length": 3,
        "train_batch_size": 6,
        "sgd_minibatch_size": 6,
        "overlap": overlap,
    }
    with running(1, env="tests.workers.crews:Counting", **settings) as algo, warnings.catch_warnings():
        # Of workers that are let go of in the midst of a message.
        warnings.simplefilter("ignore", EnvFaultWarning)
        algo.sample()
        at = 0
        while raised_at(at, algo.sample):
            assert algo.sample().env_steps() == 6
            at += EVERY
        assert at > 10 * EVERY


@pytest.mark.slow_unless("True")
@pytest.mark.parametrize("overlap", [False, True])
def test_ctrl_c_drops_no_fragment_that_was_counted(
    overlap: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # Two workers of two environments: two fragments fill a batch.
    settings = {
        "overlap": overlap,
        "train_batch_size": 32,
        "sgd_minibatch_size": 16,
        "rollout_fragment_length": 4,
    }
    # Test runners beside each other ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    counts = ("num_env_steps_sampled", "num_env_steps_trained", "num_agent_steps_trained")
    with running(2, **settings) as undisturbed:
        undisturbed.train()
        expected = undisturbed.train()
    with running(2, **settings) as algo:
        algo.train()
        joined = ROLLOUTS._together
        for _ in range(2):
            monkeypatch.setattr(ROLLOUTS, "_together", interrupted_after(joined))
            with pytest.raises(KeyboardInterrupt):
                algo.train()
            monkeypatch.undo()
        result = algo.train()
    assert {key: result[key] for key in counts} == {key: expected[key] for key in counts}


def interrupted_after(joined: Any) -> Any:
    """Return a method that puts fragments together, and gets Ctrl-C before it returns."""

    def together(self: Any, fragments: Any) -> Any:
        found = joined(self, fragments)
        signal.raise_signal(signal.SIGINT)
        return found

    return together
