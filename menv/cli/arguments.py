"""What stands on the command line, as settings: JSON, files, `KEY=VALUE`.

It does not know which settings there are; algorithms say what is wrong with one.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import re
import signal
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.stored_config import NamedOnlyError
from menv.env_context import EnvContext
from menv.errors import ConfigError, EnvCrashError, MenvError
from menv.inference.checkpoint_folder import find_checkpoint, read_manifest
from menv.registry import and_how_to_import, import_named, is_known, make_env

_OBJECT = re.compile(r"@(\w+(?:\.\w+)*):(\w+(?:\.\w+)*)")
_FILES = {".json", ".toml"}
_WHAT_IS_TAKEN = "expected a JSON object, a .json or .toml file, or KEY=VALUE"


class CommandSettings(argparse.Action):
    """Settings, put over those given before."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Read one more.

        Raises:
            ArgumentError: It cannot be read.
        """
        try:
            read = read_settings(values)
        except ConfigError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, put_over(getattr(namespace, self.dest), read))


class Stop(argparse.Action):
    """Bounds by key of a result."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Read one more.

        Raises:
            ArgumentError: It cannot be read.
        """
        key, _, bound = values.partition("=")
        try:
            bounds = _json_object(values) if values.lstrip().startswith("{") else {key: float(bound)}
            if not all(isinstance(one, int | float) and one == one for one in bounds.values()):
                raise ValueError
        except ValueError:
            message = f"{values!r}, expected KEY=NUMBER, such as episode_reward_mean=450"
            raise argparse.ArgumentError(self, message) from None
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), **bounds})


def read_settings(text: str) -> dict[str, Any]:
    """Return the settings that one argument means; `@module:name` in them are Python objects.

    Raises:
        ConfigError: It is neither JSON nor a file nor `KEY=VALUE`, or an object cannot be found.
    """
    key, equals, value = text.partition("=")
    if text.lstrip().startswith("{"):
        settings = _json_object(text)
    elif Path(text).suffix in _FILES and not (equals and not Path(text).exists()):
        settings = _file(Path(text))
    elif equals and key.strip():
        settings = _one(key.strip(), value)
    else:
        raise ConfigError(f"{text!r}, {_WHAT_IS_TAKEN}; write --config lr=0.001")
    return settings


def put_over(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with others put over them, sections one by one."""
    merged = dict(settings)
    for key, value in others.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = put_over(merged[key], value) if both else value
    return merged


def with_objects(value: Any) -> Any:
    """Return settings with each `@module:name` replaced by what it names.

    Raises:
        ConfigError: There is no such module, or nothing of that name in it.
    """
    if isinstance(value, Mapping):
        return {key: with_objects(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_objects(one) for one in value]
    named = _OBJECT.fullmatch(value) if isinstance(value, str) else None
    return value if named is None else _object(value, *named.groups())


def _json_object(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no JSON ({error}), expected an object with keys in double quotes"
        ) from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{text!r} is no JSON object, {_WHAT_IS_TAKEN}")
    return settings


def _file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); check the path") from None
    if path.suffix == ".json":
        return _json_object(text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: no TOML ({error}); strings stand in quotes there") from None


def _one(key: str, text: str) -> dict[str, Any]:
    """Return `a.b=1` as `{"a": {"b": 1}}`; what is neither JSON nor a literal of Python's is a string."""
    value: Any = text
    for read in (ast.literal_eval, json.loads):
        # The last one that can read it is right: JSON alone knows what `Infinity` is, and Python what `False` is.
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = read(text)
    *sections, last = key.split(".")
    settings: dict[str, Any] = {last: value}
    for section in reversed(sections):
        settings = {section: settings}
    return settings


def _object(text: str, module: str, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), import_named(module, text))
    except AttributeError:
        raise ConfigError(
            f"{text}: {module} has no {name}, expected a name that it defines; check it"
        ) from None


# SEAM menv.stdout
# What commands print: where nobody takes it, a command ends in order, and nothing is raised when Python
# exits.


def tell(text: str, program: str) -> None:
    """Print lines, all the way.

    Args:
        text: The lines.
        program: What begins the line of an error.

    Raises:
        SystemExit: With status 1, if they cannot be written. A closed pipe, as of `| head`, is not worth a word.
    """
    _end_unless_put(f"{text}\n", program)


def flush(program: str) -> None:
    """Write what stdout holds back, such as help, all the way; end as `tell` does where it cannot be written."""
    _end_unless_put("", program)


def _end_unless_put(text: str, program: str) -> None:
    error = _put(text, sys.stdout)
    if error is not None:
        if not isinstance(error, BrokenPipeError):
            complain(f"{program}: error: {not_taken(error)}")
        raise SystemExit(1)


def take_any_text() -> None:
    """Let stdout take text that its encoding has no form for, such as names of folders, as stderr does."""
    # There is none where it was closed before Python began, and that of a program or a test may be no file.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors == "strict":
        reconfigure(errors="backslashreplace")


