"""DQN learns from a file of logged episodes alone; then it is compared with the two policies that were logged.

    python examples/offline_logs.py --seconds 20

One policy is clever and one careless. Nobody asks the learner anything: `run` reads what was done and what came of it.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from menv import ExternalEnv
from menv.algorithms import DQN

CARTPOLE = gym.make("CartPole-v1")


def clever(obs: Any) -> int:
    return int(obs[2] + 0.3 * obs[3] + 0.05 * obs[0] + 0.1 * obs[1] > 0)


def careless(obs: Any) -> int:
    return random.choice([0, 1, clever(obs)])


def play(policy: Callable[[Any], int], seed: int) -> list[tuple[list[float], int, float]]:
    """Return the steps of one episode, and the last observation with an action that nobody took."""
    (obs, _), steps, over, cut = CARTPOLE.reset(seed=seed), [], False, False
    while not (over or cut):
        action = policy(obs)
        after, reward, over, cut, _ = CARTPOLE.step(action)
        steps.append((obs.tolist(), action, float(reward)))
        obs = after
    return [*steps, (obs.tolist(), int(over), 0.0)]


class Logs(ExternalEnv):
    """Tells of the episodes of a file, over and over."""

    file = ""

    def run(self) -> None:
        while True:
            for line in open(self.file):
                *steps, (last, over, _) = json.loads(line)
                episode = self.start_episode()
                for obs, action, reward in steps:
                    self.log_action(episode, obs, action)
                    self.log_returns(episode, reward)
                self.end_episode(episode, last, truncated=not over)
