"""A run on disk: `RunFolder` writes it during training, `Run` reads it.

    runs/tictactoe-PPO-001/
        config.json     settings, algorithm, environment, version of menv
        command.txt     the command that started the run
        progress.csv    the numbers of each result, a column per key
        results.jsonl   each result, a JSON object per line
        payoff.csv      of a league: the games of each learner against each opponent
        digest.txt      the digest of everything sampled so far
        events.out.*    the same numbers for TensorBoard
        checkpoints/    what `Algorithm.save` writes
        videos/         recorded episodes
        crashes/        what `menv replay` repeats, for faults of environments
        services.json   the runs of W&B and MLflow that a resumed run continues

Each line is flushed when its iteration is over, so a process that is killed loses the running iteration at most.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import count, pairwise, starmap
from pathlib import Path
from typing import IO, Any

import numpy as np

import menv
from menv.errors import ConfigError
from menv.metrics import shares
from menv.plain_files import folder_given, inside, opened, path_given, read, replacing, writing
from menv.redaction import LEFT_OUT, hidden, is_secret, without_secrets
from menv.serialization import read_json, shell_word
from menv.tracking.tracker import Tracker

CHECKPOINTS = "checkpoints"
VIDEOS = "videos"
_CONFIG = "config.json"
_COMMAND = "command.txt"
_RESULTS = "results.jsonl"
_PROGRESS = "progress.csv"
_DIGEST = "digest.txt"
_PAYOFF = "payoff.csv"
_PAYOFF_COLUMNS = ["learner", "opponent", "win", "draw", "loss", "games"]
_SERVICES = "services.json"
_KIND = "menv run"
_ANY_TEXT: Any = {"encoding": "utf-8", "errors": "surrogateescape"}
"""How arguments of commands are written: a path may hold any bytes."""
_MOST_TEXT, _MOST_TABLE = 1 << 24, 1 << 28
"""Bytes of a line, of small files, and of a table."""
_LARGEST = sys.float_info.max
_LEFT_OUT = ("sampler_results", "hist_stats", "episode_media", "payoff_matrix")
"""Parts of a result that are repeated in it, hold pictures, or are in another file."""


def next_run_dir(env: str, algorithm: str, root: str | os.PathLike[str] = "runs") -> Path:
    """Create the next free `root/<env>-<algorithm>-<NNN>`, which no other process gets, and return its path.

    Raises:
        ConfigError: `root` is not a path.
        NotWrittenError: The folder cannot be made.
    """
    words = (
        re.sub(r"[^\w.]+", "-", env.replace(".py:", ":")).encode()[:150].decode(errors="ignore").strip("-.")
        or "env"
    )
    stem = f"{words}-{algorithm}-"
    folder = path_given("run_dir", root)
    taken = [path.name[len(stem) :] for path in folder.glob(f"{stem}*")] if folder.is_dir() else []
    last = max((int(one) for one in taken if one.isdecimal()), default=0)
    with writing("run_dir", f"a run folder in {folder}"):
        for number in count(last + 1):
            with suppress(FileExistsError):
                (path := folder / f"{stem}{number:03d}").mkdir(parents=True)
                return path
    raise AssertionError


def command_line(secrets: Iterable[str] = ()) -> str:
    """Return the command that started this process, as a shell reads it, without these and other secrets."""
    program, *arguments = sys.argv
    by_module = Path(program) == Path(menv.__file__).parent / "cli" / "__main__.py"
    start = ["menv"] if by_module or Path(program).name == "menv" else ["python", program]
    shown = starmap(_shown_word, pairwise(["", *arguments]))
    return shlex.join([*start, *(hidden(word, secrets) for word in shown)])


def _shown_word(before: str, word: str) -> str:
    """Return an argument without a secret: `--token X`, `--config env_config.token=X`, or JSON that holds one."""
    name, _, value = word.partition("=")
    if before.startswith("-") and "=" not in before and is_secret(before):
        return LEFT_OUT
    if value and is_secret(name):
        return f"{name}={LEFT_OUT}"
    with suppress(ValueError, RecursionError):
        text = value if value and not word.startswith("{") else word
        given = json.loads(text)
        if (shown := without_secrets(given)) != given:
            return f"{word.removesuffix(text)}{json.dumps(shown)}"
    return word


class JSONL(Tracker):
    """Appends each result to a file, a JSON object per line, without pictures and repetitions.

    Args:
        path: The file; its folder is created.

    Raises:
        ConfigError: It is not a path.
        NotWrittenError: The folder cannot be made.
    """

    holds_signals = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path_given(type(self).__name__, path)
        with writing(type(self).__name__, f"results in {self._path.parent}"):
            self._path.parent.mkdir(parents=True, exist_ok=True)

    def result(self, result: Mapping[str, Any]) -> None:
        """Append a line."""
        kept = {key: value for key, value in result.items() if key not in _LEFT_OUT}
        append(self._path, f"{json_text(kept)}\n".encode())


class CSV(JSONL):
    """Appends the numbers of each result to a table; a key that appears later becomes a new column. See `JSONL`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._columns = next(iter(_rows(self._path)), [])

    def result(self, result: Mapping[str, Any]) -> None:
        """Append a row."""
        numbers = dict(scalars(result))
        if new := [key for key in numbers if key not in self._columns]:
            rows = _rows(self._path)[1:]
            self._columns = [*self._columns, *new]
            _replace(self._path, _csv(self._columns, *rows))
        append(
            self._path,
            _csv([f"{numbers[key]:.10g}" if key in numbers else "" for key in self._columns]).encode(),
        )


