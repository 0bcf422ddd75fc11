"""Settings that cannot work are refused by name, in one line, when an algorithm is built and before the first step."""

from __future__ import annotations

import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import nn

from menv import DefaultCallbacks, PolicySpec, RandomPolicy
from menv.algorithms import DQN, PPO, QMIX, DQNConfig, PPOConfig, PPOPolicy
from menv.errors import ConfigError, ContractError, MenvError
from tests.algorithms_e2e.comings import Comings
from tests.bad_input.broken_envs import SMALL, UNIT, Faulty, checked
from tests.worlds import like, raising

ENDLESS = 10**20
NAN, INF = math.nan, math.inf
TWO = {"policies": ["ann", "bob"], "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id}


class NeedsArguments(DefaultCallbacks):
    def __init__(self, folder: str) -> None:
        self.folder = folder


# By the name of the setting: values of another type, outside its bounds, or larger than any machine.
ALONE: dict[str, list[Any]] = {
    "num_envs_per_worker": [0, 1.5, 10**9],
    "num_workers": [-2, 0.5, 10**6],
    "evaluation_num_workers": [-1, True, "2", 1.5, 10**6],
    "evaluation_parallel_to_training": [True],
    "evaluation_duration": [0, ENDLESS],
    "evaluation_duration_unit": ["hours", np.array(["episodes"])],
    "evaluation_interval": [-1, ENDLESS],
    "evaluation_config": [3, {"explor": False}, {"explore": "no"}, {1: 2}, {"num_workers": 2}],
    "overlap": [True],
    "max_staleness": [0],
    "env_timeout": [1.0],
    "log_level": ["LOUD"],
    "torch_threads": [0, -1, 1.5, "all", True, 10**9],
    "num_gpus": [2, -1, "1", True, None],
    "num_consecutive_env_failures_tolerance": [-1, 1.5, True, None],
    "remote_worker_envs": ["yes"],
    "remote_env_batch_wait_ms": [-1],
    "rollout_fragment_length": [0, "long", ENDLESS],
    "train_batch_size": [-4, ENDLESS, 10**400],
    "sgd_minibatch_size": [0, ENDLESS],
    "batch_mode": ["whole"],
    "metrics_num_episodes_for_smoothing": [ENDLESS],
    "lambda": [-0.1],
    "gamma": [99, NAN, -INF, True, None, "1", 1j],
    "lr": ["fast", NAN, 1e300, 10**5000],
    "lr_schedule": [[[0, 1e300]]],
    "entropy_coeff": [INF, -1e300, -(10**31)],
    "vf_loss_coeff": [1e300],
    "grad_clip": [-1, 0, 10**400],
    "clip_param": [10**400],
    "kl_target": [0],
    "vf_clip_param": [0.0],
    "num_sgd_iter": [1.5, True, ENDLESS],
    "observation_filter": ["MeanFilter"],
    "explore": ["no"],
    "clip_rewards": [-1.0, NAN, np.float64("nan"), 10**400],
    "seed": ["one", True],
    "inference": ["gpu"],
    "env_config": [3],
    "input": [lambda: None, lambda ioctx, port: None, object],
    "critic_obs": ["all", np.zeros(2), lambda *args: None],
    "critic_obs_size": [3],
    "callbacks": ["mine", int, [DefaultCallbacks, 3], {"on_episode_end": print}],
    "model": [3, {1: 2}],
}
MODEL: dict[str, list[Any]] = {
    "fcnet_hiddens": [
        64,
        "",
        b"8",
        ["64"],
        [True],
        [64, 0.5],
        [10**18],
        [10**5000],
        [8] * 257,
        [2**30, 2**30],
    ],
    "fcnet_activation": ["tanhh", False, 3, ["relu"], np.array(["relu"])],
    "conv_activation": ["rellu", False, 3, ["relu"]],
    "conv_filters": ["[16, 4, 2]", [["16", 4, 2]]],
    # What is true of a text would switch on what it says is off.
    "use_lstm": ["False", None],
    "use_gru": [1],
    "vf_share_layers": [[False], np.array([1, 1])],
    "lstm_cell_size": ["64", -4, 2**30, ENDLESS],
    "max_seq_len": [None, 0, 20.0, ENDLESS],
    "shared_layers": ["", True, ["a"]],
    "custom_model": ["Grid", nn.Linear(2, 2)],
    "custom_model_config": [[("width", 4)]],
}
MULTIAGENT: dict[str, list[Any]] = {
    "policies": ["shared", {}, ["a/b"], [1], 2, [["a"]]],
    "policy_mapping_fn": ["p", lambda a, b, c, d: "p", lambda: "p"],
    "policies_to_train": ["q", 3, [["a"]]],
    "count_steps_by": ["days"],
    "observation_fn": [3, "shown", [], {}],
}
DQNS: dict[str, list[Any]] = {
    "lambda": [0.9],
    "lr_schedule": [[[0, -1.0]], [[1, 0.1], [0, 0.2]]],
    "n_step": [0, ENDLESS],
    "num_steps_sampled_before_learning_starts": [ENDLESS],
    "target_network_update_freq": [10**400],
    "training_intensity": [1e300],
    "min_sample_timesteps_per_iteration": [ENDLESS],
}
# The name that is in the message, and all settings.
WRONG_NAMES: tuple[Any, ...] = (0, "", [], NAN, np.ones(2))
WRONG_KINDS: tuple[Any, ...] = ([], {}, ["ReplayBuffer"], 3)
TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("num_envs_per_worker", {"num_env_per_worker": 2}),
    ("lambda", {"lambd": 0.9}),
    ("lr", {"learning_rate": 2}),
    ("agent_id", {"agent_id": 2}),
    ("zzz", {"zzz": 2}),
    ("unknown key 1", {1: 2}),  # type: ignore[dict-item]
    ("fcnet_hiddens", {"model": {"fcnet_hidden": [4]}}),
    ("max_seq_len", {"model": {"use_lstm": True, "seq_len": 3}}),
    ("use_gru", {"model": {"use_lstm": True, "use_gru": True}}),
    ("policy_mapping_fn", {"multiagent": {"policy_mapping": None}}),
    ("policy_mapping_fn", {"multiagent": {"policies": ["p", "q"]}}),
    ("num_envs_per_worker", {"num_envs_per_worker": 20_000, "remote_worker_envs": True}),
    ("num_workers", {"num_workers": 1, "input": len}),
    ("engine", {"num_workers": 1, "engine": "dask"}),
    ("overlap", {"overlap": True, "input": len}),
    ("overlap", {"overlap": True, "num_workers": 1, "self_play": True}),
    *((name, {"evaluation_num_workers": 1, "evaluation_config": {name: value}}) for name, value in (
        ("evaluation_num_workers", 0), ("evaluation_interval", 2), ("evaluation_parallel_to_training", True),
        ("always_attach_evaluation_results", True),
    )),
    ("max_staleness", {"num_workers": 1, "max_staleness": 10**4, "overlap": True}),
    *(("env_timeout", {"num_workers": 1, "env_timeout": seconds}) for seconds in (0, "1s", 1e300, INF)),
    ("remote_worker_envs", {"remote_worker_envs": True, "input": len}),
    ("remote_env_batch_wait_ms", {"remote_env_batch_wait_ms": ENDLESS, "remote_worker_envs": True}),
    *(("agent_connectors", {"agent_connectors": given}) for given in ("FrameStackAgentConnector", [3])),
    ("'Nobody'", {"agent_connectors": ["Nobody"]}),
    ("AgentConnector", {"agent_connectors": ["ClipActionsConnector"]}),
    ("num_frames", {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": ENDLESS})]}),
    ("200000000", {"model": {"fcnet_hiddens": [2 * 10**8]}}),
    ("critic_obs", {"critic_obs": lambda batch: batch["obs"], "critic_obs_size": 4}),
    ("critic_obs", {"critic_obs": "all_agents", "model": {"vf_share_layers": True}}),
    *(("critic_obs_size", {"critic_obs": lambda *args: None, "critic_obs_size": size}) for size in (0, "4")),
    *(("'folder'", {"callbacks": given}) for given in (NeedsArguments, [NeedsArguments])),
    *(("env_config", {"evaluation_config": {"env_config": given}}) for given in (3, "length=2", [("length", 2)], None)),
    *((f"policies['p'].{where}", {"multiagent": {"policies": {"p": spec}}}) for where, spec in (
        ("config: 'explore'", PolicySpec(config={"explore": False})),
        ("config: unknown key 'gama'", PolicySpec(config={"gama": 0.9})),
        ("config: unknown key 1", PolicySpec(config={1: 2})),  # type: ignore[dict-item]
        ("config: PPO: gamma", PolicySpec(config={"gamma": "x"})),
        ("action_space", PolicySpec(action_space=gym.spaces.Discrete(5))),
    )),
    *(("policies['p']", {"multiagent": {"policies": {"p": spec}}}) for spec in (
        (None, None, None),
        *(PolicySpec(algorithm=name) for name in WRONG_NAMES),
    )),
    ("config", {"multiagent": {"policies": {"p": (None, None, None, 3)}}}),
    ("policy_class", {"multiagent": {"policies": {"p": PolicySpec(policy_class=int)}}}),
]  # fmt: skip
DQN_TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("max_seq_len", {"model": {"use_gru": True, "max_seq_len": 10**6}}),
    ("max_seq_len", {"model": {"use_gru": True, "max_seq_len": 1}}),
    ("rollout_fragment_length", {"model": {"use_lstm": True}, "n_step": 1, "rollout_fragment_length": 1}),
    ("replay_burn_in", {"replay_buffer_config": {"replay_burn_in": 2}}),
    ("max_seq_len", {"model": {"use_gru": True}, "replay_buffer_config": {"replay_burn_in": 20}}),
    *(
        (name, {"multiagent": {"policies": {"p": PolicySpec(config={name: 8})}}})
        for name in ("train_batch_size", "min_sample_timesteps_per_iteration")
    ),
    ("capacity", {"replay_buffer_config": {"capacity": ENDLESS}}),
    ("capacity", {"replay_buffer_config": {"capacity": 10**12, "prioritized_replay": True}}),
    *(("type", {"replay_buffer_config": {"type": kind}}) for kind in WRONG_KINDS),
    ("epsilon_timesteps", {"exploration_config": {"epsilon_timesteps": 10**400}}),
]


def refused(algorithm: Any, name: str, config: dict[str, Any], env: Any = Faulty) -> None:
    with pytest.raises(ConfigError) as caught:
        algorithm(env=env, config=config)
    text = str(caught.value)
    assert name in text
    assert "; " in text
    assert "\n" not in text
    assert len(text) < 1200


@pytest.mark.parametrize("name", ALONE)
def test_a_value_that_a_setting_cannot_have_is_refused_by_name(name: str) -> None:
    for value in ALONE[name]:
        refused(PPO, name, {name: value})


@pytest.mark.parametrize("name", MODEL)
def test_a_value_that_a_setting_of_the_model_cannot_have_is_refused_by_name(name: str) -> None:
    switches = {"lstm_cell_size": "use_lstm", "max_seq_len": "use_gru"}
    for value in MODEL[name]:
        more = (
            {switches[name]: True}
            if name in switches
            else {"custom_model": nn.Linear}
            if "config" in name
            else {}
        )
        refused(PPO, name, {"model": {**more, name: value}})


@pytest.mark.parametrize("name", MULTIAGENT)
def test_a_value_that_a_setting_of_several_policies_cannot_have_is_refused_by_name(name: str) -> None:
    for value in MULTIAGENT[name]:
        refused(PPO, name, {"multiagent": {"policies": ["p"], name: value}})


@pytest.mark.parametrize(("name", "config"), TOGETHER)
def test_settings_that_contradict_each_other_or_are_unknown_are_refused_by_name(
    name: str, config: Any
) -> None:
    refused(PPO, name, config)


@pytest.mark.parametrize(
    ("name", "config"), [*((name, {name: value}) for name in DQNS for value in DQNS[name]), *DQN_TOGETHER]
)
def test_settings_of_dqn_that_cannot_work_are_refused_by_name(name: str, config: Any) -> None:
    refused(DQN, name, config)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("model.custom_model", {"model": {"custom_model": nn.Linear}}),
        ("model.conv_filters", {"model": {"conv_filters": [[4, 4, 2]]}}),
        ("rollout_fragment_length", {"model": {"use_gru": True}, "rollout_fragment_length": 1}),
        ("mixer", {"mixer": np.array(["qmix"])}),
        ("mixer", {"mixer": "QMIX"}),
        ("mixing_embed_dim", {"mixing_embed_dim": ENDLESS}),
        ("td_lambda", {"td_lambda": 1.5}),
        ("n_step", {"td_lambda": 0.6, "n_step": 3}),
        ("replay_burn_in", {"td_lambda": 0.6, "replay_buffer_config": {"replay_burn_in": 2}}),
        ("rollout_fragment_length", {"td_lambda": 0.6, "rollout_fragment_length": 1}),
    ],
)
def test_what_a_group_cannot_have_is_refused_by_name(name: str, config: dict[str, Any]) -> None:
    def env(context: Any) -> Any:
        return Comings({**context, "steady": True}).with_agent_groups({"team": ["a0", "a1", "a2"]})

    refused(QMIX, name, config, env)


