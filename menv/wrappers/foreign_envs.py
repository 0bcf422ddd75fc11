"""Environments of other libraries by name, such as PettingZoo, OpenSpiel and Jumanji, and the wrapper that each needs.

`menv.registry` asks for them; nothing of these libraries is imported before.
"""

from __future__ import annotations

import functools
import importlib
import re
import site
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from menv.errors import ConfigError
from menv.multi_agent_env import MultiAgentEnv
from menv.registry import EnvCreator, unknown_name
from menv.wrappers import jaxmarl_env, jumanji_env, pgx_env
from menv.wrappers.open_spiel_env import OpenSpielEnv
from menv.wrappers.pettingzoo_base import kind_of
from menv.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from menv.wrappers.vmas_env import VmasEnv

_OWN_PACKAGES: Final[Mapping[str, str]] = {"mpe": "mpe2", "magent": "magent2.environments"}
"""Families of PettingZoo that moved into a separate package."""


def wrapped(env: object) -> MultiAgentEnv:
    """Return an environment of PettingZoo or a game of OpenSpiel in its wrapper.

    Raises:
        ConfigError: It is another object of these libraries.
    """
    if type(env).__module__.partition(".")[0] == "pyspiel":
        return OpenSpielEnv(env)
    return PettingZooEnv(env) if kind_of(env) == "AEC" else ParallelPettingZooEnv(env)


def creator_of(name: str, library: str, inner: str) -> EnvCreator:
    """Return the creator of `inner` in `library`; `name` is both, with a colon between them.

    Raises:
        UnknownNameError: There is no such environment, or what it needs is not installed.
    """
    if library in _ON_ARRAYS:
        return _on_arrays(name, library, inner)
    return _pettingzoo(name, inner) if library == "pettingzoo" else _open_spiel(name, inner)


def is_installed(name: str) -> bool:
    """Return whether a file may name this environment: it imports installed packages alone, and reads no file.

    A folder next to the program may have the name of a library that is not installed. Some games of OpenSpiel read
    files, and parameters in a name are an expression.
    """
    library, _, inner = name.partition(":")
    if library == "pettingzoo":
        return _is_in_site_packages(_package_of(inner)) and inner in pettingzoo_names()
    if library in _ON_ARRAYS:
        return _is_in_site_packages(library) and inner in NAMES[library]()
    if not _is_in_site_packages("pyspiel") or inner not in open_spiel_names():
        return False
    import pyspiel

    (game,) = (one for one in pyspiel.registered_games() if one.short_name == inner)
    return not any(_FILE_OR_GAME.search(key) for key in game.parameter_specification)


_FILE_OR_GAME = re.compile("file|game(def|_string)?$")
"""Parameters of games whose value is a path, or a game with parameters."""


def _is_in_site_packages(package: str) -> bool:
    found = find_spec(package)
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return (
        found is not None
        and found.origin is not None
        and any(Path(found.origin).is_relative_to(folder) for folder in folders)
    )


def _package_of(inner: str) -> str:
    """Return the package of an environment of PettingZoo."""
    return _OWN_PACKAGES.get(inner.partition("/")[0], "pettingzoo").partition(".")[0]


def _pettingzoo(name: str, inner: str) -> EnvCreator:
    family, _, module_name = inner.partition("/")
    package = _package_of(inner)
    if find_spec(package) is None:
        install = "'menv-rl[pettingzoo]'" if package == "pettingzoo" else package
        raise unknown_name(name, f"{package} is not installed", advice=f"run pip install {install}")
    known = pettingzoo_names()
    if inner not in known:
        raise unknown_name(name, "PettingZoo has no such environment", inner, known)
    try:
        with warnings.catch_warnings():
            # PettingZoo 1.27 recommends its own registry.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(
                f"{_OWN_PACKAGES.get(family, f'pettingzoo.{family}')}.{module_name}"
            )
    except ImportError as error:
        said = next(iter(str(error).splitlines()), "")
        raise unknown_name(name, said, advice=f"run pip install 'pettingzoo[{family}]'") from error
    return functools.partial(_with_keywords, getattr(module, "parallel_env", None) or module.env)