class RunFolder(Tracker):
    """Writes a run folder.

    Args:
        path: The folder. It must be new, empty, or the folder of the run that is resumed.
        config: What `config.json` holds: a JSON object.
        command: The command that started the run; that of this process by default.
        iteration: Iterations that were done before; later lines of a resumed run are removed.

    Raises:
        ConfigError: The folder holds something else, or another process is writing this run.
        NotWrittenError: It cannot be written.
    """

    holds_signals = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        command: str | None = None,
        iteration: int = 0,
    ) -> None:
        self.path = path_given("run_dir", path)
        self.checkpoints = inside(self.path, CHECKPOINTS)
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"run_dir {self.path}: a file, expected a folder; choose another name")
        # A run that was interrupted in its first iteration has no results.
        resumes = iteration or not any(_results(self.path))
        # A run that was killed before it wrote its settings has left hidden files.
        is_used = self.path.is_dir() and any(not one.name.startswith(".") for one in self.path.iterdir())
        if is_used and not (resumes and _holds_run(self.path)):
            raise ConfigError(
                f"run_dir {self.path}: not empty, expected a new folder; choose another name, or resume the run in it "
                f"with menv train --resume {shell_word(str(self.path))}"
            )
        with writing("run_dir", f"the run folder {self.path}"), ExitStack() as undone:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = undone.enter_context(locked(self.path))
            if iteration:
                cut_after(self.path, iteration)
            self._tables = (JSONL(self.path / _RESULTS), CSV(self.path / _PROGRESS))
            self._payoff: list[list[Any]] = []
            secrets: set[str] = set()
            shown = without_secrets({"kind": _KIND, **config}, secrets)
            _replace(self.path / _CONFIG, json.dumps(shown, indent=2))
            with opened(self.path / _COMMAND, "a", **_ANY_TEXT) as file:
                file.write(f"{command or command_line(secrets)}\n")
            undone.pop_all()

    def result(self, result: Mapping[str, Any]) -> None:
        """Write one line to each file."""
        with writing("run_dir", f"results in {self.path}"):
            for tracker in self._tables:
                tracker.result(result)
            _replace(self.path / _DIGEST, f"{result['digest']}\n")
            self._payoff = result.get("payoff_matrix", [])

    def saved(self, folder: Path) -> None:
        """Write the games of a league, which are many and change little from one iteration to the next."""
        if self._payoff:
            with writing("run_dir", f"results in {self.path}"):
                rows = [
                    [*names, *map(str, (*shares(counts).values(), sum(counts)))]
                    for *names, counts in self._payoff
                ]
                _replace(self.path / _PAYOFF, _csv(_PAYOFF_COLUMNS, *rows))

    def end(self, reason: str) -> None:
        """Let other processes write the folder."""
        self.close()

    def close(self) -> None:
        """Let other processes write the folder."""
        self._lock.close()


