"""Two policies learn TicTacToe from each other until no opponent can beat them, or the time is up."""

import argparse
import json
import time
from typing import Any

from menv import Episode, RandomPolicy
from menv.algorithms import PPO
from menv.envs import TicTacToe
from menv.envs.tictactoe_play import losing_lines, play_perfect, play_random

SEATS = {"player1": "first", "player2": "second"}
SAMPLING = {"num_envs_per_worker": 64, "train_batch_size": 2048, "gamma": 1.0, "lambda": 0.7}
LEARNING = {
    **{"num_sgd_iter": 8, "grad_clip": 5.0, "lr_schedule": [[0, 2e-3], [600_000, 2e-4]]},
}
MODEL = {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"}


def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
    """Let one seat play at random in most games, or nobody would learn how to answer bad moves."""
    lot = episode.user_data.setdefault("lot", episode.rng.random())  # one lot for both players
    return "random" if (lot < 0.3 if agent_id == "player1" else lot > 0.7) else SEATS[agent_id]


def choose(boards: Any, masks: Any) -> Any:
    policy = algo.get_policy("second" if boards[0].sum() % 2 else "first")  # told by the number of stones
    obs = [{"observations": o, "action_mask": m} for o, m in zip(boards, masks.astype("int8"), strict=True)]
    return policy.compute_actions(obs, explore=False)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    start, seconds, least = time.perf_counter(), 0.0, 10**9
    policies = {"first": None, "second": None, "random": RandomPolicy}
    seats = {"policies": policies, "policy_mapping_fn": policy_for}
    config = {**SAMPLING, **LEARNING, "model": MODEL, "multiagent": seats, "seed": args.seed}
    algo = PPO(env="tictactoe", config=config)
    while least > 0 and seconds < args.seconds:
        steps, lines = algo.train()["timesteps_total"], losing_lines(choose).total
        seconds = time.perf_counter() - start
        if lines < least:
            least, weights = lines, algo.get_weights(SEATS.values())
            print(f"{seconds:5.1f} s {steps:>8,} moves, {lines} of the lines that opponents can play win")
    algo.set_weights(weights)
    result = {"losing_lines": least, "games": 2000, "env_steps": steps, "seconds": seconds, "seed": args.seed}
    for name, play in {"random": play_random, "perfect": play_perfect}.items():
        for seat, record in play(choose, games=1000, seed=args.seed)._asdict().items():
            print(f"{seat}, {name} opponent: {record.wins} won, {record.draws} drawn, {record.losses} lost")
            result[f"losses_vs_{name}_as_{seat}"] = record.losses
            result[f"losses_vs_{name}"] = result.get(f"losses_vs_{name}", 0) + record.losses
    env, boards = TicTacToe(), []
    (seen,) = env.reset()[0].items()
    while env.agents:
        action = algo.compute_single_action(seen[1], SEATS[seen[0]], explore=False)
        seen, *_ = env.step({seen[0]: action})[0].items()
        boards.append(env.render().splitlines())
    print("a game of theirs:", *("   ".join(row) for row in zip(*boards, strict=True)), sep="\n")
    if args.json:
        print(json.dumps(result))