@pytest.mark.parametrize(
    "differ",
    [
        {"conv_activation": "tanh"},
        # Strides are in no weight's shape, and these leave as many numbers.
        {"conv_filters": [[4, [8, 8], 8], [8, [2, 2], 3]]},
    ],
)
def test_shared_layers_need_equal_convolutions(differ: dict[str, Any]) -> None:
    model = {"shared_layers": "eyes", "conv_filters": [[4, [8, 8], 8], [8, [2, 2], 2]], "fcnet_hiddens": [8]}
    multi = {
        "policies": {"one": None, "other": PolicySpec(config={"model": differ})},
        "policy_mapping_fn": lambda agent_id, **kwargs: "one" if agent_id == "a0" else "other",
    }
    refused(
        PPO,
        "shared_layers='eyes'",
        {"env_config": {"obs": "image"}, "model": model, "multiagent": multi},
        Comings,
    )


def test_a_refusal_says_the_value_the_rule_and_what_to_do() -> None:
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


@pytest.mark.parametrize(
    "model",
    [
        {"fcnet_hiddens": [8, 4], "use_lstm": np.True_, "lstm_cell_size": np.int64(8)},
        {
            "fcnet_hiddens": (np.int32(8),),
            "use_gru": True,
            "max_seq_len": np.int64(5),
            "vf_share_layers": np.False_,
        },
        {"conv_filters": ((np.int64(4), [np.int64(8), 8], 4),), "fcnet_hiddens": [8]},
    ],
    ids=str,
)
def test_numbers_and_flags_of_numpy_are_as_good_as_pythons(model: dict[str, Any]) -> None:
    world = {"obs": "image"} if "conv_filters" in model else {}
    with PPO(env=Comings, config={"train_batch_size": 16, "model": model, "env_config": world}) as algorithm:
        assert "default_policy" in algorithm.train()["info"]


