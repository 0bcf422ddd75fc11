"""What the guides of the classic system show, as somebody writes it today, through public names only."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from menv import MultiAgentEnv, Policy, PolicySpec, RandomPolicy, VectorEnv, register_env
from menv.algorithms import PPO
from menv.envs import TicTacToe, TwoStepGame
from menv.wrappers import LegacyGym, ParallelPettingZooEnv, PettingZooEnv

SMALL: dict[str, Any] = {"train_batch_size": 256, "sgd_minibatch_size": 128, "num_sgd_iter": 2, "seed": 0}


def trained(env: Any, config: dict[str, Any], times: int = 2) -> dict[str, Any]:
    """Train a few times and return the last result."""
    with PPO(env=env, config={**SMALL, **config}) as algo:
        for iteration in range(1, times + 1):
            result: dict[str, Any] = dict(algo.train())
            assert result["training_iteration"] == iteration
    assert result["num_env_steps_sampled"] >= times * config.get(
        "train_batch_size", SMALL["train_batch_size"]
    )
    return result


class OldCorridor:
    """The corridor of the overview, in the API of its day: reset gives one value, step four."""

    def __init__(self, config: Any) -> None:
        self.end_pos = config["corridor_length"]
        self.cur_pos = 0
        self.action_space = Discrete(2)
        self.observation_space = Discrete(self.end_pos)

    def reset(self) -> int:
        self.cur_pos = 0
        return self.cur_pos

    def step(self, action: int) -> Any:
        if action == 0 and self.cur_pos > 0:
            self.cur_pos -= 1
        elif action == 1:
            self.cur_pos += 1
        if self.cur_pos >= self.end_pos:
            return 0, 1.0, True, {}
        return self.cur_pos, -0.1, False, {}


def test_the_old_corridor_is_learned_through_the_wrapper() -> None:
    result = trained(
        lambda config: LegacyGym(OldCorridor(config)),
        {"env_config": {"corridor_length": 5}, "lr": 3e-3, "num_envs_per_worker": 4, "train_batch_size": 512},
        times=8,
    )
    assert 0.3 < result["episode_reward_mean"] < 0.61
    assert 5.0 <= result["episode_len_mean"] < 8.0


TEAM = {"group1": ["agent1", "agent2", "agent3"], "group2": ["agent4", "agent5"]}


class Quintet(MultiAgentEnv):
    """Five agents of the guide's groups; each is paid its own number in each of ten steps."""

    def __init__(self, context: Any = None) -> None:
        super().__init__()
        self.possible_agents = [f"agent{number}" for number in range(1, 6)]
        self.observation_space = Box(0.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)

    def observe(self) -> Any:
        return {agent: np.full(2, self.at / 10, np.float32) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return self.observe(), {}

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        rewards = {agent: float(agent[-1]) for agent in action_dict}
        return self.observe(), rewards, {"__all__": self.at == 10}, {"__all__": False}, {}


def test_groups_of_the_guide_act_as_one_and_are_paid_the_sum() -> None:
    seen = []

    class Centralized(Policy):
        """Answers for a whole group at once."""

        def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
            members = len(obs_batch[0])
            seen.append(members)
            return [(1,) * members] * len(obs_batch), [], {}

    multiagent = {
        "policies": {group: PolicySpec(policy_class=Centralized) for group in TEAM},
        "policy_mapping_fn": lambda agent_id, **kwargs: agent_id,
        "policies_to_train": [],
    }
    result = trained(lambda context: Quintet().with_agent_groups(TEAM), {"multiagent": multiagent})
    assert result["policy_reward_mean"] == {"group1": 60.0, "group2": 90.0}
    assert set(seen) == {2, 3}


@pytest.mark.slow
def test_a_group_learns_with_one_network_that_answers_for_all_its_members() -> None:
    class Says(Quintet):
        """Each agent is paid for saying 1."""

        def step(self, action_dict: Any) -> Any:
            obs, _, *rest = super().step(action_dict)
            return obs, {agent: float(action) for agent, action in action_dict.items()}, *rest

    multiagent = {"policies": dict.fromkeys(TEAM), "policy_mapping_fn": lambda agent_id, **kwargs: agent_id}
    settings = {"lr": 1e-2, "train_batch_size": 512, "num_sgd_iter": 6, "multiagent": multiagent}
    result = trained(lambda context: Says().with_agent_groups(TEAM), settings, times=8)
    assert result["policy_reward_mean"]["group1"] > 24
    assert result["policy_reward_mean"]["group2"] > 16


def test_some_agents_may_stay_outside_the_groups_and_learn() -> None:
    groups = {"group1": TEAM["group1"]}
    multiagent = {
        "policies": {"together": PolicySpec(policy_class=RandomPolicy), "alone": None},
        "policy_mapping_fn": lambda agent_id: "together" if agent_id.startswith("group") else "alone",
        "policies_to_train": ["alone"],
    }
    result = trained(lambda context: Quintet().with_agent_groups(groups), {"multiagent": multiagent})
    assert result["policy_reward_mean"] == {"together": 60.0, "alone": 45.0}
    assert set(result["info"]["learner"]) == {"alone"}


class ThreeLevels(MultiAgentEnv):
    """The timeline of the guide: two middle agents a top action, then five low actions between them."""

    def __init__(self, context: Any = None) -> None:
        super().__init__()
        self.observation_space = Box(0.0, 50.0, (1,), np.float32)
        self.action_space = Discrete(2)
        self.low = self.mid = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at, self.script = 0, iter(["t", "m", "l", "l", "l", "m", "l", "l", "t", "m", "l", "l", "t"])
        return self.ask(next(self.script)), {}

    def ask(self, level: str, again: bool = False) -> Any:
        self.mid += level == "m"
        self.low += level == "l" and not again
        name = {"t": "top_level", "m": f"mid_level_{self.mid}", "l": f"low_level_{self.low}"}[level]
        self.now, self.level = name, level
        return {name: np.array([self.at], np.float32)}

    def step(self, action_dict: Any) -> Any:
        assert list(action_dict) == [self.now]
        self.at += 1
        who, level = self.now, self.level
        following = next(self.script, None)
        over = following is None
        terminateds: dict[str, bool] = {"__all__": over}
        obs: dict[str, Any] = {}
        if following is not None:
            obs = self.ask(following, again=level == "l" and following == "l")
        if level == "l" and following != "l":
            terminateds[who] = True
        if level == "m":
            terminateds[who] = True
        return obs, {who: 1.0, "top_level": 1.0}, terminateds, {"__all__": False}, {}


def test_three_levels_by_prefix_aggregate_by_policy() -> None:
    multiagent = {
        "policies": {"top_level": (None, None, None, {}), "mid_level": None, "low_level": None},
        "policy_mapping_fn": lambda agent_id: (
            "low_level"
            if agent_id.startswith("low_level_")
            else "mid_level"
            if agent_id.startswith("mid_level_")
            else "top_level"
        ),
        "policies_to_train": ["top_level"],
    }
    result = trained(ThreeLevels, {"multiagent": multiagent})
    # Thirteen steps pay the top level one each; lower levels are paid for their own steps.
    assert result["policy_reward_mean"]["top_level"] == 13.0
    assert set(result["policy_reward_mean"]) == {"top_level", "mid_level", "low_level"}
    assert set(result["info"]["learner"]) == {"top_level"}


class TwoRooms(VectorEnv):
    """Two numbers that grow by the action; a room is left at 5."""

    def __init__(self, config: Any) -> None:
        super().__init__(Box(0.0, 5.0, (1,), np.float32), Discrete(2), num_envs=config["rooms"])
        self.at = np.zeros(self.num_envs)

    def vector_reset(self, *, seeds: Any = None, options: Any = None) -> Any:
        self.at[:] = 0
        return [self.observe(room) for room in range(self.num_envs)], [{} for _ in range(self.num_envs)]

    def reset_at(self, index: int | None = None, *, seed: Any = None, options: Any = None) -> Any:
        self.at[index or 0] = 0
        return self.observe(index or 0), {}

    def vector_step(self, actions: Any) -> Any:
        self.at += np.asarray(actions)
        rooms = range(self.num_envs)
        over = [bool(self.at[room] >= 5) for room in rooms]
        return (
            [self.observe(room) for room in rooms],
            [-0.1] * len(rooms),
            over,
            [False] * len(rooms),
            [{} for _ in rooms],
        )

    def observe(self, room: int) -> Any:
        return np.array([self.at[room]], np.float32)


def test_an_own_vector_env_learns_to_leave_its_rooms() -> None:
    settings = {"env_config": {"rooms": 6}, "lr": 5e-3, "train_batch_size": 600, "num_sgd_iter": 6}
    result = trained(TwoRooms, settings, times=6)
    assert result["episode_len_mean"] < 7.0


# PettingZoo's rock-paper-scissors warns of its own maker.
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_a_pettingzoo_game_is_registered_with_settings_and_trains() -> None:
    from pettingzoo.classic import rps_v2, tictactoe_v3

    def make(config: Any) -> Any:
        return PettingZooEnv(rps_v2.env(max_cycles=config.get("max_cycles", 15)))

    register_env("guide_rps", make)
    result = trained("guide_rps", {"env_config": {"max_cycles": 5}})
    assert result["episode_reward_mean"] == 0.0
    assert result["episode_len_mean"] == 10.0
    multiagent = {
        "policies": ["first", "second"],
        "policy_mapping_fn": lambda agent_id, **kwargs: "first" if agent_id.endswith("1") else "second",
    }
    result = trained(lambda config: PettingZooEnv(tictactoe_v3.env()), {"multiagent": multiagent})
    assert abs(sum(result["policy_reward_mean"].values())) < 1e-6
    assert 5.0 <= result["episode_len_mean"] <= 9.0


def test_a_parallel_pettingzoo_game_trains() -> None:
    from mpe2 import simple_spread_v3

    result = trained(
        lambda config: ParallelPettingZooEnv(simple_spread_v3.parallel_env(N=2, max_cycles=10)),
        {"num_envs_per_worker": 2},
    )
    assert result["episode_len_mean"] == 10.0
    assert result["episode_reward_mean"] < 0.0


LENGTHS = {0: 3, 1: 5, 2: 7}


class MultiEnv(gym.Env[Any, Any]):
    """Picks its task by the place at which it runs, as the guide does; delegates everything."""

    def __init__(self, env_config: Any) -> None:
        assert env_config.worker_index == 0
        self.env = gym.make("CartPole-v1", max_episode_steps=LENGTHS[env_config.vector_index])
        self.action_space, self.observation_space = self.env.action_space, self.env.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


def test_an_ensemble_picks_its_task_by_vector_index() -> None:
    register_env("multienv", lambda config: MultiEnv(config))
    with PPO(
        env="multienv", config={**SMALL, "num_envs_per_worker": 3, "batch_mode": "complete_episodes"}
    ) as algo:
        algo.train()
        batch = algo.sample()["default_policy"]
        algo.train()
    ends = batch["truncateds"] | batch["terminateds"]
    assert set(batch["t"][ends].tolist()) == {2, 4, 6}


class Expensive(gym.Env[Any, Any]):
    """Is built in its first reset; its spaces are nowhere before."""

    built = 0

    def __init__(self, config: Any) -> None:
        self.env: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.env is None:
            type(self).built += 1
            self.env = gym.make("CartPole-v1")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


def test_an_expensive_environment_is_built_once_in_its_first_reset() -> None:
    with gym.make("CartPole-v1") as twin:
        spaces = {"observation_space": twin.observation_space, "action_space": twin.action_space}
    Expensive.built = 0
    algo = PPO(env=Expensive, config={**SMALL, **spaces})
    assert Expensive.built == 0
    algo.train()
    assert algo.train()["episode_reward_mean"] > 9.0
    assert Expensive.built == 1
    algo.stop()


@pytest.mark.slow
def test_an_observation_function_shows_each_agent_what_the_other_sees() -> None:
    seen = Dict({"own_obs": Discrete(6), "opponent_obs": Discrete(6), "opponent_action": Discrete(2)})

    class Guess(MultiAgentEnv):
        """Both are paid if the first says what the second sees; only with the function can it know."""

        def __init__(self, context: Any = None) -> None:
            super().__init__()
            self.possible_agents = ["speaker", "other"]
            self.observation_space, self.action_space = Discrete(6), Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if seed is not None:
                self.random = np.random.default_rng(seed)
            self.hidden = int(self.random.integers(2))
            return {"speaker": 5, "other": self.hidden}, {}

        def step(self, action_dict: Any) -> Any:
            right = float(action_dict["speaker"] == self.hidden)
            return {}, {"speaker": right}, {"__all__": True}, {"__all__": False}, {}

    def share(agent_obs: Any, worker: Any, base_env: Any, policies: Any, episode: Any, **kw: Any) -> Any:
        other = {"speaker": "other", "other": "speaker"}
        return {
            agent: {"own_obs": obs, "opponent_obs": agent_obs.get(other[agent], 5), "opponent_action": 0}
            for agent, obs in agent_obs.items()
        }

    multiagent = {
        "policies": {"shared": PolicySpec(observation_space=seen)},
        "policy_mapping_fn": lambda agent_id, **kwargs: "shared",
        "observation_fn": share,
    }
    settings = {"lr": 3e-3, "train_batch_size": 512, "num_sgd_iter": 8, "num_envs_per_worker": 8}
    result = trained(Guess, {**settings, "multiagent": multiagent}, times=12)
    assert result["episode_reward_mean"] > 0.85


@pytest.mark.parametrize("env", [TicTacToe, TwoStepGame])
def test_two_policies_one_of_them_random_play_and_only_the_other_learns(env: Any) -> None:
    multiagent = {
        "policies": {"learning_policy": PolicySpec(), "random_policy": PolicySpec(policy_class=RandomPolicy)},
        "policy_mapping_fn": lambda agent_id, episode, worker, **kwargs: (
            "learning_policy" if str(agent_id)[-1] == "1" else "random_policy"
        ),
        "policies_to_train": ["learning_policy"],
    }
    assert set(trained(env, {"multiagent": multiagent})["info"]["learner"]) == {"learning_policy"}
