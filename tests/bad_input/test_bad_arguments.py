"""Arguments of calls that are of another kind are refused in a line, and those that anybody would expect are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import DefaultCallbacks, Policy, export_onnx
from menv.algorithms import PPO
from menv.errors import CallOrderError, ConfigError, ContractError, MenvError
from tests.bad_input.broken_envs import GOOD, SMALL, Faulty, checked


@pytest.fixture(scope="module")
def algo() -> Iterator[PPO]:
    with PPO(env=Faulty, config=SMALL) as algo:
        yield algo


@pytest.fixture(scope="module")
def saved(algo: PPO, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return algo.save(tmp_path_factory.mktemp("saved"))


PATHS: list[Any] = [3, ["run"], b"run", 1.5, "a\0b"]
IDS: list[Any] = [3, [3], [None], True]
STATES: list[Any] = [3, {"h": 1}, "state", np.array(3)]
REFUSED: list[tuple[str, type[MenvError], list[Any], Callable[[Any, Path, Any], Any]]] = [
    ("save: ", ConfigError, PATHS, lambda algo, saved, path: algo.save(path)),
    ("checkpoint: ", ConfigError, [*PATHS, None], lambda algo, saved, path: algo.restore(path)),
    ("checkpoint: ", ConfigError, PATHS, lambda algo, saved, path: PPO.from_checkpoint(path)),
    ("from_checkpoint: ", ConfigError, PATHS, lambda algo, saved, path: Policy.from_checkpoint(path)),
    ("export_checkpoint: ", ConfigError, PATHS, lambda algo, saved, path: algo.export_policy_checkpoint(path)),
    ("export_onnx: ", ConfigError, PATHS, lambda algo, saved, path: export_onnx(algo.get_policy(), path)),
    ("policy_ids", ConfigError, IDS, lambda algo, saved, ids: algo.get_weights(ids)),
    ("policy_ids", ConfigError, IDS, lambda algo, saved, ids: Policy.from_checkpoint(saved, ids)),
    ("policy_ids", ConfigError, IDS, lambda algo, saved, ids: PPO.from_checkpoint(saved, policy_ids=ids)),
    (
        "remove_policy: .*'default_policy'", ConfigError, [[], {}, ["default_policy"], None],
        lambda algo, saved, policy_id: algo.remove_policy(policy_id),
    ),
    (
        "policy 'default_policy': obs_batch", ContractError,
        [None, 3, np.array(3), {1: GOOD}, {1, 2}, "obs", iter([GOOD])],
        lambda algo, saved, batch: algo.get_policy().compute_actions(batch),
    ),
    (
        "compute_single_action: explore", ConfigError, ["no", [], np.array([True, False]), 0.5],
        lambda algo, saved, explore: algo.compute_single_action(GOOD, explore=explore),
    ),
]  # fmt: skip
OF_STATES: list[Callable[[Any, Any], Any]] = [
    lambda algo, state: algo.compute_single_action(GOOD, state=state),
    lambda algo, state: algo.get_policy().act(GOOD, state=state),
    lambda algo, state: algo.get_policy().compute_actions([GOOD], state),
]


@pytest.mark.parametrize(("named", "error", "wrong", "call"), REFUSED)
def test_an_argument_of_another_kind_is_refused_by_name(
    algo: PPO, saved: Path, named: str, error: Any, wrong: list[Any], call: Any
) -> None:
    for value in wrong:
        with pytest.raises(error, match=named) as caught:
            call(algo, saved, value)
        checked(str(caught.value))


@pytest.mark.parametrize("call", OF_STATES)
def test_a_state_that_is_not_a_list_is_refused(call: Any) -> None:
    with PPO(env=Faulty, config={**SMALL, "model": {"use_lstm": True, "lstm_cell_size": 4}}) as remembers:
        for state in STATES:
            with pytest.raises(ContractError, match=r"state.*get_initial_state") as caught:
                call(remembers, state)
            checked(str(caught.value))


def test_restoring_in_the_middle_of_a_fragment_is_refused_and_the_fragment_continues(saved: Path) -> None:
    told: list[str] = []

    class Restores(DefaultCallbacks):
        def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
            with pytest.raises(CallOrderError) as caught:
                runs[0].restore(saved)
            told.append(str(caught.value))

    with PPO(env=Faulty, config={**SMALL, "callbacks": Restores}) as run:
        runs = [run]
        result = run.train()
    assert result["num_env_steps_sampled"] == SMALL["train_batch_size"]
    (line,) = set(told)
    assert line.startswith("restore: ")
