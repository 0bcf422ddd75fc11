"""`EnvRunner`: one interface to reset and step any kind of environment; subclasses check each returned value.

`GymRunner` and `VectorRunner` are here, `multi_agent_runner.py` and `batched_runners.py` have the others. Actions and
the length of a play are the caller's choice (`play.py`).
"""

from __future__ import annotations

import abc
import ctypes
import inspect
import random
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv.base_env import SINGLE_AGENT, AgentId, EnvId
from menv.checking.codes import Broken, FindingCollector
from menv.checking.values import check_flag, check_info, check_mask, check_mask_space, check_obs, check_reward
from menv.connectors.action_output import flat_action_space
from menv.errors import ConfigError
from menv.inference.action_heads import ActionHead
from menv.spaces import how_many, leaves, many_agents

_MT19937_BYTES = 625 * 4
"""624 words and the position in them."""


def state_of_generators() -> tuple[Any, Any]:
    """Return values that differ when `numpy.random` or `random` is used."""
    return _state_of_numpy(), random.getstate()


def used_since(before: tuple[Any, Any]) -> str | None:
    """Return the names of the global generators that were sampled or seeded, None if neither was."""
    now = state_of_generators()
    names = [
        name for name, one, other in zip(("numpy.random", "random"), before, now, strict=True) if one != other
    ]
    return " and ".join(names) or None


def _state_of_numpy() -> Any:
    # numpy's cached normal number is left out: the call that sampled it was seen.
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # numpy's stubs leave it out
    if type(generator) is np.random.MT19937:
        # The raw memory; `get_state` takes fifty times as long and runs twice per env step.
        return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    return repr(np.random.get_state(legacy=False))


Key: TypeAlias = tuple[EnvId, AgentId]
"""A sub-environment and an agent in it."""
SpacePair: TypeAlias = tuple[gym.Space[Any], gym.Space[Any]]


@dataclass(slots=True)
class RunnerStep:
    """The result of one reset or step; rewards, flags and infos are as the environment returned them.

    Attributes:
        waiting: Observations of the agents that act next.
        shown: All observations, final ones included.
        flags: Terminated and truncated.
        over: Whether a reset is due.
    """

    waiting: dict[Key, Any]
    shown: dict[Key, Any]
    rewards: Any = None
    flags: Any = None
    infos: Mapping[Any, Any] = field(default_factory=dict)
    over: bool = False


