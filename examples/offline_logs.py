"""DQN learns CartPole from logs of two policies alone; nobody asks it for an action. Then all three are compared.

python examples/offline_logs.py --seconds 30
"""

import argparse
import itertools
import json
import random
from typing import Any

import gymnasium as gym

from menv import ExternalEnv
from menv.algorithms import DQN

CARTPOLE: Any = gym.make("CartPole-v1")


POLICIES: Any = {
    "clever": lambda obs: int(obs[2] + 0.3 * obs[3] + 0.05 * obs[0] + 0.1 * obs[1] > 0),
    "careless": lambda obs: random.randrange(2) if random.random() < 0.6 else POLICIES["clever"](obs),
}


def play(policy: Any, seed: int) -> tuple[list[Any], Any, bool]:
    (obs, _), steps, over, cut = CARTPOLE.reset(seed=seed), [], False, False
    while not (over or cut):
        before, action = obs, policy(obs)
        obs, reward, over, cut, _ = CARTPOLE.step(action)
        steps.append((before, action, reward))
    return steps, obs, cut


class Logs(ExternalEnv):
    def run(self) -> None:
        for steps, last, cut in itertools.cycle(LOGGED):
            episode = self.start_episode()
            for obs, action, reward in steps:
                self.log_action(episode, obs, action)
                self.log_returns(episode, reward)
            self.end_episode(episode, last, truncated=cut)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--seconds", type=float, default=30.0, help="time to train")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--json", action="store_true", help="print one JSON object last")
args = parser.parse_args()
random.seed(args.seed)
LOGGED = [play(POLICIES["careless" if number % 6 else "clever"], args.seed + number) for number in range(120)]
config = {"n_step": 3, "target_network_update_freq": 4000, "seed": args.seed}
spaces = CARTPOLE.action_space, CARTPOLE.observation_space
with DQN(env=lambda context: Logs(*spaces), config=config) as algo:
    while (result := algo.train())["time_total_s"] < args.seconds:
        print(f"{result['external']['num_off_policy_steps']:>8,} logged steps read")
    POLICIES["learned"] = lambda obs: algo.compute_single_action(obs, explore=False)
    means = {name: sum(len(play(one, 500 + n)[0]) for n in range(20)) / 20 for name, one in POLICIES.items()}
print("mean returns:", means)
print(json.dumps({**means, "seconds": result["time_total_s"], "seed": args.seed}) if args.json else "")
