"""A user's own `BaseEnv` that returns tables: what it says is looked at before anybody relies on it.

A simulator that steps many worlds of many agents as arrays speaks so: nothing is created per agent and step, on either
side. `menv.loop.convert` creates this adapter. Who lives and who waits is the affair of `slot_book`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from menv.adapters.answers import check_answers, nested_answers, wrong_count
from menv.adapters.inner_envs import InnerEnvs
from menv.adapters.rewards import as_rewards
from menv.adapters.slot_book import SlotBook
from menv.base_env import AgentId, BaseEnv, EnvId, EpisodeEnd, IntArray, Ready, Unclaimed
from menv.env_calls import how_many
from menv.errors import ContractError


class TableEnvs(InnerEnvs):
    """Passes on what another `BaseEnv` says, once it has been looked at.

    What it hands out is its own: slots stay the same array while the same agents wait, env steps and last
    observations are copies, rewards float64, and seats those of the joins.
    """

    def __init__(self, inner: BaseEnv) -> None:
        """Wrap `inner`, which is not touched before the first poll."""
        super().__init__(inner)
        self.lockstep, self.external = inner.lockstep, inner.external
        self.idle_timeout = inner.idle_timeout
        self._where = f"{type(inner).__name__}.poll"
        self._book = SlotBook(self._where)
        # [E] env steps when the inner environment began, and by now.
        self._before: IntArray = np.zeros(self.num_envs, np.int64)
        self._now = self._before

    def poll(self, timeout: float | None = None) -> Ready:
        """Poll the inner environment; see `BaseEnv.poll`.

        Raises:
            ContractError: A table contradicts itself or one before.
        """
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
        book, env_steps = self._book, self._steps(ready.env_steps)
        num_envs = len(env_steps)
        ended = [book.end(end) for end in ready.ended]
        book.reset = False
        episodes, credited = self._episodes(ready, num_envs)
        joined = [book.join(join, num_envs) for join in ready.joined]
        slots = book.wait(ready.slots, joined, env_steps)
        self._check_length("rewards", ready.rewards, slots)
        rewards = as_rewards(ready.rewards, lambda: map(self._whose, slots.tolist()))
        self._check_length("obs", ready.obs, slots)
        if ready.infos is not None:
            self._check_length("infos", ready.infos, slots)
        self._check_taken(ready.taken, slots)
        return Ready(
            slots, ready.obs, rewards, env_steps, joined, ended, episodes, credited, ready.infos, ready.taken,
            book.seats, (), ready.faults,
        )  # fmt: skip

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; the inner environment is given slots and actions, whatever comes here."""
        if actions is None:
            slots, actions = self._from_nested(slots)
        slots = np.asarray(slots, np.int64)
        if len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        if len(slots):
            self._book.answered(slots)
            self._call("send_actions", slots, actions)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Pass the call on; see `BaseEnv.try_reset`."""
        self._book.reset = True
        result: tuple[Any, Any] = self._inner_reset(env_id, seed, options)
        return result

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Pass the call on; see `BaseEnv.try_restart`."""
        self._book.reset = True
        self._call("try_restart", env_id)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the inner environment lists and those seen so far."""
        listed = self.possible_agents or self.inner.get_agent_ids()
        return {*listed, *(agent for env_id, agent in self._book.seats if (env_id, agent) != (None, None))}

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the inner environment's own answer."""
        return self.inner.held_rewards()

    def rest(self) -> None:
        """Pass the call on; see `BaseEnv.rest`."""
        self.inner.rest()

    def unbroken(self) -> AbstractContextManager[Any]:
        """Return the inner environment's own answer; see `BaseEnv.unbroken`."""
        return self.inner.unbroken()

    def status(self) -> dict[str, Any]:
        """Return the inner environment's own answer; see `BaseEnv.status`."""
        return self.inner.status()

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        """Pass the call on; see `BaseEnv.call`."""
        self._book.reset = True
        return self.inner.call(env_id, method, *args)

    def index_of(self, env_id: EnvId) -> int:
        """Return the index of a sub-environment that has been heard of."""
        return self._book.indices[env_id]

    def start_over(self, env_steps: IntArray) -> None:
        """Count env steps on from [E] these, so that nothing is drawn twice; nobody has polled yet."""
        self._before = self._now = env_steps.copy()

    def _episodes(self, ready: Ready, num_envs: int) -> tuple[list[EpisodeEnd], list[Unclaimed]]:
        episodes: list[EpisodeEnd] = []
        credited: list[Unclaimed] = []
        for episode in ready.episodes:
            told = getattr(episode, "unclaimed", 0)
            credited += [self._book.credit(one, num_envs) for one in ready.unclaimed[len(credited) : told]]
            episodes.append(self._book.finish(episode, num_envs, len(ready.unclaimed)))
        credited += [self._book.credit(one, num_envs) for one in ready.unclaimed[len(credited) :]]
        return episodes, credited

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
        # Of sub-environments that are not there (any more) those of before count.
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
        self._book.resize(len(now))
        self._now = now
        return now

    def _check_length(self, part: str, column: Any, slots: IntArray) -> None:
        if not isinstance(column, Sequence | np.ndarray) or len(column) != len(slots):
            got = len(column) if isinstance(column, Sequence | np.ndarray) else type(column).__name__
            raise self._wrong(
                part, f"{got}", f"{len(slots)}, one for each slot", "return a row for who waits only"
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
                "tell of an action together with the observation that it answers",
            )  # fmt: skip

    def _from_nested(self, answers: Any) -> tuple[IntArray, list[Any]]:
        told = {
            (env_id, agent): action
            for env_id, by_agent in nested_answers(answers).items()
            for agent, action in by_agent.items()
        }
        waiting = self._book.waiting()
        for env_id, agent in told:
            if (env_id, agent) not in waiting:
                agents = [other for other_env, other in waiting if other_env == env_id]
                check_answers(env_id, agents, answers[env_id])
        return np.array([waiting[seat] for seat in told], np.int64), list(told.values())

    def _whose(self, slot: int) -> str:
        env_id, agent_id = self._book.seats[slot]
        return f"{self._where}: the reward of agent {agent_id!r} of env {env_id!r}"

    def _wrong(self, part: str, got: str, expected: str, fix: str) -> ContractError:
        return ContractError(f"{self._where}: {part}: {got}, expected {expected}; {fix}")
