"""What a server remembers of one client: its episodes, how many of their steps it has taken, and its last answers.

A client's state outlives its connection if the client asked for that. Sessions use it in the server's event loop.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from menv.adapters.episode_channel import ByteBudget
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat
from menv.serving.limits import Limits
from menv.serving.protocol import Answer, EpisodeMessage, Ok, StartEpisode, encoder, error_reply
from menv.serving.transports.transport import Reply


class Responder:
    """Answers one request, in the wire format of the request.

    Attributes:
        always: Whether the transport needs a reply to every body, as HTTP does.
        body: Encodes an answer; in `reply_format` if the request was converted from another format.
    """

    __slots__ = ("always", "body", "close", "reply", "wire_format")

    def __init__(
        self,
        reply: Reply,
        wire_format: WireFormat,
        close: Callable[[], None],
        always: bool = False,
        reply_format: WireFormat | None = None,
    ) -> None:
        self.reply = reply
        self.body: Callable[[Answer], bytes] = encoder(reply_format or wire_format)
        self.wire_format = wire_format
        self.close = close
        self.always = always

    def send(self, message: Answer) -> None:
        self.reply(self.body(message))

    def refuse(self, error: BadMessageError, seq: int | None = None) -> None:
        self.send(error_reply(error, seq))

    def nothing(self) -> None:
        """Answer a request that has no answer, if the transport needs one."""
        if self.always:
            self.send(Ok())


_KEPT_FINISHED, _FORGOTTEN_AT_ONCE = 1_000, 64
_CLIENTS = 4
"""All clients together may have this many times `Limits.max_waiting` waiting."""


@dataclass(slots=True)
class OpenEpisode:
    """An episode whose actions the client requests one by one.

    Attributes:
        broker_id: Its id at the broker.
        seq: Number of the last message, -1 before the first.
        answer: The answer to the last message, None while it waits.
        last_type: Type of the last message that was no GET_ACTION.
        waiting: Responders of the unanswered request; several if it was repeated.
        number: Grows with every episode of the server.
    """

    broker_id: str
    seq: int = -1
    answer: Answer | None = None
    last_type: type[StartEpisode | EpisodeMessage] = StartEpisode
    waiting: list[Responder] = field(default_factory=list)
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(slots=True)
class ChunkProgress:
    """An episode whose actions the client chooses itself and sends in trajectory chunks.

    Attributes:
        broker_id: Its id at the broker.
        t: Steps taken so far, by agent.
        ends: Steps taken at the latest end of each agent.
        last_obs: The observation with which the next chunk begins, if the episode has no id.
        over: Whether its last chunk was taken.
        policies: The policy of each agent, if the client has asked.
    """

    broker_id: str
    t: dict[str | None, int] = field(default_factory=dict)
    ends: dict[str | None, int] = field(default_factory=dict)
    last_obs: Any = None
    over: bool = False
    policies: dict[str, str] = field(default_factory=dict)


class ClientState:
    """One client.

    Attributes:
        backlog: Bytes of its episodes that wait for the sampler.
        token: Identifies the client when it reconnects.
        name: For reports.
        extended: Whether it requested the extension.
        episodes: Its open episodes, by its own ids.
        finished: Episodes that ended lately.
        chunks: Episodes that it sends in chunks, by its own ids, including those that ended lately.
        num_chunks_ended: Number of ended episodes in `chunks`; counting them for each episode is too slow.
        unnamed: Open episodes in chunks that have no id.
        weights_seq_no: The weights that it received last.
        only_policy: The only policy when it connected, with which it acts without asking.
        connected: Number of its connections.
        lost_at: Time when it lost the last one.
    """

    def __init__(self, backlog: ByteBudget) -> None:
        self.backlog = backlog
        self.token = secrets.token_hex(16)
        self.name = ""
        self.extended = False
        self.episodes: dict[str, OpenEpisode] = {}
        self.finished: OrderedDict[str, OpenEpisode] = OrderedDict()
        self.chunks: OrderedDict[str, ChunkProgress] = OrderedDict()
        self.num_chunks_ended = 0
        self.unnamed: list[ChunkProgress] = []
        self.weights_seq_no: int | None = None
        self.only_policy: str | None = None
        self.connected = 0
        self.lost_at = 0.0

    @property
    def num_open(self) -> int:
        """Number of open episodes."""
        return len(self.episodes) + len(self.unnamed) + len(self.chunks) - self.num_chunks_ended

    def check_room(self, limits: Limits, everywhere: int, where: str) -> None:
        """Raise `BadMessageError` if this client, or all clients together, have too many open episodes."""
        counts = {"max_episodes": self.num_open, "max_open_episodes": everywhere}
        for name, count in counts.items():
            most = getattr(limits, name)
            if count >= most:
                whose = "" if name == "max_episodes" else " of all clients"
                raise BadMessageError(
                    ErrorCode.TOO_MANY,
                    f"{where}: {count} episodes{whose} are open, expected fewer than {most} (Limits.{name}); end some "
                    "first",
                )

    def check_backlog(self, size: int, limits: Limits, where: str) -> None:
        """Raise `BadMessageError` if too many bytes wait for the sampler."""
        backlog, total = self.backlog, self.backlog.total
        if backlog.waiting + size > limits.max_waiting or (
            total is not None and total.waiting + size > _CLIENTS * limits.max_waiting
        ):
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {self.backlog.waiting} bytes of this client wait to be sampled, expected at most "
                f"{limits.max_waiting} (Limits.max_waiting); ask for new weights and wait for these before you go on",
            )

    def finish(self, episode_id: str) -> None:
        """Remember an ended episode for a while, to recognise its last message if it is repeated."""
        self.finished[episode_id] = self.episodes.pop(episode_id)
        while len(self.finished) > _KEPT_FINISHED:
            self.finished.popitem(last=False)

    def forget_chunks(self) -> None:
        """Forget the oldest ended episodes, many at once because searching for them is slow."""
        if self.num_chunks_ended <= _KEPT_FINISHED + _FORGOTTEN_AT_ONCE:
            return
        over = [name for name, one in self.chunks.items() if one.over]
        for name in over[:-_KEPT_FINISHED]:
            del self.chunks[name]
            self.num_chunks_ended -= 1

    def clear(self) -> None:
        for kept in (self.episodes, self.finished, self.chunks, self.unnamed):
            kept.clear()

    def broker_ids(self) -> list[str]:
        """Return the broker's ids of all open episodes."""
        chunks = [one.broker_id for one in self.chunks.values() if not one.over]
        return [
            *(one.broker_id for one in self.episodes.values()),
            *chunks,
            *(one.broker_id for one in self.unnamed),
        ]

    def resume_points(self) -> dict[str, Any]:
        """Return the position of each open episode, for a client that reconnects."""
        played = {
            name: {
                "t": one.t.get(None, 0),
                "agents": {agent: t for agent, t in one.t.items() if agent is not None},
            }
            for name, one in self.chunks.items()
            if not one.over
        }
        return {**{name: {"seq": episode.seq} for name, episode in self.episodes.items()}, **played}
