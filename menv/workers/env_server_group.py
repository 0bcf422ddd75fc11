"""The hosts of a `RemoteEnvs`: asking them, waiting for them, taking in what they tell, replacing those that are lost.

`menv.workers.remote_envs` decides what is asked. It knows neither rows nor actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from menv.adapters.local_envs import PAUSES, TOLERATED, CrashLog
from menv.base_env import AgentId, EnvId, IntArray
from menv.errors import CallOrderError, ConfigError, ContractError, EnvCrashError, WorkerLostError
from menv.workers.engine import Engine
from menv.workers.env_server import EnvServer, ServerUpdate
from menv.workers.process_engine import in_a_line
from menv.workers.remote_env_server import RemoteEnvServer
from menv.workers.watchdog import creation_limit

# SEAM menv.scale.remote_settings
# How sub-environments are hosted in other processes.
#
# `menv.workers.convert` makes it of the settings that users give; `hosts` and `successors` keep to it.


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How sub-environments are hosted elsewhere.

    Attributes:
        batch_wait_ms: Milliseconds that a poll waits for more hosts once one has answered; a large number lets all
            step in lock step.
        env_timeout: Seconds after which a sub-environment that does not answer is given up; None waits for ever.
        per_process: Sub-environments that share a process.
        tolerated: Crashes in a row, of one process or sub-environment without progress, that do not end the run; None
            creates none again that raises, hangs or is killed.
        seed: Gives every reset its own seed; None leaves the environments alone.
        first_index: Index of sub-environment 0 among those of all workers.
    """

    batch_wait_ms: float = 0
    env_timeout: float | None = None
    per_process: int = 1
    tolerated: int | None = TOLERATED
    seed: int | None = None
    first_index: int = 0


# SEAM menv.scale.successors
# Hosts that are lost, and the processes that take their places.
#
# `menv.workers.env_server_group` asks it what to do when a process ends, hangs or cannot begin. It starts
# successors with fresh
# seeds, a few times in a row at most; episodes that nobody acts in at the moment are not told before they are
# answered,
# because whoever samples still holds their rows.


_LONGEST = 360