MAPPINGS: list[tuple[Any, str]] = [
    (lambda agent_id, episode, worker, **kw: "ann" if agent_id == "ann" else "eve", "'eve' .*'bob'"),
    (lambda agent_id, episode: None if episode.episode_id % 2 else "ann", "None .*'ann'"),
    (lambda agent_id: [agent_id], r"\['ann'\] .*'ann'"),
    (lambda agent_id: {"ann": "ann"}[agent_id], "KeyError: 'bob' .*'bob'"),
]


@pytest.mark.parametrize(("mapping", "message"), MAPPINGS)
def test_a_mapping_that_cannot_work_is_named_before_the_first_step(mapping: Any, message: str) -> None:
    waits = like(Faulty, step=raising(AssertionError("no step has been asked for")))
    with pytest.raises(MenvError, match=f"policy_mapping_fn: .*{message}") as caught:
        PPO(env=waits, config={"multiagent": {**TWO, "policy_mapping_fn": mapping}})
    checked(str(caught.value))
    assert isinstance(caught.value, ContractError) or isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("answer", [None, "no", np.array([True, False])], ids=["none", "text", "array"])
def test_a_policies_to_train_function_must_return_a_bool(answer: Any) -> None:
    multiagent = {**TWO, "policies_to_train": lambda policy_id, batch: answer}
    with (
        PPO(env=Faulty, config={**SMALL, "multiagent": multiagent}) as algo,
        pytest.raises(ContractError, match=r"policies_to_train: .*'ann'") as caught,
    ):
        algo.train()
    checked(str(caught.value))


