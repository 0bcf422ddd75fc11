"""The process that parses large bodies for a server, whose event loop they would block.

    python -m menv.serving.body_parser

`menv.serving.body_parser_pool` starts it and talks to it over its standard input and output; it ends when its input
does. It parses and checks messages with the code that the server uses for short ones, and returns them in a form that
is fast to read. The frames on both pipes are a kind, a length, and that many bytes.
"""

from __future__ import annotations

import contextlib
import enum
import signal
import struct
import sys
from pathlib import Path
from typing import IO, Any, BinaryIO

import msgspec
from msgspec import Raw

from menv.base_env import SINGLE_AGENT
from menv.env_context import InputContext
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat, explained, fields, to_raw
from menv.serving.episode_messages import read_episode, write_flat
from menv.serving.limits import Limits
from menv.serving.protocol import (
    EndEpisode,
    EpisodeMessage,
    Episodes,
    LogAction,
    LogReturns,
    Message,
    Request,
    decode,
    encode,
)
from menv.serving.step_columns import StepColumns, agent_spaces, context_from_json
from menv.serving.value_readers import reward

_HEAD = struct.Struct(">BQ")


class PipeFrameKind(enum.IntEnum):
    """The content of a frame.

    Attributes:
        SETUP: First frame to the process: spaces and limits, as JSON.
        READY: Its answer: empty.
        BODY: To the process: a body as received.
        MESSAGE: Its answer: the message in msgpack, with packed arrays.
        EPISODES: Its answer to a message with episodes: the message without them, and each as `write_flat` returns it.
        REFUSAL: Its answer to an invalid body: code, text and sequence number of a `BadMessageError`, in msgpack.
    """

    SETUP = 1
    READY = 2
    BODY = 3
    MESSAGE = 4
    EPISODES = 5
    REFUSAL = 6


def write_frame(file: IO[bytes], kind: PipeFrameKind, data: bytes) -> None:
    """Write one frame, waiting until it is written."""
    file.write(_HEAD.pack(kind, len(data)))
    file.write(data)
    file.flush()


def read_frame(file: IO[bytes]) -> tuple[PipeFrameKind, bytes] | None:
    """Wait for the next frame; None if the other end is closed."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    kind, size = _HEAD.unpack(head)
    data = file.read(size)
    return None if len(data) < size else (PipeFrameKind(kind), data)


_NOTHING = Raw(b"\xc0")


class BodyParser:
    """Parses bodies."""

    def __init__(self, ioctx: InputContext, limits: Limits) -> None:
        self._limits = limits
        self._multi_agent = ioctx.multi_agent
        self._values = StepColumns(ioctx, limits.max_agents)
        self._spaces_of = agent_spaces(ioctx)

    def parse(self, body: bytes) -> tuple[PipeFrameKind, bytes]:
        """Return the answer to a body."""
        try:
            return self._read(body)
        except BadMessageError as error:
            refusal = error
        except MemoryError:
            refusal = BadMessageError(
                ErrorCode.TOO_LARGE,
                "message: reading it takes more memory than there is for one; send less at once",
            )
        return PipeFrameKind.REFUSAL, msgspec.msgpack.encode((str(refusal.code), refusal.text, refusal.seq))

    def _read(self, body: bytes) -> tuple[PipeFrameKind, bytes]:
        request, wire_format = decode(body, self._limits.max_depth)
        if isinstance(request, Episodes):
            return PipeFrameKind.EPISODES, self._episodes(request, wire_format)
        try:
            rest, message = self._message(request, wire_format)
        except BadMessageError as error:
            error.seq = getattr(request, "seq", None)
            raise
        if rest > self._limits.inline_body:
            raise BadMessageError(
                ErrorCode.TOO_LARGE,
                f"{_tag(request)}: {rest} bytes beside observations and actions, expected at most "
                f"{self._limits.inline_body} (Limits.inline_body); send less",
                getattr(request, "seq", None),
            )
        return PipeFrameKind.MESSAGE, message

    def _episodes(self, request: Episodes, wire_format: WireFormat) -> bytes:
        name = _tag(request)
        flat = [
            write_flat(read_episode(raw, self._spaces_of, wire_format, f"{name}.episodes[{index}]"))
            for index, raw in enumerate(request.episodes)
        ]
        head = encode(msgspec.structs.replace(request, episodes=[]), WireFormat.MSGPACK)
        return msgspec.msgpack.encode((head, flat))

    def _message(self, request: Request, wire_format: WireFormat) -> tuple[int, bytes]:
        """Return a message in msgpack, and the size of everything in it that no space bounds."""
        large: dict[str, Raw] = {}
        if isinstance(request, EpisodeMessage):
            large, small = self._parse_step(request, wire_format)
            request = msgspec.structs.replace(request, **small)
        rest = msgspec.structs.replace(request, **dict.fromkeys(large, _NOTHING))
        size = len(encode(rest, WireFormat.MSGPACK))
        return size, encode(msgspec.structs.replace(request, **large), WireFormat.MSGPACK)

    def _parse_step(
        self, request: EpisodeMessage, wire_format: WireFormat
    ) -> tuple[dict[str, Raw], dict[str, Raw]]:
        """Return the fields of a message within an episode: bounded by spaces, and unbounded."""
        large, small = {}, {}
        if len(memoryview(request.info)):
            small["info"] = _in_msgpack(request.info, wire_format, "info")
        if len(memoryview(request.reward)):
            small["reward"] = to_raw(reward(request.reward, wire_format), WireFormat.MSGPACK)
        if not isinstance(request, LogReturns):
            raw = request.observation  # type: ignore[attr-defined]
            # The server knows which agents have ended, and checks masks again.
            obs = self._values.observations(
                raw, wire_format, _tag(request), final=self._multi_agent or isinstance(request, EndEpisode)
            )
            large["observation"] = self._packed(obs)
            if isinstance(request, LogAction):
                acted = fields(request.action, wire_format, "LOG_ACTION.action") if self._multi_agent else obs
                actions = self._values.actions(request.action, obs, wire_format, obs.keys() - acted.keys())
                large["action"] = self._packed(actions)
        return large, small

    def _packed(self, by_agent: dict[Any, Any]) -> Raw:
        return to_raw(by_agent if self._multi_agent else by_agent[SINGLE_AGENT], WireFormat.MSGPACK)


def _in_msgpack(raw: Raw, wire_format: WireFormat, where: str) -> Raw:
    """Convert any value to msgpack."""
    if wire_format is WireFormat.MSGPACK:
        return raw
    try:
        return Raw(msgspec.msgpack.encode(msgspec.json.decode(raw)))
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise explained(error, where) from None


def _tag(request: Message) -> str:
    return str(request.__struct_config__.tag)


def bound_memory(most_bytes: int) -> None:
    """Make allocations fail beyond the current memory and `most_bytes`, where the system supports that."""
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
    """Parse one body after the other until the input ends."""
    setup = read_frame(source)
    if setup is None:
        return
    settings = msgspec.json.decode(setup[1])
    limits = Limits(**settings["limits"])
    parser = BodyParser(context_from_json(settings["context"]), limits)
    bound_memory(settings["memory"])
    write_frame(sink, PipeFrameKind.READY, b"")
    while (frame := read_frame(source)) is not None:
        write_frame(sink, *parser.parse(frame[1]))


def main() -> None:
    """Run as a process."""
    # Ctrl-C is meant for the server, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
