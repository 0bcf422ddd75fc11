"""Two policies learn TicTacToe by self-play until no opponent can beat them, or the time is up.

    python examples/tictactoe.py
    menv play runs/tictactoe-PPO-001 --as player2

A losing line is a game that the policies lose against an opponent that tries every move. With 0 losing lines they
cannot be beaten.
"""

from typing import Any

from tictactoe_play import losing_lines, perfect_moves, play, random_moves

from menv import DefaultCallbacks, Episode, PolicySpec
from menv.algorithms import PPO
from menv.envs import TicTacToe
from menv.tracking import next_run_dir, plot_runs

PLAYERS = ["player1", "player2"]


def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
    """In each game one player is careless: it tries all moves, and the other one learns to punish mistakes."""
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

    def __init__(self) -> None:
        super().__init__()
        self.least = 10**9
        self.weights: dict[str, Any] = {}

    def on_train_result(self, *, algorithm: PPO, result: Any, **kwargs: Any) -> None:
        lines = sum(losing_lines(moves_of(algorithm)))
        result["losing_lines"] = lines
        result["cannot_be_beaten"] = int(lines == 0)
        if lines < self.least:
            self.least = lines
            self.weights = algorithm.get_weights(PLAYERS)
            print(f"opponents have {lines} ways to win left")


CONFIG: dict[str, Any] = {
    "multiagent": {
        "policies": {
            "player1": None,
            "player2": None,
            "careless": PolicySpec(config={"entropy_coeff": 0.6}),
        },
        "policy_mapping_fn": policy_for,
    },
    "num_envs_per_worker": 64,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 512,
    "num_sgd_iter": 8,
    "lr": 3e-3,
    "gamma": 1.0,
    "lambda": 0.7,
    "entropy_coeff": 0.05,
    "grad_clip": 5.0,
    # Returns are between -1 and 1 already.
    "normalize_values": False,
    "model": {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"},
    # A worker plays while this process learns.
    "num_workers": 1,
    "engine": "process",
    "overlap": True,
}


def show_a_game(algo: PPO) -> None:
    """Print a game of the two policies, one board after the other."""
    env = TicTacToe()
    observations, _ = env.reset()
    while env.agents:
        # One player has an observation: the one that is to move.
        ((player, observation),) = observations.items()
        move = algo.compute_single_action(observation, player, explore=False)
        observations = env.step({player: move})[0]
        print(env.render(), end="\n\n")


def main(seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("tictactoe", "PPO")
    lines = CountLosingLines()
    with PPO(env="tictactoe", config={**CONFIG, "callbacks": lines, "seed": seed}) as algo:
        stop = {"cannot_be_beaten": 1, "time_total_s": seconds}
        result = algo.learn(stop=stop, run_dir=run_dir, progress_bar=True)
        algo.set_weights(lines.weights)
        algo.save(run_dir / "checkpoints")
        show_a_game(algo)
        outcome = {"losing_lines": lines.least, "games": 2000, "seconds": result["time_total_s"]}
        for name, opponent in {"random": random_moves, "perfect": perfect_moves}.items():
            for player, record in zip(PLAYERS, play(moves_of(algo), opponent, 1000, seed), strict=True):
                outcome[f"losses_vs_{name}_as_{player}"] = record.losses
    print("wrote", plot_runs([run_dir], key="losing_lines"))
    return outcome


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
