"""What hooks, functions of the user's and other threads call of an algorithm that is at work."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from menv.algorithms import PPO, Algorithm
from menv.callbacks import DefaultCallbacks
from menv.errors import CallOrderError
from tests.algorithms_e2e.test_policies_on_the_fly import Duo
from tests.checkpoints.runs import SMALL, trained, weights_of

EVALUATED: dict[str, Any] = {**SMALL, "evaluation_interval": 1, "evaluation_duration": 2}
BETWEEN = "expected a call between two fragments; call it after train() or sample(), or in on_train_result"
SAMPLED, PLAYED, TRAINED = (
    "a fragment is being sampled",
    "an evaluation is running",
    "an iteration is being trained",
)


def calling(hook: str, call: Callable[[Algorithm], Any]) -> tuple[dict[str, Any], list[Any], list[Algorithm]]:
    """Return settings whose hook, or mapping, calls something, and where the errors and the algorithm go."""
    told: list[Any] = []
    algos: list[Algorithm] = []

    def seat(*args: Any, **kwargs: Any) -> str:
        for algo in algos:
            try:
                call(algo)
            except CallOrderError as error:
                told.append(str(error))
            else:
                told.append(None)
        return "default_policy"

    if hook == "policy_mapping_fn":
        return {"multiagent": {"policies": {"default_policy"}, hook: seat}}, told, algos
    return {"callbacks": type("Calls", (DefaultCallbacks,), {hook: seat})}, told, algos


@pytest.mark.slow_unless("save-*", "*-half0")
@pytest.mark.parametrize(
    ("hook", "half"),
    [
        ("on_learn_on_batch", {TRAINED}),
        ("on_sample_end", {SAMPLED, PLAYED}),
        ("on_episode_end", {SAMPLED, PLAYED}),
        ("policy_mapping_fn", {SAMPLED, PLAYED}),
    ],
)
@pytest.mark.parametrize("name", ["save", "restore", "train"])
def test_calls_that_need_a_complete_run_are_refused_in_a_half_restored_one(
    name: str, hook: str, half: set[str], tmp_path: Path
) -> None:
    settings, told, algos = calling(hook, lambda algo: getattr(algo, name)(*folder))
    folder = [] if name == "train" else [tmp_path / "run"]
    with PPO(env=Duo, config=EVALUATED) as quiet:
        quiet.save(tmp_path / "run")
        digests = [quiet.train()["digest"] for _ in range(2)]
    with PPO(env=Duo, config={**EVALUATED, **settings}) as algo:
        algos.append(algo)
        assert [algo.train()["digest"] for _ in range(2)] == digests
    assert set(told) == {f"{name}: {what}, {BETWEEN}" for what in half}
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()] == ["000000"]


@pytest.mark.parametrize("hook", ["on_evaluate_end", "on_train_result"])
def test_what_is_saved_in_the_last_hooks_of_an_iteration_is_the_run_at_its_end(
    hook: str, tmp_path: Path
) -> None:
    saved: list[Any] = []

    def save(algo: Algorithm) -> None:
        if algo.iteration == 2:
            algo.save(tmp_path, keep_best=("training_iteration", 1))
            saved.append(weights_of(algo))

    settings, told, algos = calling(hook, save)
    with PPO(env="CartPole-v1", config={**EVALUATED, **settings}) as algo:
        algos.append(algo)
        trained(algo, 3)
        assert told == [None] * 3
        with PPO.from_checkpoint(tmp_path, {"callbacks": None}) as again:
            assert again.iteration == 2
            assert [weights_of(again)] == saved
            assert again.train()["training_iteration"] == 3


CALLS: dict[str, Callable[[Algorithm, Path], Any]] = {
    "save": lambda algo, path: algo.save(path / "other"),
    "restore": lambda algo, path: algo.restore(path / "run"),
    "train": lambda algo, path: algo.train(),
    "sample": lambda algo, path: algo.sample(),
    "evaluate": lambda algo, path: algo.evaluate(),
    "compute_single_action": lambda algo, path: algo.compute_single_action(
        algo.get_policy().observation_space.sample()
    ),
}


@pytest.mark.slow_unless("save-*", "*-on_learn_on_batch")
@pytest.mark.parametrize("hook", ["on_learn_on_batch", "on_sample_end", "on_train_result"])
@pytest.mark.parametrize("name", CALLS)
def test_another_thread_is_refused_while_one_is_at_work_which_continues(
    name: str, hook: str, tmp_path: Path
) -> None:
    told: list[str] = []

    def elsewhere(algo: Algorithm) -> None:
        def call() -> None:
            try:
                CALLS[name](algo, tmp_path)
            except CallOrderError as error:
                told.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(60)

    settings, called, algos = calling(hook, elsewhere)
    with PPO(env="CartPole-v1", config=EVALUATED) as quiet:
        quiet.save(tmp_path / "run")
        digests = [quiet.train()["digest"] for _ in range(2)]
    with PPO(env="CartPole-v1", config={**EVALUATED, **settings}) as algo:
        algos.append(algo)
        assert [algo.train()["digest"] for _ in range(2)] == digests
        algos.clear()
        # Once the other thread has nothing underway, anybody may.
        elsewhere(algo)
    assert len(told) == len(called) > 1
    for line in told:
        assert re.match(f"{name}: another thread is using this algorithm; ", line)
    assert not (tmp_path / "other").exists() or name == "save"
