"""Two policies learn TicTacToe from each other until no opponent can beat them, or the time is up.

    python examples/tictactoe.py --seconds 60 --seed 0

In some episodes one seat is given to a random policy: players who only ever meet each other forget what to do
about bad moves. Every few iterations all games of all opponents are enumerated, and the best weights are kept.
"""

import argparse
import json
import time

from menv import PolicySpec, RandomPolicy
from menv.algorithms import PPO
from menv.envs.tictactoe import TicTacToe
from menv.envs.tictactoe_play import losing_lines, play_perfect, play_random

SEATS = {"player1": "first", "player2": "second"}
RANDOM_SEATS = 0.6  # share of the episodes in which one seat plays at random
CONFIG = {
    "num_envs_per_worker": 64,
    "train_batch_size": 64 * 32,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 8,
    "lr_schedule": [[0, 2e-3], [600_000, 2e-4]],
    "entropy_coeff_schedule": [[0, 0.05], [600_000, 0.025]],
    "grad_clip": 5.0,
    "model": {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"},
}


def policy_for(agent_id, episode, **kwargs):
    """Draw once per episode which seat, if any, plays at random."""
    lot = episode.user_data.setdefault("lot", episode.rng.random() / RANDOM_SEATS)
    chance = {"player1": lot < 0.5, "player2": 0.5 <= lot < 1.0}
    return "random" if chance[agent_id] else SEATS[agent_id]
