"""Which trajectory has which slot and who of them waits, where somebody else hands out the slots.

`table` asks it about each poll of a user's own tables, so that a mistake is named in the poll in which it is made. It
calls nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from menv.adapters.validation import check_answers
from menv.base_env import ALL, COMMON, AgentId, End, EnvId, EpisodeEnd, IntArray, Join, Unclaimed
from menv.errors import ContractError
from menv.spaces import as_reward, own_copy

_MOST_SLOTS = 1 << 24
_KEPT_IDS = 65_536
_NOBODY: tuple[EnvId, AgentId] = (None, None)
# Fewer env steps than any sub-environment has.
_NEVER = -1


class SlotTracker:
    """Who lives on which slot.

    Attributes:
        seats: `seats[slot]` is `(env_id, agent_id)` of who has the slot, or had it last.
        slots: [R] of the rows of the last poll; the same array as long as they are the same.
        indices: Index of each sub-environment by its id, as it was told last; of very many only the latest.
        reset: Whether somebody reset a sub-environment since the last poll, which ends agents that wait.
    """

    def __init__(self, where: str) -> None:
        self.seats: list[tuple[EnvId, AgentId]] = []
        self.slots: IntArray = np.zeros(0, np.int64)
        self.indices: dict[EnvId, int] = {}
        self.reset = False
        self._where = where
        self._alive = np.zeros(0, np.bool_)
        self._waits = np.zeros(0, np.bool_)
        self._env_of: IntArray = np.zeros(0, np.int64)
        self._living: Counter[int] = Counter()
        # Slots of those who live, and the episodes that run: ids by index, and indices by id.
        self._slot_of: dict[tuple[EnvId, AgentId], int] = {}
        self._ids: dict[int, EnvId] = {}
        self._running: dict[EnvId, int] = {}
        # Sub-environments of the rows of the last poll, and each one's env steps when it had its last rows.
        self._envs: IntArray = np.zeros(0, np.int64)
        self._had_rows: IntArray = np.zeros(0, np.int64)
        # Whether somebody came or went since the last look at the rows.
        self._changed = False
        # How many wait.
        self._waiting = 0

    def end(self, end: Any) -> End:
        """Take in the end of a trajectory and return it with a reward and an observation of its own."""
        if not isinstance(end, End):
            raise self._wrong("ended", f"{type(end).__name__}", "menv.End", "return one for each trajectory")
        slot = self._living_slot("ended", end.slot, end.env_id, end.agent_id)
        self._check_end(end, slot)
        self._waiting -= int(self._waits[slot])
        self._alive[slot] = self._waits[slot] = False
        del self._slot_of[self.seats[slot]]
        index = int(self._env_of[slot])
        self._living[index] -= 1
        self._had_rows[index] = _NEVER
        self._changed = True
        paid = as_reward(
            end.reward, f"{self._where}: ended: the reward of agent {end.agent_id!r} of env {end.env_id!r}"
        )
        return end._replace(slot=slot, reward=paid, obs=own_copy(end.obs))

    def finish(self, episode: Any, num_envs: int, unclaimed: int) -> EpisodeEnd:
        """Take in the end of an episode; nobody of it lives by now."""
        if not isinstance(episode, EpisodeEnd):
            raise self._wrong(
                "episodes", type(episode).__name__, "menv.EpisodeEnd", "return one for each episode"
            )
        index = self._index("episodes", episode.env_index, num_envs)
        if self._living[index]:
            left = [
                self.seats[slot][1] for slot in np.flatnonzero(self._alive & (self._env_of == index)).tolist()
            ]
            raise self._wrong(
                "episodes", f"the episode of env {episode.env_id!r} ended while agents {left[:8]} live on",
                "a menv.End for each of them in `ended`", "end everybody in the poll in which the episode ends",
            )  # fmt: skip
        if not 0 <= episode.unclaimed <= unclaimed:
            raise self._wrong(
                "episodes", f"{episode.unclaimed} entries of `unclaimed` before the end of env {episode.env_id!r}",
                f"0 to {unclaimed}", "count those that belong to this episode and to earlier ones",
            )  # fmt: skip
        self._check_id("episodes", episode.env_id, index)
        self._had_rows[index] = _NEVER
        self._ids.pop(index, None)
        self._running.pop(episode.env_id, None)
        self._note(episode.env_id, index)
        length = episode.env_steps
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 0:
            raise self._wrong(
                "episodes", f"the episode of env {episode.env_id!r} took {length!r} env steps", "an integer from 0",
                "count those of this episode alone",
            )  # fmt: skip
        return episode._replace(env_index=index, env_steps=int(length))

    def credit(self, unclaimed: Any, num_envs: int) -> Unclaimed:
        """Look at a reward that belongs to no action."""
        if not isinstance(unclaimed, Unclaimed):
            raise self._wrong(
                "unclaimed", type(unclaimed).__name__, "menv.Unclaimed", "return one for each such reward"
            )
        index = self._index("unclaimed", unclaimed.env_index, num_envs)
        self._check_id("unclaimed", unclaimed.env_id, index)
        whose = f"{self._where}: unclaimed: the reward of agent {unclaimed.agent_id!r} of env {unclaimed.env_id!r}"
        return unclaimed._replace(reward=as_reward(unclaimed.reward, whose), env_index=index)

    def join(self, join: Any, num_envs: int) -> Join:
        """Take in somebody who begins to live."""
        if not isinstance(join, Join):
            raise self._wrong(
                "joined", type(join).__name__, "menv.Join", "return one for each new trajectory"
            )
        slot = self._number("joined", join.slot)
        index = self._index("joined", join.env_index, num_envs)
        seat = join.env_id, join.agent_id
        self._check_key("joined", seat)
        if join.agent_id in (ALL, COMMON):
            raise self._wrong(
                "joined", f"an agent is called {join.agent_id!r}", "another name", "rename the agent"
            )
        self._check_id("joined", join.env_id, index)
        other = self._slot_of.get(seat)
        if slot >= len(self._alive):
            self._grow(slot + 1)
        if self._alive[slot]:
            raise self._wrong(
                "joined", f"agent {join.agent_id!r} of env {join.env_id!r} joins on slot {slot}, on which agent "
                f"{self.seats[slot][1]!r} of env {self.seats[slot][0]!r} lives", "a slot that nobody has",
                "end who lives there in the same poll or before, or hand out another number",
            )  # fmt: skip
        if other is not None:
            raise self._wrong(
                "joined", f"{self._name(other)} joins again, on slot {slot}", "one life at a time",
                "end the life before, or give the other agent an id of its own",
            )  # fmt: skip
        self._alive[slot], self._env_of[slot] = True, index
        self.seats[slot], self._slot_of[seat] = seat, slot
        self._ids[index], self._running[join.env_id] = join.env_id, index
        self._note(join.env_id, index)
        self._living[index] += 1
        self._had_rows[index] = _NEVER
        self._changed = True
        # Numbers of numpy overflow where draws are keyed.
        numbers = type(join.slot) is int and type(join.env_index) is int
        return join if numbers else join._replace(slot=slot, env_index=index)

    def wait(self, slots: Any, joined: Sequence[Join], env_steps: IntArray) -> IntArray:
        """Take in who waits and return [R] slots, the same array as last time where they are the same."""
        slots = self._as_slots(slots)
        same = len(slots) == len(self.slots) and np.array_equal(slots, self.slots)
        if not same or self._changed:
            self._look_at(slots, joined)
            self._envs, self._changed = np.unique(self._env_of[slots]), False
            self.slots = self.slots if same else slots.copy()
        if self._waits[self.slots].any():
            slot = int(self.slots[np.argmax(self._waits[self.slots])])
            raise self._wrong(
                "slots", f"{self._name(slot)} waits already", "each row once, and no other before it is answered",
                "leave those out who have not been answered",
            )  # fmt: skip
        stuck = env_steps[self._envs] <= self._had_rows[self._envs]
        if stuck.any():
            index = int(self._envs[np.argmax(stuck)])
            raise self._wrong(
                "env_steps", f"sub-environment {index} has new rows and {env_steps[index]} env steps, as with its rows "
                "before", "more than then", "count one for each step of a sub-environment; random draws depend on it",
            )  # fmt: skip
        self._had_rows[self._envs] = env_steps[self._envs]
        self._waits[self.slots] = True
        self._waiting += len(self.slots)
        return self.slots

    def answered(self, slots: IntArray) -> None:
        """Take in who has been answered: whole sub-environments.

        Raises:
            ContractError: Somebody does not wait, or others of the same sub-environment were left out.
        """
        if slots is self.slots and self._waiting == len(slots):
            # Everybody.
            self._waits[slots] = False
            self._waiting = 0
            return
        strange = self._stranger(slots)
        if strange is not None:
            raise ContractError(
                f"send_actions: nobody has slot {strange}, expected slots of the last poll; pass Ready.slots, or some "
                "of them"
            )
        told = np.bincount(slots, minlength=len(self._waits))
        bad = (told > 1) | ((told > 0) & ~self._waits)
        left = np.flatnonzero(self._waits & (told == 0))
        bad[left[np.isin(self._env_of[left], self._env_of[slots])]] = True
        if bad.any():
            self._refuse_answers(int(self._env_of[np.argmax(bad)]), told)
        self._waits[slots] = False
        self._waiting -= len(slots)

    def waiting(self) -> dict[tuple[EnvId, AgentId], int]:
        """Return the slots of those who wait."""
        return {self.seats[slot]: slot for slot in np.flatnonzero(self._waits).tolist()}

    def resize(self, num_envs: int) -> None:
        """Make room for E sub-environments."""
        more = num_envs - len(self._had_rows)
        if more > 0:
            self._had_rows = np.append(self._had_rows, np.full(more, _NEVER))

    def _look_at(self, slots: IntArray, joined: Sequence[Join]) -> None:
        strange = self._stranger(slots)
        if strange is not None:
            raise self._wrong(
                "slots", f"there is a row for slot {strange}, on which nobody lives", "slots of menv.Join entries",
                "put a Join into `joined` with the first row of each trajectory, and no row after its End",
            )  # fmt: skip
        counts = np.bincount(slots, minlength=1)
        if counts.max() > 1:
            raise self._wrong(
                "slots", f"{self._name(int(np.argmax(counts)))} has {counts.max()} rows", "one",
                "deliver each agent once a poll",
            )  # fmt: skip
        for join in joined:
            if join.slot >= len(counts) or not counts[join.slot]:
                raise self._wrong(
                    "joined", f"{self._name(join.slot)} joins and has no row", "a row in the same poll",
                    "let agents join when they wait for their first action",
                )  # fmt: skip

    def _check_end(self, end: End, slot: int) -> None:
        """Refuse an end that says nothing, or comes before the answer that it is the outcome of."""
        if not (end.terminated or end.truncated):
            raise self._wrong(
                "ended", f"{self._name(slot)} is neither terminated nor truncated", "one of both",
                "set truncated where it was cut short, terminated where the rules ended it",
            )  # fmt: skip
        if not isinstance(end.info, Mapping):
            raise self._wrong(
                "ended",
                f"the info of {self._name(slot)} is {type(end.info).__name__}",
                "a dict",
                "give {} for nothing",
            )
        if self._waits[slot] and not (end.withdrawn or self.reset):
            raise self._wrong(
                "ended", f"{self._name(slot)} ends while it waits for an action", "an answer first",
                "let sub-environments wait until they have been answered",
            )  # fmt: skip

    def _check_id(self, part: str, env_id: EnvId, index: int) -> None:
        if index in self._ids:
            if self._ids[index] != env_id:
                raise self._wrong(
                    part, f"env {env_id!r} has env_index {index}, where the episode of env {self._ids[index]!r} runs",
                    "the index of each sub-environment's own", "end the episode that runs there, or mend the index",
                )  # fmt: skip
            return
        self._check_key(part, env_id)
        if env_id in self._running:
            raise self._wrong(
                part, f"env {env_id!r} has env_index {index}, and its episode runs at {self._running[env_id]}",
                "the same index until it ends", "end the episode first, or mend the index",
            )  # fmt: skip

    def _check_key(self, part: str, key: Any) -> None:
        try:
            hash(key)
        except TypeError:
            raise self._wrong(
                part,
                f"the id {key!r}",
                "ids that can be keys of a dict",
                "use numbers, texts, or tuples of them",
            ) from None

    def _note(self, env_id: EnvId, index: int) -> None:
        if len(self.indices) >= _KEPT_IDS:
            self.indices.clear()
        self.indices[env_id] = index

    def _stranger(self, slots: IntArray) -> int | None:
        bad = (slots < 0) | (slots >= len(self._alive))
        if not bad.any():
            bad = ~self._alive[slots]
        return int(slots[np.argmax(bad)]) if bad.any() else None

    def _refuse_answers(self, index: int, told: IntArray) -> None:
        """Say what is wrong with the answers to one sub-environment; `told` is how many each slot got."""
        mine = self._env_of == index
        here = {slot: self.seats[slot] for slot in np.flatnonzero(mine & (self._waits | (told > 0))).tolist()}
        env_id = next(iter(here.values()))[0]
        waiting = [agent for slot, (_, agent) in here.items() if self._waits[slot]]
        check_answers(env_id, waiting, {agent: None for slot, (_, agent) in here.items() if told[slot]})
        raise ContractError(
            f"send_actions: env {env_id} got several actions for one slot, expected one; answer each row once"
        )

    def _as_slots(self, slots: Any) -> IntArray:
        numbers = np.asarray(slots)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise self._wrong(
                "slots", f"{numbers.dtype} of shape {numbers.shape}", "[R] integers", "return one slot a row"
            )
        return numbers.astype(np.int64, copy=False)

    def _living_slot(self, part: str, slot: Any, env_id: EnvId, agent_id: AgentId) -> int:
        number = self._number(part, slot)
        who = f"agent {agent_id!r} of env {env_id!r}"
        if number >= len(self._alive) or not self._alive[number]:
            raise self._wrong(
                part, f"{who} ends on slot {number}, on which nobody lives", "the slot of its Join",
                "end each trajectory once, and only those that joined",
            )  # fmt: skip
        if self.seats[number] != (env_id, agent_id):
            raise self._wrong(
                part, f"{who} ends on slot {number}, on which {self._name(number)} lives", "the slot of its Join",
                "look up the slot that the agent joined on",
            )  # fmt: skip
        return number

    def _number(self, part: str, slot: Any) -> int:
        if isinstance(slot, bool) or not isinstance(slot, int | np.integer) or not 0 <= slot < _MOST_SLOTS:
            raise self._wrong(
                part, f"slot {slot!r}", f"an integer from 0 to {_MOST_SLOTS - 1}", "number trajectories from 0, and "
                "use the numbers of those that ended again",
            )  # fmt: skip
        return int(slot)

    def _index(self, part: str, index: Any, num_envs: int) -> int:
        if isinstance(index, bool) or not isinstance(index, int | np.integer) or not 0 <= index < num_envs:
            raise self._wrong(
                part, f"env_index {index!r}", f"an integer from 0 to {num_envs - 1}",
                "give the place of the sub-environment in env_steps",
            )  # fmt: skip
        return int(index)

    def _grow(self, slots: int) -> None:
        more = max(slots, 2 * len(self._alive)) - len(self._alive)
        self._alive = np.append(self._alive, np.zeros(more, np.bool_))
        self._waits = np.append(self._waits, np.zeros(more, np.bool_))
        self._env_of = np.append(self._env_of, np.zeros(more, np.int64))
        self.seats += [_NOBODY] * more

    def _name(self, slot: int) -> str:
        if not 0 <= slot < len(self.seats) or self.seats[slot] is _NOBODY:
            return f"slot {slot}"
        env_id, agent_id = self.seats[slot]
        return f"agent {agent_id!r} of env {env_id!r} (slot {slot})"

    def _wrong(self, part: str, got: str, expected: str, fix: str) -> ContractError:
        return ContractError(f"{self._where}: {part}: {got}, expected {expected}; {fix}")
