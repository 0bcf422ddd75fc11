"""The sampler: poll, connect, act, write down, send; for every kind of environment.

The one loop through which all experience flows. An algorithm calls `sample`; everything else is
called from here and never calls back. It knows no losses and no learners.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv import draws
from menv.base_env import AgentId, BaseEnv, EnvId, Join, Ready, Unclaimed
from menv.episode import Episode
from menv.errors import ContractError
from menv.loop.cohort import Block, Cohort, OwnCohort, outside
from menv.loop.quota import Quota
from menv.loop.slot_table import SlotTable
from menv.metrics import Metrics
from menv.multi_agent_batch import MultiAgentBatch
from menv.policy_map import PolicyMap
from menv.sample_batch import SampleBatch
from menv.segments import Column
from menv.spaces import OutsideSpaceError
from menv.trajectories import Start

_EMPTY_POLLS = 10_000
_KEPT_KEYS = 65_536


@dataclass(slots=True)
class _Layout:
    """Look-ups for the rows of one slots array, valid for one version of the slot table."""

    slots: Column
    version: int
    blocks: list[tuple[int, Block]]


class Sampler:
    """Collects fragments of experience from one `BaseEnv`.

    Attributes:
        base_env: The sub-environments.
        policy_map: Who answers for whom.
        worker_index: 0 in the driver's own process, from 1 in workers.
        num_workers: How many workers there are.
        metrics: The episodes that ended.
        explore: False acts greedily.
    """

    def __init__(
        self,
        base_env: BaseEnv,
        policy_map: PolicyMap,
        cohorts: Sequence[Cohort],
        quota: Quota,
        *,
        metrics: Metrics | None = None,
        seed: int = 0,
        worker_index: int = 0,
        num_workers: int = 0,
        first_index: int = 0,
    ) -> None:
        """Take over an environment that has not been polled.

        Args:
            base_env: In table form.
            policy_map: Maps to the policies of `cohorts`.
            cohorts: Who answers; each policy is in exactly one.
            quota: When a fragment is full.
            metrics: Where episodes are recorded.
            seed: Key of every random draw.
            worker_index: This process.
            num_workers: How many workers there are.
            first_index: Index of this process's first sub-environment among all.
        """
        self.base_env = base_env
        self.policy_map = policy_map
        self.worker_index = worker_index
        self.num_workers = num_workers
        self.metrics = metrics or Metrics()
        self.explore = True
        self.env_steps = 0
        self.agent_steps = 0
        self._cohorts = list(cohorts)
        self._own = any(isinstance(cohort, OwnCohort) for cohort in cohorts)
        self._where = {
            policy_id: (number, index)
            for number, cohort in enumerate(cohorts)
            for index, policy_id in enumerate(cohort.policy_ids)
        }
        self._quota = quota
        self._seed = seed
        self._first_index = first_index
        self._table = SlotTable()
        self._episodes: dict[EnvId, Episode] = {}
        self._keys: dict[tuple[int, AgentId], int] = {}
        # By sub-environment: the key of its episodes and how many have begun.
        self._env_keys: dict[int, tuple[int, int]] = {}
        self._layout: _Layout | None = None
        self._steps: Column = np.zeros(0, np.int64)
        # Rows that wait, by cohort number, and the slots array if they are all rows of one poll.
        self._pending: list[tuple[int, Block]] = []
        self._pending_slots: Column | None = None
        self._polled = False
        self._unrolls = 0

    def sample(self) -> MultiAgentBatch:
        """Return one fragment: full for every sub-environment, rows with complete rewards only.

        Raises:
            ContractError: The environment or a policy broke its interface.
            EnvCrashError: The environment raised.
        """
        if not self._polled:
            self._polled = True
            self._take(self.base_env.poll())
            begun = np.zeros_like(self._steps)
        else:
            begun = self._steps.copy()
        self._quota.begin(begun)
        idle = 0
        while True:
            closed = self._quota.closed(self._steps)
            if closed is not None and closed.all():
                break
            answered = self._answer(closed)
            ready = self.base_env.poll()
            idle = 0 if answered or len(ready.slots) else idle + 1
            if idle:
                self._starve(idle)
            self._take(ready)
        return self._close(int(self._steps.sum() - begun.sum()))

    def held_rewards(self) -> float:
        """Return what was paid and still waits for its row, or for its row's action."""
        in_env = sum(sum(by_agent.values()) for by_agent in self.base_env.held_rewards().values())
        return float(in_env + sum(cohort.ledger.held_rewards() for cohort in self._cohorts))

    def _answer(self, closed: npt.NDArray[np.bool_] | None) -> bool:
        """Answer the rows that wait, but for sub-environments whose share is full."""
        blocks, slots = self._pending, self._pending_slots
        self._pending, self._pending_slots = [], None
        if closed is not None:
            blocks, slots = self._keep_closed(blocks, closed), None
        if not blocks:
            return False
        answers = [self._decide(number, block) for number, block in blocks]
        self.agent_steps += sum(len(block.slots) for _, block in blocks)
        if slots is not None and len(blocks) == 1:
            self.base_env.send_actions(slots, answers[0])
        else:
            self._send(blocks, answers, slots)
        return True

    def _decide(self, number: int, block: Block) -> Sequence[Any]:
        """Ask a cohort for the actions of a block."""
        cohort = self._cohorts[number]
        episodes: Sequence[Any] = ()
        if self._own and isinstance(cohort, OwnCohort):
            seats = self._seats
            episodes = [self._episodes[seats[slot][0]] for slot in block.slots.tolist()]
        self._quota.count(block.env_indices)
        return cohort.answer(block, self._table, self._steps, self.explore, episodes)

    def _send(
        self, blocks: list[tuple[int, Block]], answers: list[Sequence[Any]], slots: Column | None
    ) -> None:
        """Send the answers of several blocks, in the order of the poll's rows where that is known."""
        flat = [action for part in answers for action in part]
        if slots is None:
            self.base_env.send_actions(np.concatenate([block.slots for _, block in blocks]), flat)
            return
        places = np.concatenate([block.places for _, block in blocks if block.places is not None])
        order = np.argsort(places).tolist()
        self.base_env.send_actions(slots, list(itemgetter(*order)(flat)))

    def _keep_closed(
        self, blocks: list[tuple[int, Block]], closed: npt.NDArray[np.bool_]
    ) -> list[tuple[int, Block]]:
        """Leave the rows of full sub-environments pending and return the others."""
        open_blocks = []
        for number, block in blocks:
            shut = closed[block.env_indices]
            if shut.any():
                self._pending.append((number, _part(block, shut)))
            if not shut.all():
                open_blocks.append((number, _part(block, ~shut)))
        return open_blocks

    def _take(self, ready: Ready) -> None:
        """Take in a poll: ends, episodes, joins, rows."""
        self._steps = ready.env_steps
        self._seats = ready.seats
        if ready.ended or ready.unclaimed or ready.episodes:
            self._take_ends(ready)
        for join in ready.joined:
            self._join(join)
        if not len(ready.slots):
            return
        table = self._table
        table.returns[ready.slots] += ready.rewards
        layout = self._layout
        if layout is None or layout.slots is not ready.slots or layout.version != table.version:
            layout = self._layout = self._look_up(ready.slots)
        whole = not self._pending
        for number, looked_up in layout.blocks:
            block = looked_up if len(layout.blocks) == 1 else _copy(looked_up)
            self._write(number, block, ready)
            self._pending.append((number, block))
        self._pending_slots = ready.slots if whole else None

    def _write(self, number: int, block: Block, ready: Ready) -> None:
        """Write the rows of a block into its cohort's ledger."""
        obs, rewards = ready.obs, ready.rewards
        if block.places is not None:
            rewards = rewards[block.places]
            obs = (
                obs[block.places]
                if isinstance(obs, np.ndarray)
                else [obs[place] for place in block.places.tolist()]
            )
        try:
            block.rows = self._cohorts[number].write(block.slots, obs, rewards)
            self._cohorts[number].ledger.inform(ready.infos, block.places)
        except OutsideSpaceError as error:
            env_id, agent_id = ready.seats[int(block.slots[error.row])]
            step = int(self._steps[block.env_indices[error.row]])
            raise outside(env_id, agent_id, f"env step {step}", error.why) from error
        block.raw = obs if self._own else None

    def _look_up(self, slots: Column) -> _Layout:
        """Group the rows by cohort and look up what their answers need."""
        table = self._table
        cohorts = table.cohorts[slots]
        first = int(cohorts[0])
        if len(self._cohorts) == 1 or (cohorts == first).all():
            blocks = [(first, self._block(slots, None))]
        else:
            blocks = [
                (int(number), self._block(slots, np.flatnonzero(cohorts == number)))
                for number in np.unique(cohorts)
            ]
        return _Layout(slots, table.version, blocks)

    def _block(self, slots: Column, places: Column | None) -> Block:
        """Return the look-ups for the rows at `places`."""
        table = self._table
        mine = slots if places is None else slots[places]
        number = int(table.cohorts[mine[0]])
        only = len(self._cohorts[number].policy_ids) == 1
        which = 0 if only else table.policies[mine]
        return Block(mine, which, table.env_indices[mine], slice(0, 0), places=places)

    def _take_ends(self, ready: Ready) -> None:
        """Take in trajectories and episodes that ended."""
        table = self._table
        for end in ready.ended:
            self._episodes[end.env_id].credit(end.agent_id, float(table.returns[end.slot]) + end.reward)
            self._cohorts[table.seat(end.slot).cohort].ledger.end(end)
        booked = 0
        for finished in ready.episodes:
            self._book(ready.unclaimed[booked : finished.unclaimed])
            booked = finished.unclaimed
            # An episode in which nobody acted is begun here, to be recorded too.
            episode = self._episode(finished.env_id, finished.env_index)
            del self._episodes[finished.env_id]
            episode.length = finished.env_steps
            self.metrics.record(episode)
        self._book(ready.unclaimed[booked:])
        self._quota.note_ends(ready.episodes)

    def _book(self, unclaimed: Sequence[Unclaimed]) -> None:
        """Book rewards that no action can own to the running episodes."""
        for entry in unclaimed:
            self._episode(entry.env_id, entry.env_index).unclaimed_rewards += entry.reward

    def _join(self, join: Join) -> None:
        """Bind an agent to a policy and begin its trajectory."""
        episode = self._episodes.get(join.env_id) or self._episode(join.env_id, join.env_index)
        policy_id = episode.known_policy(join.agent_id)
        if policy_id is None:
            policy_id = self.policy_map.only or self.policy_map.policy_for(join.agent_id, episode, self)
            episode.bind(join.agent_id, policy_id)
        number, index = self._where[policy_id]
        key = self._keys.get((join.env_index, join.agent_id))
        self._table.sit(join.slot, number, index, join.env_index, key or self._new_key(join))
        start = Start(join.slot, index, episode.episode_id, episode.number_of(join.agent_id), join.env_index)
        self._cohorts[number].ledger.start(start, join.agent_id)

    def _new_key(self, join: Join) -> int:
        """Return the key of an agent's draws; a hash of its id, never Python's own."""
        if len(self._keys) >= _KEPT_KEYS:
            self._keys.clear()
        env = self._first_index + join.env_index
        key = draws.key(self._seed, env, draws.stable_hash(join.agent_id), draws.ACTION)
        self._keys[join.env_index, join.agent_id] = key
        return key

    def _episode(self, env_id: EnvId, env_index: int) -> Episode:
        """Return the running episode of a sub-environment, begun if need be."""
        episode = self._episodes.get(env_id)
        if episode is None:
            key, number = self._env_keys.get(env_index) or (self._new_env_key(env_index), 0)
            self._env_keys[env_index] = (key, number + 1)
            episode = self._episodes[env_id] = Episode(draws.key(key, number) >> 5, env_id)
        return episode

    def _new_env_key(self, env_index: int) -> int:
        """Return the key of a sub-environment's episodes."""
        return draws.key(self._seed, self._first_index + env_index, draws.MAPPING)

    def _close(self, env_steps: int) -> MultiAgentBatch:
        """Close every cohort's fragment and point the rows that still wait to their new places."""
        self.env_steps += env_steps
        batches: dict[str, SampleBatch] = {}
        for cohort in self._cohorts:
            batches.update(cohort.close())
        for batch in batches.values():
            pieces = len(batch.segments.lengths)
            batch.segments.unroll_id = np.arange(self._unrolls, self._unrolls + pieces)
            self._unrolls += pieces
        for number, block in self._pending:
            block.rows = self._cohorts[number].ledger.moved(block.rows)
        order = self.policy_map.specs
        return MultiAgentBatch({policy: batches[policy] for policy in order if policy in batches}, env_steps)

    def _starve(self, idle: int) -> None:
        """Wait a little, and give up after a long time without a row."""
        if idle >= _EMPTY_POLLS:
            raise ContractError(
                f"sample: {idle} polls in a row returned nothing and nobody waits, expected rows; "
                "check that the environment's poll returns observations after its send_actions"
            )
        if idle > 100:
            time.sleep(0.001)


def _part(block: Block, chosen: npt.NDArray[np.bool_]) -> Block:
    """Return the rows of a block that a mask selects."""
    rows = np.arange(block.rows.start, block.rows.stop) if isinstance(block.rows, slice) else block.rows
    which = block.which if isinstance(block.which, int) else block.which[chosen]
    raw = None if block.raw is None else [block.raw[place] for place in np.flatnonzero(chosen).tolist()]
    return Block(block.slots[chosen], which, block.env_indices[chosen], rows[chosen], raw)


def _copy(block: Block) -> Block:
    """Return a block with the same look-ups, to be given rows of its own."""
    return Block(block.slots, block.which, block.env_indices, block.rows, block.raw, block.places)
