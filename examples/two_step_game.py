"""Two agents that earn 7 alone and 8 if they trust each other: QMIX, and beside it learners that know no team.

    python examples/two_step_game.py --seconds 10

Each gets the time in turn, and then plays a game without chance.
"""

import argparse
import json
import time
from typing import Any

from menv.algorithms import DQN, QMIX, Algorithm
from menv.envs import TwoStepGame

AGENTS = ("agent_1", "agent_2")


def team(context: Any) -> Any:
    """Return the game with both agents in one group; the state is for the network that mixes their Q-values."""
    return TwoStepGame({"with_state": True}).with_agent_groups({"team": AGENTS})


def trainers(seed: int) -> dict[str, Algorithm]:
    """Return QMIX for the group, and DQN with a policy for each agent."""
    config = {"num_envs_per_worker": 8, "seed": seed, "evaluation_config": {"explore": False}}
    each = {"policies": AGENTS, "policy_mapping_fn": lambda agent_id, **kw: agent_id}
    independent = DQN(env=TwoStepGame, config={**config, "multiagent": each})
    return {"qmix": QMIX(env=team, config=config), "independent": independent}


def main() -> None:
    """Read the command line, train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="time to train each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    outcome: dict[str, Any] = {"seed": args.seed, "seconds": 0.0}
    for name, algo in trainers(args.seed).items():
        start, seconds = time.perf_counter(), 0.0
        with algo:
            while not seconds or seconds < args.seconds:
                env_steps, seconds = algo.train()["num_env_steps_sampled"], time.perf_counter() - start
                outcome[name] = algo.evaluate()["evaluation"]["episode_reward_mean"]
                print(f"{name:>11}: {seconds:5.1f} s {env_steps:>7,} env steps  return {outcome[name]:.1f}")
        outcome["seconds"] += seconds
    print(json.dumps(outcome) if args.json else "")


if __name__ == "__main__":
    main()
