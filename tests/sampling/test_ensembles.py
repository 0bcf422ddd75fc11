"""One name, many tasks: an environment picks its own by where it stands among all sub-environments.

    class Gravities(gym.Env):
        def __init__(self, context):
            planet = PLANETS[context.vector_index % len(PLANETS)]
            self.env = gym.make("Pendulum-v1", g=planet)
            self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

        def reset(self, *, seed=None, options=None):
            return self.env.reset(seed=seed, options=options)

        def step(self, action):
            return self.env.step(action)

    PPO(env=Gravities, config={"num_envs_per_worker": len(PLANETS)})

`context.worker_index` tells the process in the same way, 0 for the driver's own.
"""

from __future__ import annotations

import textwrap
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import EnvContext
from menv.algorithms import PPO
from menv.envs import RockPaperScissors, TwoStepGame
from menv.multi_agent_env import MultiAgentEnv
from tests.inside import base_env
from tests.worlds import Alone

PLANETS = (9.8, 3.7, 24.8)


class Counting(Alone):
    """Shows and pays the number of its task, five times an episode."""

    length = 5

    def __init__(self, context: EnvContext) -> None:
        super().__init__(context)
        self.task = 10 * context.worker_index + context.vector_index

    def see(self) -> Any:
        return np.full(1, self.task, np.float32)

    def pay(self, action: Any) -> float:
        return float(self.task)


def test_each_sub_environment_picks_its_task_by_its_place() -> None:
    with PPO(env=Counting, config={"num_envs_per_worker": 4, "train_batch_size": 80}) as algo:
        tasks = [env.task for env in base_env(algo).get_sub_environments()]
        batch = algo.sample()["default_policy"]
        returns = algo.train()["hist_stats"]["episode_reward"]
    assert tasks == [0, 1, 2, 3]
    assert set(batch["rewards"].tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert set(returns) == {0.0, 5.0, 10.0, 15.0}


def test_settings_are_equal_for_all_and_shared_by_none() -> None:
    config = {"num_envs_per_worker": 2, "env_config": {"nested": [1]}}
    with PPO(env=Counting, config=config) as algo:
        first, second = (env.config for env in base_env(algo).get_sub_environments())
    first["nested"].append(2)
    assert second["nested"] == [1]
    assert (first.num_workers, first.remote) == (0, False)


def test_the_example_above_runs() -> None:
    assert __doc__ is not None
    code = textwrap.dedent(__doc__.partition("\n\n")[2].rpartition("\n\n`context")[0])
    scope: dict[str, Any] = {"gym": gym, "PLANETS": PLANETS, "PPO": PPO}
    exec(code.replace("PPO(env", "algo = PPO(env"), scope)
    gravities = [env.env.unwrapped.g for env in base_env(scope["algo"]).get_sub_environments()]
    assert gravities == list(PLANETS)
    assert scope["algo"].sample().env_steps() >= 3


@pytest.mark.parametrize("seed", [None, 3])
def test_an_ensemble_may_mix_kinds_of_many_agents(seed: int | None) -> None:
    def make(context: EnvContext) -> MultiAgentEnv:
        return TwoStepGame() if context.vector_index else RockPaperScissors({"rounds": 2})

    config = {
        "num_envs_per_worker": 2,
        "train_batch_size": 8,
        "seed": seed,
        "multiagent": {
            "policies": {
                "player": (None, gym.spaces.Discrete(4), gym.spaces.Discrete(3), {}),
                "agent": (None, TwoStepGame().observation_space, gym.spaces.Discrete(2), {}),
            },
            "policy_mapping_fn": lambda agent_id: "player" if agent_id.startswith("player") else "agent",
        },
    }
    with PPO(env=make, config=config) as algo:
        assert set(algo.sample()) == {"player", "agent"}
