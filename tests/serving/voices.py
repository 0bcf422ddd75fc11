"""A client that says messages, through any door, and reads what comes back."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import secrets
from typing import Any

from tests.serving.doors import HEADERS, HTTP, Client, Door, http_wrap


class Voice(Client):
    """One connection.

    Args:
        door: The way in.
        address: Of its port.
        headers: Of HTTP requests.
        session: Value of `menv-session` over HTTP; None makes one up.
    """

    def __init__(
        self, door: Door, address: tuple[str, int], *, headers: str = HEADERS, session: str | None = None
    ) -> None:
        super().__init__(door, address)
        self._headers = f"{headers}menv-session: {session or secrets.token_hex(16)}\r\n"

    def tell(self, kind: str, **fields: Any) -> None:
        """Say something and wait for nothing."""
        self.send(json.dumps({"type": kind, **fields}).encode())

    def send(self, body: bytes) -> None:
        self.raw(http_wrap(body, self._headers) if self.door is HTTP else self.door.wrap(body))

    def hear(self) -> Any:
        """Return the next message."""
        return json.loads(self.receive())

    def ask(self, kind: str, **fields: Any) -> Any:
        """Say something and return the answer."""
        self.tell(kind, **fields)
        return self.hear()

    def ping(self) -> None:
        """Wait until everything that was said has been read."""
        assert self.ask("PING") == {"type": "PONG"}

    def refused(self, kind: str, **fields: Any) -> str:
        """Say something wrong and return the code of the error."""
        answer = self.ask(kind, **fields)
        assert answer["type"] == "ERROR", answer
        assert answer["message"]
        return str(answer["code"])

    def bring(self, *episodes: dict[str, Any], **fields: Any) -> None:
        """Bring episodes, and wait until they are read."""
        self.tell("EPISODES", episodes=list(episodes), **fields)
        if self.door is HTTP:
            assert self.hear() == {"type": "OK"}
        else:
            self.ping()

    def greet(self, **fields: Any) -> Any:
        """Ask for the extension."""
        answer = self.ask("GET_CONFIG", extensions=["menv-1"], **fields)
        assert answer["type"] == "SET_CONFIG", answer
        return answer


class Turns:
    """The messages of one interactive episode, numbered one after the other; `voice` says them."""

    def __init__(self, voice: Voice, episode_id: str, training_enabled: bool = True) -> None:
        self.voice = voice
        self.name = episode_id
        self._numbers = itertools.count()
        self._last: tuple[str, dict[str, Any]] = ("", {})
        started = self.say("START_EPISODE", training_enabled=training_enabled)
        assert started == {"type": "EPISODE", "episode_id": episode_id, "seq": 0}, started

    def say(self, kind: str, **fields: Any) -> Any:
        """Say the next message and return its answer."""
        self._last = kind, {"episode_id": self.name, "seq": next(self._numbers), **fields}
        return self.again()

    def tell(self, kind: str, **fields: Any) -> None:
        """Say the next message and do not wait."""
        self._last = kind, {"episode_id": self.name, "seq": next(self._numbers), **fields}
        self.tell_again()

    def at(self, seq: int, kind: str, **fields: Any) -> Any:
        """Say a message with a number of its own."""
        return self.voice.ask(kind, episode_id=self.name, seq=seq, **fields)

    def tell_again(self) -> None:
        """Say the last message again and do not wait."""
        self.voice.tell(self._last[0], **self._last[1])

    def again(self) -> Any:
        """Say the last message again and return its answer."""
        return self.voice.ask(self._last[0], **self._last[1])

    def act(self, obs: Any) -> Any:
        """Ask for an action."""
        answer = self.say("GET_ACTION", observation=obs)
        assert answer["type"] == "ACTION", answer
        return answer["action"]

    def pay(self, reward: Any, **fields: Any) -> Any:
        answer = self.say("LOG_RETURNS", reward=reward, **fields)
        assert answer["type"] == "OK", answer
        return answer

    def end(self, obs: Any, **fields: Any) -> None:
        answer = self.say("END_EPISODE", observation=obs, **fields)
        assert answer["type"] == "OK", answer


def onnx_bytes(onnx_file: str) -> bytes:
    """Return the graph in SET_STATE's `onnx_file`."""
    return gzip.decompress(base64.b64decode(onnx_file, validate=True))


def episode(obs: list[Any], actions: list[Any], rewards: list[float], end: str = "", **more: Any) -> Any:
    """Return an episode or a chunk of one; `end` is "terminated", "truncated" or ""."""
    return {
        "obs": obs, "actions": actions, "rewards": rewards,
        "is_terminated": end == "terminated", "is_truncated": end == "truncated", **more,
    }  # fmt: skip


_OF_ACTIONS = ("actions", "rewards", "action_logp", "action_dist_inputs", "state_in")


def parts(sent: Any, *cuts: int) -> list[Any]:
    """Return an episode in chunks; each begins with the observation that the one before ended with."""
    edges = [0, *cuts, len(sent["actions"])]
    return [
        {
            **{name: sent[name][begin:end] for name in _OF_ACTIONS if name in sent},
            "obs": sent["obs"][begin : end + 1],
            "is_terminated": sent["is_terminated"] and end == edges[-1],
            "is_truncated": sent["is_truncated"] and end == edges[-1],
            **({"id": sent["id"], "t": begin} if "id" in sent else {}),
        }
        for begin, end in itertools.pairwise(edges)
    ]
