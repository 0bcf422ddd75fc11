"""Settings of actions and rewards hold for custom policies; what they return stays within the space."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from menv import (
    ContractError,
    Policy,
    PolicySpec,
    RandomPolicy,
    VectorEnv,
    local_policy_inference,
)
from menv.algorithms import PPO
from tests.worlds import Alone, Several


def array(values: Any) -> Any:
    return np.array(values, np.float32)


BOX = gym.spaces.Box(array([0.0, -2.0]), array([6.0, 2.0]))
NESTED = gym.spaces.Dict({"steer": BOX, "gear": gym.spaces.Discrete(3)})


class Track(Alone):
    """Keeps the actions that it is given; pays 10."""

    length = 5
    given: ClassVar[list[Any]] = []

    def __init__(self, context: Any = None) -> None:
        super().__init__(context)
        self.action_space = self.config.get("space", BOX)

    def pay(self, action: Any) -> float:
        self.given.append(action)
        return 10.0


class Cars(Several):
    length = 5

    def __init__(self, context: Any = None) -> None:
        super().__init__(context)
        self.action_space = self.config.get("space", BOX)

    def pay(self, actions: Any) -> Any:
        Track.given.append(actions["a"])
        return dict.fromkeys(actions, 10.0)


class Fixed(Policy):
    """Answers the value in its config, always in the same array; `rewards` is what it was shown of them."""

    rewards: ClassVar[list[float]] = []

    def compute_actions(  # type: ignore[override]  # the classic way: what it reads, and the rest
        self, obs_batch: Any, prev_reward_batch: Any = None, **kwargs: Any
    ) -> Any:
        if prev_reward_batch is not None:
            self.rewards.extend(np.asarray(prev_reward_batch).tolist())
        return [self.config["value"]] * len(obs_batch), [], {}


KINDS: dict[str, Any] = {
    "gym": Track,
    "agents": Cars,
    "vector": lambda context: VectorEnv.vectorize_gym_envs(existing_envs=[Track(context)], num_envs=1),
    "gymnasium.vector": lambda context: SyncVectorEnv([lambda: Track(context)]),
}


def play(
    value: Any, kind: Any = Track, *, space: Any = BOX, own: Any = None, **config: Any
) -> tuple[Any, Any]:
    """Return the first action that the environment was given, and the batch."""
    Track.given.clear()
    Fixed.rewards.clear()
    spec = PolicySpec(policy_class=Fixed, config={"value": value, **(own or {})})
    settings = {"rollout_fragment_length": 10, "env_config": {"space": space}, "engine": "process", **config}
    with PPO(env=kind, config={**settings, "multiagent": {"policies": {"default_policy": spec}}}) as algo:
        batch = algo.sample()["default_policy"]
    return (Track.given[0] if Track.given else None), batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "value", "given"),
    [
        ({}, [3.5, 1.5], [3.5, 1.5]),
        ({"clip_actions": True}, [8.8, -7.0], [6.0, -2.0]),
        ({"normalize_actions": True}, [0.5, -1.0], [4.5, -2.0]),
        ({"normalize_actions": True}, [9.0, -9.0], [6.0, -2.0]),
        ({"normalize_actions": False, "clip_actions": True}, [7.0, 1.0], [6.0, 1.0]),
    ],
)
def test_connectors_apply_where_the_setting_is_given(
    kind: str, settings: Any, value: Any, given: Any
) -> None:
    action, batch = play(array(value), KINDS[kind], **settings)
    np.testing.assert_allclose(action, given)
    # The batch keeps the policy's own, as for networks.
    np.testing.assert_array_equal(batch["actions"][0], array(value))


@pytest.mark.parametrize(
    "where", [{"num_workers": 1}, {"remote_worker_envs": True, "num_envs_per_worker": 2}]
)
def test_they_apply_in_other_processes(where: Any) -> None:
    class Told(Track):
        def pay(self, action: Any) -> float:
            return float(action[0])

    _, batch = play(array([8.8, 0.0]), Told, clip_actions=True, **where)
    assert set(batch["rewards"].tolist()) == {6.0}


def test_a_policy_has_settings_of_its_own() -> None:
    action, _ = play(array([8.8, -7.0]), own={"clip_actions": True})
    np.testing.assert_array_equal(action, array([6.0, -2.0]))
    with pytest.raises(ContractError, match="policy 'default_policy': action: "):
        play(array([8.8, -7.0]), clip_actions=True, own={"clip_actions": False})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, array([8.8, 0.0])),
        (NESTED, {"steer": array([8.8, 0.0]), "gear": 1}),
        (NESTED, {"steer": array([1.0, 0.0]), "gear": 3}),
        (gym.spaces.MultiDiscrete([3, 4]), np.array([0, 4])),
        (gym.spaces.Discrete(3, start=1), 0),
        (gym.spaces.MultiBinary(2), np.array([0, 2], np.int8)),
    ],
)
def test_an_action_outside_the_space_is_an_error_that_names_the_policy(
    kind: str, space: Any, value: Any
) -> None:
    with pytest.raises(ContractError, match="policy 'default_policy': action"):
        play(value, KINDS[kind], space=space)


@pytest.mark.parametrize("kind", ["gym", "agents", "vector"])
@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, array([3.0, 1.0])),
        (gym.spaces.MultiDiscrete([3, 4]), np.array([1, 2])),
        (NESTED, {"steer": array([3.0, 1.0]), "gear": 1}),
        (gym.spaces.MultiBinary(2), np.array([0, 1], np.int8)),
    ],
)
def test_the_environment_gets_write_protected_copies_of_the_space(kind: str, space: Any, value: Any) -> None:
    action, _ = play(value, KINDS[kind], space=space)
    assert space.contains(action)
    arrays = [action["steer"]] if isinstance(action, dict) else [action]
    own = value["steer"] if isinstance(value, dict) else value
    for array in arrays:
        assert not np.shares_memory(array, own)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    own[0] = own[0]


def test_random_policies_draw_within_the_space_and_are_scaled_where_that_is_set() -> None:
    for settings, least in (({}, 0.0), ({"normalize_actions": True}, 3.0)):
        Track.given.clear()
        spec = {"default_policy": PolicySpec(policy_class=RandomPolicy)}
        config = {"rollout_fragment_length": 40, "seed": 0, **settings, "multiagent": {"policies": spec}}
        with PPO(env=Track, config=config) as algo:
            algo.sample()
        actions = np.stack(Track.given)
        # Draws from [0, 6] read as [-1, 1] are in the upper half of the range.
        assert ((actions[:, 0] >= least) & (actions[:, 0] <= 6.0)).all()
        assert len(np.unique(actions[:, 0])) > 5


@pytest.mark.parametrize(("setting", "reward"), [(True, 1.0), (2.5, 2.5), (False, 10.0)])
@pytest.mark.parametrize("own", [True, False], ids=["policy", "run"])
def test_rewards_are_clipped_in_what_they_learn_from_and_in_what_they_are_shown(
    setting: Any, reward: float, own: bool
) -> None:
    given = {"clip_rewards": setting}
    more: dict[str, Any] = {"own": given} if own else given
    _, batch = play(array([1.0, 1.0]), **more)
    assert set(batch["rewards"].tolist()) == {reward}
    assert set(Fixed.rewards) == {0.0, reward}


def test_actions_that_are_asked_for_by_hand_come_as_the_environment_takes_them() -> None:
    spec = PolicySpec(policy_class=Fixed, config={"value": array([8.8, 0.0])})
    config = {"clip_actions": True, "multiagent": {"policies": {"default_policy": spec}}}
    with PPO(env=Track, config=config) as algo:
        obs, policy = np.zeros(1, np.float32), algo.get_policy()
        answers = [
            algo.compute_single_action(obs), policy.act(obs), local_policy_inference(policy, 0, 0, obs)[0][0],
        ]  # fmt: skip
        length = algo.evaluate()["evaluation"]["episode_len_mean"]
    for action in answers:
        np.testing.assert_array_equal(action, array([6.0, 0.0]))
    assert length == 5
