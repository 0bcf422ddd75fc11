"""`RecordedEpisode`: one whole episode of all agents, and the columns that files store it in.

A row is a trajectory of n actions: what one agent saw and did from its appearance to its end.

| column | value |
|---|---|
| `episode` | id of the episode in its file |
| `length` | env steps of the episode |
| `seed` | seed of its reset, -1 without one |
| `unclaimed` | in the first row of an episode: JSON pairs of an agent and its rewards that belong to no action; or "" |
| `agent`, `policy` | names |
| `terminated`, `truncated` | how the trajectory ended |
| `t` | [n + 1] env step of the episode, of each observation |
| `reward` | [n] reward of each action, until the agent's next observation |
| `obs` | [n + 1, ...] elements of the observation space; [n, ...] if the environment gave no last one |
| `action` | [n, ...] elements of the action space |

Nested spaces have a column for each part, such as `obs.position`. Agents with other spaces than the first
agent have columns with a number, such as `obs_1`. The header, a JSON object, has the agents and their spaces.
"""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId, ExternalSteps
from menv.errors import ConfigError
from menv.serialization import SpaceDecoder, space_to_json
from menv.spaces import builder_of, columns_of, parts_of, paths

Space: TypeAlias = gym.Space[Any]
Columns: TypeAlias = dict[str, list[Any]]
"""Values of each trajectory, by column."""

KEY, VERSION = "menv_episodes", 1


class Column(NamedTuple):
    """The type of a column: arrays [n, *shape] of trajectories, or one value if the shape is None; text is `object`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None


_COLUMNS = {
    **dict.fromkeys(("episode", "length", "seed"), Column(np.dtype(np.int64))),
    **dict.fromkeys(("unclaimed", "agent", "policy"), Column(np.dtype(object))),
    **dict.fromkeys(("terminated", "truncated"), Column(np.dtype(np.bool_))),
    "t": Column(np.dtype(np.int64), ()),
    "reward": Column(np.dtype(np.float64), ()),
}


@dataclass(frozen=True, slots=True)
class RecordedTrajectory:
    """What one agent saw and did from its appearance to its end.

    Attributes:
        agent_id: The agent.
        steps: n + 1 observations, n actions and rewards, and the end; the last observation is None if the environment
            gave none.
        observation_space: Its observation space.
        action_space: Its action space.
        policy_id: The policy that acted; None if it is unknown.
    """

    agent_id: AgentId
    steps: ExternalSteps
    observation_space: Space
    action_space: Space
    policy_id: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One whole episode.

    Attributes:
        trajectories: In the order of their ends; an agent that returns has several.
        seed: The seed of the reset; None if it had none.
        env: The name of the environment; "" if it has none.
        env_steps: Length of the episode; at least the time of the last observation.
        unclaimed: Rewards that belong to no action, by agent.
        name: File and number, for messages.
        env_spec: The `EnvSpec` of a gymnasium environment as JSON; "" without one, or if it is not plain data.
    """

    trajectories: Sequence[RecordedTrajectory]
    seed: int | None = None
    env: str = ""
    env_steps: int = 0
    unclaimed: Mapping[AgentId, float] = field(default_factory=dict)
    name: str = ""
    env_spec: str = ""

    @property
    def truncated(self) -> bool:
        """Whether a trajectory was cut short."""
        return any(one.steps.truncated and not one.steps.terminated for one in self.trajectories)


class EpisodeSource(NamedTuple):
    """Episodes that are read at once: a part of a file or of a data set; `where` names it in messages."""

    where: str
    spaces: Mapping[AgentId, tuple[Space, Space]]
    read: Callable[[], Iterable[RecordedEpisode]]


