"""The env servers of a `RemoteEnvs`: sends requests, waits for answers and replaces lost processes.

`remote_envs` decides what to request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
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


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Settings of sub-environments in other processes.

    `batch_wait_ms` is how long a poll waits for more servers once one has answered, `per_process` the number of
    sub-environments in a process, and `tolerated` the number of crashes in a row that do not end the run; None never
    re-creates a sub-environment. `first_index` is the index of sub-environment 0 of all workers.
    """

    batch_wait_ms: float = 0
    env_timeout: float | None = None
    per_process: int = 1
    tolerated: int | None = TOLERATED
    seed: int | None = None
    first_index: int = 0


_LONGEST = 360


class EnvServerGroup:
    """All servers, in the order of their sub-environments; lost ones are replaced with fresh seeds, a few times.

    Lost episodes whose rows the sampler still holds are reported when these are answered. No exception of a running
    server is kept, since a traceback keeps the variables of its callers alive.

    `created` is called with the index of each re-created sub-environment. `seats` is `Ready.seats`. `waiting` holds the
    slots of rows that were delivered and not answered, by sub-environment.
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
        self._make_env = make_env
        self._engine = engine
        self._settings = settings
        self._created = created
        self._stopped = False
        # Type and message of the last loss, by the server's first sub-environment.
        self._last: dict[int, tuple[str, str]] = {}
        self._log = CrashLog(tolerated=settings.tolerated, creator=True)
        size = settings.per_process
        self._all = [
            RemoteEnvServer(first, min(size, num_envs - first), self.seats)
            for first in range(0, num_envs, size)
        ]
        for server in self._all:
            self._start(server)

    def __iter__(self) -> Iterator[RemoteEnvServer]:
        return iter(self._all)

    def of(self, index: int) -> RemoteEnvServer:
        """Return the server of a sub-environment."""
        return self._all[index // self._settings.per_process]

    def begin(self) -> None:
        """Begin all episodes, and wait for them."""
        for server in self._all:
            server.begin(server.indices, 0)
        for server in self._all:
            self.settle(server)

    def stop(self) -> None:
        self._stopped = True
        self._engine.stop()

    def gather(self, timeout: float | None) -> None:
        """Wait until there is something to deliver, then for more as long as the settings say."""
        until = None if timeout is None else time.monotonic() + timeout
        for server in self._all:
            self._revive(server)
        self._take_answers(0.0)
        while not self._has_undelivered() and self._busy() and (until is None or time.monotonic() < until):
            self._take_answers(None if until is None else max(0.0, until - time.monotonic()))
        together = time.monotonic() + self._settings.batch_wait_ms / 1000
        until = together if until is None else min(until, together)
        while self._busy() and time.monotonic() < until:
            self._take_answers(until - time.monotonic())

    def _busy(self) -> list[RemoteEnvServer]:
        return [server for server in self._all if server.asked]

    def _has_undelivered(self) -> bool:
        return any(not server.undelivered.empty for server in self._all)

    def _take_answers(self, timeout: float | None) -> None:
        """Receive available answers; wait for the first one within the time limits."""
        busy = self._busy()
        if not busy:
            return
        ready = self._engine.wait([server.actor for server in busy], self._time_left(busy, timeout))
        for server in busy:
            if not server.asked:
                # A callback for another server has called a method of this one and received the answers.
                continue
            if server.actor in ready:
                self._take_answer(server)
            elif self._overdue(server):
                self._lost(server, self._give_up(server))

    def settle(self, server: RemoteEnvServer) -> None:
        """Receive all answers of a server."""
        self._revive(server)
        while server.asked:
            self._receive_next(server)

    def wait_for(self, server: RemoteEnvServer) -> Any:
        """Return the answer to a server's last request; WorkerLostError if the server was replaced meanwhile."""
        actor, value = server.actor, None
        while server.asked:
            value = self._receive_next(server)
            if server.actor is not actor:
                raise WorkerLostError(self._last[server.first][1])
        return value

    def _receive_next(self, server: RemoteEnvServer) -> Any:
        while True:
            if self._engine.wait([server.actor], self._time_left([server], None)):
                return self._take_answer(server)
            if self._overdue(server):
                self._lost(server, self._give_up(server))
                return None

    def _take_answer(self, server: RemoteEnvServer) -> Any:
        try:
            answer = server.actor.answer()
        except WorkerLostError as error:
            self._lost(server, error, counts=not server.actor.was_interrupted)
            return None
        except Exception as error:
            if not self._handle_failed_start(server, error):
                if server.answered() == "created":
                    server.end()
                raise
            return None
        kind = server.answered()
        if kind in ("update", "begun"):
            self.take(server, answer)
        return answer

    def take(self, server: RemoteEnvServer, update: ServerUpdate) -> None:
        """Apply an update."""
        server.take(update)
        if update.events is None:
            return
        for episode in update.events.episodes:
            # After a manual reset, its rows may be unanswered.
            self.waiting.pop(episode.env_index, None)
            if not episode.faulty:
                self._log.finished(server.first)
        for fault in update.events.faults:
            self._created(fault.env_index)

    def _lost(self, server: RemoteEnvServer, error: WorkerLostError, *, counts: bool = True) -> None:
        """Replace a lost server; an interruption of this process is not its fault."""
        self._check_running()
        created = self._replace(server, error, counts=counts)
        self._check_running()
        for index in created:
            self._created(index)

    def _revive(self, server: RemoteEnvServer) -> None:
        """Start a process for a server that was given up or is out of step, when the run continues after the error."""
        if server.ended:
            self._check_running()
            for index in self._restart(server):
                self._created(index)
        elif server.is_out_of_step:
            what = "let go of, because this process was interrupted in the midst of a question"
            self._lost(
                server, WorkerLostError(f"{server.actor.label}: {what}, expected it to go on"), counts=False
            )

    def _check_running(self) -> None:
        if self._stopped:
            # A process may have been started since.
            self._engine.stop()
            raise CallOrderError(
                "poll: these environments were stopped meanwhile, expected running ones; make new ones"
            )

    def _start(self, server: RemoteEnvServer) -> None:
        settings = self._settings
        server.attach(
            self._engine.start(
                EnvServer, self._make_env, server.first, server.size, settings.seed, settings.first_index,
                settings.tolerated, label=f"process of {server.name}",
            )
        )  # fmt: skip

    def _replace(self, server: RemoteEnvServer, error: Exception, *, counts: bool = True) -> Collection[int]:
        """Replace the process of a lost server; return the sub-environments that are re-created.

        Raises EnvCrashError if the server must not be replaced again; `counts` says whether the loss counts for that.
        """
        self._last[server.first] = type(error).__name__, str(error)
        over = self._running_episodes(server) if server.has_reported else []
        try:
            if counts:
                self._count_loss(server, error, over)
        except EnvCrashError:
            # If the run continues or is saved, it begins in another process.
            server.end()
            raise
        finally:
            for index in [index for index in over if index in self.waiting]:
                server.hold_back(index)
                over.remove(index)
            server.end_episodes(over, self._reason(server))
        return self._restart(server)

    def _restart(self, server: RemoteEnvServer) -> Collection[int]:
        """Start a process and begin its episodes, except the unreported lost ones; return the re-created indices."""
        time.sleep(PAUSES[min(server.failed, len(PAUSES) - 1)])
        with suppress(Exception):
            server.actor.kill()
        self._start(server)
        server.begin(
            [index for index in server.indices if index not in server.held_back], int(server.has_reported)
        )
        return server.indices

    def _handle_failed_start(self, server: RemoteEnvServer, error: Exception) -> bool:
        """Replace a server whose replacement failed to begin; return False if the error must be raised."""
        if not server.has_reported or server.asked[0][0] not in ("created", "begun"):
            return False
        if isinstance(error, ContractError | ConfigError):
            return False
        self._replace(server, error)
        return True

    def report_lost(
        self, server: RemoteEnvServer, indices: Collection[int], *, withdrawn: bool = True
    ) -> None:
        """Report lost episodes as ended, and begin the next ones."""
        server.end_episodes(indices, self._reason(server), withdrawn=withdrawn)
        server.begin(indices, 1)

    def _time_left(self, servers: Sequence[RemoteEnvServer], timeout: float | None) -> float | None:
        """Return how long to wait before a server may be overdue, at most `timeout`."""
        limits_left = [
            server.since + limit for server in servers if (limit := self._limit(server)) is not None
        ]
        if not limits_left:
            return timeout
        until = max(0.0, min(limits_left) - time.monotonic())
        return until if timeout is None else min(until, timeout)

    def _overdue(self, server: RemoteEnvServer) -> bool:
        """Return whether a server has exceeded its time limit."""
        limit = self._limit(server)
        return limit is not None and time.monotonic() - server.since >= limit

    def _give_up(self, server: RemoteEnvServer) -> WorkerLostError:
        """Kill the process of a hanging server, and return the error for it."""
        limit, pid = self._limit(server), server.actor.pid
        server.actor.kill()
        what = (
            f"not created within {limit:g} s, expected it to be; fix what it waits for, or raise env_timeout"
            if server.asked[0][0] == "created"
            else f"no answer for {limit:g} s, expected one within env_timeout={self._settings.env_timeout:g}; "
            "it was ended"
        )
        error = WorkerLostError(f"{server.actor.label} (pid {pid}): {what}")
        try:
            server.actor.answer()
        except WorkerLostError as stderr_tail:
            error.__cause__ = stderr_tail
        return error

    def _limit(self, server: RemoteEnvServer) -> float | None:
        each = self._settings.env_timeout
        if each is None:
            return None
        kind, _, steps = server.asked[0]
        return creation_limit(each) if kind == "created" else each * steps

    def _running_episodes(self, server: RemoteEnvServer) -> list[int]:
        return [
            index
            for index in server.indices
            if index not in server.beginning and index not in server.held_back
        ]

    def _reason(self, server: RemoteEnvServer) -> tuple[str, str]:
        kind, message = self._last[server.first]
        return f"{kind}: {in_a_line(message)[:_LONGEST].rstrip()}", kind

    def _count_loss(self, server: RemoteEnvServer, error: Exception, over: Collection[int]) -> None:
        """Count a loss of the episodes `over`; raise EnvCrashError if the limit is exceeded."""
        if not server.has_reported:
            raise EnvCrashError(
                f"{server.name} reset, env step {int(server.env_steps.max())}: {_head(error)}, expected a "
                "sub-environment that can be created and reset in another process; what it wrote last is above"
            ) from error
        if over:
            where = f"{server.name} step, env step {int(server.env_steps.max())}"
            steps = max(int(server.env_steps[i - server.first]) - server.start_of(i) for i in over)
            self._log.note(server.first, f"{where}: {_head(error)}", error, steps)
            return
        server.failed += 1
        if server.failed >= len(PAUSES):
            raise self._log.replacement_error(server.first, error)


def _head(error: Exception) -> str:
    """Return the reason of a loss, without the stderr."""
    return " ".join(str(error).partition(", expected ")[0].split())