class EnvRunner(abc.ABC):
    """One environment, stepped and checked. Methods raise `Broken` where it cannot be stepped further.

    Attributes:
        env: The environment that is stepped: `given`, or one around or inside it.
        episodes: Number of ended episodes.
        takes_seed: Whether reset takes a seed.
        repeats: Whether a reset starts all episodes again, as the comparison of seeds needs.
        seconds: Duration of each env step.
        late_spaces: Whether spaces are known only after the first reset.
    """

    repeats = True

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        self.env = self.given = env
        self.collector = collector
        self.env_steps = 0
        self.episodes = 0
        self.takes_seed = True
        self.seconds: list[float] = []
        self.late_spaces = False

    @abc.abstractmethod
    def check_spaces(self) -> None:
        """Check spaces and signatures before the first step."""

    @abc.abstractmethod
    def reset(self, seed: int | None) -> RunnerStep:
        """Start a new episode."""

    @abc.abstractmethod
    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        """Take an env step with the actions of all waiting agents."""

    @abc.abstractmethod
    def spaces(self, key: Key) -> SpacePair:
        """Return the spaces of a waiting agent."""

    def read(self, name: str) -> Any:
        """Return an attribute of the environment, None if it has none."""
        try:
            return getattr(self.env, name, None)
        except Exception as error:
            raise Broken("ME001", f"{name} raised {describe(error)}", self.env_steps) from error

    def declared(self) -> Any:
        """Return the spaces that a copy must declare too."""
        names = ("observation_space", "action_space", "observation_spaces", "action_spaces")
        found = [self.read(name) for name in names]
        return [None if callable(space) else space for space in found]

    def find_spaces(self, undeclared: Callable[[], bool]) -> None:
        """Reset an environment that declares its spaces only then, as training does."""
        if undeclared():
            self.call("reset", code="ME091")
            self.late_spaces = not undeclared()
            if self.late_spaces:
                self.collector.add("ME015", "no spaces before the first reset, expected them in __init__")

    @property
    def idle(self) -> bool:
        """Whether no agent acts and empty env steps are being counted."""
        return False

    def finish(self) -> None:  # noqa: B027 - optional
        """Report findings that show only at the end."""

    def release(self) -> None:  # noqa: B027 - optional
        """Restore what the runner changed in a caller's environment."""

    def close(self) -> None:
        """Close the environment, as training does at its end."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def call(self, method: str, *args: Any, code: str, **kwargs: Any) -> Any:
        """Call a method of the environment and check that it leaves the global generators alone."""
        before, start = state_of_generators(), time.perf_counter()
        try:
            result = getattr(self.env, method)(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise self._crash(method, error, code) from error
        if code == "ME090":
            self.seconds.append(time.perf_counter() - start)
        used = used_since(before)
        if used:
            self.collector.add(
                "ME061", f"{method} draws from {used}, which the whole process shares", self.env_steps
            )
        return result

    def call_reset(self, seed: int | None) -> tuple[Any, Any]:
        """Reset with a seed, if the environment takes one, and return `(obs, info)`."""
        given = {"seed": seed, "options": None} if self.takes_seed else {}
        return self.require_pair(self.call("reset", code="ME091", **given))

    def _crash(self, method: str, error: BaseException, code: str) -> Broken:
        if "read-only" in str(error):
            code = "ME072"
        return Broken(code, f"{method} raised {describe(error)}", self.env_steps)

    def check_signature(self, reset: Any) -> None:
        try:
            parameters = inspect.signature(reset).parameters
        except (TypeError, ValueError):  # some built-in callables do not tell
            return
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            return
        missing = [name for name in ("seed", "options") if name not in parameters]
        if missing:
            self.takes_seed = False
            self.collector.add(
                "ME010", f"reset({', '.join(parameters)}) takes no {' and no '.join(missing)}", None
            )

    def require_pair(self, result: Any, method: str = "reset") -> tuple[Any, Any]:
        if isinstance(result, tuple) and len(result) == 2:
            return result
        old = (
            None if isinstance(result, tuple) else "return (obs, info), or wrap it in menv.wrappers.LegacyGym"
        )
        raise Broken(
            "ME011", f"{method} returned {how_many(result)}, expected (obs, info)", self.env_steps, old
        )

    def require_five(self, result: Any, method: str = "step") -> Any:
        if isinstance(result, tuple | list) and len(result) == 5:
            return result
        raise Broken("ME020", f"{method} returned {how_many(result)}, expected five", self.env_steps)


def check_pair(collector: FindingCollector, who: str, obs_space: Any, action_space: Any) -> None:
    """Report spaces that no stock network supports; raise `Broken` for missing ones."""
    for name, space in (("observation", obs_space), ("action", action_space)):
        if space is None:
            raise Broken("ME001", f"{who}the {name} space is None, expected a gymnasium space")
        if not isinstance(space, gym.Space):
            kind = f"{type(space).__module__}.{type(space).__qualname__}"
            raise Broken("ME002", f"{who}the {name} space is a {kind}, expected a gymnasium.Space")
    for name, space, takes in (
        ("observation", obs_space, _readable(obs_space)), ("action", action_space, _has_head(action_space)),
    ):  # fmt: skip
        if not takes:
            collector.add(
                "ME005", f"{who}the {name} space {type(space).__name__} suits no stock network", about=name
            )


def _readable(space: gym.Space[Any]) -> bool:
    spaces = gym.spaces
    kinds = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return all(isinstance(leaf, kinds) for leaf in leaves(space))


def _has_head(space: gym.Space[Any]) -> bool:
    try:
        ActionHead.for_space(flat_action_space(space))
    except ConfigError:
        return False
    return True


def number_of(env: Any) -> int:
    """Return `num_envs`, 0 if it is no positive integer."""
    number = getattr(env, "num_envs", 0)
    return int(number) if isinstance(number, int | np.integer) and number > 0 else 0


def listed_agents(env: Any) -> tuple[AgentId, ...]:
    """Return `possible_agents`, empty if there is no such attribute."""
    try:
        listed = getattr(env, "possible_agents", None)
    except Exception as error:
        raise Broken("ME014", f"possible_agents raised {describe(error)}") from error
    if listed is None:
        return ()
    # Numbers, strings and arrays are found there too.
    if isinstance(listed, Collection) and not isinstance(listed, str | np.ndarray):
        agents = tuple(listed)
        if all(isinstance(agent, Hashable) for agent in agents):
            return agents
    raise Broken("ME014", f"possible_agents is {_short(listed)}, expected a list of agent ids")


def _short(value: Any) -> str:
    return f"the {type(value).__name__} {str(value)[:40]!r}"


def describe(error: BaseException) -> str:
    """Return the type of an exception, the first line of its message, and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" (line {trace.tb_lineno} of {trace.tb_frame.f_code.co_name})" if trace is not None else ""
    first = next(iter(str(error).splitlines()), "")[:200]
    return f"{type(error).__name__}: {first}{place}"


