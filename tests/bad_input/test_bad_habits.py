"""Habits that would give wrong results without a word are refused by name."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from menv import Episode
from menv.algorithms import PPO
from menv.errors import ConfigError, ContractError
from tests.bad_input.broken_envs import Faulty
from tests.inside import base_env
from tests.worlds import Alone, like

ENDLESS = 10**9


def test_one_environment_for_several_sub_environments_is_refused() -> None:
    shared = Faulty()
    with pytest.raises(ConfigError, match="sub-environment 1"):
        PPO(env=lambda context: shared, config={"num_envs_per_worker": 2})


# Its episodes never end.
Endless = like(Faulty, length=0)


@pytest.mark.each_value
@pytest.mark.parametrize("unit", ["episodes", "timesteps"])
@pytest.mark.parametrize(
    "env",
    [Endless, lambda context: gym.vector.SyncVectorEnv([lambda: Alone(length=ENDLESS)] * 2)],
    ids=["single", "together"],
)
def test_an_evaluation_does_not_wait_for_ever_for_the_end_of_an_episode(
    monkeypatch: pytest.MonkeyPatch, env: Any, unit: str
) -> None:
    monkeypatch.setattr("menv.sampling.fragment_limit.LONGEST", 1_000)
    config = {"train_batch_size": 8, "inference": "onnx", "evaluation_duration_unit": unit}
    with PPO(env=env, config=config) as algo, pytest.raises(ContractError, match="evaluation"):
        algo.evaluate()


class Crashing(Alone):
    """No episode is finished, and each comes far enough to be no reason to end the run."""

    length = ENDLESS

    def pay(self, action: Any) -> float:
        if self.at == 300:
            raise RuntimeError("unstable")
        return 1.0


@pytest.mark.filterwarnings("ignore:.*unstable")
@pytest.mark.parametrize("unit", ["episodes", "timesteps"])
def test_an_evaluation_does_not_wait_for_ever_where_every_episode_crashes(
    monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    monkeypatch.setattr("menv.sampling.fragment_limit.LONGEST", 1_000)
    config = {"inference": "onnx", "evaluation_duration_unit": unit}
    with PPO(env=lambda context: Crashing(), config=config) as algo:
        if unit == "timesteps":
            assert algo.evaluate()["evaluation"]["num_faulty_episodes"] == 1
        else:
            with pytest.raises(ContractError, match="evaluation"):
                algo.evaluate()


def test_a_sub_environment_reset_without_the_sampler_is_named_and_corrupts_nothing() -> None:
    algo = PPO(env=Faulty, config={"train_batch_size": 8})
    algo.sample()
    base_env(algo).try_reset(0, seed=1)
    with pytest.raises(ContractError):
        algo.sample()


def test_the_dry_run_lets_a_mapping_look_at_the_agents_before() -> None:
    def mapping(agent_id: str, episode: Episode) -> str:
        return "p" if agent_id == "ann" else {"p": "q", "q": "p"}[episode.policy_for("ann")]

    multiagent = {"policies": ["p", "q"], "policy_mapping_fn": mapping}
    batch = PPO(env=Faulty, config={"train_batch_size": 8, "multiagent": multiagent}).sample()
    assert set(batch) == {"p", "q"}
    pieces = [set(batch[policy]["unroll_id"].tolist()) for policy in batch]
    assert pieces[0].isdisjoint(pieces[1])


def test_a_parameter_called_worker_is_given_the_worker() -> None:
    seen: list[Any] = []

    def mapping(agent_id: str, worker: Any) -> str:
        seen.append(worker.worker_index)
        return "p"

    PPO(env=Faulty, config={"multiagent": {"policies": ["p"], "policy_mapping_fn": mapping}})
    assert set(seen) == {0}


def test_classic_settings_that_match_menvs_behaviour_are_accepted_without_a_warning() -> None:
    config = {
        "remote_worker_envs": False,
        "observation_filter": "NoFilter",
        "use_gae": True,
        "callbacks": None,
    }
    assert PPO(env=Faulty, config=config).config.env is Faulty
