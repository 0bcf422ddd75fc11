"""The driver's view of env servers: requests, running agents and updates that no poll has delivered.

`RemoteEnvServer` belongs to one process. It translates the server's slots into slots of all servers, and writes the
ends of episodes when the process is lost. It never waits. `combined_ready` combines the servers' rows for a poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from menv.adapters.poll_events import PollEvents
from menv.base_env import (
    AgentId,
    End,
    EnvId,
    EpisodeEnd,
    FloatArray,
    IntArray,
    Join,
    Ready,
    Unclaimed,
)
from menv.errors import EnvFault
from menv.workers.engine import RemoteActor, Ts
from menv.workers.env_server import EnvServer, ServerUpdate, unpack_stack
from menv.workers.watchdog import RunningClock


class LossReason(NamedTuple):
    """Why a process was lost: a line and the type of the error for faults, and the message with the end of stderr."""

    line: str
    kind: str
    message: str


class RemoteLayout:
    """Slots of rows: [R] among all servers, [R] the server's, and by sub-environment."""

    __slots__ = ("by_env", "own", "slots")

    def __init__(self, slots: IntArray, own: IntArray, by_env: Mapping[int, IntArray]) -> None:
        self.slots = slots
        self.own = own
        self.by_env = by_env

    def without(self, gone: set[int]) -> tuple[RemoteLayout, list[int]]:
        """Return the layout without the slots `gone`, and the remaining places."""
        places = [place for place, slot in enumerate(self.slots.tolist()) if slot not in gone]
        by_env = {
            index: np.array([slot for slot in slots.tolist() if slot not in gone], np.int64)
            for index, slots in self.by_env.items()
        }
        kept = {index: slots for index, slots in by_env.items() if len(slots)}
        return RemoteLayout(self.slots[places], self.own[places], kept), places


@dataclass(slots=True)
class RemoteRows:
    """R rows of agents that wait for actions; `infos` is None where all are empty."""

    layout: RemoteLayout
    obs: Sequence[Any]
    rewards: FloatArray
    infos: Sequence[Mapping[str, Any]] | None

    def without(self, gone: set[int]) -> RemoteRows:
        """Return the rows without the slots `gone`."""
        layout, places = self.layout.without(gone)
        infos = None if self.infos is None else [self.infos[place] for place in places]
        return RemoteRows(layout, [self.obs[place] for place in places], self.rewards[places], infos)


@dataclass(slots=True)
class UndeliveredRows:
    """Rows and events of a server that no poll has delivered, as in `Ready`.

    More than one update collects here only after a reset, a call or a loss between two polls.
    """

    rows: list[RemoteRows] = field(default_factory=list)
    events: PollEvents = field(default_factory=PollEvents)

    @property
    def empty(self) -> bool:
        events = self.events
        return not (
            self.rows or events.ended or events.episodes or events.unclaimed or events.joined or events.faults
            or events.shared_infos
        )  # fmt: skip

    def add(self, rows: RemoteRows | None, events: PollEvents | None) -> None:
        """Append an update."""
        own = self.events
        if events is not None:
            if self.rows or own.joined:
                ended, early = self._merge_ends(events.ended)
                events = replace(events, ended=ended)
                own.unclaimed += early
            # Drop the infos of episodes that have ended.
            over = {one.env_id for one in events.episodes}
            own.shared_infos = [one for one in own.shared_infos if one.env_id not in over]
            _append(own, events)
        if rows is not None and len(rows.layout.slots):
            self.rows.append(rows)

    def drop(self, slots: set[int]) -> None:
        """Remove rows that were answered before their delivery."""
        self.rows = [rows.without(slots) for rows in self.rows]

    def shown(self) -> dict[int, IntArray]:
        """Return the slots of the rows of each sub-environment."""
        return {index: slots for rows in self.rows for index, slots in rows.layout.by_env.items()}

    def _merge_ends(self, ended: Sequence[End]) -> tuple[list[End], list[Unclaimed]]:
        """Merge ends with undelivered rows and joins of the same slots.

        Returns the ends of delivered trajectories, and the rewards of the others.
        """
        joined = {join.slot: join for join in self.events.joined}
        shown = {
            slot: (rows, place) for rows in self.rows for place, slot in enumerate(rows.layout.slots.tolist())
        }
        delivered: list[End] = []
        early: list[Unclaimed] = []
        for end in ended:
            reward, obs = end.reward, end.obs
            if end.slot in shown:
                rows, place = shown[end.slot]
                reward += float(rows.rewards[place])
                obs = rows.obs[place] if obs is None else obs
                # The row holds the result of the last action.
                end = end._replace(reward=reward, obs=obs, withdrawn=False)
            if end.slot not in joined:
                delivered.append(end)
            elif reward:
                early.append(Unclaimed(end.env_id, end.agent_id, reward, joined[end.slot].env_index))
        gone = {end.slot for end in ended}
        self.events.joined = [join for join in self.events.joined if join.slot not in gone]
        self.drop(gone & set(shown))
        return delivered, early


