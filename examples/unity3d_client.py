"""Plays the game of `unity3d_server.py`, in place of a game engine: four players run after a ball.

    python examples/unity3d_client.py --port 9900 --inference-mode local

A team whose player reaches the ball earns 1 and the other team loses 1; then the ball is somewhere else. A player who
runs off the field is out, and the others continue.
"""

from typing import Any, Literal

import numpy as np

from menv.serving.client.policy_client import PolicyClient

PLAYERS = ["blue_0", "blue_1", "purple_0", "purple_1"]
LENGTH = 50


class Field:
    """The positions of players, ball and goal, in a square from -10 to 10."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.ball = self.somewhere()
        self.goal = self.somewhere()
        self.players = {player: self.somewhere() for player in PLAYERS}

    def somewhere(self) -> Any:
        return self.rng.uniform(-5.0, 5.0, 2).astype(np.float32)

    def observe(self) -> dict[str, Any]:
        return {
            player: np.clip(np.concatenate((position, self.ball, self.goal)), -10.0, 10.0)
            for player, position in self.players.items()
        }

    def move(self, actions: dict[str, Any]) -> tuple[dict[str, float], dict[str, bool]]:
        """Move the players; return their rewards, and who is out."""
        for player, action in actions.items():
            self.players[player] = self.players[player] + action.astype(np.float32) - 1.0
        distances = {
            player: float(np.abs(position - self.ball).sum()) for player, position in self.players.items()
        }
        nearest = min(distances, key=lambda player: distances[player])
        rewards = dict.fromkeys(self.players, 0.0)
        if distances[nearest] < 1.5:
            team = nearest.partition("_")[0]
            rewards = {player: 1.0 if player.startswith(team) else -1.0 for player in self.players}
            self.ball = self.somewhere()
        out = {player: bool(np.abs(position).max() > 10.0) for player, position in self.players.items()}
        self.players = {player: position for player, position in self.players.items() if not out[player]}
        return rewards, out


def play(client: PolicyClient, rng: np.random.Generator) -> dict[str, float]:
    """Play one game and return the return of each player."""
    field = Field(rng)
    returns = dict.fromkeys(PLAYERS, 0.0)
    episode = client.start_episode()
    for _ in range(LENGTH):
        rewards, out = field.move(client.get_action(episode, field.observe()))
        client.log_returns(episode, rewards, multiagent_done_dict=out)
        for player, reward in rewards.items():
            returns[player] += reward
        if not field.players:
            break
    client.end_episode(episode, field.observe(), truncated=bool(field.players))
    return returns


def main(
    inference_mode: Literal["local", "remote"] = "remote",
    address: str = "localhost",
    port: int = 9900,
    games: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    returns: dict[str, float] = {}
    with PolicyClient(f"http://{address}:{port}", inference_mode, seed=seed) as client:
        for _ in range(games):
            returns = play(client, rng)
            print(returns, flush=True)
    return returns


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
