"""Policies that see several observations of a life at once, and an environment in which agents come and go."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv.algorithms import DQN, PPO
from menv.algorithms.algorithm import Algorithm
from tests.bundles.cases import CASES, FOUR, MASKED_PICTURE, livelier, sample
from tests.contract.scripted import altered
from tests.worlds import Several

STACK = [("FrameStackAgentConnector", {"num_frames": 3})]
SMALL: dict[str, Any] = {
    "seed": 3, "num_envs_per_worker": 2, "rollout_fragment_length": 24, "agent_connectors": STACK,
}  # fmt: skip
LEARNING: dict[type[Algorithm], dict[str, Any]] = {
    PPO: {"train_batch_size": 48, "sgd_minibatch_size": 24, "num_sgd_iter": 1},
    DQN: {
        "train_batch_size": 8,
        "training_intensity": 4,
        "min_sample_timesteps_per_iteration": 48,
        "num_steps_sampled_before_learning_starts": 8,
    },
}
STACKS = {
    "vector": altered(CASES["mlp"], action_space=FOUR),
    **{
        name: CASES[name]
        for name in ("nested", "masked", "continuous", "lstm", "picture", "picture in floats", "worth")
    },
    "picture of three colours": altered(
        CASES["picture"], observation_space=gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    ),
    "masked picture through an lstm": altered(
        CASES["picture through an lstm"], observation_space=MASKED_PICTURE
    ),
    "behind running means": altered(
        CASES["mlp"], action_space=FOUR, settings={"observation_filter": "MeanStdFilter"}
    ),
}


class Herd(Several):
    """Three agents: "b" dies early and comes back, "c" is asked every other step."""

    possible_agents, length = ("a", "b", "c"), 9

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, action_space)

    def shown(self) -> Any:
        agents = ("a" if self.at in (4, 5) else "ab") + ("c" if self.at % 2 == 0 else "")
        return "abc" if self.at == self.length else agents

    def dead(self, actions: Any) -> Any:
        return "b" if self.at == 3 else ""

    def see(self, agent: Any) -> Any:
        return sample(self.get_observation_space(agent), self.rng)


def stacking(kind: str, **more: Any) -> Algorithm:
    """Return an algorithm with one policy of a kind, which has learned nothing but acts lively."""
    case = STACKS[kind]
    algorithm = case.algorithm(
        env=lambda context: Herd(case.observation_space, case.action_space),
        config={
            **SMALL,
            **LEARNING[case.algorithm],
            **case.settings,
            **more,
            "model": {"fcnet_hiddens": [8], **case.model},
        },
    )
    livelier(algorithm)
    return algorithm
