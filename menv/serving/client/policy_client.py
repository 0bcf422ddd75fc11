"""`PolicyClient`: connects an application that owns its loop to a policy server.

It needs numpy, msgspec and gymnasium, and onnxruntime for `inference_mode="local"`. `ClientSession` sends messages and
repeats lost ones. `RemoteEpisode` asks the server for each action; `LocalEpisode` acts with the client's own copy of
the policies.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from menv import external_env
from menv.base_env import SINGLE_AGENT
from menv.errors import ConfigError, ContractError, EpisodeError, MenvError, RefusedError, ServerGoneError
from menv.external_env import check_told_info, done_flags, finite_reward, truncation
from menv.serving.client.client_session import (
    ClientSession,
    Space,
    action_spaces,
    element_of,
    read_address,
    to_wire,
)
from menv.serving.protocol import EndEpisode, ErrorCode, GetAction, LogAction, LogReturns, StartEpisode
from menv.serving.transports.access import check_token

if TYPE_CHECKING:
    from menv.serving.client.local_actor import LocalActor
    from menv.serving.client.local_episode import LocalEpisode


_NUMBER: Any = Real
_LONGEST = 1e9
"""Seconds; sockets accept no much larger timeout."""
_LONGEST_ID = 256
_NOT_UTF_8 = re.compile("[\ud800-\udfff]")


def check_settings(
    inference_mode: object, update_interval: Any, timeout: Any, client: object, seed: object
) -> None:
    """Refuse arguments of `PolicyClient` that no client can have."""
    # Comparisons are written so that NaN fails.
    rules = (
        (inference_mode in ("local", "remote"), f"inference_mode={inference_mode!r:.40}", "'local' or 'remote'",
         "choose one"),
        (update_interval is None or (isinstance(update_interval, _NUMBER) and update_interval >= 0),
         f"update_interval={update_interval!r:.40}", "seconds from 0 or None", "leave it out for 10"),
        (isinstance(timeout, _NUMBER) and 0 < timeout <= _LONGEST, f"timeout={timeout!r:.40}",
         f"seconds above 0, at most {_LONGEST:g}", "leave it out for 60"),
        (client is None or (isinstance(client, str) and not _NOT_UTF_8.search(client)), f"client is {client!a:.60}",
         "a text or None", "give a name for the server's reports"),
        (seed is None or (isinstance(seed, Integral) and not isinstance(seed, bool)), f"seed={seed!r:.40}",
         "a whole number or None", "leave it out for a random one"),
    )  # fmt: skip
    for holds, got, expected, advice in rules:
        if not holds:
            raise ConfigError(f"PolicyClient: {got}, expected {expected}; {advice}")


def is_id(value: object) -> bool:
    """Return whether a value can name an episode or an agent in messages."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_ID and not _NOT_UTF_8.search(value)


def check_start(episode_id: object, trained: object) -> None:
    """Refuse arguments of `start_episode` that are invalid.

    The server would refuse an id only when the episode is sent, and with it every episode in the same message.
    """
    if episode_id is not None and not is_id(episode_id):
        raise ConfigError(
            f"start_episode: the id is {episode_id!a:.60}, expected a text of 1 to {_LONGEST_ID} characters that UTF-8 "
            "has; write str(...) of a number, or leave the id out to get one"
        )
    external_env.check_start(None, trained)


def check_agent(where: str, agent: object) -> None:
    """Refuse a value that cannot name an agent."""
    if not is_id(agent):
        raise ContractError(
            f"{where}: agent {agent!a:.60}, expected a text of 1 to {_LONGEST_ID} characters that UTF-8 has; name "
            "agents by texts"
        )


