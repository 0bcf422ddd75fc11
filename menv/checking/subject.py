"""What is to be checked: an environment given as an instance, or whatever creates copies of it.

`menv.checking.check` makes one. It knows the registry and which kind of environment has which stage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from menv.base_env import BaseEnv
from menv.checking.base_env_stage import BaseEnvStage
from menv.checking.gym_stage import GymStage
from menv.checking.gym_vector_stage import GymVectorStage
from menv.checking.multi_agent_stage import MultiAgentStage
from menv.checking.report import Broken, Report
from menv.checking.stage import Stage, describe
from menv.checking.transcript import same
from menv.checking.vector_stage import VectorStage
from menv.env_context import EnvContext
from menv.errors import ConfigError, EnvCrashError, UnknownNameError
from menv.multi_agent_env import MultiAgentEnv
from menv.registry import resolve_env
from menv.vector_env import VectorEnv

# A class may be of two kinds; its agents are lost if it is taken for a single-agent one.
_STAGES: tuple[tuple[type[Any], type[Stage]], ...] = (
    (BaseEnv, BaseEnvStage),
    (VectorEnv, VectorStage),
    (gym.vector.VectorEnv, GymVectorStage),
    (MultiAgentEnv, MultiAgentStage),
    (gym.Env, GymStage),
)


class Subject:
    """Makes the stages on which an environment is played.

    Attributes:
        stages: Those made so far.
        is_instance: True if the caller gave an environment that exists: there are no copies of it, and it is the
            caller's to close.
        ignored: Codes that the environment itself asks to ignore.
    """

    def __init__(self, env: Any, config: Mapping[str, Any] | None) -> None:
        """Look up what creates the environment.

        Raises:
            ConfigError: `env` is nothing that could be an environment, or a name that nobody knows.
            Broken: It cannot create anything.
        """
        self.stages: list[Stage] = []
        self.is_instance = _is_instance(env)
        self.ignored: Any = getattr(env, "menv_ignore", ())
        self._env = env
        self._config = config
        self._contexts: list[tuple[EnvContext, EnvContext]] = []
        if self.is_instance and config is not None:
            raise ConfigError(
                "check_env: config is given with an environment that exists, expected None; pass the class instead"
            )
        self._creator = None if self.is_instance else _creator(env)

    def stage(self, report: Report, vector_index: int) -> Stage:
        """Return the environment on a stage; a new copy each time, unless it is an instance.

        Args:
            report: Takes the findings.
            vector_index: Which sub-environment the copy is told to be.

        Raises:
            Broken: It could not be created, or is of no known kind.
        """
        env = self._env if self._creator is None else self._create(self._creator, vector_index)
        if self._creator is not None and any(stage.given is env for stage in self.stages):
            raise Broken(
                "ME077", "two calls of the creator returned the same object, expected a new one each time"
            )
        self.ignored = getattr(env, "menv_ignore", None) or getattr(_inner(env), "menv_ignore", self.ignored)
        stage = _stage_class(env)(env, report)
        self.stages.append(stage)
        return stage

    def _create(self, creator: Callable[[EnvContext], Any], vector_index: int) -> Any:
        context = EnvContext(self._config, vector_index=vector_index)
        self._contexts.append((context, context.copy()))
        try:
            env = creator(context)
        except (Exception, SystemExit) as error:
            raise Broken(
                "ME092", f"the creator (vector_index={vector_index}) raised {describe(error)}"
            ) from error
        if env is None or isinstance(env, type):
            got = "None" if env is None else f"the class {env.__name__}"
            raise Broken("ME092", f"the creator returned {got}, expected an environment")
        return env

    def check_config(self, report: Report) -> None:
        """Note an environment that changed the settings that it was given."""
        for now, before in self._contexts:
            if not same(dict(now), dict(before)):
                changed = sorted(
                    str(key)
                    for key in now.keys() | before.keys()
                    if key not in now or key not in before or not same(now[key], before[key])
                )
                report.add("ME075", f"the env_config has changed in {changed[:8]}")


def _creator(env: Any) -> Callable[[EnvContext], Any]:
    try:
        return resolve_env(env)
    except UnknownNameError:
        raise
    except EnvCrashError as error:
        raise Broken("ME092", str(error)) from error
    except ConfigError as error:
        if not callable(env) and not isinstance(env, str):
            raise
        raise Broken("ME093", str(error).partition(";")[0]) from error


def _is_instance(env: Any) -> bool:
    return not isinstance(env, type | str) and any(
        callable(getattr(env, method, None)) for method in ("step", "poll", "vector_step")
    )


def _inner(env: Any) -> Any:
    return env.unwrapped if isinstance(env, gym.Env) else env


def _stage_class(env: Any) -> type[Stage]:
    """Return the stage for an environment of this kind.

    Raises:
        Broken: There is none.
    """
    for kind, stage in _STAGES:
        if isinstance(env, kind):
            return stage
    name = type(env).__name__
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    spaces_are_methods = callable(getattr(env, "observation_space", None)) and not isinstance(
        env.observation_space, gym.Space
    )
    if "pettingzoo" in packages or (spaces_are_methods and hasattr(env, "possible_agents")):
        wrapper = "PettingZooEnv" if callable(getattr(env, "agent_iter", None)) else "ParallelPettingZooEnv"
        raise Broken(
            "ME008", f"{name} is a PettingZoo environment, expected it wrapped",
            fix=f"pass `lambda context: menv.wrappers.{wrapper}(env)`, with the environment made inside",
        )  # fmt: skip
    if "gym" in packages or _looks_old(env):
        raise Broken("ME009", f"{name} is an environment of the old gym API, expected a gymnasium.Env")
    raise Broken("ME007", f"{name} is no kind of environment that menv knows")


def _looks_old(env: Any) -> bool:
    """Return whether an object speaks the gym API from before 0.26: its reset takes no seed."""
    if not all(hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space")):
        return False
    try:
        parameters = inspect.signature(env.reset).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(one.name == "seed" or one.kind is one.VAR_KEYWORD for one in parameters)
