"""What a server remembers of one client: its episodes, what of them it has taken, and what it answered last.

It outlives a connection where the client asked for that. Sessions read and write it, in the server's loop.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from menv.adapters.episode_channel import ByteBudget
from menv.policy import Policy
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat
from menv.serving.protocol import Answer, Ok, StartEpisode, Turn, encoder, error_reply
from menv.serving.transports.transport import Limits, Reply

# SEAM menv.serving.answerer
# Answerer: the way back for one request, in the dialect that it came in.


class Responder:
    """Answers one request.

    Args:
        reply: Takes the body.
        dialect: Of the request.
        close: Ends the connection after what was replied.
        always: Whether the transport needs a reply to every body.
        answers_in: The dialect of answers, where the request was translated from it.

    Attributes:
        reply: As given; so are `dialect`, `close` and `always`.
        body: Returns an answer as `reply` takes it.
    """

    __slots__ = ("always", "body", "close", "dialect", "reply")

    def __init__(
        self,
        reply: Reply,
        dialect: WireFormat,
        close: Callable[[], None],
        always: bool = False,
        answers_in: WireFormat | None = None,
    ) -> None:
        self.reply = reply
        self.body: Callable[[Answer], bytes] = encoder(answers_in or dialect)
        self.dialect = dialect
        self.close = close
        self.always = always

    def send(self, message: Answer) -> None:
        """Answer."""
        self.reply(self.body(message))

    def refuse(self, error: BadMessageError, seq: int | None = None) -> None:
        """Answer that the request cannot be taken."""
        self.send(error_reply(error, seq))

    def nothing(self) -> None:
        """Answer a request that has no answer, where the transport needs one all the same."""
        if self.always:
            self.send(Ok())


_KEPT_FINISHED, _FORGOTTEN_AT_ONCE = 1_000, 64
_CLIENTS = 4
"""How many clients may have as much waiting as each of them may."""


@dataclass(slots=True)
class OpenEpisode:
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
    waiting: list[Responder] = field(default_factory=list)
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(slots=True)
class ChunkProgress:
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

    def __init__(self, backlog: ByteBudget) -> None:
        self.backlog = backlog
        self.token = secrets.token_hex(16)
        self.name = ""
        self.extended = False
        self.links: dict[str, OpenEpisode] = {}
        self.finished: OrderedDict[str, OpenEpisode] = OrderedDict()
        self.chunks: OrderedDict[str, ChunkProgress] = OrderedDict()
        self.chunks_over = 0
        self.loose: list[ChunkProgress] = []
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
                    ErrorCode.TOO_MANY,
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
                ErrorCode.TOO_MANY,
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


# SEAM menv.serving.trainer
# Trainer: what a server asks of the algorithm that learns from its clients.
#
# `menv.algorithms.weight_publisher` implements it, a `ServedEnvs` calls it. What was published last never
# changes, so
# that clients are answered while the algorithm learns.


class PublishedPolicies(Protocol):
    """The policies as they were published together. It stays as it is; the next weights come with another one.

    Attributes:
        weights_seq_no: The number of its weights; it grows with every update.
        policies: The policies by id.
    """

    weights_seq_no: int
    policies: Mapping[str, Policy]

    def made(self, form: str, policy_id: str) -> Any:
        """Return what `make` has made before. In the server's loop.

        Raises:
            KeyError: It has not made it yet.
        """

    def make(self, form: str, policy_id: str) -> Any:
        """Return a policy in one of its forms. In the one thread that makes them.

        Args:
            form: "bundle" for a packed bundle, "weights" for packed weights, "onnx" for the ONNX file that RLlink
                clients read, gzipped, as base64.
            policy_id: Its id.

        Raises:
            ConfigError: It has no such form; the sentence says what works instead.
        """

    def expect_clients(self) -> None:
        """Make the forms that a first client may ask for. In the thread that makes them."""

    def make_ready(self) -> None:
        """Make the forms that clients have asked for lately. In the thread that makes them."""

    def connectors_since(self, policy_id: str) -> int:
        """Return the number with which a policy's connectors changed last; weights alone do not bring them."""

    def policy_for(self, episode_id: str, agent_id: str) -> str:
        """Return which policy answers for an agent of an episode that is played elsewhere. In the server's loop."""


class Trainer(Protocol):
    """The algorithm.

    Attributes:
        env_steps_per_sample: Env steps of one fragment.
        force_on_policy: Whether clients that act by themselves shall wait for the next weights.
        explore: Whether clients that act by themselves shall draw actions, or take the most likely ones.
        observation_fn: Whether policies see what an `observation_fn` makes of observations, which clients do not have.
        latest: What was published last; another thread may put the next one in its place.
    """

    env_steps_per_sample: int
    force_on_policy: bool
    explore: bool
    observation_fn: bool
    latest: PublishedPolicies