def _with_keywords(make: Callable[..., Any], context: Mapping[str, Any]) -> Any:
    return make(**context)


def pettingzoo_names() -> list[str]:
    """Return the installed environments of PettingZoo, `family/name`; only files are looked for."""
    own = _folder("pettingzoo")
    families: dict[str, Path | None] = (
        {} if own is None else {folder.name: folder for folder in own.iterdir() if folder.is_dir()}
    )
    families |= {family: _folder(package) for family, package in _OWN_PACKAGES.items()}
    return sorted(
        f"{family}/{path.stem}"
        for family, folder in families.items()
        if folder is not None
        for path in folder.glob("*_v[0-9]*.py")
    )


def _folder(package: str) -> Path | None:
    first, *rest = package.split(".")
    found = find_spec(first)
    return None if found is None or found.origin is None else Path(found.origin).parent.joinpath(*rest)


def _open_spiel(name: str, inner: str) -> EnvCreator:
    if find_spec("pyspiel") is None:
        raise unknown_name(name, "OpenSpiel is not installed", advice="run pip install open_spiel")
    game, known = inner.partition("(")[0], open_spiel_names()
    if game not in known:
        raise unknown_name(name, "OpenSpiel has no such game", inner, known)
    return functools.partial(_make_game, inner)


def _make_game(game: str, context: Mapping[str, Any]) -> OpenSpielEnv:
    settings = dict(context)
    tensor = settings.pop("tensor", None)
    if settings and "(" in game:
        raise ConfigError(
            f"env 'openspiel:{game}': parameters in the name and {sorted(settings)} in env_config, expected one of "
            "them; put all into env_config"
        )
    given = ",".join(f"{key}={value}" for key, value in settings.items())
    return OpenSpielEnv(f"{game}({given})" if given else game, tensor)


def open_spiel_names() -> list[str]:
    """Return the games of OpenSpiel, [] if it is not installed."""
    if find_spec("pyspiel") is None:
        return []
    import pyspiel

    return sorted(pyspiel.registered_names())


def _on_arrays(name: str, library: str, inner: str) -> EnvCreator:
    wrapper, title, package = _ON_ARRAYS[library]
    if find_spec(library) is None:
        raise unknown_name(name, f"{title} is not installed", advice=f"run pip install {package}")
    known = NAMES[library]()
    if inner not in known:
        raise unknown_name(name, f"{title} has no such environment of several agents", inner, known)
    return functools.partial(_with_keywords, functools.partial(wrapper, inner))


def vmas_names() -> list[str]:
    """Return the scenarios of VMAS, [] if it is not installed; only files are looked for."""
    folder = _folder("vmas.scenarios")
    return [] if folder is None else sorted({path.stem for path in folder.rglob("[!_]*.py")})


def _if_installed(library: str, names: Sequence[str]) -> list[str]:
    return [] if find_spec(library) is None else list(names)


_ON_ARRAYS: Final[Mapping[str, tuple[Callable[..., Any], str, str]]] = {
    "jaxmarl": (jaxmarl_env.JaxMarlEnv, "JaxMARL", "'menv-rl[jax]'"),
    "jumanji": (jumanji_env.JumanjiEnv, "Jumanji", "'menv-rl[jax]'"),
    "pgx": (pgx_env.PgxEnv, "Pgx", "'menv-rl[jax]'"),
    "vmas": (VmasEnv, "VMAS", "vmas"),
}
"""Libraries whose worlds step as arrays: wrapper, name, and what brings it."""

NAMES: Final[Mapping[str, Callable[[], list[str]]]] = {
    "pettingzoo": pettingzoo_names,
    "openspiel": open_spiel_names,
    "jaxmarl": functools.partial(_if_installed, "jaxmarl", jaxmarl_env.NAMES),
    "jumanji": functools.partial(_if_installed, "jumanji", jumanji_env.NAMES),
    "pgx": functools.partial(_if_installed, "pgx", pgx_env.NAMES),
    "vmas": vmas_names,
}
"""What lists the environments of each library."""