class Run:
    """A run folder, to read.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
        config: Content of `config.json`: `algorithm`, `env`, `menv_version` and `config`.
        name: The folder's name.

    Raises:
        ConfigError: It is not a run folder, or its `config.json` is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = folder_given("run", path)
        self.name = self.path.resolve().name
        if not _holds_run(self.path):
            raise ConfigError(
                f"run {self.path}: no {_CONFIG} of a run in it, expected a folder that `menv train` or `learn` wrote; "
                "pass a folder in runs/"
            )
        self.config: dict[str, Any] = _read_config(self.path)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return inside(self.path, CHECKPOINTS)

    @property
    def command(self) -> str:
        """The commands that started and resumed the run, a line each; "" if none is known."""
        return self._text(_COMMAND)

    @property
    def digest(self) -> str:
        """The digest of everything sampled, "" before the first result."""
        return self._text(_DIGEST)

    @property
    def is_running(self) -> bool:
        """Whether a process is writing the folder."""
        # Reading needs no right to write, and leaves no file behind.
        with suppress(OSError, ImportError), opened(self.path / ".lock") as file:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def progress(self) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Return the numbers of the results by column of `progress.csv`, NaN where an iteration has no value."""
        rows = [dict(scalars(one)) for one in self.results()]
        columns = dict.fromkeys(key for row in rows for key in row)
        return {key: np.array([row.get(key, math.nan) for row in rows], np.float64) for key in columns}

    def payoff(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the shares of wins, draws and losses of each learner against each opponent of a league."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        with suppress(ValueError, csv.Error):
            for learner, opponent, win, draw, loss, _ in _rows(self.path / _PAYOFF)[1:]:
                shown = {"win": float(win), "draw": float(draw), "loss": float(loss)}
                found.setdefault(learner, {})[opponent] = shown
        return found

    def _text(self, name: str) -> str:
        with suppress(OSError):
            return read(self.path / name, _MOST_TEXT).decode(**_ANY_TEXT).strip()
        return ""

    def results(self) -> Iterator[dict[str, Any]]:
        """Yield the results; a line that was being written is left out."""
        return _results(self.path)


def _results(folder: Path) -> Iterator[dict[str, Any]]:
    with suppress(FileNotFoundError, NotADirectoryError), opened(folder / _RESULTS) as file:
        while line := file.readline(_MOST_TEXT):
            if len(line) == _MOST_TEXT:
                raise ConfigError(
                    f"{file.name}: a line of {len(line)} bytes or more, expected a result; restore the file"
                )
            one: Any = None
            with suppress(ValueError, RecursionError):
                one = read_json(line)
            if isinstance(one, dict) and isinstance(one.get("training_iteration", 0), int | float):
                yield one


def scalars(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each number of a result with its keys joined by "/"; each value once, finite ones only."""
    info = result.get("info")
    if isinstance(info, Mapping) and isinstance(info.get("learner"), Mapping):
        # Each policy's statistics are at `info[policy]` too.
        kept = {key: info[key] for key in info if key == "learner" or key not in info["learner"]}
        result = {**result, "info": kept}
    yield from _numbers(result, "")


def json_text(value: Any) -> str:
    """Return one line of JSON: null for numbers that are not finite, text for keys and values JSON does not have."""
    try:
        return json.dumps(value, default=str, allow_nan=False)
    except (ValueError, TypeError):
        return json.dumps(_plain(value), default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        keys = (str, int, float, type(None))
        return {key if isinstance(key, keys) else str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(values: Mapping[Any, Any], path: str) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if key in _LEFT_OUT:
            continue
        # Halves of characters have no place in a file.
        tag = f"{path}{key}".encode("utf-8", "backslashreplace").decode("utf-8")
        if isinstance(value, int | float | np.integer | np.floating):
            # Small floats of numpy cannot be compared with the largest number.
            number = value.item() if isinstance(value, np.generic) else value
            if not isinstance(value, bool) and -_LARGEST <= number <= _LARGEST:
                yield tag, float(value)
        elif isinstance(value, Mapping):
            yield from _numbers(value, f"{tag}/")


def _holds_run(folder: Path) -> bool:
    with suppress(ConfigError):
        return _read_config(folder).get("kind") == _KIND
    return (folder / _CONFIG).is_file()


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        content = read_json(read(path))
        if not isinstance(content, dict):
            raise ValueError("no JSON object")
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}), expected the JSON of a run") from None
    return content


def known_services(folder: Path | None) -> dict[str, tuple[str, str]]:
    """Return the project or experiment and the run of each service that a run folder remembers."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        if folder is not None:
            known = read_json(read(folder / _SERVICES, _MOST_TEXT))
            return {str(package): (str(name), str(run)) for package, (name, run) in known.items()}
    return {}


def remember_service(folder: Path | None, package: str, name: str, run: str) -> None:
    """Write the run of a service into a run folder, if there is one."""
    if folder is not None and _holds_run(folder):
        known = {**known_services(folder), package: (name, run)}
        with writing("run_dir", f"the runs of services in {folder}"):
            _replace(folder / _SERVICES, json_text(known))


def locked(folder: Path) -> IO[bytes]:
    """Return a file that is locked until it is closed or the process ends."""
    file = opened(folder / ".lock", "a+b")
    if os.name == "nt":
        return file
    import fcntl

    # Readers share a lock for a moment.
    for _ in range(50):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            # Some file systems have no locks.
            return file
        else:
            return file
    file.close()
    raise ConfigError(
        f"run {folder}: another process is writing it, expected a run that has ended; wait for it, or stop it"
    )


def cut_after(folder: Path, iteration: int) -> None:
    """Remove the results of iterations after `iteration`, which a resumed run writes again."""
    kept = [one for one in _results(folder) if one.get("training_iteration", 0) <= iteration]
    _replace(folder / _RESULTS, "".join(f"{json_text(one)}\n" for one in kept))
    (folder / _PROGRESS).unlink(missing_ok=True)
    table = CSV(folder / _PROGRESS)
    for one in kept:
        table.result(one)


def _rows(path: Path) -> list[list[str]]:
    with suppress(FileNotFoundError):
        text = read(path, _MOST_TABLE).decode(errors="replace")
        # A last line without its end was not written completely.
        return list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
    return []


def _csv(*rows: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def append(path: Path, data: bytes) -> None:
    """Append to a file; if the disk is full, none of the data stays."""
    with opened(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            written = file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def _replace(path: Path, text: str) -> None:
    with replacing(path) as draft:
        draft.write_text(text, "utf-8")
