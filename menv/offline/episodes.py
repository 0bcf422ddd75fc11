"""`RecordedEpisode`: one whole episode of all agents, and the columns that files store it in.

Each trajectory is a row for each action, then one for its last observation:

| column | value |
|---|---|
| `episode` | id of the episode in its file |
| `length` | env steps of the episode |
| `seed` | seed of its reset, -1 without one |
| `agent`, `policy` | names |
| `t` | env step of the episode, of the observation |
| `kind` | 0 an action; 1 the last observation; 2 the end, where there is no last observation; 3 a reward alone |
| `obs`, `action` | elements of the spaces; 0 where there is none |
| `reward` | of the action, until the agent's next row |
| `terminated`, `truncated` | of the last action, and again of the last observation |

Nested spaces have a column for each part, such as `obs.position`. Agents whose spaces differ from those of the first
agent have columns with a number, such as `obs_1`. The header, a JSON object, has the agents and their spaces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId, ExternalSteps
from menv.errors import ConfigError
from menv.serialization import space_from_json, space_to_json
from menv.spaces import Build, builder_of, columns_of, parts_of, paths

Space: TypeAlias = gym.Space[Any]
Columns: TypeAlias = dict[str, Any]
"""N rows as arrays [N, ...]; `agent` and `policy` are pairs of [N] indices and a list of names."""

VERSION = 1
_NO_SPACES = -1
ACTION, LAST, NO_LAST, REWARD = range(4)
_PLAIN = {
    "episode": np.int64, "length": np.int64, "seed": np.int64, "t": np.int64, "kind": np.uint8,
    "reward": np.float64, "terminated": np.bool_, "truncated": np.bool_,
}  # fmt: skip
NAMES = ("agent", "policy")


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
    """

    trajectories: Sequence[RecordedTrajectory]
    seed: int | None = None
    env: str = ""
    env_steps: int = 0
    unclaimed: Mapping[AgentId, float] = field(default_factory=dict)
    name: str = ""

    @property
    def truncated(self) -> bool:
        """Whether a trajectory was cut short."""
        return any(one.steps.truncated and not one.steps.terminated for one in self.trajectories)


class EpisodeSource(NamedTuple):
    """Episodes that are read at once: a part of a file or of a data set.

    Attributes:
        where: Its name, for messages.
        spaces: The observation and action space of each agent.
        read: Returns the episodes.
    """

    where: str
    spaces: Mapping[AgentId, tuple[Space, Space]]
    read: Callable[[], Iterable[RecordedEpisode]]


class _Part(NamedTuple):
    """The column of one leaf of a space."""

    column: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def _parts(name: str, space: Space) -> list[_Part]:
    found = []
    for keys, leaf in paths(space):
        dtype = np.dtype(object if leaf.dtype is None or leaf.dtype == str else leaf.dtype)
        found.append(_Part(".".join([name, *map(str, keys)]), dtype, leaf.shape or ()))
    return found


