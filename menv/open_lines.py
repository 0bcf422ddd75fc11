"""The open episodes of a switchboard by id, and the ids that were used lately.

`menv.switchboard` keeps them, and guards them with its lock. It knows neither callers nor the sampler.
"""

from __future__ import annotations

from collections import OrderedDict

from menv.errors import EpisodeError
from menv.line import Line

_KEPT_IDS = 10_000


class OpenLines(dict[str, Line]):
    """Lines of episodes that are open, by id."""

    def __init__(self) -> None:
        super().__init__()
        self._finished: OrderedDict[str, None] = OrderedDict()

    def check_new(self, episode_id: str) -> None:
        """Refuse an id that was used before.

        Raises:
            EpisodeError: It was.
        """
        if episode_id in self or episode_id in self._finished:
            state = "already started" if episode_id in self else "already completed"
            raise EpisodeError(
                f"start_episode: episode {episode_id!r} is {state}, expected a new id; leave the id out to get one"
            )

    def named(self, episode_id: str) -> Line | None:
        """Return the line of an open episode; None if there is none, as for what can be no id."""
        try:
            return self.get(episode_id)
        except TypeError:
            return None

    def free(self, call: str, episode_id: str) -> Line:
        """Return the line of an open episode in which nobody waits.

        Raises:
            EpisodeError: There is none, or somebody waits for its actions.
        """
        line = self.named(episode_id)
        if line is None:
            over = isinstance(episode_id, str | int) and episode_id in self._finished
            why = "is completed" if over else "was not found"
            raise EpisodeError(
                f"{call}: episode {episode_id!r:.80} {why}, expected one that is open; call start_episode first"
            )
        if line.asked and call != "log_returns":
            raise EpisodeError(
                f"{call}: get_action of episode {episode_id!r} has not returned, expected one call after the other "
                "within an episode; wait for its action"
            )
        return line

    def close(self, line: Line) -> None:
        """Take an episode's id out of use."""
        del self[line.episode_id]
        self._finished[line.episode_id] = None
        if len(self._finished) > _KEPT_IDS:
            self._finished.popitem(last=False)
