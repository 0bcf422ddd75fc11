"""A user's own `BaseEnv` that returns tables: every table is checked before it is used.

For simulators that step many worlds of many agents as arrays: no object is created per agent and step on either side.
The user's environment numbers its trajectories; mistakes are reported in the poll in which they are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from menv.adapters.custom import InnerEnvs
from menv.adapters.validation import as_rewards, check_answers, nested_answers, wrong_count
from menv.base_env import (
    ALL,
    COMMON,
    AgentId,
    BaseEnv,
    End,
    EnvId,
    EpisodeEnd,
    IntArray,
    Join,
    Ready,
    Unclaimed,
)
from menv.errors import ContractError
from menv.spaces import as_reward, how_many, own_copy

_MAX_SLOTS = 1 << 24
_KEPT_IDS = 65_536
_NO_SEAT: tuple[EnvId, AgentId] = (None, None)
# Fewer env steps than any sub-environment has.
_NEVER = -1


class TableEnvs(InnerEnvs):
    """Checks the tables of another `BaseEnv` and passes them on.

    In the result slots stay the same array while the same agents wait, env steps and last observations are copies,
    rewards are float64, and seats come from the joins.
    """

    def __init__(self, inner: BaseEnv) -> None:
        super().__init__(inner)
        self.lockstep, self.external = inner.lockstep, inner.external
        self.events_have_order = not inner.external
        self.idle_timeout = inner.idle_timeout
        self._where = f"{type(inner).__name__}.poll"
        self._slots = SlotTracker(self._where)
        self._wrong = self._slots.wrong
        # [E] env steps when the inner environment began, and now.
        self._before: IntArray = np.zeros(self.num_envs, np.int64)
        self._now = self._before

    def poll(self, timeout: float | None = None) -> Ready:
        """Poll the inner environment; raise a `ContractError` if a table contradicts itself or an earlier one."""
        ready = self._call("poll", *(() if timeout is None else (timeout,)))
        if not isinstance(ready, Ready):
            raise ContractError(
                f"{self._where}: returned {how_many(ready)}, expected a menv.Ready, because returns_table is set; "
                "return one, or leave returns_table out and return six nested dicts"
            )
        if ready.played:
            raise self._wrong(
                "played", "pieces of episodes", "none", "deliver rows; pieces are for menv's servers"
            )
        self._check_lists(ready)
        tracker, env_steps = self._slots, self._steps(ready.env_steps)
        num_envs = len(env_steps)
        ended = [tracker.end(end) for end in ready.ended]
        tracker.reset = False
        episodes, unclaimed = self._episodes(ready, num_envs)
        joined = [tracker.join(join, num_envs) for join in ready.joined]
        slots = tracker.set_waiting(ready.slots, joined, env_steps)
        self._check_length("rewards", ready.rewards, slots)
        rewards = as_rewards(ready.rewards, lambda: map(self._whose, slots.tolist()))
        self._check_length("obs", ready.obs, slots)
        if ready.infos is not None:
            self._check_length("infos", ready.infos, slots)
        self._check_taken(ready.taken, slots)
        return Ready(
            slots, ready.obs, rewards, env_steps, joined, ended, episodes, unclaimed, ready.infos, ready.taken,
            tracker.seats, (), ready.faults,
        )  # fmt: skip

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; the inner environment always gets slots and actions."""
        if actions is None:
            slots, actions = self._from_nested(slots)
        slots = np.asarray(slots, np.int64)
        if len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        if len(slots):
            self._slots.check_answered(slots)
            self._call("send_actions", slots, actions)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset through the inner environment; see `BaseEnv.try_reset`."""
        self._slots.reset = True
        result: tuple[Any, Any] = self._inner_reset(env_id, seed, options)
        return result

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Restart through the inner environment; see `BaseEnv.try_restart`."""
        self._slots.reset = True
        self._call("try_restart", env_id)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the inner environment lists and those seen so far."""
        listed = self.possible_agents or self.inner.get_agent_ids()
        return {*listed, *(agent for env_id, agent in self._slots.seats if (env_id, agent) != (None, None))}

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the answer of the inner environment."""
        return self.inner.held_rewards()

    def rest(self) -> None:
        """Call the inner environment; see `BaseEnv.rest`."""
        self.inner.rest()

    def unbroken(self) -> AbstractContextManager[Any]:
        """Return the answer of the inner environment; see `BaseEnv.unbroken`."""
        return self.inner.unbroken()

    def status(self) -> dict[str, Any]:
        """Return the answer of the inner environment; see `BaseEnv.status`."""
        return self.inner.status()

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        """Call a method through the inner environment; see `BaseEnv.call`."""
        self._slots.reset = True
        return self.inner.call(env_id, method, *args)

    def index_of(self, env_id: EnvId) -> int:
        """Return the index of a sub-environment that appeared in a table."""
        return self._slots.indices[env_id]

    def start_from(self, env_steps: IntArray) -> None:
        """Count env steps on from [E] `env_steps`; see `Adapter.start_from`."""
        self._before = self._now = env_steps.copy()

    def _episodes(self, ready: Ready, num_envs: int) -> tuple[list[EpisodeEnd], list[Unclaimed]]:
        episodes: list[EpisodeEnd] = []
        unclaimed: list[Unclaimed] = []
        for episode in ready.episodes:
            before = getattr(episode, "unclaimed", 0)
            unclaimed += [
                self._slots.check_unclaimed(one, num_envs) for one in ready.unclaimed[len(unclaimed) : before]
            ]
            episodes.append(self._slots.end_episode(episode, num_envs, len(ready.unclaimed)))
        unclaimed += [self._slots.check_unclaimed(one, num_envs) for one in ready.unclaimed[len(unclaimed) :]]
        return episodes, unclaimed

    def _steps(self, env_steps: Any) -> IntArray:
        """Return [E] env steps, a copy."""
        steps = np.array(env_steps)
        if steps.ndim != 1 or (len(steps) and steps.dtype.kind not in "iu") or len(steps) < self.num_envs:
            raise self._wrong(
                "env_steps", f"{steps.dtype} of shape {steps.shape}", f"[{self.num_envs or 'E'}] integers",
                "return the env steps of each sub-environment since its start",
            )  # fmt: skip
        more = len(steps) - len(self._before)
        if more > 0:
            self._before, self._now = (
                np.append(one, np.zeros(more, np.int64)) for one in (self._before, self._now)
            )
        # Sub-environments that are not in the table (any more) keep their counts.
        now = self._now.copy()
        now[: len(steps)] = steps + self._before[: len(steps)]
        back = now < self._now
        if back.any():
            index = int(np.argmax(back))
            raise self._wrong(
                "env_steps", f"{steps[index]} of sub-environment {index}, after "
                f"{self._now[index] - self._before[index]}", "never less than before",
                "count on from episode to episode",
            )  # fmt: skip
        self._slots.resize(len(now))
        self._now = now
        return now

    def _check_length(self, part: str, column: Any, slots: IntArray) -> None:
        if not isinstance(column, Sequence | np.ndarray) or len(column) != len(slots):
            got = len(column) if isinstance(column, Sequence | np.ndarray) else type(column).__name__
            raise self._wrong(
                part, f"{got}", f"{len(slots)}, one for each slot", "return one row per waiting agent"
            )

    def _check_lists(self, ready: Ready) -> None:
        for part in ("ended", "episodes", "unclaimed", "joined"):
            if not isinstance(getattr(ready, part), Sequence):
                raise self._wrong(
                    part, type(getattr(ready, part)).__name__, "a list", "return an empty one for none"
                )

    def _check_taken(self, taken: Any, slots: IntArray) -> None:
        stray = set(taken) - set(slots.tolist()) if taken else ()
        if stray:
            raise self._wrong(
                "taken", f"an action for slot {min(stray, key=repr)!r}, which has no row", "slots of rows",
                "return an action together with the observation that it answers",
            )  # fmt: skip

    def _from_nested(self, answers: Any) -> tuple[IntArray, list[Any]]:
        given = {
            (env_id, agent): action
            for env_id, by_agent in nested_answers(answers).items()
            for agent, action in by_agent.items()
        }
        waiting = self._slots.waiting()
        for env_id, agent in given:
            if (env_id, agent) not in waiting:
                agents = [other for other_env, other in waiting if other_env == env_id]
                check_answers(env_id, agents, answers[env_id])
        return np.array([waiting[seat] for seat in given], np.int64), list(given.values())

    def _whose(self, slot: int) -> str:
        env_id, agent_id = self._slots.seats[slot]
        return f"{self._where}: the reward of agent {agent_id!r} of env {env_id!r}"


