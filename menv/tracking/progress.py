"""What a run shows on stdout: a live table, plain lines, or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from menv.tracking.run_folder import json_text
from menv.tracking.tracker import Tracker

_SAMPLING = {"env_time_s": "environments", "act_time_s": "deciding", "complete_time_s": "completing batches"}


_HEADS = ("iteration", "env steps", "steps/s", "episodes", "mean return", "mean length", "seconds")
_OF_A_POLICY = ("mean return", "entropy", "kl", "loss", "learning rate")
_ROWS = 12


def progress(as_json: bool = False) -> PlainLines:
    """Return JSON lines, a live table on a terminal if rich is installed, or plain lines."""
    if as_json:
        return JsonLines()
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and find_spec("rich") is not None:
        return LiveTable()
    return PlainLines()


class PlainLines(Tracker):
    """Prints a line per iteration and a summary of the time spent.

    An error of the display does not end the run; `failed` is the first one.
    """

    def __init__(self) -> None:
        self.failed: Exception | None = None
        self._began = False
        self._workers = False
        self._seconds: Counter[str] = Counter()

    def end(self, reason: str) -> None:
        """Show how the time was spent."""
        if self._seconds["all"]:
            self._try(lambda: self._print(_time_spent(self._seconds, self._workers)))

    def result(self, result: Mapping[str, Any]) -> None:
        """Show the result of an iteration."""
        self._try(lambda: self._show(result))

    def saved(self, folder: Path) -> None:
        """Show that a checkpoint was written."""
        self._try(lambda: self._print(f"saved {folder}"))

    def _show(self, result: Mapping[str, Any]) -> None:
        self._add_time(result)
        if not self._began:
            print("  ".join(f"{head:>11}" for head in _HEADS))
            self._began = True
        print("  ".join(f"{cell:>11}" for cell in cells(result)), *_by_policy(result), flush=True)

    def _print(self, text: str) -> None:
        print(text, flush=True)

    def _add_time(self, result: Mapping[str, Any]) -> None:
        self._seconds.update(result["sampler_perf"])
        self._seconds["all"] += result["time_this_iter_s"]
        self._workers = "num_worker_restarts" in result

    def _try(self, show: Callable[[], object]) -> None:
        if self.failed is not None:
            return
        try:
            show()
        except Exception as error:
            self.failed = self.failed or error


class JsonLines(PlainLines):
    """Prints the result of each iteration as a JSON object."""

    def _show(self, result: Mapping[str, Any]) -> None:
        self._print(json_text(result))

    def saved(self, folder: Path) -> None:
        """Show that a checkpoint was written."""
        self._try(lambda: self._print(json.dumps({"saved": str(folder)})))


class LiveTable(PlainLines):
    """Shows tables of the latest iterations and of the policies, and a summary of the time spent at the end."""

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._rows: deque[tuple[str, ...]] = deque(maxlen=_ROWS)
        self._live = Live(console=console or Console(), auto_refresh=False)

    def begin(self, algorithm: Any) -> None:
        """Show the table."""
        self._try(self._live.start)

    def end(self, reason: str) -> None:
        """Show how the time was spent, below the table."""
        super().end(reason)
        self._try(self._live.stop)

    def _show(self, result: Mapping[str, Any]) -> None:
        from rich.console import Group

        self._rows.append(cells(result))
        self._add_time(result)
        info = result["info"]
        # A policy may be named "learner" too.
        learned = [name for name in info if name != "learner" or name in info["learner"]]
        policies = [(name, *of_policy(result, name)) for name in learned]
        tables = (_table(_HEADS, self._rows), _table(("policy", *_OF_A_POLICY), policies))
        self._live.update(Group(*tables), refresh=True)

    def _print(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False)


def _time_spent(seconds: Counter[str], workers: bool) -> str:
    """Return the share of each activity, for workers and the main process separately."""
    sampling = {name: seconds[key] for key, name in _SAMPLING.items()}
    learning = {"learning": seconds["learn_time_s"]}
    if not workers:
        return "time: " + _shares({**sampling, **learning}, seconds["all"], "everything else")
    own = {"waiting for workers": seconds["sample_time_s"], **learning}
    return (
        f"time of workers: {_shares(sampling, sum(sampling.values()) or 1.0)}; "
        f"of this process: {_shares(own, seconds['all'], 'everything else')}"
    )


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


def of_policy(result: Mapping[str, Any], policy_id: str) -> tuple[str, ...]:
    """Return the values of a policy as text."""
    stats = result["info"][policy_id]
    loss = stats.get("total_loss", stats.get("loss"))
    figures = (result["policy_reward_mean"].get(policy_id), stats.get("entropy"), stats.get("kl"), loss)
    return (*map(_figure, figures), _figure(stats.get("cur_lr")))


def _by_policy(result: Mapping[str, Any]) -> list[str]:
    means = result["policy_reward_mean"]
    return [f" {name} {_figure(mean)}" for name, mean in means.items()] if len(means) > 1 else []


def _figure(value: Any) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def _table(heads: Any, rows: Any) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for head in heads:
        table.add_column(head, justify="left" if head == "policy" else "right")
    for row in rows:
        # Names of policies are not markup.
        table.add_row(*map(Text, row))
    return table