class Header:
    """What a file says about its rows: the environment, and the observation and action space of each agent.

    Attributes:
        columns: The type of each column.
        names: The columns of observations and of actions of each agent.
    """

    def __init__(self, env: str, spaces: Mapping[AgentId, tuple[Space, Space]], env_spec: str = "") -> None:
        self.env, self.spaces, self.env_spec = env, spaces, env_spec
        self.columns, self.names = dict(_COLUMNS), dict[AgentId, list[list[str]]]()
        different: list[tuple[Space, Space]] = []
        for agent, pair in spaces.items():
            if pair not in different:
                different.append(pair)
            number = different.index(pair)
            names = (f"obs_{number}", f"action_{number}") if number else ("obs", "action")
            self.names[agent] = list(map(self._add, names, pair))

    def _add(self, name: str, space: Space) -> list[str]:
        names = []
        for keys, leaf in paths(space):
            names.append(".".join([name, *map(str, keys)]))
            dtype = np.dtype(object if isinstance(leaf, gym.spaces.Text) else leaf.dtype)
            self.columns[names[-1]] = Column(dtype, leaf.shape or ())
        return names

    @classmethod
    def of(cls, where: str, episodes: Sequence[RecordedEpisode]) -> Header:
        """Return the header of a file of these episodes."""
        spaces: dict[AgentId, tuple[Space, Space]] = {}
        for one in (trajectory for episode in episodes for trajectory in episode.trajectories):
            pair = one.observation_space, one.action_space
            if spaces.setdefault(one.agent_id, pair) != pair:
                raise ConfigError(
                    f"{where}: agent {one.agent_id!r} has two spaces in one recording, expected one; write its "
                    "episodes into two files"
                )
        return cls(episodes[0].env, spaces, episodes[0].env_spec)

    def to_json(self) -> str:
        """Return it as a JSON text."""
        agents = {_name_of(agent): list(map(space_to_json, pair)) for agent, pair in self.spaces.items()}
        return json.dumps({KEY: VERSION, "env": self.env, "env_spec": self.env_spec, "agents": agents})

    @classmethod
    def from_json(cls, where: str, text: Any) -> Header:
        """Read a header.

        Raises:
            ConfigError: It is none, or that of a newer version.
        """
        try:
            value = json.loads(text)
            version = value[KEY]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise not_ours(where, "it has no header of a recording") from None
        if version != VERSION:
            raise ConfigError(
                f"{where}: format version {version!r:.20}, expected {VERSION}; read it with the version of menv that "
                "wrote it"
            )
        try:
            space = partial(SpaceDecoder().read, where=where)
            agents = {
                _agent_of(name): (space(obs), space(act)) for name, (obs, act) in value["agents"].items()
            }
            env_spec = value.get("env_spec", "")
            if env_spec:
                gym.envs.registration.EnvSpec.from_json(env_spec)
            return cls(str(value["env"]), agents, env_spec)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise not_ours(where, "its header is damaged") from None


def not_ours(where: str, what: str) -> ConfigError:
    """Return the error for a file that is not a recording."""
    return ConfigError(
        f"{where}: {what}, expected a recording that menv.offline wrote; convert the file with write_episodes"
    )


def _name_of(agent: AgentId) -> str:
    """Return an agent's name in a file: a string is its own name, other ids are JSON."""
    if isinstance(agent, str) and not agent.startswith("#"):
        return agent
    try:
        return f"#{json.dumps(agent, default=operator.index)}"
    except (TypeError, ValueError):
        raise ConfigError(
            f"write_episodes: agent {agent!r:.60} cannot be written to a file, expected a string, a number or a tuple; "
            "rename it"
        ) from None


def _agent_of(name: str) -> Any:
    return _with_tuples(json.loads(name[1:])) if name.startswith("#") else name


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def times_of(steps: ExternalSteps) -> npt.NDArray[Any]:
    """Return the env step of each observation."""
    return np.arange(len(steps.rewards) + 1) if steps.env_t is None else np.asarray(steps.env_t)


