"""`register_env`, and the lookup that turns `env=` into an environment.

A string is looked up in this order, and the first match decides:

1. a name given to `register_env`;
2. the name of a built-in environment (`BUILT_IN`);
3. `"pettingzoo:classic/tictactoe_v3"`, `"openspiel:leduc_poker"`, `"jumanji:LevelBasedForaging-v0"`,
   `"pgx:connect_four"`, `"jaxmarl:MPE_simple_spread_v3"` or `"vmas:balance"`, from the package that brings it;
4. `"package.module:Name"`, after the module is imported: an attribute of the module (`"shop.games:Corridor"`,
   `"shop.games:Outer.Inner"`), else the gymnasium id that the import registered (`"shop:Corridor-v0"`);
   `"shop/games.py:Corridor"` imports that file;
5. a gymnasium id, with or without its version (`"CartPole-v1"`, `"Pendulum"`);
6. `"package.module.Name"`, the same as `"package.module:Name"`.

A class or function with a parameter for the `EnvContext` is called with that; without one, `env_config` gives its
keywords.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Self, TypeAlias

import gymnasium as gym

from menv.base_env import BaseEnv
from menv.env_context import EnvContext
from menv.errors import (
    ConfigError,
    ContractError,
    EnvCrashError,
    MenvError,
    MissingExtraError,
    UnknownNameError,
    message_of,
)
from menv.external_env import ExternalEnv, ExternalMultiAgentEnv
from menv.multi_agent_env import MultiAgentEnv
from menv.vector_env import VectorEnv, VectorMultiAgentEnv

EnvCreator: TypeAlias = Callable[[EnvContext], Any]

BUILT_IN: Final[Mapping[str, str]] = {
    "tictactoe": "menv.envs.tictactoe:TicTacToe",
    "traffic": "menv.envs.traffic:MultiAgentTrafficEnv",
}
"""Names of the environments that come with menv, and where each is; imported when asked for."""

EnvKind: TypeAlias = Literal[
    "base_env", "external", "vector", "gym_vector", "vector_agents", "multi_agent", "single_agent"
]
_KINDS: Final[Mapping[EnvKind, type | UnionType]] = {
    "base_env": BaseEnv,
    "external": ExternalEnv | ExternalMultiAgentEnv,
    "vector": VectorEnv,
    "gym_vector": gym.vector.VectorEnv,
    "vector_agents": VectorMultiAgentEnv,
    # Before the next one: a class may be both, and would lose its agents.
    "multi_agent": MultiAgentEnv,
    "single_agent": gym.Env,
}

_registered: dict[str, EnvCreator] = {}
_HOW_TO_REGISTER: Final = "register_env({name!r}, creator) makes a name known"
_WHAT_IS_TAKEN: Final = (
    "expected a registered name, a gymnasium id, 'package.module:Class', 'file.py:Class', "
    "'pettingzoo:family/name', 'openspiel:game', 'jumanji:name', 'pgx:game', 'jaxmarl:name', 'vmas:scenario', a class, "
    "or a function that takes one EnvContext"
)
_FOR_CONTEXTS: Final = re.compile("(^|_)(env)?_?(conf|cfg|context|ctx|setting|option|param|arg)")

_VERSIONED: Final = re.compile(r"-v\d+$")
_FILE: Final = re.compile(r"(.*\.py):(.*)", re.DOTALL)
_FOREIGN: Final = ("pettingzoo", "openspiel", "jaxmarl", "jumanji", "pgx", "vmas")
"""The part before the colon in the names of other libraries' environments."""


class _KeywordsError(ConfigError):
    """The keys of `env_config` are not the keywords of the creator."""


