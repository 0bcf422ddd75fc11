"""What a policy can learn against opponents that follow a rule, with a memory and without.

    python examples/rock_paper_scissors.py --model lstm --plot points.png

The mapping draws an opponent for each ten rounds. The learner sees the opponent's last hand alone: enough against one
that always shows the same, nine points of ten. Beating one that beats the learner's own last hand takes a memory.
"""

import argparse
import json
import time
from typing import Any

from menv import Episode, PolicySpec
from menv.algorithms import PPO, TensorBoardCallbacks, plot_curves
from menv.envs import AlwaysSame, BeatLastMove, RockPaperScissors

RULES = {"always_same": AlwaysSame, "beat_last_move": BeatLastMove}
MODELS = {"feed_forward": {}, "lstm": {"use_lstm": True, "lstm_cell_size": 32, "fcnet_hiddens": [32]}}
SIZES = {"num_envs_per_worker": 32, "train_batch_size": 2048, "num_sgd_iter": 8}
LEARNING = {"lr": 5e-3, "gamma": 0.9, "lambda": 0.8, "entropy_coeff_schedule": [[0, 0.01], [200_000, 0]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--opponents", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--model", choices=MODELS, default="feed_forward")
    parser.add_argument("--seconds", type=float, default=20.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="PNG", help="draw the points over time into this file")
    parser.add_argument("--logdir", help="write all results for TensorBoard into this folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()

    def policy_for(agent_id: str, episode: Episode) -> str:
        return "learner" if agent_id == "player1" else str(episode.rng.choice(args.opponents))

    rules = {name: PolicySpec(policy_class=RULES[name]) for name in args.opponents}
    config: dict[str, Any] = {**SIZES, **LEARNING, "seed": args.seed, "model": MODELS[args.model]}
    config["multiagent"] = {"policies": {"learner": None, **rules}, "policy_mapping_fn": policy_for}
    config["callbacks"] = TensorBoardCallbacks(args.logdir) if args.logdir else None
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in args.opponents}
    start, seconds = time.perf_counter(), 0.0
    with PPO(env=RockPaperScissors, config=config) as algo:
        while seconds < args.seconds or not seconds:
            result, seconds = algo.train(), time.perf_counter() - start
            for name, curve in curves.items():
                # What one wins the other one loses, and opponents are told apart by their policies.
                curve.append((result["num_env_steps_sampled"], -result["policy_reward_mean"][name]))
            points = {name: curve[-1][1] for name, curve in curves.items()}
            print(f"{seconds:5.1f} s, points against", "  ".join(f"{k} {v:5.2f}" for k, v in points.items()))
    if args.plot:
        plot_curves(args.plot, curves, title=args.model, x_label="rounds", y_label="points in ten rounds")
    if args.json:
        outcome = {"points": points, "env_steps": curve[-1][0]}
        print(json.dumps({**outcome, "seconds": seconds, "seed": args.seed}))


if __name__ == "__main__":
    main()
