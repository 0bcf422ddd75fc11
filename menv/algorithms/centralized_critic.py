"""The input of a centralized critic with `critic_obs="all_agents"`: observations and actions of all agents, as rows.

A row holds the agent's observation, then for each other possible agent its observation, its action and a
flag. Agents with equal spaces lie together, in the order of `possible_agents`, so that a column means the same
for all agents of a policy. Observations are flat, as a policy's network sees them; discrete actions are one-hot
codes, continuous ones the network's numbers. The flag is 1 where the agent acted in that env step. An absent agent is
all zeros, as is any agent outside `possible_agents`, which sees no others.

The observation after the last row of a trajectory chunk, if that was not terminated, has no action yet: it is shown in
its env step, with zeros for the action and a flag of 0. So are all agents in the rows that a value bootstraps from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId, Column
from menv.connectors.action_output import component_sizes, is_discrete
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.episode import Episode
from menv.errors import ConfigError, ContractError
from menv.policy_spec import PolicySpec
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.spaces import leaves

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CriticInputKind:
    """Agents with equal spaces.

    `obs_size` is F, 0 where observations cannot be flattened; `width` is F + A + 1 for actions of A numbers; `places`
    are their positions among the possible agents.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    obs_size: int
    width: int
    places: tuple[int, ...]

    def others(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> int:
        """Return how many of them an agent of these spaces sees: all but itself."""
        mine = self.observation_space == observation_space and self.action_space == action_space
        return len(self.places) - mine


class CriticRows(NamedTuple):
    """Input of a critic for a policy's batch: `rows` [N, C], and `after` [S, C] behind the last row of each chunk."""

    rows: Floats
    after: Floats


class JointObs:
    """The possible agents of one environment, grouped by spaces; `places` are their positions."""

    def __init__(self, agents: Mapping[AgentId, PolicySpec]) -> None:
        if not agents:
            raise ConfigError(
                'critic_obs="all_agents": the environment does not say which agents there are, expected '
                "possible_agents; set it in the environment, or give a function as critic_obs"
            )
        self.places = {agent: place for place, agent in enumerate(agents)}
        alike: list[tuple[Any, list[int]]] = []
        for place, spec in enumerate(agents.values()):
            spaces = (spec.observation_space, spec.action_space)
            mine = next((places for other, places in alike if other == spaces), None)
            if mine is None:
                alike.append((spaces, [place]))
            else:
                mine.append(place)
        self.kinds = [_kind(spaces[0], spaces[1], tuple(places)) for spaces, places in alike]

    def size(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> int:
        """Return C for a policy of these spaces: F + the sum of F + A + 1 over the other agents."""
        others = sum(kind.others(observation_space, action_space) * kind.width for kind in self.kinds)
        return int(ObsPreprocessor(observation_space).size + others)


class JointFragment:
    """The observations and actions of one fragment.

    Actions of the policies in `outside` are the environment's, not a network's; `beside` are rows that are shown but
    have no critic.
    """

    def __init__(
        self,
        joint: JointObs,
        batch: MultiAgentBatch,
        episodes: Mapping[int, Episode],
        outside: Collection[str] = (),
        beside: Sequence[tuple[str, SampleBatch]] = (),
    ) -> None:
        self._joint = joint
        self._outside = outside
        self._absent = len(joint.places)
        self._tables = {
            name: _Table(own, self._places(own, episodes)) for name, own in batch.policy_batches.items()
        }
        seen = [(name, _Table(own, self._places(own, episodes))) for name, own in beside if own.count]
        self._seen = [*self._tables.items(), *seen]
        self._clock = _Clock([table for _, table in self._seen])
        self._cells: dict[int, tuple[Floats, Column]] = {}

    def of(
        self, policy_id: str, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> CriticRows:
        """Return the critic input of a policy."""
        asked, clock = self._tables[policy_id], self._clock
        dates = np.concatenate((asked.dates, asked.after_dates))
        times = clock.times(np.concatenate((asked.eps, asked.piece_eps)), dates)
        places = np.concatenate((asked.places, asked.piece_places))
        seen = [np.concatenate((asked.obs, asked.after_obs))]
        for number, kind in enumerate(self._joint.kinds):
            if number not in self._cells:
                self._cells[number] = self._cells_of(kind)
            cells, where = self._cells[number]
            others = _others(kind.places, self._absent)[
                places, : kind.others(observation_space, action_space)
            ]
            seen.append(cells[where[times[:, None], others]].reshape(len(times), -1))
        rows = np.concatenate(seen, axis=1)
        return CriticRows(rows[: len(asked.dates)], rows[len(asked.dates) :])

    def _places(self, batch: SampleBatch, episodes: Mapping[int, Episode]) -> Column:
        """Return [S] the position of each chunk's agent; the number of possible agents for any other agent."""
        segments, places = batch.segments, self._joint.places
        agents = {eps_id: episodes[eps_id].get_agents() for eps_id in set(segments.eps_id.tolist())}
        pairs = zip(segments.eps_id.tolist(), segments.agent_index.tolist(), strict=True)
        return np.array(
            [places.get(agents[eps_id][number], self._absent) for eps_id, number in pairs], np.int64
        )

    def _cells_of(self, kind: CriticInputKind) -> tuple[Floats, Column]:
        """Return what there is to see of a kind's agents, and where.

        Returns:
            [M + 1, F + A + 1] cells, the last of them zeros; [times, possible agents + 1] which cell shows an
            agent at a time.
        """
        where = np.full((self._clock.count, self._absent + 1), -1)
        wanted = np.isin(np.arange(self._absent + 1), kind.places)
        cells, total = [], 0
        for name, table in self._seen:
            if not wanted[table.piece_places].any():
                continue
            rows, pieces = wanted[table.places], wanted[table.piece_places] & ~table.dead
            came = _cells(kind, name, table.after_obs[pieces])
            acted = _cells(kind, name, table.obs[rows])
            _add_actions(acted, kind, table.actions[rows], counts_from_0=name not in self._outside)
            # Rows come last: the first row of an agent episode overwrites the state after the previous one.
            for eps, dates, places, made in (
                (table.piece_eps[pieces], table.after_dates[pieces], table.piece_places[pieces], came),
                (table.eps[rows], table.dates[rows], table.places[rows], acted),
            ):
                where[self._clock.times(eps, dates), places] = total + np.arange(len(made))
                cells.append(made)
                total += len(made)
        return np.concatenate((*cells, np.zeros((1, kind.width), np.float32))), where


class _Table:
    """The rows and chunks of one policy's batch, as other agents see them."""

    def __init__(self, batch: SampleBatch, piece_places: Column) -> None:
        segments = batch.segments
        ends = segments.ends - 1
        self.obs, self.after_obs = _numbers(batch["obs"]), _numbers(segments.next_obs)
        self.actions = batch["actions"]
        self.piece_eps, self.piece_places = segments.eps_id, piece_places
        self.eps, self.dates = segments.spread("eps_id"), batch[SampleBatch.ENV_T]
        self.places = np.repeat(piece_places, segments.lengths)
        self.after_dates = batch[SampleBatch.NEXT_ENV_T][ends]
        self.dead = batch["terminateds"][ends]


class _Clock:
    """Numbers the moments of a fragment: pairs of episode and env step."""

    def __init__(self, tables: list[_Table]) -> None:
        eps = np.concatenate([column for table in tables for column in (table.eps, table.piece_eps)])
        dates = np.concatenate([column for table in tables for column in (table.dates, table.after_dates)])
        self._episodes = np.unique(eps)
        self._span = int(dates.max()) + 1
        self._moments = np.unique(self._key(eps, dates))
        self.count = len(self._moments)

    def times(self, eps: Column, dates: Column) -> Column:
        """Return the number of each moment."""
        times: Column = np.searchsorted(self._moments, self._key(eps, dates))
        return times

    def _key(self, eps: Column, dates: Column) -> Column:
        key: Column = np.searchsorted(self._episodes, eps) * self._span + dates
        return key


def _kind(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], places: tuple[int, ...]
) -> CriticInputKind:
    try:
        size = ObsPreprocessor(observation_space).size
    except ConfigError:
        size = 0
    try:
        actions = gym.spaces.flatdim(action_space)
    except (NotImplementedError, ValueError) as error:
        raise ConfigError(
            f'critic_obs="all_agents": actions of {action_space}, expected a space of a fixed number of choices or '
            "numbers; give a function as critic_obs"
        ) from error
    return CriticInputKind(observation_space, action_space, size, size + int(actions) + 1, places)


def _others(places: tuple[int, ...], absent: int) -> Column:
    """Return [agents + 1, K] the K positions of a kind as each agent sees them: itself last, as absent.

    An agent that is not among the possible ones sees no others.
    """
    seen = np.tile(np.array(places), (absent + 1, 1))
    for row, place in enumerate(places):
        seen[place] = [*places[:row], *places[row + 1 :], absent]
    seen[absent] = absent
    return seen


def _numbers(obs: Column) -> Column:
    """Return observations as numbers of the size that networks see: images of bytes from 0 to 1."""
    return obs if obs.dtype != np.uint8 else obs.astype(np.float32) / np.float32(255.0)


def _cells(kind: CriticInputKind, policy_id: str, obs: Column) -> Floats:
    """Return [N, F + A + 1] cells of observations [N, F], without actions."""
    cells = np.zeros((len(obs), kind.width), np.float32)
    if obs.shape[1] == kind.obs_size + len(getattr(kind.observation_space, "spaces", ())):
        # Rows of a group that QMIX trains mark its members.
        obs = obs[:, : kind.obs_size]
    if len(obs) and obs.shape[1] != kind.obs_size:
        raise ContractError(
            f'critic_obs="all_agents": observations of policy {policy_id!r} have {obs.shape[1]} numbers, expected '
            f"{kind.obs_size} as the agent's space says; map agents to policies with equal spaces"
        )
    if len(obs):
        cells[:, : kind.obs_size] = obs
    return cells


def _add_actions(cells: Floats, kind: CriticInputKind, actions: Column, *, counts_from_0: bool) -> None:
    """Write actions [N, ...] and their flags into cells; choices of an environment may count from elsewhere."""
    columns = cells[:, kind.obs_size : -1]
    cells[:, -1] = 1.0
    parts = leaves(kind.action_space)
    if actions.dtype == object:
        for row, action in zip(columns, actions, strict=True):
            row[:] = gym.spaces.flatten(kind.action_space, action)
        return
    # Each part has its columns of an action, and as many numbers in a cell as gymnasium makes of it.
    start = place = 0
    flat = actions.reshape(len(actions), -1)
    for part in parts:
        own = flat[:, start : start + int(np.prod(part.shape))]
        start += own.shape[1]
        width = gym.spaces.flatdim(part)
        if is_discrete(part):
            sizes = component_sizes(part)
            chosen = own.astype(np.int64) - (0 if counts_from_0 else np.ravel(part.start))
            np.put_along_axis(
                columns[:, place : place + width], chosen + np.cumsum(sizes) - sizes, 1.0, axis=1
            )
        else:
            columns[:, place : place + width] = own
        place += width
