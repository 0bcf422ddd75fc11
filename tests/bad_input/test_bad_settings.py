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

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no envs": ({"num_envs_per_worker": 0}, r"num_envs_per_worker is 0, expected an integer of at least 1"),
    "half an env": ({"num_envs_per_worker": 1.5}, r"num_envs_per_worker is 1\.5, expected an integer"),
    "workers": ({"num_workers": -2}, r"num_workers is -2, expected an integer of at least 0"),
    "half a worker": ({"num_workers": 0.5}, r"num_workers is 0\.5, expected an integer"),
    "engine": ({"num_workers": 1, "engine": "dask"}, r"engine is 'dask', expected one of .*'process', 'ray'"),
    "overlap": ({"overlap": True}, r"overlap is True without workers, .*set num_workers to 1"),
    "staleness": ({"max_staleness": 0}, r"max_staleness is 0, expected an integer of at least 1"),
    "timeout": ({"num_workers": 1, "env_timeout": 0}, r"env_timeout is 0, expected a number above 0"),
    "timeout text": ({"num_workers": 1, "env_timeout": "1s"}, r"env_timeout is '1s', expected a number above 0"),
    "timeout here": ({"env_timeout": 1.0}, r"env_timeout is 1\.0 with environments in this process, .*num_workers"),
    "level": ({"log_level": "LOUD"}, r"log_level is 'LOUD', expected one of"),
    "workers of an input": ({"num_workers": 1, "input": len}, r"num_workers: 1 with an input, expected 0"),
    "overlap of an input": ({"overlap": True, "input": len}, r"overlap is True with an input, expected False"),
    "remote environments of an input": (
        {"remote_worker_envs": True, "input": len},
        r"remote_worker_envs: True with an input, expected False, .*put it into evaluation_config",
    ),
    "fragment": ({"rollout_fragment_length": 0}, r"rollout_fragment_length is 0, expected an integer of at least 1"),
    "fragment text": ({"rollout_fragment_length": "long"}, r"rollout_fragment_length is 'long'"),
    "batch": ({"train_batch_size": -4}, r"train_batch_size is -4"),
    "batch mode": ({"batch_mode": "whole"}, r"batch_mode is 'whole', expected one of .*complete_episodes"),
    "count": ({"multiagent": {"count_steps_by": "days"}}, r"count_steps_by is 'days', expected one of"),
    "near": ({"num_env_per_worker": 2}, r"unknown key 'num_env_per_worker', .*did you mean 'num_envs_per_worker'\?"),
    "near lambda": ({"lambd": 0.9}, r"unknown key 'lambd', .*did you mean 'lambda'\?"),
    "near in model": ({"model": {"fcnet_hidden": [4]}}, r"\['model'\]: unknown key 'fcnet_hidden', .*'fcnet_hiddens'"),
    "near in multiagent": (
        {"multiagent": {"policy_mapping": None}}, r"config\['multiagent'\]: unknown key .*'policy_mapping_fn'"
    ),
    "not near": ({"agent_id": 2}, r"unknown key 'agent_id', expected a known one; known keys: "),
    "not near either": ({"worker_restart": 2}, r"unknown key 'worker_restart', expected a known one; known keys: "),
    "called otherwise": ({"learning_rate": 2}, r"unknown key 'learning_rate', .*; it is called 'lr' here"),
    "far": ({"zzz": 2}, r"unknown key 'zzz', expected a known one; known keys: "),
    "section": ({"model": 3}, r"config\['model'\]: int, expected a dict"),
    "env_config": ({"env_config": 3}, r"env_config"),
    "activation": ({"model": {"fcnet_activation": "tanhh"}}, r"fcnet_activation|activation"),
    "minibatch": ({"sgd_minibatch_size": 0}, r"sgd_minibatch_size is 0, expected an integer of at least 1"),
    "gamma": ({"gamma": 99}, r"gamma is 99, expected a number from 0 to 1"),
    "lambda": ({"lambda": -0.1}, r"lambda is -0.1, expected a number from 0 to 1"),
    "endless": ({"entropy_coeff": math.inf}, r"entropy_coeff is inf, expected a finite number; correct it"),
    "rate": ({"lr": "fast"}, r"lr is 'fast', expected a number from 0 to 1000"),
    "gradient": ({"grad_clip": -1}, r"grad_clip is -1, expected .*None to switch it off"),
    "no gradient": ({"grad_clip": 0}, r"grad_clip is 0, expected a number above 0, or None to switch it off"),
    "no divergence": ({"kl_target": 0}, r"kl_target is 0, .* expected a number above 0; set kl_coeff=0 to switch"),
    "no error": ({"vf_clip_param": 0.0}, r"vf_clip_param is 0\.0, expected a number above 0"),
    "epochs": ({"num_sgd_iter": 1.5}, r"num_sgd_iter is 1\.5, expected an integer"),
    "a flag for epochs": ({"num_sgd_iter": True}, "num_sgd_iter is True, expected an integer of at least 1"),
    "remote": ({"remote_worker_envs": "yes"}, r"remote_worker_envs is 'yes', expected True or False"),
    "wait": ({"remote_env_batch_wait_ms": -1}, r"remote_env_batch_wait_ms is -1, expected an integer of at least 0"),
    "wait for nobody": (
        {"remote_env_batch_wait_ms": 5}, r"remote_env_batch_wait_ms is 5 without remote_worker_envs, expected"
    ),
    "staleness of nobody": (
        {"num_workers": 1, "max_staleness": 2}, r"max_staleness is 2 without overlap, expected overlap=True; set that"
    ),
    "filter": ({"observation_filter": "MeanFilter"}, r"observation_filter is 'MeanFilter', expected one of"),
    "explore": ({"explore": "no"}, r"explore is 'no', expected True or False"),
    "clip": ({"clip_rewards": -1}, r"clip_rewards is -1, expected a number from 0, or True, or False"),
    "widths": ({"model": {"fcnet_hiddens": 64}}, r"fcnet_hiddens is 64, expected a list"),
    "policies text": ({"multiagent": {"policies": "shared"}}, r"policies: the string 'shared', expected"),
    "shared setting": (
        {"multiagent": {"policies": {"p": PolicySpec(config={"explore": False})}}},
        r"policies\['p'\]\.config: 'explore' holds for all policies",
    ),
    "other space": (
        {"multiagent": {"policies": {"p": PolicySpec(action_space=gym.spaces.Discrete(5))}}},
        r"policies\['p'\]\.action_space: Discrete\(5\), expected that of its agent",
    ),
    "seed": ({"seed": "one"}, r"seed is 'one', expected an integer"),
    "inference": ({"inference": "gpu"}, r"inference is 'gpu', expected one of"),
    "no policies": ({"multiagent": {"policies": {}}}, r"policies: none given, expected at least one"),
    "policy id": ({"multiagent": {"policies": ["a/b"]}}, r"policies: id 'a/b', expected a string without"),
    "policy id type": ({"multiagent": {"policies": [1]}}, r"policies: id 1, expected a string"),
    "3-tuple": ({"multiagent": {"policies": {"p": (None, None, None)}}}, r"policies\['p'\]: a tuple of 3, expected"),
    "spec config": (
        {"multiagent": {"policies": {"p": (None, None, None, 3)}}}, r"PolicySpec: config is int, expected a dict"
    ),
    "spec key": (
        {"multiagent": {"policies": {"p": PolicySpec(config={"gama": 0.9})}}},
        r"policies\['p'\]\.config: unknown key 'gama', .*'gamma'",
    ),
    "not a policy class": (
        {"multiagent": {"policies": {"p": PolicySpec(policy_class=int)}}}, r"policy_class int, expected a subclass"
    ),
    "no mapping": ({"multiagent": {"policies": ["p", "q"]}}, r"policy_mapping_fn: missing with policies \['p', 'q'\]"),
    "mapping no function": (
        {"multiagent": {"policies": ["p"], "policy_mapping_fn": "p"}}, r"policy_mapping_fn: .p., expected a function"
    ),
    "mapping of four": (
        {"multiagent": {"policies": ["p"], "policy_mapping_fn": lambda a, b, c, d: "p"}},
        r"policy_mapping_fn: its parameters are \(a, b, c, d\), expected \(agent_id, episode, worker",
    ),
    "mapping of none": (
        {"multiagent": {"policies": ["p"], "policy_mapping_fn": lambda: "p"}}, r"its parameters are \(\), expected"
    ),
    "trains strangers": (
        {"multiagent": {"policies": ["p"], "policies_to_train": "q"}}, r"policies_to_train: \['q'\] are not among"
    ),
    "trains a number": ({"multiagent": {"policies": ["p"], "policies_to_train": 3}}, r"policies_to_train"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_setting_that_cannot_work_is_refused_by_name(case: str) -> None:
    config, message = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        PPO(env=Faulty, config=config)
    text = str(caught.value)
    assert "; " in text
    assert "\n" not in text


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
        ConfigError, match="policy_class=RandomPolicy and algorithm='PPO', expected one of them"
    ) as caught:
        PolicySpec(policy_class=RandomPolicy, algorithm="PPO")
    checked(str(caught.value))


def test_no_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="env: got None, expected"):
        PPO(config={})


def test_a_config_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"config: list, expected a dict or PPOConfig; pass"):
        PPO(env=Faulty, config=[1])


@pytest.mark.parametrize("env", ["CartPole-v1", Faulty])
def test_an_environment_in_the_place_of_the_config_is_told_its_name(env: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"config: .*; the environment comes by name: write PPO\(env=..., config="
    ):
        PPO(env, {"lr": 1e-3})


def test_a_setting_beside_the_config_is_told_its_place() -> None:
    for settings in ({"num_workers": 2}, {"verbose": None}):
        (name,) = settings
        with pytest.raises(
            ConfigError, match=rf"^PPO: {name} is given, expected .*; settings go into config"
        ):
            PPO(env="CartPole-v1", **settings)


@pytest.mark.parametrize("given", [PPOConfig, DQNConfig])
def test_the_class_of_a_config_is_no_config_and_no_environment(given: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"config: the class \w+Config, expected a dict or .* PPOConfig; write config=PPOConfig\(\.\.\.\)$",
    ):
        PPO(given, "CartPole-v1")


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