def to_columns(header: Header, episodes: Iterable[tuple[int, RecordedEpisode]]) -> Columns:
    """Return the rows of some episodes, each with its number."""
    found: Columns = {name: [] for name in header.columns}
    for number, episode in episodes:
        times = [times_of(one.steps) for one in episode.trajectories]
        length = max([episode.env_steps, *(int(t[-1]) for t in times)])
        rest = [(_name_of(agent), float(reward)) for agent, reward in episode.unclaimed.items() if reward]
        for place, (one, t) in enumerate(zip(episode.trajectories, times, strict=True)):
            steps, seen = one.steps, len(t) - (one.steps.obs[len(t) - 1] is None)
            row: dict[str, Any] = {
                "episode": number, "length": length, "seed": -1 if episode.seed is None else int(episode.seed),
                "unclaimed": json.dumps(rest) if rest and not place else "", "agent": _name_of(one.agent_id),
                "policy": one.policy_id or "", "terminated": bool(steps.terminated),
                "truncated": bool(steps.truncated), "t": t, "reward": steps.rewards,
            }  # fmt: skip
            obs, actions = header.names[one.agent_id]
            row |= zip(obs, columns_of(one.observation_space, steps.obs[:seen]), strict=True)
            row |= zip(actions, columns_of(one.action_space, steps.actions), strict=True)
            for name, (dtype, shape) in header.columns.items():
                value = row.get(name, ())
                if shape is not None:
                    value = np.asarray(value, dtype).reshape(len(value), *shape)
                found[name].append(value)
    return found


def from_columns(header: Header, columns: Columns, where: str) -> Iterator[RecordedEpisode]:
    """Yield the episodes of some rows.

    Raises:
        ConfigError: The rows are no whole episodes.
    """
    _check_finite(np.concatenate([*columns["reward"], ()]), where)
    agents = {_name_of(agent): agent for agent in header.spaces}
    for number, rows in itertools.groupby(enumerate(columns["episode"]), operator.itemgetter(1)):
        name, places = f"{where}, episode {number}", [place for place, _ in rows]
        trajectories = [_trajectory(header, agents, columns, place, name) for place in places]
        length, seed, text = (columns[column][places[0]] for column in ("length", "seed", "unclaimed"))
        unclaimed = {_agent_of(agent): float(reward) for agent, reward in json.loads(text)} if text else {}
        if unclaimed:
            _check_finite(list(unclaimed.values()), where)
        yield RecordedEpisode(
            trajectories, None if seed < 0 else seed, header.env, length, unclaimed, name, header.env_spec
        )


def _check_finite(rewards: npt.ArrayLike, where: str) -> None:
    if not np.isfinite(rewards).all():
        raise ConfigError(f"{where}: a reward is not finite, expected numbers; correct the recording")


def _trajectory(
    header: Header, agents: Mapping[str, AgentId], columns: Columns, place: int, where: str
) -> RecordedTrajectory:
    if columns["agent"][place] not in agents:
        raise not_ours(where, f"agent {columns['agent'][place]!r:.60} is not in its header")
    agent = agents[columns["agent"][place]]
    obs, actions = (
        elements(space, [columns[name][place] for name in names])
        for space, names in zip(header.spaces[agent], header.names[agent], strict=True)
    )
    rewards, times = columns["reward"][place], columns["t"][place]
    seen, count = len(obs), len(rewards)
    if len(actions) != count or len(times) != count + 1 or not max(1, count) <= seen <= count + 1:
        raise not_ours(where, f"{seen} observations, {len(actions)} actions, {count} rewards of a trajectory")
    steps = ExternalSteps(
        obs if seen > count else [*obs, None], actions, rewards, columns["terminated"][place],
        columns["truncated"][place], env_t=times,
    )  # fmt: skip
    return RecordedTrajectory(agent, steps, *header.spaces[agent], columns["policy"][place] or None)


def elements(space: Space, leaves: Sequence[Any]) -> Any:
    """Return the elements whose parts are these columns: an array, or a list of nested ones."""
    return leaves[0] if parts_of(space) is None else list(map(builder_of(space), zip(*leaves, strict=True)))
