"""Two policies learn TicTacToe until no opponent can beat them, or the time is up."""

import argparse
import json
import time
from typing import Any

from menv import Episode, PolicySpec
from menv.algorithms import PPO
from menv.envs import TicTacToe
from menv.envs.tictactoe_play import losing_lines, play_perfect, play_random

SEATS = {"player1": "first", "player2": "second"}
POLICIES = {"first": None, "second": None, "careless": PolicySpec(config={"entropy_coeff": 0.6})}
SIZES = {"num_envs_per_worker": 64, "train_batch_size": 2048, "sgd_minibatch_size": 512, "num_sgd_iter": 8}
LEARNING = {"lr": 3e-3, "gamma": 1.0, "lambda": 0.7, "entropy_coeff": 0.05, "grad_clip": 5.0}
NETWORKS = {"normalize_values": False, "model": {"fcnet_hiddens": [128, 128]}}  # returns are -1 to 1 as it is
BOTH_CORES = {"num_workers": 1, "engine": "process", "overlap": True}  # plays while this process learns


def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
    """Draw lots for who meets the careless policy, which tries all moves, yet learns to punish mistakes."""
    careless = episode.user_data.setdefault("careless", episode.rng.choice(list(SEATS)))
    return "careless" if agent_id == careless else SEATS[agent_id]


def choose(boards: Any, masks: Any) -> Any:
    policy = algo.get_policy("second" if boards[0].sum() % 2 else "first")  # told by the number of stones
    obs = [{"observations": o, "action_mask": m} for o, m in zip(boards, masks.astype("int8"), strict=True)]
    return policy.compute_actions(obs, explore=False)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args, least, seats = parser.parse_args(), 10**9, {"policies": POLICIES, "policy_mapping_fn": policy_for}
    config = {**SIZES, **LEARNING, **NETWORKS, **BOTH_CORES, "multiagent": seats, "seed": args.seed}
    algo, start = PPO(env="tictactoe", config=config), time.perf_counter()
    while ((seconds := time.perf_counter() - start) < args.seconds and least > 0) or least == 10**9:
        steps, lines = algo.train()["timesteps_total"], losing_lines(choose).total
        if lines < least:
            least, weights = lines, algo.get_weights(SEATS.values())
            print(f"{seconds:5.1f} s {steps:>8,} moves: opponents have {lines} ways to win left")
    algo.set_weights(weights)
    result = {"losing_lines": least, "games": 2000, "env_steps": steps, "seconds": seconds, "seed": args.seed}
    for name, play in {"random": play_random, "perfect": play_perfect}.items():
        for seat, record in play(choose, games=1000, seed=args.seed)._asdict().items():
            print(f"{seat}, {name} opponent: {record.wins} won, {record.draws} drawn, {record.losses} lost")
            result[f"losses_vs_{name}_as_{seat}"] = record.losses
            result[f"losses_vs_{name}"] = result.get(f"losses_vs_{name}", 0) + record.losses
    env, boards = TicTacToe(), []
    obs, _ = env.reset()
    while env.agents:
        obs = env.step({p: algo.compute_single_action(o, SEATS[p], explore=False) for p, o in obs.items()})[0]
        boards.append(env.render().splitlines())
    print("a game of theirs:", *("   ".join(row) for row in zip(*boards, strict=True)), sep="\n")
    if args.json:
        print(json.dumps(result))
