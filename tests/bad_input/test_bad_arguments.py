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


@pytest.fixture(scope="module")
def remembers() -> Iterator[PPO]:
    with PPO(env=Faulty, config={**SMALL, "model": {"use_lstm": True, "lstm_cell_size": 4}}) as algo:
        yield algo


def refused(call: Callable[[], Any], message: str, error: type[MenvError] = ConfigError) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    checked(str(caught.value))


@pytest.mark.parametrize("path", [3, ["run"], b"run", 1.5, "a\0b"])
def test_an_invalid_path_is_refused(algo: PPO, path: Any) -> None:
    policy = algo.get_policy()
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("save", lambda: algo.save(path)),
        ("checkpoint", lambda: algo.restore(path)),
        ("checkpoint", lambda: PPO.from_checkpoint(path)),
        ("from_checkpoint", lambda: Policy.from_checkpoint(path)),
        ("export_checkpoint", lambda: algo.export_policy_checkpoint(path)),
        ("export_onnx", lambda: export_onnx(policy, path)),
    ]
    for where, call in calls:
        refused(call, f"{where}: ")


def test_a_restore_from_none_says_what_a_path_is(algo: PPO) -> None:
    refused(lambda: algo.restore(None), "checkpoint: None")  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [3, [3], [None], True])
def test_invalid_policy_ids_are_refused(algo: PPO, saved: Path, ids: Any) -> None:
    for call in (
        lambda: algo.get_weights(ids),
        lambda: Policy.from_checkpoint(saved, ids),
        lambda: PPO.from_checkpoint(saved, policy_ids=ids),
    ):
        refused(call, "policy_ids")


@pytest.mark.parametrize("policy_id", [[], {}, ["default_policy"], None])
def test_a_policy_to_remove_that_has_no_id_is_refused(algo: PPO, policy_id: Any) -> None:
    refused(lambda: algo.remove_policy(policy_id), "remove_policy: .*'default_policy'")


@pytest.mark.parametrize("batch", [None, 3, np.array(3), {1: GOOD}, {1, 2}, "obs", iter([GOOD])])
def test_a_batch_of_observations_must_be_a_list(algo: PPO, batch: Any) -> None:
    call = lambda: algo.get_policy().compute_actions(batch)  # noqa: E731
    refused(call, "policy 'default_policy': obs_batch", ContractError)


@pytest.mark.parametrize("state", [3, {"h": 1}, "state", np.array(3)])
def test_a_state_that_is_not_a_list_is_refused(remembers: PPO, state: Any) -> None:
    policy = remembers.get_policy()
    for call in (
        lambda: remembers.compute_single_action(GOOD, state=state),
        lambda: policy.act(GOOD, state=state),
        lambda: policy.compute_actions([GOOD], state),
    ):
        refused(call, "state.*get_initial_state", ContractError)


@pytest.mark.parametrize("explore", ["no", [], np.array([True, False]), 0.5])
def test_an_explore_setting_that_is_not_a_flag_is_refused(algo: PPO, explore: Any) -> None:
    call = lambda: algo.compute_single_action(GOOD, explore=explore)  # noqa: E731
    refused(call, "compute_single_action: explore")


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
