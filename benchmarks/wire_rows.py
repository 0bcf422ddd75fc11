"""The rows of the table for bodies from clients: decoding and checking episodes, beside decoding alone.

The floor is what one cannot do without: msgspec decodes the body, numpy makes one array of each column. It checks
nothing.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np

from benchmarks.rows import Effort, Finding, Row, alternate
from menv.serving.episodes import read_episode
from menv.serving.protocol import Episodes, decode

BODY_BYTES = 20_000_000
FLOOR = "x decode"
_COLUMNS = ("obs", "actions", "rewards", "action_logp", "action_dist_inputs")
_SPACES = (gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))


def _episode(steps: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return an episode of CartPole's shape, as arrays."""
    return {
        "obs": rng.standard_normal((steps + 1, 4), np.float32),
        "actions": rng.integers(0, 2, steps),
        "rewards": np.ones(steps),
        "is_terminated": True,
        "is_truncated": False,
        "action_logp": -np.abs(rng.standard_normal(steps, np.float32)),
        "action_dist_inputs": rng.standard_normal((steps, 2), np.float32),
    }


def _as_lists(value: Any) -> Any:
    return value.tolist()


def _as_packed(value: Any) -> Any:
    return {"dtype": value.dtype.str, "shape": list(value.shape), "data": value.tobytes()}


def _unpacked(column: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(column["data"]), column["dtype"]).reshape(column["shape"])


def _body(steps: int, size: int, encoder: Any) -> tuple[bytes, int]:
    """Return an EPISODES of about `size` bytes in episodes of `steps`, and how many there are."""
    rng = np.random.default_rng(0)
    count = size // len(encoder.encode(_episode(steps, rng))) + 1
    episodes = [_episode(steps, rng) for _ in range(count)]
    return encoder.encode({"type": "EPISODES", "episodes": episodes}), count


def reading(steps: int, packed: bool = False) -> Callable[[Effort], Finding]:
    """Compare the seconds that a body takes, decoded and checked against the spaces, with those of decoding alone."""
    encoder = msgspec.json.Encoder(enc_hook=_as_packed if packed else _as_lists)
    decoder: Any = msgspec.json.Decoder()
    as_array: Callable[[Any], Any] = _unpacked if packed else np.asarray

    def measure(effort: Effort) -> Finding:
        body, count = _body(steps, BODY_BYTES // 100 if effort.quick else BODY_BYTES, encoder)

        def alone() -> Any:
            return [[as_array(one[name]) for name in _COLUMNS] for one in decoder.decode(body)["episodes"]]

        def ours() -> Any:
            request = decode(body)
            assert isinstance(request, Episodes)
            return [read_episode(raw, lambda agent_id: _SPACES) for raw in request.episodes]

        def rate(read: Callable[[], Any]) -> float:
            start = time.perf_counter()
            kept = read()
            seconds = time.perf_counter() - start
            assert len(kept) == count
            return count * steps / seconds

        found = alternate(lambda: rate(alone), lambda: rate(ours), effort.repeats)
        return Finding(value=1 / found.value, floors=found.floors, rates=found.rates)

    return measure


def _json_row(name: str, text: str, steps: int) -> Row:
    return Row(name=name, text=text, unit=FLOOR, reach=1.3, aim=1.1, measure=reading(steps), at_most=True)


ROWS = (
    _json_row("wire_json", "20 MB of JSON episodes, 200 steps each, read", 200),
    _json_row("wire_json_short", "20 MB of JSON episodes, 20 steps each, read", 20),
    _json_row("wire_json_long", "20 MB of JSON, one episode, read", 140_000),
    Row(
        name="wire_packed",
        text="20 MB of packed episodes, 2,000 steps each, read",
        unit=FLOOR,
        reach=None,
        aim=2.0,
        measure=reading(2_000, packed=True),
        at_most=True,
    ),
)
