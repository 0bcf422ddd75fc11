"""Habits that would give wrong results without a word are refused by name."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import Episode, check_env, to_base_env
from menv.algorithms import PPO, ModelConfig, MultiAgentConfig, PPOConfig
from menv.errors import ConfigError, ContractError, EnvCrashError
from menv.multi_agent_env import StepDicts
from menv.sampling import fragment_limit
from tests.bad_input.broken_envs import SMALL, Faulty, FaultyGym
from tests.inside import base_env
from tests.worlds import Alone

ENDLESS = 10**9


def test_one_environment_for_several_sub_environments_is_refused() -> None:
    shared = Faulty()
    with pytest.raises(ConfigError, match=r"sub-environment 1 is the same object .* inside the function"):
        PPO(env=lambda context: shared, config={"num_envs_per_worker": 2})


@pytest.mark.parametrize("kind", [Faulty, FaultyGym])
def test_a_reset_whose_parameters_have_no_defaults_is_given_both(kind: Any) -> None:
    class Wants(kind):  # type: ignore[misc]
        def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
            return super().reset(seed=seed, options=options)

    for seed in (None, 1):
        with PPO(env=Wants, config={"train_batch_size": 8, "seed": seed}) as algo:
            assert algo.train()["num_env_steps_sampled"] == 8
    assert not {finding.code for finding in check_env(Wants)} & {"ME010", "ME091"}


class Endless(Faulty):
    """Its episodes never end."""

    def step(self, action_dict: Any) -> StepDicts:
        """Go on."""
        self.at = 0
        return super().step(action_dict)


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
    monkeypatch.setattr(fragment_limit, "LONGEST", 1_000)
    config = {"train_batch_size": 8, "inference": "onnx", "evaluation_duration_unit": unit}
    with (
        PPO(env=env, config=config) as algo,
        pytest.raises(ContractError, match=r"evaluation: env 0 took 1\d\d\d env steps without the end"),
    ):
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
    monkeypatch.setattr(fragment_limit, "LONGEST", 1_000)
    config = {"inference": "onnx", "evaluation_duration_unit": unit}
    with PPO(env=lambda context: Crashing(), config=config) as algo:
        if unit == "timesteps":
            assert algo.evaluate()["evaluation"]["num_faulty_episodes"] == 1
        else:
            with pytest.raises(
                ContractError, match=r"evaluation: env 0 took 1\d\d\d env steps.*a crash ends none"
            ):
                algo.evaluate()


def test_the_steps_of_many_episodes_of_an_evaluation_are_no_endless_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fragment_limit, "LONGEST", 10)
    config = {"inference": "onnx", "evaluation_duration": 100}
    with PPO(env=Faulty, config=config) as algo:
        found = algo.evaluate()["evaluation"]
    assert found["episodes_this_iter"] == 100
    assert found["num_env_steps_sampled_this_iter"] > 200


def test_sections_of_a_config_object_may_be_dicts() -> None:
    built = PPOConfig(env=Faulty, model={"fcnet_hiddens": [8]}, multiagent={"policies": ["p"]})  # type: ignore[arg-type]
    assert built.model == ModelConfig(fcnet_hiddens=(8,))
    assert isinstance(built.multiagent, MultiAgentConfig)


def test_clipped_rewards_are_clipped_before_a_fragment_cut_too() -> None:
    class Rich(Faulty):
        def step(self, action_dict: Any) -> StepDicts:
            obs, _, terminateds, truncateds, infos = super().step(action_dict)
            return obs, dict.fromkeys(action_dict, 5.0), terminateds, truncateds, infos

    algo = PPO(env=Rich, config={"train_batch_size": 3, "clip_rewards": True})
    algo.sample()
    batch = algo.sample()["default_policy"]
    assert set(np.unique(batch["prev_rewards"])) <= {0.0, 1.0}


def test_steps_that_nobody_learned_from_do_not_count_as_trained() -> None:
    config = {"train_batch_size": 8, "multiagent": {"policies_to_train": []}}
    assert PPO(env=Faulty, config=config).train()["num_env_steps_trained"] == 0


def test_a_sub_environment_reset_behind_the_sampler_is_named_and_corrupts_nothing() -> None:
    algo = PPO(env=Faulty, config={"train_batch_size": 8})
    algo.sample()
    base_env(algo).try_reset(0, seed=1)
    with pytest.raises(ContractError, match=r"expected exactly|not waiting"):
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


def test_classic_settings_that_say_what_holds_anyhow_are_taken_without_a_warning() -> None:
    config = {
        "remote_worker_envs": False,
        "observation_filter": "NoFilter",
        "use_gae": True,
        "callbacks": None,
    }
    assert PPO(env=Faulty, config=config).config.env is Faulty


def test_a_positional_call_of_an_inner_reset_keeps_gymnasiums_own_words() -> None:
    class MultiEnv(gym.Env[Any, Any]):
        def __init__(self, env_config: Any) -> None:
            self.env = gym.make("CartPole-v1")
            self.action_space, self.observation_space = self.env.action_space, self.env.observation_space

        def reset(self, seed=None, options=None):  # type: ignore[no-untyped-def]
            return self.env.reset(seed, options)  # type: ignore[call-arg]

        def step(self, action: Any) -> Any:
            return self.env.step(action)

    with pytest.raises(EnvCrashError) as caught:
        PPO(env=MultiEnv, config=SMALL).train()
    assert "env 0 reset" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)
    assert "positional" in str(caught.value)


def test_an_error_of_menvs_own_inside_an_environment_keeps_its_cause() -> None:
    class Refuses(Faulty):
        def step(self, action_dict: Any) -> Any:
            raise ContractError("world: too hot, expected less; cool it down first") from KeyError("valve")

    base = to_base_env(Refuses())
    base.poll()
    base.send_actions({0: {"ann": 0, "bob": 0}})
    with pytest.raises(ContractError) as caught:
        base.poll()
    assert isinstance(caught.value.__cause__, KeyError)
