"""How many episodes of each sub-environment an evaluation plays, so that short ones are not preferred.

`menv.algorithms.evaluation.evaluation` hands one of these quotas to its sampler. Where all sub-environments step at
once, one that has played its share plays on until all have; `FirstEpisodes` then leaves out what is too much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from menv.base_env import EpisodeEnd
from menv.episode import Episode
from menv.episode_record import AS_THEY_COME, When
from menv.errors import ContractError
from menv.loop import quota
from menv.loop.quota import ExternalQuota, Flags, Quota
from menv.metrics import Metrics
from menv.segments import Column

Shares = npt.NDArray[np.int64]


class _WholeEpisodes(Quota):
    """Whole episodes, none of which may go on for ever."""

    def __init__(
        self, length: int, batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    ) -> None:
        super().__init__(length, batch_mode)
        # [E] env steps of each sub-environment when it last finished an episode, and those that have done so since.
        self._since: Shares = np.zeros(0, np.int64)
        self._ended: list[int] = []

    def begin(self, env_steps: Column) -> None:
        """Begin an evaluation at these env step counts [E]."""
        super().begin(env_steps)
        self._since, self._ended = env_steps.copy(), []

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Note that episodes ended."""
        super().note_ends(ends)
        self._ended += [end.env_index for end in ends if not end.faulty]

    def _check_endless(self, env_steps: Column) -> None:
        appeared = np.zeros(max(0, len(env_steps) - len(self._since)), np.int64)
        self._since = np.concatenate((self._since, appeared)) if len(appeared) else self._since
        self._since[self._ended] = env_steps[self._ended]
        self._ended.clear()
        running = env_steps - self._since
        if np.maximum.reduce(running, initial=0) > quota.LONGEST + 10 * self.length:
            raise ContractError(
                f"evaluation: env {int(running.argmax())} took {int(running.max())} env steps without the end of an "
                "episode, expected one, because evaluations play whole episodes and a crash ends none; end or truncate "
                "episodes in the environment"
            )


class EpisodeQuota(_WholeEpisodes):
    """A number of whole episodes of each sub-environment, so that short ones are not preferred.

    One that a fault of its environment breaks off does not count: another is played.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.shares: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Count episodes that ended."""
        super().note_ends(ends)
        for end in ends:
            self.shares[end.env_index] -= not end.faulty

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True where a sub-environment has played its episodes."""
        self._check_endless(env_steps)
        done: Flags = self.shares <= 0
        return done if done.any() else None


class StepQuota(_WholeEpisodes):
    """So many env steps of each sub-environment, and on to the end of its episode."""

    def __init__(self) -> None:
        super().__init__(1, "complete_episodes")


class TogetherQuota(_WholeEpisodes, ExternalQuota):
    """So many episodes, whoever plays them, for sub-environments that nobody has counted; the first to end count."""

    def __init__(self) -> None:
        super().__init__(1)
        self.left_over = 0

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Count episodes that ended."""
        super().note_ends(ends)
        self.left_over -= sum(not end.faulty for end in ends)

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True once all episodes have been played, None before."""
        self._check_endless(env_steps)
        return np.ones(len(env_steps), np.bool_) if self.left_over <= 0 else None


class LockstepQuota(_WholeEpisodes):
    """A share of each sub-environment, in episodes or in env steps and on to the end; all play until all are done."""

    def __init__(self, in_episodes: bool) -> None:
        super().__init__(1)
        self.shares: Shares = np.zeros(0, np.int64)
        self._in_episodes = in_episodes

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Count episodes that ended."""
        super().note_ends(ends)
        for end in ends:
            self.shares[end.env_index] -= 1 if self._in_episodes else end.env_steps

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True once every sub-environment has played its share, None before."""
        self._check_endless(env_steps)
        return np.ones(len(env_steps), np.bool_) if (self.shares <= 0).all() else None


class FirstEpisodes(Metrics):
    """Metrics over the first episodes of each sub-environment that steps together with others, or of all.

    Attributes:
        shares: [E] what is left of each one's share, in episodes or in env steps.
    """

    def __init__(self, in_episodes: bool, index_of: Callable[[Any], int] = int) -> None:
        """Begin with no shares; `index_of` gives the index of a sub-environment for its id."""
        super().__init__(0)
        self._index_of = index_of
        self.shares: Shares = np.zeros(0, np.int64)
        self._in_episodes = in_episodes

    def record(self, episode: Episode, when: When = AS_THEY_COME) -> None:
        """Take in an episode that ended, if it is within its sub-environment's share."""
        index = self._index_of(episode.env_id)
        if self.shares[index] > 0:
            self.shares[index] -= 1 if self._in_episodes else episode.length
            super().record(episode, when)
