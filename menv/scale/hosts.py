"""The hosts of a `RemoteEnvs`: asking them, waiting for them, taking in what they tell, replacing those that are lost.

`menv.scale.remote_envs` decides what is asked. It knows neither rows nor actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from menv.base_env import AgentId, EnvId, IntArray
from menv.errors import CallOrderError, WorkerLostError
from menv.scale.engine import Engine
from menv.scale.far_host import FarHost
from menv.scale.news import News
from menv.scale.remote_settings import RemoteSettings
from menv.scale.successors import Successors


class Hosts:
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
        self.successors = Successors(engine, make_env, settings)
        self._engine = engine
        self._settings = settings
        self._created = created
        self._stopped = False
        size = settings.per_process
        self._all = [
            FarHost(first, min(size, num_envs - first), self.seats) for first in range(0, num_envs, size)
        ]
        for host in self._all:
            self.successors.start(host)

    def __iter__(self) -> Iterator[FarHost]:
        return iter(self._all)

    def of(self, index: int) -> FarHost:
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

    def _busy(self) -> list[FarHost]:
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

    def settle(self, host: FarHost) -> None:
        """Take all that a host has to answer."""
        self._revive(host)
        while host.asked:
            self._wait_once(host)

    def wait_for(self, host: FarHost) -> Any:
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

    def _wait_once(self, host: FarHost) -> Any:
        while True:
            if self._engine.wait([host.peer], self.successors.patience([host], None)):
                return self._take_answer(host)
            if self.successors.overdue(host):
                self._lost(host, self.successors.give_up(host))
                return None

    def _take_answer(self, host: FarHost) -> Any:
        try:
            answer = host.peer.answer()
        except WorkerLostError as error:
            self._lost(host, error, blamed=not host.peer.broken_off)
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

    def take(self, host: FarHost, news: News) -> None:
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

    def _lost(self, host: FarHost, error: WorkerLostError, *, blamed: bool = True) -> None:
        """Replace a host that is lost; it is not blamed where this process was interrupted."""
        self._check_running()
        created = self.successors.replace(host, error, self.waiting, blamed=blamed)
        self._check_running()
        for index in created:
            self._created(index)

    def _revive(self, host: FarHost) -> None:
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
