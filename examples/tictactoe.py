"""Two policies learn TicTacToe by self-play until no opponent can beat them, or the time is up.

A losing line is a game that the policies lose against an opponent that tries every move. With 0 losing lines they
cannot be beaten.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from menv import DefaultCallbacks, Episode, PolicySpec
from menv.algorithms import PPO
from menv.envs import TicTacToe
from menv.envs.tictactoe_play import losing_lines, play_perfect, play_random
from menv.tracking import next_run_dir

PLAYERS = ["player1", "player2"]


def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
    """In each game one of the players is careless: it tries all moves, and the other one learns to punish mistakes."""
    if "careless" not in episode.user_data:
        episode.user_data["careless"] = episode.rng.choice(PLAYERS)
    return "careless" if agent_id == episode.user_data["careless"] else agent_id


def moves_of(algo: PPO) -> Any:
    """Return a function that chooses the best moves in many positions at once."""

    def choose(boards: Any, masks: Any) -> Any:
        # The number of stones says whose turn it is.
        player = PLAYERS[int(boards[0].sum()) % 2]
        pairs = zip(boards, masks.astype("int8"), strict=True)
        observations = [{"observations": board, "action_mask": mask} for board, mask in pairs]
        return algo.get_policy(player).compute_actions(observations, explore=False)[0]

    return choose


class CountLosingLines(DefaultCallbacks):
    """Adds the losing lines to each result and keeps the best weights."""

    least = 10**9
    weights: dict[str, Any]

    def on_train_result(self, *, algorithm: PPO, result: dict[str, Any], **kwargs: Any) -> None:
        lines = losing_lines(moves_of(algorithm)).total
        result["losing_lines"] = lines
        result["cannot_be_beaten"] = int(lines == 0)
        if lines < CountLosingLines.least:
            CountLosingLines.least = lines
            CountLosingLines.weights = algorithm.get_weights(PLAYERS)
            seconds, moves = result["time_total_s"], result["num_env_steps_sampled"]
            print(f"{seconds:5.1f} s {moves:>8,} moves: opponents have {lines} ways to win left")


CONFIG = {
    "multiagent": {
        "policies": {"player1": None, "player2": None, "careless": PolicySpec(config={"entropy_coeff": 0.6})},
        "policy_mapping_fn": policy_for,
    },
    "callbacks": CountLosingLines,
    **{"num_envs_per_worker": 64, "train_batch_size": 2048, "sgd_minibatch_size": 512, "num_sgd_iter": 8},
    **{"lr": 3e-3, "gamma": 1.0, "lambda": 0.7, "entropy_coeff": 0.05, "grad_clip": 5.0},
    "normalize_values": False,  # returns are between -1 and 1 already
    "model": {"fcnet_hiddens": [128, 128]},
    **{"num_workers": 1, "engine": "process", "overlap": True},  # a worker plays while this process learns
}


def show_a_game(algo: PPO) -> None:
    """Print a game of the two policies, move by move from left to right."""
    env = TicTacToe()
    observations, _ = env.reset()
    boards = []
    while env.agents:
        # One player has an observation: the one whose turn it is.
        ((player, observation),) = observations.items()
        move = algo.compute_single_action(observation, player, explore=False)
        observations = env.step({player: move})[0]
        boards.append(env.render().splitlines())
    print("a game of theirs:")
    for row in zip(*boards, strict=True):
        print("   ".join(row))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train TicTacToe by self-play.")
    parser.add_argument("--run-dir", type=Path, default=next_run_dir("tictactoe", "PPO"))
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    algo = PPO(env="tictactoe", config={**CONFIG, "seed": args.seed})
    result = algo.learn(stop={"cannot_be_beaten": 1, "time_total_s": args.seconds}, run_dir=args.run_dir)
    algo.set_weights(CountLosingLines.weights)
    algo.save(args.run_dir / "checkpoints")
    outcome: dict[str, Any] = {"losing_lines": CountLosingLines.least, "games": 2000, "seed": args.seed}
    outcome |= {"env_steps": result["num_env_steps_sampled"], "seconds": result["time_total_s"]}
    for name, play in {"random": play_random, "perfect": play_perfect}.items():
        outcome[f"losses_vs_{name}"] = 0
        for player, record in play(moves_of(algo), games=1000, seed=args.seed)._asdict().items():
            print(f"{player}, {name} opponent: {record.wins} won, {record.draws} drawn, {record.losses} lost")
            outcome[f"losses_vs_{name}_as_{player}"] = record.losses
            outcome[f"losses_vs_{name}"] += record.losses
    show_a_game(algo)
    if args.json:
        print(json.dumps(outcome))
        sys.exit()
    menv = "menv" if shutil.which("menv") else os.path.relpath(Path(sys.executable).with_name("menv"))
    print("play against them:")
    print(f"{menv} play {args.run_dir} --as player2")
