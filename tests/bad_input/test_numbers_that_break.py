"""Numbers that are none: networks, weights and observations that break are named where they break."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from menv import Policy, PolicySpec
from menv.algorithms import DQN, PPO
from menv.envs.independent_copies import make_multi_agent
from menv.errors import ContractError
from tests.worlds import Alone

SMALL: dict[str, Any] = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "seed": 1}
SPACES: dict[str, gym.Space[Any]] = {
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
    "one of two": gym.spaces.Discrete(2),
    "one of three": gym.spaces.Discrete(3),
    "several": gym.spaces.MultiDiscrete([3, 2]),
}


class Plain(Alone):
    """Takes actions of any kind and keeps them; shows 0.5, and once in an episode what it is told to."""

    taken: ClassVar[list[Any]] = []
    length = 8

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), context.get("dtype", np.float32))
        self.action_space = SPACES[context["actions"]]
        self.shown, self.when = context.get("shown", (0.5, 1))

    def see(self) -> Any:
        obs = np.full(3, 0.5 if self.at else 1.0, self.observation_space.dtype)
        if self.at == self.when:
            obs[1] = self.shown
        return obs

    def pay(self, action: Any) -> float:
        self.taken.append(np.array(action))
        return 1.0


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
            with pytest.raises(ContractError, match="'default_policy'"):
                act()
        assert not Plain.taken
        obs = np.ones(3, np.float32)
        state: dict[str, Any] = {"state": policy.get_initial_state()} if model else {}
        with pytest.raises(ContractError, match="'default_policy'"):
            algorithm.compute_single_action(obs, **state)
        with pytest.raises(ContractError, match="'default_policy'"):
            policy.compute_actions([obs, obs])


class Stray(Policy):
    """Answers something that is not a number."""

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        return [np.array([0.0, np.nan], np.float32) for _ in obs_batch], [], {}


def test_actions_of_a_custom_policy_that_are_not_numbers_are_refused() -> None:
    Plain.taken.clear()
    policies = {
        "policies": {"stray": PolicySpec(policy_class=Stray)},
        "policy_mapping_fn": lambda agent: "stray",
    }
    with (
        PPO(
            env=Plain, config={**SMALL, "env_config": {"actions": "box"}, "multiagent": policies}
        ) as algorithm,
        pytest.raises(ContractError, match="'stray'"),
    ):
        algorithm.sample()
    assert not Plain.taken


def test_the_broken_policy_of_a_shared_call_is_named() -> None:
    make = make_multi_agent(lambda context: Plain({"actions": "one of three"}))
    policies = {
        "policies": ["good", "broken"],
        "policy_mapping_fn": lambda agent, *rest, **more: "broken" if agent else "good",
    }
    config = {**SMALL, "env_config": {"num_agents": 2}, "multiagent": policies}
    with PPO(env=make, config=config) as algorithm:
        algorithm.sample()
        blow_up(algorithm.get_policy("broken"))
        with pytest.raises(ContractError, match="'broken'"):
            algorithm.sample()


def test_a_stored_policy_that_overflows_is_refused_where_it_acts(tmp_path: Path) -> None:
    with DQN(env=Plain, config={"env_config": {"actions": "one of three"}}) as algorithm:
        blow_up(algorithm.get_policy())
        algorithm.export_policy_checkpoint(str(tmp_path / "policy"))
    policy: Any = Policy.from_checkpoint(tmp_path / "policy")
    with pytest.raises(ContractError, match="'default_policy'"):
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
