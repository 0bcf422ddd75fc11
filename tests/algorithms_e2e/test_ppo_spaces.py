"""PPO on every kind of space, and under action masks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import PPO
from tests.algorithms_e2e.looking import watching
from tests.algorithms_e2e.test_ppo import tiny
from tests.worlds import Alone, Several, like


class Spaces(Alone):
    """Samples observations and checks the actions it is given."""

    length = 5

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space
        observation_space.seed(0)

    def see(self) -> Any:
        return self.observation_space.sample()

    def pay(self, action: Any) -> float:
        assert self.action_space.contains(action) or self.action_space.contains(np.array(action)), action
        return 1.0


OBSERVATIONS = [
    gym.spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    gym.spaces.Box(0, 255, (4,), np.uint8),
    gym.spaces.Box(-1.0, 1.0, (2,), np.float64),
    gym.spaces.Discrete(4, start=2),
    gym.spaces.MultiDiscrete([2, 3]),
    gym.spaces.MultiBinary(3),
    gym.spaces.Dict(
        {"a": gym.spaces.Discrete(3), "b": gym.spaces.Tuple([gym.spaces.Box(-1.0, 1.0, (2,), np.float32)])}
    ),
    gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([2, 2])]),
]
ACTIONS = [
    gym.spaces.Discrete(3),
    gym.spaces.Discrete(3, start=-1),
    gym.spaces.MultiDiscrete([2, 3]),
    gym.spaces.Box(-2.0, 2.0, (2,), np.float32),
    gym.spaces.Box(0.0, 6.0, (2, 2), np.float64),
    gym.spaces.Dict(
        {
            "brake": gym.spaces.Discrete(2, start=3),
            "steer": gym.spaces.Tuple([gym.spaces.Box(-2.0, 2.0, (1, 2)), gym.spaces.MultiDiscrete([2, 3])]),
        }
    ),
]
PAIRS = [(one, ACTIONS[0]) for one in OBSERVATIONS] + [(OBSERVATIONS[0], one) for one in ACTIONS[1:]]


@pytest.mark.parametrize(("observations", "actions"), PAIRS, ids=str)
def test_every_kind_of_space_is_trained_on(observations: Any, actions: Any) -> None:
    with PPO(env=lambda context: Spaces(observations, actions), config=tiny(seed=2)) as algorithm:
        result = algorithm.train()
        assert all(np.isfinite(value) for value in result["info"]["default_policy"].values())
        assert result["inference"] == {"default_policy": "onnx"}
        action = algorithm.compute_single_action(observations.sample(), explore=False)
        assert actions.contains(action) or actions.contains(np.array(action))


MASKED = gym.spaces.Dict(
    {
        "observations": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
        "action_mask": gym.spaces.Box(0, 1, (4,), np.int8),
    }
)


class OnlyOne(Alone):
    """Allows one or two actions at a time and raises on any other."""

    observation_space, action_space, length = MASKED, gym.spaces.Discrete(4), 9

    def see(self) -> Any:
        self.mask = np.zeros(4, np.int8)
        self.mask[[self.at % 4, self.at * 3 % 4]] = 1
        return {"observations": np.full(2, self.at / 20, np.float32), "action_mask": self.mask}

    def pay(self, action: Any) -> float:
        assert self.mask[action], f"illegal action {action}"
        return 1.0


@pytest.mark.parametrize("inference", ["onnx", "torch"])
@pytest.mark.parametrize("explore", [True, False])
def test_masked_actions_are_never_taken_and_have_no_probability(inference: str, explore: bool) -> None:
    with PPO(env=OnlyOne, config=tiny(seed=0, inference=inference, explore=explore)) as algorithm:
        for _ in range(2):
            algorithm.train()
        part = algorithm.sample()["default_policy"]
        mask = part["action_mask"]
        assert mask[np.arange(part.count), part["actions"]].all()
        assert (part["action_dist_inputs"][~mask] < -1e8).all()
        single = mask.sum(1) == 1
        np.testing.assert_allclose(part["action_logp"][single], 0.0, atol=1e-6)
        obs = {"observations": np.zeros(2, np.float32), "action_mask": np.array([0, 0, 1, 0], np.int8)}
        assert [algorithm.compute_single_action(obs, explore=True) for _ in range(10)] == [2] * 10


def test_box_actions_are_scaled_for_the_environment_and_kept_raw_in_the_batch() -> None:
    acted: list[Any] = []

    class Notes(Spaces):
        def step(self, action: Any) -> Any:
            acted.append(np.array(action))
            return super().step(action)

    space = gym.spaces.Box(0.0, 6.0, (1,), np.float32)
    config = {"rollout_fragment_length": 10, "seed": 0}
    with PPO(env=lambda context: Notes(OBSERVATIONS[0], space), config=config) as algorithm:
        own = algorithm.sample()["default_policy"]["actions"]
    np.testing.assert_allclose(np.clip(own * 3 + 3, 0, 6), acted, rtol=1e-5)
    assert own.min() < 0


# Two agents take turns, "a" first; an episode has 20 of them.
Alternating = like(
    Several,
    observation_space=gym.spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    action_space=gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
    length=20,
    shown=lambda self: "ab"[self.at % 2],
    see=lambda self, agent: np.full((2, 3), self.at / 20, np.float32),
    pay=lambda self, actions: dict.fromkeys(actions, 1.0),
)


@pytest.mark.parametrize("model", [{}, {"use_gru": True, "lstm_cell_size": 4}], ids=["plain", "gru"])
def test_an_action_that_is_rewarded_after_the_weights_changed_keeps_the_probability_that_it_had(
    model: dict[str, Any],
) -> None:
    watch, _ = watching()
    multiagent = {"policies": {"own": PolicySpec(watch)}, "policy_mapping_fn": lambda agent_id, **kw: "own"}
    config = {"rollout_fragment_length": 3, "seed": 0, "model": model, "multiagent": multiagent}
    with PPO(env=Alternating, config=config) as algorithm:
        algorithm.sample()
        policy: Any = algorithm.get_policy("own")
        backend = policy.networks.backend
        before = backend.extract_policy(0)
        weights = algorithm.get_weights()
        algorithm.set_weights(
            {"own": {name: value + np.float32(0.3) for name, value in weights["own"].items()}}
        )
        part = algorithm.sample()["own"]
        names = [name for name in part if name.startswith("state_in_")]
        state = np.concatenate([part[name] for name in names], 1) if names else None
        then, now = (
            one.evaluate(0, part["obs"], None, part["actions"], state).logp for one in (before, backend)
        )
    held = np.isclose(part["obs"][:, 0] * 20, 2)
    assert held.sum() == 1
    assert abs(now - then).min() > 0.01
    np.testing.assert_allclose(part["action_logp"], np.where(held, then, now), atol=1e-5)