class Header:
    """What a file says about its rows: the environment, and the spaces of its agents by name.

    Attributes:
        env: The name of the environment.
        agents: By name: the agent's id and the number of its spaces.
        spaces: Pairs of an observation and an action space.
    """

    def __init__(
        self, env: str, agents: Mapping[str, tuple[AgentId, int]], spaces: Sequence[tuple[Space, Space]]
    ) -> None:
        self.env, self.agents, self.spaces = env, agents, spaces
        suffixes = ["" if number == 0 else f"_{number}" for number in range(len(spaces))]
        self.parts = [
            (_parts(f"obs{suffix}", obs), _parts(f"action{suffix}", action))
            for suffix, (obs, action) in zip(suffixes, spaces, strict=True)
        ]

    @classmethod
    def of(cls, where: str, episodes: Sequence[RecordedEpisode]) -> Header:
        """Return the header of a file of these episodes."""
        numbers: dict[str, int] = {}
        agents: dict[str, tuple[AgentId, int]] = {}
        spaces: list[tuple[Space, Space]] = []
        for one in (trajectory for episode in episodes for trajectory in episode.trajectories):
            key = json.dumps([space_to_json(one.observation_space), space_to_json(one.action_space)])
            if key not in numbers:
                numbers[key] = len(spaces)
                spaces.append((one.observation_space, one.action_space))
            name = agent_name(where, one.agent_id)
            if agents.setdefault(name, (one.agent_id, numbers[key])) != (one.agent_id, numbers[key]):
                raise ConfigError(
                    f"{where}: agent {one.agent_id!r} has two spaces in one recording, expected one; write its "
                    "episodes into two files"
                )
        for agent in (agent for episode in episodes for agent in episode.unclaimed):
            # One that only got rewards has no spaces.
            agents.setdefault(agent_name(where, agent), (agent, _NO_SPACES))
        return cls(episodes[0].env, agents, spaces)

    def to_json(self) -> str:
        """Return it as a JSON text."""
        spaces = [list(map(space_to_json, pair)) for pair in self.spaces]
        agents = {name: [_id_to_json(agent), number] for name, (agent, number) in self.agents.items()}
        return json.dumps({"version": VERSION, "env": self.env, "agents": agents, "spaces": spaces})

    @classmethod
    def from_json(cls, where: str, text: str | bytes) -> Header:
        """Read a header.

        Raises:
            ConfigError: It is none, or that of a newer version.
        """
        try:
            value = json.loads(text)
            version = value["version"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise not_ours(where, "its header is damaged") from None
        if version != VERSION:
            raise ConfigError(
                f"{where}: format version {version!r:.20}, expected {VERSION}; read it with the menv that wrote it, or "
                "install that"
            )
        try:
            spaces = [tuple(space_from_json(one, where) for one in pair) for pair in value["spaces"]]
            agents = {
                str(name): (_id_from_json(one), int(number))
                for name, (one, number) in value["agents"].items()
            }
            if not all(len(pair) == 2 for pair in spaces) or not all(
                _NO_SPACES <= n < len(spaces) for _, n in agents.values()
            ):
                raise ValueError
            return cls(str(value["env"]), agents, spaces)  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise not_ours(where, "its header is damaged") from None

    def spaces_by_agent(self) -> Iterator[tuple[AgentId, tuple[Space, Space]]]:
        """Yield each agent with its observation and action space."""
        for agent, number in self.agents.values():
            if number != _NO_SPACES:
                yield agent, self.spaces[number]

    def all_parts(self) -> Iterator[_Part]:
        """Yield the columns of observations and actions."""
        for pair in self.parts:
            for parts in pair:
                yield from parts


def not_ours(where: str, what: str) -> ConfigError:
    """Return the error for a file that is no recording."""
    return ConfigError(
        f"{where}: {what}, expected a recording that menv.offline wrote; convert the file with write_episodes"
    )


def agent_name(where: str, agent: AgentId) -> str:
    """Return an agent's name in a file: a string is its own name."""
    return agent if isinstance(agent, str) else f"#{json.dumps(_id_to_json(agent, where))}"


def _id_to_json(agent: Any, where: str = "") -> Any:
    if isinstance(agent, tuple):
        return [_id_to_json(part, where) for part in agent]
    if isinstance(agent, np.integer):
        return int(agent)
    if agent is None or isinstance(agent, str | int | float):
        return agent
    raise ConfigError(
        f"{where}: agent {agent!r:.60} has no form in a file, expected a string, a number or a tuple; name it so"
    )


def _id_from_json(value: Any) -> Any:
    return tuple(map(_id_from_json, value)) if isinstance(value, list) else value


def to_columns(header: Header, episodes: Sequence[RecordedEpisode], first: int = 0) -> Columns:
    """Return the rows of some episodes, which are numbered from `first`."""
    names = {name: place for place, name in enumerate(header.agents)}
    places = {agent: (names[name], number) for name, (agent, number) in header.agents.items()}
    policies: dict[str, int] = {}
    plain: dict[str, list[Any]] = {name: [] for name in (*_PLAIN, *NAMES)}
    values: dict[str, list[Any]] = {part.column: [] for part in header.all_parts()}

    def add(count: int, **columns: Any) -> None:
        for name, column in columns.items():
            plain[name].append(np.broadcast_to(column, count))

    for number, episode in enumerate(episodes, first):
        times = [int(_times(one.steps)[-1]) for one in episode.trajectories]
        length = max([episode.env_steps, *times])
        of_episode = {
            "episode": number,
            "length": length,
            "seed": -1 if episode.seed is None else episode.seed,
        }
        for one in episode.trajectories:
            steps, count = one.steps, len(one.steps.rewards)
            agent, spaces = places[one.agent_id]
            missing = steps.obs[count] is None
            ends = np.arange(count + 1) >= max(0, count - 1)
            add(
                count + 1, **of_episode, agent=agent, t=_times(steps),
                policy=policies.setdefault(one.policy_id or "", len(policies)),
                kind=np.append(np.zeros(count, np.uint8), NO_LAST if missing else LAST),
                reward=np.append(steps.rewards, 0.0),
                terminated=ends & steps.terminated, truncated=ends & steps.truncated,
            )  # fmt: skip
            _add_values(header, values, spaces, one, count, count + (not missing))
        rest = {agent: reward for agent, reward in episode.unclaimed.items() if reward}
        for agent_id, reward in rest.items():
            add(
                1, **of_episode, agent=places[agent_id][0], t=length, kind=REWARD, reward=reward,
                policy=policies.setdefault("", len(policies)), terminated=False, truncated=False,
            )  # fmt: skip
        for part in header.all_parts() if rest else ():
            values[part.column].append(_zeros(part, len(rest)))
    found: Columns = {name: np.concatenate(plain[name]).astype(kind) for name, kind in _PLAIN.items()}
    found |= {name: np.concatenate(column) for name, column in values.items()}
    for name, own in (("agent", list(names)), ("policy", list(policies))):
        found[name] = np.concatenate(plain[name]).astype(np.int32), own
    return found


def _times(steps: ExternalSteps) -> npt.NDArray[Any]:
    return np.arange(len(steps.rewards) + 1) if steps.env_t is None else np.asarray(steps.env_t)


def _zeros(part: _Part, rows: int) -> npt.NDArray[Any]:
    return np.full((rows, *part.shape), "" if part.dtype == object else 0, part.dtype)


def _add_values(
    header: Header, values: dict[str, list[Any]], spaces: int, one: RecordedTrajectory, count: int, seen: int
) -> None:
    """Add the observations and actions of a trajectory, and zeros to the columns of other spaces."""
    for number, pair in enumerate(header.parts):
        given = (one.observation_space, one.steps.obs, seen), (one.action_space, one.steps.actions, count)
        for parts, (space, elements, rows) in zip(pair, given, strict=True):
            rows = rows if number == spaces else 0
            leaves = columns_of(space, elements[:rows]) if rows else [[] for _ in parts]
            for part, leaf in zip(parts, leaves, strict=True):
                column = _zeros(part, count + 1)
                if rows:
                    column[:rows] = np.asarray(leaf, part.dtype).reshape(rows, *part.shape)
                values[part.column].append(column)


def from_columns(header: Header, columns: Columns, where: str) -> Iterator[RecordedEpisode]:
    """Yield the episodes of some rows; their arrays are views of the columns.

    Raises:
        ConfigError: The rows are no whole episodes.
    """
    if not len(columns["kind"]):
        return
    _check_rows(header, columns, where)
    agents, policies = (
        [own[index] for index in rows.tolist()] for rows, own in (_at_ends(columns, name) for name in NAMES)
    )
    kinds, ends = columns["kind"], np.flatnonzero(columns["kind"] != ACTION)
    starts = [0, *(ends[:-1] + 1).tolist()]
    numbers, seeds, lengths = (columns[name][ends].tolist() for name in ("episode", "seed", "length"))
    views = [
        _Views(columns, *pair, *spaces) for pair, spaces in zip(header.parts, header.spaces, strict=True)
    ]
    trajectories: list[RecordedTrajectory] = []
    unclaimed: dict[AgentId, float] = {}
    last = len(ends) - 1
    for place, (start, end, kind) in enumerate(zip(starts, ends.tolist(), kinds[ends].tolist(), strict=True)):
        agent_id, spaces = header.agents[agents[place]]
        if kind == REWARD:
            unclaimed[agent_id] = unclaimed.get(agent_id, 0.0) + float(columns["reward"][end])
        elif spaces == _NO_SPACES:
            raise not_ours(where, f"agent {agents[place]!r:.60} has no spaces in its header")
        else:
            own = views[spaces]
            steps = own.steps(start, end, kind == LAST)
            trajectories.append(
                RecordedTrajectory(
                    agent_id, steps, own.observation_space, own.action_space, policies[place] or None
                )
            )
        if place == last or numbers[place + 1] != numbers[place]:
            seed, name = seeds[place], f"{where}, episode {numbers[place]}"
            yield RecordedEpisode(
                trajectories, None if seed < 0 else seed, header.env, lengths[place], unclaimed, name
            )
            trajectories, unclaimed = [], {}


def _at_ends(columns: Columns, name: str) -> tuple[npt.NDArray[Any], list[str]]:
    rows, own = columns[name]
    return rows[columns["kind"] != ACTION], own


class _Views:
    """Slices of the columns of one pair of spaces."""

    def __init__(self, columns: Columns, obs: list[_Part], action: list[_Part], *spaces: Space) -> None:
        self.observation_space, self.action_space = spaces
        self._obs, self._actions = ([columns[part.column] for part in parts] for parts in (obs, action))
        self._builders = [None if parts_of(space) is None else builder_of(space) for space in spaces]
        self._rewards, self._times = columns["reward"], columns["t"]
        self._terminated, self._truncated = columns["terminated"], columns["truncated"]

    def steps(self, start: int, end: int, has_last: bool) -> ExternalSteps:
        obs = elements(self._builders[0], [one[start : end + has_last] for one in self._obs])
        actions = elements(self._builders[1], [one[start:end] for one in self._actions])
        obs = obs if has_last else [*obs, None]
        return ExternalSteps(
            obs, actions, self._rewards[start:end], bool(self._terminated[end]),
            bool(self._truncated[end]), env_t=self._times[start : end + 1],
        )  # fmt: skip


def elements(build: Build | None, leaves: Sequence[Any]) -> Any:
    """Return the elements whose parts are these columns: an array, or a list of what `build` makes of the parts."""
    return leaves[0] if build is None else list(map(build, zip(*leaves, strict=True)))


def _check_rows(header: Header, columns: Columns, where: str) -> None:
    kinds, episodes = columns["kind"], columns["episode"]
    acts = kinds[:-1] == ACTION
    agents, names = columns["agent"]
    torn = (acts & ((episodes[1:] != episodes[:-1]) | (agents[1:] != agents[:-1]))).any()
    if torn or kinds[-1] == ACTION or kinds.max() > REWARD:
        raise not_ours(where, "its rows are no whole trajectories")
    if not np.isfinite(columns["reward"]).all():
        raise ConfigError(f"{where}: a reward is not finite, expected numbers; correct the recording")
    if strange := sorted(set(names) - header.agents.keys()):
        raise not_ours(where, f"agent {strange[0]!r:.60} is not in its header")
