"""`RemoteEnvs`: sub-environments in other processes, as one `BaseEnv` that is polled as they finish.

`menv.workers.convert` creates it. It sends requests to `EnvServer`s through an engine, combines their updates, and
replaces a lost server at the cost of its episodes. The local adapters in the servers handle rows, rewards and seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.local_envs import TOLERATED, CrashLog
from menv.adapters.validation import (
    by_sub_environment,
    check_answers,
    nested_answers,
    possible_agents,
    wrong_count,
)
from menv.base_env import SINGLE_AGENT, AgentId, EnvId, IntArray, MultiEnvDict, Ready
from menv.errors import (
    CallOrderError,
    ConfigError,
    ContractError,
    EnvCrashError,
    WorkerLostError,
    first_clause,
)
from menv.registry import env_kind
from menv.workers.engine import Engine, T, Ts
from menv.workers.env_server import EnvServer, ServerUpdate, pack_stack
from menv.workers.process_engine import in_a_line
from menv.workers.remote_env_server import (
    CombinedPoll,
    LossReason,
    RemoteEnvServer,
    RemoteLayout,
    combined_ready,
)
from menv.workers.watchdog import RunningClock, creation_limit

_LONGEST = 360


class RemoteEnvs(Adapter):
    """Sub-environments in processes of an engine; `on_created` receives `RemoteEnv` handles.

    Lost servers are replaced with fresh seeds, a few times. Lost episodes whose rows the sampler still holds are
    reported when these are answered. No exception of a running server is kept, since a traceback keeps the variables of
    its callers alive.
    """

    can_restart = events_have_order = True

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_envs: int,
        engine: Engine,
        *,
        like: Any,
        batch_wait_ms: float = 0,
        env_timeout: float | None = None,
        per_process: int = 1,
        tolerated: int | None = TOLERATED,
        seed: int | None = None,
        first_index: int = 0,
    ) -> None:
        """Start the servers, without waiting for them.

        `make_env` is pickled. `engine` is stopped with this object. `like` is an environment of the same kind that only
        provides spaces and agents. `batch_wait_ms` is how long a poll waits for more servers once one has answered,
        `per_process` the number of sub-environments in a process, and `tolerated` the number of crashes in a row that
        do not end the run; None never re-creates a sub-environment. `first_index` is the index of sub-environment 0 of
        all workers.
        """
        self.observation_space = getattr(like, "observation_space", None)
        self.action_space = getattr(like, "action_space", None)
        self.num_envs = num_envs
        self.env_steps = np.zeros(num_envs, np.int64)
        self.seats: list[tuple[EnvId, AgentId]] = []
        self.on_created: Callable[[int, Any], None] | None = None
        self.possible_agents = (
            possible_agents(like) if env_kind(like) == "multi_agent" else frozenset((SINGLE_AGENT,))
        )
        self._make_env, self._engine = make_env, engine
        self._batch_wait_ms, self._env_timeout = batch_wait_ms, env_timeout
        self._per_process, self._tolerated = per_process, tolerated
        self.seed, self.first_index = seed, first_index
        self._handles = [RemoteEnv(self, index) for index in range(num_envs)]
        self._started = self._stopped = False
        self._delivered = CombinedPoll((), ())
        # Slots of rows that were delivered and not answered, by sub-environment.
        self._waiting: dict[int, IntArray] = {}
        # Type and message of the last loss, by the server's first sub-environment.
        self._last_loss: dict[int, tuple[str, str]] = {}
        self._crashes = CrashLog(tolerated=tolerated, creator=True)
        self._clock = RunningClock(env_timeout)
        self._servers = [
            RemoteEnvServer(first, min(per_process, num_envs - first), self.seats, self._clock)
            for first in range(0, num_envs, per_process)
        ]
        for server in self._servers:
            self._start_process(server)

    def poll(self, timeout: float | None = None) -> Ready:
        """Return the rows of servers that have answered; the first poll waits for all."""
        self._check_running("poll")
        if self.paused:
            self._resume_polls()
        elif self._started:
            self._gather(timeout)
        else:
            self._start()
        self.paused = self.pauses_at_ends and any(server.paused for server in self._servers)
        ready, self._delivered = combined_ready(self._servers, self.env_steps, self._delivered, self.seats)
        for _, layout in self._delivered.parts:
            self._waiting.update(layout.by_env)
        return ready

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self._check_running("send_actions")
        if actions is None:
            self._answer_nested(nested_answers(slots))
            return
        if len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        delivered = self._delivered
        if slots is delivered.slots and delivered.is_unanswered(self._waiting):
            start = 0
            for server, layout in delivered.parts:
                stop = start + len(layout.slots)
                self._answer(server, layout, actions[start:stop])
                start = stop
            return
        by_env = by_sub_environment(slots, actions, self.seats)
        actions_by_env = {self.index_of(env_id): answers for env_id, answers in by_env.items()}
        self._answer_some(actions_by_env, self._waiting)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[MultiEnvDict, MultiEnvDict]:
        self._check_running("try_reset")
        indices = self.indices(env_id)
        self._start()
        obs: MultiEnvDict = {}
        infos: MultiEnvDict = {}
        for index in indices:
            obs[index], infos[index] = self._reset(index, seed, options)
        return obs, infos

    def try_restart(self, env_id: EnvId | None = None) -> None:
        self._check_running("try_restart")
        for index in self.indices(env_id):
            server = self._server_of(index)
            self._drop_lost_episode(server, index)
            self._settle(server)
            server.ask("update" if self._started else "value", EnvServer.restart, index - server.first)
            # A process that ends meanwhile is replaced anyway.
            with suppress(WorkerLostError):
                self._wait_for(server)
            self._tell_created(index)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return handles of the sub-environments, as a list or by index."""
        return dict(enumerate(self._handles)) if as_dict else list(self._handles)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the environment lists and those seen so far."""
        return {*(self.possible_agents or ()), *(agent for _, agent in self.seats)}

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        """Call a method of one sub-environment in its process; arguments and result are pickled.

        Raises WorkerLostError if the process ended meanwhile; it has been replaced.
        """
        return self._request(EnvServer.call, env_id, method, args)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render one sub-environment, the first by default."""
        return self._request(EnvServer.render, env_id or 0)

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that wait for their agent's next row, as of the last updates."""
        return {index: dict(rewards) for server in self._servers for index, rewards in server.held.items()}

    def stop(self) -> None:
        """Close every sub-environment and end the processes."""
        if not self._stopped:
            self._stopped = True
            self._engine.stop()

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the servers; None for one that has not answered yet."""
        return [server.actor.pid for server in self._servers]

    @property
    def replayable(self) -> RemoteEnvs | None:
        return self

    def episode_start(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""
        return self._server_of(index).start_of(index)

    def start_from(self, env_steps: IntArray) -> None:
        """Begin new episodes in all servers at the same time; see `Adapter.start_from`."""
        self._started, self.paused = True, False
        for server in self._servers:
            # Earlier requests are answered first.
            server.ignore_answers()
            self._settle(server)
        self._waiting.clear()
        self._delivered = CombinedPoll((), ())
        self.env_steps[:] = env_steps
        self.seats.clear()
        for server in self._servers:
            server.start_from(env_steps)
        for server in self._servers:
            self._settle(server)

    def _resume_polls(self) -> None:
        """Let the servers that paused reset their sub-environments, and wait for these rows."""
        paused = [server for server in self._servers if server.paused]
        for server in paused:
            server.ask("update", EnvServer.resume_poll)
        for server in paused:
            self._settle(server)

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        for server in self._servers:
            server.begin(server.indices, 0)
        for server in self._servers:
            self._settle(server)

    def _answer(self, server: RemoteEnvServer, layout: RemoteLayout, actions: object) -> None:
        last = layout is server.layout and not server.asked
        own = None if last else layout.own
        server.ask("update", EnvServer.step, own, pack_stack(actions), self.pauses_at_ends)
        for index in layout.by_env:
            del self._waiting[index]

    def _answer_nested(self, answers: Mapping[EnvId, Mapping[AgentId, Any]]) -> None:
        undelivered = {
            index: slots for server in self._servers for index, slots in server.undelivered.shown().items()
        }
        actions_by_env = {self.index_of(env_id): dict(by_agent) for env_id, by_agent in answers.items()}
        self._answer_some(actions_by_env, {**self._waiting, **undelivered})

    def _answer_some(
        self, by_env: Mapping[int, Mapping[AgentId, Any]], waiting: Mapping[int, IntArray]
    ) -> None:
        rows: dict[int, list[int]] = {}
        for index, answers in by_env.items():
            slots = waiting[index].tolist() if index in waiting else []
            agents = [self.seats[slot][1] for slot in slots]
            if set(answers) != set(agents):
                check_answers(index, agents, answers)
            if answers:
                rows[index] = slots
        for server in self._servers:
            indices_here = [index for index in rows if server.first <= index < server.first + server.size]
            lost = [index for index in indices_here if index in server.held_back]
            if lost:
                # The loss of these episodes was held back.
                self._report_lost(server, lost)
            slots = [slot for index in indices_here if index not in lost for slot in rows[index]]
            if slots:
                server.undelivered.drop(set(slots))
                actions = [by_env[self._env_of(slot)][self.seats[slot][1]] for slot in slots]
                own = server.own_slots(slots)
                server.ask("update", EnvServer.step, own, pack_stack(actions), self.pauses_at_ends)
            for index in indices_here:
                self._waiting.pop(index, None)

    def _request(self, method: Callable[[EnvServer, int, *Ts], T], env_id: EnvId, *args: *Ts) -> T:
        self._check_running(method.__name__)
        index = self.index_of(env_id)
        server = self._server_of(index)
        self._settle(server)
        server.ask("value", method, index - server.first, *args)
        answer: T = self._wait_for(server)
        return answer

    def _reset(self, index: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Reset a sub-environment, in another process if its own is lost; return `(obs, infos)` by agent."""
        server = self._server_of(index)
        while True:
            self._drop_lost_episode(server, index)
            self._settle(server)
            server.ask("value", EnvServer.reset, index - server.first, seed, options)
            try:
                obs, infos, update = self._wait_for(server)
            except WorkerLostError:
                continue
            self._take(server, update)
            return obs, infos

    def _drop_lost_episode(self, server: RemoteEnvServer, index: int) -> None:
        """End a lost episode that was held back; its rows will not be answered."""
        if index in server.held_back:
            self._waiting.pop(index, None)
            self._report_lost(server, [index], withdrawn=False)

    def _server_of(self, index: int) -> RemoteEnvServer:
        return self._servers[index // self._per_process]

    def _tell_created(self, index: int) -> None:
        if self.on_created is not None:
            self.on_created(index, self._handles[index])

    def _env_of(self, slot: int) -> int:
        return self.index_of(self.seats[slot][0])

    def _check_running(self, what: str) -> None:
        if self._stopped:
            raise CallOrderError(
                f"{what}: these environments were stopped, expected running ones; make new ones"
            )

    def _gather(self, timeout: float | None) -> None:
        """Wait until there is something to deliver, then for more as long as the settings say."""
        until = None if timeout is None else time.monotonic() + timeout
        for server in self._servers:
            self._revive(server)
        self._take_answers(0.0)
        while not self._has_undelivered() and self._busy() and (until is None or time.monotonic() < until):
            self._take_answers(None if until is None else max(0.0, until - time.monotonic()))
        together = time.monotonic() + self._batch_wait_ms / 1000
        until = together if until is None else min(until, together)
        while self._busy() and time.monotonic() < until:
            self._take_answers(until - time.monotonic())

    def _busy(self) -> list[RemoteEnvServer]:
        return [server for server in self._servers if server.asked]

    def _has_undelivered(self) -> bool:
        return any(not server.undelivered.empty for server in self._servers)

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

    def _settle(self, server: RemoteEnvServer) -> None:
        """Receive all answers of a server."""
        self._revive(server)
        while server.asked:
            self._receive_next(server)

    def _wait_for(self, server: RemoteEnvServer) -> Any:
        """Return the answer to a server's last request; WorkerLostError if the server was replaced meanwhile."""
        actor, value = server.actor, None
        while server.asked:
            value = self._receive_next(server)
            if server.actor is not actor:
                raise WorkerLostError(self._last_loss[server.first][1])
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
            self._take(server, answer)
        return answer

    def _take(self, server: RemoteEnvServer, update: ServerUpdate) -> None:
        """Apply an update."""
        server.take(update)
        if update.events is None:
            return
        for episode in update.events.episodes:
            # After a manual reset, its rows may be unanswered.
            self._waiting.pop(episode.env_index, None)
            if not episode.faulty:
                self._crashes.finished(server.first)
        for fault in update.events.faults:
            self._tell_created(fault.env_index)

    def _lost(self, server: RemoteEnvServer, error: WorkerLostError, *, counts: bool = True) -> None:
        """Replace a lost server; an interruption of this process is not its fault."""
        self._check_not_stopped()
        created = self._replace(server, error, counts=counts)
        self._check_not_stopped()
        for index in created:
            self._tell_created(index)

    def _revive(self, server: RemoteEnvServer) -> None:
        """Start a process for a server that was given up or is out of step, when the run continues after the error."""
        if server.ended:
            self._check_not_stopped()
            for index in self._restart(server):
                self._tell_created(index)
        elif server.is_out_of_step:
            what = "let go of, because this process was interrupted in the midst of a question"
            self._lost(server, WorkerLostError(f"{server.actor.label}: {what}"), counts=False)

    def _check_not_stopped(self) -> None:
        if self._stopped:
            # A process may have been started since.
            self._engine.stop()
            raise CallOrderError(
                "poll: these environments were stopped meanwhile, expected running ones; make new ones"
            )

    def _start_process(self, server: RemoteEnvServer) -> None:
        server.attach(
            self._engine.start(
                EnvServer, self._make_env, server.first, server.size, self.seed, self.first_index, self._tolerated,
                label=f"process of {server.name}",
            )
        )  # fmt: skip

    def _replace(self, server: RemoteEnvServer, error: Exception, *, counts: bool = True) -> Collection[int]:
        """Replace the process of a lost server; return the sub-environments that are re-created.

        Raises EnvCrashError if the server must not be replaced again; `counts` says whether the loss counts for that.
        """
        self._last_loss[server.first] = type(error).__name__, str(error)
        over = self._running_episodes(server) if server.has_reported else []
        try:
            if counts:
                self._count_loss(server, error, over)
        except EnvCrashError:
            # If the run continues or is saved, it begins in another process.
            server.end()
            raise
        finally:
            for index in [index for index in over if index in self._waiting]:
                server.hold_back(index)
                over.remove(index)
            server.end_episodes(over, self._reason(server))
        return self._restart(server)

    def _restart(self, server: RemoteEnvServer) -> Collection[int]:
        """Start a process and begin its episodes, except the unreported lost ones; return the re-created indices."""
        with suppress(Exception):
            server.actor.kill()
        self._start_process(server)
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

    def _report_lost(
        self, server: RemoteEnvServer, indices: Collection[int], *, withdrawn: bool = True
    ) -> None:
        """Report lost episodes as ended, and begin the next ones."""
        server.end_episodes(indices, self._reason(server), withdrawn=withdrawn)
        server.begin(indices, 1)

    def _time_left(self, servers: Sequence[RemoteEnvServer], timeout: float | None) -> float | None:
        """Return how long to wait before looking whether a server is overdue, at most `timeout`."""
        limits_left = [
            server.since + limit for server in servers if (limit := self._limit(server)) is not None
        ]
        if not limits_left:
            return timeout
        until = min(max(0.0, min(limits_left) - self._clock.now()), self._clock.longest)
        return until if timeout is None else min(until, timeout)

    def _overdue(self, server: RemoteEnvServer) -> bool:
        """Return whether a server has exceeded its time limit."""
        limit = self._limit(server)
        return limit is not None and self._clock.now() - server.since >= limit

    def _give_up(self, server: RemoteEnvServer) -> WorkerLostError:
        """Kill the process of a hanging server, and return the error for it."""
        limit, pid = self._limit(server), server.actor.pid
        server.actor.kill()
        what = (
            f"not created within {limit:g} s; fix what it waits for, or raise env_timeout"
            if server.asked[0][0] == "created"
            else f"no answer for {limit:g} s, expected one within env_timeout={self._env_timeout:g}; "
            "it was ended"
        )
        error = WorkerLostError(f"{server.actor.label} (pid {pid}): {what}")
        try:
            server.actor.answer()
        except WorkerLostError as stderr_tail:
            error.__cause__ = stderr_tail
        return error

    def _limit(self, server: RemoteEnvServer) -> float | None:
        each = self._env_timeout
        if each is None:
            return None
        return creation_limit(each) if server.asked[0][0] == "created" else each * server.size

    def _running_episodes(self, server: RemoteEnvServer) -> list[int]:
        return [
            index
            for index in server.indices
            if index not in server.beginning and index not in server.held_back
        ]

    def _reason(self, server: RemoteEnvServer) -> LossReason:
        kind, message = self._last_loss[server.first]
        return LossReason(f"{kind}: {in_a_line(message)[:_LONGEST].rstrip()}", kind, message)

    def _count_loss(self, server: RemoteEnvServer, error: Exception, over: Sequence[int]) -> None:
        """Count a loss of the episodes `over`; raise EnvCrashError if the limit is exceeded."""
        if not server.has_reported:
            crash = EnvCrashError(
                f"{server.name} reset, env step {int(server.env_steps.max())}: {_head(error)}, expected a "
                "sub-environment that can be created and reset in another process; what it wrote last is above"
            )
            crash._fault = server.fault(server.first, self._reason(server), "reset")
            raise crash from error
        # Without episodes a replacement failed.
        where = f"{server.name} {'step' if over else 'reset'}, env step {int(server.env_steps.max())}"
        steps = max((int(server.env_steps[i - server.first]) - server.start_of(i) for i in over), default=0)
        fault = server.fault(over[0] if over else server.first, self._reason(server))
        self._crashes.note(server.first, f"{where}: {_head(error)}", error, steps, fault)


def _head(error: Exception) -> str:
    """Return the reason of a loss, without the stderr."""
    return " ".join(first_clause(error).split())


class RemoteEnv:
    """A handle of the sub-environment number `index` in another process."""

    def __init__(self, base_env: RemoteEnvs, index: int) -> None:
        self._base_env = base_env
        self.index = index

    def call(self, method: str, *args: Any) -> Any:
        """Call one of its methods and return the result; see `RemoteEnvs.call`."""
        return self._base_env.call(self.index, method, *args)

    def __repr__(self) -> str:
        return f"RemoteEnv({self.index})"

    if not TYPE_CHECKING:  # type checkers should report unknown attributes

        def __getattr__(self, name: str) -> Any:
            """Say how the methods of the environment are called.

            Raises:
                AttributeError: Always; what this object has does not come here.
            """
            raise AttributeError(
                f"RemoteEnv: no attribute {name!r}, expected call or index, because the environment lives elsewhere; "
                f"write call({name!r}, ...) for a method of it, and let a method return what else you read",
                name=name,
                obj=self,
            )
