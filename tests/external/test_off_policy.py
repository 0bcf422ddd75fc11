"""Actions that callers chose themselves: DQN learns from them; PPO leaves them out, counts them, and cuts there."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.base_env import MultiEnvDict
from menv.errors import ContractError
from tests.contract.scripted import SOLO, ScriptedEnv, SixDicts, seen
from tests.external.told import (
    ACTIONS,
    OBS,
    Told,
    ToldTeam,
    calling,
    log_steps,
    obs,
    rewards_of,
    rows,
    steps_of,
    training,
)
from tests.inside import policy_set, sampler


@pytest.mark.slow_unless("complete*")
@pytest.mark.parametrize(
    ("batch_mode", "most"), [("truncate_episodes", 24 + 16), ("complete_episodes", 24 + 17 * 10)]
)
def test_a_caller_that_only_logs_hardly_overfills_a_fragment(batch_mode: str, most: int) -> None:
    env, episodes = Told(), 240
    with training(env, DQN, rollout_fragment_length=24, batch_mode=batch_mode) as algo:
        for number in range(episodes):
            name = env.start_episode()
            log_steps(env, name, number, 10)
            env.end_episode(name, obs(number, 10))
        batches: list[Any] = []
        while len(rows(batches)) < 10 * episodes:
            batches.append(algo.sample())
    assert max(len(rows([batch])) for batch in batches) <= most
    assert steps_of(batches) == {number: [*range(10)] for number in range(episodes)}
    assert rewards_of(batches) == {number: [step + 1.0 for step in range(10)] for number in range(episodes)}


def bandit(env: Any) -> None:
    """Log one-step episodes of somebody who draws an arm at random; the second one is better."""
    rng = np.random.default_rng(0)
    while True:
        episode = env.start_episode()
        arm = int(rng.integers(2))
        env.log_action(episode, obs(0, 0), arm)
        env.log_returns(episode, (0.2, 1.0)[arm] + 0.1 * rng.standard_normal())
        env.end_episode(episode, obs(0, 0))


LENGTH = 4


def chain(env: Any) -> None:
    """Log walks along a chain: going on costs a little and pays at its end, turning back pays a little at once."""
    rng = np.random.default_rng(0)
    while True:
        episode = env.start_episode()
        for place in range(LENGTH):
            on = bool(rng.integers(2))
            env.log_action(episode, obs(0, place), int(on))
            env.log_returns(episode, (-0.1 if place + 1 < LENGTH else 2.0) if on else 0.2)
            if not on:
                break
        env.end_episode(episode, obs(0, place + 1))


@pytest.mark.parametrize(
    ("play", "places"), [(bandit, 1), pytest.param(chain, LENGTH, marks=pytest.mark.slow)]
)
def test_dqn_finds_the_better_action_in_logs_alone(play: Any, places: int) -> None:
    env = Told(play, action_space=gym.spaces.Discrete(2))
    config: dict[str, Any] = {
        "min_sample_timesteps_per_iteration": 200, "rollout_fragment_length": 50, "train_batch_size": 32, "seed": 0,
        "num_steps_sampled_before_learning_starts": 100, "lr": 2e-3, "target_network_update_freq": 100,
        "training_intensity": 16,
    }  # fmt: skip
    with training(env, DQN, **config) as algo:
        for _ in range(12):
            result = algo.train()
        chosen = [int(algo.compute_single_action(obs(0, place), explore=False)) for place in range(places)]
        told = result["external"]
    assert chosen == [1] * places
    assert told["num_off_policy_steps"] >= 2000
    assert told["num_agent_steps_left_out"] == 0
    assert result["num_agent_steps_trained"] > 0


def play_between(env: Any, own: set[int], length: int, truncated: bool = True) -> Any:
    """Return what plays an episode in which the steps in `own` are the caller's own."""

    def play() -> None:
        episode = env.start_episode()
        for step in range(length):
            if step in own:
                env.log_action(episode, obs(0, step), 2)
            else:
                env.get_action(episode, obs(0, step))
            env.log_returns(episode, float(step + 1))
        env.end_episode(episode, obs(0, length), truncated=truncated)

    return play