def complain(line: str) -> None:
    """Print a line to stderr, if that can be written."""
    _put(f"{line}\n", sys.stderr)


def _put(text: str, to: TextIO | None) -> OSError | None:
    """Write text to a stream, all the way; return what kept it from that."""
    # There is none where it was closed before Python began.
    if to is not None:
        try:
            to.write(text)
            to.flush()
        except OSError as error:
            let_go(to)
            return error
    return None


def let_go(stream: TextIO) -> None:
    """Let what a stream still holds, and all that is written to it from now on, go nowhere."""
    # Those of a program or a test that calls a command may be no file.
    with suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def not_taken(error: OSError) -> str:
    """Return what is said of a stdout that cannot be written."""
    return f"stdout: cannot be written ({error}), expected a reader, or a disk with room"


# SEAM menv.command_line
# What all commands have in common: how they read arguments, and how they end where something is wrong.


class Parser(argparse.ArgumentParser):
    """Reads arguments; help that nobody takes ends a command in order."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End with this status, or with 1 where the help that was asked for cannot be written."""
        if status == 0:
            flush(self.prog)
        super().exit(status, message)


def ends(program: str, command: Callable[[], int]) -> int:
    """Run a command to its end.

    Args:
        program: What begins the line of an error.
        command: Does the work, and returns the exit status.

    Returns:
        That status; 1 where an environment or a policy failed, 2 where a setting is wrong, 130 after Ctrl-C.
    """
    take_any_text()
    try:
        return command()
    except MenvError as error:
        if isinstance(error, EnvCrashError) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        complain(
            "; ".join([f"{program}: error: {and_how_to_import(error)}", *getattr(error, "__notes__", ())])
        )
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


# SEAM menv.cli.names
# Policies that are called as the agents are, for whom no mapping is written.


_NAMED = "$named"
_DEEPEST = 2
"""So many keys lead to what is shown as it is typed."""


def own_name(agent_id: Any, *unused: Any, **more: Any) -> str:
    """Return the policy that is called as the agent is."""
    return str(agent_id)


def policies_by_name(env: Any, env_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with a policy for each agent that an environment lists.

    Raises:
        ConfigError: It lists none.
    """
    made = make_env(env, EnvContext(env_config))
    agents = [str(agent) for agent in getattr(made, "possible_agents", None) or ()]
    if callable(close := getattr(made, "close", None)):
        close()
    if not agents:
        raise ConfigError(
            f"--policies each: {env} lists no possible_agents, expected their ids; write multiagent.policies and "
            "multiagent.policy_mapping_fn with --config"
        )
    return {"multiagent": {"policies": agents, "policy_mapping_fn": own_name}}


def from_checkpoint(
    kind: type[Algorithm], folder: str, config: Mapping[str, Any], env: str | None, env_option: str
) -> Algorithm:
    """Return an algorithm that goes on from a checkpoint.

    Args:
        kind: Its class, or `Algorithm` for that of the checkpoint.
        folder: Of the checkpoint.
        config: What is given again.
        env: Likewise.
        env_option: What stands before an environment on the command line.

    Raises:
        ConfigError: Something is wrong; what has to be given again is told as it is typed.
    """
    try:
        return kind.from_checkpoint(folder, _named_again(Path(folder), config), env)
    except NamedOnlyError as error:
        missing = sorted(error.missing, key=lambda one: one[0] != ("env",))
        typed = (_typed(path, was.rpartition(" ")[2], env_option) for path, was in missing)
        raise ConfigError(f"{error.told}; add {' '.join(dict.fromkeys(typed))}") from error


def _typed(path: tuple[Any, ...], was: str, env_option: str) -> str:
    """Return how a Python object is given on the command line; one that lies deep, as a whole section."""
    whole = ":" in was and "<" not in was and not was.startswith("__main__:") and len(path) <= _DEEPEST
    name = was if whole else "module:name"
    if path != ("env",):
        return f"--config {'.'.join(map(str, path[:_DEEPEST]))}=@{name}"
    return f"{env_option}{name}" if ":" in was else f"--import and the module that registers {was!r}"


def known_env(folder: Path) -> str | None:
    """Return the name of a checkpoint's environment, None unless this process knows it."""
    env = _stored(folder).get("env")
    return env if isinstance(env, str) and is_known(env) else None


def _stored(folder: Path) -> Mapping[str, Any]:
    config = read_manifest(find_checkpoint(folder)).get("config")
    return config if isinstance(config, Mapping) else {}


def _named_again(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for resuming a checkpoint, with `own_name` where that was its mapping.

    No function in a checkpoint is ever looked up; this one is known here.
    """
    multi = _stored(folder).get("multiagent")
    stored = multi.get("policy_mapping_fn") if isinstance(multi, Mapping) else None
    if stored != {_NAMED: f"function {own_name.__module__}:{own_name.__qualname__}"}:
        return dict(config)
    return put_over({"multiagent": {"policy_mapping_fn": own_name}}, config)