def register_env(name: str, creator: EnvCreator) -> None:
    """Register an environment under `name`; an existing registration is replaced.

    Args:
        name: The name for `env=` and `config["env"]`.
        creator: A class or function of one `EnvContext`, or of the keywords in `env_config`, that returns a new
            environment.

    Raises:
        ConfigError: `name` is not a string, or is empty, or `creator` cannot be called.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"register_env: the name is {name!r}, expected a string that is not empty; "
            "call register_env('my_env', creator)"
        )
    if not callable(creator):
        raise ConfigError(
            f"register_env: the creator of {name!r} is a {type(creator).__name__}, expected a class or a "
            f"function that takes one EnvContext; call register_env({name!r}, lambda context: ...)"
        )
    _registered[name] = creator


@dataclass(frozen=True, slots=True)
class RegisteredEnv:
    """Registrations of this process, for another one: creators of `register_env` and specs of gymnasium's registry."""

    creators: Mapping[str, EnvCreator]
    gym_specs: Mapping[str, Any]

    @classmethod
    def of(cls, env: Any) -> Self:
        """Return the registrations that `env` needs in another process."""
        if not isinstance(env, str) or env in BUILT_IN:
            return cls({}, {})
        if env in _registered:
            return cls({env: _registered[env]}, {})
        if (named := _FILE.fullmatch(env)) is not None:
            # The other process may have another working directory, and another path for modules.
            return cls({env: functools.partial(_make_from_file, Path(named[1]).resolve(), named[2])}, {})
        return cls({}, {name: spec for name, spec in gym.registry.items() if _is_of(name, env)})

    @classmethod
    def everything(cls) -> Self:
        """Return all registrations."""
        return cls(dict(_registered), dict(gym.registry))

    def register(self) -> None:
        """Register them in this process.

        A package that is imported here later registers its ids a second time, and gymnasium would warn about each one.
        This process ignores that warning.
        """
        warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
        _registered.update(self.creators)
        gym.registry.update(self.gym_specs)


def is_known(name: str) -> bool:
    """Return whether a name is registered in this process, or one of an installed library in menv's table.

    Nothing of a user has to be imported to find it.
    """
    library, colon, _ = name.partition(":")
    if colon and library in _FOREIGN and name not in _registered:
        return bool(_foreign().is_installed(name))
    return name in _registered or name in BUILT_IN or (":" not in name and _is_gym_id(name))


def names_module(text: str) -> bool:
    """Return whether a string reads as `"module:Name"` of an importable module, or as another name that imports one.

    Nothing is imported.

    An `env_config` of a file may reach a creator that accepts such names, and `gymnasium.make("module:Id-v0")` imports
    the module.
    """
    module, colon, _ = text.partition(":")
    if _FILE.fullmatch(text) or (colon and module in _FOREIGN):
        return True
    first = module.partition(".")[0]
    if not colon or not first or text.startswith("http://"):
        return False
    try:
        return first in sys.modules or importlib.util.find_spec(first) is not None
    except (ValueError, ImportError):
        return True


def resolve_env(env: Any) -> EnvCreator:
    """Return the creator of the environment that `env` names.

    Args:
        env: A string (the module docstring says how it is read), a game of OpenSpiel, a class, or a callable; the
            latter two are called with the `EnvContext`, or with keywords. A gymnasium id becomes
            `gymnasium.make(id, **context)`.

    Raises:
        ConfigError: `env` is None, an existing environment, no creator, or a callable of which it is not clear how to
            pass the settings.
        EnvCrashError: The module that `env` names raised while it was imported.
        MissingExtraError: That module needs a package that is not installed.
        UnknownNameError: The name is unknown; near names are listed.
    """
    if type(env).__module__.partition(".")[0] == "pyspiel":
        env = f"openspiel:{env}"
    if isinstance(env, str):
        return _env_creator(f"env {describe_env(env)}", named_creator(env))
    if env is None:
        raise ConfigError(f"env: got None, {_WHAT_IS_TAKEN}; pass env=...")
    if not isinstance(env, type) and (not callable(env) or acts_like_an_env(env)):
        raise ConfigError(
            f"env: got an instance of {type(env).__name__}, {_WHAT_IS_TAKEN}, because every sub-environment "
            "is newly created; pass the class, `lambda context: ...`, or a name after "
            "register_env('my_env', lambda context: ...)"
        )
    return _env_creator(f"env {describe_env(env)}", env)


