"""Settings: the classic nested dict and the dataclass say the same."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import DQN, PPO, DQNConfig, ModelConfig, MultiAgentConfig, PPOConfig, QMIXConfig
from menv.algorithms.config import setting as table_of_settings
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import override, read_config
from menv.algorithms.config.setting import by_name, setting
from menv.algorithms.config.stored_config import restored_config, stored_config
from menv.algorithms.dqn.dqn import DEFAULT_CONFIG as DQN_DEFAULTS
from menv.algorithms.ppo.ppo import DEFAULT_CONFIG
from menv.algorithms.recipe import recipe_named
from menv.cli.arguments import read_settings
from menv.connectors.built_in import FrameStackAgentConnector
from menv.errors import ConfigError
from menv.migration_hints import HINTS, ONLY_VALUES
from menv.policy_map import PolicyMap
from tests.settings_page import part
from tests.worlds import Alone

CLASSIC: dict[str, Any] = {
    "env": "tictactoe", "env_config": {"size": 3}, "num_workers": 0, "num_envs_per_worker": 2,
    "rollout_fragment_length": 20, "batch_mode": "complete_episodes", "train_batch_size": 100, "sgd_minibatch_size": 10,
    "num_sgd_iter": 3, "lr": 1e-4, "gamma": 0.9, "lambda": 0.8, "clip_param": 0.1, "vf_clip_param": 5.0,
    "vf_loss_coeff": 0.7, "entropy_coeff": 0.01, "kl_coeff": 0.3, "kl_target": 0.02, "grad_clip": 2.0, "explore": False,
    "seed": 3, "clip_rewards": True, "clip_actions": True, "normalize_actions": False,
    "metrics_num_episodes_for_smoothing": 7,
    "model": {"fcnet_hiddens": [8, 4], "fcnet_activation": "tanh", "vf_share_layers": True},
    "multiagent": {
        "policies": {"p": PolicySpec()}, "policy_mapping_fn": None, "policies_to_train": ["p"],
        "count_steps_by": "agent_steps",
    },
}  # fmt: skip


@pytest.mark.parametrize("key", CLASSIC)
def test_every_classic_key_is_read(key: str) -> None:
    config = read_config(PPOConfig, {key: CLASSIC[key]})
    value = getattr(config, "lambda_" if key == "lambda" else key)
    if key == "model":
        assert value == ModelConfig(fcnet_hiddens=(8, 4), fcnet_activation="tanh", vf_share_layers=True)
    elif key == "multiagent":
        assert value == MultiAgentConfig(**CLASSIC["multiagent"])
    else:
        assert value == CLASSIC[key]


def test_the_classic_dict_and_the_dataclass_mean_the_same() -> None:
    by_dict = read_config(PPOConfig, CLASSIC)
    plain = {"lambda_" if key == "lambda" else key: value for key, value in CLASSIC.items()}
    plain["model"] = ModelConfig(fcnet_hiddens=(8, 4), fcnet_activation="tanh", vf_share_layers=True)
    plain["multiagent"] = MultiAgentConfig(**CLASSIC["multiagent"])
    assert by_dict == PPOConfig(**plain)


def test_a_dict_with_classic_keys_is_read_as_keywords() -> None:
    assert PPOConfig(**{"lambda": 0.8}).lambda_ == 0.8  # type: ignore[arg-type]
    config = PPOConfig(gamma=0.9, lambda_=0.8)
    assert PPOConfig(**{**config, "lr": 1e-4}) == PPOConfig(gamma=0.9, lambda_=0.8, lr=1e-4)
    for twice in (partial(PPOConfig, lambda_=0.5), partial(dataclasses.replace, config)):
        with pytest.raises(ConfigError, match="'lambda_'"):
            twice(**{"lambda": 0.8})
    for both in ({"lambda": 0.8, "lambda_": 0.5}, {"lambda_": 0.5, "lambda": 0.8}):
        with pytest.raises(ConfigError, match="'lambda_'"):
            read_config(PPOConfig, both)
    with pytest.raises(ConfigError, match="lambda"):
        DQNConfig(**{"lambda": 0.8})  # type: ignore[arg-type]


def test_every_field_of_the_dataclass_has_a_sentence_under_it() -> None:
    import ast

    from menv.algorithms.config import algorithm_config
    from menv.algorithms.ppo import ppo

    for module in (algorithm_config, ppo):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(node, ast.ClassDef) or not node.name.endswith("Config"):
                continue
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
                    assert isinstance(after, ast.Expr), f"{module.__name__}: {ast.unparse(field.target)}"


def test_the_config_is_frozen_and_keyword_only() -> None:
    config = PPOConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        config["lr"] = 0.1  # type: ignore[index]
    with pytest.raises(TypeError, match="positional"):
        PPOConfig("CartPole-v1")  # type: ignore[call-arg]


def test_the_callers_dicts_are_not_changed() -> None:
    given: dict[str, Any] = {
        "lambda": 0.9,
        "model": {"fcnet_hiddens": [4]},
        "multiagent": {"policies": ["p"]},
    }
    read_config(PPOConfig, given)
    assert given == {"lambda": 0.9, "model": {"fcnet_hiddens": [4]}, "multiagent": {"policies": ["p"]}}


def test_the_argument_env_goes_before_the_key() -> None:
    assert read_config(PPOConfig, {"env": "one"}, "two").env == "two"
    assert read_config(PPOConfig, PPOConfig(env="one"), "two").env == "two"
    assert read_config(PPOConfig, PPOConfig(env="one")).env == "one"
    assert read_config(PPOConfig, {"env": "one"}).env == "one"
    assert read_config(PPOConfig, None, "two").env == "two"


@pytest.mark.parametrize("key", ["framework", "num_gpus_per_worker", "enable_connectors"])
def test_a_classic_key_without_meaning_warns_once(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_of_settings, "_warned", set())
    with pytest.warns(UserWarning, match=f"'{key}' has no meaning in menv and is ignored; leave it out"):
        read_config(PPOConfig, {key: 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_config(PPOConfig, {key: 1}) == PPOConfig()


def test_the_warning_points_at_the_line_that_builds_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_of_settings, "_warned", set())
    with (
        pytest.warns(UserWarning, match="framework") as caught,
        PPO(env="CartPole-v1", config={"framework": "torch"}),
    ):
        pass
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("gama", "gamma"),
        ("num_envs", "num_envs_per_worker"),
        ("learning_rate", ""),
        ("Lambda", "lambda"),
        ("lamda", "lambda"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(key: str, near: str) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        read_config(PPOConfig, {key: 1})
    if near:
        assert f"did you mean {near!r}?" in str(caught.value)


@pytest.mark.parametrize(
    ("config_class", "given", "here"),
    [
        (PPOConfig, {"evaluation_num_episodes": 1}, "'evaluation_duration'"),
        (PPOConfig, {"sample_batch_size": 1}, "'rollout_fragment_length'"),
        (PPOConfig, {"num_epochs": 1}, "'num_sgd_iter'"),
        (PPOConfig, {"ent_coef": 1}, "'entropy_coeff'"),
        (PPOConfig, {"observation_fn": 1}, "multiagent="),
        (PPOConfig, {"use_lstm": 1}, "model="),
        (PPOConfig, {"model": {"custom_options": 1}}, "'custom_model_config'"),
        (PPOConfig, {"n_steps": 1}, "rollout_fragment_length"),
        (PPOConfig, {"horizon": 1}, "menv.wrappers.TimeLimit"),
        (DQNConfig, {"replay_buffer_config": {"alpha": 1}}, "'prioritized_replay_alpha'"),
    ],
)
def test_a_removed_classic_key_names_its_replacement(
    config_class: type[AlgorithmConfig], given: dict[str, Any], here: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(config_class, given)
    assert here in str(caught.value).partition("; ")[2]


def test_a_classic_key_is_accepted_with_its_only_supported_value_or_off() -> None:
    off: dict[str, Any] = dict(zip(HINTS["setting"], [None, False, {}, []] * 99, strict=False))
    for key, value in {**off, **ONLY_VALUES}.items():
        if key not in {field.name for field in dataclasses.fields(PPOConfig)}:
            assert read_config(PPOConfig, {key: value}) == PPOConfig()
            with pytest.raises(ConfigError, match=key):
                read_config(PPOConfig, {key: "another"})


def test_classic_values_for_no_input_and_no_evaluation_are_accepted() -> None:
    assert read_config(PPOConfig, {"input": "sampler", "evaluation_interval": 0}) == PPOConfig()


@pytest.mark.parametrize(
    ("config_class", "keyword", "here"),
    [
        (PPOConfig, "seeds", "'seed'"),
        (PPOConfig, "lambd", "'lambda_'"),
        (PPOConfig, "num_env_runners", "'num_workers'"),
        (DQNConfig, "epsilon_timesteps", "exploration_config"),
        (QMIXConfig, "mixers", "'mixer'"),
        (ModelConfig, "fcnet_hidden", "'fcnet_hiddens'"),
        (MultiAgentConfig, "policy", "'policy_mapping_fn'"),
    ],
)
def test_an_unknown_keyword_of_a_class_is_refused_as_in_a_dict(
    config_class: Any, keyword: str, here: str
) -> None:
    for build in (config_class, partial(dataclasses.replace, config_class())):
        with pytest.raises(ConfigError) as caught:
            build(**{keyword: 1})
        assert here in str(caught.value).partition("; ")[2]


def test_a_classic_keyword_without_meaning_warns_once_and_the_signature_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_of_settings, "_warned", set())
    given: dict[str, Any] = {"framework": "torch", "lr": 0.5}
    with pytest.warns(UserWarning, match="PPOConfig: 'framework' has no meaning") as caught:
        assert PPOConfig(**given) == PPOConfig(lr=0.5)
    assert caught[0].filename == __file__
    assert list(inspect.signature(PPOConfig).parameters) == [
        field.name for field in dataclasses.fields(PPOConfig)
    ]


def test_a_policys_own_settings_are_put_over_the_main_ones() -> None:
    main = PPOConfig(gamma=0.9, lr=1e-3, model=ModelConfig(fcnet_hiddens=(8,), fcnet_activation="tanh"))
    own = override(main, {"gamma": 0.85, "lambda": 0.5, "model": {"fcnet_hiddens": [16]}}, "p")
    assert (own.gamma, own.lambda_, own.lr) == (0.85, 0.5, 1e-3)
    assert own.model == ModelConfig(fcnet_hiddens=(16,), fcnet_activation="tanh")
    assert override(main, None, "p") is main
    assert override(main, {}, "p") is main


@pytest.mark.parametrize(("algorithm", "activation"), [("PPO", "tanh"), ("DQN", "relu"), ("QMIX", "relu")])
def test_the_algorithm_chooses_the_activation_unless_the_model_names_one(
    algorithm: str, activation: str
) -> None:
    recipe = recipe_named(algorithm, "p")
    one = (gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))
    obs_space, action_space = one if algorithm != "QMIX" else (gym.spaces.Tuple([space]) for space in one)

    def found(**model: Any) -> str:
        config = recipe.config_class(env="unused", model=model)  # type: ignore[arg-type]
        network: Any = recipe.network(4, action_space, config, obs_space)
        return str(network.activation)

    assert found() == activation
    assert [found(fcnet_activation=name) for name in ("relu", "tanh", "elu")] == ["relu", "tanh", "elu"]


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({}, 4096),
        ({"num_envs_per_worker": 64}, 64),
        ({"train_batch_size": 10, "num_envs_per_worker": 3}, 4),
        ({"train_batch_size": 1, "num_envs_per_worker": 3}, 1),
        ({"rollout_fragment_length": 7}, 7),
    ],
)
def test_the_automatic_fragment_length_makes_one_fragment_a_train_batch(
    config: dict[str, Any], length: int
) -> None:
    read = read_config(PPOConfig, config)
    assert read.fragment_length(read.num_envs_per_worker) == length


def test_numbers_of_numpy_are_numbers_and_kept_as_pythons() -> None:
    drawn = {
        "num_envs_per_worker": np.int32(3), "train_batch_size": np.int64(400), "gamma": np.float64(0.9),
        "explore": np.bool_(False), "model": {"lstm_cell_size": np.int16(8)},
    }  # fmt: skip
    config = read_config(PPOConfig, drawn)
    plain = PPOConfig(num_envs_per_worker=3, train_batch_size=400, gamma=0.9, explore=False)
    assert config == dataclasses.replace(plain, model=ModelConfig(lstm_cell_size=8))
    kinds = [type(value) for value in (config.train_batch_size, config.explore, config.model.lstm_cell_size)]
    assert kinds == [int, bool, int]


def test_arrays_of_numpy_are_lists_and_kept_as_pythons() -> None:
    drawn = {
        "lr_schedule": (np.array([0, 0.5]), np.array([10, 0.25])),
        "model": {"fcnet_hiddens": np.array([32, 16]), "conv_filters": [[np.int64(4), np.array([8, 8]), 4]]},
    }
    config = read_config(PPOConfig, drawn)
    assert config.lr_schedule == ([0.0, 0.5], [10.0, 0.25])
    assert config.model == ModelConfig(fcnet_hiddens=(32, 16), conv_filters=[[4, [8, 8], 4]])  # type: ignore[arg-type]
    assert type(FrameStackAgentConnector(num_frames=np.int64(2)).num_frames) is int  # type: ignore[arg-type]


def test_environment_settings_reach_every_copy_with_its_place_and_are_not_shared() -> None:
    contexts: list[Any] = []

    def creator(context: Any) -> Any:
        contexts.append(context)
        context["list"].append(context.vector_index)
        return Alone(length=context["length"])

    settings: dict[str, Any] = {"length": 4, "list": []}
    with PPO(env=creator, config={"env_config": settings, "num_envs_per_worker": 3}):
        pass
    assert [(one.vector_index, one.worker_index, one.num_workers, one.remote) for one in contexts] == [
        (index, 0, 0, False) for index in range(3)
    ]
    assert [one["list"] for one in contexts] == [[0], [1], [2]]
    assert settings == {"length": 4, "list": []}


# Settings are read like the dict that classic configs were, and are changed in a copy.


def test_settings_are_read_by_their_classic_names_and_sections_are_dicts() -> None:
    config = PPOConfig(env="CartPole-v1", lr=0.25, lambda_=0.5, model={"fcnet_hiddens": [8]})  # type: ignore[arg-type]
    assert (config["lr"], config["lambda"], config.get("lambda"), config.get("no")) == (0.25, 0.5, 0.5, None)
    assert "lambda" in config
    assert "num_rollout_workers" not in config
    assert list(config["model"]["fcnet_hiddens"]) == [8]
    assert config["multiagent"]["policies"] is None
    assert dict(config) == dict(config.items()) == config.to_dict()
    assert list(config.keys()) == list(config)
    with pytest.raises(KeyError, match="num_workers"):
        config["num_rollout_workers"]


@pytest.mark.parametrize("defaults", [DEFAULT_CONFIG, PPO.get_default_config()])
def test_a_copy_of_the_defaults_is_changed_and_built_from(defaults: PPOConfig) -> None:
    changed = defaults.copy()
    changed["lr"] = 0.25
    changed["multiagent"]["policies"] = ["a", "b"]
    changed["multiagent"]["policy_mapping_fn"] = lambda agent_id, *args, **kwargs: "a"
    with PPO(env="CartPole-v1", config=changed) as algo:
        assert (algo.config["lr"], algo.config["multiagent"]["policies"]) == (0.25, ["a", "b"])
    assert defaults == PPOConfig()
    assert DQN.get_default_config() == DQN_DEFAULTS


# A new setting is one line: dicts, keywords, the builder chain, errors, files, commands and the page know it.


@by_name
@dataclass(frozen=True, kw_only=True)
class Skating(PPOConfig):
    """PPO with one more setting."""

    friction: float = setting(0.5, low=0, high=1, old="mu")
    """How much the ice slows down."""


def test_dicts_keywords_the_chain_and_the_command_set_it() -> None:
    config = Skating(env="CartPole-v1", friction=0.25)
    assert (config.friction, config["friction"], config.copy()["friction"]) == (0.25, 0.25, 0.25)
    assert config == read_config(Skating, {"env": "CartPole-v1", "friction": 0.25})
    assert config == Skating().environment("CartPole-v1", friction=0.25)
    assert config == Skating().environment("CartPole-v1", mu=0.25)
    assert config == read_config(Skating, read_settings("friction=0.25"), "CartPole-v1")
    assert Skating().friction == 0.5


def test_a_policy_has_its_own_and_a_checkpoint_holds_it() -> None:
    config = Skating(env="CartPole-v1", friction=0.25)
    assert override(config, {"friction": 1}, "p").friction == 1
    stored = stored_config(config, PolicyMap())
    assert (stored["friction"], restored_config(Skating, stored, None)["friction"]) == (0.25, 0.25)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"friction": 2}, "friction"), ({"fricton": 1}, "'friction'"), ({"mu": 1}, "'friction'")],
)
def test_errors_name_it(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(Skating, given)


def test_the_page_has_its_sentence() -> None:
    assert "| `friction` * | `0.5` | How much the ice slows down. |" in part("", "", Skating, {"friction"})
