"""The rollout loop: poll the environment, add rows to buffers, act, send the actions.

It works for every `BaseEnv`, one row per waiting agent. `menv.sampling.policy_group` is the next file to read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.adapter import Adapter
from menv.base_env import GLOBAL_STATE, Column, EnvId, Ready, StateRows
from menv.errors import ContractError
from menv.metrics import Timers
from menv.sampling.callback_runner import CallbackRunner
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.external_trajectories import ExternalTrajectoryWriter
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.observation_fn import ObservationFn
from menv.sampling.policy_group import Answers, PendingRows, PolicyGroup, outside_space_error
from menv.sampling.trajectories import TrajectoryTable
from menv.spaces import OutsideSpaceError, own_copy

_EMPTY_POLLS = 10_000

Blocks = list[tuple[int, PendingRows]]
"""Rows with the index of their policy group."""


class RolloutLoop:
    """Polls and acts until a fragment is full, and holds the rows that wait for an action.

    Call `groups_changed` after policy groups were added or changed.

    Attributes:
        env_steps: [E] env steps of each sub-environment so far.
        agent_steps: Rows that have been answered so far.
    """

    def __init__(
        self,
        base_env: Adapter,
        groups: list[PolicyGroup],
        limit: FragmentLimit,
        table: TrajectoryTable,
        tracker: EpisodeTracker,
        callbacks: CallbackRunner,
        external_writer: ExternalTrajectoryWriter,
        observation_fn: ObservationFn | None,
        timers: Timers,
    ) -> None:
        self.env_steps: Column = np.zeros(0, np.int64)
        self.agent_steps = 0
        self._base_env = base_env
        base_env.pauses_at_ends = callbacks.looks_at_ends
        self._groups = groups
        self._limit = limit
        self._table = table
        self._tracker = tracker
        self._callbacks = callbacks
        self._external_writer = external_writer
        self._observation_fn = observation_fn
        self._timers = timers
        self._seats: Any = ()
        # Rows that wait, and the slots array if they are all rows of one poll.
        self._pending: Blocks = []
        self._pending_slots: Column | None = None
        # How the rows of a slots array are grouped, for one version of the table.
        self._layout: tuple[Column, int, Blocks] | None = None
        self.groups_changed()

    def groups_changed(self) -> None:
        self._reads_episodes = any(group.strategy.reads_episodes for group in self._groups)
        self._layout = None

    def begin(self, polled: bool) -> Column:
        """Begin a fragment and return its first env step counts [E]; makes the first poll if none was made."""
        if polled or self._base_env.external:
            first = self.env_steps.copy()
        else:
            first = self.env_steps
            self.poll()
            first = first if len(first) else np.zeros_like(self.env_steps)
        self._limit.begin(first)
        return first

    def fill(self, explore: bool) -> bool:
        """Poll and act until the fragment is full; False if an external environment's `idle_timeout` expired."""
        limit, idle_timeout = self._limit, self._base_env.idle_timeout
        remaining, last_event, empty_polls = idle_timeout, time.monotonic(), 0
        while True:
            closed = limit.closed(self.env_steps)
            if closed is not None and closed.all():
                return True
            acted = self._act(closed, explore)
            if limit.room is not None:
                self._base_env.limit_steps(*limit.room)
            ready = self.poll(remaining)
            empty_polls = 0 if acted or len(ready.slots) or ready.played else empty_polls + 1
            if idle_timeout is not None:
                # An end has no rows, and an episode without actions leaves nothing else.
                if not empty_polls or ready.episodes or ready.ended:
                    last_event = time.monotonic()
                remaining = last_event + idle_timeout - time.monotonic()
                if remaining <= 0:
                    return False
            elif empty_polls and not self._base_env.external:
                self._wait(empty_polls)
            # Frees the observations before the environments create the next ones, which reuse the cached memory.
            del ready

    def _wait(self, empty_polls: int) -> None:
        if empty_polls >= _EMPTY_POLLS:
            raise _empty_polls_error(empty_polls, self._base_env.gone)
        if empty_polls > 100:
            time.sleep(0.001)

    def poll(self, timeout: float | None = None) -> Ready:
        """Poll, again after each pause, and record the answer: ends first, then joins, then rows."""
        while True:
            before = perf_counter()
            polled: Ready = self._base_env.poll(timeout)
            self._timers.env += perf_counter() - before
            self.env_steps, self._seats, ready = polled.env_steps, polled.seats, polled
            if self._observation_fn is not None:
                ready = self._observation_fn.finals(polled)
            if ready.ended or ready.joined or ready.unclaimed or ready.episodes or ready.faults:
                self._tracker.apply(ready)
                self._limit.end_episodes(ready.episodes)
            if ready.played:
                self._apply_external(ready)
            if self._callbacks.active:
                self._callbacks.polled(ready, self._tracker.running, self._table.returns)
            if len(ready.slots):
                self._add_rows(ready, polled)
            if not self._base_env.paused:
                return polled

    def _apply_external(self, ready: Ready) -> None:
        acted = self._external_writer.write(ready)
        if self._limit.counts_rows:
            self._limit.count(acted)
        self._limit.end_episodes([chunk.episode for chunk in ready.played if chunk.episode])
        self.agent_steps += len(acted)

    def _add_rows(self, ready: Ready, original: Ready) -> None:
        """Add the rows of a poll; `original` is the poll before `observation_fn` changed final observations."""
        if self._observation_fn is not None:
            ready = self._observation_fn.rows(ready, original)
        table = self._table
        table.returns[ready.slots] += ready.rewards
        layout = self._layout
        if layout is None or layout[0] is not ready.slots or layout[1] != table.version:
            layout = self._layout = (ready.slots, table.version, _by_group(ready.slots, table, self._groups))
        blocks = layout[2]
        is_whole_poll = not self._pending and not ready.taken
        for number, looked_up in blocks:
            block = looked_up if len(blocks) == 1 else looked_up.copy()
            self._add_block(number, block, ready)
            for part in _split_by_actor(block, ready.taken) if ready.taken else (block,):
                self._pending.append((number, part))
        self._pending_slots = ready.slots if is_whole_poll else None

    def _add_block(self, number: int, block: PendingRows, ready: Ready) -> None:
        group, obs, rewards = self._groups[number], ready.obs, ready.rewards
        if block.places is not None:
            obs, rewards = block.of(obs), block.of(rewards)
        try:
            rows = group.buffer.add(block.slots, *group.strategy.rows(block, obs, rewards, ready))
            block.rows = rows
            group.buffer.add_infos(ready.infos, block.places)
            if ready.infos and GLOBAL_STATE in ready.infos[0]:
                group.buffer.mark(GLOBAL_STATE, block.rows, _states(ready.infos, block))
            if self._callbacks.keeps:
                group.buffer.set_env_t(block.rows, self.env_steps[block.env_indices])
        except OutsideSpaceError as error:
            env_id, agent_id = ready.seats[int(block.slots[error.row])]
            step = int(self.env_steps[block.env_indices[error.row]])
            origin = "" if self._observation_fn is None else "observation_fn, "
            where = f"{origin}env step {step}"
            raise outside_space_error(
                env_id, agent_id, where, error, group.strategy.observation_space
            ) from error
        block.raw = obs if self._reads_episodes else None

    def _act(self, closed: npt.NDArray[np.bool_] | None, explore: bool) -> bool:
        """Act for the rows that wait, except in sub-environments that are `closed` [E]; False if there are none."""
        blocks, slots = self._pending, self._pending_slots
        self._pending, self._pending_slots = [], None
        if closed is not None:
            blocks, self._pending = _set_aside(blocks, closed)
            slots = None
        if not blocks:
            return False
        if slots is not None and len(blocks) == 1:
            # The usual case: one policy group acts for all rows of a poll.
            self.agent_steps += len(slots)
            actions = self._act_for(*blocks[0], explore)
        else:
            answers = [self._act_for(number, block, explore) for number, block in blocks]
            self.agent_steps += sum(len(block.slots) for _, block in blocks)
            slots, actions = _join_actions(blocks, answers, slots)
        before = perf_counter()
        self._base_env.send_actions(slots, actions)
        self._timers.env += perf_counter() - before
        return True

    def _act_for(self, number: int, block: PendingRows, explore: bool) -> Answers:
        before, group = perf_counter(), self._groups[number]
        seats = self._seats
        if group.strategy.reads_episodes:
            block.episodes = [self._tracker.running[seats[slot][0]] for slot in block.slots.tolist()]
        if self._limit.counts_rows:
            self._limit.count(block.env_indices)
        if block.taken is not None:
            return self._external_writer.record_actions(group, block, block.taken, seats)
        answers = group.strategy.act(block, group.buffer, self._table, self.env_steps, seats, explore)
        self._timers.act += perf_counter() - before
        return answers

    def fragment_closed(self) -> None:
        """Find the rows that wait at their new places, after the buffers were closed."""
        for number, block in self._pending:
            block.rows = self._groups[number].buffer.moved(block.rows)

    @property
    def awaited(self) -> list[EnvId]:
        """The running episodes of an external environment whose ends are all that a fragment lacks."""
        closed = self._limit.closed(self.env_steps)
        return [] if closed is None else self._base_env.episodes_at(np.flatnonzero(~closed))


