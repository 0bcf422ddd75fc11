"""The input of a centralized critic with `critic_obs="all_agents"`: observations and actions of all agents, as rows.

A row holds the agent's observation, then for each other possible agent its newest observation, its action and a flag.
Agents with equal spaces lie together, in the order of `possible_agents`, so that a column means the same for all agents
of a policy. Observations are flat, as a policy's network sees them; discrete actions are one-hot codes, continuous ones
the network's numbers. The flag is 1 where the agent acted in that env step. An agent that lives but does not act in
that env step, as in a turn-based game, is shown by its newest observation, with zeros for the action and a flag of 0.
An agent that has not appeared or has ended is all zeros, as is any agent outside `possible_agents`, which sees no
others. Where fragments end changes nothing.

The observation after the last row of a trajectory chunk, if that was not terminated, has no action yet: it is shown in
its env step, with zeros for the action and a flag of 0. So are all agents in the rows that a value bootstraps from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.rollout_buffer import ANSWERED
from menv.spaces import leaves

Floats = npt.NDArray[np.float32]
_FOR_EVER = np.iinfo(np.int64).max


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


class Shown(NamedTuple):
    """Observations of one policy's agents, each their newest one from env step `dates` to before `until`.

    `places` [N] are the agents; `actions` are those taken on the observations, None if there are none; choices of an
    environment may not count from 0.
    """

    policy_id: str
    counts_from_0: bool
    eps: Column
    places: Column
    dates: Column
    until: Column
    obs: Column
    actions: Column | None = None

    def take(self, rows: Column) -> Shown:
        """Return some rows."""
        own: dict[str, Any] = {
            name: column[rows] for name, column in self._asdict().items() if isinstance(column, np.ndarray)
        }
        return self._replace(**own)


class JointHistory:
    """What later fragments of some policy groups' rows need of earlier ones.

    A row is released when its agent has another one: that of an agent that pauses may come fragments after the others'
    rows of its env step.
    """

    def __init__(self, groups: Callable[[], Sequence[PolicyGroup]]) -> None:
        self._groups = groups
        self.kept: list[Shown] = []

    def held(self, places: Mapping[AgentId, int]) -> Iterator[Shown]:
        """Yield the rows that are not released yet; `places` are the positions of the agents."""
        for group in self._groups():
            living, columns = group.buffer.held()
            agents = np.array([places.get(agent, len(places)) for agent in living.agent_id], np.int64)
            for policy, answered in itertools.product(np.unique(living.policy).tolist(), (False, True)):
                rows = (living.policy == policy) & (columns[ANSWERED] == answered)
                if rows.any():
                    yield Shown(
                        group.policy_ids[policy], group.strategy.networks is not None, living.eps_id,
                        agents, columns[SampleBatch.ENV_T], np.full(len(rows), _FOR_EVER), _numbers(columns["obs"]),
                        columns["actions"] if answered else None,
                    ).take(rows)  # fmt: skip

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
    """The observations and actions of one fragment.

    Actions of the policies in `outside` are the environment's, not a network's; `beside` are rows that are shown but
    have no critic.
    """

    def __init__(
        self,
        joint: JointObs,
        batch: MultiAgentBatch,
        episodes: Mapping[int, Episode],
        outside: Collection[str],
        beside: Sequence[tuple[str, SampleBatch]],
        history: JointHistory,
    ) -> None:
        self._joint = joint
        self._absent = len(joint.places)
        self._asked: dict[str, tuple[Shown, Shown]] = {}
        ends, acted = [], []
        for name, own in (*batch.policy_batches.items(), *((name, own) for name, own in beside if own.count)):
            after, rows = _shown(name, own, self._places(own, episodes), name not in outside)
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

    def of(
        self, policy_id: str, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> CriticRows:
        """Return the critic input of a policy."""
        both = self._asked[policy_id]
        eps, places, dates = (_joined(both, name) for name in ("eps", "places", "dates"))
        seen = [_joined(both, "obs")]
        for kind in self._joint.kinds:
            others = _others(kind.places, self._absent)[
                places, : kind.others(observation_space, action_space)
            ]
            key = self._key(eps[:, None], others, dates[:, None])
            at = np.searchsorted(self._keys, key, "right") - 1
            events = self._order[at]
            same = self._keys[at] // self._span == key // self._span
            events[(at < 0) | ~same | (dates[:, None] >= self._until[events])] = -1
            cells, where = self._cells_of(kind)
            found = cells[where[events]]
            # Who pauses has done nothing in this env step.
            found[self._keys[at] != key, kind.obs_size :] = 0.0
            seen.append(found.reshape(len(places), -1))
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
            [M + 1, F + A + 1] cells, the last of them zeros; [E + 1] which cell shows an observation.
        """
        cells, where, start, total = list[Floats](), np.full(len(self._keys) + 1, -1), 0, 0
        for one in self._shown:
            rows = np.flatnonzero(np.isin(one.places, kind.places))
            if len(rows):
                mine = one.take(rows)
                made = _cells(kind, one.policy_id, mine.obs)
                if mine.actions is not None:
                    _add_actions(made, kind, mine.actions, counts_from_0=one.counts_from_0)
                cells.append(made)
                where[start + rows] = total + np.arange(len(rows))
                total += len(rows)
            start += len(one.eps)
        return np.concatenate((*cells, np.zeros((1, kind.width), np.float32))), where


def _joined(shown: Iterable[Shown], column: str) -> Column:
    return np.concatenate([getattr(one, column) for one in shown])


def _shown(policy_id: str, batch: SampleBatch, places: Column, from_0: bool) -> tuple[Shown, Shown]:
    """Return what others see of a policy's batch: the observations after its S chunks, and its rows."""
    segments, ends = batch.segments, batch.segments.ends - 1
    after = batch[SampleBatch.NEXT_ENV_T]
    # A final observation is of its env step alone.
    until = np.where(batch[SampleBatch.TRUNCATEDS][ends], after[ends] + 1, _FOR_EVER)
    return Shown(
        policy_id, from_0, segments.eps_id, places, after[ends], until, _numbers(segments.next_obs)
    ), Shown(
        policy_id, from_0, segments.spread("eps_id"), np.repeat(places, segments.lengths),
        batch[SampleBatch.ENV_T], after, _numbers(batch["obs"]), batch["actions"],
    )  # fmt: skip


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
