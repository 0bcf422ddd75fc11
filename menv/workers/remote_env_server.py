"""The driver's view of a sub-environment in another process: its requests, its agents, and its undelivered updates.

`RemoteEnvServer` belongs to one process, and writes the ends of the episode when that is lost. It never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from menv.adapters.poll_events import PollEvents
from menv.base_env import AgentId, End, EpisodeEnd, IntArray, Join, Unclaimed
from menv.errors import EnvFault
from menv.workers.engine import RemoteActor, Ts, in_a_line
from menv.workers.env_server import EnvServer, ServerUpdate, pack_stack, unpack_stack

_LONGEST = 360
_NOBODY: IntArray = np.zeros(0, np.int64)
_NO_ROWS: dict[str, Any] = {"slots": _NOBODY, "obs": [], "rewards": np.zeros(0), "infos": None}


class RemoteEnvServer:
    """The server of sub-environment `index`.

    `actor` is the remote `EnvServer`, `asked` how many of its answers are due. `undelivered` are updates with unpacked
    observations, delivered one by one: a poll never holds rows of an episode and its end. `begins` is True until its
    process has reported an episode, `ended` without a process, after too many losses, `paused` where the last update
    came from a poll that paused. `held` are rewards that wait for their agents' next rows, `env_steps` is the count
    of the last update. `lost_by` is the type of the error of the last loss, and its message with the
    end of stderr.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.actor: RemoteActor
        self.asked = 0
        self.has_reported = self.begins = self.ended = self.paused = False
        self.undelivered: deque[ServerUpdate] = deque()
        self.lost_by: tuple[str, str]
        self.held: Mapping[AgentId, float] = {}
        self.env_steps = 0
        # Env steps at the last reset, in the last update and in the last delivery.
        self._start = self.start = 0
        # The slots of the last update, and of the last delivery.
        self._slots = self._delivered = _NOBODY
        self._alive: dict[int, Join] = {}
        # Slots of rows without an answer.
        self._waiting: set[int] = set()
        # Whether a reset has returned the rows that are undelivered, so that they may be answered.
        self._shown = False

    @property
    def plays(self) -> bool:
        """Whether an episode runs, as far as this process knows."""
        return self.has_reported and not self.begins

    @property
    def agents(self) -> list[AgentId]:
        """The agents with rows that can be answered."""
        if self.is_stale:
            return []
        return [self._alive[slot].agent_id for slot in self._slots.tolist() if slot in self._waiting]

    @property
    def is_stale(self) -> bool:
        """Whether rows were delivered whose episode is over, so that actions for them have no result."""
        return bool(self.undelivered) and not self._shown

    def attach(self, actor: RemoteActor) -> None:
        """Use another process, of which only the creation was requested."""
        self.actor, self.asked, self.begins, self.ended, self.paused = actor, 1, True, False, False

    def end(self) -> None:
        """Mark it as without a process."""
        self.ended, self.asked = True, 0

    @property
    def is_out_of_step(self) -> bool:
        """Whether an interruption between a request or answer and its record here left them different."""
        return not self.ended and self.asked != self.actor.pending

    def ask(self, method: Callable[[EnvServer, *Ts], object], *args: *Ts) -> None:
        """Request a method of the server; it may take one env step."""
        self.asked += 1
        try:
            self.actor.ask(method, *args)
        except Exception:
            # The request was not sent.
            self.asked -= 1
            raise

    def begin(self, after: int) -> None:
        """Request a new episode; `after` is the number of env steps that count although unreported."""
        self.env_steps, self.begins = self.env_steps + after, True
        self.ask(EnvServer.begin, self.env_steps)

    def begin_at(self, env_steps: int) -> None:
        """Forget everything and request a new episode at an env step."""
        self._alive.clear()
        self._waiting.clear()
        self.undelivered.clear()
        self.held, self._shown, self.env_steps = {}, False, env_steps
        self.begin(0)

    def take(self, update: ServerUpdate, *, shown: bool = False) -> None:
        """Apply an update; a reset has `shown` its rows."""
        self.has_reported, self.begins, self.paused, self._shown = True, False, update.paused, shown
        events = update.events or PollEvents()
        if shown:
            events.ended = self._dropped(events.ended)
        for end in events.ended:
            self._alive.pop(end.slot, None)
        self._alive.update((join.slot, join) for join in events.joined)
        self._slots = self._slots if update.slots is None else update.slots
        self._waiting = set(self._slots.tolist())
        self.held, self.env_steps, self._start = update.held, update.env_steps, update.start
        self._put(update._replace(slots=self._slots, obs=unpack_stack(update.obs), events=events))

    def _dropped(self, ended: list[End]) -> list[End]:
        """Drop undelivered rows of an episode that a reset has ended; return the ends of delivered trajectories.

        The rewards of the rows, and of trajectories that are in no delivery, are unclaimed.
        """
        paid: dict[int, float] = {}
        early: set[int] = set()
        for one in self.undelivered:
            paid.update(zip(one.slots.tolist(), one.rewards.tolist(), strict=True))
            early.update(join.slot for join in one.events.joined)
            one.events.joined.clear()
        self.undelivered = deque(one._replace(**_NO_ROWS) for one in self.undelivered)
        for end in ended:
            if end.slot in early:
                paid[end.slot] = paid.get(end.slot, 0.0) + end.reward
        for slot, reward in paid.items():
            if reward:
                lost = Unclaimed(self.index, self._alive[slot].agent_id, reward, self.index)
                self.undelivered[-1].events.unclaimed.append(lost)
        return [
            end._replace(withdrawn=end.withdrawn or end.slot in paid)
            for end in ended
            if end.slot not in early
        ]

    def _put(self, more: ServerUpdate) -> None:
        before = self.undelivered[-1] if self.undelivered else None
        if before is not None and not len(before.slots) and not before.events.joined:
            append_events(before.events, more.events)
            self.undelivered.pop()
            more = more._replace(events=before.events)
        self.undelivered.append(more)

    def deliver(self) -> ServerUpdate:
        """Return what a poll delivers now."""
        found = self.undelivered.popleft()
        self._shown = False
        self._delivered, self.start = found.slots, found.start
        return found

    def act(self, actions: Any, pauses_at_ends: bool) -> None:
        """Send actions for all rows that wait, and request the next update."""
        if self.is_stale or self.ended or self.asked:
            # The results of these actions are unknown.
            slots = set(self._delivered.tolist())
            for one in self.undelivered:
                one.events.ended = [
                    end._replace(withdrawn=True) if end.slot in slots else end for end in one.events.ended
                ]
            return
        if self._shown:
            self.undelivered.append(self.undelivered.pop()._replace(**_NO_ROWS))
        self._waiting.clear()
        self.ask(EnvServer.step, pack_stack(actions), pauses_at_ends)

    def lose(self) -> None:
        """Write the ends of the running episode, which is lost; the results of the last actions are unknown."""
        index, events = self.index, PollEvents()
        events.unclaimed = [
            Unclaimed(index, agent, reward, index) for agent, reward in self.held.items() if reward
        ]
        events.ended = [
            End(slot, index, join.agent_id, 0.0, False, True, None, {}, withdrawn=slot not in self._waiting)
            for slot, join in self._alive.items()
        ]
        steps, paid = self.episode_steps, len(events.unclaimed)
        events.episodes = [EpisodeEnd(index, False, True, steps, index, paid, faulty=True)]
        events.faults = [self.fault()]
        self._waiting.clear()
        self._alive.clear()
        self.held, self._shown, self._slots = {}, False, _NOBODY
        update = ServerUpdate(env_steps=self.env_steps, held={}, events=events, start=self._start, **_NO_ROWS)
        self._put(update)

    def fault(self, where: str = "step") -> EnvFault:
        """Return the fault of a sub-environment whose process was lost."""
        kind, message = self.lost_by
        line = f"{kind}: {in_a_line(message)[:_LONGEST].rstrip()} in {where} of env {self.index}"
        return EnvFault(self.index, self.index, where, line, (kind, "", 0), self._start, message)

    @property
    def episode_steps(self) -> int:
        """Env steps of the running episode."""
        return self.env_steps - self._start


def append_events(events: PollEvents, more: PollEvents) -> None:
    """Append later events."""
    before = len(events.unclaimed)
    events.joined += more.joined
    events.ended += more.ended
    events.unclaimed += more.unclaimed
    events.episodes += [
        one._replace(unclaimed=one.unclaimed + before) if before else one for one in more.episodes
    ]
    events.faults += more.faults
    events.shared_infos += more.shared_infos
