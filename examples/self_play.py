"""A policy learns connect four against a growing row of its own former selves.

    python examples/self_play.py --seconds 60

When it wins most games, a frozen copy of it joins the opponents. The mapping draws seat and opponent for each episode,
in half of them the untrained copy, which plays nearly at random: among strong players most positions are never seen.
"""

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

from menv import Episode, RandomPolicy
from menv.algorithms import PPO

SIZES = {"num_envs_per_worker": 64, "train_batch_size": 4096, "sgd_minibatch_size": 512, "num_sgd_iter": 4}
LEARNING = {"lr": 1e-3, "gamma": 1.0, "lambda": 0.8, "entropy_coeff": 0.05, "grad_clip": 5.0}
MODEL = {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"}
ME = ["learner"]
EXAM = {"evaluation_duration": 1000, "evaluation_config": {"explore": False}}


def against(*opponents: str) -> Any:
    def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
        drawn, rng = episode.user_data, episode.rng
        if not drawn:
            drawn["seat"] = f"player{rng.integers(1, 3)}"
            drawn["opponent"] = opponents[0 if rng.random() < 0.5 else rng.integers(len(opponents))]
        return str("learner" if agent_id == drawn["seat"] else drawn["opponent"])

    return policy_for


def win_rate(result: Mapping[str, Any]) -> float:
    outcomes = result["hist_stats"]["policy_learner_reward"][-result["episodes_this_iter"] :]
    return float(outcomes.count(1.0) / len(outcomes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args, foes, seconds, start = parser.parse_args(), ["snapshot_0"], 0.0, time.perf_counter()
    players = {"policies": [*ME, *foes], "policy_mapping_fn": against(*foes), "policies_to_train": ME}
    config = {**SIZES, **LEARNING, **EXAM, "model": MODEL, "multiagent": players, "seed": args.seed}
    with PPO(env="connect_four", config=config) as algo:
        while seconds < args.seconds:
            rate, seconds = win_rate(algo.train()), time.perf_counter() - start
            print(f"{seconds:5.1f} s, iteration {algo.iteration}: {rate:.1%} won, {len(foes)} opponents")
            if rate > 0.8 and algo.iteration % 10 == 0:
                foes.append(f"snapshot_{len(foes)}")
                algo.add_policy(foes[-1], policy_mapping_fn=against(*foes), policies_to_train=ME)
                algo.set_weights({foes[-1]: algo.get_weights(ME)["learner"]})
        algo.add_policy("random", RandomPolicy, policy_mapping_fn=against("random"))
        rate = win_rate(algo.evaluate()["evaluation"])
    print(f"1,000 games of its best moves against a random player: {rate:.1%} won")
    if args.json:
        print(json.dumps({"won": rate, "opponents": len(foes), "seconds": seconds, "seed": args.seed}))
