"""An episode whose actions a client asks the server for, one by one.

`PolicyClient` calls it. Messages are numbered, so that one which had to be sent again is taken once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from menv.base_env import SINGLE_AGENT
from menv.errors import ContractError, EpisodeError, MenvError, RefusedError, ServerGoneError
from menv.serving.client.client_link import ClientLink, NotNowError
from menv.serving.client.client_spaces import ClientSpaces
from menv.serving.client.client_values import element_of, written
from menv.serving.wire.bad_message import Code
from menv.serving.wire.messages import EndEpisode, GetAction, LogAction, LogReturns, StartEpisode

_ABOUT_SIZE = (Code.TOO_LARGE, Code.TOO_DEEP)
"""Why a message is refused that would be refused again with the same info."""
_ABOUT_VALUES = (Code.UNKNOWN_AGENT, Code.WRONG_TYPE, Code.OUT_OF_RANGE, Code.NOT_FINITE)
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
        link: ClientLink,
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
