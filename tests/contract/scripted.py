"""Environments that play a written script and keep a log of what they paid, showed and were asked.

The contract tests and the property tests put the same scripts through every adapter.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, BaseEnv, EnvId, MultiEnvDict
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

T = TypeVar("T")
AGENTS = "abcd"
OBS = gym.spaces.Box(-np.inf, np.inf, (6,), np.float32)
ACTIONS = gym.spaces.Discrete(4)


def altered(entry: T, **values: Any) -> T:
    """Return a named tuple with other values."""
    other: T = cast(Any, entry)._replace(**values)
    return other


class Moment(NamedTuple):
    """What one env step returns; the first moment of an episode is its reset.

    Attributes:
        shown: Agents that wait next, a letter each.
        pays: Rewards by agent.
        terminated: Agents whose own terminated flag is set.
        truncated: Agents whose own truncated flag is set.
        final: Agents whose final observation is given along.
        over: "terminated" or "truncated" if the episode ends here.
    """

    shown: str = ""
    pays: Mapping[str, float] = {}
    terminated: str = ""
    truncated: str = ""
    final: str = ""
    over: str = ""


Script = Sequence[Sequence[Moment]]


class Seen(NamedTuple):
    """What an observation says about itself: world, episode, agent, life and env step."""

    world: int
    episode: int
    agent: str
    life: int
    step: int


def seen(obs: Any) -> Seen:
    world, episode, agent, life, step = (int(number) for number in obs[:5])
    return Seen(world, episode, AGENTS[agent], life, step)


def all_seen(rows: Any) -> list[Seen]:
    """Return what each of [N, 6] observations says about itself."""
    numbers = np.asarray(rows)[:, :5].astype(np.int64).tolist()
    return [Seen(world, episode, AGENTS[agent], life, step) for world, episode, agent, life, step in numbers]


class Ended(NamedTuple):
    """A life that ended, as the environment meant it; `final` is its final observation's env step."""

    world: int
    episode: int
    agent: str
    life: int
    terminated: bool
    truncated: bool
    final: int | None


