"""`RemoteEnvs`: sub-environments in other processes, as one `BaseEnv` that is polled as they finish.

`menv.workers.convert` creates it. It sends requests to the `EnvServer` of each through an engine, combines their
updates, and replaces a lost server at the cost of its episode. The local adapters in the servers handle rows, rewards
and seeds. Server i of n numbers its slots i, i + n, i + 2n and so on, so that no number changes on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.local_envs import TOLERATED, CrashLog
from menv.adapters.poll_events import PollEvents
from menv.adapters.validation import (
    by_sub_environment,
    check_answers,
    possible_agents,
    stray_answers,
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
from menv.workers.env_server import EnvServer, ServerUpdate
from menv.workers.remote_env_server import RemoteEnvServer, append_events

_NO_INFO: Mapping[str, Any] = {}


class RemoteEnvs(Adapter):
    """Sub-environments in processes of an engine; `on_created` receives `RemoteEnv` handles.

    Lost servers are replaced with fresh seeds, a few times. No exception of a running server is kept, since a traceback
    keeps the variables of its callers alive.
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
        tolerated: int | None = TOLERATED,
        seed: int | None = None,
        first_index: int = 0,
    ) -> None:
        """Start the servers, without waiting for them.

        `make_env` is pickled. `engine` is stopped with this object. `like` is an environment of the same kind that only
        provides spaces and agents. `batch_wait_ms` is how long a poll waits for more servers once one has answered, and
        `tolerated` the number of crashes in a row that do not end the run; None never re-creates a sub-environment.
        `first_index` is the index of sub-environment 0 of all workers.
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
        self._tolerated = tolerated
        self.seed, self.first_index = seed, first_index
        self._handles = [RemoteEnv(self, index) for index in range(num_envs)]
        self._started = self._stopped = False
        self._agents: set[AgentId] = set()
        # The servers with rows in the last poll and their slots, all these slots, and whether none was answered.
        self._parts: list[tuple[RemoteEnvServer, IntArray]] = []
        self._slots: IntArray = np.zeros(0, np.int64)
        self._unanswered = False
        self._crashes = CrashLog(tolerated=tolerated, creator=True)
        self._servers = [RemoteEnvServer(index) for index in range(num_envs)]
        for server in self._servers:
            self._start_process(server)

    def poll(self, timeout: float | None = None) -> Ready:
        """Return the rows of servers that have answered; the first poll waits for all."""
        self._check_running("poll")
        if self.paused:
            # The servers that paused reset their sub-environments; wait for these rows.
            paused = [server for server in self._servers if server.paused]
            for server in paused:
                server.ask(EnvServer.poll, self.pauses_at_ends)
            for server in paused:
                self._settle(server)
        elif self._started:
            self._gather(timeout)
        else:
            self.start_from(self.env_steps)
        self.paused = self.pauses_at_ends and any(server.paused for server in self._servers)
        return self._deliver()

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self._check_running("send_actions")
        if actions is not None and len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        if actions is None or slots is not self._slots or not self._unanswered:
            self._answer_some(by_sub_environment(slots, actions, self.seats))
            return
        self._unanswered = False
        start = 0
        for server, own in self._parts:
            stop = start + len(own)
            server.act(actions[start:stop], self.pauses_at_ends)
            start = stop

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[MultiEnvDict, MultiEnvDict]:
        self._check_running("try_reset")
        indices = self.indices(env_id)
        if not self._started:
            self.start_from(self.env_steps)
        obs: MultiEnvDict = {}
        infos: MultiEnvDict = {}
        for index in indices:
            obs[index], infos[index] = self._reset(index, seed, options)
        return obs, infos

    def try_restart(self, env_id: EnvId | None = None) -> None:
        self._check_running("try_restart")
        for index in self.indices(env_id):
            server = self._ready_for_reset(index)
            server.ask(EnvServer.restart, self._started)
            # A process that ends meanwhile is replaced anyway.
            with suppress(WorkerLostError):
                self._wait_for(server)
            self._tell_created(index)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return handles of the sub-environments, as a list or by index."""
        return dict(enumerate(self._handles)) if as_dict else list(self._handles)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the environment lists and those seen so far."""
        return {*(self.possible_agents or ()), *self._agents}

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
        return {server.index: dict(server.held) for server in self._servers if server.held}

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
        return self._servers[index].start

    def start_from(self, env_steps: IntArray) -> None:
        """Begin new episodes in all servers at the same time; see `Adapter.start_from`."""
        if self._started:
            # Earlier requests are answered first.
            for server in self._servers:
                self._settle(server)
        self._started, self.paused, self._unanswered = True, False, False
        self.env_steps[:] = env_steps
        for server in self._servers:
            server.begin_at(int(env_steps[server.index]))
        for server in self._servers:
            self._settle(server)

    def _deliver(self) -> Ready:
        """Return the rows and events of all servers, in the order of the sub-environments.

        While the same agents wait, `slots` stays the same array.
        """
        events = PollEvents()
        rows: list[ServerUpdate] = []
        parts: list[tuple[RemoteEnvServer, IntArray]] = []
        for server in self._servers:
            if server.undelivered:
                found = server.deliver()
                self.env_steps[server.index] = found.env_steps
                append_events(events, found.events)
                if len(found.slots):
                    rows.append(found)
                    parts.append((server, found.slots))
        for join in events.joined:
            while join.slot >= len(self.seats):
                self.seats.append((0, ""))
            self.seats[join.slot] = (join.env_id, join.agent_id)
            self._agents.add(join.agent_id)
        if len(parts) != len(self._parts) or any(
            new is not old for (_, new), (_, old) in zip(parts, self._parts, strict=True)
        ):
            self._slots = np.concatenate([np.zeros(0, np.int64), *(own for _, own in parts)])
        self._parts, self._unanswered = parts, True
        infos: list[Mapping[str, Any]] = [_NO_INFO] * len(self._slots)
        if any(one.infos is not None for one in rows):
            infos = list(chain.from_iterable([one.infos or [_NO_INFO] * len(one.obs) for one in rows]))
        return Ready(
            self._slots, list(chain.from_iterable([one.obs for one in rows])),
            np.concatenate([one.rewards for one in rows]) if rows else np.zeros(0), self.env_steps, events.joined,
            events.ended, events.episodes, events.unclaimed, infos, {}, self.seats, (), events.faults,
            events.shared_infos,
        )  # fmt: skip

    def _answer_some(self, answers: Mapping[EnvId, Mapping[AgentId, Any]]) -> None:
        """Send the actions of some sub-environments, whose servers check them, and let these step."""
        self._unanswered = False
        by_index = {self.index_of(env_id): by_agent for env_id, by_agent in answers.items() if by_agent}
        waiting = [server.index for server in self._servers if server.agents or server.is_stale]
        if stray := sorted(by_index.keys() - {*waiting}):
            raise stray_answers(stray, waiting)
        for index, by_agent in by_index.items():
            agents = self._servers[index].agents
            if agents:
                check_answers(index, agents, by_agent)
        for index, by_agent in by_index.items():
            server = self._servers[index]
            server.act([by_agent[agent] for agent in server.agents], self.pauses_at_ends)

    def _request(self, method: Callable[[EnvServer, *Ts], T], env_id: EnvId, *args: *Ts) -> T:
        self._check_running(method.__name__)
        server = self._servers[self.index_of(env_id)]
        self._settle(server)
        server.ask(method, *args)
        answer: T = self._wait_for(server)
        return answer

    def _reset(self, index: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Reset a sub-environment, in another process if its own is lost; return `(obs, infos)` by agent."""
        while True:
            server = self._ready_for_reset(index)
            server.ask(EnvServer.reset, seed, options)
            try:
                obs, infos, update = self._wait_for(server)
            except WorkerLostError:
                continue
            if update is not None:
                self._take(server, update, shown=True)
            return obs, infos

    def _ready_for_reset(self, index: int) -> RemoteEnvServer:
        """Return the server of a sub-environment whose rows will not be answered."""
        server = self._servers[index]
        self._settle(server)
        self._unanswered = False
        return server

    def _tell_created(self, index: int) -> None:
        if self.on_created is not None:
            self.on_created(index, self._handles[index])

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
        while not any(server.undelivered for server in self._servers):
            left = None if until is None else until - time.monotonic()
            if (left is not None and left <= 0) or not self._take_answers(left):
                break
        together = time.monotonic() + self._batch_wait_ms / 1000
        until = together if until is None else min(until, together)
        while (left := until - time.monotonic()) > 0 and self._take_answers(left):
            pass

    def _take_answers(self, timeout: float | None) -> bool:
        """Receive available answers, and wait for the first one; return whether any was due."""
        busy = [server for server in self._servers if server.asked]
        ready = self._engine.wait([server.actor for server in busy], timeout) if busy else []
        for server in busy:
            # A callback for another server may have called a method of this one and received the answers.
            if server.asked and server.actor in ready:
                self._take_answer(server)
        return bool(busy)

    def _settle(self, server: RemoteEnvServer) -> None:
        """Receive all answers of a server."""
        self._revive(server)
        while server.asked:
            self._take_answer(server)

    def _wait_for(self, server: RemoteEnvServer) -> Any:
        """Return the answer to a server's last request; WorkerLostError if the server was replaced meanwhile."""
        actor, value = server.actor, None
        while server.asked:
            value = self._take_answer(server)
            if server.actor is not actor:
                raise WorkerLostError(server.lost_by[1])
        return value

    def _take_answer(self, server: RemoteEnvServer) -> Any:
        try:
            answer = server.actor.answer()
        except WorkerLostError as error:
            self._lost(server, error, counts=not server.actor.was_interrupted)
            return None
        except Exception as error:
            server.asked -= 1
            if not server.begins:
                raise
            if not server.has_reported or isinstance(error, ContractError | ConfigError):
                server.end()
                raise
            # The replacement of a lost one could not begin.
            self._lost(server, error)
            return None
        server.asked -= 1
        if isinstance(answer, ServerUpdate):
            self._take(server, answer)
        return answer

    def _take(self, server: RemoteEnvServer, update: ServerUpdate, *, shown: bool = False) -> None:
        """Apply an update."""
        server.take(update, shown=shown)
        if update.events is not None:
            if not all(episode.faulty for episode in update.events.episodes):
                self._crashes.finished(server.index)
            for fault in update.events.faults:
                self._tell_created(fault.env_index)

    def _lost(self, server: RemoteEnvServer, error: Exception, *, counts: bool = True) -> None:
        """Replace the process of a lost server; an interruption of this process is not its fault, and not counted.

        Raises EnvCrashError if the server must not be replaced again.
        """
        self._check_not_stopped()
        server.lost_by, plays = (type(error).__name__, str(error)), server.plays
        try:
            if counts:
                self._count_loss(server, error, plays)
        except EnvCrashError:
            # If the run continues or is saved, it begins in another process.
            server.end()
            raise
        finally:
            if plays:
                server.lose()
        self._restart(server)

    def _revive(self, server: RemoteEnvServer) -> None:
        """Start a process for a server that was given up or is out of step, when the run continues after the error."""
        if server.ended:
            self._restart(server)
        elif server.is_out_of_step:
            what = "abandoned, because this process was interrupted in the middle of a request"
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
                EnvServer, self._make_env, server.index, self.num_envs, self.seed, self.first_index, self._tolerated,
                self._env_timeout,
                label=f"process of env {server.index}",
            )
        )  # fmt: skip

    def _restart(self, server: RemoteEnvServer) -> None:
        """Start a process and begin its episodes, unless `stop` was called in another thread."""
        self._check_not_stopped()
        with suppress(Exception):
            server.actor.kill()
        self._start_process(server)
        server.begin(int(server.has_reported))
        self._check_not_stopped()
        self._tell_created(server.index)

    def _count_loss(self, server: RemoteEnvServer, error: Exception, plays: bool) -> None:
        """Count a loss; raise EnvCrashError if the limit is exceeded."""
        steps, head = server.env_steps, " ".join(first_clause(error).split())
        if not server.has_reported:
            crash = EnvCrashError(
                f"env {server.index} reset, env step {steps}: {head}, expected a "
                "sub-environment that can be created and reset in another process; what it wrote last is above"
            )
            crash._fault = server.fault("reset")
            raise crash from error
        # Where no episode runs, a replacement failed.
        where = f"env {server.index} {'step' if plays else 'reset'}, env step {steps}"
        taken = server.episode_steps if plays else 0
        self._crashes.note(server.index, f"{where}: {head}", error, taken, server.fault())


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
            raise AttributeError(
                f"RemoteEnv: no attribute {name!r}, expected call or index, because the environment is in another "
                f"process; write call({name!r}, ...) for a method of it, and let a method return what else you read",
                name=name,
                obj=self,
            )
