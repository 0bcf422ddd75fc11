"""PolicyClient: what an application calls that owns its loop and talks to a `PolicyServerInput`.

It needs numpy, msgspec and gymnasium, with `inference_mode="local"` onnxruntime as well. Where messages go and what
is sent again is known to `client_link`, how to act without asking to `local_actor`.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from menv import external_env
from menv.adapters.episode_channel import finite_reward
from menv.base_env import SINGLE_AGENT
from menv.errors import ConfigError, ContractError, EpisodeError, MenvError, RefusedError, ServerGoneError
from menv.external_env import check_told_info, done_flags, truncation
from menv.serving.client.client_connection import check_token, read_address
from menv.serving.client.client_session import ClientSession, ClientSpaces, NotNowError, element_of, written
from menv.serving.codec import ErrorCode
from menv.serving.protocol import EndEpisode, GetAction, LogAction, LogReturns, StartEpisode

if TYPE_CHECKING:
    from menv.serving.client.local_actor import LocalActor
    from menv.serving.client.local_episode import LocalEpisode


# SEAM menv.serving.client.client_arguments
# What an application hands to a `PolicyClient`, looked at before anything is done with it.
#
# What no message can hold is refused here, in the call that brings it, and not when it is sent with what
# others have
# said. It knows no server.


_MODES = ("local", "remote")
_LONGEST = 1e9
"""Seconds; what waits for a socket takes no number that is much larger, infinity neither."""
_LONGEST_ID = 256


def check_settings(
    inference_mode: object, update_interval: Any, session: object, timeout: Any, client: object, seed: object
) -> None:
    """Refuse arguments that no client can have; they are those of `PolicyClient`.

    Raises:
        ConfigError: One is of the wrong kind.
    """
    if inference_mode not in _MODES:
        raise ConfigError(
            f"PolicyClient: inference_mode={inference_mode!r:.40}, expected 'local' or 'remote'; choose one"
        )
    # NaN is below nothing.
    if update_interval is not None and not (_is_number(update_interval) and update_interval >= 0):
        raise ConfigError(
            f"PolicyClient: update_interval={update_interval!r:.40}, expected seconds from 0 or None; leave it out for "
            "10"
        )
    if session is not None and not is_id(session):
        raise ConfigError(
            f"PolicyClient: session is {session!a:.60}, expected None or the `session` of another client; leave it out"
        )
    if not _is_number(timeout) or not 0 < timeout <= _LONGEST:
        raise ConfigError(
            f"PolicyClient: timeout={timeout!r:.40}, expected seconds above 0, at most {_LONGEST:g}; leave it out for "
            "60"
        )
    if client is not None and not (isinstance(client, str) and _is_utf8(client)):
        raise ConfigError(
            f"PolicyClient: client is {client!a:.60}, expected a text or None; give a name for the server's reports"
        )
    if seed is not None and (not isinstance(seed, Integral) or isinstance(seed, bool)):
        raise ConfigError(
            f"PolicyClient: seed={seed!r:.40}, expected a whole number or None; leave it out to take one by chance"
        )


def is_id(value: object) -> bool:
    """Return whether a value can name an episode, an agent or a session in messages."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_ID and _is_utf8(value)


def check_start(episode_id: object, trained: object) -> None:
    """Refuse what no episode can begin with.

    The server would refuse an id only when the episode is sent, and with it all that go in the same message.

    Raises:
        ConfigError: The id is none.
        ContractError: Whether policies may learn is neither True nor False.
    """
    if episode_id is not None and not is_id(episode_id):
        raise ConfigError(
            f"start_episode: the id is {episode_id!a:.60}, expected a text of 1 to {_LONGEST_ID} characters that UTF-8 "
            "has; write str(...) of a number, or leave the id out to get one"
        )
    external_env.check_start(None, trained)


def check_agent(where: str, agent: object) -> None:
    """Refuse what cannot name an agent.

    Raises:
        ContractError: It cannot.
    """
    if not is_id(agent):
        raise ContractError(
            f"{where}: agent {agent!a:.60}, expected a text of 1 to {_LONGEST_ID} characters that UTF-8 has; name "
            "agents by texts"
        )


