"""What a server remembers of one client: its episodes, what of them it has taken, and what it answered last.

It outlives a connection where the client asked for that. Sessions read and write it, in the server's loop.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from menv.backlog import Backlog
from menv.serving.answerer import Answerer
from menv.serving.carriers.limits import Limits
from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.messages import Answer, StartEpisode, Turn

_KEPT_FINISHED, _FORGOTTEN_AT_ONCE = 1_000, 64
_CLIENTS = 4
"""How many clients may have as much waiting as each of them may."""


@dataclass(slots=True)
class Link:
    """An episode whose actions are asked for one by one.

    Attributes:
        board_id: Its id on the switchboard.
        seq: Number of the last message that was taken, -1 before the first.
        answer: What the last one was answered, None while it waits.
        said: Of which type the last one was that did not ask for an action.
        waiting: Where to answer it; several places if it came again meanwhile.
        number: Which of all it is; those that began later have greater ones.
    """

    board_id: str
    seq: int = -1
    answer: Answer | None = None
    said: type[StartEpisode | Turn] = StartEpisode
    waiting: list[Answerer] = field(default_factory=list)
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(slots=True)
class Chunks:
    """An episode that the client plays by itself.

    Attributes:
        board_id: Its id on the switchboard.
        t: Steps that have been taken, by agent.
        ends: After how many steps the latest end of an agent was that has been taken.
        last_obs: The observation that the next chunk begins with, of an episode without an id.
        over: Whether its last chunk has been taken.
        policies: Who answers for which agent, where the client has asked.
    """

    board_id: str
    t: dict[str | None, int] = field(default_factory=dict)
    ends: dict[str | None, int] = field(default_factory=dict)
    last_obs: Any = None
    over: bool = False
    policies: dict[str, str] = field(default_factory=dict)


class ClientState:
    """One client.

    Args:
        backlog: What of its episodes waits for the sampler.

    Attributes:
        backlog: What of its episodes waits for the sampler.
        token: What it shows to go on after a lost connection.
        name: For reports.
        extended: Whether it asked for more than RLlink.
        links: Its open episodes, by its own ids.
        finished: Those that ended lately.
        chunks: Episodes that it plays by itself, by its own ids; the finished ones lately.
        chunks_over: How many of `chunks` are finished; counting them for every episode would take too long.
        loose: Those of them that have no id and go on.
        weights_seq_no: The weights that it was sent last.
        only: The policy that it acts with where it does not ask who does, because there was one when it greeted.
        connected: How many connections it has.
        lost_at: When it lost the last one.
    """

    def __init__(self, backlog: Backlog) -> None:
        self.backlog = backlog
        self.token = secrets.token_hex(16)
        self.name = ""
        self.extended = False
        self.links: dict[str, Link] = {}
        self.finished: OrderedDict[str, Link] = OrderedDict()
        self.chunks: OrderedDict[str, Chunks] = OrderedDict()
        self.chunks_over = 0
        self.loose: list[Chunks] = []
        self.weights_seq_no: int | None = None
        self.only: str | None = None
        self.connected = 0
        self.lost_at = 0.0

    @property
    def open_episodes(self) -> int:
        """How many episodes are open."""
        return len(self.links) + len(self.loose) + len(self.chunks) - self.chunks_over

    def check_room(self, limits: Limits, everywhere: int, where: str) -> None:
        """Refuse one more episode where too many are open, of this client or everywhere.

        Raises:
            BadMessageError: They are.
        """
        counts = {"max_episodes": self.open_episodes, "max_open_episodes": everywhere}
        for name, count in counts.items():
            most = getattr(limits, name)
            if count >= most:
                whose = "" if name == "max_episodes" else " of all clients"
                raise BadMessageError(
                    Code.TOO_MANY,
                    f"{where}: {count} episodes{whose} are open, expected fewer than {most} (Limits.{name}); end some "
                    "first",
                )

    def check_backlog(self, size: int, limits: Limits, where: str) -> None:
        """Refuse to take more where too much waits.

        Raises:
            BadMessageError: It does.
        """
        backlog, total = self.backlog, self.backlog.total
        if backlog.waiting + size > limits.max_waiting or (
            total is not None and total.waiting + size > _CLIENTS * limits.max_waiting
        ):
            raise BadMessageError(
                Code.TOO_MANY,
                f"{where}: {self.backlog.waiting} bytes of this client wait to be sampled, expected at most "
                f"{limits.max_waiting} (Limits.max_waiting); ask for new weights and wait for these before you go on",
            )

    def finish(self, episode_id: str) -> None:
        """Keep an episode that ended for a while, so that its last message is recognised when it comes again."""
        self.finished[episode_id] = self.links.pop(episode_id)
        while len(self.finished) > _KEPT_FINISHED:
            self.finished.popitem(last=False)

    def forget_chunks(self) -> None:
        """Forget the oldest finished episodes that it played by itself, many at once: looking for them takes long."""
        if self.chunks_over <= _KEPT_FINISHED + _FORGOTTEN_AT_ONCE:
            return
        over = [name for name, one in self.chunks.items() if one.over]
        for name in over[:-_KEPT_FINISHED]:
            del self.chunks[name]
            self.chunks_over -= 1

    def clear(self) -> None:
        """Forget all episodes."""
        for kept in (self.links, self.finished, self.chunks, self.loose):
            kept.clear()

    def board_ids(self) -> list[str]:
        """Return the switchboard's ids of all open episodes."""
        chunks = [one.board_id for one in self.chunks.values() if not one.over]
        return [
            *(one.board_id for one in self.links.values()),
            *chunks,
            *(one.board_id for one in self.loose),
        ]

    def standing(self) -> dict[str, Any]:
        """Return where each open episode stands, for a client that returns."""
        played = {
            name: {
                "t": one.t.get(None, 0),
                "agents": {agent: t for agent, t in one.t.items() if agent is not None},
            }
            for name, one in self.chunks.items()
            if not one.over
        }
        return {**{name: {"seq": link.seq} for name, link in self.links.items()}, **played}