class ScriptedEnv(MultiAgentEnv):
    """Plays `script`, one entry an episode, over and over; reuses its observation buffers.

    With `salt`, rewards and observations also depend on the seed of the reset and on the actions.
    """

    def __init__(self, script: Script, world: int = 0, agents: str = AGENTS, salt: bool = False) -> None:
        super().__init__()
        self.possible_agents = list(agents)
        self.observation_space = OBS
        self.action_space = ACTIONS
        self.script = script
        self.world = world
        self.resets: list[dict[str, Any]] = []
        self.paid: Counter[str] = Counter()
        self.shown: list[Seen] = []
        self.ended: list[Ended] = []
        self.complaints: list[str] = []
        self.closed = 0
        self._salt = salt
        self._rng = np.random.default_rng(0)
        self._buffers = {agent: np.zeros(6, np.float32) for agent in AGENTS}
        self._lives: Counter[str] = Counter()
        self.alive: set[str] = set()
        self.asked: set[str] = set()
        self.step_count = 0

    @property
    def episode(self) -> int:
        return len(self.resets) - 1

    @property
    def pid(self) -> int:
        return os.getpid()

    def reset(self, **kwargs: Any) -> tuple[AgentDict, AgentDict]:
        for agent in sorted(self.alive):
            self.ended.append(self.end_of(agent, False, True, None))
        self.resets.append(kwargs)
        self._rng = np.random.default_rng(kwargs.get("seed"))
        self._lives.clear()
        self.alive.clear()
        self.step_count = 0
        moment = self.script[self.episode % len(self.script)][0]
        obs = self._show(moment, 0)
        return obs, {agent: {"at": 0} for agent in obs}

    def step(self, action_dict: AgentDict) -> StepDicts:
        if set(action_dict) != self.asked:
            self.complaints.append(f"asked {sorted(self.asked)}, answered {sorted(action_dict)}")
        self.step_count += 1
        moment = self.script[self.episode % len(self.script)][self.step_count]
        pays = dict(moment.pays)
        if self._salt:
            pays = {agent: reward + int(self._rng.integers(3)) for agent, reward in pays.items()}
        self.paid.update(pays)
        obs = self._show(moment, sum(map(int, action_dict.values())))
        self._end(moment)
        terminateds: AgentDict = {ALL: moment.over == "terminated", **dict.fromkeys(moment.terminated, True)}
        truncateds: AgentDict = {ALL: moment.over == "truncated", **dict.fromkeys(moment.truncated, True)}
        return obs, pays, terminateds, truncateds, {agent: {"at": self.step_count} for agent in obs}

    def close(self) -> None:
        self.closed += 1

    def tell(self, name: str) -> Any:
        """Return an attribute, for whoever asks from another process."""
        return getattr(self, name)

    def _show(self, moment: Moment, noise: int) -> AgentDict:
        """Write the observations into the buffers, which the agents before them still share."""
        for agent in moment.shown:
            if agent not in self.alive:
                self.alive.add(agent)
                self._lives[agent] += 1
        for number, agent in enumerate(AGENTS):
            extra = noise + float(self._rng.integers(1000)) if self._salt else 0.0
            self._buffers[agent][:] = (
                self.world, self.episode, number, self._lives[agent], self.step_count, extra,
            )  # fmt: skip
        self.asked = set() if moment.over else set(moment.shown)
        if not moment.over:
            self.shown.extend(seen(self._buffers[agent]) for agent in moment.shown)
        return {agent: self._buffers[agent] for agent in dict.fromkeys(moment.shown + moment.final)}

    def _end(self, moment: Moment) -> None:
        """Note the lives that end in this moment."""
        flagged = set(moment.terminated + moment.truncated)
        given = set(moment.final + (moment.shown if moment.over else ""))
        for agent in sorted(self.alive if moment.over else self.alive & flagged):
            own = (agent in moment.terminated, agent in moment.truncated)
            flags = own if any(own) else (moment.over == "terminated", moment.over == "truncated")
            self.ended.append(self.end_of(agent, *flags, self.step_count if agent in given else None))
            self.alive.discard(agent)

    def end_of(self, agent: str, terminated: bool, truncated: bool, final: int | None) -> Ended:
        return Ended(self.world, self.episode, agent, self._lives[agent], terminated, truncated, final)


class SoloGym(gym.Env[Any, Any]):
    """A `ScriptedEnv` in which "a" is alone, as a gymnasium environment."""

    def __init__(self, script: Script, world: int = 0, salt: bool = False, copies: bool = False) -> None:
        self.game = ScriptedEnv(script, world, "a", salt)
        self.copies = copies
        self.observation_space = OBS
        self.action_space = ACTIONS

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.game.reset(**kwargs)
        return obs["a"], infos["a"]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, rewards, terminateds, truncateds, infos = self.game.step({"a": action})
        last = obs["a"].copy() if self.copies else obs["a"]
        return last, rewards.get("a", 0.0), terminateds[ALL], truncateds[ALL], infos["a"]

    def tell(self, name: str) -> Any:
        return self.game.tell(name)

    def close(self) -> None:
        self.game.close()


