"""`EnvRunner`: one interface to reset and step any kind of environment, with a check of each returned value.

The subclasses here play environments without agent ids; `agent_runners.py` has the others. Actions and the length of a
play are the caller's choice (`play.py`).
"""

from __future__ import annotations

import abc
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from menv.adapters.gym_vector import DISABLED, SAME_STEP, autoreset_mode, by_name, final_obs, rows_of
from menv.adapters.validation import STEP_PARTS, check_counts
from menv.base_env import SINGLE_AGENT, AgentId, EnvId
from menv.checking.codes import Broken, FindingCollector
from menv.checking.values import (
    check_flag,
    check_info,
    check_mask,
    check_mask_space,
    check_obs,
    check_pair,
    check_reward,
    reported,
    same,
    sample_action,
    state_of_generators,
    usable_mask,
    used_since,
)
from menv.env_calls import OR_MANY_AGENTS, many_agents, returned
from menv.errors import ContractError, message_of
from menv.spaces import own_copy

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
        env_steps: Of a copy: env steps since the beginning of the play.
        broken: The error that ended the play, in place of a timestep.
    """

    waiting: dict[Key, Any]
    shown: dict[Key, Any]
    rewards: Any = None
    flags: Any = None
    infos: Mapping[Any, Any] = field(default_factory=dict)
    over: bool = False
    env_steps: int = 0
    broken: Broken | None = None

    def copied(self, env_steps: int) -> RunnerStep:
        """Return a copy of what plays are compared by."""
        waiting, shown = dict.fromkeys(self.waiting), own_copy(self.shown)
        rewards, flags = own_copy(self.rewards), own_copy(self.flags)
        return RunnerStep(waiting, shown, rewards, flags, env_steps=env_steps)


class EnvRunner(abc.ABC):
    """One environment, stepped and checked. Methods raise `Broken` where it cannot be stepped further.

    Attributes:
        env: The environment that is stepped: `given`, or one around or inside it.
        episodes: Number of ended episodes.
        takes_seed: Whether reset takes a seed.
        repeats: Whether a reset starts all episodes again, as the comparison of seeds needs.
        idle: Whether no agent acts and empty env steps are being counted.
        seconds: Duration of each env step.
        late_spaces: Whether spaces are known only after the first reset.
        possible: The agents that the environment lists.
        otherwise: Ends the advice about rewards and flags that are no single value.
    """

    repeats = True
    otherwise = ""
    idle: bool = False
    possible: frozenset[AgentId] = frozenset()

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

    def spaces(self, key: Key) -> SpacePair:
        """Return the spaces of a waiting agent."""
        return self.env.observation_space, self.env.action_space

    def who(self, key: Key) -> str:
        """Return the beginning of messages about an agent."""
        return f"env {key[0]}: "

    def report(self, code: str, message: str, about: str = "", fix: str | None = None) -> None:
        """Report a fault that showed in this env step."""
        self.collector.add(code, message, self.env_steps, about=about, fix=fix)

    def broken(self, code: str, message: str, fix: str | None = None) -> Broken:
        """Return the error for a fault after which the environment cannot be stepped."""
        return Broken(code, message, self.env_steps, fix)

    def read(self, name: str) -> Any:
        """Return an attribute of the environment, None if it has none."""
        try:
            return getattr(self.env, name, None)
        except Exception as error:
            raise self.broken("ME001", f"{name} raised {describe(error)}") from error

    def declared(self) -> Any:
        """Return the spaces that a copy must declare too."""
        names = ("observation_space", "action_space", "observation_spaces", "action_spaces")
        found = [self.read(name) for name in names]
        return [None if callable(space) else space for space in found]

    def check_pair(self, who: str, obs_space: Any, action_space: Any) -> None:
        """Check the spaces of one agent, and where its masks are."""
        check_pair(self.collector, who, obs_space, action_space)
        check_mask_space(self.collector, who, obs_space, action_space)

    def find_spaces(self, undeclared: Callable[[], bool]) -> None:
        """Reset an environment that declares its spaces only then, as training does."""
        if undeclared():
            self.call("reset", code="ME091")
            self.late_spaces = not undeclared()
            if self.late_spaces:
                self.collector.add("ME015", "no spaces before the first reset, expected them in __init__")

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
            self.report("ME061", f"{method} draws from {used}, which the whole process shares")
        return result

    def call_reset(self, seed: int | None) -> Any:
        """Reset with a seed, if the environment takes one, and return `(obs, info)`."""
        given = {"seed": seed, "options": None} if self.takes_seed else {}
        return self.call_for(2, "reset", **given)

    def call_for(self, number: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a reset, which returns 2 values, or a step, which returns 5."""
        result = self.call(method, *args, code="ME091" if number == 2 else "ME090", **kwargs)
        return self.stated(returned, result, number, method)

    def _crash(self, method: str, error: BaseException, code: str) -> Broken:
        if "read-only" in message_of(error):
            code = "ME072"
        return self.broken(code, f"{method} raised {describe(error)}")

    def check_signature(self, reset: Any) -> None:
        parameters = parameters_of(reset)
        missing = [name for name in ("seed", "options") if parameters is not None and name not in parameters]
        if parameters is not None and missing:
            self.takes_seed = False
            message = f"reset({', '.join(parameters)}) takes no {' and no '.join(missing)}"
            self.collector.add("ME010", message)

    def stated(self, rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a rule that adapters raise, and raise its error as the finding that it names."""
        try:
            return rule(*args, **kwargs)
        except ContractError as error:
            raise Broken.of(error, self.env_steps) from error

    def check_row(self, key: Key, obs: Any, acting: bool = True) -> None:
        """Check an observation and, unless it is a final one, its mask."""
        obs_space, action_space = self.spaces(key)
        check_obs(self.report, self.who(key), obs_space, obs)
        if acting:
            check_mask(self.report, self.who(key), obs, action_space)

    def check_outcome(self, key: Key, reward: Any, *flags: Any) -> list[bool]:
        """Check the reward of a single agent; return its flags, terminated and truncated."""
        who = self.who(key)
        check_reward(self.report, who, reward, self.otherwise)
        names = ("terminated", "truncated")
        return [
            check_flag(self.report, f"{who}{name}", flag, self.otherwise)
            for name, flag in zip(names, flags, strict=True)
        ]


def parameters_of(reset: Any) -> list[str] | None:
    """Return the parameters of a method, None if it takes any keyword or, as some built-in callables, does not tell."""
    try:
        parameters = inspect.signature(reset).parameters
    except (TypeError, ValueError):
        return None
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return None if takes_any else list(parameters)


def describe(error: BaseException) -> str:
    """Return the type of an exception, the first line of its message, and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" (line {trace.tb_lineno} of {trace.tb_frame.f_code.co_name})" if trace is not None else ""
    first = next(iter(message_of(error).splitlines()), "")[:200]
    return f"{type(error).__name__}: {first}{place}"


ONLY: Key = (0, SINGLE_AGENT)


class GymRunner(EnvRunner):
    """Plays one gymnasium environment."""

    otherwise = OR_MANY_AGENTS

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

    def who(self, key: Key) -> str:
        return ""

    def check_spaces(self) -> None:
        self._check_one_agent()
        self.find_spaces(lambda: self.read("observation_space") is None or self.read("action_space") is None)
        self.check_pair("", self.read("observation_space"), self.read("action_space"))
        self.check_signature(self.env.reset)
        if self.takes_seed:
            self.check_signature(self.env.unwrapped.reset)

    def reset(self, seed: int | None) -> RunnerStep:
        obs, info = self.call_reset(seed)
        self._check_one_agent(obs)
        return self._timestep(obs, info, False, "reset: ")

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        obs, reward, *flags, info = self.call_for(5, "step", actions[ONLY])
        ended = self.check_outcome(ONLY, reward, *flags)
        timestep = self._timestep(obs, info, any(ended))
        self.episodes += timestep.over
        timestep.rewards, timestep.flags = reward, ended
        return timestep

    def _check_one_agent(self, obs: object = None) -> None:
        why = many_agents(self.env, obs)
        if why is not None:
            raise self.broken("ME016", f"{why}, expected one agent")

    def _timestep(self, obs: object, info: object, over: bool, where: str = "") -> RunnerStep:
        check_info(self.report, where, info, obs)
        self.check_row(ONLY, obs, acting=not over)
        return RunnerStep({} if over else {ONLY: obs}, {ONLY: obs}, infos={ONLY: info}, over=over)


def _is_passive(env: object) -> bool:
    """Return whether a layer is gymnasium's own checker, which reports some of the same faults."""
    return isinstance(env, gym.Wrapper) and type(env).__name__ == "PassiveEnvChecker"


class VectorRunner(EnvRunner):
    """Plays one VectorEnv; the keys of its timesteps are `(index, "agent0")`."""

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        number = getattr(env, "num_envs", 0)
        number = int(number) if isinstance(number, int | np.integer) and number > 0 else 0
        self._keys: list[Key] = [(index, SINGLE_AGENT) for index in range(number)]

    def check_spaces(self) -> None:
        self.check_pair("", self.read("observation_space"), self.read("action_space"))
        self._check_number()

    def _check_number(self) -> None:
        if not self._keys:
            got = f"{self.read('num_envs')!r:.40}"
            raise Broken("ME097", f"num_envs is {got}, expected an integer of at least 1")

    def _check_counts(self, method: str, names: Sequence[str], parts: Any) -> None:
        self.stated(check_counts, names, parts, len(self._keys), method)

    def reset(self, seed: int | None) -> RunnerStep:
        seeds = {} if seed is None else {"seeds": [seed + index for index in range(len(self._keys))]}
        result = self.call_for(2, "vector_reset", **seeds)
        self._check_counts("vector_reset", STEP_PARTS[::4], result)
        return self._timestep(*map(list, result))

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        parts = self.call_for(5, "vector_step", [actions[key] for key in self._keys])
        self._check_counts("vector_step", STEP_PARTS, parts)
        obs, rewards, terminateds, truncateds, infos = map(list, parts)
        outcomes = zip(self._keys, rewards, terminateds, truncateds, strict=True)
        flags = [self.check_outcome(*outcome) for outcome in outcomes]
        last = {index: obs[index] for index, pair in enumerate(flags) if any(pair)}
        self.episodes += len(last)
        for index in last:
            self._check(index, last[index], infos[index], acting=False)
            obs[index], infos[index] = self.call_for(2, "reset_at", index)
        timestep = self._timestep(obs, infos)
        timestep.shown.update({(index, "final"): value for index, value in last.items()})
        timestep.rewards, timestep.flags = rewards, flags
        return timestep

    def _timestep(self, obs: list[Any], infos: list[Any]) -> RunnerStep:
        for index in range(len(self._keys)):
            self._check(index, obs[index], infos[index])
        shown = dict(zip(self._keys, obs, strict=True))
        return RunnerStep(shown, dict(shown), infos=dict(zip(self._keys, infos, strict=True)))

    def _check(self, index: int, obs: object, info: object, acting: bool = True) -> None:
        self.check_row(self._keys[index], obs, acting)
        check_info(self.report, self.who(self._keys[index]), info, obs)


_STEPS_BEFORE_RESET = 5


class GymVectorRunner(VectorRunner):
    """Plays one vectorised gymnasium environment; the keys of its timesteps are `(index, "agent0")`."""

    def __init__(self, env: Any, collector: FindingCollector) -> None:
        super().__init__(env, collector)
        self._mode = ""
        # By sub-environment: the last final observation, and a copy of it.
        self._finals: dict[int, tuple[Any, Any]] = {}
        # By sub-environment: the first observation that was equal to the final one before it.
        self._firsts: dict[int, Any] = {}
        self._finals_differed = False
        self._tried_sub_env = False

    def check_spaces(self) -> None:
        self.check_pair("single ", *self.declared()[:2])
        check_pair(self.collector, "batched ", self.read("observation_space"), self.read("action_space"))
        self._check_number()
        try:
            self._mode = autoreset_mode(self.env)
        except Exception as error:
            raise Broken("ME098", str(error).partition("; ")[0]) from error
        self.check_signature(self.env.reset)

    def declared(self) -> Any:
        return [self.read("single_observation_space"), self.read("single_action_space"), len(self._keys)]

    def spaces(self, key: Key) -> SpacePair:
        return self.env.single_observation_space, self.env.single_action_space

    def reset(self, seed: int | None) -> RunnerStep:
        self._mode = self._mode or autoreset_mode(self.env)
        seeds = {} if seed is None or not self.takes_seed else {"seed": seed}
        obs, infos = self.call_for(2, "reset", **seeds)
        self._by_name(infos, "reset")
        return self._rows(obs)

    def step(self, actions: dict[Key, Any]) -> RunnerStep:
        self.env_steps += 1
        space = self.env.single_action_space
        empty: Any = create_empty_array(space, len(self._keys))
        batch = concatenate(space, [actions[key] for key in self._keys], empty)
        obs, *parts, infos = self.call_for(5, "step", batch)
        self._check_counts("step", ("rewards", "terminations", "truncations"), parts)
        flags = [self.check_outcome(*outcome) for outcome in zip(self._keys, *parts, strict=True)]
        infos = self._by_name(infos, "step")
        done = np.any(flags, axis=1)
        self.episodes += int(done.sum())
        rewards = np.copy(parts[0])
        timestep = self._rows(obs, done if self._mode != SAME_STEP else None)
        if self._mode == SAME_STEP:
            self._check_finals(timestep, done, infos)
        elif self._mode == DISABLED and done.any():
            timestep = self._rows(self.call_for(2, "reset", options={"reset_mask": done})[0])
        timestep.rewards, timestep.flags = rewards, flags
        return timestep

    def _check_finals(self, timestep: RunnerStep, done: Any, infos: Mapping[str, Any]) -> None:
        over = np.flatnonzero(done).tolist()
        finals = reported(self.report, final_obs, infos, over[0], "step") if over else None
        if finals is not None and not self._tried_sub_env:
            self._tried_sub_env = True
            self._try_sub_env()
        # By sub-environment, as gymnasium has them; a batch of a nested space shares no buffer.
        known = over if isinstance(finals, np.ndarray | list | tuple) else ()
        self._compare_finals(finals, known, list(timestep.shown.values()))

    def _compare_finals(self, finals: Any, done: Sequence[int], rows: Sequence[Any]) -> None:
        """Report final observations that are overwritten later, or equal the next first ones, `rows`."""
        for index, (final, then) in self._finals.items():
            if not same(final, then):
                self._add_final(index, "changes with the next step")
        self._finals.clear()
        for index in done:
            self._finals[index] = finals[index], own_copy(finals[index])
            if not same(finals[index], rows[index]):
                self._finals_differed = True
                continue
            first = self._firsts.setdefault(index, own_copy(rows[index]))
            # Equal by chance is possible; equal at each end while first observations differ is not.
            if not self._finals_differed and not same(first, rows[index]):
                self._add_final(index, "is what the next episode begins with, at each end so far")

    def _add_final(self, index: int, what: str, why: str = "") -> None:
        rule = f"expected the last observation of the episode{why}"
        self.report("ME101", f"env {index}: infos['final_obs'] {what}, {rule}")

    def _try_sub_env(self) -> None:
        """Report a sub-environment whose reset writes into the observation that its last step returned.

        `AsyncVectorEnv` sends final observations after the reset, too late to see the overwriting.
        """
        inner = self.env.unwrapped
        if getattr(inner, "envs", None) or not getattr(inner, "env_fns", None):
            return
        with suppress(Exception):  # The play itself finds what raises.
            env = inner.env_fns[0]()
            with closing(env):
                rng = np.random.default_rng(0)
                obs, done = env.reset(seed=0)[0], False
                for _ in range(_STEPS_BEFORE_RESET):
                    if not done:
                        action = sample_action(env.action_space, rng, usable_mask(obs, env.action_space))
                        obs, _, terminated, truncated, _ = env.step(action)
                        done = terminated or truncated
                kept = own_copy(obs)
                env.reset()
            if not same(obs, kept):
                why = ", because reset and step of the sub-environment return the same array"
                self._add_final(0, "is overwritten by the reset", why)

    def _by_name(self, infos: object, method: str) -> Mapping[str, Any]:
        named = reported(self.report, by_name, infos, len(self._keys), method) or {}
        check_info(self.report, f"{method}: ", named, None)
        return named

    def _rows(self, obs: object, last: Any = None) -> RunnerStep:
        rows = self.stated(rows_of, self.env, obs, "step")
        for index, (key, row) in enumerate(zip(self._keys, rows, strict=True)):
            self.check_row(key, row, acting=last is None or not last[index])
        shown = dict(zip(self._keys, rows, strict=True))
        return RunnerStep(shown, dict(shown))
