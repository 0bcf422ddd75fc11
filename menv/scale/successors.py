"""Hosts that are lost, and the processes that take their places.

`menv.scale.hosts` asks it what to do when a process ends, hangs or cannot begin. It starts successors with fresh
seeds, a few times in a row at most; episodes that nobody acts in at the moment are not told before they are answered,
because whoever samples still holds their rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from typing import Any

from menv.adapters.crash_log import PAUSES, CrashLog
from menv.errors import ConfigError, ContractError, EnvCrashError, WorkerLostError
from menv.scale.engine import Engine
from menv.scale.env_host import EnvHost
from menv.scale.far_host import FarHost
from menv.scale.last_words import in_a_line
from menv.scale.remote_settings import RemoteSettings
from menv.scale.watchdog import creation_limit

_LONGEST = 360


class Successors:
    """Starts the processes of hosts.

    It keeps no exceptions of hosts that play on: a traceback keeps alive all that its callers had.
    """

    def __init__(self, engine: Engine, make_env: Callable[[int], Any], settings: RemoteSettings) -> None:
        # What was raised when each host was lost last, and its words, by its first sub-environment.
        self._last: dict[int, tuple[str, str]] = {}
        self._engine = engine
        self._make_env = make_env
        self._settings = settings
        self._log = CrashLog(tolerated=settings.tolerated, creator=True)

    def start(self, host: FarHost) -> None:
        """Start a process for a host."""
        settings = self._settings
        host.meet(
            self._engine.start(
                EnvHost, self._make_env, host.first, host.size, settings.seed, settings.first_index,
                settings.tolerated, label=f"process of {host.name}",
            )
        )  # fmt: skip

    def finished(self, host: FarHost) -> None:
        """Note that an episode was finished in a host."""
        self._log.finished(host.first)

    def replace(
        self, host: FarHost, error: Exception, waiting: Container[int], *, blamed: bool = True
    ) -> Collection[int]:
        """Give a lost host a successor.

        Args:
            host: It has lost its process.
            error: Why.
            waiting: Sub-environments whose rows were handed out and have not been answered.
            blamed: Whether it counts among those that are too many.

        Returns:
            The sub-environments that are created anew.

        Raises:
            EnvCrashError: It is not to be replaced, or has been too often.
        """
        self._last[host.first] = type(error).__name__, str(error)
        over = self._playing(host) if host.news else []
        try:
            if blamed:
                self._note(host, error, over)
        except EnvCrashError:
            # Whoever goes on all the same, or saves, begins in another process.
            host.end()
            raise
        finally:
            for index in [index for index in over if index in waiting]:
                host.leave(index)
                over.remove(index)
            host.lose(over, self._reason(host))
        return self.go_on(host)

    def go_on(self, host: FarHost) -> Collection[int]:
        """Start a process and begin in it, but for episodes that wait to be told of; return what is created anew."""
        time.sleep(PAUSES[min(host.failed, len(PAUSES) - 1)])
        with suppress(Exception):
            host.peer.kill()
        self.start(host)
        host.begin([index for index in host.indices if index not in host.left], int(host.news))
        return host.indices

    def failed_to_begin(self, host: FarHost, error: Exception, waiting: Container[int]) -> bool:
        """Take note of what a process raised; False if that is to be raised here.

        A successor may fail to create or reset its sub-environments a few times.
        """
        if not host.news or host.asked[0][0] not in ("created", "begun"):
            return False
        if isinstance(error, ContractError | ConfigError):
            return False
        self.replace(host, error, waiting)
        return True

    def loss(self, host: FarHost) -> WorkerLostError:
        """Return the error for whoever asked a host that was lost meanwhile."""
        return WorkerLostError(self._last[host.first][1])

    def tell_lost(self, host: FarHost, indices: Collection[int], *, withdrawn: bool = True) -> None:
        """Let episodes be over that were lost while their rows waited, and begin the next ones."""
        host.lose(indices, self._reason(host), withdrawn=withdrawn)
        host.begin(indices, 1)

    def patience(self, hosts: Sequence[FarHost], timeout: float | None) -> float | None:
        """Return how long to wait for hosts before one of them may be overdue, `timeout` at most."""
        left = [host.since + limit for host in hosts if (limit := self._limit(host)) is not None]
        if not left:
            return timeout
        until = max(0.0, min(left) - time.monotonic())
        return until if timeout is None else min(until, timeout)

    def overdue(self, host: FarHost) -> bool:
        """Return whether a host that has not answered has had its time."""
        limit = self._limit(host)
        return limit is not None and time.monotonic() - host.since >= limit

    def give_up(self, host: FarHost) -> WorkerLostError:
        """End the process of a host that hangs, and return the error for it."""
        limit, pid = self._limit(host), host.peer.pid
        host.peer.kill()
        what = (
            f"not created within {limit:g} s, expected it to be; mend what it waits for, or raise env_timeout"
            if host.asked[0][0] == "created"
            else f"no answer for {limit:g} s, expected one within env_timeout={self._settings.env_timeout:g}; "
            "it was ended"
        )
        error = WorkerLostError(f"{host.peer.label} (pid {pid}): {what}")
        try:
            host.peer.answer()
        except WorkerLostError as last_words:
            error.__cause__ = last_words
        return error

    def _limit(self, host: FarHost) -> float | None:
        each = self._settings.env_timeout
        if each is None:
            return None
        kind, _, steps = host.asked[0]
        return creation_limit(each) if kind == "created" else each * steps

    def _playing(self, host: FarHost) -> list[int]:
        return [index for index in host.indices if index not in host.beginning and index not in host.left]

    def _reason(self, host: FarHost) -> tuple[str, str]:
        kind, words = self._last[host.first]
        return f"{kind}: {in_a_line(words)[:_LONGEST].rstrip()}", kind

    def _note(self, host: FarHost, error: Exception, over: Collection[int]) -> None:
        """Note a loss, of the episodes of `over`.

        Raises:
            EnvCrashError: The host is not to be replaced, or has been too often.
        """
        if not host.news:
            raise EnvCrashError(
                f"{host.name} reset, env step {int(host.env_steps.max())}: {_head(error)}, expected a sub-environment "
                "that can be created and reset in another process; what it wrote last is above"
            ) from error
        if over:
            where = f"{host.name} step, env step {int(host.env_steps.max())}"
            steps = max(int(host.env_steps[i - host.first]) - host.start_of(i) for i in over)
            self._log.note(host.first, f"{where}: {_head(error)}", error, steps)
            return
        host.failed += 1
        if host.failed >= len(PAUSES):
            raise self._log.no_other(host.first, error)


def _head(error: Exception) -> str:
    """Return what became of a process, without what it wrote before."""
    return " ".join(str(error).partition(", expected ")[0].split())
