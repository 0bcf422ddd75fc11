"""What probes play on: an environment of any kind, whose agents wait for actions turn after turn.

There is one subclass for each kind of environment. A stage calls the environment, checks what comes back and
hands it on in one form; it decides neither who acts how nor how long is played.
"""

from __future__ import annotations

import abc
import inspect
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv.acting.action_head import ActionHead
from menv.base_env import AgentId, EnvId
from menv.checking.global_draws import state_of_generators, used_since
from menv.checking.report import Broken, Report
from menv.connectors.flat_actions import flat_action_space
from menv.env_calls import how_many
from menv.errors import ConfigError
from menv.nested import leaves

Key: TypeAlias = tuple[EnvId, AgentId]
"""A sub-environment and an agent in it."""
SpacePair: TypeAlias = tuple[gym.Space[Any], gym.Space[Any]]


@dataclass(slots=True)
class Turn:
    """What came back from one call.

    Attributes:
        waiting: Observations of those who must act now.
        shown: All observations, last ones too.
        rewards: As they came.
        flags: As they came: terminated and truncated.
        infos: As they came, by whatever key.
        over: True if a reset is due.
    """

    waiting: dict[Key, Any]
    shown: dict[Key, Any]
    rewards: Any = None
    flags: Any = None
    infos: Mapping[Any, Any] = field(default_factory=dict)
    over: bool = False


class Stage(abc.ABC):
    """One environment, played turn by turn.

    Attributes:
        env: The environment, or what stands before it.
        given: The environment itself.
        report: Takes the findings.
        env_steps: Env steps taken so far.
        episodes: Episodes that ended so far.
        takes_seed: Whether a reset can be given a seed.
        repeats: Whether a reset brings the environment back to a beginning, as the probes of seeds need.
        seconds: How long each env step took.
        late: Whether nothing is known of its spaces before the first reset.
    """

    repeats = True

    def __init__(self, env: Any, report: Report) -> None:
        self.env = self.given = env
        self.report = report
        self.env_steps = 0
        self.episodes = 0
        self.takes_seed = True
        self.seconds: list[float] = []
        self.late = False

    @abc.abstractmethod
    def check_spaces(self) -> None:
        """Note what is wrong before anything is played.

        Raises:
            Broken: Nothing can be played.
        """

    @abc.abstractmethod
    def reset(self, seed: int | None) -> Turn:
        """Begin anew."""

    @abc.abstractmethod
    def step(self, actions: dict[Key, Any]) -> Turn:
        """Answer all who wait."""

    @abc.abstractmethod
    def spaces(self, key: Key) -> SpacePair:
        """Return the spaces of somebody who waits."""

    def read(self, name: str) -> Any:
        """Return an attribute of the environment, None if it has none.

        Raises:
            Broken: Looking it up raised.
        """
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
        """Reset an environment that declares no spaces before, as training does."""
        if undeclared():
            self.call("reset", code="ME091")
            self.late = not undeclared()
            if self.late:
                self.report.add("ME015", "no spaces before the first reset, expected them in __init__")

    @property
    def idle(self) -> bool:
        """Whether nobody waits and env steps without an action are being counted."""
        return False

    def finish(self) -> None:  # noqa: B027 - optional
        """Note what shows only at the end of the play."""

    def release(self) -> None:  # noqa: B027 - optional
        """Put back what was taken off an environment that belongs to somebody else."""

    def close(self) -> None:
        """Close the environment, as training does at its end."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def call(self, method: str, *args: Any, code: str, **kwargs: Any) -> Any:
        """Call a method of the environment.

        Raises:
            Broken: It raised.
        """
        before, start = state_of_generators(), time.perf_counter()
        try:
            result = getattr(self.env, method)(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise self._crash(method, error, code) from error
        if code == "ME090":
            self.seconds.append(time.perf_counter() - start)
        used = used_since(before)
        if used:
            self.report.add(
                "ME061", f"{method} draws from {used}, which the whole process shares", self.env_steps
            )
        return result

    def _crash(self, method: str, error: BaseException, code: str) -> Broken:
        if "read-only" in str(error):
            code = "ME072"
        return Broken(code, f"{method} raised {describe(error)}", self.env_steps)

    def check_signature(self, reset: Any) -> None:
        """Note a reset that cannot be given a seed and options."""
        try:
            parameters = inspect.signature(reset).parameters
        except (TypeError, ValueError):  # some built-in callables do not tell
            return
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            return
        missing = [name for name in ("seed", "options") if name not in parameters]
        if missing:
            self.takes_seed = False
            self.report.add(
                "ME010", f"reset({', '.join(parameters)}) takes no {' and no '.join(missing)}", None
            )

    def require_pair(self, result: Any, method: str = "reset") -> tuple[Any, Any]:
        """Return what a reset returned.

        Raises:
            Broken: It is no pair.
        """
        if isinstance(result, tuple) and len(result) == 2:
            return result
        old = (
            None if isinstance(result, tuple) else "return (obs, info), or wrap it in menv.wrappers.LegacyGym"
        )
        raise Broken(
            "ME011", f"{method} returned {how_many(result)}, expected (obs, info)", self.env_steps, old
        )

    def require_five(self, result: Any, method: str = "step") -> Any:
        """Return what a step returned.

        Raises:
            Broken: It has not five parts.
        """
        if isinstance(result, tuple | list) and len(result) == 5:
            return result
        raise Broken("ME020", f"{method} returned {how_many(result)}, expected five", self.env_steps)


def check_pair(report: Report, who: str, obs_space: Any, action_space: Any) -> None:
    """Note a pair of spaces that cannot be used, or not by every policy.

    Raises:
        Broken: Nothing can be played with them.
    """
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
            report.add(
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
    """Return how many sub-environments a vectorised environment says it has, 0 if that is no number."""
    number = getattr(env, "num_envs", 0)
    return int(number) if isinstance(number, int | np.integer) and number > 0 else 0


def listed_agents(env: Any) -> tuple[AgentId, ...]:
    """Return the `possible_agents` of an environment, none if it does not list any.

    Raises:
        Broken: They are no list of agent ids.
    """
    try:
        listed = getattr(env, "possible_agents", None)
    except Exception as error:
        raise Broken("ME014", f"possible_agents raised {describe(error)}") from error
    if listed is None:
        return ()
    # A number, a string and an array are what else is found there; none of them lists agent ids.
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
