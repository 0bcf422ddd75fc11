"""The input of a centralized critic with `critic_obs="all_agents"`: observations of all agents, as rows.

A row holds the agent's observation, then for each other possible agent its newest observation and a flag of 1. Agents
with equal observation spaces lie together, in the order of `possible_agents`, so that a column means the same for all
agents of a policy. Observations are flat, as a policy's network sees them. An agent that has not appeared or has ended
is all zeros, as is any agent outside `possible_agents`, which sees no others. Where fragments end changes nothing.

There are no actions: the rows that a value bootstraps from, after a truncation or at the end of a fragment, have none
yet, and a critic says nothing of rows unlike those it learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import GLOBAL_STATE, AgentId, Column
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.episode import Episode
from menv.errors import ConfigError, ContractError
from menv.policy_spec import PolicySpec
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.policy_group import PolicyGroup

Floats = npt.NDArray[np.float32]
_FOR_EVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class CriticInputKind:
    """Agents with equal observation spaces.

    `obs_size` is F, 0 where observations cannot be flattened; `places` are their positions among the possible agents.
    """

    observation_space: gym.Space[Any]
    obs_size: int
    places: tuple[int, ...]

    def others(self, observation_space: gym.Space[Any]) -> int:
        """Return how many of them an agent of this space sees: all but itself."""
        return len(self.places) - (self.observation_space == observation_space)


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
            mine = next((places for space, places in alike if space == spec.observation_space), None)
            if mine is None:
                alike.append((spec.observation_space, [place]))
            else:
                mine.append(place)
        self.kinds = [CriticInputKind(space, _size(space), tuple(places)) for space, places in alike]

    def size(self, observation_space: gym.Space[Any]) -> int:
        """Return C for a policy of this space: F + the sum of F + 1 over the other agents."""
        others = sum(kind.others(observation_space) * (kind.obs_size + 1) for kind in self.kinds)
        return int(ObsPreprocessor(observation_space).size + others)


class Shown(NamedTuple):
    """Observations of one policy's agents, each their newest one from env step `dates` to before `until`.

    `places` [N] are the agents.
    """

    policy_id: str
    eps: Column
    places: Column
    dates: Column
    until: Column
    obs: Column

    def take(self, rows: Column) -> Shown:
        """Return some rows."""
        own: dict[str, Any] = {
            name: column[rows] for name, column in self._asdict().items() if isinstance(column, np.ndarray)
        }
        return self._replace(**own)


class CriticStates:
    """The states of recurrent centralized critics after the last rows of trajectories that a fragment's end cut."""

    def __init__(self) -> None:
        # By agent episode, which the next episode of the sub-environment replaces: its id, the next row, the state.
        self._kept: dict[int, tuple[int, int, Floats]] = {}

    def unrolled(
        self, batch: SampleBatch, size: int, step: Callable[[Column, Floats], Floats]
    ) -> tuple[Floats, Floats]:
        """Return the states before the rows [N, `size`] and after each chunk [S, `size`]; they begin with zeros.

        `step` returns the states after rows from their indices [M] and the states before them.
        """
        segments, times = batch.segments, batch[SampleBatch.T]
        states = np.zeros((len(segments.lengths), size), np.float32)
        lives = segments.life.tolist()
        for chunk, place in enumerate(
            zip(segments.eps_id.tolist(), times[segments.starts].tolist(), strict=True)
        ):
            *known, state = self._kept.pop(lives[chunk], (None,))
            if known == [*place]:
                states[chunk] = state
        before = np.empty((batch.count, size), np.float32)
        for number in range(int(segments.lengths.max(initial=0))):
            running = np.flatnonzero(segments.lengths > number)
            rows = segments.starts[running] + number
            before[rows] = states[running]
            states[running] = step(rows, states[running])
        ends = segments.ends - 1
        goes_on = ~(batch[SampleBatch.TERMINATEDS] | batch[SampleBatch.TRUNCATEDS])[ends]
        for chunk in np.flatnonzero(goes_on).tolist():
            place = int(segments.eps_id[chunk]), int(times[ends[chunk]]) + 1
            self._kept[lives[chunk]] = *place, states[chunk].copy()
        return before, states


