"""What hooks, functions of the user's and other threads call of an algorithm that is at work."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from menv.algorithms import PPO, Algorithm
from menv.callbacks import DefaultCallbacks
from menv.errors import CallOrderError
from tests.algorithms_e2e.test_policies_on_the_fly import Duo, to
from tests.checkpoints.runs import SMALL, trained, weights_of

EVALUATED: dict[str, Any] = {**SMALL, "evaluation_interval": 1, "evaluation_duration": 2}
BETWEEN = "expected to stand between two; call it after train() or sample(), or in on_train_result"
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
def test_what_wants_a_whole_run_is_refused_where_it_is_half_done(
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
def test_another_thread_is_refused_while_one_is_at_work_which_goes_on(
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
        assert re.match(f"{name}: another thread is at work, expected none; ", line)
    assert not (tmp_path / "other").exists() or name == "save"


def test_another_thread_changes_policies_when_an_evaluation_is_over() -> None:
    threads: list[threading.Thread] = []
    meanwhile: list[set[str]] = []

    def add(algo: Algorithm) -> None:
        if not threads:
            change = partial(algo.add_policy, "new", policy_mapping_fn=to(agent0="new"))
            threads.append(threading.Thread(target=change))
            threads[0].start()
            threads[0].join(0.5)
        meanwhile.append(set(algo.get_weights()))

    settings, _, algos = calling("on_episode_end", add)
    with PPO(env="CartPole-v1", config={**EVALUATED, **settings}) as algo:
        algos.append(algo)
        assert algo.evaluate()["evaluation"]["episodes_this_iter"] == 2
        threads[0].join(60)
        assert meanwhile == [{"default_policy"}] * 2
        assert set(algo.get_weights()) == {"default_policy", "new"}


def test_train_waits_for_another_thread_that_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving, go_on = threading.Event(), threading.Event()
    with PPO(env="CartPole-v1", config=SMALL) as algo, PPO(env="CartPole-v1", config=SMALL) as quiet:
        files = algo._checkpoints.files

        def slowly() -> Any:
            saving.set()
            go_on.wait(60)
            return files()

        monkeypatch.setattr(type(algo._checkpoints), "files", lambda _: slowly())
        thread = threading.Thread(target=algo.save, args=(tmp_path,))
        thread.start()
        assert saving.wait(60)
        threading.Timer(0.2, go_on.set).start()
        digest = algo.train()["digest"]
        assert go_on.is_set()
        thread.join(60)
        monkeypatch.undo()
        assert quiet.train()["digest"] == digest
        with PPO.from_checkpoint(tmp_path) as again:
            assert again.iteration == 0
            assert again.train()["digest"] == digest
