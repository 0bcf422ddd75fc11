"""Sub-environments that live in other processes, as one `BaseEnv`: polled as they finish.

`menv.workers.convert` makes it. It asks `EnvHost`s through an engine, merges what they tell, and gives a lost host
a successor, at the cost of its own episodes. Rows, rewards, lives, seeds and draws are those of the local adapters,
which live in the hosts. It knows no policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.adapters.local_envs import CreatedEnvs
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
from menv.workers.engine import Engine
from menv.workers.env_server import pack_stack
from menv.workers.env_server_group import EnvServerGroup, RemoteSettings
from menv.workers.remote_env_server import CombinedPoll, RemoteEnvServer, RemoteLayout, handed_out


class RemoteEnvs(CreatedEnvs):
    """Many sub-environments in processes of an engine; `on_created` is told handles."""

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_envs: int,
        engine: Engine,
        *,
        like: Any,
        settings: RemoteSettings,
    ) -> None:
        """Start the hosts, without waiting for them.

        Args:
            make_env: Creates sub-environment number `vector_index`, elsewhere; it is pickled.
            num_envs: How many there shall be.
            engine: Of its own; it is stopped with it.
            like: An environment of the same kind, asked for spaces and agents alone.
            settings: How they are hosted.
        """
        self.observation_space = getattr(like, "observation_space", None)
        self.action_space = getattr(like, "action_space", None)
        self.num_envs = num_envs
        self._listed = (
            (possible_agents(like) or frozenset()) if isinstance(like, MultiAgentEnv) else {SINGLE_AGENT}
        )
        self._seed, self._first_index = settings.seed, settings.first_index
        self._handles = [RemoteEnv(self, index) for index in range(num_envs)]
        self._env_steps = np.zeros(num_envs, np.int64)
        self._started = self._stopped = False
        self._delivered = CombinedPoll((), ())
        self._hosts = EnvServerGroup(make_env, num_envs, engine, settings, self._tell_created)

    def poll(self, timeout: float | None = None) -> Ready:
        """Return the rows of the hosts that have answered; see `BaseEnv.poll`.

        The first poll waits for all of them.

        Raises:
            EnvCrashError: A sub-environment could not be created or reset at first, or was lost too often.
        """
        self._check_running("poll")
        if self._started:
            self._hosts.gather(timeout)
        else:
            self._start()
        ready, self._delivered = handed_out(self._hosts, self._env_steps, self._delivered, self._hosts.seats)
        for _, layout in self._delivered.parts:
            self._hosts.waiting.update(layout.by_env)
        return ready

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer sub-environments, which step at once; see `BaseEnv.send_actions`."""
        self._check_running("send_actions")
        if actions is None:
            self._answer_nested(nested_answers(slots))
            return
        if len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        delivered = self._delivered
        if slots is delivered.slots and delivered.whole(self._hosts.waiting):
            start = 0
            for host, layout in delivered.parts:
                stop = start + len(layout.slots)
                self._answer(host, layout, actions[start:stop])
                start = stop
            return
        by_env = by_sub_environment(slots, actions, self._hosts.seats)
        told = {self._index(env_id): answers for env_id, answers in by_env.items()}
        self._answer_some(told, self._hosts.waiting)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[MultiEnvDict, MultiEnvDict]:
        """Reset one sub-environment or all; see `BaseEnv.try_reset`."""
        self._check_running("try_reset")
        indices = self._indices(env_id)
        self._start()
        obs: MultiEnvDict = {}
        infos: MultiEnvDict = {}
        for index in indices:
            obs[index], infos[index] = self._reset(index, seed, options)
        return obs, infos

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Create one sub-environment or all anew; see `BaseEnv.try_restart`."""
        self._check_running("try_restart")
        for index in self._indices(env_id):
            host = self._hosts.of(index)
            self._let_go(host, index)
            self._hosts.settle(host)
            host.ask("news" if self._started else "value", "restart", index - host.first)
            # One that ends meanwhile is made anew just the same.
            with suppress(WorkerLostError):
                self._hosts.wait_for(host)
            self._tell_created(index)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return handles of the sub-environments, as a list or by index."""
        return dict(enumerate(self._handles)) if as_dict else list(self._handles)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the environment lists and those seen so far."""
        return {*self._listed, *(agent for _, agent in self._hosts.seats)}

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        """Call a method of one sub-environment, where it lives; see `BaseEnv.call`.

        Arguments and what it returns are pickled.

        Raises:
            WorkerLostError: The process ended meanwhile; it has been given a successor.
        """
        return self._asked("call", env_id, method, args)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render one sub-environment, the first by default."""
        return self._asked("render", env_id or 0)

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that wait for their agent's next row, as the hosts told last."""
        return {index: dict(paid) for host in self._hosts for index, paid in host.held.items()}

    def stop(self) -> None:
        """Close every sub-environment and end the processes."""
        if not self._stopped:
            self._stopped = True
            self._hosts.stop()

    @property
    def env_steps(self) -> IntArray:
        """[E] env steps of each sub-environment since its start, as of the last poll."""
        return self._env_steps

    @property
    def seats(self) -> list[tuple[EnvId, AgentId]]:
        """The seats by slot."""
        return self._hosts.seats

    @property
    def free_slots(self) -> list[int]:
        """Slots that nobody has, host by host."""
        for host in self._hosts:
            self._hosts.settle(host)
            host.ask("value", "free_slots")
        return [slot for host in self._hosts for slot in host.freed(self._hosts.wait_for(host))]

    def episode_start(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""
        return self._hosts.of(index).start_of(index)

    def slots_of(self, index: int) -> dict[AgentId, int]:
        """Return the slot of each agent that a sub-environment knows."""
        return self._hosts.of(index).global_slots(self._asked("slots_of", index))

    def shown(self, index: int) -> str | None:
        """Return a digest of what waits in a sub-environment, None where no file could hold that."""
        digest: str | None = self._asked("shown", index)
        return digest

    def resume(self, env_steps: IntArray, recorded: Mapping[int, EpisodeReplay], seats: Any) -> set[int]:
        """Go on where another run was written down; see `CreatedEnvs.resume`. The hosts play at the same time."""
        self._started = True
        for host in self._hosts:
            # Whatever was asked before is answered first.
            host.forget()
            self._hosts.settle(host)
        self._hosts.waiting.clear()
        self._delivered = CombinedPoll((), ())
        self._env_steps[:] = env_steps
        taken, free = seats
        self._hosts.seats[:] = taken
        for host in self._hosts:
            host.resume(env_steps, recorded, free)
        fresh = set()
        for host in self._hosts:
            try:
                places, present, news = self._hosts.wait_for(host)
            except WorkerLostError:
                # Its episodes are lost once more: new ones begin.
                self._hosts.settle(host)
                host.resume(env_steps, {}, free)
                places, present, news = self._hosts.wait_for(host)
            fresh |= {host.first + place for place in places}
            self._hosts.waiting |= host.go_on(present)
            self._hosts.take(host, news)
        return fresh

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        self._hosts.begin()

    def _answer(self, host: RemoteEnvServer, layout: RemoteLayout, actions: Any) -> None:
        last = layout is host.layout and not host.asked
        host.ask("news", "step", None if last else layout.own, pack_stack(actions))
        for index in layout.by_env:
            del self._hosts.waiting[index]

    def _answer_nested(self, answers: Mapping[EnvId, Mapping[AgentId, Any]]) -> None:
        due = {index: slots for host in self._hosts for index, slots in host.due.shown().items()}
        told = {self._index(env_id): dict(by_agent) for env_id, by_agent in answers.items()}
        self._answer_some(told, {**self._hosts.waiting, **due})

    def _answer_some(
        self, by_env: Mapping[int, Mapping[AgentId, Any]], waiting: Mapping[int, IntArray]
    ) -> None:
        rows: dict[int, list[int]] = {}
        for index, answers in by_env.items():
            slots = waiting[index].tolist() if index in waiting else []
            agents = [self._hosts.seats[slot][1] for slot in slots]
            if set(answers) != set(agents):
                check_answers(index, agents, answers)
            if answers:
                rows[index] = slots
        for host in self._hosts:
            mine = [index for index in rows if host.first <= index < host.first + host.size]
            lost = [index for index in mine if index in host.left]
            if lost:
                # Nobody has been told yet that these episodes are lost.
                self._hosts.successors.tell_lost(host, lost)
            slots = [slot for index in mine if index not in lost for slot in rows[index]]
            if slots:
                host.due.drop(set(slots))
                actions = [by_env[self._env_of(slot)][self._hosts.seats[slot][1]] for slot in slots]
                host.ask("news", "step", host.own_slots(slots), pack_stack(actions))
            for index in mine:
                self._hosts.waiting.pop(index, None)

    def _asked(self, method: str, env_id: EnvId, *args: Any) -> Any:
        self._check_running(method)
        index = self._index(env_id)
        host = self._hosts.of(index)
        self._hosts.settle(host)
        host.ask("value", method, index - host.first, *args)
        return self._hosts.wait_for(host)

    def _reset(self, index: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Reset a sub-environment, in another process if its own is lost, and return `(obs, infos)` by agent."""
        host = self._hosts.of(index)
        while True:
            self._let_go(host, index)
            self._hosts.settle(host)
            host.ask("value", "reset", index - host.first, seed, options)
            try:
                obs, infos, news = self._hosts.wait_for(host)
            except WorkerLostError:
                continue
            self._hosts.take(host, news)
            return obs, infos

    def _let_go(self, host: RemoteEnvServer, index: int) -> None:
        """End an episode whose loss nobody has been told of, because its rows wait; they are not answered now."""
        if index in host.left:
            self._hosts.waiting.pop(index, None)
            self._hosts.successors.tell_lost(host, [index], withdrawn=False)

    def _tell_created(self, index: int) -> None:
        if self.on_created is not None:
            self.on_created(index, self._handles[index])

    def _env_of(self, slot: int) -> int:
        return self._index(self._hosts.seats[slot][0])

    def _check_running(self, what: str) -> None:
        if self._stopped:
            raise CallOrderError(
                f"{what}: these environments were stopped, expected running ones; make new ones"
            )


class RemoteEnv:
    """A sub-environment that lives elsewhere.

    Attributes:
        index: Its number.
    """

    def __init__(self, base_env: RemoteEnvs, index: int) -> None:
        self._base_env = base_env
        self.index = index

    def call(self, method: str, *args: Any) -> Any:
        """Call one of its methods and return what that returns; see `RemoteEnvs.call`."""
        return self._base_env.call(self.index, method, *args)

    def __repr__(self) -> str:
        return f"RemoteEnv({self.index})"

    if not TYPE_CHECKING:  # who checks types shall be told of an attribute that there is not

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
