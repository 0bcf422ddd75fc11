"""When a fragment is full, sub-environment by sub-environment.

`menv.sampling.rollout_loop` asks it before every round of answers. Whole env steps are counted, or answered
rows; episodes may be cut or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from menv.base_env import Column, EpisodeEnd
from menv.errors import ContractError

Flags = npt.NDArray[np.bool_]

LONGEST = 100_000
"""Env steps after which an episode is taken for endless."""


class FragmentLimit:
    """Each sub-environment's share of a fragment.

    Args:
        length: Steps a sub-environment.
        batch_mode: "truncate_episodes" stops there, "complete_episodes" at the next episode end.
        count_steps_by: "env_steps" or "agent_steps" (answered rows; checked after each env step, so that the answer
            to the last row has had its effect, however long a sub-environment takes for it).
        lockstep: The sub-environments step at once: the share counts for all of them together, so that
            one whose resets take env steps of the others does not hold them up. Complete episodes of theirs
            are the matter of `menv.sampling.vector_loop.WholeEpisodeLimit`.
    """

    def __init__(
        self,
        length: int,
        batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes",
        count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps",
        *,
        lockstep: bool = False,
    ) -> None:
        self.length = length
        self._lockstep = lockstep
        self._complete = batch_mode == "complete_episodes"
        self._by_rows = count_steps_by == "agent_steps"
        self._target: Column = np.zeros(0, np.int64)
        self._rows: Column = np.zeros(0, np.int64)
        self._boundary: Flags = np.zeros(0, np.bool_)
        # Env steps at the last look, and those at the last answer.
        self._seen: Column = np.zeros(0, np.int64)
        self._asked: Column = np.zeros(0, np.int64)

    def begin(self, env_steps: Column) -> None:
        """Begin a fragment at these env step counts [E]."""
        self._target = env_steps + self.length
        self._rows = np.zeros(len(env_steps), np.int64)
        self._boundary = np.ones(len(env_steps), np.bool_)
        self._seen = env_steps.copy()
        self._asked = np.full(len(env_steps), -1)

    @property
    def plain(self) -> bool:
        """Whether a fragment is `length` env steps of each sub-environment, whatever happens in them."""
        return not (self._complete or self._by_rows or self._lockstep)

    def left(self, env_steps: Column) -> int:
        """Return how many env steps all sub-environments can take together before one's share is full."""
        return max(0, int((self._target - env_steps).min()))

    def count(self, env_indices: Column) -> None:
        """Count answered rows [R] of these sub-environments."""
        if self._by_rows:
            self._rows += np.bincount(env_indices, minlength=len(self._rows))
            self._asked[env_indices] = self._seen[env_indices]
        if self._complete:
            self._boundary[env_indices] = False

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Note that episodes ended; their sub-environments stand at a boundary until answered."""
        if self._complete:
            for end in ends:
                # An episode may end in the very first poll, before any fragment has begun.
                if end.env_index < len(self._boundary):
                    self._boundary[end.env_index] = True

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True where a sub-environment's share is full, None if there is none."""
        if len(env_steps) != len(self._target):
            self._widen(env_steps)
        if self._lockstep:
            steps = self._rows.sum() if self._by_rows else (env_steps - self._target).sum()
            goal = self.length * len(env_steps) if self._by_rows else 0
            return np.ones(len(env_steps), np.bool_) if steps >= goal else None
        done: Flags = self._full_of_rows(env_steps) if self._by_rows else env_steps >= self._target
        if self._complete:
            self._check_endless(env_steps)
            done &= self._boundary
        # Counting takes a quarter of what a reduction does.
        return done if np.count_nonzero(done) else None

    def _full_of_rows(self, env_steps: Column) -> Flags:
        """Return [E] True where the rows are enough and the sub-environment has stepped with the last of them."""
        self._seen[:] = env_steps
        done: Flags = (self._rows >= self.length) & (env_steps > self._asked)
        return done

    def _check_endless(self, env_steps: Column) -> None:
        beyond = env_steps - self._target
        if len(beyond) and beyond.max() > LONGEST + 10 * self.length:
            raise ContractError(
                f"sample: env {int(beyond.argmax())} took {int(beyond.max())} env steps beyond the fragment without "
                'the end of an episode, expected one with batch_mode="complete_episodes"; truncate episodes in the '
                'environment, or use "truncate_episodes"'
            )

    def _widen(self, env_steps: Column) -> None:
        more = len(env_steps) - len(self._target)
        self._target = np.concatenate((self._target, np.full(more, self.length)))
        self._rows = np.concatenate((self._rows, np.zeros(more, np.int64)))
        self._boundary = np.concatenate((self._boundary, np.ones(more, np.bool_)))
        self._seen = np.concatenate((self._seen, np.zeros(more, np.int64)))
        self._asked = np.concatenate((self._asked, np.full(more, -1)))


class ExternalFragmentLimit(FragmentLimit):
    """The fragment of an external environment, or of one whose sub-environments nobody has counted.

    All episodes fill it together, as they come.

    With "complete_episodes" those that run when it is full are played to their end, and new ones wait.
    """

    def __init__(
        self,
        length: int,
        batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes",
        count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps",
    ) -> None:
        super().__init__(length, batch_mode, count_steps_by)
        self._begun = 0
        self._left: float = length

    @property
    def room(self) -> tuple[float, bool]:
        """How many steps the fragment lacked at the last look, and whether they are those of all agents."""
        return self._left, self._by_rows

    def begin(self, env_steps: Column) -> None:
        """Begin a fragment at these env step counts [E]; episodes that run go on."""
        self._begun = int(env_steps.sum())
        self._make_room(len(env_steps))
        self._rows[:] = 0

    def count(self, env_indices: Column) -> None:
        """Count answered rows, also of episodes that appeared since the last look; see `FragmentLimit.count`."""
        if self._by_rows or self._complete:
            self._make_room(int(env_indices.max(initial=-1)) + 1)
            super().count(env_indices)

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Note that episodes ended, perhaps some that appeared since the last look; see `FragmentLimit.note_ends`."""
        self._make_room(max((end.env_index + 1 for end in ends), default=0))
        super().note_ends(ends)

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True where nobody is answered any more; see `FragmentLimit.closed`."""
        self._make_room(len(env_steps))
        steps = self._rows.sum() if self._by_rows else int(env_steps.sum()) - self._begun
        self._left = self.length - steps
        if steps < self.length:
            return None
        if not self._complete:
            return np.ones(len(env_steps), np.bool_)
        return self._boundary.copy()

    def _make_room(self, num_envs: int) -> None:
        if num_envs <= len(self._boundary):
            return
        for name, value in (("_rows", 0), ("_boundary", True), ("_seen", 0), ("_asked", -1)):
            column = getattr(self, name)
            more = np.full(max(0, num_envs - len(column)), value, column.dtype)
            setattr(self, name, np.concatenate((column, more)))
