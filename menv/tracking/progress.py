"""What a run shows on stdout: a live table, plain lines, or JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from menv.errors import printable
from menv.tracking.run_folder import json_text
from menv.tracking.tracker import Tracker

_SAMPLING = {"env_time_s": "environments", "act_time_s": "deciding", "complete_time_s": "completing batches"}


_HEADS = ("iteration", "env steps", "steps/s", "episodes", "mean return", "mean length", "seconds")
_OF_A_POLICY = ("mean return", "trend", "entropy", "kl", "loss", "learning rate")
_OF_A_GAME = ("player", "against", "win", "draw", "loss")
_UNIMPORTANT = ("learning rate", "loss", "kl", "mean length", "episodes", "seconds", "entropy", "steps/s")
"""Columns that a narrow terminal leaves out, the first ones first."""
_ROWS = 12
_BARS = "▁▂▃▄▅▆▇█"
_TREND = 16
_LIVE_S = 0.25
_PLAIN_S = 10.0

_HELP = {
    "environments": "more num_workers or num_envs_per_worker",
    "deciding": "more num_envs_per_worker, or a smaller network",
    "completing batches": "a smaller network, or fewer callbacks",
    "learning": "a larger sgd_minibatch_size, fewer num_sgd_iter, or a smaller network",
    "learning by DQN": "a lower training_intensity, or a smaller network",
    "waiting for workers": "more num_workers",
}


def progress(as_json: bool = False, stop: Mapping[str, float] | None = None) -> PlainLines:
    """Return JSON lines, a live table on a terminal if rich is installed, or plain lines.

    Args:
        as_json: Show JSON.
        stop: Bounds by result key; the time left is estimated from those on counts and times.
    """
    if as_json:
        return JsonLines(stop)
    # stdout is None if it was closed before Python started.
    if (
        getattr(sys.stdout, "isatty", bool)()
        and os.environ.get("TERM", "dumb") != "dumb"
        and find_spec("rich") is not None
    ):
        return LiveTable(stop)
    return PlainLines(stop)


class PlainLines(Tracker):
    """Prints a line per iteration, a line after ten seconds without one, and a summary of the time spent.

    An error of the display does not end the run; `failed` is the first one.
    """

    holds_signals = True
    _pause = _PLAIN_S

    def __init__(self, stop: Mapping[str, float] | None = None) -> None:
        self.failed: Exception | None = None
        self._stop = dict(stop or {})
        self._algorithm: Any = None
        self._began = False
        self._seconds: Counter[str] = Counter()
        self._workers = self._external = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._printed_at = 0.0
        self._pace: Pace | None = None

    def announce(self, text: str) -> None:
        """Show a line before the run begins."""
        self._try(lambda: self._print(text))

    def begin(self, algorithm: Any) -> None:
        """Begin to show the progress within iterations."""
        self._algorithm = algorithm
        self._pace = Pace(self._stop, algorithm.under_way())
        self._try(self._start)
        self._thread = threading.Thread(target=self._beats, name="menv progress", daemon=True)
        self._thread.start()

    def end(self, reason: str) -> None:
        """Show how the time was spent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._seconds["all"]:
            self._try(lambda: self._print("\n".join(filter(None, (self._time_spent(), self._slowest())))))

    def result(self, result: Mapping[str, Any]) -> None:
        """Show the result of an iteration."""
        self._try(lambda: self._show(result))

    def saved(self, folder: Path) -> None:
        """Show that a checkpoint was written."""
        self._try(lambda: self._print(f"saved {folder}"))

    def _start(self) -> None:
        self._printed_at = time.monotonic()

    def _beats(self) -> None:
        while not self._ended.wait(max(0.01, self._printed_at + self._pause - time.monotonic())):
            if time.monotonic() >= self._printed_at + self._pause:
                self._try(self._beat)

    def _beat(self) -> None:
        self._print(self._under_way())

    def _under_way(self) -> str:
        # Another thread may be in the middle of a change.
        with suppress(RuntimeError):
            return "" if self._pace is None else self._pace.line(self._algorithm.under_way())
        return ""

    def _show(self, result: Mapping[str, Any]) -> None:
        self._add_time(result)
        head = "" if self._began else "  ".join(f"{head:>11}" for head in _HEADS) + "\n"
        self._began = True
        line = "  ".join(f"{cell:>11}" for cell in cells(result))
        self._print(" ".join((f"{head}{line}", *_by_policy(result))))

    def _print(self, text: str) -> None:
        with self._lock:
            print(printable(text), flush=True)
        self._printed_at = time.monotonic()

    def _add_time(self, result: Mapping[str, Any]) -> None:
        self._seconds.update(result["sampler_perf"])
        self._seconds["all"] += result["time_this_iter_s"]
        self._workers = "num_worker_restarts" in result
        self._external = "external" in result

    def _activities(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the seconds of sampling and of this process by activity."""
        seconds = self._seconds
        sampling: dict[str, float] = {name: seconds[key] for key, name in _SAMPLING.items()}
        own = {"learning": seconds["learn_time_s"]}
        if self._workers:
            return sampling, {"waiting for workers": seconds["sample_time_s"], **own}
        return {}, {**sampling, **own}

    def _time_spent(self) -> str:
        """Return the share of each activity, for workers and the main process separately."""
        sampling, own = self._activities()
        shares = _shares(own, self._seconds["all"], "everything else")
        if not sampling:
            return f"time: {shares}"
        theirs = _shares(sampling, sum(sampling.values()) or 1.0)
        return f"time of workers: {theirs}; of this process: {shares}"

    def _slowest(self) -> str:
        """Return what takes half of the time or more, and the settings that would help; "" for nothing."""
        _, own = self._activities()
        name = max(own, key=lambda name: own[name])
        share = own[name] / (self._seconds["all"] or 1.0)
        if share < 0.5:
            return ""
        if name == "environments" and self._external:
            return f"slowest: waiting for clients, {100 * share:.0f} %"
        ppo = hasattr(getattr(self._algorithm, "config", None), "num_sgd_iter")
        advice = _HELP["learning by DQN" if name == "learning" and not ppo else name]
        return f"slowest: {name}, {100 * share:.0f} %; {advice} would help"

    def _try(self, show: Callable[[], object]) -> None:
        if self.failed is not None:
            return
        try:
            show()
        except Exception as error:
            self.failed = self.failed or error


class JsonLines(PlainLines):
    """Prints the result of each iteration as a JSON object."""

    def begin(self, algorithm: Any) -> None:
        """Show nothing: each line is a result."""

    def end(self, reason: str) -> None:
        """Show nothing."""

    def _show(self, result: Mapping[str, Any]) -> None:
        self._print(json_text(result))

    def announce(self, text: str) -> None:
        """Show nothing."""

    def saved(self, folder: Path) -> None:
        """Show that a checkpoint was written."""
        self._try(lambda: self._print(json.dumps({"saved": str(folder)})))


class LiveTable(PlainLines):
    """Shows the running iteration, tables of the latest ones and of the policies, and at the end the time spent."""

    _pause = _LIVE_S

    def __init__(self, stop: Mapping[str, float] | None = None, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(stop)
        self._rows: deque[tuple[str, ...]] = deque(maxlen=_ROWS)
        self._returns: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_TREND))
        self._result: Mapping[str, Any] | None = None
        # The tables, rendered once for each result and width of the terminal.
        self._tables: tuple[Any, int, Any] = (None, 0, None)
        self._live = Live(console=console or Console(), auto_refresh=False)

    def end(self, reason: str) -> None:
        """Show how the time was spent, below the table."""
        super().end(reason)
        self._try(lambda: self._refresh(""))
        self._try(self._live.stop)

    def _start(self) -> None:
        self._live.start()
        self._beat()

    def _beat(self) -> None:
        began = time.thread_time()
        self._refresh(self._under_way())
        # Drawing takes a hundredth of the time at most.
        self._pause = max(_LIVE_S, 100 * (time.thread_time() - began))
        self._printed_at = time.monotonic()

    def _show(self, result: Mapping[str, Any]) -> None:
        with self._lock:
            self._rows.append(cells(result))
            self._add_time(result)
            for name, mean in result["policy_reward_mean"].items():
                self._returns[name].append(mean)
            self._result = result

    def _refresh(self, status: str) -> None:
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            texts = [Text(line) for line in (status, self._slowest()) if line]
            self._live.update(Group(*texts, *self._rendered()), refresh=True)

    def _rendered(self) -> Sequence[Any]:
        result, console = self._result, self._live.console
        if result is None:
            return ()
        if self._tables[:2] != (result, console.width):
            info = result["info"]
            # A policy may be named "learner" too.
            learned = [name for name in info if name != "learner" or name in info["learner"]]
            policies = [(name, *of_policy(result, name, self._returns.get(name, ()))) for name in learned]
            tables = (
                _table(_HEADS, self._rows, console.width),
                _table(("policy", *_OF_A_POLICY), policies, console.width),
                *([_table(_OF_A_GAME, games, console.width)] if (games := of_game(result)) else []),
            )
            self._tables = (result, console.width, tables)
        found: Sequence[Any] = self._tables[2]
        return found

    def _print(self, text: str) -> None:
        with self._lock:
            self._live.console.print(printable(text), highlight=False, markup=False)


class Pace:
    """How fast a run is, and how long it takes to reach a bound."""

    def __init__(self, stop: Mapping[str, float], first: Mapping[str, Any]) -> None:
        """Begin at `first`, which `Algorithm.under_way` returned."""
        self._stop = stop
        self._first = _with_part(first)
        self._latest = deque([(first["time_total_s"], first["num_env_steps_sampled"])], maxlen=20)

    def line(self, now: Mapping[str, Any]) -> str:
        """Return a line about what `Algorithm.under_way` returned."""
        now = _with_part(now)
        self._latest.append((now["time_total_s"], now["num_env_steps_sampled"]))
        (began, before), (until, steps) = self._latest[0], self._latest[-1]
        speed = max(0, steps - before) / (until - began) if until > began else 0.0
        doing = f"{now['phase'] or 'working'} for {now['phase_s']:,.0f} s"
        parts = [
            f"iteration {now['iteration']}",
            f"{now['steps']:,} of {now['steps_due']:,} steps",
            f"{speed:,.0f} steps/s",
            doing,
        ]
        left = self._left(now)
        return ", ".join([*parts, f"{_clock(left)} left"] if left is not None else parts)

    def _left(self, now: Mapping[str, Any]) -> float | None:
        """Return the seconds to the first bound, None where that cannot be estimated."""
        passed = now["time_total_s"] - self._first["time_total_s"]
        found = []
        for key, bound in self._stop.items():
            gained = now[key] - self._first[key] if key in now else 0.0
            if gained > 0:
                found.append((bound - now[key]) / gained * passed)
        return max(0.0, min(found)) if found else None


def _with_part(now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the number of the iteration that the steps are of; while it runs, it counts by the part that is done."""
    done = now["training_iteration"]
    if now["steps"] and now["phase"] in ("", "evaluating"):
        return {**now, "iteration": done}
    return {**now, "iteration": done + 1, "training_iteration": done + now["steps"] / now["steps_due"]}


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _shares(seconds: Mapping[str, float], whole: float, rest: str = "") -> str:
    shares = {name: round(100 * part / whole) for name, part in seconds.items()}
    if rest:
        shares[rest] = max(0, 100 - sum(shares.values()))
    return ", ".join(f"{share} % {name}" for name, share in shares.items())


def cells(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of an iteration as text, in the order of the columns."""
    speed = result["num_env_steps_sampled_this_iter"] / max(result["time_this_iter_s"], 1e-9)
    return (
        f"{result['training_iteration']:,}", f"{result['num_env_steps_sampled']:,}", f"{speed:,.0f}",
        f"{result['episodes_total']:,}", _figure(result["episode_reward_mean"]), _figure(result["episode_len_mean"]),
        f"{result['time_total_s']:,.1f}",
    )  # fmt: skip


def of_policy(result: Mapping[str, Any], policy_id: str, returns: Sequence[float]) -> tuple[str, ...]:
    """Return the values of a policy as text; `returns` are its latest mean returns."""
    stats = result["info"][policy_id]
    loss = stats.get("total_loss", stats.get("loss"))
    figures = (stats.get("entropy"), stats.get("kl"), loss, stats.get("cur_lr"))
    mean = _figure(result["policy_reward_mean"].get(policy_id))
    return (mean, sparkline(returns), *map(_figure, figures))


def of_game(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the shares of the first matchups of a zero-sum game as text, each once; ratings stand behind names."""
    ratings = result.get("league", {}).get("rating", {})
    names = defaultdict(str, {name: f" ({rating:,.0f})" for name, rating in ratings.items()})
    shown: dict[tuple[Any, Any], Mapping[str, float]] = {}
    for one, row in result.get("matchups", {}).items():
        shown |= {(one, other): shares for other, shares in row.items() if (other, one) not in shown}
    return [
        (f"{one}{names[one]}", f"{other}{names[other]}", *(f"{share:.0%}" for share in shares.values()))
        for (one, other), shares in islice(shown.items(), _ROWS)
    ]


def sparkline(values: Sequence[float]) -> str:
    """Return a character for each value, a higher one for a larger value."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    if most <= least:
        return _BARS[0] * len(values)
    return "".join(_BARS[round((value - least) / (most - least) * (len(_BARS) - 1))] for value in values)


def _by_policy(result: Mapping[str, Any]) -> list[str]:
    means = result["policy_reward_mean"]
    shown = [f" {name} {_figure(mean)}" for name, mean in means.items()] if len(means) > 1 else []
    games = [
        f" {name} against {other}: win {win}, draw {draw}, loss {loss}"
        for name, other, win, draw, loss in of_game(result)
    ]
    return shown + games


def _figure(value: Any) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def _table(heads: Sequence[str], rows: Sequence[tuple[str, ...]] | deque[tuple[str, ...]], width: int) -> Any:
    """Return a table of the columns for which a terminal has room."""
    from rich.table import Table
    from rich.text import Text

    columns = dict(zip(heads, zip(heads, *rows, strict=True), strict=True))
    for head in _UNIMPORTANT:
        if sum(max(map(len, column)) + 2 for column in columns.values()) > width:
            columns.pop(head, None)
    table = Table(box=None)
    for head in columns:
        table.add_column(
            head, justify="left" if head in ("policy", "player", "against", "trend") else "right"
        )
    for row in zip(*(column[1:] for column in columns.values()), strict=True):
        # Names are not markup.
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