def _states(infos: Any, block: PendingRows) -> Column:
    """Return the global states [R, S] of the rows of a block."""
    if isinstance(infos, StateRows):
        return infos.states if block.places is None else infos.states[block.places]
    return np.stack([info[GLOBAL_STATE] for info in block.of(infos)])


def _split_by_actor(block: PendingRows, taken: Mapping[int, Any]) -> list[PendingRows]:
    """Return the rows for which policies act, and the rows whose actions, by slot, clients chose."""
    mine = np.array([slot in taken for slot in block.slots.tolist()], np.bool_)
    parts = []
    if not mine.all():
        parts.append(block.part(~mine))
    if mine.any():
        own = block.part(mine)
        own.taken = [taken[slot] for slot in own.slots.tolist()]
        parts.append(own)
    return parts


def _set_aside(blocks: Blocks, closed: npt.NDArray[np.bool_]) -> tuple[Blocks, Blocks]:
    """Return the rows, by group index, of open sub-environments and of sub-environments that are `closed` [E]."""
    opened, shut = [], []
    for number, block in blocks:
        mine = closed[block.env_indices]
        if mine.any():
            rest = block.part(mine)
            if rest.raw is not None:
                # Environments may overwrite the arrays of a poll before these rows are answered.
                rest.raw = [own_copy(one) for one in rest.raw]
            shut.append((number, rest))
        if not mine.all():
            opened.append((number, block.part(~mine)))
    return opened, shut