class RemoteEpisode:
    """An open episode whose actions the server chooses, one request at a time.

    Messages are numbered, so the server processes a repeated one once.
    """

    def __init__(
        self,
        session: ClientSession,
        multi_agent: bool,
        action_space: Callable[[str], Space | None],
        episode_id: str,
        trained: bool = True,
    ) -> None:
        self.episode_id = episode_id
        self._session = session
        self._multi_agent, self._action_space = multi_agent, action_space
        self._seq = 0
        self._rewards: dict[str, float] = {}
        self._info: dict[str, Any] = {}
        self._done: dict[str, bool] = {}
        # A sent message without an answer, and the values that it carried.
        self._unconfirmed: Any = None
        self._attached: tuple[dict[str, float], dict[str, Any], dict[str, bool]] = ({}, {}, {})
        session.ask(StartEpisode(episode_id=episode_id, training_enabled=trained, seq=0), in_new_session=True)

    def act(self, observation: Any) -> Any:
        answer = self._ask(GetAction, observation=to_wire(observation, "get_action"))
        space_of = self._action_space
        if not self._multi_agent:
            return element_of(space_of(SINGLE_AGENT), answer.action)
        if not isinstance(answer.action, dict):
            raise ContractError(
                f"PolicyClient: the server answers with a {type(answer.action).__name__}, expected actions by agent; "
                "look at the server's config"
            )
        return {agent: element_of(space_of(agent), action) for agent, action in answer.action.items()}

    def log(self, observation: Any, action: Any) -> None:
        self._ask(
            LogAction,
            observation=to_wire(observation, "log_action"),
            action=to_wire(action, "log_action"),
            wait=True,
        )

    def add_returns(self, reward: Any, info: Any, done: Mapping[str, bool] | None) -> None:
        """Add rewards, infos and done flags, which the next message carries."""
        if info:
            to_wire(info, "log_returns")
        for agent, amount in (reward if self._multi_agent else {SINGLE_AGENT: reward}).items():
            self._rewards[agent] = self._rewards.get(agent, 0.0) + amount
        if info:
            self._info.update(info)
        if done:
            self._done.update({agent: True for agent, flag in done.items() if flag})

    def flush(self) -> None:
        """Send pending rewards, infos and done flags, unless the server accepts no message of the episode now."""
        if self._rewards or self._info or self._done:
            if not self._rewards and not self._multi_agent:
                self._rewards[SINGLE_AGENT] = 0.0
            with contextlib.suppress(EpisodeError):
                self._ask(LogReturns)

    def end(self, observation: Any, truncated: bool) -> None:
        self._ask(EndEpisode, observation=to_wire(observation, "end_episode"), truncated=truncated)

    def _ask(self, kind: type[Any], **fields: Any) -> Any:
        """Send the next message with everything pending; return its answer.

        A message without an answer is repeated first: the server may have processed it.
        """
        if (before := self._unconfirmed) is not None:
            is_same = type(before) is kind and all(
                getattr(before, name) == value for name, value in fields.items()
            )
            try:
                answer = self._send(before)
            except RefusedError:
                if is_same:
                    raise
            else:
                if is_same:
                    return answer
        return self._send(kind(episode_id=self.episode_id, seq=self._seq + 1, **fields, **self._attach()))

    def _attach(self) -> dict[str, Any]:
        """Return everything pending as fields of the next message."""
        multi, fields = self._multi_agent, dict[str, Any]()
        if self._rewards or (multi and (self._info or self._done)):
            fields["reward"] = to_wire(self._rewards if multi else self._rewards[SINGLE_AGENT], "log_returns")
        if self._info:
            fields["info"] = to_wire(self._info, "log_returns")
        if self._done:
            fields["done"] = self._done
        self._attached = self._rewards, self._info, self._done
        self._rewards, self._info, self._done = {}, {}, {}
        return fields

    def _send(self, message: Any) -> Any:
        self._unconfirmed = message
        try:
            answer = self._session.ask(message)
        except ServerGoneError:
            raise
        except MenvError as error:
            self._unconfirmed = None
            self._restore_attached()
            if isinstance(error, RefusedError):
                self._drop_refused(error)
            raise
        self._seq, self._unconfirmed = message.seq, None
        return answer

    def _drop_refused(self, error: RefusedError) -> None:
        """Drop pending values that would be refused again; raise an error that says so."""
        what = str(error).partition(":")[0].partition("[")[0]
        if what == "info" or error.code == ErrorCode.TOO_LARGE:
            self._info = {}
        elif what == "reward":
            self._rewards, self._info, self._done = {}, {}, {}
            raise RefusedError(
                f"{error}; rewards, infos and done flags since the last message are dropped, and the episode "
                "continues: call again",
                error.code,
            ) from error

    def _restore_attached(self) -> None:
        """Make the values of a refused message pending again."""
        rewards, info, done = self._attached
        for agent, amount in self._rewards.items():
            rewards[agent] = rewards.get(agent, 0.0) + amount
        self._rewards, self._info, self._done = rewards, info | self._info, done | self._done


_MAX_ENDED_IDS = 10_000


