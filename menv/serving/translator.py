"""The translator: the process that reads large bodies for a server, whose thread must not be held up by them.

    python -m menv.serving.translator

`menv.serving.translation` starts it and talks to it over its standard input and output; it ends when its input does.
It reads and checks messages with the code that the server uses for small ones, and hands them on in a form that is
read in no time. It knows no connections and no episodes that go on.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Raw

from menv.base_env import SINGLE_AGENT
from menv.input_context import InputContext
from menv.serving.agent_spaces import AgentSpaces, context_from_json
from menv.serving.carriers.limits import Limits
from menv.serving.pipe_frames import Kind, read_frame, write_frame
from menv.serving.turn_values import TurnValues
from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.columns import reward
from menv.serving.wire.dialect import Dialect, explained, fields
from menv.serving.wire.episodes import read_episode
from menv.serving.wire.flat_episodes import Translated, write_flat
from menv.serving.wire.messages import (
    EndEpisode,
    Episodes,
    LogAction,
    LogReturns,
    Message,
    Request,
    Turn,
    decode,
    encode,
)
from menv.serving.wire.packed import to_raw

_NOTHING = Raw(b"\xc0")


class Translator:
    """Reads bodies.

    Args:
        ioctx: What clients play.
        limits: Of each client.
    """

    def __init__(self, ioctx: InputContext, limits: Limits) -> None:
        self._limits = limits
        self._multi_agent = ioctx.multi_agent
        self._values = TurnValues(ioctx, limits.max_agents)
        self._spaces_of = AgentSpaces(ioctx).of

    def translated(self, body: bytes) -> tuple[Kind, bytes]:
        """Return the answer to a body."""
        try:
            return self._read(body)
        except BadMessageError as error:
            refusal = error
        except MemoryError:
            refusal = BadMessageError(
                Code.TOO_LARGE,
                "message: reading it takes more memory than there is for one; send less at once",
            )
        return Kind.REFUSAL, msgspec.msgpack.encode((str(refusal.code), refusal.text, refusal.seq))

    def _read(self, body: bytes) -> tuple[Kind, bytes]:
        """Return a message as it goes on.

        Raises:
            BadMessageError: It cannot be taken.
        """
        request, dialect = decode(body, self._limits.max_depth)
        if isinstance(request, Episodes):
            return Kind.EPISODES, self._episodes(request, dialect)
        try:
            rest, message = self._message(request, dialect)
        except BadMessageError as error:
            error.seq = getattr(request, "seq", None)
            raise
        if rest > self._limits.inline_body:
            raise BadMessageError(
                Code.TOO_LARGE,
                f"{_tag(request)}: {rest} bytes beside observations and actions, expected at most "
                f"{self._limits.inline_body} (Limits.inline_body); send less",
                getattr(request, "seq", None),
            )
        return Kind.MESSAGE, message

    def _episodes(self, request: Episodes, dialect: Dialect) -> bytes:
        name = _tag(request)
        flat = [
            write_flat(read_episode(raw, self._spaces_of, dialect, f"{name}.episodes[{index}]"))
            for index, raw in enumerate(request.episodes)
        ]
        head = encode(msgspec.structs.replace(request, episodes=[]), Dialect.MSGPACK)
        return msgspec.msgpack.encode(Translated(head, flat))

    def _message(self, request: Request, dialect: Dialect) -> tuple[int, bytes]:
        """Return the size of what no space bounds, and any other message."""
        large: dict[str, Raw] = {}
        if isinstance(request, Turn):
            large, small = self._turn(request, dialect)
            request = msgspec.structs.replace(request, **small)
        rest = msgspec.structs.replace(request, **dict.fromkeys(large, _NOTHING))
        size = len(encode(rest, Dialect.MSGPACK))
        return size, encode(msgspec.structs.replace(request, **large), Dialect.MSGPACK)

    def _turn(self, request: Turn, dialect: Dialect) -> tuple[dict[str, Raw], dict[str, Raw]]:
        """Return the values of a message within an episode by field: those that spaces bound, and the others."""
        large, small = {}, {}
        if len(memoryview(request.info)):
            small["info"] = _in_msgpack(request.info, dialect, "info")
        if len(memoryview(request.reward)):
            small["reward"] = to_raw(reward(request.reward, dialect), Dialect.MSGPACK)
        if not isinstance(request, LogReturns):
            raw = request.observation  # type: ignore[attr-defined]
            # Who has ended is known where the message is taken, and masks are looked at once more there.
            obs = self._values.observations(
                raw, dialect, _tag(request), final=self._multi_agent or isinstance(request, EndEpisode)
            )
            large["observation"] = self._packed(obs)
            if isinstance(request, LogAction):
                acted = fields(request.action, dialect, "LOG_ACTION.action") if self._multi_agent else obs
                actions = self._values.actions(request.action, obs, dialect, obs.keys() - acted.keys())
                large["action"] = self._packed(actions)
        return large, small

    def _packed(self, by_agent: dict[Any, Any]) -> Raw:
        return to_raw(by_agent if self._multi_agent else by_agent[SINGLE_AGENT], Dialect.MSGPACK)


def _in_msgpack(raw: Raw, dialect: Dialect, where: str) -> Raw:
    """Return a value of any kind in msgpack.

    Raises:
        BadMessageError: It holds a number that msgpack has no form for.
    """
    if dialect is Dialect.MSGPACK:
        return raw
    try:
        return Raw(msgspec.msgpack.encode(msgspec.json.decode(raw)))
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise explained(error, where) from None


def _tag(request: Message) -> str:
    return str(request.__struct_config__.tag)


def bound_memory(most_bytes: int) -> None:
    """Have allocations fail beyond what there is now and so many bytes, where the system can do that."""
    try:
        import resource
    except ImportError:
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + most_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Translate one body after the other until there are no more."""
    setup = read_frame(source)
    if setup is None:
        return
    settings = msgspec.json.decode(setup[1])
    limits = Limits(**settings["limits"])
    translator = Translator(context_from_json(settings["context"]), limits)
    bound_memory(settings["memory"])
    write_frame(sink, Kind.READY, b"")
    while (frame := read_frame(source)) is not None:
        write_frame(sink, *translator.translated(frame[1]))


def main() -> None:
    """Run as a process."""
    # Whoever interrupts a program means the server, which ends its translator.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