def make_env(env: Any, context: Mapping[str, Any] | None = None) -> Any:
    """Create one environment.

    Args:
        env: As for `resolve_env`.
        context: An `EnvContext`, or the settings alone. The creator gets a copy, which it may change.

    Returns:
        The environment; one of PettingZoo or OpenSpiel in its wrapper.

    Raises:
        ConfigError: As for `resolve_env`; or its base class is RLlib's; or the settings are not the creator's keywords.
        ContractError: The creator returned None, or a class.
        EnvCrashError: The creator raised; its exception is the cause.
        UnknownNameError: As for `resolve_env`.
    """
    creator = resolve_env(env)
    own = context.copy() if isinstance(context, EnvContext) else EnvContext(context)
    where = f"env {describe_env(env)} (worker_index={own.worker_index}, vector_index={own.vector_index})"
    try:
        created = creator(own)
    except _KeywordsError:
        raise
    except Exception as error:
        raise EnvCrashError(
            f"{where}: its creator raised {type(error).__name__}: {_first_line(error)}; "
            "see the traceback of the cause"
        ) from error
    if created is None or isinstance(created, type):
        got = "None" if created is None else f"the class {created.__name__}"
        raise ContractError(
            f"{where}: its creator returned {got}, expected an environment; "
            "fix the creator (is a `return` or a pair of parentheses missing?)"
        )
    refuse_rllib(created, where)
    return wrapped_if_foreign(created)


def env_kind(env: object) -> EnvKind | None:
    """Return which kind of environment an object is, None if it is none or must be wrapped first."""
    return next((kind for kind, base in _KINDS.items() if isinstance(env, base)), None)


def wrapped_if_foreign(env: Any) -> Any:
    """Return an environment of PettingZoo, a game of OpenSpiel or a gymnasium.Env of several agents in its wrapper.

    The last says `n_agents`, and its spaces are Tuples of as many, as in level-based foraging. Other environments are
    returned unchanged.
    """
    if isinstance(env, gym.Env):
        agents = getattr(env.unwrapped, "n_agents", None)
        if agents is None or any(
            not isinstance(space, gym.spaces.Tuple) or len(space) != agents
            for space in (env.observation_space, env.action_space)
        ):
            return env
        from menv.wrappers.multi_agent_gym import MultiAgentGym

        return MultiAgentGym(env)
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    if not packages & {"pettingzoo", "pyspiel"} or "menv" in packages:
        return env
    from menv.wrappers.foreign_envs import wrapped

    return wrapped(env)


def env_names() -> dict[str, list[str]]:
    """Return the names that `env` may have, by where they come from; modules and files may have more."""
    from menv.wrappers.foreign_envs import NAMES

    found = {
        "registered": sorted(_registered),
        "built-in": sorted(BUILT_IN),
        "gymnasium": sorted(gym.registry),
    }
    return found | {kind: [f"{kind}:{name}" for name in NAMES[kind]()] for kind in _FOREIGN}


def refuse_rllib(env: Any, where: str) -> None:
    """Refuse RLlib's `MultiAgentEnv`, which looks like a gymnasium environment of one agent."""
    for base in type(env).__mro__:
        if base.__name__ == "MultiAgentEnv" and base.__module__.startswith("ray.rllib."):
            raise ConfigError(
                f"{where}: a {type(env).__name__} with RLlib's own MultiAgentEnv as its base, expected "
                "menv.MultiAgentEnv, whose methods are the same; change the base class, or pass "
                "`lambda context: menv.wrappers.LegacyGym(YourEnv(context))`"
            )


def describe_env(env: Any) -> str:
    """Return a short name of `env` for messages: the string itself, or the name of the class or function."""
    if isinstance(env, str):
        return repr(env)
    if isinstance(env, functools.partial):
        return f"partial of {describe_env(env.func)}"
    return str(getattr(env, "__qualname__", type(env).__qualname__))


def named_creator(name: str) -> EnvCreator:
    """Return what a name means: a class or a function, as it was registered or defined."""
    if name in _registered:
        return _registered[name]
    name = BUILT_IN.get(name, name)
    scheme, colon, inner = name.partition(":")
    if colon and scheme in _FOREIGN:
        of_library: EnvCreator = _foreign().creator_of(name, scheme, inner)
        return of_library
    module_name, colon, inner = name.rpartition(":")
    if colon:
        return _from_module(name, module_name, inner)
    if name.endswith(".py"):
        raise unknown_name(name, "a file alone is not an environment", advice=f"write '{name}:Class'")
    if _is_gym_id(name):
        return functools.partial(_make_gym, name)
    module_name, _, inner = name.rpartition(".")
    if all(part.isidentifier() for part in name.split(".")) and module_name:
        return _from_module(name, module_name, inner)
    raise unknown_name(name)


