"""Settings of networks, critics, groups, callbacks and evaluations that are wrong, or nearly right: one line each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from menv import DefaultCallbacks, PolicySpec
from menv.algorithms import PPO, QMIX
from menv.errors import ConfigError
from tests.algorithms_e2e.comings import Comings

SMALL: dict[str, Any] = {"train_batch_size": 16, "seed": 1}


class NeedsArguments(DefaultCallbacks):
    def __init__(self, folder: str) -> None:
        self.folder = folder


MODELS: list[tuple[dict[str, Any], str]] = [
    # What is true of a text would switch on what it says is off.
    ({"use_lstm": "False"}, "use_lstm is 'False', expected True or False"),
    ({"use_gru": 1}, "use_gru is 1, expected True or False"),
    ({"use_lstm": None}, "use_lstm is None, expected True or False"),
    ({"vf_share_layers": [False]}, r"vf_share_layers is \[False\], expected True or False"),
    ({"vf_share_layers": np.array([1, 1])}, r"vf_share_layers is \[1, 1\], expected True or False"),
    ({"fcnet_hiddens": ""}, "fcnet_hiddens is '', expected a list of at most 256 positive integers"),
    ({"fcnet_hiddens": b"8"}, "fcnet_hiddens is b'8', expected a list of at most 256 positive integers"),
    (
        {"fcnet_hiddens": ["64"]},
        r"fcnet_hiddens is \['64'\], expected a list of at most 256 positive integers",
    ),
    (
        {"fcnet_hiddens": [True]},
        r"fcnet_hiddens is \[True\], expected a list of at most 256 positive integers",
    ),
    ({"fcnet_hiddens": 64}, "fcnet_hiddens is 64, expected a list of at most 256 positive integers"),
    ({"fcnet_activation": np.array(["relu"])}, r"activation is \['relu'\], expected one of 'tanh'"),
    ({"use_lstm": True, "lstm_cell_size": "64"}, "lstm_cell_size is '64', expected an integer"),
    ({"use_lstm": True, "max_seq_len": 20.0}, "max_seq_len is 20.0, expected an integer"),
    ({"shared_layers": True}, "shared_layers is True, expected a name"),
    ({"shared_layers": ["a"]}, r"shared_layers is \['a'\], expected a name"),
    ({"conv_filters": "[16, 4, 2]"}, "conv_filters is .*expected a list of"),
    ({"conv_filters": [["16", 4, 2]]}, r"conv_filters is \[\['16', 4, 2\]\], expected a list of"),
    ({"custom_model": "Grid"}, "custom_model is 'Grid', expected a torch.nn.Module class"),
    (
        {"custom_model": nn.Linear(2, 2)},
        "custom_model is an instance of Linear, expected a torch.nn.Module class",
    ),
    (
        {"custom_model": nn.Linear, "custom_model_config": [("width", 4)]},
        "custom_model_config is .*, expected a dict",
    ),
]


@pytest.mark.parametrize(("model", "message"), MODELS)
def test_a_setting_of_the_model_is_named_with_what_it_may_be(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        PPO(env=Comings, config={**SMALL, "model": model})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", [
    {"fcnet_hiddens": np.array([8, 4]).tolist(), "use_lstm": np.True_, "lstm_cell_size": np.int64(8)},
    {"fcnet_hiddens": (np.int32(8),), "use_gru": True, "max_seq_len": np.int64(5), "vf_share_layers": np.False_},
    {"conv_filters": ((np.int64(4), [np.int64(8), 8], 4),), "fcnet_hiddens": [8]},
], ids=str)  # fmt: skip
def test_numbers_and_flags_of_numpy_are_as_good_as_pythons(model: dict[str, Any]) -> None:
    world = {"obs": "image"} if "conv_filters" in model else {}
    with PPO(env=Comings, config={**SMALL, "model": model, "env_config": world}) as algorithm:
        assert "default_policy" in algorithm.train()["info"]


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"critic_obs": "all"}, "critic_obs is 'all', expected \"all_agents\""),
    ({"critic_obs": np.zeros(2)}, r'critic_obs is \[0.*expected "all_agents"'),
    (
        {"critic_obs": lambda batch: batch["obs"], "critic_obs_size": 4},
        'critic_obs is <function.*expected "all_agents"',
    ),
    ({"critic_obs": lambda *args: None, "critic_obs_size": "4"}, "critic_obs_size is '4'"),
    ({"callbacks": "mine"}, "callbacks: str, expected a subclass"),
    ({"callbacks": int}, "callbacks: int, expected a subclass"),
    ({"callbacks": [DefaultCallbacks, 3]}, "callbacks: int, expected a subclass"),
    (
        {"callbacks": NeedsArguments},
        "NeedsArguments cannot be created without arguments .*'folder'.*pass an instance",
    ),
    ({"callbacks": [NeedsArguments]}, "NeedsArguments cannot be created without arguments"),
    ({"callbacks": {"on_episode_end": print}}, "callbacks: dict, expected a subclass"),
    ({"evaluation_config": {"explor": False}}, "evaluation_config: unknown key 'explor'.*'explore'"),
    (
        {"evaluation_duration_unit": np.array(["episodes"])},
        r"evaluation_duration_unit is \['episodes'\], expected",
    ),
    ({"multiagent": {"policies": 2}}, "policies: 2, expected policy ids"),
    ({"multiagent": {"policies": [["a"]]}}, r"policies: \[\['a'\]\], expected policy ids"),
    (
        {"multiagent": {"policies_to_train": [["a"]]}},
        r"policies_to_train: \[\['a'\]\], expected policy ids or a",
    ),
]


@pytest.mark.parametrize(("settings", "message"), SETTINGS)
def test_a_setting_of_the_run_is_named_when_it_is_built(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        PPO(env=Comings, config={**SMALL, **settings})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("settings", "message"), [
    ({"model": {"custom_model": nn.Linear}}, "custom_model is set, expected feed-forward hidden layers alone.*None"),
    ({"model": {"conv_filters": [[4, 4, 2]]}}, "model.conv_filters is set, expected feed-forward hidden layers alone"),
    ({"model": {"use_gru": True}}, "model.use_gru is set, expected feed-forward hidden layers alone.*False"),
    ({"mixer": np.array(["qmix"])}, r"mixer is \['qmix'\], expected one of"),
    ({"mixer": "QMIX"}, "mixer is 'QMIX', expected one of"),
], ids=str)  # fmt: skip
def test_what_a_group_cannot_have_is_refused(settings: dict[str, Any], message: str) -> None:
    def env(context: Any) -> Any:
        return Comings({**context, "steady": True}).with_agent_groups({"team": ["a0", "a1", "a2"]})

    with pytest.raises(ConfigError, match=message) as caught:
        QMIX(env=env, config={"seed": 1, **settings})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("differ", [
    {"conv_activation": "tanh"},
    # Strides are in no weight's shape, and these leave as many numbers.
    {"conv_filters": [[4, [8, 8], 8], [8, [2, 2], 3]]},
], ids=str)  # fmt: skip
def test_shared_layers_need_equal_convolutions(differ: dict[str, Any]) -> None:
    model = {"shared_layers": "eyes", "conv_filters": [[4, [8, 8], 8], [8, [2, 2], 2]], "fcnet_hiddens": [8]}
    multi = {
        "policies": {"one": None, "other": PolicySpec(config={"model": differ})},
        "policy_mapping_fn": lambda agent_id, **kwargs: "one" if agent_id == "a0" else "other",
    }
    with pytest.raises(ConfigError, match=r"shared_layers='eyes'.*'one'"):
        PPO(env=Comings, config={"env_config": {"obs": "image"}, "model": model, "multiagent": multi})


@pytest.mark.parametrize(("weights", "message"), [
    (None, "set_weights: NoneType where weights by name belong"),
    ({"default_policy": None}, "set_weights: NoneType where weights by name belong"),
    ({"default_policy": [1.0]}, "set_weights: list where weights by name belong"),
    ({"stranger": {}}, "policy 'stranger' does not exist"),
    ({"default_policy": {}}, "^policy 'default_policy': .* do not fit the architecture.*PolicySpec\\(algorithm="),
    ({"default_policy": {"policy.0.weight": "x"}}, "is a str that cannot be read as float32"),
], ids=str)  # fmt: skip
def test_weights_that_are_none_are_refused_and_change_nothing(weights: Any, message: str) -> None:
    with PPO(env=Comings, config=SMALL) as algorithm:
        before = algorithm.get_weights("default_policy")["default_policy"]
        with pytest.raises(ConfigError, match=message) as caught:
            algorithm.set_weights(weights)
        assert "\n" not in str(caught.value)
        after = algorithm.get_weights()["default_policy"]
    assert all((before[name] == after[name]).all() for name in before)


class Line(nn.Module):
    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, num_outputs + 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(obs)
        return out[:, :-1], out[:, -1]


@pytest.mark.parametrize("remembers", [False, True])
def test_a_module_may_write_into_what_it_is_shown(remembers: bool) -> None:
    class Writing(Line):
        def forward(self, obs: Tensor, *state: Any) -> Any:
            obs *= 0.0
            out = self.layer(obs)
            found = out[..., :-1], out[..., -1]
            return (*found, *state) if remembers else found

    if remembers:
        Writing.get_initial_state = lambda self: [torch.zeros(1)]  # type: ignore[attr-defined]
    with PPO(env=Comings, config={**SMALL, "model": {"custom_model": Writing}}) as algorithm:
        assert algorithm.sample()["default_policy"]["obs"].any(1).all()
        algorithm.train()
        assert algorithm.sample()["default_policy"]["obs"].any(1).all()


def test_callbacks_in_lists_and_none_among_them_wake_no_hook_that_nobody_overrides() -> None:
    from menv.callbacks import overrides, read_callbacks

    class Ends(DefaultCallbacks):
        def on_episode_end(self, **kwargs: Any) -> None:
            """Does something."""

    found = read_callbacks([None, DefaultCallbacks, [Ends()]])
    assert overrides(found, "on_episode_end")
    assert not overrides(found, "on_episode_step")


def test_an_evaluation_may_have_callbacks_of_its_own() -> None:
    ended: list[str] = []

    def noting(name: str) -> type[DefaultCallbacks]:
        class Notes(DefaultCallbacks):
            def on_episode_end(self, **kwargs: Any) -> None:
                ended.append(name)

        return Notes

    own = {"evaluation_duration": 2, "evaluation_config": {"callbacks": noting("evaluation")}}
    with PPO(env=Comings, config={**SMALL, **own, "callbacks": noting("training")}) as algorithm:
        algorithm.train()
        assert set(ended) == {"training"}
        ended.clear()
        algorithm.evaluate()
    assert ended == ["evaluation"] * 2


def test_weights_that_cannot_be_read_are_refused_by_name() -> None:
    with PPO(env="CartPole-v1", config={"train_batch_size": 200}) as algorithm:
        policy = algorithm.get_policy()
        weights = policy.get_weights()
        learned = torch.ones(64, requires_grad=True)
        for value in (learned, [[1.0], [1.0, 2.0]], "none", None):
            given = {**weights, "policy.0.bias": value}
            with pytest.raises(
                ConfigError, match=r"weight 'policy.0.bias' (is a \w+ that cannot be|holds NaN)"
            ):
                policy.set_weights(given)
        policy.set_weights({**weights, "policy.0.bias": learned.detach()})
        assert np.array_equal(policy.get_weights()["policy.0.bias"], np.ones(64, np.float32))


def test_weights_that_are_no_numbers_are_refused_before_anybody_acts_by_them() -> None:
    with PPO(env="CartPole-v1", config={"train_batch_size": 200}) as algorithm:
        policy = algorithm.get_policy()
        weights = policy.get_weights()
        broken = {name: value.copy() for name, value in weights.items()}
        broken["policy.0.bias"][3] = np.nan
        for give in (policy.set_weights, lambda own: algorithm.set_weights({"default_policy": own})):
            with pytest.raises(ConfigError, match=r"weight 'policy.0.bias' holds NaN, expected numbers"):
                give(broken)
        assert all(np.array_equal(value, weights[name]) for name, value in policy.get_weights().items())
        # Numbers that are too large to be squared are numbers.
        policy.set_weights({name: np.full_like(value, 3e38) for name, value in weights.items()})
