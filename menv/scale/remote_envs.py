"""Sub-environments that live in other processes, as one `BaseEnv`: polled as they finish.

`menv.scale.convert` makes it. It asks `EnvHost`s through an engine, merges what they tell, and gives a lost host
a successor, at the cost of its own episodes. Rows, rewards, lives, seeds and draws are those of the local adapters,
which live in the hosts. It knows no policies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from menv.adapters.answers import nested_answers
from menv.adapters.multi_agent import check_answers, possible_agents
from menv.base_env import SINGLE_AGENT, AgentId, BaseEnv, EnvId, IntArray, MultiEnvDict, Ready
from menv.errors import CallOrderError, ConfigError, ContractError, WorkerLostError
from menv.multi_agent_env import MultiAgentEnv
from menv.scale.due import Due, Layout, Rows
from menv.scale.engine import Engine
from menv.scale.far_host import FarHost
from menv.scale.news import News
from menv.scale.stacks import pack
from menv.scale.successors import Successors

_NO_INFO: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How sub-environments are hosted elsewhere.

    Attributes:
        batch_wait_ms: Milliseconds that a poll waits for more hosts once one has answered; a large number lets all
            step in lock step.
        env_timeout: Seconds after which a sub-environment that does not answer is given up; None waits for ever.
        per_process: Sub-environments that share a process.
        restarts: Whether one that raises, hangs or is killed is made anew.
        seed: Gives every reset its own seed; None leaves the environments alone.
        first_index: Index of sub-environment 0 among those of all workers.
    """

    batch_wait_ms: float = 0
    env_timeout: float | None = None
    per_process: int = 1
    restarts: bool = True
    seed: int | None = None
    first_index: int = 0


