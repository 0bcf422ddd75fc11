"""Sub-environments that menv made itself, and can make anew: what those ask of them who write a run down.

`local_envs` are such, and those of `menv.scale.remote_envs`. `menv.loop.running_episodes` lets them go on where another
run stood. Nothing here steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from menv import draws
from menv.adapters.numbered_envs import NumberedEnvs
from menv.adapters.recorded import Recorded
from menv.base_env import IntArray


class CreatedEnvs(NumberedEnvs):
    """Numbered sub-environments that can be made anew.

    Attributes:
        on_created: Told the index and the sub-environment where one is created in another's place.
    """

    on_created: Callable[[int, Any], None] | None = None
    _seed: int | None = None
    _first_index: int = 0

    @property
    @abstractmethod
    def env_steps(self) -> IntArray:
        """[E] env steps of each sub-environment since its start."""

    @abstractmethod
    def episode_start(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""

    @abstractmethod
    def slots_of(self, index: int) -> Mapping[Any, int]:
        """Return the slot of each agent that a sub-environment knows."""

    def episode_seed(self, index: int) -> int | None:
        """Return the seed of a sub-environment's last reset, None where it was left alone."""
        if self._seed is None:
            return None
        return draws.reset_seed(self._seed, self._first_index + index, self.episode_start(index))

    @abstractmethod
    def shown(self, index: int) -> str | None:
        """Return a digest of what waits in a sub-environment, None where no file could hold that."""

    @property
    @abstractmethod
    def seats(self) -> Any:
        """The seats by slot; see `Ready.seats`."""

    @property
    @abstractmethod
    def free_slots(self) -> list[int]:
        """Slots that nobody has, in the order in which they were given back."""

    @abstractmethod
    def take_up(self, env_steps: IntArray, recorded: Mapping[int, Recorded], seats: Any) -> set[int]:
        """Go on where another run was written down: play running episodes again, begin new ones for the others.

        Args:
            env_steps: [E] env steps so far.
            recorded: Running episodes by index.
            seats: What `seats` and `free_slots` of the other run's environment were.

        Returns:
            The sub-environments that begin their next episodes: whose episode is not in `recorded`, or came out
            differently. Their first rows come with the next poll.
        """
