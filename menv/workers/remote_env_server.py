"""A host of sub-environments as its driver knows it: what it was asked, who lives there, what it told last.

`menv.workers.remote_envs` has one for each process. It turns the host's slots into those of all hosts, and writes the
ends of its episodes when the host cannot do so any more. It never waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from menv.adapters.poll_events import EpisodeReplay
from menv.base_env import (
    AgentId,
    End,
    EnvId,
    EpisodeEnd,
    FloatArray,
    IntArray,
    Join,
    Ready,
    SharedInfo,
    Unclaimed,
)
from menv.errors import EnvFault
from menv.workers.engine import RemoteActor
from menv.workers.env_server import Present, ServerEvents, ServerUpdate, unpack_stack

# SEAM menv.scale.due
# What a host has told and no poll has handed out yet.
#
# `menv.workers.remote_env_server` keeps one a host; there is more than one piece of news in it only where
# somebody reset, called or
# lost a sub-environment between two polls. Slots and sub-environments are those of the whole `RemoteEnvs`.


class RemoteLayout:
    """Who waits together.

    Attributes:
        slots: [R] their slots.
        by_env: The slots of each sub-environment.
        own: [R] their slots as the host numbers them.
    """

    __slots__ = ("by_env", "own", "slots")

    def __init__(self, slots: IntArray, own: IntArray, by_env: Mapping[int, IntArray]) -> None:
        self.slots = slots
        self.own = own
        self.by_env = by_env

    def without(self, gone: set[int]) -> tuple[RemoteLayout, list[int]]:
        """Return the layout of those who are not in `gone`, and their places in this one."""
        places = [place for place, slot in enumerate(self.slots.tolist()) if slot not in gone]
        by_env = {
            index: np.array([slot for slot in slots.tolist() if slot not in gone], np.int64)
            for index, slots in self.by_env.items()
        }
        kept = {index: slots for index, slots in by_env.items() if len(slots)}
        return RemoteLayout(self.slots[places], self.own[places], kept), places


@dataclass(slots=True)
class RemoteRows:
    """Agents that wait, with what they see.

    Attributes:
        layout: Who.
        obs: R observations.
        rewards: [R].
        infos: R info dicts, None where all are empty.
    """

    layout: RemoteLayout
    obs: Sequence[Any]
    rewards: FloatArray
    infos: Sequence[Mapping[str, Any]] | None

    def without(self, gone: set[int]) -> RemoteRows:
        """Return the rows of those who are not in `gone`."""
        layout, places = self.layout.without(gone)
        infos = None if self.infos is None else [self.infos[place] for place in places]
        return RemoteRows(layout, [self.obs[place] for place in places], self.rewards[places], infos)


@dataclass(slots=True)
class UndeliveredRows:
    """Rows and events; see `Ready`."""

    rows: list[RemoteRows] = field(default_factory=list)
    joined: list[Join] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)
    episodes: list[EpisodeEnd] = field(default_factory=list)
    unclaimed: list[Unclaimed] = field(default_factory=list)
    faults: list[EnvFault] = field(default_factory=list)
    shared_infos: list[SharedInfo] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to hand out."""
        return not (
            self.rows or self.ended or self.episodes or self.unclaimed or self.joined or self.faults
            or self.shared_infos
        )  # fmt: skip

    def add(self, rows: RemoteRows | None, events: ServerEvents | None) -> None:
        """Add what happened next."""
        if events is not None:
            ended, early = self._folded(events.ended) if self.rows or self.joined else (events.ended, [])
            before = len(self.unclaimed) + len(early)
            self.ended += ended
            self.unclaimed += [*early, *events.unclaimed]
            self.episodes += [
                one if not before else one._replace(unclaimed=one.unclaimed + before)
                for one in events.episodes
            ]
            self.joined += events.joined
            self.faults += events.faults
            # Those of episodes that are over by now are not of anybody's.
            over = {one.env_id for one in events.episodes}
            self.shared_infos = [one for one in self.shared_infos if one.env_id not in over]
            self.shared_infos += events.shared_infos
        if rows is not None and len(rows.layout.slots):
            self.rows.append(rows)

    def drop(self, slots: set[int]) -> None:
        """Forget rows that were answered before a poll handed them out."""
        self.rows = [rows.without(slots) for rows in self.rows]

    def shown(self) -> dict[int, IntArray]:
        """Return the slots of the rows of each sub-environment."""
        return {index: slots for rows in self.rows for index, slots in rows.layout.by_env.items()}

    def _folded(self, ended: Sequence[End]) -> tuple[list[End], list[Unclaimed]]:
        """Let ends take rows and joins with them that nobody was told of.

        Returns:
            The ends of trajectories that were told of, and what was paid to others.
        """
        joined = {join.slot: join for join in self.joined}
        shown = {
            slot: (rows, place) for rows in self.rows for place, slot in enumerate(rows.layout.slots.tolist())
        }
        told: list[End] = []
        early: list[Unclaimed] = []
        for end in ended:
            reward, obs = end.reward, end.obs
            if end.slot in shown:
                rows, place = shown[end.slot]
                reward += float(rows.rewards[place])
                obs = rows.obs[place] if obs is None else obs
                # What the last action led to is known after all.
                end = end._replace(reward=reward, obs=obs, withdrawn=False)
            if end.slot not in joined:
                told.append(end)
            elif reward:
                early.append(Unclaimed(end.env_id, end.agent_id, reward, joined[end.slot].env_index))
        gone = {end.slot for end in ended}
        self.joined = [join for join in self.joined if join.slot not in gone]
        self.drop(gone & set(shown))
        return told, early


