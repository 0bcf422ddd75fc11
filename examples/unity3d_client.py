"""Plays the game's part of `unity3d_server.py`, without a game engine: four players who run after a ball.

    python examples/unity3d_client.py --port=9900 --inference-mode=local

A team that has the ball at a player's feet earns 1, the other one loses 1, and the game goes on elsewhere. A player
who runs off the field is out; the others play on.
"""

import argparse

import numpy as np

from menv.serving.client.policy_client import PolicyClient

PLAYERS = [f"{team}_{number}" for team in ("blue", "purple") for number in range(2)]
LENGTH = 50


def play(client: PolicyClient, rng: np.random.Generator) -> dict[str, float]:
    """Play one game and return what each player has earned."""
    places = dict(zip(PLAYERS, rng.uniform(-5, 5, (4, 2)).astype(np.float32), strict=True))
    ball, goal = rng.uniform(-5, 5, (2, 2)).astype(np.float32)
    earned = dict.fromkeys(PLAYERS, 0.0)

    def seen() -> dict[str, object]:
        return {name: np.clip(np.concatenate((at, ball, goal)), -10, 10) for name, at in places.items()}

    episode = client.start_episode()
    for _ in range(LENGTH):
        rewards, out = dict.fromkeys(places, 0.0), {}
        for name, action in client.get_action(episode, seen()).items():
            places[name] = places[name] + action.astype(np.float32) - 1.0
            out[name] = bool(np.abs(places[name]).max() > 10)
        near = min(places, key=lambda name: float(np.abs(places[name] - ball).sum()))
        if np.abs(places[near] - ball).sum() < 1.5:
            rewards = {name: 1.0 if name[0] == near[0] else -1.0 for name in places}
            ball = rng.uniform(-5, 5, 2).astype(np.float32)
        client.log_returns(episode, rewards, multiagent_done_dict=out)
        earned |= {name: earned[name] + reward for name, reward in rewards.items()}
        places = {name: at for name, at in places.items() if not out[name]}
        if not places:
            break
    client.end_episode(episode, seen(), truncated=bool(places))
    return earned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("address", "localhost"), ("port", 9900), ("games", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--inference-mode", choices=("local", "remote"), default="remote")
    args = parser.parse_args()
    with PolicyClient(f"http://{args.address}:{args.port}", args.inference_mode, seed=args.seed) as client:
        rng = np.random.default_rng(args.seed)
        for _ in range(args.games):
            print(play(client, rng), flush=True)


if __name__ == "__main__":
    main()