class JointHistory:
    """What later fragments of some policy groups' rows need of earlier ones.

    A row is released when its agent has another one: that of an agent that pauses may come fragments after the others'
    rows of its env step. `critic_states` belong to recurrent critics.
    """

    def __init__(self, groups: Callable[[], Sequence[PolicyGroup]]) -> None:
        self._groups = groups
        self.kept: list[Shown] = []
        self.critic_states = CriticStates()

    def held(self, places: Mapping[AgentId, int]) -> Iterator[Shown]:
        """Yield the rows that are not released yet; `places` are the positions of the agents."""
        for group in self._groups():
            living, columns = group.buffer.held()
            agents = np.array([places.get(agent, len(places)) for agent in living.agent_id], np.int64)
            for policy in np.unique(living.policy).tolist():
                yield Shown(
                    group.policy_ids[policy], living.eps_id, agents, columns[SampleBatch.ENV_T],
                    np.full(len(agents), _FOR_EVER), _numbers(columns["obs"]),
                ).take(living.policy == policy)  # fmt: skip

    def keep(self, shown: Iterable[Shown], held: Sequence[Shown]) -> None:
        """Keep what was the newest observation when one of the `held` rows was the present."""
        if not held:
            self.kept = []
            return
        eps, dates = _joined(held, "eps"), _joined(held, "dates")
        span = int(dates.max()) + 2
        ids = np.unique(eps)
        keys = np.sort(np.searchsorted(ids, eps) * span + dates)
        kept = []
        for one in (*self.kept, *shown):
            known = np.minimum(np.searchsorted(ids, one.eps), len(ids) - 1)
            first, last = (
                np.searchsorted(keys, known * span + np.minimum(at, span - 1))
                for at in (one.dates, one.until)
            )
            # A row without an end is held by now.
            kept.append(one.take((ids[known] == one.eps) & (last > first) & (one.until < _FOR_EVER)))
        self.kept = [one for one in kept if len(one.eps)]


