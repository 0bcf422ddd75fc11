"""What all commands share: arguments as settings (JSON, files, `KEY=VALUE`), printing and exit codes.

Settings are not checked here; the config classes of the algorithms explain invalid ones.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import json
import math
import os
import re
import signal
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TextIO

from menv.errors import ConfigError, EnvCrashError, MenvError, UnknownNameError, printable
from menv.plain_files import read_named

_OBJECT = re.compile(r"@(\w+(?:\.\w+)*):(\w+(?:\.\w+)*)")
_FUNCTION = re.compile(r"^(from_checkpoint: |\w+: (?=there is no folder ))")
"""What begins an error of a function that the command calls."""
_FILES = {".json", ".toml"}
_MOST_LEVELS, _MOST_QUOTED = 64, 200
"""Levels of settings, and characters of them in a message."""
_EXPECTED = "expected a JSON object, a .json or .toml file, or KEY=VALUE"


def stop_bounds(text: str) -> dict[str, float]:
    """Return the bound of one `--stop`, by result key."""
    key, _, bound = text.partition("=")
    with suppress(ValueError):
        if not math.isnan(float(bound)):
            return {key: float(bound)}
    raise argparse.ArgumentTypeError(f"{text!r}, expected KEY=NUMBER, such as episode_reward_mean=450")


def _argument(read: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Return a type for argparse that shows what is wrong with settings."""

    def argument(text: str) -> dict[str, Any]:
        try:
            return read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return argument


def read_settings(text: str) -> dict[str, Any]:
    """Return the settings of one argument."""
    key, equals, value = text.partition("=")
    if text.lstrip().startswith("{"):
        settings = _json_object(text)
    elif Path(text).suffix in _FILES and not (equals and not Path(text).exists()):
        settings = _file(Path(text))
    elif equals and key.strip():
        settings = _one(key.strip(), value)
    else:
        raise ConfigError(f"{text!r}, {_EXPECTED}; write --config lr=0.001")
    return with_sections(settings)


def with_sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with each key that has dots, such as "env_config.x", as sections."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        inner = functools.reduce(lambda inner, part: {part: inner}, reversed(sections), {last: value})
        found = merge(found, _not_deep(inner))
    return found


def merge(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return `settings` with `others` over them, section by section."""
    merged = dict(settings)
    for key, value in others.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def with_objects(value: Any) -> Any:
    """Return settings with each `@module:name` replaced by the Python object."""
    if isinstance(value, Mapping):
        return {key: with_objects(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_objects(one) for one in value]
    named = _OBJECT.fullmatch(value) if isinstance(value, str) else None
    return value if named is None else _object(value, *named.groups())


def _json_object(text: str) -> dict[str, Any]:
    try:
        settings = _json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{text!r:.{_MOST_QUOTED}} is not JSON ({error}), expected an object with keys in double quotes"
        ) from None
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{text!r:.{_MOST_QUOTED}} is not a JSON object, expected one with keys in double quotes"
        )
    return _not_deep(settings)


json_settings = _argument(_json_object)


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"the key {twice!r:.60} is given twice in one object; delete one")
    return found


def _not_deep(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings; refuse deeply nested ones, which no function of Python can walk."""
    inner: list[Any] = [settings]
    for _ in range(_MOST_LEVELS):
        parts = [
            one.values() if isinstance(one, dict) else one for one in inner if isinstance(one, dict | list)
        ]
        inner = list(chain.from_iterable(parts))
    if inner:
        raise ConfigError(f"settings of more than {_MOST_LEVELS} levels, expected fewer; write them flatter")
    return settings


def _file(path: Path) -> dict[str, Any]:
    text = read_named("settings", path)
    if path.suffix == ".json":
        return _json_object(text)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: no TOML ({error}); strings stand in quotes there") from None


def _one(key: str, text: str) -> dict[str, Any]:
    value: Any = text
    for read in (ast.literal_eval, _json):
        # The last successful reader counts: only JSON reads `Infinity`, only Python reads `False`.
        try:
            value = read(text)
        except ConfigError:
            raise
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
    return {key: value}


def _object(text: str, module: str, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), _registry().import_named(module, text))
    except AttributeError:
        raise ConfigError(
            f"{text}: {module} has no {name}, expected a name that it defines; check it"
        ) from None


