"""What a feed-forward policy can learn against opponents that follow a rule, and what it cannot.

    python examples/rock_paper_scissors.py --opponents always_same beat_last_move

For each episode of ten rounds the mapping draws one of the opponents. All that the learner sees is the opponent's
last hand. That is enough against one that always shows the same hand: nine points of ten, for the first round is
luck. Beating one that beats the learner's own last hand takes a memory, which a feed-forward policy does not have.
"""

import argparse
import json
import time
from typing import Any

from menv import Episode, PolicySpec
from menv.algorithms import PPO
from menv.envs import AlwaysSame, BeatLastMove, RockPaperScissors

RULES = {
    "always_same": PolicySpec(policy_class=AlwaysSame),
    "beat_last_move": PolicySpec(policy_class=BeatLastMove),
}
SIZES = {"num_envs_per_worker": 32, "train_batch_size": 2048, "sgd_minibatch_size": 512, "num_sgd_iter": 4}
LEARNING = {"lr": 3e-3, "entropy_coeff": 0.01, "metrics_num_episodes_for_smoothing": 1000}


def main() -> None:
    """Read the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--opponents", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--seconds", type=float, default=10.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()

    def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
        return "learner" if agent_id == "player1" else str(episode.rng.choice(args.opponents))

    policies = {"learner": None, **{name: RULES[name] for name in args.opponents}}
    players = {"policies": policies, "policy_mapping_fn": policy_for}
    start, seconds = time.perf_counter(), 0.0
    with PPO(
        env=RockPaperScissors, config={**SIZES, **LEARNING, "multiagent": players, "seed": args.seed}
    ) as algo:
        while seconds < args.seconds or not seconds:
            result, seconds = algo.train(), time.perf_counter() - start
            # What one wins the other one loses, and opponents are told apart by their policies.
            points = {name: -result["policy_reward_mean"][name] for name in args.opponents}
            shown = "  ".join(f"{name} {mean:5.2f}" for name, mean in points.items())
            print(f"{seconds:5.1f} s {result['num_env_steps_sampled']:>8,} rounds, points against {shown}")
    if args.json:
        outcome = {"points": points, "env_steps": result["num_env_steps_sampled"]}
        print(json.dumps({**outcome, "seconds": seconds, "seed": args.seed}))


if __name__ == "__main__":
    main()
