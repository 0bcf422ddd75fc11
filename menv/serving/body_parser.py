"""`BodyParserPool`: another process parses large bodies, which would block the server's event loop.

The process parses and checks messages with the code that the server uses for short ones, and returns them in a form
that is fast to read. It starts for the first large body, and again after it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from menv.base_env import SINGLE_AGENT
from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serving.episodes import WireEpisode, in_pieces, read_episode
from menv.serving.limits import Limits
from menv.serving.protocol import (
    BadMessageError,
    EndEpisode,
    EpisodeMessage,
    Episodes,
    ErrorCode,
    LogAction,
    LogReturns,
    Message,
    Request,
    WireFormat,
    decode,
    encode,
    explained,
    fields,
    to_raw,
)
from menv.serving.value_readers import StepColumns, agent_spaces, plain_context, reward

_log = logging.getLogger("menv.serving")

MEMORY_FACTOR = 64
"""Bytes of memory per byte of the longest body; small integers in JSON need sixteen."""
_MEMORY_BASE = 128_000_000
_START_S = 60.0
_MAX_TRIES = 2
_NO_ANSWER = "message: the process that reads it has ended, expected an answer; send less at once"
_NOTHING = Raw(b"\xc0")


Parsed: TypeAlias = tuple[Request, *tuple[list[WireEpisode], ...]]
"""What the process returns: a message whose fields are in msgpack, with packed arrays, and its episodes if any."""


class BodyParser:
    """Parses bodies, in the process."""

    def __init__(self, ioctx: InputContext, limits: Limits) -> None:
        self._limits = limits
        self._multi_agent = ioctx.multi_agent
        self._values = StepColumns(ioctx, limits.max_agents)
        self._spaces_of = agent_spaces(ioctx)

    def parse(self, body: bytes) -> Parsed:
        """Return what a body holds, or raise `BadMessageError`."""
        try:
            return self._read(body)
        except MemoryError:
            raise BadMessageError(
                ErrorCode.TOO_LARGE,
                "message: reading it takes more memory than there is for one; send less at once",
            ) from None

    def _read(self, body: bytes) -> Parsed:
        request, wire_format = decode(body, self._limits.max_depth)
        if isinstance(request, Episodes):
            return self._episodes(request, wire_format)
        large: dict[str, Raw] = {}
        try:
            if isinstance(request, EpisodeMessage):
                large, small = self._parse_step(request, wire_format)
                request = msgspec.structs.replace(request, **small)
            bounded = msgspec.structs.replace(request, **dict.fromkeys(large, _NOTHING))
            rest = len(encode(bounded, WireFormat.MSGPACK))
            if rest > self._limits.inline_body:
                raise BadMessageError(
                    ErrorCode.TOO_LARGE,
                    f"{_tag(request)}: {rest} bytes next to observations and actions, expected at most "
                    f"{self._limits.inline_body} (Limits.inline_body); send less",
                )
        except BadMessageError as error:
            error.seq = getattr(request, "seq", None)
            raise
        return (msgspec.structs.replace(request, **large),)

    def _episodes(self, request: Episodes, wire_format: WireFormat) -> Parsed:
        name = _tag(request)
        episodes = [
            in_pieces(read_episode(raw, self._spaces_of, wire_format, f"{name}.episodes[{index}]"))
            for index, raw in enumerate(request.episodes)
        ]
        return msgspec.structs.replace(request, episodes=[]), episodes

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


_parser: BodyParser
"""The parser of this process, if it is one that `BodyParserPool` has started."""


def _begin(ioctx: InputContext, limits: Limits, memory: int) -> None:
    """Prepare this process; its first task."""
    global _parser
    # Peers do not fill the server's terminal with errors of this process.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # Ctrl-C is meant for the server, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_server, daemon=True).start()
    _parser = BodyParser(ioctx, limits)
    bound_memory(memory)


def _end_with_server() -> None:
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        os._exit(0)


def _parse(body: bytes) -> Parsed:
    return _parser.parse(body)


class BodyParserPool:
    """The process, and the bodies that wait for it. Everything but `stop` is called in the server's event loop.

    Attributes:
        usable: False if a space cannot be written as JSON, or no process can be started.
        longest_inline: Shorter bodies are always parsed in the event loop.
        parsed: Number of bodies parsed so far.
    """

    def __init__(self, ioctx: InputContext, limits: Limits) -> None:
        self.parsed = 0
        self.longest_inline = limits.inline_body
        self._limits = limits
        self._context: InputContext | None = None
        with contextlib.suppress(ConfigError):
            self._context = plain_context(ioctx)
        frozen = getattr(sys, "frozen", False)
        self.usable = self._context is not None and bool(sys.executable) and not frozen
        self._was_ready = False
        self._waiting = 0
        self._executor: ProcessPoolExecutor | None = None
        self._process: BaseProcess | None = None
        # One body at a time: a body that ends the process costs no other one a try.
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process; None if there is none."""
        return self._process.pid if self._process is not None else None

    def takes(self, body: bytes) -> bool:
        """Return whether a body has to be parsed by the process."""
        return len(body) > self._limits.inline_body and self.usable

    async def parse(
        self, body: bytes, max_depth: int
    ) -> tuple[Request, WireFormat, *tuple[list[WireEpisode], ...]]:
        """Return the request in a body, its wire format, and its episodes if the process has read them.

        Raises `BadMessageError` if the body is refused or too many bytes wait. Without a process it is decoded here.
        """
        if self._waiting + len(body) > self._limits.max_large:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"message: {self._waiting} bytes of large messages wait to be read, expected at most "
                f"{self._limits.max_large} (Limits.max_large); send it again later, or in smaller parts",
            )
        self._waiting += len(body)
        try:
            parsed = await self._in_turn(body)
        finally:
            self._waiting -= len(body)
        if parsed is None:
            return decode(body, max_depth)
        request, *episodes = parsed
        return request, WireFormat.MSGPACK, *episodes

    def stop(self) -> None:
        """End the process; from any thread but the serving one, and more than once."""
        self._kill()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    async def _in_turn(self, body: bytes) -> Parsed | None:
        async with self._turn:
            parsed = asyncio.ensure_future(self._parsed(body))
            try:
                return await asyncio.shield(parsed)
            except asyncio.CancelledError:
                # The process still parses the body, and would not begin the next one in time.
                await asyncio.wait([parsed])
                raise

    async def _parsed(self, body: bytes) -> Parsed | None:
        """Have a body parsed, by a second process if the first one ends; None if no process can be started."""
        for tries in range(_MAX_TRIES):
            executor = await self._ready()
            if executor is None:
                # A body that ended a process is not parsed in the event loop.
                if tries:
                    break
                return None
            try:
                parsed: Parsed = await asyncio.wait_for(
                    _submit(executor, _parse, body), self._limits.handshake_s
                )
            except TimeoutError:
                self._discard("was too slow")
                raise BadMessageError(
                    ErrorCode.TOO_SLOW,
                    f"message: not read after {self._limits.handshake_s:g} s; see Limits.handshake_s",
                ) from None
            except BrokenProcessPool:
                self._discard("ended")
                continue
            except BadMessageError:
                self.parsed += 1
                raise
            self.parsed += 1
            return parsed
        raise BadMessageError(ErrorCode.INTERNAL, _NO_ANSWER)

    async def _ready(self) -> ProcessPoolExecutor | None:
        """Return the executor of a process that runs; None if no process can be started."""
        if self._executor is None:
            try:
                self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
                with _without_main():
                    # An initializer's arguments would block the loop until the process has read them.
                    memory = _MEMORY_BASE + MEMORY_FACTOR * self._limits.max_body
                    started = _submit(self._executor, _begin, self._context, self._limits, memory)
                (self._process,) = self._executor._processes.values()
                await asyncio.wait_for(started, _START_S)
                self._was_ready = True
            except Exception:
                self._discard("could not start")
                # If no process ever started, this program cannot start any.
                self.usable = self._was_ready
        return self._executor

    def _discard(self, why: str) -> None:
        _log.info("the process that parses large messages %s, and is started again", why)
        self._kill()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # Sends nothing to a process that has ended, whose pid may be another's.
            process.kill()


def _submit(executor: ProcessPoolExecutor, do: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    made: Future[Any] = executor.submit(do, *arguments)
    return asyncio.wrap_future(made)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start no process that imports the program's main module, which may be large or have no `__name__` guard."""
    main = sys.modules["__main__"]
    known: dict[str, Any] = {
        name: vars(main)[name] for name in ("__spec__", "__file__") if name in vars(main)
    }
    vars(main).update(dict.fromkeys(known))
    try:
        yield
    finally:
        vars(main).update(known)