def run_command(program: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit status; 1 after a failure, 2 for a wrong setting, 130 after Ctrl-C."""
    allow_any_text()
    try:
        return command()
    except MenvError as error:
        if isinstance(error, EnvCrashError) and error.__cause__ is not None:
            print_error("".join(traceback.format_exception(error.__cause__)).rstrip())
        print_error(
            "; ".join([f"{program}: error: {and_how_to_import(error)}", *getattr(error, "__notes__", ())])
        )
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments, import `--import` modules, and merge the repeatable options into one dict each.

    `typed` are the words of the command.
    """
    repeated(
        parser,
        IMPORT,
        "a module or .py file to import first, which may call register_env",
        metavar="MODULE",
        dest="modules",
    )
    args = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    args.typed = [*parser.prog.split(), *given]
    import_modules(args.modules)
    for option in ("config", "stop"):
        if hasattr(args, option):
            merged: dict[str, Any] = {}
            setattr(args, option, functools.reduce(merge, getattr(args, option), merged))
    return args


class Parser(argparse.ArgumentParser):
    """An argument parser that handles a closed stdout when it prints help, and names the nearest option."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit with this status, or with 1 if the help cannot be written."""
        if status == 0:
            flush(self.prog)
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Exit with a usage error, which names the option that an unknown one resembles."""
        rest = message.partition("unrecognized arguments: ")[2].split()
        unknown = next((word.partition("=")[0] for word in rest if word.startswith("--")), "")
        near = difflib.get_close_matches(unknown, self._option_string_actions, 1, 0.75)
        super().error(printable(f"{message}; did you mean {near[0]}?" if near else message))


def print_text(text: str, program: str, end: str = "\n", *, is_drawn: bool = False) -> None:
    """Print text to stdout; exit with status 1 if it cannot be written, silently for a closed pipe as of `| head`.

    What a terminal would obey is shown escaped, except in pictures, which are drawn with it.
    """
    _write_or_exit(f"{text if is_drawn else printable(text)}{end}", program)


def flush(program: str) -> None:
    """Write what stdout holds back, such as help, all the way; end as `print_text` does where it cannot be written."""
    _write_or_exit("", program)


def _write_or_exit(text: str, program: str) -> None:
    error = _write(text, sys.stdout)
    if error is not None:
        if not isinstance(error, BrokenPipeError):
            print_error(f"{program}: error: {stdout_error(error)}")
        raise SystemExit(1)


def allow_any_text() -> None:
    """Let stdout escape characters that its encoding lacks, as stderr does."""
    # stdout is None if it was closed before Python started, and may be no file in tests.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors == "strict":
        reconfigure(errors="backslashreplace")


def print_error(line: str, end: str = "\n") -> None:
    """Print a line to stderr, if it can be written; what a terminal would obey is shown escaped."""
    _write(f"{printable(line)}{end}", sys.stderr)


def _write(text: str, to: TextIO | None) -> OSError | None:
    # The stream is None if it was closed before Python started.
    if to is not None:
        try:
            to.write(text)
            to.flush()
        except OSError as error:
            discard_output(to)
            return error
    return None


def discard_output(stream: TextIO) -> None:
    """Discard the buffered and all later output of a stream."""
    # Streams may be no files in tests.
    with suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def stdout_error(error: OSError) -> str:
    """Return the message for a stdout that cannot be written."""
    return f"stdout: cannot be written ({error}), expected a reader, or a disk with room"


IMPORT = "--import"
"""The option of all commands."""


def option(to: argparse._ActionsContainer, names: str, text: str, **how: Any) -> None:
    """Add an argument, or an option such as "-o --output", to a parser or a group; the help names the default."""
    if how.get("type") in (count, seed, int):
        how = {"metavar": "N", **how}
    value = next((one for one in ("default", "const") if how.get(one) not in (None, "", [], {})), None)
    to.add_argument(*names.split(), help=text if value is None else f"{text} (default: %({value})s)", **how)


def switch(to: argparse._ActionsContainer, name: str, text: str) -> None:
    """Add an option without a value."""
    to.add_argument(name, action="store_true", help=text)


def repeated(to: argparse._ActionsContainer, name: str, text: str, **how: Any) -> None:
    """Add an option that may be repeated."""
    option(to, name, f"{text}; may be repeated", action="append", default=[], **how)


def take_settings(parser: argparse.ArgumentParser) -> None:
    """Add the option `--config`, stored as one dict."""
    text = """settings of the algorithm: a JSON object, a .json or .toml file, or KEY=VALUE with dots for sections, such
        as model.fcnet_hiddens=[64,64]; later settings override earlier ones; a value @module:name is a Python object,
        such as multiagent.policy_mapping_fn=@my_game:policy_for"""
    repeated(parser, "--config", text, metavar="SETTINGS", type=_argument(read_settings))


def count(text: str) -> int:
    """Return the whole number from 1 of an option."""
    return _whole(text, 1)


def port(text: str) -> int:
    """Return the port of an option; 0 is any free one."""
    return _whole(text, 0, 65535)


def seed(text: str) -> int:
    """Return the seed of an option."""
    return _whole(text, 0)


def positive(text: str) -> float:
    """Return the positive number of an option."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}, expected a positive number")


def _whole(text: str, least: int, most: float = math.inf) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        to = "" if most == math.inf else f" to {most}"
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from {least}{to}")
    return int(text)


def import_modules(modules: Sequence[str]) -> None:
    """Import the modules and files of `--import`."""
    _registry().import_first(modules, IMPORT)


def _registry() -> Any:
    """Return the module that imports gymnasium and numpy, which a wrong command does not need."""
    from menv import registry

    return registry


def and_how_to_import(error: MenvError) -> str:
    """Return the text of an error; for an unknown name with the option that imports a module which registers it."""
    text = _FUNCTION.sub("", str(error))
    hints = isinstance(error, UnknownNameError) and "register_env" in text
    return f"{text}; {IMPORT} MODULE imports a module that does" if hints else text
