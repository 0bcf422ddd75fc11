"""PolicyClient: what an application calls that owns its loop and talks to a `PolicyServerInput`.

It needs numpy, msgspec and gymnasium, with `inference_mode="local"` onnxruntime as well. Where messages go and what
is sent again is known to `client_link`, how to act without asking to `local_actor`.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from menv.base_env import SINGLE_AGENT
from menv.call_errors import check_told_info, done_flags, truncation
from menv.errors import ContractError, EpisodeError, MenvError, RefusedError
from menv.line import finite_reward
from menv.serving.client.client_address import check_token, read_address
from menv.serving.client.client_arguments import check_settings, check_start, check_told
from menv.serving.client.client_link import ClientLink, NotNowError
from menv.serving.client.client_spaces import ClientSpaces
from menv.serving.client.remote_episode import RemoteEpisode

if TYPE_CHECKING:
    from menv.serving.client.local_actor import LocalActor
    from menv.serving.client.local_episode import LocalEpisode

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
        self._links: list[tuple[threading.Thread, ClientLink]] = []
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

    def _link(self) -> ClientLink:
        """Return this thread's own way to the server; with local inference all threads share one."""
        if self._actor is not None:
            return self._first
        link: ClientLink | None = getattr(self._own, "link", None)
        if link is None:
            link = self._own.link = self._left_behind() or self._new_link(None)
        return link

    def _left_behind(self) -> ClientLink | None:
        with self._lock:
            for index, (owner, link) in enumerate(self._links):
                if not owner.is_alive():
                    self._links[index] = threading.current_thread(), link
                    return link
        return None

    def _new_link(self, session: str | None) -> ClientLink:
        link = ClientLink(self._address, self._token, self._name, self._timeout, session)
        with self._lock:
            self._links.append((threading.current_thread(), link))
        return link