ONLY: Key = (0, SINGLE_AGENT)


class GymRunner(EnvRunner):
    """Plays one gymnasium environment."""

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        self._removed: list[tuple[Any, Any]] = []
        if _is_passive(self.env):
            self.env = env.env
        layer: Any = self.env
        while isinstance(layer, gym.Wrapper):
            if _is_passive(layer.env):
                checker: Any = layer.env
                self._removed.append((layer, checker))
                layer.env = checker.env
            layer = layer.env

    def release(self) -> None:
        for layer, checker in self._removed:
            layer.env = checker

    def check_spaces(self) -> None:
        self._check_one_agent()
        self.find_spaces(lambda: self.read("observation_space") is None or self.read("action_space") is None)
        obs_space, action_space = self.read("observation_space"), self.read("action_space")
        check_pair(self.collector, "", obs_space, action_space)
        check_mask_space(self.collector, "", obs_space, action_space)
        self.check_signature(self.env.reset)
        if self.takes_seed:
            self.check_signature(self.env.unwrapped.reset)

    def spaces(self, key: Key) -> SpacePair:
        return self.env.observation_space, self.env.action_space

    def reset(self, seed: int | None) -> RunnerStep:
        obs, info = self.call_reset(seed)
        self._check_one_agent(obs)
        check_info(self.collector, self.env_steps, "reset: ", info, obs)
        return self._timestep(obs, info, False)

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        obs, reward, terminated, truncated, info = self.require_five(
            self.call("step", actions[ONLY], code="ME090")
        )
        check_reward(self.collector, self.env_steps, "", reward)
        flags = (
            check_flag(self.collector, self.env_steps, "terminated ", terminated),
            check_flag(self.collector, self.env_steps, "truncated ", truncated),
        )
        check_info(self.collector, self.env_steps, "", info, obs)
        over = any(flags)
        self.episodes += over
        timestep = self._timestep(obs, info, over)
        timestep.rewards, timestep.flags, timestep.over = reward, flags, over
        return timestep

    def _check_one_agent(self, obs: Any = None) -> None:
        why = many_agents(self.env, obs)
        if why is not None:
            raise Broken("ME016", f"{why}, expected one agent", self.env_steps)

    def _timestep(self, obs: Any, info: Any, over: bool) -> RunnerStep:
        obs_space, action_space = self.spaces(ONLY)
        check_obs(self.collector, self.env_steps, "", obs_space, obs)
        if not over:
            check_mask(self.collector, self.env_steps, "", obs, action_space)
        return RunnerStep({} if over else {ONLY: obs}, {ONLY: obs}, infos={ONLY: info})