@pytest.mark.parametrize("kind", ["observation", "action"])
def test_agents_of_one_policy_with_different_spaces_are_named(kind: str) -> None:
    own: dict[str, Any] = {"observation": UNIT, "action": gym.spaces.Discrete(2)}
    uneven = like(Faulty, **{f"{kind}_spaces": {"ann": own[kind], "bob": gym.spaces.Discrete(7)}})
    with pytest.raises(ConfigError) as caught:
        PPO(env=uneven)
    assert re.match(
        rf"policy 'default_policy': .*'ann'.*'bob'.*{kind}.*Discrete\(7\)", checked(str(caught.value))
    )


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (gym.spaces.Text(5), "Text"),
        (gym.spaces.Sequence(gym.spaces.Discrete(2)), "Sequence"),
        (gym.spaces.Discrete(10**9), "1,000,000,000"),
        (gym.spaces.Dict(where=gym.spaces.MultiDiscrete([10**9, 2])), "1,000,000,002"),
        (gym.spaces.Tuple([gym.spaces.Discrete(10**8)] * 20), "2,000,000,000"),
    ],
    ids=["Text", "Sequence", "Discrete", "MultiDiscrete", "Tuple"],
)
def test_a_space_that_no_network_can_read_is_refused_before_it_takes_memory(space: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        PPO(env=like(Faulty, observation_space=space), config={"model": {"fcnet_hiddens": [8]}})


CALLS: list[tuple[Any, str]] = [
    (lambda: PolicySpec(policy_class=RandomPolicy, algorithm="PPO"), "policy_class=RandomPolicy"),
    (lambda: PolicySpec(PPOPolicy, algorithm="DQN"), "policy_class=PPOPolicy"),
    (lambda: PPO(config={}), "env: .*None"),
]


@pytest.mark.parametrize("config", [[1], "CartPole-v1", Faulty, PPOConfig, DQNConfig()])
def test_a_config_of_another_type_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match="config"):
        PPO(env=Faulty, config=config)


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_an_algorithm_or_policy_that_is_called_in_another_way_says_how(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("policy_id", ["nobody", ""])
def test_an_unknown_policy_is_named_with_the_known_ones(policy_id: str) -> None:
    with PPO(env=Faulty) as algorithm:
        for call in (
            algorithm.get_policy,
            lambda name: algorithm.compute_single_action([0] * 3, policy_id=name),
        ):
            with pytest.raises(ConfigError, match=r"policies|default_policy"):
                call(policy_id)
