"""Episodes from messages: whole ones or chunks, of one agent or of several, checked against the spaces.

Sessions read with it what EPISODES brings. It knows how columns belong together, and nothing about who learns from
them, which policy acted, or which chunks belong to one episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from menv.serving.bad_message import BadMessageError, Code
from menv.serving.bad_value import BadValueError
from menv.serving.columns import ColumnReader, reader_of
from menv.serving.dialect import Data, Dialect, Typed, fields, is_nil
from menv.serving.free_columns import Floats, log_probabilities, matrix
from menv.serving.masks import MaskCheck
from menv.serving.messages import Count, Id
from menv.serving.number_reader import NumberReader
from menv.serving.space_readers import Column, Space

SpacesOf = Callable[[str | None], tuple[Space, Space] | None]
"""Observation and action space of an agent, of the only one for None; None if there is no such agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireEpisode:
    """An episode or a chunk of one, n steps of one agent; or the episodes of several agents that ran together.

    Arrays may be read-only.

    Attributes:
        id: Which episode, None if the client does not number them.
        env: Which of several environments on one connection.
        t: Index of the first step in the episode.
        terminated: Whether the environment ended it.
        truncated: Whether it was broken off.
        weights_seq_no: Of the weights that acted, if the client told.
        obs: n + 1 observations, [n + 1, *shape] or a list; the last is the one after the last action.
        actions: n actions, [n, *shape] or a list; those of a Box may lie outside its bounds.
        rewards: [n] float64.
        logp: [n] float32 log-probabilities of the actions, or None.
        dist_inputs: [n, K] float32 inputs of the distribution that drew the actions, or None.
        state_in: [n, S] float32 what the network remembered before each step, or None.
        agents: The same of each agent, where there are several; then the columns here are empty.
    """

    id: str | None = None
    env: str | None = None
    t: int = 0
    terminated: bool
    truncated: bool
    weights_seq_no: int | None = None
    obs: Column
    actions: Column
    rewards: npt.NDArray[np.float64]
    logp: Floats | None = None
    dist_inputs: Floats | None = None
    state_in: Floats | None = None
    agents: Mapping[str, WireEpisode] | None = None

    @property
    def steps(self) -> int:
        """n, the number of actions; with several agents, all of theirs together."""
        if self.agents is not None:
            return sum(one.steps for one in self.agents.values())
        return len(self.rewards)


def read_episode(raw: Data, spaces_of: SpacesOf, dialect: Dialect, where: str = "episode") -> WireEpisode:
    """Return an episode of one agent, or of several if it has `agents`.

    Args:
        raw: One entry of `Episodes.episodes`.
        spaces_of: The spaces to check against.
        dialect: Of the message.
        where: Begins the message of an error, such as "EPISODES.episodes[3]".

    Raises:
        BadMessageError: Something in it cannot be taken.
    """
    parts = _Parts(raw, dialect, where)
    if not parts.has("agents"):
        return parts.episode(spaces_of, None)
    members = fields(parts.found["agents"], dialect, f"{where}.agents")
    agents = {}
    for agent_id, member in members.items():
        at = f"{where}.agents[{_short(agent_id)}]"
        agents[agent_id] = _Parts(member, dialect, at).episode(spaces_of, agent_id)
    return WireEpisode(**parts.about(), obs=[], actions=[], rewards=np.empty(0), agents=agents)


_ABOUT = {
    "id": Typed(Id),
    "env": Typed(Id),
    "t": Typed(Count),
    "weights_seq_no": Typed(Count),
}
_FREE: dict[str, tuple[str, Callable[[Raw, Dialect, str, int], Floats]]] = {
    "logp": ("action_logp", log_probabilities),
    "dist_inputs": ("action_dist_inputs", matrix),
    "state_in": ("state_in", matrix),
}
_FLAG = Typed(bool)
_REWARDS = ColumnReader(NumberReader(np.dtype(np.float64)))


class _Parts:
    """The fields of one episode, of one agent, before they are decoded."""

    def __init__(self, raw: Data, dialect: Dialect, where: str) -> None:
        self.found = fields(raw, dialect, where)
        self._dialect, self._where = dialect, where

    def has(self, name: str) -> bool:
        """Return whether a field is there and not null."""
        return name in self.found and not is_nil(self.found[name], self._dialect)

    def about(self) -> dict[str, Any]:
        """Return what is known of the whole: ids, flags, where it begins."""
        self._require("is_terminated", "is_truncated")
        return {
            "terminated": self._read("is_terminated", _FLAG),
            "truncated": self._read("is_truncated", _FLAG),
            **{name: self._read(name, typed) for name, typed in _ABOUT.items() if self.has(name)},
        }

    def episode(self, spaces_of: SpacesOf, agent_id: str | None) -> WireEpisode:
        """Return the episode of one agent."""
        self._require("obs", "actions", "rewards")
        about = self.about()
        spaces = spaces_of(agent_id)
        if spaces is None:
            raise BadMessageError(
                Code.UNKNOWN_AGENT, f"{self._where}: no agent of this id, expected one of the environment's"
            )
        observations, acts = reader_of(spaces[0]), reader_of(spaces[1], bounded=False)
        rewards = self._read("rewards", _REWARDS)
        actions = acts.column(self.found["actions"], self._dialect, f"{self._where}.actions")
        obs = observations.column(self.found["obs"], self._dialect, f"{self._where}.obs")
        steps = len(rewards)
        if len(actions) != steps or len(obs) != steps + 1:
            raise BadMessageError(
                Code.WRONG_LENGTH,
                f"{self._where}: {len(obs)} obs, {len(actions)} actions and {steps} rewards, expected as many rewards "
                "as actions and one obs more; end with the obs after the last action",
            )
        if observations.masks:
            self._check_masks(observations.masks, obs, actions, spaces[1], about)
        return WireEpisode(**about, **self._free(steps), obs=obs, actions=actions, rewards=rewards)

    def _free(self, steps: int) -> dict[str, Any]:
        """Return the columns whose width no space tells, those that are there."""
        return {
            name: read(self.found[key], self._dialect, f"{self._where}.{key}", steps)
            for name, (key, read) in _FREE.items()
            if self.has(key)
        }

    def _check_masks(
        self, masks: MaskCheck, obs: Column, actions: Column, space: Space, about: Mapping[str, Any]
    ) -> None:
        """Check that somebody could act wherever somebody does, and did what was allowed."""
        ended = about["terminated"] or about["truncated"]
        name = "obs"
        try:
            masks.check(obs, len(actions) if ended else len(obs))
            name = "actions"
            masks.check_actions(obs, actions, space)
        except BadValueError as error:
            raise error.in_message(f"{self._where}.{name}") from None

    def _read(self, name: str, typed: Typed | ColumnReader) -> Any:
        return typed.read(self.found[name], self._dialect, f"{self._where}.{name}")

    def _require(self, *names: str) -> None:
        missing = [name for name in names if name not in self.found]
        if missing:
            raise BadMessageError(
                Code.MISSING_FIELD,
                f"{self._where}: no {' and no '.join(missing)}, expected {', '.join(names)}",
            )


def _short(agent_id: str) -> str:
    return repr(agent_id[:60])