class JointFragment:
    """The observations of one fragment; `beside` are rows that are shown but have no critic."""

    def __init__(
        self,
        joint: JointObs,
        batch: MultiAgentBatch,
        episodes: Mapping[int, Episode],
        beside: Sequence[tuple[str, SampleBatch]],
        history: JointHistory,
    ) -> None:
        self._joint = joint
        self._absent = len(joint.places)
        self._asked: dict[str, tuple[Shown, Shown]] = {}
        ends, acted = [], []
        for name, own in (*batch.policy_batches.items(), *((name, own) for name, own in beside if own.count)):
            after, rows = _shown(name, own, self._places(own, episodes))
            if own is batch.policy_batches.get(name):
                self._asked[name] = rows, after
            at_ends = own.segments.ends - 1
            ends.append(after.take(~own["terminateds"][at_ends]))
            acted.append(rows)
        held = list(history.held(joint.places))
        # Of one env step the last counts: the first row of an agent episode follows the end of the previous one.
        self._shown = [*ends, *history.kept, *acted, *held]
        history.keep([*ends, *acted], held)
        if not self._shown:
            return
        eps, dates = _joined(self._shown, "eps"), _joined(self._shown, "dates")
        self._until = _joined(self._shown, "until")
        self._ids, self._span = np.unique(eps), int(dates.max()) + 1
        keys = self._key(eps, _joined(self._shown, "places"), dates)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def of(self, policy_id: str, observation_space: gym.Space[Any]) -> CriticRows:
        """Return the critic input of a policy."""
        both = self._asked[policy_id]
        eps, places, dates = (_joined(both, name) for name in ("eps", "places", "dates"))
        seen = [_joined(both, "obs")]
        for kind in self._joint.kinds:
            others = _others(kind.places, self._absent)[places, : kind.others(observation_space)]
            key = self._key(eps[:, None], others, dates[:, None])
            at = np.searchsorted(self._keys, key, "right") - 1
            events = self._order[at]
            same = self._keys[at] // self._span == key // self._span
            events[(at < 0) | ~same | (dates[:, None] >= self._until[events])] = -1
            cells, where = self._cells_of(kind)
            seen.append(cells[where[events]].reshape(len(places), -1))
        found, count = np.concatenate(seen, axis=1), len(both[0].eps)
        return CriticRows(found[:count], found[count:])

    def _key(self, eps: Column, places: Column, dates: Column) -> Column:
        agents = np.searchsorted(self._ids, eps) * (self._absent + 1) + places
        key: Column = agents * self._span + np.minimum(dates, self._span - 1)
        return key

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
            [M + 1, F + 1] cells, the last of them zeros; [E + 1] which cell shows an observation.
        """
        cells, where, start, total = list[Floats](), np.full(len(self._keys) + 1, -1), 0, 0
        for one in self._shown:
            rows = np.flatnonzero(np.isin(one.places, kind.places))
            if len(rows):
                cells.append(_cells(kind, one.policy_id, one.obs[rows], self._absent))
                where[start + rows] = total + np.arange(len(rows))
                total += len(rows)
            start += len(one.eps)
        return np.concatenate((*cells, np.zeros((1, kind.obs_size + 1), np.float32))), where


def with_states(batch: SampleBatch) -> CriticRows:
    """Return the input of a critic with `critic_obs="state"`: observations, and the state of the same moment.

    An end without a state, such as the end of an episode that other code reset, has the state of the last row.
    """
    ends = batch.segments.ends - 1
    states, after = batch[GLOBAL_STATE], batch[SampleBatch.NEXT_GLOBAL_STATE][ends]
    after = np.where(np.isnan(after), states[ends], after)
    return CriticRows(
        np.concatenate((_numbers(batch["obs"]), states), 1, dtype=np.float32),
        np.concatenate((_numbers(batch.segments.next_obs), after), 1, dtype=np.float32),
    )


def _joined(shown: Iterable[Shown], column: str) -> Column:
    return np.concatenate([getattr(one, column) for one in shown])


def _shown(policy_id: str, batch: SampleBatch, places: Column) -> tuple[Shown, Shown]:
    """Return what others see of a policy's batch: the observations after its S chunks, and its rows."""
    segments, ends = batch.segments, batch.segments.ends - 1
    after = batch[SampleBatch.NEXT_ENV_T]
    # A final observation is of its env step alone.
    until = np.where(batch[SampleBatch.TRUNCATEDS][ends], after[ends] + 1, _FOR_EVER)
    return Shown(
        policy_id, segments.eps_id, places, after[ends], until, _numbers(segments.next_obs)
    ), Shown(
        policy_id, segments.spread("eps_id"), np.repeat(places, segments.lengths),
        batch[SampleBatch.ENV_T], after, _numbers(batch["obs"]),
    )  # fmt: skip


def _size(observation_space: gym.Space[Any]) -> int:
    try:
        return int(ObsPreprocessor(observation_space).size)
    except ConfigError:
        return 0


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


def _cells(kind: CriticInputKind, policy_id: str, obs: Column, agents: int) -> Floats:
    """Return [N, F + 1] cells of observations [N, F], which the codes of `agents` may follow."""
    cells = np.ones((len(obs), kind.obs_size + 1), np.float32)
    # Rows of a group that QMIX trains mark its members.
    members = len(getattr(kind.observation_space, "spaces", ()))
    if obs.shape[1] - kind.obs_size in (members, members - 1, agents):
        obs = obs[:, : kind.obs_size]
    if obs.shape[1] != kind.obs_size:
        raise ContractError(
            f'critic_obs="all_agents": observations of policy {policy_id!r} have {obs.shape[1]} numbers, expected '
            f"{kind.obs_size} as the agent's space says; map agents to policies with equal spaces"
        )
    cells[:, :-1] = obs
    return cells