def _join_actions(blocks: Blocks, answers: Sequence[Any], slots: Column | None) -> tuple[Column, Any]:
    """Return the slots [R] and the actions of several blocks.

    With `slots` [R] of a poll, whose rows the blocks are, both are in the order of that poll.
    """
    flat = _concatenated(answers)
    if slots is None:
        return np.concatenate([block.slots for _, block in blocks]), flat
    order = np.argsort(np.concatenate([block.places for _, block in blocks if block.places is not None]))
    if isinstance(flat, list):
        return slots, list(itemgetter(*order.tolist())(flat))
    ordered = flat[order]
    ordered.flags.writeable = flat.flags.writeable
    return slots, ordered


def _concatenated(answers: Sequence[Any]) -> list[Any] | Column:
    """Return the actions of all blocks as one array if they are arrays of one kind, else as a list."""
    arrays = [part for part in answers if isinstance(part, np.ndarray)]
    if len(arrays) < len(answers) or len({(part.dtype, part.shape[1:]) for part in arrays}) > 1:
        return [action for part in answers for action in part]
    flat = np.concatenate(arrays)
    flat.flags.writeable = all(part.flags.writeable for part in arrays)
    return flat


def _by_group(slots: Column, table: TrajectoryTable, groups: list[PolicyGroup]) -> Blocks:
    """Split the rows of a slots array [R] by policy group and look up what acting needs."""
    present, numbers = [0], table.groups
    if len(groups) > 1:
        numbers = numbers[slots]
        present = np.flatnonzero(np.bincount(numbers)).tolist()
    blocks = []
    for number in present:
        places = None if len(present) == 1 else np.flatnonzero(numbers == number)
        mine = slots if places is None else slots.take(places)
        which: Column | int = 0
        if len(groups[number].policy_ids) > 1:
            which = table.policies.take(mine)
            # Back-ends cache what they derive from this array while it stays the same object.
            which.flags.writeable = False
        blocks.append(
            (number, PendingRows(mine, which, table.env_indices.take(mine), slice(0, 0), places=places))
        )
    return blocks


def _empty_polls_error(polls: int, gone: Sequence[EnvId]) -> ContractError:
    if gone:
        return ContractError(
            f"sample: env {gone[0]} ended for good, because try_reset returned (None, None), and {polls} polls in a "
            "row brought no new env id, expected one in its place; return its obs from try_reset, or a new env id "
            "from poll, or leave num_envs out, so that the remaining ones fill the fragment"
        )
    return ContractError(
        f"sample: {polls} polls in a row returned nothing and no agent waits, expected rows; "
        "check that the environment's poll returns observations after its send_actions"
    )