class RemoteEnvs(BaseEnv):
    """Many sub-environments in processes of an engine.

    Attributes:
        on_created: Told the index and the handle of a sub-environment where one is created in another's place.
    """

    returns_table = True

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
        self.on_created: Callable[[int, Any], None] | None = None
        self._listed = (
            (possible_agents(like) or frozenset()) if isinstance(like, MultiAgentEnv) else {SINGLE_AGENT}
        )
        self._settings = settings
        self._engine = engine
        self._seats: list[tuple[EnvId, AgentId]] = []
        self._handles = [RemoteEnv(self, index) for index in range(num_envs)]
        self._env_steps = np.zeros(num_envs, np.int64)
        self._started = self._stopped = False
        # Rows that were handed out and not answered, by sub-environment.
        self._waiting: dict[int, IntArray] = {}
        self._delivered = _Delivered((), ())
        sizes = [
            min(settings.per_process, num_envs - first) for first in range(0, num_envs, settings.per_process)
        ]
        self._hosts = [
            FarHost(number * settings.per_process, size, self._seats) for number, size in enumerate(sizes)
        ]
        self._successors = Successors(engine, make_env, settings)
        for host in self._hosts:
            self._successors.start(host)

    def poll(self, timeout: float | None = None) -> Ready:
        """Return the rows of the hosts that have answered; see `BaseEnv.poll`.

        The first poll waits for all of them.

        Raises:
            EnvCrashError: A sub-environment could not be created or reset at first, or was lost too often.
        """
        self._check_running("poll")
        if self._started:
            self._gather(timeout)
        else:
            self._start()
        return self._handed_out()

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer sub-environments, which step at once; see `BaseEnv.send_actions`."""
        self._check_running("send_actions")
        if actions is None:
            self._answer_nested(nested_answers(slots))
            return
        if len(actions) != len(slots):
            raise ContractError(
                f"send_actions: got {len(actions)} actions for {len(slots)} slots, expected one for each; "
                "keep them in the order of the slots"
            )
        delivered = self._delivered
        if slots is delivered.slots and delivered.whole(self._waiting):
            start = 0
            for host, layout in delivered.parts:
                stop = start + len(layout.slots)
                self._answer(host, layout, actions[start:stop])
                start = stop
            return
        by_env: dict[int, dict[AgentId, Any]] = {}
        for slot, action in zip(slots, actions, strict=True):
            env_id, agent = self._seats[int(slot)]
            by_env.setdefault(self._index(env_id), {})[agent] = action
        self._answer_some(by_env, self._waiting)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[MultiEnvDict, MultiEnvDict]:
        """Reset one sub-environment or all; see `BaseEnv.try_reset`."""
        self._check_running("try_reset")
        indices = range(self.num_envs) if env_id is None else [self._index(env_id)]
        self._start()
        obs: MultiEnvDict = {}
        infos: MultiEnvDict = {}
        for index in indices:
            obs[index], infos[index] = self._reset(index, seed, options)
        return obs, infos

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Create one sub-environment or all anew; see `BaseEnv.try_restart`."""
        self._check_running("try_restart")
        for index in range(self.num_envs) if env_id is None else [self._index(env_id)]:
            host = self._host_of(index)
            self._let_go(host, index)
            self._settle(host)
            host.ask("news" if self._started else "value", "restart", index - host.first)
            self._wait_for(host)
            self._tell_created(index)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return handles of the sub-environments, as a list or by index."""
        return dict(enumerate(self._handles)) if as_dict else list(self._handles)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the environment lists and those seen so far."""
        return {*self._listed, *(agent for _, agent in self._seats)}

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
            self._engine.stop()

    @property
    def env_steps(self) -> IntArray:
        """[E] env steps of each sub-environment since its start, as of the last poll."""
        return self._env_steps

    def start_over(self, env_steps: IntArray) -> None:
        """Begin where another run stood: nothing has been polled, and the next resets are those after so many steps.

        Args:
            env_steps: [E] env steps so far.
        """
        self._env_steps[:] = env_steps
        for host in self._hosts:
            host.env_steps[:] = env_steps[host.first : host.first + host.size]

    # Asking

    def _start(self) -> None:
        """Begin everywhere, and wait for all."""
        if self._started:
            return
        self._started = True
        for host in self._hosts:
            host.begin(host.indices, 0)
        for host in self._hosts:
            self._settle(host)

    def _answer(self, host: FarHost, layout: Layout, actions: Any) -> None:
        """Send the answers to the rows of a host's news."""
        last = layout is host.layout and not host.asked
        host.ask("news", "step", None if last else layout.own, pack(actions))
        for index in layout.by_env:
            del self._waiting[index]

    def _answer_nested(self, answers: Mapping[EnvId, Mapping[AgentId, Any]]) -> None:
        """Answer rows that have been handed out, or that `try_reset` has returned."""
        due = {index: slots for host in self._hosts for index, slots in host.due.shown().items()}
        told = {self._index(env_id): dict(by_agent) for env_id, by_agent in answers.items()}
        self._answer_some(told, {**self._waiting, **due})

    def _answer_some(
        self, by_env: Mapping[int, Mapping[AgentId, Any]], waiting: Mapping[int, IntArray]
    ) -> None:
        """Answer some sub-environments, once all answers are exactly for those who wait."""
        rows: dict[int, list[int]] = {}
        for index, answers in by_env.items():
            slots = waiting[index].tolist() if index in waiting else []
            agents = [self._seats[slot][1] for slot in slots]
            if set(answers) != set(agents):
                check_answers(index, agents, answers)
            if answers:
                rows[index] = slots
        for host in self._hosts:
            mine = [index for index in rows if host.first <= index < host.first + host.size]
            lost = [index for index in mine if index in host.left]
            if lost:
                # Nobody has been told yet that these episodes are lost.
                self._successors.tell_lost(host, lost)
            slots = [slot for index in mine if index not in lost for slot in rows[index]]
            if slots:
                host.due.drop(set(slots))
                actions = [by_env[self._env_of(slot)][self._seats[slot][1]] for slot in slots]
                host.ask("news", "step", host.own_slots(slots), pack(actions))
            for index in mine:
                self._waiting.pop(index, None)

    def _asked(self, method: str, env_id: EnvId, *args: Any) -> Any:
        """Ask for something of a sub-environment and wait for it."""
        self._check_running(method)
        index = self._index(env_id)
        host = self._host_of(index)
        self._settle(host)
        host.ask("value", method, index - host.first, *args)
        return self._wait_for(host)

    def _reset(self, index: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Reset a sub-environment, in another process if its own is lost, and return `(obs, infos)` by agent."""
        host = self._host_of(index)
        while True:
            self._let_go(host, index)
            self._settle(host)
            host.ask("value", "reset", index - host.first, seed, options)
            try:
                obs, infos, news = self._wait_for(host)
            except WorkerLostError:
                continue
            self._take(host, news)
            return obs, infos

    def _let_go(self, host: FarHost, index: int) -> None:
        """End an episode whose loss nobody has been told of, because its rows wait; they are not answered now."""
        if index in host.left:
            self._waiting.pop(index, None)
            self._successors.tell_lost(host, [index], withdrawn=False)

    # Being told

    def _gather(self, timeout: float | None) -> None:
        """Wait until something is due, then as long as polls wait for more."""
        until = None if timeout is None else time.monotonic() + timeout
        self._take_answers(0.0)
        while not self._something_due() and self._busy() and (until is None or time.monotonic() < until):
            self._take_answers(None if until is None else max(0.0, until - time.monotonic()))
        together = time.monotonic() + self._settings.batch_wait_ms / 1000
        until = together if until is None else min(until, together)
        while self._busy() and time.monotonic() < until:
            self._take_answers(until - time.monotonic())

    def _busy(self) -> list[FarHost]:
        return [host for host in self._hosts if host.asked]

    def _something_due(self) -> bool:
        return any(host.due.rows or host.due.ended or host.due.episodes for host in self._hosts)

    def _take_answers(self, timeout: float | None) -> None:
        """Take what hosts have answered; wait for the first answer as long as a sub-environment may take."""
        busy = self._busy()
        if not busy:
            return
        ready = self._engine.wait([host.peer for host in busy], self._successors.patience(busy, timeout))
        for host in busy:
            if host.peer in ready:
                self._take_answer(host)
            elif self._successors.overdue(host):
                self._lost(host, self._successors.give_up(host))

    def _settle(self, host: FarHost) -> None:
        """Take all that a host has to answer."""
        while host.asked:
            self._wait_once(host)

    def _wait_for(self, host: FarHost) -> Any:
        """Return the answer to a host's last question.

        Raises:
            WorkerLostError: The host is lost; it has been given a successor.
        """
        peer, value = host.peer, None
        while host.asked:
            value = self._wait_once(host)
            if host.peer is not peer:
                raise self._successors.last[host.first]
        return value

    def _wait_once(self, host: FarHost) -> Any:
        """Wait for one answer of a host and return its value."""
        while True:
            if self._engine.wait([host.peer], self._successors.patience([host], None)):
                return self._take_answer(host)
            if self._successors.overdue(host):
                self._lost(host, self._successors.give_up(host))
                return None

    def _take_answer(self, host: FarHost) -> Any:
        """Take a host's next answer, which is there."""
        try:
            answer = host.peer.answer()
        except WorkerLostError as error:
            self._lost(host, error)
            return None
        except Exception as error:
            if not self._successors.failed_to_begin(host, error, self._waiting):
                host.answered()
                raise
            return None
        kind = host.answered()
        if kind in ("news", "begun"):
            self._take(host, answer)
        return answer

    def _take(self, host: FarHost, news: News) -> None:
        """Take in news."""
        host.take(news)
        if news.events is None:
            return
        for episode in news.events.episodes:
            # Where it was reset from outside, its rows may not have been answered.
            self._waiting.pop(episode.env_index, None)
            if not episode.faulty:
                self._successors.finished(host)
        for fault in news.events.faults:
            self._tell_created(fault.env_index)

    def _lost(self, host: FarHost, error: WorkerLostError) -> None:
        """Replace a host that is lost."""
        for index in self._successors.replace(host, error, self._waiting):
            self._tell_created(index)

    def _tell_created(self, index: int) -> None:
        if self.on_created is not None:
            self.on_created(index, self._handles[index])

    # Handing out

    def _handed_out(self) -> Ready:
        """Return what is due as one table, in the order of the sub-environments."""
        dues: list[Due] = []
        parts: list[tuple[FarHost, Layout]] = []
        rows: list[Rows] = []
        for host in self._hosts:
            due = host.due
            self._env_steps[host.first : host.first + host.size] = host.env_steps
            if due.rows or due.ended or due.episodes or due.faults or due.unclaimed:
                host.due = Due()
                dues.append(due)
                rows += due.rows
                parts += [(host, one.layout) for one in due.rows]
        for _, layout in parts:
            self._waiting.update(layout.by_env)
        delivered = self._delivered
        if [layout for _, layout in parts] != [layout for _, layout in delivered.parts]:
            delivered = self._delivered = _Delivered(parts, [layout.slots for _, layout in parts])
        infos = None
        if any(one.infos is not None for one in rows):
            infos = list(chain.from_iterable(one.infos or [_NO_INFO] * len(one.obs) for one in rows))
        obs: Sequence[Any] = list(chain.from_iterable(one.obs for one in rows))
        events = _joined_events(dues)
        rewards = np.concatenate([one.rewards for one in rows]) if rows else np.zeros(0)
        return Ready(
            delivered.slots, obs, rewards, self._env_steps, events.joined, events.ended, events.episodes,
            events.unclaimed, infos or [_NO_INFO] * len(obs), {}, self._seats, (), events.faults,
        )  # fmt: skip

    # Numbers

    def _index(self, env_id: Any) -> int:
        """Return the number of a sub-environment."""
        if not isinstance(env_id, int | np.integer) or not 0 <= env_id < self.num_envs:
            raise ConfigError(
                f"env id {env_id!r}: expected an integer from 0 to {self.num_envs - 1}; "
                "use the ids that poll returned"
            )
        return int(env_id)

    def _host_of(self, index: int) -> FarHost:
        return self._hosts[index // self._settings.per_process]

    def _env_of(self, slot: int) -> int:
        return self._index(self._seats[slot][0])

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


class _Delivered:
    """What the last poll handed out: hosts with the layouts of their rows, and the slots of all."""

    def __init__(self, parts: Sequence[tuple[FarHost, Layout]], slots: Sequence[IntArray]) -> None:
        self.parts = parts
        self.slots = (
            slots[0] if len(slots) == 1 else np.concatenate(slots) if slots else np.zeros(0, np.int64)
        )

    def whole(self, waiting: Mapping[int, IntArray]) -> bool:
        """Return whether all of it waits as it was handed out, with hosts that can be asked."""
        return all(
            waiting.get(index) is slots and index not in host.left
            for host, layout in self.parts
            for index, slots in layout.by_env.items()
        )


def _joined_events(dues: Iterable[Due]) -> Due:
    """Return the events of several hosts, one after the other."""
    found = Due()
    for due in dues:
        before = len(found.unclaimed)
        found.joined += due.joined
        found.ended += due.ended
        found.unclaimed += due.unclaimed
        found.episodes += [
            one._replace(unclaimed=one.unclaimed + before) if before else one for one in due.episodes
        ]
        found.faults += due.faults
    return found
