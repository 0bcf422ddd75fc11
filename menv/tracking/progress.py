"""What a run shows on stdout: a live table, plain lines, or JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from menv.errors import printable
from menv.tracking.run_folder import json_text
from menv.tracking.tracker import Tracker

_HEADS = ("iteration", "env steps", "steps/s", "episodes", "mean return", "mean length", "seconds")
_OF_A_POLICY = ("mean return", "entropy", "kl", "loss", "learning rate")
_OF_A_GAME = ("player", "against", "win", "draw", "loss")
_ROWS = 12
_LIVE_S = 0.25
_PLAIN_S = 10.0


def progress(as_json: bool = False) -> PlainLines:
    """Return JSON lines, a live table on a terminal if rich is installed, or plain lines."""
    if as_json:
        return JsonLines()
    # stdout is None if it was closed before Python started.
    is_terminal = getattr(sys.stdout, "isatty", bool)() and os.environ.get("TERM", "dumb") != "dumb"
    return LiveTable() if is_terminal and find_spec("rich") is not None else PlainLines()


class PlainLines(Tracker):
    """Prints a line per iteration, and a line after ten seconds without one.

    An error of the display does not end the run; `failed` is the first one.
    """

    holds_signals = True
    _pause = _PLAIN_S

    def __init__(self) -> None:
        self.failed: Exception | None = None
        self._algorithm: Any = None
        self._began = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._printed_at = 0.0

    def announce(self, text: str) -> None:
        """Show a line before the run begins."""
        self._try(lambda: self._print(text))

    def begin(self, algorithm: Any) -> None:
        """Begin to show the progress within iterations."""
        self._algorithm = algorithm
        self._try(self._start)
        self._thread = threading.Thread(target=self._beats, name="menv progress", daemon=True)
        self._thread.start()

    def end(self, reason: str) -> None:
        """End the display."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

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
            now = self._algorithm.under_way()
            is_done = now["steps"] and now["phase"] in ("", "evaluating")
            number = now["training_iteration"] + (not is_done)
            doing = f"{now['phase'] or 'working'} for {now['phase_s']:,.0f} s"
            return f"iteration {number}, {now['steps']:,} of {now['steps_due']:,} steps, {doing}"
        return ""

    def _show(self, result: Mapping[str, Any]) -> None:
        head = "" if self._began else "  ".join(f"{head:>11}" for head in _HEADS) + "\n"
        self._began = True
        line = "  ".join(f"{cell:>11}" for cell in cells(result))
        self._print(" ".join((f"{head}{line}", *_by_policy(result))))

    def _print(self, text: str) -> None:
        with self._lock:
            print(printable(text), flush=True)
        self._printed_at = time.monotonic()

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

    def _show(self, result: Mapping[str, Any]) -> None:
        self._print(json_text(result))

    def announce(self, text: str) -> None:
        """Show nothing."""

    def saved(self, folder: Path) -> None:
        """Show that a checkpoint was written."""
        self._try(lambda: self._print(json.dumps({"saved": str(folder)})))


class LiveTable(PlainLines):
    """Shows the running iteration, and tables of the latest ones and of the policies."""

    _pause = _LIVE_S

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._rows: deque[tuple[str, ...]] = deque(maxlen=_ROWS)
        self._result: Mapping[str, Any] | None = None
        self._live = Live(console=console or Console(), auto_refresh=False)

    def end(self, reason: str) -> None:
        """Show the tables of the last iteration."""
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
            self._result = result

    def _refresh(self, status: str) -> None:
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            self._live.update(Group(*([Text(status)] if status else []), *self._tables()), refresh=True)

    def _tables(self) -> Iterator[Any]:
        if (result := self._result) is not None:
            info = result["info"]
            # A policy may be named "learner" too.
            learned = [name for name in info if name != "learner" or name in info["learner"]]
            yield _table(_HEADS, self._rows)
            yield _table(("policy", *_OF_A_POLICY), [(name, *of_policy(result, name)) for name in learned])
            if games := of_game(result):
                yield _table(_OF_A_GAME, games)

    def _print(self, text: str) -> None:
        with self._lock:
            self._live.console.print(printable(text), highlight=False, markup=False)


def cells(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of an iteration as text, in the order of the columns."""
    speed = result["num_env_steps_sampled_this_iter"] / max(result["time_this_iter_s"], 1e-9)
    return (
        f"{result['training_iteration']:,}", f"{result['num_env_steps_sampled']:,}", f"{speed:,.0f}",
        f"{result['episodes_total']:,}", _figure(result["episode_reward_mean"]), _figure(result["episode_len_mean"]),
        f"{result['time_total_s']:,.1f}",
    )  # fmt: skip


def of_policy(result: Mapping[str, Any], policy_id: str) -> tuple[str, ...]:
    """Return the values of a policy as text."""
    stats = result["info"][policy_id]
    loss = stats.get("total_loss", stats.get("loss"))
    mean = result["policy_reward_mean"].get(policy_id)
    return tuple(map(_figure, (mean, stats.get("entropy"), stats.get("kl"), loss, stats.get("cur_lr"))))


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


def _table(heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for head in heads:
        is_name = head in ("policy", "player", "against")
        table.add_column(head, justify="left" if is_name else "right", no_wrap=True)
    for row in rows:
        # Names are not markup.
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
