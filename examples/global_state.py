"""MAPPO with the global state: four agents pick fruit in an orchard, on good days and on bad days.

    python examples/global_state.py --seconds 60

An agent sees only the cells around it. The environment's `state()` knows the whole orchard and the weather, so that a
critic that reads it can tell a good action from a good day.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv import MultiAgentEnv
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs

SIZE, STEPS = 6, 20
MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 16,
    "train_batch_size": 1280,
    "sgd_minibatch_size": 1280,
    "lr": 1e-3,
    "gamma": 0.95,
    "entropy_coeff": 0.01,
    "common_reward": "sum",
}


class Orchard(MultiAgentEnv):
    """Four agents walk in an orchard of 6 x 6 cells for 20 steps and pick fruit for the team.

    - Observation: the fruit in the 3 x 3 cells around the agent, -1 outside of the orchard.
    - Action: stay, or one step to a side.
    - Reward: 1 for each fruit that the agent picks, and in each step the weather of the day, a number from -2 to 2 that
      is drawn for each episode and that no agent observes; `{"weather": 0.0}` switches it off.
    - State: all the fruit, where the agents are, the weather and the time left.
    """

    def __init__(self, config: Any = None) -> None:
        self.spread = float((config or {}).get("weather", 2.0))
        self.possible_agents = [f"picker_{number}" for number in range(4)]
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (9,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.agents = list(self.possible_agents)
        self.fruit = (self.np_random.random((SIZE, SIZE)) < 0.2).astype(np.float32)
        self.places = self.np_random.integers(SIZE, size=(4, 2))
        self.weather = self.spread * float(self.np_random.uniform(-1.0, 1.0))
        self.at = 0
        return self.seen(), {}

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        rewards = {}
        for number, agent in enumerate(self.agents):
            row, column = np.clip(self.places[number] + MOVES[action_dict[agent]], 0, SIZE - 1)
            self.places[number] = row, column
            rewards[agent] = self.weather + float(self.fruit[row, column])
            self.fruit[row, column] = 0.0
        over = self.at == STEPS
        return self.seen(), rewards, {"__all__": False}, {"__all__": over}, {}

    def seen(self) -> Any:
        padded = np.pad(self.fruit, 1, constant_values=-1.0)
        return {
            agent: padded[row : row + 3, column : column + 3].reshape(-1)
            for agent, (row, column) in zip(self.possible_agents, self.places, strict=True)
        }

    def state(self) -> Any:
        code = [self.weather, 1.0 - self.at / STEPS]
        return np.concatenate(
            [self.fruit.reshape(-1), self.places.reshape(-1) / SIZE, code], dtype=np.float32
        )


def train(critic_obs: str, seconds: float, seed: int) -> float:
    """Return the fruit that four pickers find in an evaluation without weather."""
    run_dir = next_run_dir("orchard", critic_obs)
    config = {
        **CONFIG,
        "critic_obs": critic_obs,
        "seed": seed,
        "evaluation_duration": 200,
        "evaluation_config": {"env_config": {"weather": 0.0}, "common_reward": None},
    }
    with PPO(env=Orchard, config=config) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
        fruit = float(algo.evaluate()["evaluation"]["episode_reward_mean"])
    print("wrote", plot_runs([run_dir]))
    return fruit


def main(seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    return {critic_obs: train(critic_obs, seconds, seed) for critic_obs in ("state", "all_agents")}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
