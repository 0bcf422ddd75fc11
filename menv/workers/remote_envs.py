"""`RemoteEnvs`: sub-environments in other processes, as one `BaseEnv` that is polled as they finish.

`menv.workers.convert` creates it. It sends requests to `EnvServer`s through an engine, combines their updates, and
replaces a lost server at the cost of its episodes. The local adapters in the servers handle rows, rewards and seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from menv import rng
from menv.adapters.adapter import Adapter
from menv.adapters.poll_events import EpisodeReplay
from menv.adapters.validation import (
    by_sub_environment,
    check_answers,
    nested_answers,
    possible_agents,
    wrong_count,
)
from menv.base_env import SINGLE_AGENT, AgentId, EnvId, IntArray, MultiEnvDict, Ready
from menv.errors import CallOrderError, WorkerLostError
from menv.multi_agent_env import MultiAgentEnv
from menv.workers.engine import Engine, T, Ts
from menv.workers.env_server import EnvServer, pack_stack
from menv.workers.env_server_group import EnvServerGroup, RemoteSettings
from menv.workers.remote_env_server import CombinedPoll, RemoteEnvServer, RemoteLayout, combined_ready


class RemoteEnvs(Adapter):
    """Sub-environments in processes of an engine; `on_created` receives `RemoteEnv` handles."""

    can_restart = events_have_order = True

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_envs: int,
        engine: Engine,
        *,
        like: Any,
        settings: RemoteSettings,
    ) -> None:
        """Start the servers, without waiting for them.

        `make_env` is pickled. `engine` is stopped with this object. `like` is an environment of the same kind that only
        provides spaces and agents.
        """
        self.observation_space = getattr(like, "observation_space", None)
        self.action_space = getattr(like, "action_space", None)
        self.num_envs = num_envs
        self._listed = (
            (possible_agents(like) or frozenset()) if isinstance(like, MultiAgentEnv) else {SINGLE_AGENT}
        )
        self._seed, self._first_index = settings.seed, settings.first_index
        self.on_created: Callable[[int, Any], None] | None = None
        self._handles = [RemoteEnv(self, index) for index in range(num_envs)]
        self.env_steps = np.zeros(num_envs, np.int64)
        self._started = self._stopped = False
        self._delivered = CombinedPoll((), ())
        self._servers = EnvServerGroup(make_env, num_envs, engine, settings, self._tell_created)
        self.seats = self._servers.seats

    def poll(self, timeout: float | None = None) -> Ready:
        """Return the rows of servers that have answered; the first poll waits for all."""
        self._check_running("poll")
        if self._started:
            self._servers.gather(timeout)
        else:
            self._start()
        ready, self._delivered = combined_ready(self._servers, self.env_steps, self._delivered, self.seats)
        for _, layout in self._delivered.parts:
            self._servers.waiting.update(layout.by_env)
        return ready

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self._check_running("send_actions")
        if actions is None:
            self._answer_nested(nested_answers(slots))
            return
        if len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        delivered = self._delivered
        if slots is delivered.slots and delivered.is_unanswered(self._servers.waiting):
            start = 0
            for server, layout in delivered.parts:
                stop = start + len(layout.slots)
                self._answer(server, layout, actions[start:stop])
                start = stop
            return
        by_env = by_sub_environment(slots, actions, self.seats)
        actions_by_env = {self.index_of(env_id): answers for env_id, answers in by_env.items()}
        self._answer_some(actions_by_env, self._servers.waiting)

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
            server = self._servers.of(index)
            self._drop_lost_episode(server, index)
            self._servers.settle(server)
            server.ask("update" if self._started else "value", EnvServer.restart, index - server.first)
            # A process that ends meanwhile is replaced anyway.
            with suppress(WorkerLostError):
                self._servers.wait_for(server)
            self._tell_created(index)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return handles of the sub-environments, as a list or by index."""
        return dict(enumerate(self._handles)) if as_dict else list(self._handles)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the environment lists and those seen so far."""
        return {*self._listed, *(agent for _, agent in self.seats)}

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
            self._servers.stop()

    @property
    def replayable(self) -> RemoteEnvs | None:
        return self

    @property
    def free_slots(self) -> list[int]:
        """Free slots, server by server."""
        for server in self._servers:
            self._servers.settle(server)
            server.ask("value", EnvServer.free_slots)
        return [slot for server in self._servers for slot in server.freed(self._servers.wait_for(server))]

    def episode_start(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""
        return self._servers.of(index).start_of(index)

    def episode_seed(self, index: int) -> int | None:
        """Return the seed of a sub-environment's last reset, None if it was reset without one."""
        if self._seed is None:
            return None
        return rng.reset_seed(self._seed, self._first_index + index, self.episode_start(index))

    def slots_of(self, index: int) -> dict[AgentId, int]:
        """Return the slot of each agent that a sub-environment knows."""
        return self._servers.of(index).global_slots(self._request(EnvServer.slots_of, index))

    def shown(self, index: int) -> str | None:
        """Return a digest of the pending rows of a sub-environment, None if a file cannot hold it."""
        return self._request(EnvServer.shown, index)

    def resume(self, env_steps: IntArray, recorded: Mapping[int, EpisodeReplay], seats: Any) -> set[int]:
        """Resume recorded episodes, in all servers at the same time; see `CreatedEnvs.resume`."""
        self._started = True
        for server in self._servers:
            # Earlier requests are answered first.
            server.ignore_answers()
            self._servers.settle(server)
        self._servers.waiting.clear()
        self._delivered = CombinedPoll((), ())
        self.env_steps[:] = env_steps
        taken, free = seats
        self.seats[:] = taken
        for server in self._servers:
            server.resume(env_steps, recorded, free)
        fresh = set()
        for server in self._servers:
            try:
                places, present, update = self._servers.wait_for(server)
            except WorkerLostError:
                # The episodes are lost again; begin new ones.
                self._servers.settle(server)
                server.resume(env_steps, {}, free)
                places, present, update = self._servers.wait_for(server)
            fresh |= {server.first + place for place in places}
            self._servers.waiting |= server.register_resumed(present)
            self._servers.take(server, update)
        return fresh

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        self._servers.begin()

    def _answer(self, server: RemoteEnvServer, layout: RemoteLayout, actions: Any) -> None:
        last = layout is server.layout and not server.asked
        server.ask("update", EnvServer.step, None if last else layout.own, pack_stack(actions))
        for index in layout.by_env:
            del self._servers.waiting[index]

    def _answer_nested(self, answers: Mapping[EnvId, Mapping[AgentId, Any]]) -> None:
        undelivered = {
            index: slots for server in self._servers for index, slots in server.undelivered.shown().items()
        }
        actions_by_env = {self.index_of(env_id): dict(by_agent) for env_id, by_agent in answers.items()}
        self._answer_some(actions_by_env, {**self._servers.waiting, **undelivered})

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
                self._servers.report_lost(server, lost)
            slots = [slot for index in indices_here if index not in lost for slot in rows[index]]
            if slots:
                server.undelivered.drop(set(slots))
                actions = [by_env[self._env_of(slot)][self.seats[slot][1]] for slot in slots]
                server.ask("update", EnvServer.step, server.own_slots(slots), pack_stack(actions))
            for index in indices_here:
                self._servers.waiting.pop(index, None)

    def _request(self, method: Callable[[EnvServer, int, *Ts], T], env_id: EnvId, *args: *Ts) -> T:
        self._check_running(method.__name__)
        index = self.index_of(env_id)
        server = self._servers.of(index)
        self._servers.settle(server)
        server.ask("value", method, index - server.first, *args)
        answer: T = self._servers.wait_for(server)
        return answer

    def _reset(self, index: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Reset a sub-environment, in another process if its own is lost; return `(obs, infos)` by agent."""
        server = self._servers.of(index)
        while True:
            self._drop_lost_episode(server, index)
            self._servers.settle(server)
            server.ask("value", EnvServer.reset, index - server.first, seed, options)
            try:
                obs, infos, update = self._servers.wait_for(server)
            except WorkerLostError:
                continue
            self._servers.take(server, update)
            return obs, infos

    def _drop_lost_episode(self, server: RemoteEnvServer, index: int) -> None:
        """End a lost episode that was held back; its rows will not be answered."""
        if index in server.held_back:
            self._servers.waiting.pop(index, None)
            self._servers.report_lost(server, [index], withdrawn=False)

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
