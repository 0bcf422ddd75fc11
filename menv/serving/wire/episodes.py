"""Episodes from messages: whole ones or chunks, of one agent or of several, checked against the spaces.

Sessions read with it what EPISODES brings. It knows how columns belong together, and nothing about who learns from
them, which policy acted, or which chunks belong to one episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Raw, UnsetType

from menv.nested import leaves
from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.bad_value import BadValueError
from menv.serving.wire.columns import ColumnReader, ElementReader, reader_of, reward
from menv.serving.wire.dialect import Data, Dialect, Typed, check_keys, fields, is_nil
from menv.serving.wire.free_columns import (
    NUMBERS_OR_ROWS,
    ROWS,
    TIMES,
    Floats,
    gaussian,
    log_probabilities,
    matrix,
    refuse_positive,
    rows_within,
    times,
)
from menv.serving.wire.messages import Count, Id
from menv.serving.wire.number_reader import NumberReader
from menv.serving.wire.packed import Packed
from menv.serving.wire.space_readers import Column, Space

SpacesOf = Callable[[str | None], tuple[Space, Space] | None]
"""Observation and action space of an agent; None if there is no such agent. Asked for None, those of the only agent
of a single-agent environment; None if it has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireEpisode:
    """An episode or a chunk of one, n steps of one agent; or the episodes of several agents that ran together.

    Arrays may be read-only.

    Attributes:
        id: Which episode, None if the client does not name them.
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
        env_t: [n + 1] env step of the episode in which each observation was seen, or None.
        agents: The same of each agent, where there are several; then the columns here are empty.
        env_steps: Of a chunk of several agents, if the client told.
        unclaimed: What was paid to agents that no action of theirs can own, by agent.
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
    env_t: npt.NDArray[np.int64] | None = None
    agents: Mapping[str, WireEpisode] | None = None
    env_steps: int | None = None
    unclaimed: Mapping[str, float] | None = None

    @property
    def steps(self) -> int:
        """n, the number of actions; with several agents, all of theirs together."""
        if self.agents is not None:
            return sum(one.steps for one in self.agents.values())
        return len(self.rewards)


def read_episode(raw: Data, spaces_of: SpacesOf, dialect: Dialect, where: str = "episode") -> WireEpisode:
    """Return an episode.

    Args:
        raw: One entry of `Episodes.episodes`.
        spaces_of: The spaces to check against; they also tell whether there are several agents.
        dialect: Of the message.
        where: Begins the message of an error, such as "EPISODES.episodes[3]".

    Raises:
        BadMessageError: Something in it cannot be taken.
        ConfigError: Elements of a space have no form on the wire.
    """
    spaces = spaces_of(None)
    if spaces is not None:
        return _reader_of(spaces).read(raw, dialect, where)
    whole = _declared(_WHOLE, raw, dialect, where, ("agents", "is_terminated", "is_truncated"))
    agents = {}
    for agent_id, member in fields(whole.agents, dialect, f"{where}.agents").items():
        at = f"{where}.agents[{agent_id[:60]!r}]"
        spaces = spaces_of(agent_id)
        if spaces is None:
            raise BadMessageError(
                Code.UNKNOWN_AGENT, f"{at}: unknown agent, expected one of the environment's"
            )
        agents[agent_id] = _reader_of(spaces).read(member, dialect, at)
    return WireEpisode(
        **_about(whole), obs=[], actions=[], rewards=np.empty(0), agents=agents,
        env_steps=whole.env_steps if isinstance(whole.env_steps, int) else None,
        unclaimed=_unclaimed(whole.unclaimed, dialect, f"{where}.unclaimed"),
    )  # fmt: skip


_ABOUT: list[tuple[str, Any, Any]] = [
    ("is_terminated", bool | UnsetType, UNSET),
    ("is_truncated", bool | UnsetType, UNSET),
    ("id", Id | None | UnsetType, UNSET),
    ("env", Id | None | UnsetType, UNSET),
    ("t", Count | None | UnsetType, UNSET),
    ("weights_seq_no", Count | None | UnsetType, UNSET),
]
_OF_SEVERAL: list[tuple[str, Any, Any]] = [
    ("agents", Raw, UNSET),
    ("unclaimed", Raw, UNSET),
    ("env_steps", Count | None | UnsetType, UNSET),
]
_WHOLE = Typed(msgspec.defstruct("Whole", [*_ABOUT, *_OF_SEVERAL]))
_REWARDS = ColumnReader(NumberReader(np.dtype(np.float64)))
_FREE: dict[str, tuple[str, Callable[[Any, str, int], npt.NDArray[Any]]]] = {
    "logp": ("action_logp", log_probabilities),
    "dist_inputs": ("action_dist_inputs", matrix),
    "state_in": ("state_in", matrix),
    "env_t": ("env_t", times),
}
_NEEDED = ("obs", "actions", "rewards", "is_terminated", "is_truncated")


class EpisodeReader:
    """Reads episodes of one agent.

    Args:
        observations: Reads its observations.
        actions: Reads its actions.
    """

    def __init__(self, observations: ElementReader, actions: ElementReader) -> None:
        self._readers = (observations, actions)
        self._obs, self._actions = observations.columns, actions.columns
        box = isinstance(actions.space, gym.spaces.Box)
        self._shape: tuple[int, ...] | None = actions.space.shape if box else None
        self._chosen = not any(isinstance(leaf, gym.spaces.Box) for leaf in leaves(actions.space))
        self._typed = Typed(*(self._declaration(dialect) for dialect in ("json", "msgpack")))

    def _declaration(self, dialect: str) -> Any:
        packed = UnsetType if dialect == "json" else Packed | UnsetType
        columns: list[tuple[str, Any, Any]] = [
            ("obs", getattr(self._obs, dialect) | UnsetType, UNSET),
            ("actions", getattr(self._actions, dialect) | UnsetType, UNSET),
            ("rewards", getattr(_REWARDS, dialect) | UnsetType, UNSET),
            ("action_logp", NUMBERS_OR_ROWS | None | packed, UNSET),
            ("action_dist_inputs", rows_within(len(self._shape or ())) | None | packed, UNSET),
            ("state_in", ROWS | None | packed, UNSET),
            ("env_t", TIMES | None | packed, UNSET),
        ]
        return msgspec.defstruct("OneAgent", [*_ABOUT, *columns])

    def read(self, raw: Data, dialect: Dialect, where: str) -> WireEpisode:
        """Return an episode.

        Raises:
            BadMessageError: Something in it cannot be taken.
        """
        found = _declared(self._typed, raw, dialect, where, _NEEDED)
        rewards: Any = _REWARDS.build(found.rewards, f"{where}.rewards")
        actions = self._actions.build(found.actions, f"{where}.actions")
        obs = self._obs.build(found.obs, f"{where}.obs")
        steps = len(rewards)
        if len(actions) != steps or len(obs) != steps + 1:
            raise BadMessageError(
                Code.WRONG_LENGTH,
                f"{where}: {len(obs)} obs, {len(actions)} actions and {steps} rewards, expected as many rewards as "
                "actions and one obs more; end with the obs after the last action",
            )
        about = _about(found)
        if self._readers[0].masks:
            self._check_masks(obs, actions, about["terminated"] or about["truncated"], where)
        for name, (column, build) in _FREE.items():
            values = getattr(found, column)
            if name == "dist_inputs" and self._shape:
                build = partial(gaussian, shape=self._shape)
            if values is not UNSET and values is not None:
                about[name] = build(values, f"{where}.{column}", steps)
        if self._chosen and "logp" in about:
            refuse_positive(about["logp"], f"{where}.action_logp")
        return WireEpisode(**about, obs=obs, actions=actions, rewards=rewards)

    def _check_masks(self, obs: Column, actions: Column, ended: bool, where: str) -> None:
        observations, acts = self._readers
        column = "obs"
        try:
            observations.masks.check(obs, len(actions) if ended else len(obs), acts.space)
            column = "actions"
            observations.masks.check_actions(obs, actions, acts.space)
        except BadValueError as error:
            raise error.in_message(f"{where}.{column}") from None


_MOST_READERS = 1024
_readers: dict[tuple[int, int], EpisodeReader] = {}


def _reader_of(spaces: tuple[Space, Space]) -> EpisodeReader:
    observations, actions = reader_of(spaces[0]), reader_of(spaces[1], bounded=False)
    # A reader keeps these two, so that no others can get the same ids.
    key = (id(observations), id(actions))
    reader = _readers.get(key)
    if reader is None:
        if len(_readers) >= _MOST_READERS:
            _readers.clear()
        reader = _readers[key] = EpisodeReader(observations, actions)
    return reader


def _declared(typed: Typed, raw: Data, dialect: Dialect, where: str, needed: tuple[str, ...]) -> Any:
    """Return an object with declared fields, all needed ones given and no key twice."""
    found = typed.read(raw, dialect, where)
    missing = [name for name in needed if getattr(found, name) is UNSET]
    if missing:
        raise BadMessageError(
            Code.MISSING_FIELD, f"{where}: no {' and no '.join(missing)}, expected {', '.join(needed)}"
        )
    keys = sum(value is not UNSET for value in msgspec.structs.astuple(found))
    strings = isinstance(found.id, str) + isinstance(found.env, str)
    check_keys(raw, dialect, where, keys, strings)
    return found


def _unclaimed(raw: Raw | UnsetType, dialect: Dialect, where: str) -> Mapping[str, float] | None:
    """Return what was paid to agents that no action of theirs can own; null means nothing."""
    if isinstance(raw, UnsetType) or is_nil(raw, dialect):
        return None
    paid = reward(raw, dialect, where)
    if not isinstance(paid, dict):
        raise BadMessageError(
            Code.WRONG_TYPE, f"{where}: got a number, expected an object of numbers by agent"
        )
    return paid


def _about(found: Any) -> dict[str, Any]:
    """Return what is known of the whole episode; null means the same as nothing."""
    about = {"terminated": found.is_terminated, "truncated": found.is_truncated}
    for name in ("id", "env", "t", "weights_seq_no"):
        value = getattr(found, name)
        if value is not UNSET and value is not None:
            about[name] = value
    return about
