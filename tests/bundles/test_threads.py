"""One policy that several threads ask answers each of them as if it were alone."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import Policy, local_policy_inference
from tests.bundles.cases import algorithm_of, observations, same
from tests.bundles.stacked import stacking

THREADS, ROUNDS = 4, 300


def in_threads(work: Any) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


@pytest.mark.parametrize("kind", ["lstm", "nested", "masked"])
def test_threads_get_the_answers_to_their_own_observations(kind: str, tmp_path: Path) -> None:
    with algorithm_of(kind) as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
    policy: Any = Policy.from_checkpoint(tmp_path / "policy")
    shown = observations(policy, 20)
    state = policy.get_initial_state() or None
    wanted = [policy.act(obs, state=state) for obs in shown]

    def wrong(thread: int) -> int:
        chosen = np.random.default_rng(thread).integers(0, len(shown), ROUNDS).tolist()
        return sum(not same(policy.act(shown[place], state=state), wanted[place]) for place in chosen)

    assert in_threads(wrong) == [0] * THREADS


def test_threads_keep_the_frames_of_their_own_agents() -> None:
    with stacking("lstm") as algorithm:
        policy = algorithm.get_policy()
        shown = observations(policy, 6)

        def play(thread: int) -> Any:
            told = []
            for number in range(20):
                for step, obs in enumerate(shown):
                    ended = {"terminated": step == len(shown) - 1}
                    told += local_policy_inference(policy, "env", thread, obs, explore=False, **ended)
                assert number == 0 or same(told[-len(shown) :], told[: len(shown)])
            return told

        alone = play(-1)
        assert all(same(told, alone) for told in in_threads(play))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_acts_can_act(monkeypatch: pytest.MonkeyPatch) -> None:
    with algorithm_of("mlp") as algorithm:
        policy: Any = algorithm.get_policy()
        obs = observations(policy, 1)[0]
        wanted, preprocess = policy.act(obs), type(policy.networks.preprocess).__call__
        acting, forked = threading.Event(), threading.Event()

        def slow(self: Any, *given: Any) -> Any:
            acting.set()
            forked.wait(20)
            return preprocess(self, *given)

        monkeypatch.setattr(type(policy.networks.preprocess), "__call__", slow)
        asking = threading.Thread(target=policy.act, args=(obs,))
        asking.start()
        acting.wait(20)
        child = os.fork()
        if not child:
            signal.alarm(20)
            forked.set()
            os._exit(0 if same(policy.act(obs), wanted) else 1)
        forked.set()
        asking.join()
        assert os.waitpid(child, 0)[1] == 0