class SlotTracker:
    """Checks the slots, joins and ends of a user's tables: which trajectories run, and which agents wait.

    Attributes:
        seats: `seats[slot]` is the `(env_id, agent_id)` that has the slot, or had it last.
        slots: [R] of the rows of the last poll; the same array as long as they are equal.
        indices: The latest index of each sub-environment by its id; of very many only the last ones.
        reset: Whether a sub-environment was reset since the last poll, which ends agents that wait.
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
        # Slots by seat of the agents that are alive, and running episodes: ids by index, and indices by id.
        self._slot_of: dict[tuple[EnvId, AgentId], int] = {}
        self._ids: dict[int, EnvId] = {}
        self._running: dict[EnvId, int] = {}
        # Sub-environments of the rows of the last poll, and the env steps of each at its last rows.
        self._envs: IntArray = np.zeros(0, np.int64)
        self._had_rows: IntArray = np.zeros(0, np.int64)
        # Whether a trajectory began or ended since the rows were checked last.
        self._changed = False
        self._num_waiting = 0

    def end(self, end: Any) -> End:
        """Process the end of a trajectory; return it with a float reward and a copy of the observation."""
        if not isinstance(end, End):
            raise self.wrong("ended", f"{type(end).__name__}", "menv.End", "return one for each trajectory")
        slot = self._slot_of_end("ended", end.slot, end.env_id, end.agent_id)
        self._check_end(end, slot)
        self._num_waiting -= int(self._waits[slot])
        self._alive[slot] = self._waits[slot] = False
        del self._slot_of[self.seats[slot]]
        index = int(self._env_of[slot])
        self._living[index] -= 1
        self._had_rows[index] = _NEVER
        self._changed = True
        reward = as_reward(
            end.reward, f"{self._where}: ended: the reward of agent {end.agent_id!r} of env {end.env_id!r}"
        )
        return end._replace(slot=slot, reward=reward, obs=own_copy(end.obs))

    def end_episode(self, episode: Any, num_envs: int, unclaimed: int) -> EpisodeEnd:
        """Process the end of an episode, whose agents have ended before."""
        if not isinstance(episode, EpisodeEnd):
            raise self.wrong(
                "episodes", type(episode).__name__, "menv.EpisodeEnd", "return one for each episode"
            )
        index = self._index("episodes", episode.env_index, num_envs)
        if self._living[index]:
            left = [
                self.seats[slot][1] for slot in np.flatnonzero(self._alive & (self._env_of == index)).tolist()
            ]
            raise self.wrong(
                "episodes", f"the episode of env {episode.env_id!r} ended while agents {left[:8]} live on",
                "a menv.End for each of them in `ended`", "end all agents in the poll in which the episode ends",
            )  # fmt: skip
        if not 0 <= episode.unclaimed <= unclaimed:
            raise self.wrong(
                "episodes", f"{episode.unclaimed} entries of `unclaimed` before the end of env {episode.env_id!r}",
                f"0 to {unclaimed}", "count the entries of this episode and of earlier ones",
            )  # fmt: skip
        self._check_id("episodes", episode.env_id, index)
        self._had_rows[index] = _NEVER
        self._ids.pop(index, None)
        self._running.pop(episode.env_id, None)
        self._set_index(episode.env_id, index)
        length = episode.env_steps
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 0:
            raise self.wrong(
                "episodes", f"the episode of env {episode.env_id!r} has length {length!r}", "an integer from 0",
                "count the env steps of this episode alone",
            )  # fmt: skip
        return episode._replace(env_index=index, env_steps=int(length))

    def check_unclaimed(self, unclaimed: Any, num_envs: int) -> Unclaimed:
        """Check a reward that belongs to no action."""
        if not isinstance(unclaimed, Unclaimed):
            raise self.wrong(
                "unclaimed", type(unclaimed).__name__, "menv.Unclaimed", "return one for each such reward"
            )
        index = self._index("unclaimed", unclaimed.env_index, num_envs)
        self._check_id("unclaimed", unclaimed.env_id, index)
        whose = f"{self._where}: unclaimed: the reward of agent {unclaimed.agent_id!r} of env {unclaimed.env_id!r}"
        return unclaimed._replace(reward=as_reward(unclaimed.reward, whose), env_index=index)

    def join(self, join: Any, num_envs: int) -> Join:
        """Process the begin of a trajectory."""
        if not isinstance(join, Join):
            raise self.wrong("joined", type(join).__name__, "menv.Join", "return one for each new trajectory")
        slot = self._number("joined", join.slot)
        index = self._index("joined", join.env_index, num_envs)
        seat = join.env_id, join.agent_id
        self._check_key("joined", seat)
        if join.agent_id in (ALL, COMMON):
            raise self.wrong(
                "joined", f"an agent is called {join.agent_id!r}", "another name", "rename the agent"
            )
        self._check_id("joined", join.env_id, index)
        other = self._slot_of.get(seat)
        if slot >= len(self._alive):
            self._grow(slot + 1)
        if self._alive[slot]:
            raise self.wrong(
                "joined", f"agent {join.agent_id!r} of env {join.env_id!r} joins on slot {slot}, on which agent "
                f"{self.seats[slot][1]!r} of env {self.seats[slot][0]!r} lives", "a free slot",
                "end that agent in the same poll or before, or use another number",
            )  # fmt: skip
        if other is not None:
            raise self.wrong(
                "joined", f"{self._name(other)} joins again, on slot {slot}", "one life at a time",
                "end the first one before, or use another id for the other agent",
            )  # fmt: skip
        self._alive[slot], self._env_of[slot] = True, index
        self.seats[slot], self._slot_of[seat] = seat, slot
        self._ids[index], self._running[join.env_id] = join.env_id, index
        self._set_index(join.env_id, index)
        self._living[index] += 1
        self._had_rows[index] = _NEVER
        self._changed = True
        # numpy integers would overflow where random numbers are keyed.
        numbers = type(join.slot) is int and type(join.env_index) is int
        return join if numbers else join._replace(slot=slot, env_index=index)

    def set_waiting(self, slots: Any, joined: Sequence[Join], env_steps: IntArray) -> IntArray:
        """Set which agents wait; return [R] slots, the same array as last time if they are equal."""
        slots = self._as_slots(slots)
        same = len(slots) == len(self.slots) and np.array_equal(slots, self.slots)
        if not same or self._changed:
            self._check_rows(slots, joined)
            self._envs, self._changed = np.unique(self._env_of[slots]), False
            self.slots = self.slots if same else slots.copy()
        if self._waits[self.slots].any():
            slot = int(self.slots[np.argmax(self._waits[self.slots])])
            raise self.wrong(
                "slots", f"{self._name(slot)} waits already", "each row once, and no other before it is answered",
                "leave out agents that were not answered",
            )  # fmt: skip
        stuck = env_steps[self._envs] <= self._had_rows[self._envs]
        if stuck.any():
            index = int(self._envs[np.argmax(stuck)])
            raise self.wrong(
                "env_steps", f"sub-environment {index} has new rows and {env_steps[index]} env steps, as with its rows "
                "before", "more than then", "count one for each step of a sub-environment; random draws depend on it",
            )  # fmt: skip
        self._had_rows[self._envs] = env_steps[self._envs]
        self._waits[self.slots] = True
        self._num_waiting += len(self.slots)
        return self.slots

    def check_answered(self, slots: IntArray) -> None:
        """Mark agents as answered; raise unless they are all waiting agents of their sub-environments."""
        if slots is self.slots and self._num_waiting == len(slots):
            self._waits[slots] = False
            self._num_waiting = 0
            return
        unknown = self._unknown_slot(slots)
        if unknown is not None:
            raise ContractError(
                f"send_actions: no agent has slot {unknown}, expected slots of the last poll; pass Ready.slots, or "
                "some of them"
            )
        counts = np.bincount(slots, minlength=len(self._waits))
        bad = (counts > 1) | ((counts > 0) & ~self._waits)
        left = np.flatnonzero(self._waits & (counts == 0))
        bad[left[np.isin(self._env_of[left], self._env_of[slots])]] = True
        if bad.any():
            self._refuse_answers(int(self._env_of[np.argmax(bad)]), counts)
        self._waits[slots] = False
        self._num_waiting -= len(slots)

    def waiting(self) -> dict[tuple[EnvId, AgentId], int]:
        """Return the slots of the agents that wait, by seat."""
        return {self.seats[slot]: slot for slot in np.flatnonzero(self._waits).tolist()}

    def resize(self, num_envs: int) -> None:
        """Add room for `num_envs` sub-environments."""
        more = num_envs - len(self._had_rows)
        if more > 0:
            self._had_rows = np.append(self._had_rows, np.full(more, _NEVER))

    def _check_rows(self, slots: IntArray, joined: Sequence[Join]) -> None:
        unknown = self._unknown_slot(slots)
        if unknown is not None:
            raise self.wrong(
                "slots", f"there is a row for slot {unknown}, on which no agent lives", "slots of menv.Join entries",
                "put a Join into `joined` with the first row of each trajectory, and no row after its End",
            )  # fmt: skip
        counts = np.bincount(slots, minlength=1)
        if counts.max() > 1:
            raise self.wrong(
                "slots", f"{self._name(int(np.argmax(counts)))} has {counts.max()} rows", "one",
                "deliver each agent once a poll",
            )  # fmt: skip
        for join in joined:
            if join.slot >= len(counts) or not counts[join.slot]:
                raise self.wrong(
                    "joined", f"{self._name(join.slot)} joins and has no row", "a row in the same poll",
                    "let agents join when they wait for their first action",
                )  # fmt: skip

    def _check_end(self, end: End, slot: int) -> None:
        """Raise if an end has no flag, or comes while the agent waits for an answer."""
        if not (end.terminated or end.truncated):
            raise self.wrong(
                "ended", f"{self._name(slot)} is neither terminated nor truncated", "one of both",
                "set truncated where it was cut short, terminated where the rules ended it",
            )  # fmt: skip
        if not isinstance(end.info, Mapping):
            raise self.wrong(
                "ended",
                f"the info of {self._name(slot)} is {type(end.info).__name__}",
                "a dict",
                "give {} for nothing",
            )
        if self._waits[slot] and not (end.withdrawn or self.reset):
            raise self.wrong(
                "ended", f"{self._name(slot)} ends while it waits for an action", "an answer first",
                "let sub-environments wait until they have been answered",
            )  # fmt: skip

    def _check_id(self, part: str, env_id: EnvId, index: int) -> None:
        if index in self._ids:
            if self._ids[index] != env_id:
                raise self.wrong(
                    part, f"env {env_id!r} has env_index {index}, where the episode of env {self._ids[index]!r} runs",
                    "the index of each sub-environment's own", "end the episode that runs there, or fix the index",
                )  # fmt: skip
            return
        self._check_key(part, env_id)
        if env_id in self._running:
            raise self.wrong(
                part, f"env {env_id!r} has env_index {index}, and its episode runs at {self._running[env_id]}",
                "the same index until it ends", "end the episode first, or fix the index",
            )  # fmt: skip

    def _check_key(self, part: str, key: Any) -> None:
        try:
            hash(key)
        except TypeError:
            raise self.wrong(
                part,
                f"the id {key!r}",
                "ids that can be keys of a dict",
                "use numbers, texts, or tuples of them",
            ) from None

    def _set_index(self, env_id: EnvId, index: int) -> None:
        if len(self.indices) >= _KEPT_IDS:
            self.indices.clear()
        self.indices[env_id] = index

    def _unknown_slot(self, slots: IntArray) -> int | None:
        bad = (slots < 0) | (slots >= len(self._alive))
        if not bad.any():
            bad = ~self._alive[slots]
        return int(slots[np.argmax(bad)]) if bad.any() else None

    def _refuse_answers(self, index: int, counts: IntArray) -> None:
        """Raise for wrong answers to one sub-environment; `counts` is how many each slot got."""
        mine = self._env_of == index
        here = {
            slot: self.seats[slot] for slot in np.flatnonzero(mine & (self._waits | (counts > 0))).tolist()
        }
        env_id = next(iter(here.values()))[0]
        waiting = [agent for slot, (_, agent) in here.items() if self._waits[slot]]
        check_answers(env_id, waiting, {agent: None for slot, (_, agent) in here.items() if counts[slot]})
        raise ContractError(
            f"send_actions: env {env_id} got several actions for one slot, expected one; answer each row once"
        )

    def _as_slots(self, slots: Any) -> IntArray:
        numbers = np.asarray(slots)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise self.wrong(
                "slots", f"{numbers.dtype} of shape {numbers.shape}", "[R] integers", "return one slot a row"
            )
        return numbers.astype(np.int64, copy=False)

    def _slot_of_end(self, part: str, slot: Any, env_id: EnvId, agent_id: AgentId) -> int:
        number = self._number(part, slot)
        who = f"agent {agent_id!r} of env {env_id!r}"
        if number >= len(self._alive) or not self._alive[number]:
            raise self.wrong(
                part, f"{who} ends on slot {number}, on which no agent lives", "the slot of its Join",
                "end each trajectory once, and only after its Join",
            )  # fmt: skip
        if self.seats[number] != (env_id, agent_id):
            raise self.wrong(
                part, f"{who} ends on slot {number}, on which {self._name(number)} lives", "the slot of its Join",
                "look up the slot that the agent joined on",
            )  # fmt: skip
        return number

    def _number(self, part: str, slot: Any) -> int:
        if isinstance(slot, bool) or not isinstance(slot, int | np.integer) or not 0 <= slot < _MAX_SLOTS:
            raise self.wrong(
                part, f"slot {slot!r}", f"an integer from 0 to {_MAX_SLOTS - 1}", "number trajectories from 0, and "
                "use the numbers of ended ones again",
            )  # fmt: skip
        return int(slot)

    def _index(self, part: str, index: Any, num_envs: int) -> int:
        if isinstance(index, bool) or not isinstance(index, int | np.integer) or not 0 <= index < num_envs:
            raise self.wrong(
                part, f"env_index {index!r}", f"an integer from 0 to {num_envs - 1}",
                "give the place of the sub-environment in env_steps",
            )  # fmt: skip
        return int(index)

    def _grow(self, slots: int) -> None:
        more = max(slots, 2 * len(self._alive)) - len(self._alive)
        self._alive = np.append(self._alive, np.zeros(more, np.bool_))
        self._waits = np.append(self._waits, np.zeros(more, np.bool_))
        self._env_of = np.append(self._env_of, np.zeros(more, np.int64))
        self.seats += [_NO_SEAT] * more

    def _name(self, slot: int) -> str:
        if not 0 <= slot < len(self.seats) or self.seats[slot] is _NO_SEAT:
            return f"slot {slot}"
        env_id, agent_id = self.seats[slot]
        return f"agent {agent_id!r} of env {env_id!r} (slot {slot})"

    def wrong(self, part: str, got: str, expected: str, fix: str) -> ContractError:
        """Return the error for a part of a table."""
        return ContractError(f"{self._where}: {part}: {got}, expected {expected}; {fix}")
