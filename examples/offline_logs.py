"""DQN learns CartPole from logged episodes alone; it never chooses an action while it trains.

    python examples/offline_logs.py --seconds 30

One episode in six was played by a good policy, the others by a careless one. An `ExternalEnv` replays the log. At the
end the mean returns of the three policies are compared.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from menv import ExternalEnv
from menv.algorithms import DQN
from menv.tracking import next_run_dir, plot_runs

Choose = Callable[[Any], int]
ENV = gym.make("CartPole-v1")


class Logs(ExternalEnv):
    def __init__(self, episodes: list[Any]) -> None:
        super().__init__(ENV.action_space, ENV.observation_space)
        self.episodes = episodes

    def run(self) -> None:
        for steps, last_obs, truncated in itertools.cycle(self.episodes):
            episode = self.start_episode()
            for obs, action, reward in steps:
                self.log_action(episode, obs, action)
                self.log_returns(episode, reward)
            self.end_episode(episode, last_obs, truncated=truncated)


def good(obs: Any) -> int:
    position, speed, angle, rotation = obs
    return int(angle + 0.3 * rotation + 0.05 * position + 0.1 * speed > 0)


def careless(obs: Any) -> int:
    return random.randrange(2) if random.random() < 0.6 else good(obs)


def play(choose: Choose, seed: int) -> tuple[list[Any], Any, bool]:
    """Play an episode; return its steps, its last observation and whether it was truncated."""
    steps = []
    obs, _ = ENV.reset(seed=seed)
    terminated = truncated = False
    while not (terminated or truncated):
        action = choose(obs)
        next_obs, reward, terminated, truncated, _ = ENV.step(action)
        steps.append((obs, action, float(reward)))
        obs = next_obs
    return steps, obs, truncated


def mean_return(choose: Choose) -> float:
    return sum(len(play(choose, seed)[0]) for seed in range(500, 520)) / 20


def main(seconds: float = 30.0, seed: int = 0) -> dict[str, Any]:
    random.seed(seed)
    episodes = [play(good if number % 6 == 0 else careless, seed + number) for number in range(120)]
    run_dir = next_run_dir("offline-logs", "DQN")
    config = {"n_step": 3, "target_network_update_freq": 4000, "seed": seed}
    with DQN(env=lambda context: Logs(episodes), config=config) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
        learned = mean_return(lambda obs: int(algo.compute_single_action(obs, explore=False)))
    # The returns in the results come from the log; the loss shows what was learned.
    print("wrote", plot_runs([run_dir], key="info/learner/default_policy/learner_stats/mean_q"))
    return {"learned": learned, "good": mean_return(good), "careless": mean_return(careless)}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
