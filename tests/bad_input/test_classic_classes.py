"""Classes written for the classic API: methods that nobody calls are told."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from menv.algorithms import PPO, PPOConfig, PPOPolicy
from tests.worlds import Several


class ClassicStats(PPOPolicy):
    def stats_fn(self, train_batch: Any) -> Any:
        return {"vf_explained_var": 1.0}


class Attributes(PPOPolicy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mine = self.config["gamma"], self.observation_space


class ClassicModel(torch.nn.Module):
    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(obs_space.shape[0], num_outputs + 1)

    def forward(self, obs: Any) -> Any:
        found = self.layer(obs)
        return found[:, 1:], found[:, 0]

    def custom_loss(self, policy_loss: Any, loss_inputs: Any) -> Any:
        return policy_loss


class ClassicWorkflow(PPO):
    @classmethod
    def get_default_policy_class(cls, config: Any) -> Any:
        return Attributes

    def training_step(self) -> Any:
        return {}


class OtherDefaults(PPO):
    @classmethod
    def get_default_config(cls) -> PPOConfig:
        return PPOConfig(gamma=0.5, lr=0.25)


def config(policy: Any = None, **more: Any) -> dict[str, Any]:
    return {"env": "CartPole-v1", "multiagent": {"policies": {"default_policy": policy}}, **more}


@pytest.mark.parametrize(
    ("algorithm", "settings", "messages"),
    [
        (PPO, config(ClassicStats), ["ClassicStats.stats_fn is never called; return (loss, {name: scalar})"]),
        (
            PPO,
            config(model={"custom_model": ClassicModel}),
            ["ClassicModel.custom_loss is never called; write loss"],
        ),
        (
            ClassicWorkflow,
            config(),
            [
                "get_default_policy_class is never called; name the class in multi",
                "training_step is never called",
            ],
        ),
    ],
)
def test_methods_that_are_never_called_warn(algorithm: Any, settings: Any, messages: list[str]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        algorithm(config=settings).stop()
    for message in messages:
        assert any(message in str(one.message) for one in told)


def test_custom_defaults_hold_unless_a_dict_overrides_them() -> None:
    with OtherDefaults(config=config(lr=0.125)) as algo:
        assert [algo.config[key] for key in ("gamma", "lr", "env")] == [0.5, 0.125, "CartPole-v1"]
    with OtherDefaults(config=PPOConfig(env="CartPole-v1")) as algo:
        assert algo.config["gamma"] == PPOConfig().gamma


def test_sections_are_put_over_those_of_custom_defaults_key_by_key() -> None:
    own: dict[str, Any] = {
        "model": {"fcnet_hiddens": [7], "use_lstm": True},
        "multiagent": {"policies": ["a"], "count_steps_by": "agent_steps"},
        "env_config": {"size": 5, "walls": True},
    }

    class Own(PPO):
        @classmethod
        def get_default_config(cls) -> Any:
            return own

    given = {"model": {"fcnet_hiddens": [3]}, "multiagent": {"policies": ["b"]}, "env_config": {"size": 6}}
    with Own(env=Several, config=given) as algo:
        read = algo.config
    assert (list(read.model.fcnet_hiddens), read.model.use_lstm) == ([3], True)
    assert (read.multiagent.policies, read.multiagent.count_steps_by) == (["b"], "agent_steps")
    assert read.env_config == {"size": 6, "walls": True}
