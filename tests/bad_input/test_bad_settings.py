"""Settings that cannot work are refused when an algorithm is built, before the first step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import pytest

from menv import PolicySpec, RandomPolicy
from menv.algorithms import PPO, DQNConfig, PPOConfig
from menv.errors import ConfigError, ContractError, MenvError
from tests.bad_input.broken_envs import UNIT, Faulty, checked


def multi(**settings: Any) -> dict[str, Any]:
    return {"multiagent": settings}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("num_envs_per_worker", {"num_envs_per_worker": 0}),
    ("num_envs_per_worker", {"num_envs_per_worker": 1.5}),
    ("num_envs_per_worker", {"num_env_per_worker": 2}),
    ("num_envs_per_worker", {"num_envs_per_worker": 20_000, "remote_worker_envs": True}),
    ("num_workers", {"num_workers": -2}),
    ("num_workers", {"num_workers": 0.5}),
    ("num_workers", {"num_workers": 10**6}),
    ("num_workers", {"num_workers": 1, "input": len}),
    ("engine", {"num_workers": 1, "engine": "dask"}),
    ("overlap", {"overlap": True}),
    ("overlap", {"overlap": True, "input": len}),
    ("overlap", {"overlap": True, "num_workers": 1, "self_play": True}),
    ("max_staleness", {"max_staleness": 0}),
    ("env_timeout", {"num_workers": 1, "env_timeout": 0}),
    ("env_timeout", {"num_workers": 1, "env_timeout": "1s"}),
    ("env_timeout", {"env_timeout": 1.0}),
    ("log_level", {"log_level": "LOUD"}),
    ("remote_worker_envs", {"remote_worker_envs": True, "input": len}),
    ("remote_worker_envs", {"remote_worker_envs": "yes"}),
    ("remote_env_batch_wait_ms", {"remote_env_batch_wait_ms": -1}),
    ("evaluation_num_workers", {"evaluation_parallel_to_training": True}),
    ("rollout_fragment_length", {"rollout_fragment_length": 0}),
    ("rollout_fragment_length", {"rollout_fragment_length": "long"}),
    ("train_batch_size", {"train_batch_size": -4}),
    ("batch_mode", {"batch_mode": "whole"}),
    ("count_steps_by", multi(count_steps_by="days")),
    ("lambda", {"lambd": 0.9}),
    ("lambda", {"lambda": -0.1}),
    ("lr", {"learning_rate": 2}),
    ("lr", {"lr": "fast"}),
    ("lr", {"lr": math.nan}),
    ("agent_id", {"agent_id": 2}),
    ("zzz", {"zzz": 2}),
    ("model", {"model": 3}),
    ("fcnet_hiddens", {"model": {"fcnet_hidden": [4]}}),
    ("fcnet_hiddens", {"model": {"fcnet_hiddens": 64}}),
    ("fcnet_hiddens", {"model": {"fcnet_hiddens": [64, 0.5]}}),
    ("fcnet_activation", {"model": {"fcnet_activation": "tanhh"}}),
    ("shared_layers", {"model": {"shared_layers": ""}}),
    ("env_config", {"env_config": 3}),
    ("sgd_minibatch_size", {"sgd_minibatch_size": 0}),
    ("gamma", {"gamma": 99}),
    ("entropy_coeff", {"entropy_coeff": math.inf}),
    ("grad_clip", {"grad_clip": -1}),
    ("grad_clip", {"grad_clip": 0}),
    ("kl_target", {"kl_target": 0}),
    ("vf_clip_param", {"vf_clip_param": 0.0}),
    ("num_sgd_iter", {"num_sgd_iter": 1.5}),
    ("num_sgd_iter", {"num_sgd_iter": True}),
    ("observation_filter", {"observation_filter": "MeanFilter"}),
    ("explore", {"explore": "no"}),
    ("clip_rewards", {"clip_rewards": -1}),
    ("seed", {"seed": "one"}),
    ("inference", {"inference": "gpu"}),
    ("policies", multi(policies="shared")),
    ("policies", multi(policies={})),
    ("policies", multi(policies=["a/b"])),
    ("policies", multi(policies=[1])),
    ("policies['p']", multi(policies={"p": (None, None, None)})),
    ("policies['p'].config: 'explore'", multi(policies={"p": PolicySpec(config={"explore": False})})),
    ("policies['p'].config: unknown key 'gama'", multi(policies={"p": PolicySpec(config={"gama": 0.9})})),
    ("policies['p'].action_space", multi(policies={"p": PolicySpec(action_space=gym.spaces.Discrete(5))})),
    ("config", multi(policies={"p": (None, None, None, 3)})),
    ("policy_class", multi(policies={"p": PolicySpec(policy_class=int)})),
    ("policy_mapping_fn", multi(policy_mapping=None)),
    ("policy_mapping_fn", multi(policies=["p", "q"])),
    ("policy_mapping_fn", multi(policies=["p"], policy_mapping_fn="p")),
    ("policy_mapping_fn", multi(policies=["p"], policy_mapping_fn=lambda a, b, c, d: "p")),
    ("policy_mapping_fn", multi(policies=["p"], policy_mapping_fn=lambda: "p")),
    ("policies_to_train", multi(policies=["p"], policies_to_train="q")),
    ("policies_to_train", multi(policies=["p"], policies_to_train=3)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config"), BAD)
def test_a_setting_that_cannot_work_is_refused_by_name(name: str, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        PPO(env=Faulty, config=config)
    text = str(caught.value)
    assert name in text
    assert "; " in text
    assert "\n" not in text


def test_a_refusal_says_the_value_the_rule_and_the_near_name() -> None:
    for config, text in (
        ({"gamma": 99}, "PPO: gamma is 99, expected a number from 0 to 1; correct the value"),
        ({"grad_clip": 0}, "PPO: grad_clip is 0, expected a number above 0, or None; correct the value"),
        (
            {"engine": "dask"},
            "PPO: engine is 'dask', expected one of 'process', 'ray', None; correct the value",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            PPOConfig(**config)
        assert str(caught.value) == text


def test_an_agent_that_maps_to_no_policy_is_named_before_the_first_step() -> None:
    steps: list[int] = []

    class Counts(Faulty):
        def step(self, action_dict: Any) -> Any:
            steps.append(1)
            return super().step(action_dict)

    def mapping(agent_id: str, episode: Any, worker: Any, **kwargs: Any) -> str:
        return "left" if agent_id == "ann" else "middle"

    with pytest.raises(ContractError) as caught:
        PPO(env=Counts, config={"multiagent": {"policies": ["left", "right"], "policy_mapping_fn": mapping}})
    message = checked(str(caught.value))
    assert (
        "policy_mapping_fn: returned 'middle' for agent 'bob', expected one of ['left', 'right']" in message
    )
    assert steps == []


def test_a_mapping_that_fails_for_some_episodes_only_is_found_by_the_dry_run() -> None:
    def mapping(agent_id: str, episode: Any) -> str | None:
        return "left" if episode.episode_id % 2 == 0 else None

    with pytest.raises(ContractError, match="policy_mapping_fn: returned None for agent 'ann'"):
        PPO(env=Faulty, config={"multiagent": {"policies": ["left"], "policy_mapping_fn": mapping}})


def test_a_mapping_that_raises_names_agent_and_cause() -> None:
    def mapping(agent_id: str) -> str:
        return {"ann": "left"}[agent_id]

    with pytest.raises(
        MenvError, match=r"policy_mapping_fn: raised KeyError: 'bob' for agent 'bob'"
    ) as caught:
        PPO(env=Faulty, config={"multiagent": {"policies": ["left"], "policy_mapping_fn": mapping}})
    checked(str(caught.value))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", ["observation", "action"])
def test_agents_of_one_policy_with_different_spaces_are_named(kind: str) -> None:
    class Uneven(Faulty):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            spaces = {"observation": UNIT, "action": gym.spaces.Discrete(2)}
            setattr(self, f"{kind}_spaces", {"ann": spaces[kind], "bob": gym.spaces.Discrete(7)})

    with pytest.raises(ConfigError) as caught:
        PPO(env=Uneven)
    message = checked(str(caught.value))
    assert f"policy 'default_policy': agents 'ann' and 'bob' differ in their {kind} space" in message
    assert "Discrete(7)" in message


def test_a_policy_class_and_an_algorithm_together_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="policy_class=RandomPolicy, which no algorithm trains, and algorithm='PPO', expected one of them",
    ) as caught:
        PolicySpec(policy_class=RandomPolicy, algorithm="PPO")
    checked(str(caught.value))


def test_no_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="env: got None, expected"):
        PPO(config={})


@pytest.mark.parametrize("config", [[1], "CartPole-v1", Faulty, PPOConfig, DQNConfig()])
def test_a_config_of_another_type_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"^config: .*PPOConfig"):
        PPO(env=Faulty, config=config)


@pytest.mark.parametrize("name", ["num_workers", "verbose"])
def test_a_setting_beside_the_config_is_told_its_place(name: str) -> None:
    settings: dict[str, Any] = {name: 2}
    with pytest.raises(ConfigError, match=f"^PPO: {name} .*settings go into config"):
        PPO(env="CartPole-v1", **settings)


@pytest.mark.parametrize("space", [gym.spaces.Text(5), gym.spaces.Sequence(gym.spaces.Discrete(2))])
def test_a_space_that_no_network_can_read_is_refused_with_those_that_can_be(space: Any) -> None:
    class Odd(Faulty):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            self.observation_space = space

    with pytest.raises(ConfigError, match=r"cannot be flattened, expected Box, Discrete"):
        PPO(env=Odd)


@pytest.mark.parametrize("policy_id", ["nobody", ""])
def test_an_unknown_policy_is_named_with_the_known_ones(policy_id: str) -> None:
    with PPO(env=Faulty) as algorithm:
        for call in (
            algorithm.get_policy,
            lambda name: algorithm.compute_single_action([0] * 3, policy_id=name),
        ):
            with pytest.raises(ConfigError, match=r"does not exist, expected one of \['default_policy'\]"):
                call(policy_id)