class PolicyClient:
    """Plays episodes with the policies of a server, which learn from them. A context manager that closes on exit.

    With "remote" inference the client asks the server for each action, and sends rewards with the next request. With
    "local" inference the client fetches the policies, samples actions from its own copy, and sends trajectory chunks of
    as many env steps as the server requests. Infos are not sent then, so `info["training_enabled"] = False` has no
    effect. An episode that starts with `training_enabled=False` is not sent at all. An episode that begins with
    `log_action` is played remotely as a whole. A policy whose connectors keep state for each agent episode, such as
    stacked frames, needs remote inference.

    Several threads may call one client, for many episodes; the calls of one episode must follow one another. With
    "remote" inference they share one connection and wait for each other's answers: give each thread a client where that
    is too slow. A forked process needs a new client. The client replaces a lost connection and repeats lost messages.
    With several agents, observations, actions, rewards and infos are dicts by agent id, and ids are texts.

    Args:
        address: Such as "http://localhost:9900"; also https, tcp and tcps. Certificates are checked against
            the authorities of this machine, and those in the file that the variable SSL_CERT_FILE names.
        inference_mode: "local" or "remote".
        update_interval: With "local" inference, seconds after which the client fetches new weights; None or 0 fetches
            them only in `update_policy_weights`. A server with `force_on_policy` sends new weights for each chunk
            instead, and the call that completes a chunk waits for them. Otherwise a background thread fetches them:
            calls continue with the current weights, and the next call raises an error of that thread.
        token: The token that the server requires.
        timeout: Seconds without a byte of an answer, or without a server that has room, after which a call fails.
            Actions wait while the server learns.
        client: A name for the server's reports.
        seed: Seed of the actions sampled with "local" inference; None chooses a random one.

    Raises:
        ConfigError: Address, mode or token is wrong.
        ServerGoneError: No server answers at the address; so in every later call that needs the server.
        RefusedError: In a later call: the server refuses the request.
    """

    def __init__(
        self,
        address: str,
        inference_mode: Literal["local", "remote"] = "local",
        update_interval: float | None = 10.0,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        client: str | None = None,
        seed: int | None = None,
    ) -> None:
        check_settings(inference_mode, update_interval, timeout, client, seed)
        where = read_address(address)
        # A server without a token takes any.
        check_token("PolicyClient.token", token or None)
        self._lock = threading.Lock()
        self._is_closed = False
        self._episodes: dict[str, RemoteEpisode | LocalEpisode] = {}
        self._session = ClientSession(where, token, client, timeout)
        try:
            self._action_space = action_spaces(self._session.config)
        except BaseException:
            self._disconnect()
            raise
        self._multi_agent = bool(self._session.config.multi_agent)
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._actor: LocalActor | None = None
        if inference_mode == "local":
            from menv.serving.client import local_actor, local_episode

            self._actor = local_actor.LocalActor(self._session, update_interval, seed)
            self._make_local_episode = local_episode.LocalEpisode

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is None:
            self.close()
            return
        # Show the original error, not the failure to send because of it.
        self._disconnect()

    @property
    def weights_seq_no(self) -> int | None:
        """Number of the weights that local inference uses; None before the first, and with remote inference."""
        return None if self._actor is None else self._actor.weights_seq_no

    @property
    def open_episodes(self) -> list[str]:
        """The ids of open episodes."""
        return list(self._episodes)

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begin an episode.

        Args:
            episode_id: A new id, a text of 1 to 256 characters; None creates one.
            training_enabled: Whether policies may learn from the episode.

        Returns:
            The id.

        Raises:
            ConfigError: The id is invalid.
            ContractError: `training_enabled` is not a bool.
            EpisodeError: The id was used before.
            ServerGoneError: The client was closed.
            CallOrderError: The process was forked after the client was created.
        """
        self._session.check_open()
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
        """Return the policy's action for an observation.

        Args:
            episode_id: The episode.
            observation: An element of the observation space, or a dict of them by agent.

        Returns:
            An element of the action space, or a dict of them by agent.

        Raises:
            EpisodeError: There is no such episode, the server has discarded it, or has refused a part of it. With local
                inference, bounds are checked when a chunk is sent.
            ContractError: With local inference: the observation does not have the type or shape of its space.
        """
        return self._episode("get_action", episode_id).act(observation)

    def log_action(self, episode_id: str, observation: Any, action: Any) -> None:
        """Report an action that the application chose; waits until the server has recorded it.

        DQN learns from such actions; PPO, which needs their probabilities, does not.

        Raises:
            CallOrderError: Local inference has chosen actions of this episode before.
            EpisodeError: There is no such episode, or the server has discarded it.
        """
        self._episode("log_action", episode_id).log(observation, action)

    def log_returns(
        self,
        episode_id: str,
        reward: float | dict[str, float],
        info: Mapping[str, Any] | None = None,
        multiagent_done_dict: Mapping[str, bool] | None = None,
    ) -> None:
        """Add a reward for the last action; rewards add up until the next observation and are sent with it.

        Args:
            episode_id: The episode.
            reward: A finite number, or a dict of them by agent.
            info: Sent with the next observation; not sent with local inference.
            multiagent_done_dict: True for agents whose agent episode ends; an observation of such an agent in the next
                call is its last one.

        Raises:
            EpisodeError: There is no such episode.
            ContractError: The reward has another type or is not finite, the info is not a dict, or one of them cannot
                be sent (remote inference). The call has no effect then.
        """
        episode = self._episode("log_returns", episode_id)
        if isinstance(reward, dict) is not self._multi_agent:
            kind = "a dict of numbers by agent" if self._multi_agent else "a number"
            raise ContractError(
                f"log_returns: got a {type(reward).__name__}, expected {kind}; look at the server's config"
            )
        check_told_info(info)
        done = done_flags(multiagent_done_dict)
        rewards: float | dict[str, float]
        if isinstance(reward, dict):
            # A message that the server refuses later would hold up all others.
            for agent in (*reward, *(info or ()), *done):
                check_agent("log_returns", agent)
            for own in (info or {}).values():
                check_told_info(own)
            rewards = {agent: finite_reward(one, episode_id, agent) for agent, one in reward.items()}
        else:
            rewards = finite_reward(reward, episode_id, SINGLE_AGENT)
        episode.add_returns(rewards, info, done)

    def end_episode(self, episode_id: str, observation: Any, truncated: bool = False) -> None:
        """End an episode with its last observation.

        Args:
            episode_id: The episode.
            observation: The final observation, or a dict of them by agent.
            truncated: Whether the episode was cut short and could have earned more.

        Raises:
            EpisodeError: As for `get_action`; also if a part of another episode that has ended was refused.
            ContractError: As for `get_action`; also if an observation was outside its bounds.
        """
        truncated = truncation(truncated)
        episode = self._episode("end_episode", episode_id)
        try:
            episode.end(observation, truncated)
        except EpisodeError:
            self._forget(episode_id)
            raise
        self._forget(episode_id)

    def update_policy_weights(self) -> None:
        """Fetch the newest weights now; has no effect with remote inference."""
        if self._actor is not None:
            self._actor.update()

    def close(self) -> None:
        """Send complete steps and end the connections; open episodes are lost."""
        if self._is_closed:
            return
        refused: MenvError | None = None
        try:
            flushes = [] if self._actor is None else [self._actor.flush]
            flushes += [one.flush for one in self._episodes.values() if isinstance(one, RemoteEpisode)]
            for flush in flushes:
                try:
                    flush()
                except (EpisodeError, RefusedError) as error:
                    # The other episodes are still sent.
                    refused = refused or error
        finally:
            self._disconnect()
        if refused is not None:
            raise refused

    def _disconnect(self) -> None:
        self._is_closed = True
        self._episodes.clear()
        self._session.close()

    def _episode(self, call: str, episode_id: str) -> RemoteEpisode | LocalEpisode:
        is_text = isinstance(episode_id, str)
        if is_text and (episode := self._episodes.get(episode_id)) is not None:
            return episode
        self._session.check_open()
        why = "is completed" if is_text and episode_id in self._ended else "was not found"
        raise EpisodeError(
            f"{call}: episode {episode_id!r:.80} {why}, expected one that is open; call start_episode first"
        )

    def _forget(self, episode_id: str) -> None:
        with self._lock:
            self._episodes.pop(episode_id, None)
            self._ended[episode_id] = None
            if len(self._ended) > _MAX_ENDED_IDS:
                self._ended.popitem(last=False)

    def _new_episode(self, name: str, trained: bool) -> RemoteEpisode | LocalEpisode:
        if self._actor is None:
            return RemoteEpisode(self._session, self._multi_agent, self._action_space, name, trained=trained)
        episode = self._make_local_episode(self._actor, name, trained, self._multi_agent, self._make_remote)
        self._actor.opened(episode)
        return episode

    def _make_remote(self, episode: LocalEpisode) -> RemoteEpisode:
        assert self._actor is not None
        remote = RemoteEpisode(
            self._session, self._multi_agent, self._action_space, episode.episode_id, trained=episode.trained
        )
        # After the request: if the server has no room, the episode stays local.
        self._actor.forget(episode)
        early = episode.early_rewards
        if early:
            remote.add_returns(early if self._multi_agent else sum(early.values()), None, None)
        self._episodes[episode.episode_id] = remote
        return remote
