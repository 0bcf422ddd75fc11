"""An RLlink client without menv: CartPole in a few lines, numpy and ONNX Runtime.

    python examples/cartpole_server.py --transport rllink --port 5555
    python examples/rllink_client.py --port 5555

It acts with the model that the server sends, and sends episodes back. It ends when the mean of its last 20 returns
reaches --stop-reward.
"""

import base64
import gzip
import json
import socket
from typing import Any

import numpy as np
import onnxruntime

RNG = np.random.default_rng()


class Server:
    """Sends a JSON message and returns the answer; 8 digits before each body are its length."""

    def __init__(self, address: str, port: int) -> None:
        self.connection = socket.create_connection((address, port), 60)
        self.stream = self.connection.makefile("rb")

    def ask(self, **message: Any) -> Any:
        body = json.dumps(message).encode()
        self.connection.sendall(b"%08d" % len(body) + body)
        length = int(self.stream.read(8))
        return json.loads(self.stream.read(length))


def new_state() -> Any:
    """Return position and speed of the cart, angle and rotation of the pole."""
    return RNG.uniform(-0.05, 0.05, 4).astype(np.float32)


def next_state(state: Any, action: int) -> Any:
    _, speed, angle, rotation = state
    sin, cos = np.sin(angle), np.cos(angle)
    force = (20.0 * action - 10.0 + 0.05 * rotation**2 * sin) / 1.1
    rotating = (9.8 * sin - cos * force) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    change = np.array([speed, force - 0.05 * rotating * cos / 1.1, rotation, rotating])
    return (state + 0.02 * change).astype(np.float32)


def new_episode(state: Any) -> dict[str, Any]:
    return {"obs": [state.tolist()], "actions": [], "rewards": []}


class Player:
    """Plays CartPole and remembers the returns."""

    def __init__(self) -> None:
        self.state = new_state()
        self.steps = 0
        self.returns: list[int] = []

    def sample(self, model_file: bytes, env_steps: int) -> list[dict[str, Any]]:
        """Play some steps with a model; return the episodes, of which the last one may continue in the next sample."""
        model = onnxruntime.InferenceSession(model_file)
        name = model.get_inputs()[0].name
        episodes = [new_episode(self.state)]
        for _ in range(env_steps):
            episode = episodes[-1]
            if episode.get("is_terminated") or episode.get("is_truncated"):
                episode = new_episode(self.state)
                episodes.append(episode)
            logits = model.run(None, {name: self.state[None]})[0][0]
            # Gumbel noise turns the highest logit into a sample of the distribution.
            action = int(np.argmax(logits + RNG.gumbel(size=2)))
            self.state = next_state(self.state, action)
            self.steps += 1
            episode["obs"].append(self.state.tolist())
            episode["actions"].append(action)
            episode["rewards"].append(1.0)
            episode["is_terminated"] = bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095)
            episode["is_truncated"] = self.steps == 500 and not episode["is_terminated"]
            if episode["is_terminated"] or episode["is_truncated"]:
                print(f"Total reward: {self.steps}", flush=True)
                self.returns.append(self.steps)
                self.state = new_state()
                self.steps = 0
        return episodes


def main(address: str = "localhost", port: int = 5555, stop_reward: float = 200.0) -> dict[str, Any]:
    server = Server(address, port)
    env_steps = server.ask(type="GET_CONFIG")["env_steps_per_sample"]
    answer = server.ask(type="GET_STATE")
    player = Player()
    while len(player.returns) < 20 or np.mean(player.returns[-20:]) < stop_reward:
        model_file = gzip.decompress(base64.b64decode(answer["onnx_file"]))
        answer = server.ask(
            type="EPISODES_AND_GET_STATE",
            episodes=player.sample(model_file, env_steps),
            env_steps=env_steps,
            weights_seq_no=answer["weights_seq_no"],
        )
    return {"mean_return": float(np.mean(player.returns[-20:]))}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
