"""Simulators of VMAS through `VmasEnv`, compared with what VMAS itself returns for the same actions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import vmas
from vmas.simulator.core import Agent, World
from vmas.simulator.scenario import BaseScenario

from menv import to_base_env
from menv.algorithms import PPO
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.wrappers import VmasEnv


class Counting(BaseScenario):  # type: ignore[misc]
    """Counts the steps of each world; world w ends after `2 + w` steps. Agent `wide` observes more than `thin`."""

    def make_world(self, batch_dim: int, device: Any, **settings: Any) -> Any:
        self.t = torch.zeros(batch_dim)
        self.limits = 2 + torch.arange(batch_dim)
        self.same = settings.get("same", False)
        world = World(batch_dim, device)
        for name in ("thin", "wide"):
            world.add_agent(Agent(name=name))
        return world

    def reset_world_at(self, env_index: int | None = None) -> None:
        self.t[slice(None) if env_index is None else env_index] = 0

    def post_step(self) -> None:
        self.t += 1

    def observation(self, agent: Any) -> Any:
        wide = agent.name == "wide" and not self.same
        return torch.stack([self.t, 100 + self.t] if wide else [self.t], dim=-1)

    def reward(self, agent: Any) -> Any:
        return self.t * (10 if agent.name == "wide" else 1)

    def done(self) -> Any:
        return self.t >= self.limits


def rows_of(ready: Any) -> dict[tuple[Any, Any], tuple[list[float], float]]:
    """Return the observation and the reward of each row by world and agent."""
    obs = [list(map(float, ready.obs[row])) for row in range(len(ready.slots))]
    seats = [ready.seats[slot] for slot in ready.slots.tolist()]
    return dict(zip(seats, zip(obs, ready.rewards.tolist(), strict=True), strict=True))


def listed(values: Any) -> list[Any]:
    """Return the values of all agents, which VMAS has in a list or a dict."""
    return list(values.values() if isinstance(values, dict) else values)


def stepped(env: Any, ready: Any) -> Any:
    env.send_actions(ready.slots, np.zeros((len(ready.slots), 2), np.float32))
    return env.poll()


@pytest.mark.parametrize("same", [True, False])
def test_each_world_ends_and_begins_independently(same: bool) -> None:
    env = to_base_env(VmasEnv(Counting(), num_envs=2, same=same))
    ready = env.poll()
    assert {(join.env_id, join.agent_id) for join in ready.joined} == {
        (0, "thin"), (1, "thin"), (0, "wide"), (1, "wide")
    }  # fmt: skip
    ready = stepped(env, ready)
    wide = [1.0] if same else [1.0, 101.0]
    assert rows_of(ready) == {
        (0, "thin"): ([1.0], 1.0),
        (1, "thin"): ([1.0], 1.0),
        (0, "wide"): (wide, 10.0),
        (1, "wide"): (wide, 10.0),
    }
    ready = stepped(env, ready)
    # World 0 is over after two steps and begins anew; world 1 goes on.
    last = [2.0] if same else [2.0, 102.0]
    ends = [(end.env_id, end.agent_id, end.reward, end.terminated, end.truncated) for end in ready.ended]
    assert ends == [(0, "thin", 2.0, True, False), (0, "wide", 20.0, True, False)]
    assert [end.obs.tolist() for end in ready.ended] == [[2.0], last]
    assert [(end.env_id, end.env_steps, end.terminated) for end in ready.episodes] == [(0, 2, True)]
    assert {(join.env_id, join.agent_id) for join in ready.joined} == {(0, "thin"), (0, "wide")}
    assert rows_of(ready) == {
        (0, "thin"): ([0.0], 0.0),
        (1, "thin"): ([2.0], 2.0),
        (0, "wide"): ([0.0] if same else [0.0, 100.0], 0.0),
        (1, "wide"): (last, 20.0),
    }
    ready = stepped(env, ready)
    assert [(end.env_id, end.env_steps) for end in ready.episodes] == [(1, 3)]
    ready = stepped(env, ready)
    assert [(end.env_id, end.env_steps) for end in ready.episodes] == [(0, 2)]
    assert ready.env_steps.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("scenario", "settings"),
    [
        ("balance", {}),
        ("simple_adversary", {}),
        ("simple_adversary", {"continuous_actions": False}),
        ("transport", {"continuous_actions": False, "multidiscrete_actions": True}),
        ("simple_speaker_listener", {"dict_spaces": True}),
    ],
)
def test_observations_and_rewards_are_those_of_vmas(scenario: str, settings: dict[str, Any]) -> None:
    settings = {**settings, "num_envs": 3, "max_steps": 4}
    raw = vmas.make_env(scenario, **settings)
    env = to_base_env(VmasEnv(vmas.make_env(scenario, **settings), seed=5))
    expected, ready = listed(raw.reset(seed=5)), env.poll()
    names = [agent.name for agent in raw.agents]
    for _ in range(4):
        for agent, column in zip(names, expected, strict=True):
            for world in range(3):
                seen = rows_of(ready)[world, agent][0]
                assert seen == column[world].tolist()
                assert np.array(seen, np.float32) in env.observation_space[agent]
        spaces = [env.action_space[ready.seats[slot][1]] for slot in ready.slots.tolist()]
        actions = [space.sample() for space in spaces]
        by_seat = {ready.seats[slot]: act for slot, act in zip(ready.slots.tolist(), actions, strict=True)}
        told = [torch.tensor(np.stack([by_seat[world, agent] for world in range(3)])) for agent in names]
        obs, rewards, done, _ = raw.step([one.to(torch.float32) for one in told])
        env.send_actions(ready.slots, actions)
        ready, expected = env.poll(), listed(obs)
        if not done.any():
            paid = [reward.tolist() for reward in listed(rewards)]
            assert [[rows_of(ready)[world, agent][1] for world in range(3)] for agent in names] == paid
    # All worlds reach `max_steps` at once.
    assert done.all()
    assert {(end.terminated, end.truncated) for end in ready.ended} == {(False, True)}
    last = {
        (world, agent): expected[n][world].tolist() for n, agent in enumerate(names) for world in range(3)
    }
    assert {(end.env_id, end.agent_id): end.obs.tolist() for end in ready.ended} == last
    first = listed(raw.reset())
    assert all(rows_of(ready)[0, agent][0] == first[n][0].tolist() for n, agent in enumerate(names))


@pytest.mark.parametrize(
    "scenario", ["balance", "navigation", "joint_passage", "simple_adversary", "discovery"]
)
def test_a_world_that_ends_does_not_change_the_others(scenario: str) -> None:
    env, raw = VmasEnv(scenario, num_envs=7, max_steps=9, seed=1), vmas.make_env(scenario, num_envs=7)
    env.reset()
    raw.reset(seed=1)
    # World w ends after 9 - w steps, the other environment never.
    env.env.steps += torch.arange(7)
    for step in range(1, 9):
        told = [env.action_spaces[agent].sample() for agent in env.possible_agents]
        actions = [np.stack([action] * 7) for action in told]
        obs, rewards, *_, infos = env.step(dict(zip(env.possible_agents, actions, strict=True)))
        expected, paid, *_ = raw.step([torch.tensor(action) for action in actions])
        running = np.arange(7) < 9 - step
        for number, agent in enumerate(env.possible_agents):
            assert np.array_equal(obs[agent][running], expected[number][running].numpy())
            assert np.array_equal(rewards[agent][running], paid[number][running].numpy())
        ended = np.flatnonzero(infos.get("_final_obs", [])).tolist()
        assert ended == ([9 - step] if step > 2 else [])
        assert env.env.steps[ended].tolist() == [0] * len(ended)


def test_a_seed_decides_the_worlds_whatever_other_environments_do() -> None:
    def played(disturbed: bool, seed: int) -> list[Any]:
        env = to_base_env(VmasEnv("balance", num_envs=2, max_steps=3, seed=seed))
        ready, seen = env.poll(), []
        for _ in range(7):
            if disturbed:
                VmasEnv("balance", num_envs=1).reset()
            ready = stepped(env, ready)
            seen.append(ready.obs.tolist())
        return seen

    assert played(False, 3) == played(True, 3)
    assert played(False, 3) != played(False, 4)


def test_all_rows_are_answered_at_once_and_only_after_a_poll() -> None:
    env = to_base_env(VmasEnv(Counting(), num_envs=2))
    with pytest.raises(CallOrderError, match="poll"):
        env.send_actions(np.arange(4), np.zeros((4, 2)))
    ready = env.poll()
    assert len(env.poll().slots) == 0
    with pytest.raises(ContractError, match="2 answers"):
        env.send_actions(ready.slots[:2], np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("env", "settings"),
    [(gym.make("CartPole-v1"), {}), (vmas.make_env(Counting(), num_envs=1), {"num_envs": 2})],
)
def test_other_objects_than_vmas_simulators_are_refused(env: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="VmasEnv"):
        VmasEnv(env, **settings)


def test_without_vmas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vmas", None)
    with pytest.raises(ConfigError, match="vmas"):
        VmasEnv("balance")


@pytest.mark.parametrize("same", [True, False])
def test_policies_learn_from_all_worlds(same: bool) -> None:
    policies = {"policies": ["thin", "wide"], "policy_mapping_fn": lambda agent, *_, **__: agent}
    config = {
        "train_batch_size": 96,
        "rollout_fragment_length": 24,
        "sgd_minibatch_size": 32,
        "num_sgd_iter": 1,
    }
    with PPO(
        env=lambda context: VmasEnv(Counting(), num_envs=4, same=same, seed=0),
        config={**config, "multiagent": policies, "seed": 0},
    ) as algo:
        batch = algo.sample()
        assert batch.env_steps() == 96
        for policy, unit in (("thin", 1), ("wide", 10)):
            rows = batch[policy]
            assert rows["rewards"].tolist() == pytest.approx((unit * (rows["t"] + 1)).tolist())
            assert rows["obs"].shape == (96, 2 if policy == "wide" and not same else 1)
        # 24 steps of worlds of 2, 3, 4 and 5 steps: 12, 8, 6 and 4 episodes, of 11 (1 + ... + n) each.
        result = algo.train()
        assert result["policy_reward_max"] == {"thin": 15, "wide": 150}
        assert result["episode_reward_min"] == 33


def test_a_run_with_evaluations_continues_from_its_checkpoint(tmp_path: Path) -> None:
    config = {
        "train_batch_size": 24,
        "rollout_fragment_length": 12,
        "sgd_minibatch_size": 24,
        "num_sgd_iter": 1,
    }
    config |= {"evaluation_interval": 1, "evaluation_duration": 4}
    make = lambda context: VmasEnv(Counting(), num_envs=2, same=True)  # noqa: E731
    with PPO(env=make, config=config) as algo:
        algo.train()
        algo.save(tmp_path)
    with PPO.from_checkpoint(tmp_path, {"env": make}) as again:
        # Two episodes of two steps and two of three.
        assert again.train()["evaluation"]["episode_len_mean"] == 2.5
