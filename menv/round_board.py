"""A switchboard that takes rounds: the short way of questions that came together and go on as they did before.

Serving inputs have one. A round is taken where none waits and each of its episodes is steady: one agent was answered,
and nothing has been said since. Everything else goes the way of `menv.switchboard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from menv.base_env import ALL, SINGLE_AGENT, AgentId, EnvId
from menv.call_errors import stopped
from menv.line import Line
from menv.round import Round
from menv.switchboard import Switchboard


class RoundBoard(Switchboard):
    """A `Switchboard` at which at most one round waits, so that nobody's backlog has to count it."""

    def __init__(self, max_open: int | None = None) -> None:
        super().__init__(max_open)
        self._round: Round | None = None

    @property
    def ready(self) -> int:
        """In how many episodes something was said that nobody has taken."""
        waiting = self._round
        return len(self._ready) + (0 if waiting is None else len(waiting.lines))

    def gone(self, episode_id: str, done: Mapping[Any, bool] | None) -> set[AgentId]:
        """Return the agents whose observations in an episode's next turn are their last ones; called by who says it.

        Args:
            episode_id: The episode.
            done: What the turn itself says of ends, beside what was said since the last one.
        """
        line = self._lines.get(episode_id)
        told = [
            *(line.done if line is not None else {}),
            *(agent for agent, flag in (done or {}).items() if flag),
        ]
        return set(told) - {ALL}

    def ask_round(self, asked: Round) -> bool:
        """Ask for the actions of a round; returns at once.

        Returns:
            False where it has to be asked question by question; nothing has been noted then.
        """
        with self._lock:
            if self._stopped or self._round is not None:
                return False
            known, lines = self._lines, asked.lines
            for episode_id in asked.episode_ids:
                line = known.get(episode_id)
                if line is None or not line.steady or line.asked:
                    self._take_back(lines)
                    return False
                # Whatever is said from now on waits until the round is answered.
                line.asked = line.busy = True
                lines.append(line)
            self._round = asked
            self._news.notify_all()
            if self.on_news is not None:
                self.on_news()
        return True

    def take_round(self) -> Round | None:
        """Return the round that waits, None if there is none; its episodes are busy until `answered_round`."""
        with self._lock:
            taken, self._round = self._round, None
        return taken

    def answered_round(self, answered: Round) -> None:
        """Note that a round has been answered; what was said since comes up in `collect`."""
        with self._lock:
            self._expected = len(answered.lines)
            for line in answered.lines:
                line.asked = line.busy = False
                if line.turns:
                    self._ready.add(line)

    def steady(self, lines: Iterable[Line]) -> None:
        """Note that one agent of each of these episodes was answered, so that they may be part of a round."""
        with self._lock:
            for line in lines:
                said = line.asked or line.busy or line.turns or line.rewards or line.infos or line.done
                line.steady = not (said or line.over)

    def stop(self) -> None:
        """Nobody samples any more; see `Switchboard.stop`."""
        super().stop()
        waiting = self.take_round()
        if waiting is not None:
            waiting.tell(stopped())

    def held_rewards(self, known: Iterable[Line] = ()) -> dict[EnvId, dict[AgentId, float]]:
        """Return what was paid and the sampler has not taken; see `Switchboard.held_rewards`."""
        with self._lock:
            found = super().held_rewards(known)
            waiting = self._round
            paid: Iterable[tuple[Any, float]] = ()
            if waiting is not None:
                paid = zip(waiting.episode_ids, waiting.rewards.tolist(), strict=True)
            for episode_id, reward in paid:
                if reward:
                    owed = found.setdefault(episode_id, {})
                    owed[SINGLE_AGENT] = owed.get(SINGLE_AGENT, 0.0) + reward
        return found

    @staticmethod
    def _take_back(lines: list[Line]) -> None:
        for line in lines:
            line.asked = line.busy = False
        lines.clear()