@pytest.mark.each_value
@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 8}], ids=["plain", "lstm"])
@pytest.mark.parametrize("own", [{3}, {0}, {7}, {2, 3, 6}, {0, 7}], ids=str)
def test_ppo_cuts_the_trajectory_where_it_leaves_rows_out(own: set[int], model: dict[str, Any]) -> None:
    env = Told()
    gamma, lambda_ = 0.9, 0.5
    config: dict[str, Any] = {"rollout_fragment_length": 8, "gamma": gamma, "lambda": lambda_, "model": model}
    with training(env, PPO, **config) as algo, calling(play_between(env, own, 8)):
        batch = algo.sample()["default_policy"]
        backend = algo.get_policy().networks.backend
        value = (lambda step: float(backend.values(0, obs(0, step)[None])[0])) if not model else None
        left_out = policy_set(algo).postprocessor.left_out
    kept = [step for step in range(8) if step not in own]
    assert [int(row[1]) for row in batch["obs"]] == kept
    assert batch["rewards"].tolist() == [step + 1.0 for step in kept]
    assert left_out == len(own)
    if value is None:
        assert np.isfinite(batch["advantages"]).all()
        return
    wanted: dict[int, float] = {}
    for step in reversed(kept):
        # What an action led to is worth what the network says, where the next one was somebody else's.
        after = wanted.get(step + 1, 0.0)
        wanted[step] = step + 1.0 + gamma * value(step + 1) - value(step) + gamma * lambda_ * after
    np.testing.assert_allclose(batch["advantages"], [wanted[step] for step in kept], rtol=1e-4)


def test_an_end_that_is_terminated_is_worth_nothing_although_rows_before_it_are_left_out() -> None:
    env = Told()
    config: dict[str, Any] = {"rollout_fragment_length": 4, "gamma": 0.9, "lambda": 0.5}
    with training(env, PPO, **config) as algo, calling(play_between(env, {2}, 4, truncated=False)):
        batch = algo.sample()["default_policy"]
        values = batch["vf_preds"]
    assert batch["terminateds"].tolist() == [False, False, True]
    np.testing.assert_allclose(batch["advantages"][-1], 4.0 - values[-1], rtol=1e-5)


def test_a_policy_acts_next_to_one_whose_actions_are_logged() -> None:
    env = ToldTeam(observation_space=dict.fromkeys("ab", OBS), action_space=dict.fromkeys("ab", ACTIONS))
    multiagent = {"policies": {"a": None, "b": None}, "policy_mapping_fn": lambda agent_id, **kw: agent_id}

    def play() -> None:
        asked, logged = env.start_episode(), env.start_episode()
        for step in range(5):
            env.get_action(asked, {"a": obs(0, step), "b": obs(1, step)})
            env.log_action(logged, {"a": obs(2, step), "b": obs(3, step)}, {"a": 1, "b": 2})
        for episode in (asked, logged):
            env.end_episode(episode, {})

    with training(env, PPO, multiagent=multiagent) as algo, calling(play):
        batch = algo.sample()
    assert {int(row["obs"][0]) for row in rows([batch], "a")} == {0}
    assert {int(row["obs"][0]) for row in rows([batch], "b")} == {1}
    assert batch["a"].count == batch["b"].count == 5


def test_a_box_action_is_recorded_in_the_units_of_the_network() -> None:
    space = gym.spaces.Box(np.array([0.0, -1.0], np.float32), np.array([10.0, 3.0], np.float32))
    env = Told(action_space=space)
    algorithm: Any = PPO
    with training(env, algorithm, rollout_fragment_length=2) as algo:
        env.start_episode("x")
        env.log_action("x", obs(0, 0), np.array([10.0, 1.0], np.float32))
        env.log_action("x", obs(0, 1), np.array([2.5, -1.0], np.float32))
        env.end_episode("x", obs(0, 2))
        taken = sampler(algo).sample()["default_policy"]
    np.testing.assert_allclose(taken["actions"], [[1.0, 0.0], [-0.5, -1.0]], atol=1e-6)


class Logged(SixDicts):
    """A user's own `BaseEnv` in which "a" does 3 by itself at every odd env step, also where `stray` says "b"."""

    stray = False

    def poll(self) -> tuple[MultiEnvDict, ...]:  # type: ignore[override]
        parts = super().poll()
        for env_id, by_agent in parts[0].items():
            if "a" in by_agent and seen(by_agent["a"]).step % 2:
                parts[5][env_id] = {"b" if self.stray else "a": 3}
        return parts


@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_off_policy_actions_of_an_own_base_env_are_recorded(algorithm: Any) -> None:
    config = {"rollout_fragment_length": 12, "explore": False, "seed": 0}
    env = Logged([ScriptedEnv(SOLO, 0, "a")], "now")
    with algorithm(env=lambda context: env, config=config) as algo:
        batch = algo.sample()["default_policy"]
    odd = batch["obs"][:, 4].astype(int) % 2 == 1
    if algorithm is DQN:
        assert odd.any()
        assert set(batch["actions"][odd].tolist()) == {3}
        assert batch["off_policy"].tolist() == odd.tolist()
    else:
        assert not odd.any(), "PPO does not know how probable they were"


def test_an_off_policy_action_without_an_observation_is_refused() -> None:
    env = Logged([ScriptedEnv(SOLO, 0, "a")], "now")
    env.stray = True
    with DQN(env=lambda context: env) as algo, pytest.raises(ContractError, match="off_policy_actions"):
        algo.sample()
