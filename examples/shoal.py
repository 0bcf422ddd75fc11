"""Many worlds of many agents as arrays: 16 shoals of 100 fish learn to gather, without an object for each fish.

    python examples/shoal.py

The environment is a `BaseEnv` that returns a table: each fish has a row, its slot. This is the fastest form, for
simulators that step all worlds at once.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from menv import BaseEnv, End, EnvContext, EpisodeEnd, Join, Ready
from menv.algorithms import PPO

SHOALS, FISH, LENGTH = 16, 100, 50
MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32) / 10


class Shoal(BaseEnv):
    returns_table = True
    # All worlds step together.
    lockstep = True
    # The way to the middle of the shoal.
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, context: EnvContext) -> None:
        self.num_envs = SHOALS
        self.rng = np.random.default_rng(context.worker_index)
        self.slots = np.arange(SHOALS * FISH)
        # (shoal, fish) of each slot: the env id and the agent id.
        self.fish = [divmod(slot, FISH) for slot in range(SHOALS * FISH)]
        self.positions = np.zeros((SHOALS, FISH, 2))
        self.rewards = np.zeros(SHOALS * FISH)
        self.env_steps = np.zeros(SHOALS, np.int64)
        self.time = LENGTH

    def poll(self, timeout: float | None = None) -> Ready:
        if self.time < LENGTH:
            return Ready(self.slots, self.observe(), self.rewards, self.env_steps)
        ended, episodes = self.ended() if self.env_steps[0] else ([], [])
        joined = [Join(slot, shoal, fish, shoal) for slot, (shoal, fish) in enumerate(self.fish)]
        self.positions = self.rng.normal(size=(SHOALS, FISH, 2))
        self.time = 0
        none_yet = np.zeros(SHOALS * FISH)
        return Ready(self.slots, self.observe(), none_yet, self.env_steps, joined, ended, episodes)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.positions = self.positions + MOVES[actions].reshape(SHOALS, FISH, 2)
        self.rewards = -np.linalg.norm(self.observe(), axis=1)
        self.env_steps = self.env_steps + 1
        self.time += 1

    def observe(self) -> Any:
        middle = self.positions.mean(axis=1, keepdims=True)
        return (middle - self.positions).reshape(-1, 2).astype(np.float32)

    def ended(self) -> tuple[list[End], list[EpisodeEnd]]:
        """Return the last reward and observation of each fish, and the end of each shoal's episode: truncated."""
        obs = self.observe()
        ended = [
            End(slot, shoal, fish, self.rewards[slot], False, True, obs[slot], {})
            for slot, (shoal, fish) in enumerate(self.fish)
        ]
        return ended, [EpisodeEnd(shoal, False, True, LENGTH, shoal) for shoal in range(SHOALS)]


CONFIG: dict[str, Any] = {
    "rollout_fragment_length": 50,
    "train_batch_size": 800,
    "sgd_minibatch_size": 4096,
    "num_sgd_iter": 4,
    "lr": 2e-3,
}


def main(seconds: float = 10.0, seed: int = 0) -> dict[str, Any]:
    # The benchmark of earlier commits reads the class alone.
    from menv.tracking import next_run_dir, plot_runs

    run_dir = next_run_dir("shoal", "PPO")
    with PPO(env=Shoal, config={**CONFIG, "seed": seed}) as algo:
        result = algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    mean = result["policy_reward_mean"]["default_policy"]
    return {"mean_distance": -mean / LENGTH}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