def _is_passive(env: Any) -> bool:
    """Return whether a layer is gymnasium's own checker, which reports some of the same faults."""
    return isinstance(env, gym.Wrapper) and type(env).__name__ == "PassiveEnvChecker"


class VectorRunner(EnvRunner):
    """Plays one VectorEnv; the keys of its timesteps are `(index, "agent0")`."""

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        self._keys: list[Key] = [(index, SINGLE_AGENT) for index in range(number_of(env))]

    def check_spaces(self) -> None:
        pair = self.read("observation_space"), self.read("action_space")
        check_pair(self.collector, "", *pair)
        check_mask_space(self.collector, "", *pair)
        if not self._keys:
            raise Broken(
                "ME097", f"num_envs is {self.read('num_envs')!r:.40}, expected an integer of at least 1"
            )

    def spaces(self, key: Key) -> SpacePair:
        return self.env.observation_space, self.env.action_space

    def reset(self, seed: int | None) -> RunnerStep:
        seeds = {} if seed is None else {"seeds": [seed + key[0] for key in self._keys]}  # type: ignore[operator]
        result = self.require_pair(self.call("vector_reset", code="ME091", **seeds), "vector_reset")
        obs, infos = self._one_each("vector_reset", ("obs", "infos"), result)
        return self._timestep(obs, infos)

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        result = self.call("vector_step", [actions[key] for key in self._keys], code="ME090")
        parts = self.require_five(result, "vector_step")
        names = ("obs", "rewards", "terminateds", "truncateds", "infos")
        obs, rewards, terminateds, truncateds, infos = self._one_each("vector_step", names, parts)
        done, flags = [], []
        for index, values in enumerate(zip(rewards, terminateds, truncateds, strict=True)):
            who = f"env {index}: "
            check_reward(self.collector, self.env_steps, who, values[0])
            pair = [
                check_flag(self.collector, self.env_steps, f"{who}{name} ", flag)
                for name, flag in zip(("terminated", "truncated"), values[1:], strict=True)
            ]
            flags.append(tuple(pair))
            if any(pair):
                done.append(index)
        self.episodes += len(done)
        last = {index: obs[index] for index in done}
        for index in done:
            self._check(index, last[index], infos[index], acting=False)
            obs[index], infos[index] = self.require_pair(
                self.call("reset_at", index, code="ME091"), "reset_at"
            )
        timestep = self._timestep(obs, infos)
        timestep.shown.update({(index, "final"): value for index, value in last.items()})
        timestep.rewards, timestep.flags = list(rewards), flags
        return timestep

    def _timestep(self, obs: list[Any], infos: list[Any]) -> RunnerStep:
        for index in range(len(self._keys)):
            self._check(index, obs[index], infos[index], acting=True)
        shown = dict(zip(self._keys, obs, strict=True))
        return RunnerStep(shown, dict(shown), infos=dict(zip(self._keys, infos, strict=True)))

    def _check(self, index: int, obs: Any, info: Any, acting: bool) -> None:
        who = f"env {index}: "
        check_obs(self.collector, self.env_steps, who, self.env.observation_space, obs)
        if acting:
            check_mask(self.collector, self.env_steps, who, obs, self.env.action_space)
        check_info(self.collector, self.env_steps, who, info, obs)

    def _one_each(self, method: str, names: tuple[str, ...], parts: Any) -> list[list[Any]]:
        for name, part in zip(names, parts, strict=True):
            if not hasattr(part, "__len__") or isinstance(part, dict) or len(part) != len(self._keys):
                raise Broken(
                    "ME097",
                    f"{method}: {name} is {how_many(part)}, expected {len(self._keys)}, one for each sub-environment",
                    self.env_steps,
                )
        return [list(part) for part in parts]