def _from_module(name: str, module_name: str, inner: str) -> EnvCreator:
    """Import the module, and return its attribute `inner` or a creator of the gymnasium id `inner`."""
    module = _import(name, module_name)
    try:
        found = functools.reduce(getattr, inner.split("."), module)
    except AttributeError:
        if _is_gym_id(inner):
            return functools.partial(_make_gym, inner)
        makers = [key for key, value in vars(module).items() if callable(value)]
        raise unknown_name(name, f"module {module_name!r} has no {inner!r}", inner, makers) from None
    if not callable(found):
        raise ConfigError(
            f"env {name!r}: {inner} is a {type(found).__name__}, expected a class or a function that takes "
            "one EnvContext; name another attribute"
        )
    creator: EnvCreator = found
    return creator


def _import(name: str, module_name: str) -> Any:
    if not module_name or module_name.startswith("."):
        raise unknown_name(name)
    try:
        return import_named(module_name, f"env {name!r}")
    except ConfigError:
        raise
    except Exception as error:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and package and importlib.util.find_spec(package) is None:
            extra = "'menv-rl[pettingzoo]'" if package in ("pettingzoo", "mpe2") else package
            raise MissingExtraError(
                f"env {name!r}: importing {module_name} needs the package {package}, which is not installed; "
                f"run: pip install {extra}"
            ) from error
        raise EnvCrashError(
            f"env {name!r}: importing {module_name} raised {type(error).__name__}: {_first_line(error)}; the traceback "
            "of the cause leads to the line"
        ) from error


