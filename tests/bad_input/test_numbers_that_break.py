"""Numbers that are none: networks, weights and observations that break are named where they break."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv import Policy, PolicySpec
from menv.algorithms import DQN, PPO
from menv.envs.independent_copies import make_multi_agent
from menv.errors import ContractError
from menv.inference.backend import all_finite

SMALL: dict[str, Any] = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "seed": 1}
SPACES: dict[str, gym.Space[Any]] = {
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
    "one of two": gym.spaces.Discrete(2),
    "one of three": gym.spaces.Discrete(3),
    "several": gym.spaces.MultiDiscrete([3, 2]),
}


class Plain(gym.Env[Any, Any]):
    """Takes actions of any kind and keeps them; shows 0.5, and once in an episode what it is told to."""

    taken: ClassVar[list[Any]] = []

    def __init__(self, context: Any) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), context.get("dtype", np.float32))
        self.action_space = SPACES[context["actions"]]
        self._shown, self._when = context.get("shown", (0.5, 1))
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._step = 0
        return np.ones(3, self.observation_space.dtype), {}

    def step(self, action: Any) -> Any:
        self.taken.append(np.array(action))
        self._step += 1
        obs = np.full(3, 0.5, self.observation_space.dtype)
        if self._step == self._when:
            obs[1] = self._shown
        return obs, 1.0, self._step == 8, False, {}


def blow_up(policy: Any) -> None:
    """Give a policy weights that are finite, and too large to compute with."""
    weights = {
        name: value if name == "epsilon" else 1000 * value for name, value in policy.get_weights().items()
    }
    out = weights["policy.out.weight"]
    policy.set_weights({**weights, "policy.out.weight": np.copysign(3e38, out)})


@pytest.mark.each_value
@pytest.mark.parametrize("inference", ["onnx", "torch"])
@pytest.mark.parametrize("model", [{}, {"use_gru": True}], ids=["plain", "gru"])
@pytest.mark.parametrize("actions", SPACES)
def test_no_action_of_a_network_that_overflows_reaches_the_environment(
    actions: str, model: dict[str, Any], inference: str
) -> None:
    config = {**SMALL, "env_config": {"actions": actions}, "model": model}
    with PPO(env=Plain, config={**config, "inference": inference, "num_envs_per_worker": 3}) as algorithm:
        algorithm.sample()
        policy = algorithm.get_policy()
        blow_up(policy)
        assert Plain.taken
        Plain.taken.clear()
        for act in (algorithm.sample, algorithm.evaluate):
            with pytest.raises(ContractError, match=r"^policy 'default_policy': .*finite.* lower lr"):
                act()
        assert not Plain.taken
        obs = np.ones(3, np.float32)
        state: dict[str, Any] = {"state": policy.get_initial_state()} if model else {}
        with pytest.raises(ContractError, match=r"^policy 'default_policy': .*finite"):
            algorithm.compute_single_action(obs, **state)
        with pytest.raises(ContractError, match=r"^policy 'default_policy': .*finite"):
            policy.compute_actions([obs, obs])


class Stray(Policy):
    """Answers something that is no number."""

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        return [np.array([0.0, np.nan], np.float32) for _ in obs_batch], [], {}


def test_actions_of_a_policy_of_ones_own_that_are_no_numbers_are_refused() -> None:
    Plain.taken.clear()
    policies = {
        "policies": {"stray": PolicySpec(policy_class=Stray)},
        "policy_mapping_fn": lambda agent: "stray",
    }
    with (
        PPO(
            env=Plain, config={**SMALL, "env_config": {"actions": "box"}, "multiagent": policies}
        ) as algorithm,
        pytest.raises(ContractError, match=r"^policy 'stray': action: nan"),
    ):
        algorithm.sample()
    assert not Plain.taken


def test_of_policies_that_act_in_one_call_the_broken_one_is_named() -> None:
    make = make_multi_agent(lambda context: Plain({"actions": "one of three"}))
    policies = {
        "policies": ["good", "broken"],
        "policy_mapping_fn": lambda agent, *rest, **more: "broken" if agent else "good",
    }
    config = {**SMALL, "env_config": {"num_agents": 2}, "multiagent": policies}
    with PPO(env=make, config=config) as algorithm:
        algorithm.sample()
        blow_up(algorithm.get_policy("broken"))
        with pytest.raises(ContractError, match=r"^policy .*'broken': its network gives"):
            algorithm.sample()


class Roots(torch.nn.Module):
    """Gives NaN where an observation is below 0."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, num_outputs)

    def forward(self, obs: Any) -> Any:
        return self.layer(obs.sqrt()), obs.sum(-1)


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_a_network_that_gives_nan_for_some_observations_is_named(kind: Any) -> None:
    context = {"actions": "one of three", "shown": (-1.0, 4)}
    config = {"env_config": context, "model": {"custom_model": Roots}, "train_batch_size": 64}
    with (
        kind(env=Plain, config=config) as algorithm,
        pytest.raises(ContractError, match="weights are finite"),
    ):
        algorithm.train()


class Forbids(torch.nn.Module):
    """Says of a choice that nobody may take it."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, num_outputs)

    def forward(self, obs: Any) -> Any:
        outputs = self.layer(obs)
        return outputs.masked_fill(torch.arange(outputs.shape[-1]) == 1, -torch.inf), obs.sum(-1)


def test_a_choice_may_be_worth_minus_infinity() -> None:
    Plain.taken.clear()
    context = {"actions": "one of three"}
    with PPO(env=Plain, config={"env_config": context, "model": {"custom_model": Forbids}}) as algorithm:
        algorithm.sample()
        assert {int(action) for action in Plain.taken} == {0, 2}
    assert not all_finite(np.array([[0, 1], [-np.inf, -np.inf]], np.float32), choices=True)
    assert all_finite(np.full((2, 2), 3e38, np.float32), choices=True)
    assert not all_finite(np.array([[0, -np.inf]], np.float32), choices=False)


def test_a_stored_policy_that_overflows_is_refused_where_it_acts(tmp_path: Path) -> None:
    with DQN(env=Plain, config={"env_config": {"actions": "one of three"}}) as algorithm:
        blow_up(algorithm.get_policy())
        algorithm.export_policy_checkpoint(str(tmp_path / "policy"))
    policy: Any = Policy.from_checkpoint(tmp_path / "policy")
    with pytest.raises(ContractError, match=r"^policy 'default_policy': its network gives no finite numbers"):
        policy.act(np.ones(3, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("when", "told"), [(3, "agent step 3"), (8, "final observation")])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_observations_that_are_infinite_as_float32_are_refused(when: int, told: str, dtype: Any) -> None:
    shown = np.inf if dtype == np.float32 else 1e300
    context = {"actions": "one of two", "shown": (shown, when), "dtype": dtype}
    with (
        PPO(env=Plain, config={**SMALL, "env_config": context}) as algorithm,
        pytest.raises(ContractError, match=rf"^env 0, agent 'agent0', {told}: obs: inf at index 1"),
    ):
        algorithm.sample()