def check_told(rewards: Iterable[Any], infos: Mapping[Any, Any] | None, done: Iterable[Any]) -> None:
    """Refuse what no message can tell of several agents: sent and refused, it would keep back all that is told.

    Args:
        rewards: By agent.
        infos: Likewise, or None.
        done: Likewise.

    Raises:
        ContractError: One of them is told of what names no agent, or an info is none.
    """
    for agent in (*rewards, *(infos or ()), *done):
        check_agent("log_returns", agent)
    for info in (infos or {}).values():
        external_env.check_told_info(info)


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def _is_utf8(text: str) -> bool:
    """Return whether a text has no halves of characters, such as file names may hold."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# SEAM menv.serving.client.remote_episode
# An episode whose actions a client asks the server for, one by one.
#
# `PolicyClient` calls it. Messages are numbered, so that one which had to be sent again is taken once.


_ABOUT_SIZE = (ErrorCode.TOO_LARGE, ErrorCode.TOO_DEEP)
"""Why a message is refused that would be refused again with the same info."""
_ABOUT_VALUES = (ErrorCode.UNKNOWN_AGENT, ErrorCode.WRONG_TYPE, ErrorCode.OUT_OF_RANGE, ErrorCode.NOT_FINITE)
"""Why a message is refused that may be refused again with the same rewards, infos and done flags."""


class DroppedError(RefusedError):
    """The server does not take what was paid or told; it will not be told again, and the episode goes on."""


class RemoteEpisode:
    """One open episode.

    Args:
        link: The session that it belongs to.
        spaces: Of the agents.
        episode_id: Its id.
        seq: Number of the last message that was taken; None starts the episode.
        trained: Whether policies may learn from it.

    Raises:
        EpisodeError: The id was used before.
    """

    def __init__(
        self,
        link: ClientSession,
        spaces: ClientSpaces,
        episode_id: str,
        seq: int | None = None,
        trained: bool = True,
    ) -> None:
        self.episode_id = episode_id
        self._link = link
        self._spaces = spaces
        self._seq = seq or 0
        self._paid: dict[str, float] = {}
        self._info: dict[str, Any] = {}
        self._done: dict[str, bool] = {}
        # A message that the server may have taken or not, and what it took along.
        self._unsure: tuple[type[Any], dict[str, Any]] | None = None
        self._taken_along: tuple[dict[str, float], dict[str, Any], dict[str, bool]] = ({}, {}, {})
        if seq is None:
            link.ask(StartEpisode(episode_id=episode_id, training_enabled=trained, seq=0), anew=True)

    def act(self, observation: Any) -> Any:
        """Return the action that the server chooses; see `PolicyClient.get_action`."""
        answer = self._ask(GetAction, observation=written(observation, "get_action"))
        space_of = self._spaces.action_space
        if not self._spaces.multi_agent:
            return element_of(space_of(SINGLE_AGENT), answer.action)
        if not isinstance(answer.action, dict):
            raise ContractError(
                f"PolicyClient: the server answers with a {type(answer.action).__name__}, expected actions by agent; "
                "look at the server's config"
            )
        return {agent: element_of(space_of(agent), action) for agent, action in answer.action.items()}

    def log(self, observation: Any, action: Any) -> None:
        """Tell what the application did; see `PolicyClient.log_action`."""
        self._ask(
            LogAction,
            observation=written(observation, "log_action"),
            action=written(action, "log_action"),
            wait=True,
        )

    def pay(self, reward: Any, info: Any, done: Mapping[str, bool] | None) -> None:
        """Note rewards, which the next message takes along; see `PolicyClient.log_returns`."""
        if info:
            written(info, "log_returns")
        if self._spaces.multi_agent:
            for agent, amount in reward.items():
                self._paid[agent] = self._paid.get(agent, 0.0) + amount
        else:
            self._paid[SINGLE_AGENT] = self._paid.get(SINGLE_AGENT, 0.0) + reward
        if info:
            self._info.update(info)
        if done:
            self._done.update({agent: True for agent, flag in done.items() if flag})

    def leave(self) -> None:
        """Tell what no message has taken along so far, unless the server takes nothing of this episode now."""
        if self._paid or self._info or self._done:
            if not self._paid and not self._spaces.multi_agent:
                self._paid[SINGLE_AGENT] = 0.0
            with contextlib.suppress(EpisodeError):
                self._ask(LogReturns)

    def end(self, observation: Any, truncated: bool) -> None:
        """Tell that it is over; see `PolicyClient.end_episode`."""
        self._ask(EndEpisode, observation=written(observation, "end_episode"), truncated=truncated)

    def _ask(self, kind: type[Any], **fields: Any) -> Any:
        """Return the answer to the next message, which takes along what was paid since the last one.

        After a call that found no server its message is said first: the server may have taken it, and its number.
        """
        if (answer := self._answer_before(kind, fields)) is not None:
            return answer
        return self._say(kind, {**fields, **self._take_along()})

    def _take_along(self) -> dict[str, Any]:
        """Take what was paid and told since the last message, and return it as fields of the next one."""
        multi, fields = self._spaces.multi_agent, dict[str, Any]()
        if self._paid or (multi and (self._info or self._done)):
            fields["reward"] = written(self._paid if multi else self._paid[SINGLE_AGENT], "log_returns")
        if self._info:
            fields["info"] = written(self._info, "log_returns")
        if self._done:
            fields["done"] = self._done
        self._taken_along = self._paid, self._info, self._done
        self._paid, self._info, self._done = {}, {}, {}
        return fields

    def _answer_before(self, kind: type[Any], fields: Mapping[str, Any]) -> Any:
        """Say a message that found no server; return its answer if it is this very one, otherwise None."""
        if self._unsure is None:
            return None
        before, said = self._unsure
        is_same = before is kind and all(said[name] == value for name, value in fields.items())
        try:
            answer = self._say(before, said)
        except RefusedError as error:
            if is_same or isinstance(error, DroppedError):
                raise
            return None
        return answer if is_same else None

    def _say(self, kind: type[Any], fields: dict[str, Any]) -> Any:
        """Return the answer to a message; of what it took along and the server refuses, the next ones are free."""
        try:
            return self._exchange(kind, fields)
        except RefusedError as error:
            if error.code in _ABOUT_VALUES:
                self._sort_out(error)
            raise

    def _exchange(self, kind: type[Any], fields: dict[str, Any]) -> Any:
        seq = self._seq + 1
        self._unsure = kind, fields
        try:
            answer = self._link.ask(kind(episode_id=self.episode_id, seq=seq, **fields))
        except ServerGoneError:
            raise
        except MenvError as error:
            self._unsure = None
            self._take_back(getattr(error, "code", None) not in _ABOUT_SIZE)
            if isinstance(error, NotNowError):
                self._catch_up(error)
            raise
        self._seq, self._unsure = seq, None
        return answer

    def _catch_up(self, refusal: NotNowError) -> None:
        """Ask where the episode stands, which another client may have gone on with.

        Raises:
            NotNowError: One has.
        """
        seq = self._seq
        with contextlib.suppress(MenvError):
            self._seq = self._link.standing(self.episode_id, seq)
        if self._seq != seq:
            raise NotNowError(
                f"{refusal}; another client of this session has gone on with the episode, and this one knows now where "
                "it stands: call again"
            ) from refusal

    def _sort_out(self, refusal: RefusedError) -> None:
        """Tell what a refused message took along, of one agent after the other; drop what is refused again.

        Raises:
            DroppedError: Something was.
        """
        held = self._paid, self._info, self._done
        agents = sorted(set().union(*held)) if self._spaces.multi_agent else [None] * any(held)
        dropped = []
        for agent in agents:
            parts = [_split(one, agent) for one in (self._paid, self._info, self._done)]
            rest = [others for _, others in parts]
            self._paid, self._info, self._done = (own for own, _ in parts)
            fields = self._take_along()
            self._paid, self._info, self._done = rest
            try:
                self._exchange(LogReturns, fields)
            except RefusedError as error:
                if error.code not in _ABOUT_VALUES:
                    raise
                self._paid, self._info, self._done = rest
                dropped.append(agent)
        if dropped:
            whose = f" of {dropped[:20]!a}" if self._spaces.multi_agent else ""
            raise DroppedError(
                f"{refusal}; rewards, infos and done flags{whose} since the last message are dropped, and the episode "
                "goes on: call again",
                refusal.code,
            ) from refusal

    def _take_back(self, with_info: bool) -> None:
        """Have what a message took along said again with the next one: it was not taken."""
        paid, info, done = self._taken_along
        for agent, amount in self._paid.items():
            paid[agent] = paid.get(agent, 0.0) + amount
        self._paid, self._done = paid, done | self._done
        self._info = info | self._info if with_info else self._info


def _split(held: dict[str, Any], agent: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is held of one agent, and the rest; None stands for everything."""
    own = {name: one for name, one in held.items() if agent in (None, name)}
    return own, {name: one for name, one in held.items() if name not in own}


