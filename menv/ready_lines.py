"""The episodes in which something was said that the sampler has not taken.

`menv.switchboard` keeps them, and guards them with its lock. It knows neither callers nor the sampler.
"""

from __future__ import annotations

from menv.line import Line

_MOST_AT_ONCE = 16


class ReadyLines(dict[str, Line]):
    """Lines by id.

    Of a caller that only logs, hundreds of episodes may be over before the sampler takes the first step of one. Taken
    side by side they would overfill fragments by a step each, or whole where episodes are to be complete; so only a few
    of them are begun at once.
    """

    def __init__(self) -> None:
        super().__init__()
        # The ids of those that were over when they were begun, and have steps left.
        self._under_way: set[str] = set()

    def take(self, over: int) -> list[Line]:
        """Take out all lines but those of which the sampler is to know nothing yet.

        Args:
            over: How many episodes are over and have steps left.
        """
        lines = list(self.values())
        self.clear()
        if over <= _MOST_AT_ONCE:
            return lines
        taken = []
        for line in lines:
            # A piece is taken whole, in whichever poll.
            if not line.over or line.begun or line.plays:
                taken.append(line)
            elif len(self._under_way) < _MOST_AT_ONCE:
                self._under_way.add(line.episode_id)
                taken.append(line)
            else:
                self[line.episode_id] = line
        return taken

    def used_up(self, line: Line) -> None:
        """Note that nothing is left of an episode that is over."""
        self._under_way.discard(line.episode_id)