Kind = Literal["created", "begun", "update", "value"]


class RemoteEnvServer:
    """One env server with `size` sub-environments, beginning at number `first`.

    `actor` is the remote `EnvServer`. `asked` describes the unanswered requests: the kind of answer and the
    sub-environments that begin with it. `since` is the time of `clock` at which the oldest one began. `ended` is True
    without a process, after too many losses, `paused` where the last update came from a poll that paused.
    """

    def __init__(
        self, first: int, size: int, seats: list[tuple[EnvId, AgentId]], clock: RunningClock
    ) -> None:
        self.first = first
        self.size = size
        self.actor: RemoteActor
        self.asked: deque[tuple[Kind, Collection[int]]] = deque()
        self.since = 0.0
        self.has_reported = False
        self.ended = self.paused = False
        self.layout = _empty_layout()
        self.undelivered = UndeliveredRows()
        self._seats = seats
        self._clock = clock
        # [k] env steps in the last update.
        self.env_steps: IntArray = np.zeros(size, np.int64)
        self._starts: list[int] = [0] * size
        self._held: dict[int, Mapping[AgentId, float]] = {}
        # Env steps and held rewards of lost episodes that are reported when their rows are answered.
        self.held_back: dict[int, tuple[int, Mapping[AgentId, float]]] = {}
        # Slots of all servers by the server's slot, the inverse, and free slots of all servers.
        self._slots: IntArray = np.zeros(0, np.int64)
        self._own: dict[int, int] = {}
        self._free: list[int] = []
        self._alive: dict[int, Join] = {}

    @property
    def indices(self) -> range:
        return range(self.first, self.first + self.size)

    @property
    def name(self) -> str:
        """The name of its sub-environments in messages."""
        return f"env {self.first}" if self.size == 1 else f"envs {self.first} to {self.first + self.size - 1}"

    @property
    def beginning(self) -> set[int]:
        """The sub-environments whose first rows are requested."""
        return {index for _, indices in self.asked for index in indices}

    @property
    def held(self) -> dict[int, Mapping[AgentId, float]]:
        """Rewards that wait for their agents' next rows, by sub-environment and agent."""
        return self._held | {index: held for index, (_, held) in self.held_back.items() if held}

    def attach(self, actor: RemoteActor) -> None:
        """Use another process, of which only the creation was requested."""
        self.actor, self.ended, self.paused = actor, False, False
        self.asked = deque([("created", ())])
        self.since = self._clock.now()
        self.layout, self._held = _empty_layout(), {}
        # Its slots are renumbered; slots of held-back trajectories stay in use.
        used = sorted([*self._free, *self._own])
        self._free = [slot for slot in reversed(used) if slot not in self._alive]
        self._slots, self._own = np.zeros(0, np.int64), {}

    def end(self) -> None:
        """Mark it as without a process."""
        self.ended = True
        self.asked.clear()

    @property
    def is_out_of_step(self) -> bool:
        """Whether an interruption between a request or answer and its record here left them different."""
        return not self.ended and len(self.asked) != self.actor.pending

    def ignore_answers(self) -> None:
        """Ignore the content of all outstanding answers."""
        value: Kind = "value"
        first: Kind = "created" if self.asked and self.asked[0][0] == "created" else value
        pending = 0 if self.ended else self.actor.pending
        self.asked = deque((value if number else first, ()) for number in range(pending))

    def hold_back(self, index: int) -> None:
        """Hold a lost episode back until its agents are answered."""
        place = index - self.first
        if index not in self.held_back:
            steps = int(self.env_steps[place]) - self._starts[place]
            self.held_back[index] = (steps, self._held.get(index, {}))

    def ask(
        self,
        kind: Kind,
        method: Callable[[EnvServer, *Ts], object],
        *args: *Ts,
        begins: Collection[int] = (),
    ) -> None:
        """Request a method of the server; it may take one step of each sub-environment."""
        if not self.asked:
            self.since = self._clock.now()
        self.asked.append((kind, begins))
        try:
            self.actor.ask(method, *args)
        except Exception:
            # The request was not sent.
            self.asked.pop()
            raise

    def begin(self, indices: Collection[int], after: int) -> None:
        """Request new episodes; `after` is the number of env steps that count although unreported."""
        starts: dict[int, int] = {}
        for index in indices:
            place = index - self.first
            starts[place] = int(self.env_steps[place]) + after
            self.env_steps[place] = starts[place]
        if starts:
            self.ask("begun", EnvServer.begin, starts, begins=list(indices))

    def answered(self) -> Kind:
        """Remove the oldest request, which was answered, and return its kind."""
        self.since = self._clock.now()
        return self.asked.popleft()[0]

    def own_slots(self, slots: Any) -> IntArray:
        """Return slots in the server's numbering."""
        return np.array([self._own[slot] for slot in slots], np.int64)

    def take(self, update: ServerUpdate) -> None:
        """Apply an update."""
        self.has_reported, before = True, self.env_steps
        self.paused = update.paused
        events = None if update.events is None else self._translated(update.events)
        if update.starts:
            self._starts = list(update.starts)
        if update.slots is not None:
            self.layout = self._layout_of(update.slots)
        self._held = dict(update.held)
        self.env_steps = np.array(update.env_steps)
        for index in {*self.held_back, *self.beginning}:
            # The update does not cover these yet.
            self.env_steps[index - self.first] = before[index - self.first]
        rows = RemoteRows(self.layout, unpack_stack(update.obs), update.rewards, update.infos)
        self.undelivered.add(rows, events)

    def end_episodes(
        self, indices: Collection[int], reason: LossReason | None, *, withdrawn: bool = True
    ) -> None:
        """Write the ends of lost episodes.

        `reason` is None if the fault was reported. With `withdrawn`, the results of the last
        actions are unknown.
        """
        ended: list[End] = []
        episodes: list[EpisodeEnd] = []
        unclaimed: list[Unclaimed] = []
        faults: list[EnvFault] = []
        for index in indices:
            self.hold_back(index)
            steps, held = self.held_back.pop(index)
            unclaimed += [Unclaimed(index, agent, reward, index) for agent, reward in held.items() if reward]
            for slot in [slot for slot, join in self._alive.items() if join.env_index == index]:
                join = self._alive.pop(slot)
                if slot not in self._own:
                    self._free.append(slot)
                ended.append(End(slot, index, join.agent_id, 0.0, False, True, None, {}, withdrawn=withdrawn))
            episodes.append(EpisodeEnd(index, False, True, steps, index, len(unclaimed), faulty=True))
            if reason is not None:
                faults.append(self.fault(index, reason))
        self.undelivered.add(None, PollEvents(ended, unclaimed, episodes, [], faults, []))

    def fault(self, index: int, reason: LossReason, where: str = "step") -> EnvFault:
        """Return the fault of a sub-environment whose process was lost."""
        line, origin = f"{reason.line} in {where} of env {index}", (reason.kind, "", 0)
        return EnvFault(index, index, where, line, origin, self.start_of(index), reason.message)

    def start_of(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""
        return self._starts[index - self.first]

    def start_from(self, env_steps: IntArray) -> None:
        """Request new episodes in all its sub-environments, at env steps [E]; the seats of all servers are empty."""
        self._slots, self._own, self._free = np.zeros(0, np.int64), {}, []
        self._alive.clear()
        self.held_back.clear()
        self._held, self.undelivered, self.layout = {}, UndeliveredRows(), _empty_layout()
        self.env_steps = np.array(env_steps[self.first : self.first + self.size])
        self.begin(self.indices, 0)

    def _translated(self, events: PollEvents) -> PollEvents:
        ended = [end._replace(slot=int(self._slots[end.slot])) for end in events.ended]
        for end in ended:
            self._alive.pop(end.slot, None)
        joined = []
        for join in events.joined:
            slot = self._slot(join.slot)
            self._seats[slot] = (join.env_id, join.agent_id)
            joined.append(join._replace(slot=slot))
            self._alive[slot] = joined[-1]
        return replace(events, joined=joined, ended=ended)

    def _slot(self, own: int) -> int:
        while own >= len(self._slots):
            # The server numbers its slots consecutively.
            if not self._free:
                self._free.append(len(self._seats))
                self._seats.append((self.first, ""))
            self._own[self._free[-1]] = len(self._slots)
            self._slots = np.append(self._slots, self._free.pop())
        return int(self._slots[own])

    def _layout_of(self, own: IntArray) -> RemoteLayout:
        slots = self._slots[own]
        if self.size == 1:
            return RemoteLayout(slots, own, {self.first: slots} if len(slots) else {})
        found: dict[int, list[int]] = {}
        for slot in slots.tolist():
            found.setdefault(int(self._seats[slot][0]), []).append(slot)
        return RemoteLayout(
            slots, own, {index: np.array(slots_here, np.int64) for index, slots_here in found.items()}
        )


def _empty_layout() -> RemoteLayout:
    return RemoteLayout(np.zeros(0, np.int64), np.zeros(0, np.int64), {})


_NO_INFO: Mapping[str, Any] = {}


class CombinedPoll:
    """The rows of the last poll: servers with their layouts, and the slots of all."""

    def __init__(
        self, parts: Sequence[tuple[RemoteEnvServer, RemoteLayout]], slots: Sequence[IntArray]
    ) -> None:
        self.parts = parts
        self.slots = (
            slots[0] if len(slots) == 1 else np.concatenate(slots) if slots else np.zeros(0, np.int64)
        )

    def is_unanswered(self, waiting: Mapping[int, IntArray]) -> bool:
        """Return whether all rows still wait as delivered, and their servers can be asked."""
        return all(
            waiting.get(index) is slots and index not in server.held_back
            for server, layout in self.parts
            for index, slots in layout.by_env.items()
        )


def _append(events: PollEvents, more: PollEvents) -> None:
    before = len(events.unclaimed)
    events.joined += more.joined
    events.ended += more.ended
    events.unclaimed += more.unclaimed
    events.episodes += [
        one._replace(unclaimed=one.unclaimed + before) if before else one for one in more.episodes
    ]
    events.faults += more.faults
    events.shared_infos += more.shared_infos


def combined_ready(
    servers: Iterable[RemoteEnvServer], env_steps: IntArray, before: CombinedPoll, seats: Sequence[Any]
) -> tuple[Ready, CombinedPoll]:
    """Deliver the rows and events of all servers as one `Ready`, in the order of the sub-environments.

    While the same agents wait, `slots` stays the same array. `env_steps`, [E], is updated in place.
    """
    events = PollEvents()
    parts: list[tuple[RemoteEnvServer, RemoteLayout]] = []
    rows: list[RemoteRows] = []
    for server in servers:
        undelivered = server.undelivered
        env_steps[server.first : server.first + server.size] = server.env_steps
        if not undelivered.empty:
            server.undelivered = UndeliveredRows()
            _append(events, undelivered.events)
            rows += undelivered.rows
            parts += [(server, one.layout) for one in undelivered.rows]
    same = [layout for _, layout in parts] == [layout for _, layout in before.parts]
    delivered = before if same else CombinedPoll(parts, [layout.slots for _, layout in parts])
    obs: list[Any] = list(chain.from_iterable([one.obs for one in rows]))
    infos: list[Mapping[str, Any]] = [_NO_INFO] * len(obs)
    if any(one.infos is not None for one in rows):
        infos = list(chain.from_iterable([one.infos or [_NO_INFO] * len(one.obs) for one in rows]))
    rewards = np.concatenate([one.rewards for one in rows]) if rows else np.zeros(0)
    ready = Ready(
        delivered.slots, obs, rewards, env_steps, events.joined, events.ended, events.episodes, events.unclaimed,
        infos, {}, seats, (), events.faults, events.shared_infos,
    )  # fmt: skip
    return ready, delivered
