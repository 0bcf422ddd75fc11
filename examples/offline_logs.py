"""DQN learns CartPole from logged episodes alone, and is compared with the two policies that were logged.

    python examples/offline_logs.py --seconds 20

One is clever and one careless. Nobody is asked for an action: `run` reads what was done and what came of it.
"""

import argparse
import json
import random
import time
from typing import Any

import gymnasium as gym

from menv import ExternalEnv
from menv.algorithms import DQN

CARTPOLE: Any = gym.make("CartPole-v1")
EXAM = {"evaluation_config": {"env": "CartPole-v1", "explore": False}, "evaluation_duration": 20}


def play(name: str, seed: int) -> str:
    """Return a line of a log: the steps of an episode, its last observation, and whether it was cut short."""
    (obs, _), steps, over, cut = CARTPOLE.reset(seed=seed), [], False, False
    while not (over or cut):
        action = int(obs[2] + 0.3 * obs[3] + 0.05 * obs[0] + 0.1 * obs[1] > 0)
        action = random.randrange(2) if name == "careless" and random.random() < 0.6 else action
        after, reward, over, cut, _ = CARTPOLE.step(action)
        steps.append((obs.tolist(), action, reward))
        obs = after
    return json.dumps((steps, obs.tolist(), cut))


class Logs(ExternalEnv):
    def run(self) -> None:
        while True:
            for steps, last, cut in map(json.loads, LINES):
                episode = self.start_episode()
                for obs, action, reward in steps:
                    self.log_action(episode, obs, action)
                    self.log_returns(episode, reward)
                self.end_episode(episode, last, truncated=cut)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--seconds", type=float, default=20.0, help="time to train")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--json", action="store_true", help="print one JSON object last")
args, start = parser.parse_args(), time.perf_counter()
random.seed(args.seed)
logged = {name: [play(name, seed) for seed in range(times)] for name, times in (("clever", 20), ("careless", 100))}
LINES = random.sample(lines := sum(logged.values(), []), len(lines))
outcome = {name: sum(len(json.loads(line)[0]) for line in own) / len(own) for name, own in logged.items()}
spaces, config = (CARTPOLE.action_space, CARTPOLE.observation_space), {"n_step": 3, "seed": args.seed, **EXAM}
with DQN(env=lambda context: Logs(*spaces), config=config) as algo:
    while not algo.iteration or time.perf_counter() - start < args.seconds:
        print(f"{algo.train()['external']['num_off_policy_steps']:>8,} logged steps read")
    outcome["learned"] = algo.evaluate()["evaluation"]["episode_reward_mean"]
print("mean returns:", outcome)
print(json.dumps({**outcome, "seconds": time.perf_counter() - start, "seed": args.seed}) if args.json else "")
