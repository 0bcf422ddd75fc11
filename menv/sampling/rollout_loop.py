"""The long way round, for every kind of environment: poll, connect, write down, act, send; row by row.

`menv.sampling.sampler` goes it unless whole frames lead to the same (`menv.sampling.vector_loop`,
`menv.sampling.vector_loop`). It
holds the rows that wait, and knows neither when fragments are closed nor what becomes of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.custom import CustomEnvs
from menv.adapters.external import ExternalEnvs
from menv.base_env import BaseEnv, Column, EnvId, Ready
from menv.errors import ContractError
from menv.inference.action_sampler import TrajectoryTable
from menv.metrics import Timers
from menv.sampling.callback_runner import CallbackRunner
from menv.sampling.custom_policy_group import CustomPolicyGroup
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.external_trajectories import ExternalTrajectoryWriter
from menv.sampling.fragment_limit import ExternalFragmentLimit, FragmentLimit
from menv.sampling.observation_fn import ObservationFn
from menv.sampling.policy_group import Answers, PendingRows, PolicyGroup, joined, outside, set_aside, split
from menv.spaces import OutsideSpaceError


@dataclass(slots=True)
class GroupLayouts:
    """Look-ups for the rows of one slots array, valid for one version of the slot table.

    Attributes:
        slots: [R].
        version: Of the table.
        blocks: The number of a group and its rows.
    """

    slots: Column
    version: int
    blocks: list[tuple[int, PendingRows]]


def look_up(slots: Column, table: TrajectoryTable, groups: list[PolicyGroup]) -> GroupLayouts:
    """Group rows [R] by group and look up what their answers need."""
    if len(groups) == 1:
        return GroupLayouts(slots, table.version, [(0, _block(slots, None, table, groups[0]))])
    numbers = table.groups[slots]
    first = int(numbers[0])
    if (numbers == first).all():
        blocks = [(first, _block(slots, None, table, groups[first]))]
    else:
        blocks = [
            (int(number), _block(slots, np.flatnonzero(numbers == number), table, groups[number]))
            for number in np.flatnonzero(np.bincount(numbers))
        ]
    return GroupLayouts(slots, table.version, blocks)


def _block(slots: Column, places: Column | None, table: TrajectoryTable, group: PolicyGroup) -> PendingRows:
    mine = slots if places is None else slots[places]
    which: Column | int = 0
    if len(group.policy_ids) > 1:
        which = table.policies[mine]
        # Whoever is handed the same array again may know that nothing in it has changed.
        which.flags.writeable = False
    return PendingRows(mine, which, table.env_indices[mine], slice(0, 0), places=places)


_EMPTY_POLLS = 10_000


class PollTimeout:
    """How long it is that one environment has had nothing to tell.

    Attributes:
        left: Seconds that the next poll may wait, None for ever.
    """

    def __init__(self, base_env: BaseEnv) -> None:
        self.left = self._limit = base_env.idle_timeout
        self._starves = not base_env.external
        self._custom = base_env if isinstance(base_env, CustomEnvs) else None
        self._moved = time.monotonic()
        # Polls in a row that returned nothing.
        self._idle = 0

    def ends(self, ready: Ready, answered: bool) -> bool:
        """Return whether nobody has called for too long.

        Args:
            ready: What the last poll returned.
            answered: Whether somebody had been answered before it.

        Raises:
            ContractError: It was the last of too many that returned nothing, and nobody else could change that.
        """
        self._idle = 0 if answered or len(ready.slots) or ready.played else self._idle + 1
        if self._limit is not None:
            if not self._idle or ready.episodes or ready.ended:
                # An end has no rows; an episode in which nobody acted leaves nothing at all.
                self._moved = time.monotonic()
            self.left = self._moved + self._limit - time.monotonic()
            return self.left <= 0
        if self._idle and self._starves:
            starve(self._idle, self._custom.gone if self._custom is not None else ())
        return False


def starve(idle: int, gone: Sequence[EnvId] = ()) -> None:
    """Wait, after so many polls in a row that returned nothing.

    Args:
        idle: How many.
        gone: The sub-environments that ended for good.

    Raises:
        ContractError: They were too many.
    """
    if idle >= _EMPTY_POLLS:
        if gone:
            raise ContractError(
                f"sample: env {gone[0]} ended for good, because try_reset returned (None, None), and {idle} polls in a "
                "row brought no new env id, expected one in its place; return its obs from try_reset, or a new env id "
                "from poll, or leave num_envs out, so that those that are left fill the fragment"
            )
        raise ContractError(
            f"sample: {idle} polls in a row returned nothing and nobody waits, expected rows; "
            "check that the environment's poll returns observations after its send_actions"
        )
    if idle > 100:
        time.sleep(0.001)


class RolloutLoop:
    """Goes round row by row, and holds the rows that wait.

    Attributes:
        env_steps: [E] env steps of each sub-environment so far.
        agent_steps: Rows that have been answered so far.
    """

    def __init__(
        self,
        base_env: BaseEnv,
        groups: list[PolicyGroup],
        limit: FragmentLimit,
        table: TrajectoryTable,
        tracker: EpisodeTracker,
        callbacks: CallbackRunner,
        external_writer: ExternalTrajectoryWriter,
        observation_fn: ObservationFn | None,
        timers: Timers,
    ) -> None:
        """Begin without rows.

        Args:
            base_env: What is polled.
            groups: Who answers; `follow` has to be called when they have changed.
            limit: When a fragment is full.
            table: Whose slots are whose.
            tracker: Told what begins and ends.
            callbacks: Told what moved.
            external_writer: Writes down what was played elsewhere.
            observation_fn: Shows agents more than their own observations, if there is one.
            timers: Told of what environments and policies take.
        """
        self.env_steps: Column = np.zeros(0, np.int64)
        self.agent_steps = 0
        self._base_env = base_env
        self._groups = groups
        self._limit = limit
        self._board = base_env.broker if isinstance(base_env, ExternalEnvs) else None
        self._table = table
        self._tracker = tracker
        self._callbacks = callbacks
        self._external_writer = external_writer
        self._observation_fn = observation_fn
        self._timers = timers
        self._seats: Any = ()
        # Rows that wait, by group number, and the slots array if they are all rows of one poll.
        self._pending: list[tuple[int, PendingRows]] = []
        self._pending_slots: Column | None = None
        self.follow()

    def follow(self) -> None:
        """Take note of groups that have come, or of other policies in those there are."""
        self._own = any(isinstance(group, CustomPolicyGroup) for group in self._groups)
        self._layout: GroupLayouts | None = None

    @property
    def alone(self) -> PendingRows | None:
        """The rows that wait, None unless they are one block."""
        return self._pending[0][1] if len(self._pending) == 1 else None

    def lend(self, env_steps: Column) -> None:
        """Leave the rows that wait to somebody else, who counts env steps in this very array [E] meanwhile."""
        self._pending, self._pending_slots = [], None
        self.env_steps = env_steps

    def take_back(self, blocks: Sequence[PendingRows]) -> None:
        """Go on with rows of the first group that wait."""
        self._pending = [(0, block) for block in blocks]

    def state(self, number: int, slots: Column) -> dict[str, Any]:
        """Return of some trajectories [S] of a group what is known of the rows that wait: `raw` and `turn`.

        `turn` [S, 2] is the number of a row's block and its place in it, which decide who is answered first; -1 where
        nobody waits.
        """
        raw: dict[int, Any] = {}
        turn: dict[int, tuple[int, int]] = {}
        for which, (group, block) in enumerate(self._pending):
            if group == number:
                waits = block.slots.tolist()
                turn |= {slot: (which, place) for place, slot in enumerate(waits)}
                raw |= dict(zip(waits, block.raw or [None] * len(waits), strict=True))
        wanted = slots.tolist()
        turns = np.array([turn.get(slot, (-1, 0)) for slot in wanted], np.int64).reshape(len(wanted), 2)
        return {"raw": [raw.get(slot) for slot in wanted], "turn": turns}

    def resume(
        self, env_steps: Column, seats: Any, waiting: Sequence[tuple[int, int, Mapping[str, Any]]]
    ) -> None:
        """Go on with rows of which `state` of another loop told.

        Args:
            env_steps: [E] so far.
            seats: See `Ready.seats`.
            waiting: The number of a group, where the first of some rows is in its buffer, and these rows: `slot`,
                `policy` and `env_index` beside what `state` returned.
        """
        self.env_steps, self._seats = env_steps, seats
        blocks = [
            (turn, number, self._block(turn, number, first, rows))
            for number, first, rows in waiting
            for turn in np.unique(rows["turn"][:, 0]).tolist()
            if turn >= 0
        ]
        self._pending = [(number, block) for _, number, block in sorted(blocks, key=itemgetter(0))]

    def _block(self, turn: int, number: int, first: int, rows: Mapping[str, Any]) -> PendingRows:
        """Return those of some rows of a group that wait with one turn, in their order."""
        turns, places = rows["turn"].T
        waits = np.flatnonzero(turns == turn)
        waits = waits[np.argsort(places[waits])]
        which = 0 if len(self._groups[number].policy_ids) == 1 else rows["policy"][waits]
        raw = [rows["raw"][place] for place in waits.tolist()]
        return PendingRows(rows["slot"][waits], which, rows["env_index"][waits], first + waits, raw)

    def begin(self, polled: bool) -> Column:
        """Begin a fragment and return the env steps of then; the first poll is made where nobody has polled."""
        if polled or self._base_env.external:
            begun = self.env_steps.copy()
        else:
            begun = self.env_steps
            self.poll()
            begun = begun if len(begun) else np.zeros_like(self.env_steps)
        self._limit.begin(begun)
        return begun

    def fill(self, explore: bool) -> bool:
        """Poll and answer until the fragment is full; False if nobody called an external environment for too long.

        Args:
            explore: False asks for the most likely actions.
        """
        limit, patience = self._limit, PollTimeout(self._base_env)
        while True:
            closed = limit.closed(self.env_steps)
            if closed is not None and closed.all():
                return True
            answered = self._answer(closed, explore)
            if self._board is not None and isinstance(limit, ExternalFragmentLimit):
                self._board.limit_steps(*limit.room)
            ready = self._polled(patience.left)
            self._take(ready)
            if patience.ends(ready, answered):
                return False
            # Its observations are let go before the environments make the next ones: these find room in the caches.
            del ready

    @property
    def awaited(self) -> list[EnvId]:
        """The episodes of an external environment whose ends are all that a fragment lacks."""
        closed = self._limit.closed(self.env_steps)
        if closed is None or not isinstance(self._base_env, ExternalEnvs):
            return []
        return self._base_env.episodes_at(np.flatnonzero(~closed))

    def poll(self) -> None:
        """Take in what there is to tell."""
        self._take(self._polled(None))

    def _polled(self, timeout: float | None) -> Ready:
        before = perf_counter()
        ready: Ready = self._base_env.poll(timeout)
        self._timers.env += perf_counter() - before
        return ready

    def closed(self) -> None:
        """Find the rows that wait at their new places, once the buffers have been closed."""
        for number, block in self._pending:
            block.rows = self._groups[number].buffer.moved(block.rows)

    def _answer(self, closed: npt.NDArray[np.bool_] | None, explore: bool) -> bool:
        """Answer the rows that wait, but for sub-environments whose share is full."""
        blocks, slots = self._pending, self._pending_slots
        self._pending, self._pending_slots = [], None
        if closed is not None:
            # Rows of full sub-environments go on waiting.
            blocks, self._pending = set_aside(blocks, closed)
            slots = None
        if not blocks:
            return False
        if slots is not None and len(blocks) == 1:
            # As a rule one group answers for all rows of a poll.
            self.agent_steps += len(slots)
            self._send(slots, self._decide(*blocks[0], explore))
            return True
        answers = [self._decide(number, block, explore) for number, block in blocks]
        self.agent_steps += sum(len(block.slots) for _, block in blocks)
        self._send(*joined(blocks, answers, slots))
        return True

    def _send(self, slots: Column, actions: Answers) -> None:
        """Hand actions [R] to the environment; many step right then."""
        before = perf_counter()
        self._base_env.send_actions(slots, actions)
        self._timers.env += perf_counter() - before

    def _decide(self, number: int, block: PendingRows, explore: bool) -> Answers:
        before, group = perf_counter(), self._groups[number]
        episodes: Sequence[Any] = ()
        if self._own and isinstance(group, CustomPolicyGroup):
            seats = self._seats
            episodes = [self._tracker.running[seats[slot][0]] for slot in block.slots.tolist()]
        self._limit.count(block.env_indices)
        if block.taken is not None:
            return self._external_writer.took(group, block, block.taken, self._seats)
        answers = group.answer(block, self._table, self.env_steps, explore, episodes)
        self._timers.act += perf_counter() - before
        return answers

    def _take(self, ready: Ready) -> None:
        self.env_steps = ready.env_steps
        self._seats = ready.seats
        before = ready
        if self._observation_fn is not None:
            ready = self._observation_fn.finals(ready)
        if ready.ended or ready.joined or ready.unclaimed or ready.episodes or ready.faults:
            self._tracker.take(ready)
            self._limit.note_ends(ready.episodes)
        if ready.played:
            self._take_played(ready)
        if self._callbacks.active:
            self._callbacks.polled(ready, self._tracker.running, self._table.returns)
        if len(ready.slots):
            self._take_rows(ready, before)

    def _take_played(self, ready: Ready) -> None:
        acted = self._external_writer.take(ready)
        self._limit.count(acted)
        self._limit.note_ends([piece.episode for piece in ready.played if piece.episode])
        self.agent_steps += len(acted)

    def _take_rows(self, ready: Ready, before: Ready) -> None:
        """Take in the rows of a poll; `before` as it was without an `observation_fn`."""
        if self._observation_fn is not None:
            ready = self._observation_fn.rows(ready, before)
        table = self._table
        table.returns[ready.slots] += ready.rewards
        layout = self._layout
        if layout is None or layout.slots is not ready.slots or layout.version != table.version:
            layout = self._layout = look_up(ready.slots, table, self._groups)
        whole = not self._pending
        for number, looked_up in layout.blocks:
            block = looked_up if len(layout.blocks) == 1 else looked_up.copy()
            self._write(number, block, ready)
            parts = split(block, ready.taken) if ready.taken else [block]
            self._pending += [(number, part) for part in parts]
        self._pending_slots = ready.slots if whole and not ready.taken else None

    def _write(self, number: int, block: PendingRows, ready: Ready) -> None:
        obs, rewards = block.of(ready.obs), block.of(ready.rewards)
        try:
            block.rows = self._groups[number].write(block, obs, rewards, ready)
            self._groups[number].buffer.inform(ready.infos, block.places)
            if self._callbacks.keeps:
                self._groups[number].buffer.date(block.rows, self.env_steps[block.env_indices])
        except OutsideSpaceError as error:
            env_id, agent_id = ready.seats[int(block.slots[error.row])]
            step = int(self.env_steps[block.env_indices[error.row]])
            origin = "" if self._observation_fn is None else "observation_fn, "
            space = self._groups[number].observation_space
            raise outside(env_id, agent_id, f"{origin}env step {step}", error, space) from error
        block.raw = obs if self._own else None