_KEPT_IDS = 10_000


class PolicyClient:
    """Plays episodes with the policies of a server, which learn from them. A context manager that closes itself.

    With "remote" inference the server is asked for each action, and rewards go with the next question. With "local"
    inference the client fetches the policies, acts by itself (it draws actions, as when training), and sends what
    happened in chunks of as many env steps as the server wants. Then infos are not sent, so
    `info["training_enabled"] = False` has no effect. An episode that starts with `training_enabled=False` is not sent
    at all. An episode that begins with `log_action` is played remotely as a whole. A policy whose connectors keep
    something of each life, such as stacked frames, plays remotely only.

    Calls may come from several threads, for many episodes; those of one episode come one after the other. A process
    that is forked needs a client of its own. A lost connection is replaced, and what was lost with it is sent again.
    With several agents observations, actions, rewards and infos are dicts by agent id, which are texts.

    Args:
        address: Such as "http://localhost:9900"; also https, tcp, tcps, ws and wss. Certificates are checked against
            the authorities of this machine, and those in the file that the variable SSL_CERT_FILE names.
        inference_mode: "local" or "remote".
        update_interval: With "local" inference, seconds after which new weights are fetched; None or 0 never does,
            `update_policy_weights` does. A server with `force_on_policy` sends new weights for each chunk instead, and
            the call that completes a chunk waits for them. Any other server is asked by a thread beside: calls act on
            with the weights that are here, and the next call raises what went wrong there.
        session: What `session` was of a client that is gone; its remote episodes go on. None begins anew.
        token: What the server wants to be shown.
        timeout: Seconds without an answer, or without a server that has room, after which a call fails; a second more
            for every 1,000 bytes of an answer. Actions wait while the server learns.
        client: A name for the server's reports.
        seed: Of the draws of "local" inference; None takes one by chance.

    Raises:
        ConfigError: Address, mode or token is wrong.
        ServerGoneError: Nobody answers at the address.
    """

    def __init__(
        self,
        address: str,
        inference_mode: Literal["local", "remote"] = "local",
        update_interval: float | None = 10.0,
        session: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        client: str | None = None,
        seed: int | None = None,
    ) -> None:
        check_settings(inference_mode, update_interval, session, timeout, client, seed)
        self._address = read_address(address)
        check_token(token, self._address)
        self._token, self._name, self._timeout = token, client, timeout
        self._lock = threading.Lock()
        self._is_closed = False
        self._links: list[tuple[threading.Thread, ClientSession]] = []
        self._episodes: dict[str, RemoteEpisode | LocalEpisode] = {}
        self._own = threading.local()
        self._first = self._own.link = self._new_link(session)
        try:
            self._spaces = ClientSpaces(self._first.config)
        except BaseException:
            self._disconnect()
            raise
        self._multi_agent = self._spaces.multi_agent
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._actor: LocalActor | None = None
        if inference_mode == "local":
            from menv.serving.client.local_actor import LocalActor

            self._actor = LocalActor(self._first, update_interval, seed)
        for name, where in (self._first.config.resume or {}).items() if session else ():
            if isinstance(where, dict) and type(where.get("seq")) is int:
                self._episodes[name] = RemoteEpisode(self._first, self._spaces, name, where["seq"])

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            # What went wrong is to be seen, not what could not be sent because of it.
            self._disconnect()

    @property
    def session(self) -> str | None:
        """What another client shows to go on with the episodes that this thread has started remotely."""
        return self._link().session

    @property
    def weights_seq_no(self) -> int | None:
        """The weights that local inference acts with; None before the first, and with remote inference."""
        return None if self._actor is None else self._actor.weights_seq_no

    @property
    def open_episodes(self) -> list[str]:
        """The ids of open episodes."""
        return list(self._episodes)

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begin an episode.

        Args:
            episode_id: A new id, a text of 1 to 256 characters; None makes one up.
            training_enabled: Whether policies may learn from it.

        Returns:
            The id.

        Raises:
            ConfigError: The id is none.
            ContractError: `training_enabled` is no flag.
            EpisodeError: The id was used before.
            ServerGoneError: The client was closed.
            CallOrderError: The process was forked from the one that has made the client.
        """
        self._first.check_open()
        check_start(episode_id, training_enabled)
        name = uuid.uuid4().hex if episode_id is None else episode_id
        if name in self._episodes or name in self._ended:
            state = "completed" if name in self._ended else "started"
            raise EpisodeError(
                f"start_episode: episode {name!r} is already {state}, expected a new id; leave the id out to get one"
            )
        self._episodes[name] = self._new_episode(name, training_enabled)
        return name

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """Return the policy's action in answer to an observation.

        Args:
            episode_id: The episode.
            observation: An element of the observation space, or one by agent.

        Returns:
            An element of the action space, or one by agent.

        Raises:
            EpisodeError: There is no such episode, the server has forgotten it, or a part of it was refused. With local
                inference bounds are looked at before rows are sent.
            ContractError: With local inference: the observation is of another kind or shape than its space.
            RefusedError: The server does not take it.
            ServerGoneError: The server does not answer.
        """
        return self._episode("get_action", episode_id).act(observation)

    def log_action(self, episode_id: str, observation: Any, action: Any) -> None:
        """Tell of an action that the application chose itself; waits until the server has sampled it.

        DQN learns from it; PPO, which must know how probable an action was, does not.

        Raises:
            CallOrderError: Local inference has chosen actions of this episode before.
            EpisodeError: There is no such episode, or the server has forgotten it.
            RefusedError: The server does not take it.
            ServerGoneError: The server does not answer.
        """
        episode = self._episode("log_action", episode_id)
        if not isinstance(episode, RemoteEpisode):
            episode = self._made_remote(episode)
        episode.log(observation, action)

    def log_returns(
        self,
        episode_id: str,
        reward: float | dict[str, float],
        info: Mapping[str, Any] | None = None,
        multiagent_done_dict: Mapping[str, bool] | None = None,
    ) -> None:
        """Pay a reward for the last action; rewards add up until the next observation, and are sent with it.

        Args:
            episode_id: The episode.
            reward: A finite number, or one by agent.
            info: Goes with the next observation; with local inference it is not sent.
            multiagent_done_dict: True for agents whose own trajectories end; an observation that the next call holds
                of such an agent is its last one.

        Raises:
            EpisodeError: There is no such episode.
            ContractError: The reward is of another kind, or not finite, or the info no dict, or it cannot be sent
                (remote inference); nothing has been noted then.
        """
        try:
            episode = self._episodes[episode_id]
        except (KeyError, TypeError):
            raise self._unknown("log_returns", episode_id) from None
        if isinstance(reward, dict) is not self._multi_agent:
            kind = "a dict of numbers by agent" if self._multi_agent else "a number"
            raise ContractError(
                f"log_returns: got a {type(reward).__name__}, expected {kind}; look at the server's config"
            )
        check_told_info(info)
        done = done_flags(multiagent_done_dict)
        paid: float | dict[str, float]
        if isinstance(reward, dict):
            check_told(reward, info, done)
            paid = {agent: finite_reward(one, episode_id, agent) for agent, one in reward.items()}
        else:
            paid = finite_reward(reward, episode_id, SINGLE_AGENT)
        episode.pay(paid, info, done)

    def end_episode(self, episode_id: str, observation: Any, truncated: bool = False) -> None:
        """End an episode with its last observation.

        Args:
            episode_id: The episode.
            observation: The final one, or those of the agents.
            truncated: Whether it was cut short, so that there would have been more to earn.

        Raises:
            EpisodeError: As for `get_action`; also of another episode that was ended, of which a part was refused.
                Where the server has yet to answer for another client of the session, the episode stays open.
            ContractError: As for `get_action`; also where an observation was outside its bounds.
            RefusedError: The server does not take it.
            ServerGoneError: The server does not answer.
        """
        truncated = truncation(truncated)
        episode = self._episode("end_episode", episode_id)
        if not isinstance(episode, RemoteEpisode) and episode.only_paid:
            episode = self._made_remote(episode)
        try:
            episode.end(observation, truncated)
        except NotNowError:
            raise
        except EpisodeError:
            self._forget(episode_id)
            raise
        self._forget(episode_id)

    def update_policy_weights(self) -> None:
        """Take the newest weights now; with remote inference there are none to take.

        Raises:
            ServerGoneError: The server does not answer.
        """
        if self._actor is not None:
            self._actor.update()

    def close(self) -> None:
        """Send what is complete, and end the connections; open episodes are lost unless another client goes on."""
        if self._is_closed:
            return
        refused: MenvError | None = None
        try:
            for tell in self._last_words():
                try:
                    tell()
                except (EpisodeError, RefusedError) as error:
                    # It costs the others nothing.
                    refused = refused or error
        finally:
            self._disconnect()
        if refused is not None:
            raise refused

    def _last_words(self) -> Iterator[Callable[[], None]]:
        if self._actor is not None:
            yield self._actor.flush
        for episode in list(self._episodes.values()):
            if isinstance(episode, RemoteEpisode):
                yield episode.leave

    def _disconnect(self) -> None:
        self._is_closed = True
        self._episodes.clear()
        for _, link in self._links:
            link.close()

    def _episode(self, call: str, episode_id: str) -> RemoteEpisode | LocalEpisode:
        try:
            return self._episodes[episode_id]
        except (KeyError, TypeError):
            raise self._unknown(call, episode_id) from None

    def _unknown(self, call: str, episode_id: Any) -> EpisodeError:
        self._first.check_open()
        why = "is completed" if isinstance(episode_id, str) and episode_id in self._ended else "was not found"
        return EpisodeError(
            f"{call}: episode {episode_id!r:.80} {why}, expected one that is open; call start_episode first"
        )

    def _forget(self, episode_id: str) -> None:
        with self._lock:
            self._episodes.pop(episode_id, None)
            self._ended[episode_id] = None
            if len(self._ended) > _KEPT_IDS:
                self._ended.popitem(last=False)

    def _new_episode(self, name: str, trained: bool) -> RemoteEpisode | LocalEpisode:
        if self._actor is None:
            return RemoteEpisode(self._link(), self._spaces, name, trained=trained)
        from menv.serving.client.local_episode import LocalEpisode

        episode = LocalEpisode(self._actor, name, trained, self._spaces.multi_agent)
        self._actor.opened(episode)
        return episode

    def _made_remote(self, episode: LocalEpisode) -> RemoteEpisode:
        assert self._actor is not None
        episode.interactive()
        remote = RemoteEpisode(self._first, self._spaces, episode.episode_id, trained=episode.trained)
        # Not before: what the server has no room for may be played here.
        self._actor.gave_up(episode)
        early = episode.early
        if early:
            remote.pay(early if self._spaces.multi_agent else sum(early.values()), None, None)
        self._episodes[episode.episode_id] = remote
        return remote

    def _link(self) -> ClientSession:
        """Return this thread's own way to the server; with local inference all threads share one."""
        if self._actor is not None:
            return self._first
        link: ClientSession | None = getattr(self._own, "link", None)
        if link is None:
            link = self._own.link = self._left_behind() or self._new_link(None)
        return link

    def _left_behind(self) -> ClientSession | None:
        with self._lock:
            for index, (owner, link) in enumerate(self._links):
                if not owner.is_alive():
                    self._links[index] = threading.current_thread(), link
                    return link
        return None

    def _new_link(self, session: str | None) -> ClientSession:
        link = ClientSession(self._address, self._token, self._name, self._timeout, session)
        with self._lock:
            self._links.append((threading.current_thread(), link))
        return link
