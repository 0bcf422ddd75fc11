"""A client's session with a server: greeting, one request after the other, and again what was lost on the way.

A connection that fails is replaced, and the session goes on; the server recognises a message that it has taken
already. Episodes ask through a link. It does not know what they ask.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
from msgspec import Raw

from menv.errors import (
    CallOrderError,
    ConfigError,
    ContractError,
    EpisodeError,
    MenvError,
    RefusedError,
    ServerGoneError,
)
from menv.inference.action_heads import in_a_line
from menv.serialization import space_from_json
from menv.serving.client.client_connection import ClientAddress, ClientConnection, connect, new_session_name
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat, to_raw
from menv.serving.protocol import (
    Action,
    Answer,
    Episodes,
    EpisodesAndGetState,
    EpisodeStarted,
    Error,
    GetAction,
    GetConfig,
    GetPolicies,
    GetState,
    Ok,
    Ping,
    Policies,
    Pong,
    Request,
    SetConfig,
    SetState,
    StartEpisode,
    decode_answer,
    encode,
)

EXTENSION = "menv-1"

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_PING = encode(Ping(), WireFormat.MSGPACK)
_ANSWERS: dict[type[Any], type[Any]] = {
    StartEpisode: EpisodeStarted,
    GetAction: Action,
    GetPolicies: Policies,
    GetState: SetState,
    EpisodesAndGetState: SetState,
}
_MOST_TOLD = 1000
_LATER = (ErrorCode.STOPPING, ErrorCode.TOO_MANY)
"""Why a greeting is refused that may be taken a little later: a server that ends, or has no room."""


class NotNowError(EpisodeError):
    """The server knows the episode and takes another message of it, not this one; it stays open."""


class SessionLostError(EpisodeError):
    """The server has forgotten the session, and all its open episodes with it; start new ones."""


class ClientSession:
    """One session, over one connection at a time. Calls from several threads take turns.

    Args:
        address: Of the server.
        token: To be let in.
        name: For the server's reports.
        timeout: Seconds without an answer, or without a server, after which a call fails.
        session: What to go on with, None for a new session.

    Attributes:
        timeout: As given.
        config: What the server said at the last greeting.

    Raises:
        ServerGoneError: Nobody answers.
        ConfigError: The server lets nobody in with this token, or is none.
    """

    def __init__(
        self,
        address: ClientAddress,
        token: str | None = None,
        name: str | None = None,
        timeout: float = 60.0,
        session: str | None = None,
    ) -> None:
        self._address, self._token, self._name, self.timeout = address, token, name, timeout
        self._lock = threading.RLock()
        self._connection: ClientConnection | None = None
        self._conversation = new_session_name()
        self._closed = False
        self._process = os.getpid()
        self.config = SetConfig(env_steps_per_sample=0, force_on_policy=False)
        # What another link shows to go on with this session.
        self.session = session
        self._ask_until_answered(_PING, anew=True)

    def ask(self, request: Request, *, anew: bool = False) -> Any:
        """Return the answer to a request; waits for it.

        Args:
            request: What to ask.
            anew: Whether the request means the same in a session that has just begun.

        Raises:
            SessionLostError: The server has forgotten the session, and `anew` is False.
            ServerGoneError: Nobody answered in time.
            CallOrderError: The process was forked from the one that has connected.
            EpisodeError: The server does not know the episode, or not at this point.
            RefusedError: It refuses the request for another reason.
            ConfigError: It answers something else, which no server of menv does.
        """
        # Before the lock, which a thread may hold that a forked process does not have.
        self.check_open()
        with self._lock:
            answer = self._ask_until_answered(encode(request, WireFormat.MSGPACK), anew)
            if isinstance(answer, Error):
                raise self._refusal(answer)
            self._require_answer(request, answer)
        return answer

    def bring(self, request: Episodes) -> None:
        """Hand over a request that is not answered, and return once the server has it; raises what `ask` does."""
        self.check_open()
        with self._lock:
            body = encode(request, WireFormat.MSGPACK)
            answer = self._ask_until_answered(body, anew=False, answered=False)
        if isinstance(answer, Error):
            raise self._refusal(answer)

    def standing(self, episode_id: str, otherwise: int) -> int:
        """Return the number of the last message of an open episode that the server has taken, whoever sent it."""
        with self._lock:
            answer = self._ask_until_answered(self._greeting(), anew=False)
        where = (answer.resume or {}).get(episode_id) if isinstance(answer, SetConfig) else None
        seq = where.get("seq") if isinstance(where, dict) else None
        return seq if type(seq) is int else otherwise

    def close(self) -> None:
        """End the connection; the server keeps the session for a while."""
        self._closed = True
        if self._process != os.getpid():
            # What is said to the server here would end the connection of whoever was forked.
            return
        # Not under the lock: whoever waits for an answer is woken by this.
        if (connection := self._connection) is not None:
            connection.close()

    def check_open(self) -> None:
        """Raise what any call raises that comes too late, or in another process than the one that has connected.

        Raises:
            ServerGoneError: The link was closed.
            CallOrderError: The process was forked since.
        """
        if self._closed:
            raise ServerGoneError("PolicyClient: is closed, expected no further call; make another client")
        if self._process != os.getpid():
            raise CallOrderError(
                "PolicyClient: this process was forked from the one that has made it, and both would talk over one "
                "connection, expected a client for each process; make another here"
            )

    def _ask_until_answered(self, body: bytes, anew: bool, answered: bool = True) -> Answer:
        end, pause = time.monotonic() + self.timeout, _FIRST_PAUSE_S
        while True:
            try:
                return self._attempt(body, anew, answered)
            except ServerGoneError:
                raise
            except ConnectionError as error:
                why = error
            except BaseException:
                # Such as Ctrl-C: the answer may come later, when another one is waited for.
                self._drop()
                raise
            self._drop()
            if time.monotonic() + pause > end:
                address = self._address
                # A port that is encrypted ends the connection of whoever is not, without a word.
                plain = address.scheme if self.session is None and not address.tls else None
                encrypted = f", or write {plain}s:// if it is encrypted" if plain else ""
                raise ServerGoneError(
                    f"PolicyClient: {address} does not answer ({why}), expected a server there within "
                    f"{self.timeout:g} s; start it, or give a longer timeout{encrypted}"
                ) from why
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _attempt(self, body: bytes, anew: bool, answered: bool) -> Answer:
        self.check_open()
        try:
            if self._connection is None:
                self._connect(anew)
            answer = self._exchange(body, answered)
        except BadMessageError as error:
            self._drop()
            raise ConfigError(
                f"PolicyClient: {self._address} answers with something else than messages ({error.text}), expected a "
                "server of menv; check the address"
            ) from error
        if isinstance(answer, Error) and answer.code == ErrorCode.STOPPING:
            raise ConnectionResetError(answer.message)
        return answer

    def _exchange(self, body: bytes, answered: bool) -> Answer:
        connection = self._connection
        assert connection is not None
        connection.send(body)
        if answered or connection.answers_all:
            return decode_answer(connection.receive())[0]
        # Messages are taken in order, so the answer to this one tells that the one before has arrived.
        connection.send(_PING)
        answer = decode_answer(connection.receive())[0]
        if isinstance(answer, Pong):
            return Ok()
        try:
            decode_answer(connection.receive())
        except ConnectionError:
            # After some refusals the server ends the connection, and nothing answers the PING.
            self._drop()
        return answer

    def _connect(self, anew: bool) -> None:
        connection = connect(self._address, self._token, self.timeout, self._conversation)
        self._connection = connection
        connection.send(self._greeting())
        answer = decode_answer(connection.receive())[0]
        if isinstance(answer, Error) and answer.code in _LATER:
            raise ConnectionRefusedError(_told(answer.message))
        if isinstance(answer, Error):
            self._drop()
            raise ConfigError(
                f"PolicyClient: {self._address} refuses ({_told(answer.code)}: {_told(answer.message)}), expected to "
                "be let in; check token and address"
            )
        if not isinstance(answer, SetConfig) or answer.session is None:
            self._drop()
            raise ConfigError(
                f"PolicyClient: {self._address} does not speak the extension {EXTENSION!r}, expected a server of menv; "
                "check the address"
            )
        before, self.session, self.config = self.session, answer.session, answer
        if before not in (None, answer.session) and not anew:
            raise SessionLostError(
                f"PolicyClient: {self._address} has forgotten this session and its open episodes, expected to be back "
                "in time; start new episodes"
            )

    def _greeting(self) -> bytes:
        shown = None if self._address.scheme == "http" else self._token
        greeting = GetConfig(token=shown, extensions=[EXTENSION], session=self.session, client=self._name)
        return encode(greeting, WireFormat.MSGPACK)

    def _require_answer(self, request: Request, answer: Answer) -> None:
        """Refuse an answer to another question, so that nobody takes it for the one to this."""
        kind, seq = type(request), getattr(request, "seq", None)
        fits = isinstance(answer, _ANSWERS.get(kind, Ok))
        if fits and getattr(answer, "seq", None) in (None, seq):
            return
        # What comes next over this connection may be late as well.
        self._drop()
        told = f"{type(answer).__name__} of number {getattr(answer, 'seq', None)}"
        raise ConfigError(
            f"PolicyClient: {self._address} answers {kind.__name__} of number {seq} with {told}, expected the answer "
            "to this message; check the address, and what lies between"
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _refusal(self, answer: Error) -> MenvError:
        if answer.code == ErrorCode.WRONG_ORDER:
            return NotNowError(_told(answer.message))
        if answer.code == ErrorCode.UNKNOWN_EPISODE:
            return EpisodeError(_told(answer.message))
        return RefusedError(_told(answer.message), answer.code)


def _told(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text[:_MOST_TOLD])


# SEAM menv.serving.client.client_spaces
# The spaces that a server told a client: what answered actions are elements of. It knows no messages but that
# one.


Space = gym.Space[Any]


class ClientSpaces:
    """What the greeting says of spaces.

    Args:
        config: The greeting.

    Attributes:
        multi_agent: Whether observations are dicts by agent.

    Raises:
        ConfigError: A space is none that this version knows.
    """

    def __init__(self, config: SetConfig) -> None:
        self.multi_agent = bool(config.multi_agent)
        own = config.action_space
        self._shared = None if own is None else space_from_json(own, "SET_CONFIG.action_space")
        self._own = {
            agent: space_from_json(one, f"SET_CONFIG.action_spaces[{agent!a:.40}]")
            for agent, one in (config.action_spaces or {}).items()
        }

    def action_space(self, agent: str) -> Space | None:
        """Return that of an agent, None where nobody told."""
        return self._own.get(agent, self._shared)


# SEAM menv.serving.client.client_values
# Values of an application as messages hold them, and answered actions as elements of their space.
#
# Clients write observations, actions and infos with it. It knows no messages.


_SMALL = 64


def written(value: Any, where: str) -> Raw:
    """Return a value as it goes into a message.

    Args:
        value: Numbers, texts, numpy arrays and scalars, and lists, tuples and dicts of them.
        where: Begins the message of an error.

    Raises:
        ContractError: It holds something else.
    """
    if type(value) is np.ndarray and value.size <= _SMALL:
        # A few numbers are written and read sooner than an array around them.
        value = value.tolist()
    try:
        return to_raw(value, WireFormat.MSGPACK)
    except (TypeError, NotImplementedError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise ContractError(
            f"{where}: got something that has no form on the wire ({error!s:.80}), expected numbers, texts, arrays, "
            "and lists and dicts of these; leave the rest out"
        ) from None


def element_of(space: gym.Space[Any] | None, value: Any) -> Any:
    """Return an action as `space.sample()` gives it.

    Args:
        space: Its space; None if nobody told, lists are then arrays.
        value: Decoded from a message.

    Raises:
        ContractError: It is no such element; numbers of a Box may be outside its bounds, where actions are not clipped.
    """
    try:
        return _element(space, value)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ContractError(
            f"PolicyClient: the server answers with an action that is none ({ascii(str(error))[1:-1]:.100}), expected "
            f"an element of {in_a_line(space) if space is not None else 'a space'}; look at the server's policy"
        ) from error


def _element(space: gym.Space[Any] | None, value: Any) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _element(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_element(part, one) for part, one in zip(space.spaces, value, strict=True))
    if isinstance(space, gym.spaces.Discrete):
        choice = space.dtype.type(value)
        if choice != value or not space.contains(choice):
            raise ValueError(f"{value!r:.40} is no choice")
        return choice
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        array = np.array(value, space.dtype).reshape(space.shape)
        fits = np.isfinite(array).all() if isinstance(space, gym.spaces.Box) else space.contains(array)
        if not fits:
            raise ValueError("its numbers are outside")
        return array
    if space is None and isinstance(value, list) and value and isinstance(value[0], int | float):
        return np.array(value, np.float32 if isinstance(value[0], float) else np.int64)
    return value