def _module_of(path: Path) -> str:
    """Return the name by which a .py file is imported; its folder, or that of its package, is added to the path."""
    folder, parts = path.resolve().parent, [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return ".".join(parts)


def _make_from_file(path: Path, inner: str, context: EnvContext) -> Any:
    return resolve_env(f"{path}:{inner}")(context)


def _foreign() -> Any:
    """Return the module of other libraries' environments, which most programs do not need."""
    from menv.wrappers import foreign_envs

    return foreign_envs


def _is_gym_id(name: str) -> bool:
    """Return whether gymnasium knows `name`, with or without its version."""
    return bool(name) and any(_is_of(known, name) for known in gym.registry)


def _is_of(known: str, name: str) -> bool:
    return known == name or known.rpartition("-v")[0] == name


def _make_gym(gym_id: str, context: EnvContext) -> Any:
    return gym.make(gym_id, **context)


def checked_creator(label: str, creator: EnvCreator, kind: str = "EnvContext") -> EnvCreator:
    """Return `creator` if it can be called with one positional argument of class `kind`; `label` begins the message.

    Raises:
        ConfigError: It accepts none, or needs more.
    """
    try:
        signature = inspect.signature(creator)
    except (TypeError, ValueError):  # some built-in callables do not tell
        return creator
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(
            f"{label}: takes {signature}, expected one argument, the {kind}; "
            "pass `lambda context: ...` and select the settings it needs from the context"
        ) from error
    return creator


def _env_creator(label: str, creator: Callable[..., Any]) -> EnvCreator:
    """Return a creator that is called with the context: `creator`, or one that passes the settings by keyword."""
    try:
        signature = inspect.signature(creator)
    except (TypeError, ValueError):  # some built-in callables do not tell
        return creator
    first: inspect.Parameter | None = None
    with suppress(TypeError):
        signature.bind(None)
        first = next(iter(signature.parameters.values()))
    if first is not None and _is_setting(first):
        first = None
    return functools.partial(_call, label, creator, signature, first)


def _call(
    label: str, creator: Callable[..., Any], signature: inspect.Signature, first: inspect.Parameter | None,
    context: EnvContext,
) -> Any:  # fmt: skip
    """Pass the context to the first parameter; or the settings by keyword, if it is None or named like one of them."""
    if first is not None and (
        _FOR_CONTEXTS.search(first.name.lower())
        or not (first.name in context or _is_setting_of_class(creator, first))
    ):
        return creator(context)
    try:
        signature.bind(**context)
    except TypeError as error:
        raise _KeywordsError(
            f"{label}: env_config has the keys {sorted(map(str, context))}: {error}, expected keywords of "
            f"{signature!s:.300}; change env_config"
        ) from None
    return creator(**context)


def _is_setting_of_class(creator: object, parameter: inspect.Parameter) -> bool:
    """Return whether the constructor of a class needs this parameter and its name says that it is not a context."""
    needed = parameter.default is parameter.empty and parameter.kind not in _VARIABLE
    takes_a_dict = re.search("EnvContext|Mapping|dict|Any", str(parameter.annotation), re.IGNORECASE)
    # Short names, such as `_` and `c`, say nothing.
    return isinstance(creator, type) and needed and not takes_a_dict and len(parameter.name) > 2


_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_setting(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is not meant for a context: its default is a number or a text."""
    name = parameter.name.lower()
    if name.startswith("_") or _FOR_CONTEXTS.search(name):
        return False
    return name == "render_mode" or isinstance(parameter.default, int | float | str)


def acts_like_an_env(env: Any) -> bool:
    """Return whether an object has the methods of some kind of environment."""
    return any(callable(getattr(env, method, None)) for method in ("step", "poll", "vector_step"))


def _first_line(error: BaseException) -> str:
    # What menv says itself ends with what to do.
    return next(iter(message_of(error).splitlines()), "")[: 1000 if isinstance(error, MenvError) else 200]


def unknown_name(
    name: str, why: str = "", asked: str | None = None, inside: Iterable[str] = (), advice: str = ""
) -> UnknownNameError:
    """Return the error for a name without an environment.

    Args:
        name: The whole name.
        why: What is missing.
        asked: The part at its end that is compared with `inside`.
        inside: What could stand there.
        advice: What to do, if there is something better than a near name.
    """
    asked = name if asked is None else asked
    known = {one: one for one in (*gym.registry, *BUILT_IN, *_registered)}
    if ":" not in name:
        foreign = env_names()
        known = {
            one.rpartition("/")[2].rpartition(":")[2]: one for kind in _FOREIGN for one in foreign[kind]
        } | known
    by_lower_case = {candidate.lower(): whole for candidate, whole in known.items()}
    by_lower_case |= {candidate.lower(): name.removesuffix(asked) + candidate for candidate in inside}
    found = difflib.get_close_matches(asked.lower(), by_lower_case, n=1 if why else 2)
    near = [by_lower_case[match] for match in found]
    hint = advice or ("check the name" if why else _HOW_TO_REGISTER.format(name=name))
    if near and not advice:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    elif not why and _VERSIONED.search(name):
        hint = f"write 'package:{name}' for the package that brings it"
    return UnknownNameError(
        f"env: {name!r} is not known{why and f' ({why})'}, expected a name that menv envs lists, 'module:Class' or "
        f"'file.py:Class'; {hint}"
    )


def import_first(modules: Sequence[str], where: str) -> None:
    """Import modules or .py files that may call `register_env`; see `import_named`."""
    for name in modules:
        import_named(name, f"{where} {name}")


def import_named(name: str, where: str) -> Any:
    """Import a module by its name, or a .py file, whose folder is added to the path.

    Raises:
        UnknownNameError: There is no such module or file.
        ConfigError: Another module has the name of the file. Errors of the module itself are not changed.
    """
    path = Path(name) if name.endswith(".py") else None
    if path is not None:
        if not path.is_file():
            raise UnknownNameError(f"{where}: there is no file {path.resolve()}; check the path")
        name = _module_of(path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UnknownNameError(
            f"{where}: there is no module {name!r} on the path, which ends with {os.getcwd()}; check the name, or go "
            "to its folder"
        ) from None
    found = getattr(module, "__file__", None)
    if path is not None and (found is None or Path(found).resolve() != path.resolve()):
        raise ConfigError(
            f"{where}: {name} is the name of another module ({found or 'of Python'}), expected a unique name for "
            f"{path}; rename the file"
        )
    return module
