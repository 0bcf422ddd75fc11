"""Workers go on where whoever asked them something else than for a fragment was interrupted, or could not ask."""

from __future__ import annotations

import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import Policy, PolicySpec
from menv.algorithms.rollouts.remote_rollouts import RemoteRollouts
from menv.algorithms.rollouts.worker_group import WorkerGroup
from menv.connectors import FlattenDataAgentConnector
from menv.errors import ConfigError, EnvFaultWarning
from tests.interrupting import raised_at
from tests.workers.crews import running

EVERY = 59
"""Instructions from one interrupt to the next; a prime number, so that each falls elsewhere in a loop."""
NEWCOMER = {"policy_mapping_fn": lambda *args, **kwargs: "newcomer"}


class Bound(Policy):
    """Holds what cannot go to another process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        return [0] * len(obs_batch), [], {}


class Holding(FlattenDataAgentConnector):
    """Cannot go to another process either."""

    def __init__(self, ctx: Any) -> None:
        super().__init__(ctx)
        self.lock = threading.Lock()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answers that are still waited for before Ctrl-C, once; [] for none."""
    left: list[int] = []
    answer = WorkerGroup.answer

    def answer_or_interrupt(self: WorkerGroup, index: int) -> Any:
        if left:
            left[0] -= 1
            if left[0] < 0:
                left.clear()
                raise KeyboardInterrupt
        return answer(self, index)

    monkeypatch.setattr(WorkerGroup, "answer", answer_or_interrupt)
    return left


@pytest.mark.slow_unless("0")
@pytest.mark.parametrize("answers", [0, 1])
def test_an_interrupted_save_or_addition_changes_nothing_for_workers(
    interrupted: list[int], tmp_path: Path, answers: int
) -> None:
    with running(2, num_envs_per_worker=1) as undisturbed:
        expected = [undisturbed.train()["digest"]]
        undisturbed.add_policy("newcomer", **NEWCOMER)
        expected += [undisturbed.train()["digest"] for _ in range(2)]
    with running(2, num_envs_per_worker=1) as algo:
        interrupted.append(answers)
        with pytest.raises(KeyboardInterrupt):
            algo.save(tmp_path)
        found = [algo.train()["digest"]]
        interrupted.append(answers)
        with pytest.raises(KeyboardInterrupt):
            algo.add_policy("newcomer", **NEWCOMER)
        found += [algo.train()["digest"] for _ in range(2)]
        assert found == expected
        assert algo.train()["num_worker_restarts"] == 0


@pytest.mark.slow_unless("True-True")
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_weights_that_are_set_about_an_interrupted_iteration_reach_all_workers(
    interrupted: list[int], overlap: bool, later: bool
) -> None:
    names = ["learns", "opponent"]
    mapping = {
        "policies": names,
        "policy_mapping_fn": lambda agent_id, episode, *args, **kwargs: names[episode.episode_id % 2],
        "policies_to_train": names[:1],
    }
    with running(2, multiagent=mapping, overlap=overlap) as algo:
        for _ in range(2):
            algo.train()
        weights = {key: 5 * value for key, value in algo.get_weights()["opponent"].items()}
        if not later:
            algo.set_weights({"opponent": weights})
        # With overlap one answer is all that is waited for before anybody is asked again.
        interrupted.append(1 - overlap)
        with pytest.raises(KeyboardInterrupt):
            algo.train()
        if later:
            algo.set_weights({"opponent": weights})
        for _ in range(3):
            algo.train()
        rows, policy = algo.sample()["opponent"], algo.get_policy("opponent")
        now = policy.networks.backend.evaluate(policy.index, rows["obs"], None, rows["actions"])
        np.testing.assert_allclose(rows["action_logp"], now.logp, atol=1e-5)


@pytest.mark.parametrize("settings", [{"num_workers": 1}, {"num_workers": 0, "evaluation_num_workers": 1}])
def test_a_connector_that_cannot_be_told_to_workers_is_named_each_time(settings: dict[str, Any]) -> None:
    with running(**settings) as algo:
        ask = algo.train if algo.config.num_workers else algo.evaluate
        ask()
        connectors = algo.get_policy().agent_connectors
        connectors.append(Holding(connectors.ctx))
        for _ in range(2):
            with pytest.raises(ConfigError, match="lock"):
                ask()
        connectors.remove("Holding")
        ask()


def test_what_cannot_be_told_to_workers_leaves_nothing_behind() -> None:
    lock = threading.Lock()

    def holds_a_lock(*args: Any, **kwargs: Any) -> str:
        return "default_policy" if lock else "newcomer"

    with running(1) as algo:
        algo.train()
        for spec, mapping_fn in (
            (None, holds_a_lock),
            (PolicySpec(policy_class=Bound), NEWCOMER["policy_mapping_fn"]),
        ):
            with pytest.raises(ConfigError, match="lock"):
                algo.add_policy("newcomer", spec, policy_mapping_fn=mapping_fn)
            assert list(algo.get_weights()) == ["default_policy"]
            algo.train()
        algo.add_policy("newcomer", **NEWCOMER)
        with pytest.raises(ConfigError, match="lock"):
            algo.remove_policy("newcomer", policy_mapping_fn=holds_a_lock)
        assert list(algo.get_weights()) == ["default_policy", "newcomer"]
        algo.train()
        assert set(algo.sample().policy_batches) == {"newcomer"}


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
        joined = RemoteRollouts._together
        for _ in range(2):
            monkeypatch.setattr(RemoteRollouts, "_together", interrupted_after(joined))
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
