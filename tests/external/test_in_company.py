"""External environments beside everything else: connectors, memory, masks, callbacks, evaluations, checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks
from menv.algorithms import DQN, PPO
from menv.errors import ConfigError
from menv.serving.policy_server import PolicyServerInput
from tests.external.told import Told, ask_steps, calling, obs, training
from tests.external.walk import Walk, same_columns, walk_on
from tests.inside import metrics, sampler
from tests.serving.test_played_elsewhere import SETTINGS as ELSEWHERE

SETTINGS = {
    **ELSEWHERE,
    "gru": {"model": {"use_gru": True, "lstm_cell_size": 8}},
    "greedy": {"explore": False},
}


@pytest.mark.slow_unless("plain-*", "frames-*", "filter and lstm-*")
@pytest.mark.each_value
@pytest.mark.parametrize("kind", [{}, {"masked": True}, {"box": True}], ids=["all", "masked", "box"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_environment_that_calls_gives_the_same_batches_as_one_that_is_stepped(
    settings: dict[str, Any], kind: dict[str, Any]
) -> None:
    config: dict[str, Any] = {"rollout_fragment_length": 20, "train_batch_size": 20, "seed": 7, **settings}
    with PPO(env=lambda context: Walk(**kind), config=config) as algo:
        stepped = [algo.sample()["default_policy"] for _ in range(3)]
        algo.train()
        stepped.append(algo.sample()["default_policy"])
    walk = Walk(**kind)
    env = Told(
        lambda env: walk_on(env, walk, act),
        observation_space=walk.observation_space,
        action_space=walk.action_space,
    )

    def act(episode: str, seen: Any) -> Any:
        action = env.get_action(episode, seen)
        assert walk.action_space.contains(action)
        return action

    with training(env, PPO, **config) as algo:
        called = [algo.sample()["default_policy"] for _ in range(3)]
        algo.train()
        called.append(algo.sample()["default_policy"])
    assert walk.illegal == 0
    for one, other in zip(stepped, called, strict=True):
        same_columns(one, other)


@pytest.mark.slow_unless("*-plain", "*-frames", "*-filter and lstm")
@pytest.mark.each_value
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_logged_actions_go_through_the_same_connectors(settings: dict[str, Any], masked: bool) -> None:
    """What the policy did there is logged here: all but what says whose actions they are is the same."""
    config: dict[str, Any] = {"rollout_fragment_length": 20, "train_batch_size": 20, "seed": 7, **settings}
    with DQN(env=lambda context: Walk(masked=masked), config=config) as algo:
        stepped = [algo.sample()["default_policy"] for _ in range(2)]
    actions = iter([int(action) for batch in stepped for action in batch["actions"]])
    walk = Walk(masked=masked)

    def act(episode: str, seen: Any) -> int:
        # One episode after the other, as there.
        while env.broker._unread_finished:
            time.sleep(0.001)
        action = next(actions)
        env.log_action(episode, seen, action)
        return action

    def play(env: Any) -> None:
        try:
            walk_on(env, walk, act)
        except StopIteration:
            env.over.wait()

    env = Told(play, observation_space=walk.observation_space, action_space=walk.action_space)
    with training(env, DQN, **config) as algo:
        sampler(algo).base_env.idle_timeout = 0.2
        logged = algo.sample()["default_policy"]
    assert logged["off_policy"].all()
    first = stepped[0]
    assert logged.count == first.count
    for name in set(first) - {"action_dist_inputs"}:
        if name == "infos":
            assert first[name].tolist() == logged[name].tolist()
        else:
            np.testing.assert_array_equal(first[name], logged[name], err_msg=name)


class Told_(DefaultCallbacks):  # noqa: N801 - read as "told"
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        self.heard.append(("start", episode.episode_id))

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        self.heard.append(("step", episode.episode_id))

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_metrics["last"] = float(episode.last_observation_for("agent0")[1])
        self.heard.append(("end", episode.episode_id))


def test_callbacks_hear_of_each_episode_in_order_but_not_of_one_that_is_only_paid() -> None:
    callbacks = Told_()
    env = Told()
    with training(env, DQN, rollout_fragment_length=9, callbacks=callbacks) as algo:
        env.start_episode("paid")
        env.log_returns("paid", 1.0)
        env.end_episode("paid", obs(0, 0))
        names = [env.start_episode() for _ in range(3)]
        for step in range(3):
            for number, name in enumerate(names):
                env.log_action(name, obs(number, step), 0)
        for number, name in enumerate(names):
            env.end_episode(name, obs(number, 30 + number))
        algo.sample()
        summary = metrics(algo).summary()
    by_episode: dict[Any, list[str]] = {}
    for what, episode_id in callbacks.heard:
        by_episode.setdefault(episode_id, []).append(what)
    assert list(by_episode.values()) == [["start", "step", "step", "step", "end"]] * 3
    assert summary["custom_metrics"]["last_max"] == 32.0


def test_clients_cannot_be_evaluated() -> None:
    env = Told()
    with (
        training(env, idle_timeout=1.0) as algo,
        pytest.raises(ConfigError, match=r'evaluation_config={"env": \.\.\.}'),
    ):
        algo.evaluate()
    env = Told()
    with training(env) as algo, pytest.raises(ConfigError):
        algo.evaluate()


def test_a_run_continues_from_its_checkpoint_with_new_episodes(tmp_path: Path) -> None:
    def play(env: Any, number: int, over: bool = True) -> Any:
        def episode() -> None:
            name = env.start_episode()
            ask_steps(env, name, number, 10)
            if over:
                env.end_episode(name, obs(number, 10))

        return episode

    env = Told()
    with training(env) as algo:
        with calling(play(env, 0)):
            algo.train()
        folder = algo.save(tmp_path)
        weights = algo.get_weights()["default_policy"]
    env = Told()
    with training(env) as algo:
        algo.restore(folder)
        assert all(
            (algo.get_weights()["default_policy"][name] == value).all() for name, value in weights.items()
        )
        with calling(play(env, 1)):
            result = algo.train()
    assert result["training_iteration"] == 2
    assert result["num_env_steps_sampled"] == 20
    assert result["num_episodes_not_resumed"] == 0


# Settings that cannot work with an `input` are refused when the algorithm is built, and not hours later.


SPACES: dict[str, Any] = {
    "observation_space": gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
    "action_space": gym.spaces.Discrete(2),
}


def never(ioctx: Any) -> Any:
    raise AssertionError("no server is started before the settings have been looked at")


@pytest.mark.parametrize("setting", [{"evaluation_interval": 2}, {"evaluation_num_workers": 1}])
def test_evaluations_without_an_environment_are_refused_at_once(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=name):
        PPO(config={**SPACES, **setting, "input": never})


def test_evaluations_in_a_separate_environment_are_played_next_to_an_input() -> None:
    config = {
        **SPACES, "observation_space": gym.make("CartPole-v1").observation_space, "evaluation_interval": 1,
        "evaluation_duration": 1, "evaluation_config": {"env": "CartPole-v1"}, "train_batch_size": 8,
        "sgd_minibatch_size": 8, "input": lambda ioctx: PolicyServerInput(ioctx, port=0, idle_timeout=0.01),
    }  # fmt: skip
    with PPO(config=config) as algo:
        assert algo.train()["evaluation"]["episode_len_mean"] > 0
