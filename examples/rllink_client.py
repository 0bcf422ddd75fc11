"""An RLlink client with nothing of menv in it: a cart, numpy, ONNX Runtime; `rllink_server.py` is the server."""

import argparse
import base64
import gzip
import json
import socket
from typing import Any

import numpy as np
import onnxruntime as ort

RNG = np.random.default_rng()


def moved(s: Any, action: int) -> Any:  # position and speed of the cart, angle and speed of the pole
    v, spin, sin, cos = s[1], s[3], np.sin(s[2]), np.cos(s[2])
    push = (20.0 * action - 10.0 + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    return (s + 0.02 * np.array([v, push - 0.05 * turn * cos / 1.1, spin, turn])).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("address", "localhost"), ("port", 5555), ("stop-reward", 200.0)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = parser.parse_args()
    line = socket.create_connection((args.address, args.port), 60)
    stream = line.makefile("rb")

    def ask(**message: Any) -> Any:
        body = json.dumps(message).encode()
        line.sendall(b"%08d" % len(body) + body)
        return json.loads(stream.read(int(stream.read(8))))

    steps, state = ask(type="GET_CONFIG")["env_steps_per_sample"], ask(type="GET_STATE")
    returns, played, s = [0], 0, RNG.uniform(-0.05, 0.05, 4).astype(np.float32)
    while len(returns) <= 20 or np.mean(returns[-20:]) < args.stop_reward:
        model = ort.InferenceSession(gzip.decompress(base64.b64decode(state["onnx_file"])))
        episodes: list[dict[str, Any]] = []
        name, over = model.get_inputs()[0].name, True
        for _ in range(steps):
            if over:
                episodes.append({"obs": [s.tolist()], "actions": [], "rewards": []})
            action = int(np.argmax(model.run(None, {name: s[None]})[0][0] + RNG.gumbel(size=2)))
            s, played, one = moved(s, action), played + 1, episodes[-1]
            for column, value in {"obs": s.tolist(), "actions": action, "rewards": 1.0}.items():
                one[column].append(value)
            one["is_terminated"] = bool(abs(s[0]) > 2.4 or abs(s[2]) > 0.2095)
            one["is_truncated"] = played == 500 and not one["is_terminated"]
            if over := one["is_terminated"] or one["is_truncated"]:
                print(f"Total reward: {played}", flush=True)
                returns.append(played)
                played, s = 0, RNG.uniform(-0.05, 0.05, 4).astype(np.float32)
        number = state["weights_seq_no"]
        state = ask(type="EPISODES_AND_GET_STATE", episodes=episodes, env_steps=steps, weights_seq_no=number)


if __name__ == "__main__":
    main()
