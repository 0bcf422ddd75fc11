"""What the guides of the classic system show, as somebody writes it today, through public names only."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from menv import MultiAgentEnv, Policy, PolicySpec
from menv.algorithms import PPO
from tests.worlds import Several

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


TEAM = {"group1": ["agent1", "agent2", "agent3"], "group2": ["agent4", "agent5"]}


class Quintet(Several):
    """Five agents of the guide's groups; each is paid its own number in each of ten steps."""

    possible_agents, length = tuple(f"agent{number}" for number in range(1, 6)), 10

    def pay(self, actions: Any) -> Any:
        return {agent: float(agent[-1]) for agent in actions}


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
