"""Peers that send the bodies that take longest to read, one after the other, for ever.

    python -m benchmarks.heavy_peers HOST PORT [--peers N] [--body-bytes N]

Over TCP. Each body is refused at its end, so that nothing of it comes to the sampler, and is sent again.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
from typing import Any

_EPISODE: dict[str, Any] = {
    "obs": [[0, 0, 0, 0]],
    "actions": [],
    "rewards": [],
    "is_terminated": True,
    "is_truncated": False,
}
_BROKEN = {**_EPISODE, "rewards": [""]}


def bodies(size: int) -> list[bytes]:
    """Return JSON of about `size` bytes each: many small whole numbers, many small episodes, many keys."""
    rows = size // 14
    long = {**_EPISODE, "obs": [[0, 0, 0, 0]] * rows, "actions": [0] * rows, "rewards": [0] * rows}
    found: list[dict[str, Any]] = [
        {"episodes": [long]},
        {"episodes": [*[_EPISODE] * (size // 90), _BROKEN]},
        {"episodes": [_BROKEN], **{format(number, "x"): 0 for number in range(size // 10)}},
    ]
    return [json.dumps({"type": "EPISODES", **one}, separators=(",", ":")).encode() for one in found]


def play(place: tuple[str, int], body: bytes) -> None:
    """Send a body, wait until it is refused, and so on."""
    with socket.create_connection(place) as one, one.makefile("rb") as answers:
        while True:
            one.sendall(b"%08d%b" % (len(body), body))
            answers.read(int(answers.read(8)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--body-bytes", type=int, default=900_000)
    args = parser.parse_args()
    kinds = bodies(args.body_bytes)
    crowd = [
        threading.Thread(target=play, args=((args.host, args.port), kinds[number % len(kinds)]))
        for number in range(args.peers)
    ]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()


if __name__ == "__main__":
    main()
