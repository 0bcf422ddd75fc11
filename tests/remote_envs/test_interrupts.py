"""Whoever asks environments in other processes may be interrupted anywhere, or ask what cannot be sent, and goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from menv import to_base_env
from menv.algorithms import PPO
from menv.env_context import EnvContext
from menv.workers.pipe_channel import UnsendableError
from tests.interrupting import raised_at
from tests.remote_envs.far import Counting

EVERY = 997
"""Instructions from one interrupt to the next; a prime number, so that each falls elsewhere in a loop."""


@contextmanager
def returning() -> Iterator[None]:
    """Raise if what is done within never returns."""

    def give_up(*_: object) -> None:
        raise AssertionError("it did not return")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_what_cannot_be_sent_to_an_environment_leaves_nothing_to_wait_for() -> None:
    def make(index: int) -> Counting:
        return Counting(EnvContext({}, vector_index=index))

    env = to_base_env(make(0), make, num_envs=2, remote_envs=True, engine="process")
    try:
        env.poll()
        with pytest.raises(UnsendableError, match=r"call: args.* is a lock"):
            env.call(0, "set_level", threading.Lock())
        with returning():
            assert env.call(0, "set_level", 3) == (3, 0)
    finally:
        env.stop()


def counting(num_envs: int, length: int) -> PPO:
    """Return a run of remote environments with fragments of so many steps of each."""
    config = {
        "env": Counting, "engine": "process", "remote_worker_envs": True, "num_envs_per_worker": num_envs, "seed": 1,
        "rollout_fragment_length": length, "train_batch_size": num_envs * length, "model": {"fcnet_hiddens": [4]},
    }  # fmt: skip
    return PPO(config=config)


def test_a_run_goes_on_wherever_a_fragment_was_interrupted() -> None:
    with counting(num_envs=2, length=3) as algo:
        algo.sample()
        at = 0
        while raised_at(at, algo.sample):
            with returning():
                assert algo.sample().env_steps() == 6
            at += EVERY
        assert at > 10 * EVERY


def test_methods_of_environments_can_be_called_wherever_a_fragment_was_interrupted() -> None:
    with counting(num_envs=1, length=2) as algo:
        algo.sample()
        at = 0
        while raised_at(at, algo.sample):
            with returning():
                assert algo.call_envs("set_level", at) == [(at, 0)]
                assert algo.sample().env_steps() == 2
            at += EVERY
        assert at > 10 * EVERY
