"""Conversations over HTTP, which outlive a request and may go over several connections of one client.

A client names its conversation in the header `menv-session`. The HTTP endpoint asks for it; a sweep ends what has not
been heard of. Knows neither requests nor responses.
"""

from __future__ import annotations

from typing import Protocol

from menv.serving.carriers.bucket import Bucket
from menv.serving.carriers.faults import Faults
from menv.serving.carriers.limits import Limits
from menv.serving.carriers.transport import Conversation, Handler, Peer


class HttpSession:
    """One conversation.

    Attributes:
        conversation: With whoever knows the header's value.
        bucket: How fast it may go.
        name: The header's value; None for a conversation of one request.
        heard: When the last request began or ended.
        busy: Requests that wait for their reply.
        users: Connections whose last request was this session's.
        over: Whether the conversation has ended.
    """

    __slots__ = ("bucket", "busy", "conversation", "heard", "name", "over", "users")

    def __init__(self, conversation: Conversation, bucket: Bucket, name: str | None) -> None:
        self.conversation = conversation
        self.bucket = bucket
        self.name = name
        self.heard = 0.0
        self.busy = 0
        self.users = 0
        self.over = False


class User(Protocol):
    """A connection, as sessions see it."""

    session: HttpSession | None
    """That of its last request with a name."""
    bucket: Bucket
    """How fast its requests without a name may come."""

    @property
    def peer(self) -> Peer:
        """Who is there."""


class HttpSessions:
    """All conversations of one HTTP transport.

    There are at most `max_connections`. A new one takes the place of the one that was heard of the longest time ago
    among those that no open connection used last; there always is one, as each connection holds on to one.

    Args:
        handler: Starts conversations.
        limits: `handshake_s`, `idle_s` and `max_connections` of it.
        faults: For what conversations raise at their end.
    """

    def __init__(self, handler: Handler, limits: Limits, faults: Faults) -> None:
        self._handler = handler
        self._limits = limits
        self._faults = faults
        # In the order in which they were heard of, the longest ago first.
        self._all: dict[str, HttpSession] = {}

    def of(self, user: User, name: str | None, now: float, token: str | None) -> HttpSession:
        """Return the session called `name`, a new one if there is none, and note that `user` goes on with it."""
        if name is None:
            return HttpSession(self._handler.open(user.peer, token), user.bucket, None)
        session = self._all.pop(name, None)
        if session is None:
            self._make_room()
            session = HttpSession(self._handler.open(user.peer, token), Bucket(self._limits.max_rate), name)
        self._all[name] = session
        session.heard = now
        if user.session is not session:
            self.release(user)
            user.session = session
            session.users += 1
        return session

    def release(self, user: User) -> None:
        """Note that `user` is gone, or goes on with another session."""
        if user.session is not None:
            user.session.users -= 1
            user.session = None

    def end(self, session: HttpSession) -> None:
        """End one; the next request of that name begins another."""
        if session.over:
            return
        session.over = True
        if session.name is not None:
            self._all.pop(session.name, None)
        try:
            session.conversation.lost()
        except Exception as fault:
            self._faults.add(fault)

    def sweep(self, now: float) -> None:
        """End those of which nothing was heard for too long; that is sooner where no connection is left either."""
        for session in list(self._all.values()):
            silent = now - session.heard
            if silent <= min(self._limits.handshake_s, self._limits.idle_s):
                return
            if not session.busy and (not session.users or silent > self._limits.idle_s):
                self.end(session)

    def end_all(self) -> None:
        """End every one."""
        for session in list(self._all.values()):
            self.end(session)

    def _make_room(self) -> None:
        if len(self._all) < self._limits.max_connections:
            return
        for session in self._all.values():
            if not session.users:
                self.end(session)
                return