Kind = Literal["created", "begun", "news", "value"]


class _PendingReset(NamedTuple):
    """What is known of an episode whose process is gone, while its rows wait to be answered."""

    env_steps: int
    start: int
    held: Mapping[AgentId, float]


class RemoteEnvServer:
    """One host.

    Args:
        first: Number of its first sub-environment.
        size: k, how many it has.
        seats: Of all hosts; see `Ready.seats`.

    Attributes:
        peer: The object over there.
        asked: What its unanswered questions will be answered with, the sub-environments that begin then, and how many
            resets and steps each may take, one after the other.
        since: When it began with the oldest of them, in seconds of `time.monotonic`.
        news: Whether it has ever told anything, this process or one before.
        failed: How often in a row its process could not begin.
        ended: Whether it has no process, because it has been lost too often; there is nothing that it could be asked.
        layout: Who waited in its last news.
        due: What no poll has handed out.
    """

    def __init__(self, first: int, size: int, seats: list[tuple[EnvId, AgentId]]) -> None:
        self.first = first
        self.size = size
        self.peer: RemoteActor
        self.asked: deque[tuple[Kind, Collection[int], int]] = deque()
        self.since = 0.0
        self.news = False
        self.failed = 0
        self.ended = False
        self.layout = _nobody()
        self.due = UndeliveredRows()
        self._seats = seats
        # [k] env steps, as it told last.
        self.env_steps: IntArray = np.zeros(size, np.int64)
        self._starts: list[int] = [0] * size
        self._held: dict[int, Mapping[AgentId, float]] = {}
        # The sub-environments whose episodes are lost, which nobody is told before they are answered.
        self.left: dict[int, _PendingReset] = {}
        # Slots of all hosts by the host's own, the other way round, and those that nobody has any more.
        self._slots: IntArray = np.zeros(0, np.int64)
        self._own: dict[int, int] = {}
        self._free: list[int] = []
        self._alive: dict[int, Join] = {}

    @property
    def indices(self) -> range:
        """The numbers of its sub-environments."""
        return range(self.first, self.first + self.size)

    @property
    def name(self) -> str:
        """What messages call its sub-environments."""
        return f"env {self.first}" if self.size == 1 else f"envs {self.first} to {self.first + self.size - 1}"

    @property
    def beginning(self) -> set[int]:
        """The sub-environments whose first rows have been asked for."""
        return {index for _, indices, _ in self.asked for index in indices}

    @property
    def held(self) -> dict[int, Mapping[AgentId, float]]:
        """Rewards that wait for their agents' next rows, by sub-environment and agent, as it told last."""
        return self._held | {index: left.held for index, left in self.left.items() if left.held}

    def meet(self, peer: RemoteActor) -> None:
        """Take another process for this host, of which only its creation has been asked."""
        self.peer, self.ended = peer, False
        self.asked = deque([("created", (), self.size)])
        self.since = time.monotonic()
        self.layout, self._held = _nobody(), {}
        # Its slots are numbered anew; those of trajectories that live on until their agents are answered are taken.
        used = sorted([*self._free, *self._own])
        self._free = [slot for slot in reversed(used) if slot not in self._alive]
        self._slots, self._own = np.zeros(0, np.int64), {}

    def end(self) -> None:
        """Note that its process is gone and none takes its place."""
        self.ended = True
        self.asked.clear()

    @property
    def torn(self) -> bool:
        """Whether somebody was interrupted between a question or answer and the note of it here."""
        return not self.ended and len(self.asked) != self.peer.pending

    def forget(self) -> None:
        """Let what is still to be answered be of no interest, whatever it was."""
        value: Kind = "value"
        first: Kind = "created" if self.asked and self.asked[0][0] == "created" else value
        pending = 0 if self.ended else self.peer.pending
        self.asked = deque((value if number else first, (), self.size) for number in range(pending))

    def leave(self, index: int) -> None:
        """Let an episode that is lost wait until its agents are answered."""
        place = index - self.first
        if index not in self.left:
            steps = int(self.env_steps[place])
            self.left[index] = _PendingReset(steps, self._starts[place], self._held.get(index, {}))

    def ask(
        self, kind: Kind, method: str, *args: Any, begins: Collection[int] = (), more_steps: int = 0
    ) -> None:
        """Ask for a method of the `EnvHost`, which may take one step of each sub-environment, and more."""
        if not self.asked:
            self.since = time.monotonic()
        self.asked.append((kind, begins, self.size + more_steps))
        try:
            self.peer.ask(method, *args)
        except Exception:
            # What cannot be sent was not asked.
            self.asked.pop()
            raise

    def begin(self, indices: Collection[int], after: int) -> None:
        """Ask for new episodes.

        Args:
            indices: Their sub-environments.
            after: Env steps that count more than have been told.
        """
        starts: dict[int, int] = {}
        for index in indices:
            place = index - self.first
            starts[place] = int(self.env_steps[place]) + after
            self.env_steps[place] = starts[place]
        if starts:
            self.ask("begun", "begin", starts, begins=list(indices))

    def answered(self) -> Kind:
        """Note that the oldest question has been answered, and return what it was."""
        self.since = time.monotonic()
        return self.asked.popleft()[0]

    def own_slots(self, slots: Any) -> IntArray:
        """Return slots as the host numbers them."""
        return np.array([self._own[slot] for slot in slots], np.int64)

    def take(self, news: ServerUpdate) -> None:
        """Take in what the host told."""
        self.news, self.failed, before = True, 0, self.env_steps
        events = None if news.events is None else self._mapped(news.events)
        if news.slots is not None:
            self.layout = self._laid_out(news.slots)
        self._held = dict(news.held)
        self.env_steps = np.array(news.env_steps)
        for index in {*self.left, *self.beginning}:
            # Of these it knows nothing yet.
            self.env_steps[index - self.first] = before[index - self.first]
        rows = RemoteRows(self.layout, unpack_stack(news.obs), news.rewards, news.infos)
        self.due.add(rows, events)

    def lose(
        self, indices: Collection[int], reason: tuple[str, str] | None, *, withdrawn: bool = True
    ) -> None:
        """Write the ends of episodes that the host cannot tell of any more.

        Args:
            indices: Their sub-environments.
            reason: The line of the fault, and what kind of fault it is; None if one was told.
            withdrawn: Whether nobody knows what the last actions led to.
        """
        ended: list[End] = []
        episodes: list[EpisodeEnd] = []
        unclaimed: list[Unclaimed] = []
        faults: list[EnvFault] = []
        for index in indices:
            self.leave(index)
            left = self.left.pop(index)
            unclaimed += [
                Unclaimed(index, agent, reward, index) for agent, reward in left.held.items() if reward
            ]
            for slot in [slot for slot, join in self._alive.items() if join.env_index == index]:
                join = self._alive.pop(slot)
                if slot not in self._own:
                    self._free.append(slot)
                ended.append(End(slot, index, join.agent_id, 0.0, False, True, None, {}, withdrawn=withdrawn))
            episodes.append(
                EpisodeEnd(
                    index, False, True, left.env_steps - left.start, index, len(unclaimed), faulty=True
                )
            )
            if reason is not None:
                line, kind = reason
                faults.append(EnvFault(index, index, "step", f"{line} in step of env {index}", (kind, "", 0)))
        self.due.add(None, ServerEvents([], ended, episodes, unclaimed, faults, [], []))

    def start_of(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""
        return self._starts[index - self.first]

    def freed(self, own: Iterable[int]) -> list[int]:
        """Return slots that nobody has, the host's own among them, as slots of all hosts."""
        return [*(self._slot(slot) for slot in own), *self._free]

    def global_slots(self, own: Mapping[AgentId, int]) -> dict[AgentId, int]:
        """Return the slots of agents as slots of all hosts."""
        return {agent: self._slot(slot) for agent, slot in own.items()}

    def resume(self, env_steps: IntArray, recorded: Mapping[int, EpisodeReplay], free: Iterable[int]) -> None:
        """Ask to go on where another run was written down, whose seats are those of all hosts now."""
        indices = self.indices
        mine = [slot for slot, (env_id, _) in enumerate(self._seats) if env_id in indices]
        self._slots = np.array(mine, np.int64)
        self._own = {slot: own for own, slot in enumerate(mine)}
        self._alive.clear()
        self.left.clear()
        self._free, self.due, self.layout = [], UndeliveredRows(), _nobody()
        seats = [(int(self._seats[slot][0]) - self.first, self._seats[slot][1]) for slot in mine]  # type: ignore[call-overload]
        again = {
            index - self.first: EpisodeReplay(
                one.start, one.stop, one.seed, {agent: iter(list(actions)) for agent, actions in one.actions.items()},
                {agent: self._own[slot] for agent, slot in one.slots.items()}, one.shown,
            )
            for index, one in recorded.items()
            if index in indices
        }  # fmt: skip
        self._starts = [
            recorded[index].start if index in recorded else int(env_steps[index]) for index in indices
        ]
        self.env_steps = np.array(env_steps[self.first : self.first + self.size])
        self.ask(
            "value",
            "resume",
            self.env_steps,
            again,
            (seats, [self._own[slot] for slot in free if slot in self._own]),
            # What comes out differently is reset once more.
            more_steps=sum(one.stop - one.start + 1 for one in again.values()),
        )

    def go_on(self, present: Mapping[int, Present]) -> dict[int, IntArray]:
        """Note who lives in episodes that were played again; return the slots of those who wait, by sub-environment."""
        waiting: dict[int, IntArray] = {}
        for place, (living, waits) in present.items():
            index = self.first + place
            for agent, own in living.items():
                slot = int(self._slots[own])
                self._alive[slot] = Join(slot, index, agent, index)
            waiting[index] = self._slots[waits]
        return waiting

    def _mapped(self, events: ServerEvents) -> ServerEvents:
        ended = [end._replace(slot=int(self._slots[end.slot])) for end in events.ended]
        for end in ended:
            self._alive.pop(end.slot, None)
        joined = []
        for join in events.joined:
            slot = self._slot(join.slot)
            self._seats[slot] = (join.env_id, join.agent_id)
            joined.append(join._replace(slot=slot))
            self._alive[slot] = joined[-1]
        if events.starts:
            self._starts = list(events.starts)
        return events._replace(joined=joined, ended=ended)

    def _slot(self, own: int) -> int:
        while own >= len(self._slots):
            # The host's own are numbered one after the other.
            if not self._free:
                self._free.append(len(self._seats))
                self._seats.append((self.first, ""))
            self._own[self._free[-1]] = len(self._slots)
            self._slots = np.append(self._slots, self._free.pop())
        return int(self._slots[own])

    def _laid_out(self, own: IntArray) -> RemoteLayout:
        slots = self._slots[own]
        if self.size == 1:
            return RemoteLayout(slots, own, {self.first: slots} if len(slots) else {})
        found: dict[int, list[int]] = {}
        for slot in slots.tolist():
            found.setdefault(int(self._seats[slot][0]), []).append(slot)
        return RemoteLayout(slots, own, {index: np.array(mine, np.int64) for index, mine in found.items()})


def _nobody() -> RemoteLayout:
    return RemoteLayout(np.zeros(0, np.int64), np.zeros(0, np.int64), {})


# SEAM menv.scale.handing_out
# What several hosts have told, as one table.
#
# `menv.workers.remote_envs` hands it out. Rows stand in the order of the sub-environments, whoever answered
# first; while
# the same agents wait, the slots are the very same array.


_NO_INFO: Mapping[str, Any] = {}


class CombinedPoll:
    """What the last poll handed out: hosts with the layouts of their rows, and the slots of all."""

    def __init__(
        self, parts: Sequence[tuple[RemoteEnvServer, RemoteLayout]], slots: Sequence[IntArray]
    ) -> None:
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


def _joined_events(dues: Iterable[UndeliveredRows]) -> UndeliveredRows:
    found = UndeliveredRows()
    for due in dues:
        before = len(found.unclaimed)
        found.joined += due.joined
        found.ended += due.ended
        found.unclaimed += due.unclaimed
        found.episodes += [
            one._replace(unclaimed=one.unclaimed + before) if before else one for one in due.episodes
        ]
        found.faults += due.faults
        found.shared_infos += due.shared_infos
    return found


def handed_out(
    hosts: Iterable[RemoteEnvServer], env_steps: IntArray, before: CombinedPoll, seats: Sequence[Any]
) -> tuple[Ready, CombinedPoll]:
    """Return what is due, and who waits with it.

    Args:
        hosts: They have nothing due any more afterwards.
        env_steps: [E] is brought up to date.
        before: Who waited last.
        seats: See `Ready.seats`.
    """
    dues: list[UndeliveredRows] = []
    parts: list[tuple[RemoteEnvServer, RemoteLayout]] = []
    rows: list[RemoteRows] = []
    for host in hosts:
        due = host.due
        env_steps[host.first : host.first + host.size] = host.env_steps
        if not due.empty:
            host.due = UndeliveredRows()
            dues.append(due)
            rows += due.rows
            parts += [(host, one.layout) for one in due.rows]
    same = [layout for _, layout in parts] == [layout for _, layout in before.parts]
    delivered = before if same else CombinedPoll(parts, [layout.slots for _, layout in parts])
    obs: list[Any] = list(chain.from_iterable([one.obs for one in rows]))
    infos: list[Mapping[str, Any]] = [_NO_INFO] * len(obs)
    if any(one.infos is not None for one in rows):
        infos = list(chain.from_iterable([one.infos or [_NO_INFO] * len(one.obs) for one in rows]))
    rewards = np.concatenate([one.rewards for one in rows]) if rows else np.zeros(0)
    events = _joined_events(dues)
    ready = Ready(
        delivered.slots, obs, rewards, env_steps, events.joined, events.ended, events.episodes, events.unclaimed,
        infos, {}, seats, (), events.faults, events.shared_infos,
    )  # fmt: skip
    return ready, delivered