class Restarter:
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

    def start(self, host: RemoteEnvServer) -> None:
        """Start a process for a host."""
        settings = self._settings
        host.meet(
            self._engine.start(
                EnvServer, self._make_env, host.first, host.size, settings.seed, settings.first_index,
                settings.tolerated, label=f"process of {host.name}",
            )
        )  # fmt: skip

    def finished(self, host: RemoteEnvServer) -> None:
        """Note that an episode was finished in a host."""
        self._log.finished(host.first)

    def replace(
        self, host: RemoteEnvServer, error: Exception, waiting: Container[int], *, blamed: bool = True
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

    def go_on(self, host: RemoteEnvServer) -> Collection[int]:
        """Start a process and begin in it, but for episodes that wait to be told of; return what is created anew."""
        time.sleep(PAUSES[min(host.failed, len(PAUSES) - 1)])
        with suppress(Exception):
            host.peer.kill()
        self.start(host)
        host.begin([index for index in host.indices if index not in host.left], int(host.news))
        return host.indices

    def failed_to_begin(self, host: RemoteEnvServer, error: Exception, waiting: Container[int]) -> bool:
        """Take note of what a process raised; False if that is to be raised here.

        A successor may fail to create or reset its sub-environments a few times.
        """
        if not host.news or host.asked[0][0] not in ("created", "begun"):
            return False
        if isinstance(error, ContractError | ConfigError):
            return False
        self.replace(host, error, waiting)
        return True

    def loss(self, host: RemoteEnvServer) -> WorkerLostError:
        """Return the error for whoever asked a host that was lost meanwhile."""
        return WorkerLostError(self._last[host.first][1])

    def tell_lost(self, host: RemoteEnvServer, indices: Collection[int], *, withdrawn: bool = True) -> None:
        """Let episodes be over that were lost while their rows waited, and begin the next ones."""
        host.lose(indices, self._reason(host), withdrawn=withdrawn)
        host.begin(indices, 1)

    def patience(self, hosts: Sequence[RemoteEnvServer], timeout: float | None) -> float | None:
        """Return how long to wait for hosts before one of them may be overdue, `timeout` at most."""
        left = [host.since + limit for host in hosts if (limit := self._limit(host)) is not None]
        if not left:
            return timeout
        until = max(0.0, min(left) - time.monotonic())
        return until if timeout is None else min(until, timeout)

    def overdue(self, host: RemoteEnvServer) -> bool:
        """Return whether a host that has not answered has had its time."""
        limit = self._limit(host)
        return limit is not None and time.monotonic() - host.since >= limit

    def give_up(self, host: RemoteEnvServer) -> WorkerLostError:
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

    def _limit(self, host: RemoteEnvServer) -> float | None:
        each = self._settings.env_timeout
        if each is None:
            return None
        kind, _, steps = host.asked[0]
        return creation_limit(each) if kind == "created" else each * steps

    def _playing(self, host: RemoteEnvServer) -> list[int]:
        return [index for index in host.indices if index not in host.beginning and index not in host.left]

    def _reason(self, host: RemoteEnvServer) -> tuple[str, str]:
        kind, words = self._last[host.first]
        return f"{kind}: {in_a_line(words)[:_LONGEST].rstrip()}", kind

    def _note(self, host: RemoteEnvServer, error: Exception, over: Collection[int]) -> None:
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
            raise self._log.replacement_error(host.first, error)


def _head(error: Exception) -> str:
    """Return what became of a process, without what it wrote before."""
    return " ".join(str(error).partition(", expected ")[0].split())


class EnvServerGroup:
    """All hosts, in the order of their sub-environments.

    Args:
        make_env: Creates sub-environment number `vector_index`, elsewhere.
        num_envs: How many there shall be.
        engine: Starts the processes.
        settings: How they are hosted.
        created: Told the index of a sub-environment that is created in another's place.

    Attributes:
        seats: See `Ready.seats`.
        waiting: The slots of rows that were handed out and not answered, by sub-environment.
        successors: Starts processes.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_envs: int,
        engine: Engine,
        settings: RemoteSettings,
        created: Callable[[int], None],
    ) -> None:
        self.seats: list[tuple[EnvId, AgentId]] = []
        self.waiting: dict[int, IntArray] = {}
        self.successors = Restarter(engine, make_env, settings)
        self._engine = engine
        self._settings = settings
        self._created = created
        self._stopped = False
        size = settings.per_process
        self._all = [
            RemoteEnvServer(first, min(size, num_envs - first), self.seats)
            for first in range(0, num_envs, size)
        ]
        for host in self._all:
            self.successors.start(host)

    def __iter__(self) -> Iterator[RemoteEnvServer]:
        return iter(self._all)

    def of(self, index: int) -> RemoteEnvServer:
        """Return the host of a sub-environment."""
        return self._all[index // self._settings.per_process]

    def begin(self) -> None:
        """Begin everywhere, and wait for all."""
        for host in self._all:
            host.begin(host.indices, 0)
        for host in self._all:
            self.settle(host)

    def stop(self) -> None:
        """End all processes."""
        self._stopped = True
        self._engine.stop()

    def gather(self, timeout: float | None) -> None:
        """Wait until something is due, then as long as polls wait for more."""
        until = None if timeout is None else time.monotonic() + timeout
        for host in self._all:
            self._revive(host)
        self._take_answers(0.0)
        while not self._something_due() and self._busy() and (until is None or time.monotonic() < until):
            self._take_answers(None if until is None else max(0.0, until - time.monotonic()))
        together = time.monotonic() + self._settings.batch_wait_ms / 1000
        until = together if until is None else min(until, together)
        while self._busy() and time.monotonic() < until:
            self._take_answers(until - time.monotonic())

    def _busy(self) -> list[RemoteEnvServer]:
        return [host for host in self._all if host.asked]

    def _something_due(self) -> bool:
        return any(not host.due.empty for host in self._all)

    def _take_answers(self, timeout: float | None) -> None:
        """Take what hosts have answered; wait for the first answer as long as a sub-environment may take."""
        busy = self._busy()
        if not busy:
            return
        ready = self._engine.wait([host.peer for host in busy], self.successors.patience(busy, timeout))
        for host in busy:
            if not host.asked:
                # Somebody who was told of another host has called a method in this one, and waited for it.
                continue
            if host.peer in ready:
                self._take_answer(host)
            elif self.successors.overdue(host):
                self._lost(host, self.successors.give_up(host))

    def settle(self, host: RemoteEnvServer) -> None:
        """Take all that a host has to answer."""
        self._revive(host)
        while host.asked:
            self._wait_once(host)

    def wait_for(self, host: RemoteEnvServer) -> Any:
        """Return the answer to a host's last question.

        Raises:
            WorkerLostError: The host is lost; it has been given a successor.
        """
        peer, value = host.peer, None
        while host.asked:
            value = self._wait_once(host)
            if host.peer is not peer:
                raise self.successors.loss(host)
        return value

    def _wait_once(self, host: RemoteEnvServer) -> Any:
        while True:
            if self._engine.wait([host.peer], self.successors.patience([host], None)):
                return self._take_answer(host)
            if self.successors.overdue(host):
                self._lost(host, self.successors.give_up(host))
                return None

    def _take_answer(self, host: RemoteEnvServer) -> Any:
        try:
            answer = host.peer.answer()
        except WorkerLostError as error:
            self._lost(host, error, blamed=not host.peer.was_interrupted)
            return None
        except Exception as error:
            if not self.successors.failed_to_begin(host, error, self.waiting):
                if host.answered() == "created":
                    host.end()
                raise
            return None
        kind = host.answered()
        if kind in ("news", "begun"):
            self.take(host, answer)
        return answer

    def take(self, host: RemoteEnvServer, news: ServerUpdate) -> None:
        """Take in news."""
        host.take(news)
        if news.events is None:
            return
        for episode in news.events.episodes:
            # Where it was reset from outside, its rows may not have been answered.
            self.waiting.pop(episode.env_index, None)
            if not episode.faulty:
                self.successors.finished(host)
        for fault in news.events.faults:
            self._created(fault.env_index)

    def _lost(self, host: RemoteEnvServer, error: WorkerLostError, *, blamed: bool = True) -> None:
        """Replace a host that is lost; it is not blamed where this process was interrupted."""
        self._check_running()
        created = self.successors.replace(host, error, self.waiting, blamed=blamed)
        self._check_running()
        for index in created:
            self._created(index)

    def _revive(self, host: RemoteEnvServer) -> None:
        """Start a process for a host that was lost too often, or is torn, where somebody goes on after the error."""
        if host.ended:
            self._check_running()
            for index in self.successors.go_on(host):
                self._created(index)
        elif host.torn:
            what = "let go of, because this process was interrupted in the midst of a question"
            self._lost(
                host, WorkerLostError(f"{host.peer.label}: {what}, expected it to go on"), blamed=False
            )

    def _check_running(self) -> None:
        if self._stopped:
            # There may be a process that was started since.
            self._engine.stop()
            raise CallOrderError(
                "poll: these environments were stopped meanwhile, expected running ones; make new ones"
            )