class SixDicts(BaseEnv):
    """A user's own `BaseEnv` that speaks in six nested dicts.

    Args:
        games: The sub-environments.
        mode: How `try_reset` answers: "now" with observations, "later" with the marker that they come
            in a later poll, "new id" with `(None, None)`, and the game goes on under a new env id.
    """

    def __init__(self, games: Sequence[Any], mode: str) -> None:
        self.possible_agents = games[0].possible_agents
        self.observation_space, self.action_space = games[0].observation_space, games[0].action_space
        self.mode = mode
        self.stopped = 0
        self.restarted: list[Any] = []
        self._games: dict[EnvId, Any] = {}
        self._out: dict[EnvId, StepDicts] = {}
        self._waiting_games = list(games)

    def poll(self) -> tuple[MultiEnvDict, ...]:  # type: ignore[override]
        while self._waiting_games:
            self._games[len(self._games)] = self._waiting_games.pop(0)
            self._begin(len(self._games) - 1)
        out, self._out = self._out, {}
        parts: tuple[MultiEnvDict, ...] = ({}, {}, {}, {}, {}, {})
        for env_id, result in out.items():
            for part, value in zip(parts, result, strict=False):
                part[env_id] = value
        return parts

    def send_actions(self, action_dict: MultiEnvDict) -> None:  # type: ignore[override]
        for env_id, actions in action_dict.items():
            self._out[env_id] = self._games[env_id].step(actions)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        if self.mode == "new id":
            assert env_id is not None
            self._games[len(self._games)] = self._games[env_id]
            self._begin(len(self._games) - 1)
            return None, None
        ids = list(self._games) if env_id is None else [env_id]
        if self.mode == "later":
            for one in ids:
                self._begin(one)
            marker = dict.fromkeys(ids, "async_reset_return")
            return marker, dict(marker)
        results = {one: self._games[one].reset() for one in ids}
        return {one: obs for one, (obs, _) in results.items()}, {
            one: info for one, (_, info) in results.items()
        }

    def try_restart(self, env_id: EnvId | None = None) -> None:
        self.restarted.append(env_id)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        return dict(self._games) if as_dict else list(self._games.values())

    def stop(self) -> None:
        self.stopped += 1

    def _begin(self, env_id: EnvId) -> None:
        obs, infos = self._games[env_id].reset()
        self._out[env_id] = (obs, {}, {ALL: False}, {ALL: False}, infos)


SOLO: Script = [
    [Moment("a"), *[Moment("a", {"a": 1})] * 3, Moment("a", {"a": 5}, over="terminated")],
    [Moment("a"), Moment("a", {"a": 2}), Moment("a", {"a": 7}, over="truncated")],
    [Moment("a"), Moment("a", {"a": -3}, over="terminated")],
]
TURNS: Script = [
    [
        Moment("a"), Moment("b", {"a": 1, "b": 1}), Moment("a", {"b": 10}), Moment("b", {"a": 2, "b": 20}),
        Moment("", {"a": 3, "b": 30}, over="terminated"),
    ],
    [Moment("b"), Moment("a", {"a": 5}), Moment("ab", {"b": 50}, over="truncated")],
]  # fmt: skip
TOGETHER: Script = [
    [Moment("ab"), *[Moment("ab", {"a": 1, "b": -2})] * 3, Moment("ab", {"a": 5, "b": 6}, over="truncated")],
    [Moment("ab"), Moment("ab", {"b": 6}, over="terminated")],
]
IRREGULAR: Script = [
    [
        Moment("a"),
        Moment("ab", {"a": 1, "b": 2, "c": 3}),  # b is late; c is paid before it is there
        Moment("b", {"a": 4, "b": 5}),  # a pauses
        Moment("bc", {"a": 6, "c": 7}),
        Moment("ac", {"b": 8, "a": 9}, terminated="b", final="b"),  # b dies early
        Moment("ac", {"b": 10}, terminated="b"),  # paid after its end; its flag stays
        Moment("abc", {"b": 11, "a": 12}),  # b returns
        Moment("", {"c": 13}, truncated="a"),  # a ends without an observation; nobody waits
        Moment("c", {"a": 14, "d": 15}, terminated="b"),
        Moment("", {"a": 16, "c": 17}, truncated="c", over="terminated"),
    ],
    [
        Moment(""),  # nobody waits at first
        Moment("d", {"d": 1}, terminated="a", final="a"),  # a ends with its first observation
        Moment("cd", {"a": 2, "d": 3}),
        Moment("d", {"c": 4}, terminated="c", final="c"),
        Moment("dc", {"d": 5}, over="truncated"),
    ],
]
