"""The switchboard: where callers from any thread meet the one thread that samples.

`ExternalEnv` and the serving sessions call `start, ask, log, pay, end, play, lose`; the adapter of external
environments takes what they said in `collect`. It keeps the order of calls within an episode and refuses calls that
make no sense at once, in the caller's thread. It knows neither spaces nor policies.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from menv.backlog import Backlog
from menv.base_env import AgentId, EnvId
from menv.call_errors import mixed, over, stopped, unlike
from menv.errors import CallOrderError, EpisodeError
from menv.line import Answer, Call, Line, Turn
from menv.open_lines import OpenLines
from menv.played import Played
from menv.ready_lines import ReadyLines

_MOST_AHEAD = 64
# Episodes that are over and not taken in yet, and the most seconds for which a new one waits for these: a caller that
# plays several by turns may have to go on before they can be.
_MOST_OVER = 256
_LONGEST_WAIT = 1.0
# Seconds after a fault in which what others have said is still taken; they may never be silent.
_PATIENCE = 0.5


class Switchboard:
    """Open episodes, what their callers said, and who waits for an answer.

    The `size` of a call is what it counts for in its caller's backlog, in bytes.

    Args:
        max_open: Most episodes that may be open at once; None for any number.

    Attributes:
        weights_seq_no: The number of the weights that answer now.
        on_news: Called whenever something was said, in its caller's thread.
    """

    def __init__(self, max_open: int | None = None) -> None:
        self.weights_seq_no = 0
        self.on_news: Callable[[], None] | None = None
        self._max_open = max_open
        # Taken by itself where nobody is waited for: a condition takes it in Python, and takes longer.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._lines = OpenLines()
        self._ready = ReadyLines()
        # How many episodes are over and have turns that the sampler has not taken.
        self._backlog = 0
        self._fault: BaseException | None = None
        self._fault_at = 0.0
        self._stopped = False
        self._woken = False
        # How many episodes were answered together last; their callers are expected back nearly together.
        self.expected = 0

    @property
    def open_episodes(self) -> int:
        """How many episodes are open."""
        return len(self._lines)

    @property
    def ready(self) -> int:
        """In how many episodes something was said that nobody has taken."""
        return len(self._ready)

    def has_room(self, steps: float, by_rows: bool) -> None:
        """Note how many more steps the sampler wants of pieces; see `ReadyLines.room`."""
        self._ready.room, self._ready.by_rows = steps, by_rows

    def start(
        self,
        episode_id: str | None = None,
        trained: bool = True,
        *,
        wait: bool = False,
        backlog: Backlog | None = None,
    ) -> str:
        """Open an episode.

        Args:
            episode_id: Its id; None makes one up.
            trained: Whether policies may learn from it.
            wait: Whether to wait a little while far more episodes are over than the sampler has taken.
            backlog: Where to count what of it waits for the sampler.

        Returns:
            The id.

        Raises:
            EpisodeError: The id was used before.
            CallOrderError: Too many are open, or nobody samples any more.
        """
        with self._news:
            if wait and self._backlog >= _MOST_OVER:
                self._news.wait_for(lambda: self._backlog < _MOST_OVER or self._stopped, _LONGEST_WAIT)
            if self._stopped:
                raise stopped()
            if episode_id is None:
                episode_id = uuid.uuid4().hex
            self._lines.check_new(episode_id)
            if self._max_open is not None and len(self._lines) >= self._max_open:
                raise CallOrderError(
                    f"start_episode: {len(self._lines)} episodes are open, expected at most max_concurrent="
                    f"{self._max_open}; end one first"
                )
            self._lines[episode_id] = Line(episode_id, trained, backlog)
            return episode_id

    def check(self, call: str, episode_id: str) -> None:
        """Raise what a call would raise that cannot be made now.

        Raises:
            EpisodeError: There is no such episode, or somebody waits for its actions.
        """
        with self._news:
            self._line(call, episode_id)

    def ask(self, episode_id: str, obs: Mapping[AgentId, Any], answer: Answer, size: int = 0) -> None:
        """Hand in an observation and ask for the actions of all its agents; returns at once.

        Raises:
            EpisodeError: There is no such episode, or somebody waits for its actions already.
        """
        for _, error in self.ask_all([(episode_id, obs, answer, size, None)]):
            raise error

    def ask_all(self, calls: Iterable[Call]) -> list[tuple[Call, CallOrderError]]:
        """Ask for the actions of many episodes, as `ask` and `pay` do one by one; returns at once.

        Returns:
            The calls that cannot be made, and why; nothing of them has been noted.
        """
        refused = []
        with self._lock:
            for call in calls:
                episode_id, obs, answer, size, paid = call
                try:
                    line = self._may_ask(episode_id)
                    if paid is not None:
                        line.pay(*paid)
                except CallOrderError as error:
                    refused.append((call, error))
                else:
                    line.plays, line.asked = False, True
                    line.push(line.turn(obs, answer), size)
                    if not line.busy:
                        self._ready.add(line)
            self._ring()
        return refused

    def log(
        self,
        episode_id: str,
        obs: Mapping[AgentId, Any],
        actions: Mapping[AgentId, Any],
        *,
        wait: bool = True,
        size: int = 0,
        taken: Answer | None = None,
    ) -> None:
        """Hand in an observation and what the caller itself did in answer to it.

        Args:
            episode_id: The episode.
            obs: By agent.
            actions: Of the same agents.
            wait: Whether to wait while far more was logged than the sampler has taken.
            size: Bytes that it counts for in the backlog.
            taken: Called in the sampler's thread once it has taken the row.

        Raises:
            EpisodeError: There is no such episode, or somebody waits for its actions.
            CallOrderError: Not every agent that observed has an action.
        """
        with self._news:
            line = self._line("log_action", episode_id)
            while wait and len(line.turns) >= _MOST_AHEAD:
                self._news.wait()
                line = self._line("log_action", episode_id)
            # Who is done has nothing more to do.
            if obs.keys() != actions.keys() and obs.keys() - line.done != actions.keys() - line.done:
                raise unlike(obs, actions)
            turn = line.turn(obs, taken)
            turn.actions = actions
            self._say(line, turn, size)

    def pay(
        self,
        episode_id: str,
        rewards: Mapping[AgentId, float],
        infos: Mapping[Any, Mapping[str, Any]] | None = None,
        done: Mapping[Any, bool] | None = None,
        size: int = 0,
    ) -> None:
        """Note rewards, which add up, and what else goes with the next observation.

        Args:
            episode_id: The episode.
            rewards: By agent.
            infos: Likewise.
            done: True for agents whose own trajectories end.
            size: Bytes that it counts for in the backlog.

        Raises:
            EpisodeError: There is no such episode, or pieces of it are handed in.
            ContractError: A reward is not a finite number.
        """
        with self._news:
            line = self._line("log_returns", episode_id)
            if line.plays:
                raise mixed("log_returns", episode_id)
            line.pay(rewards, infos or {}, done or {}, size)

    def end(
        self, episode_id: str, obs: Mapping[AgentId, Any], *, truncated: bool = False, size: int = 0
    ) -> None:
        """End an episode with its last observations.

        Raises:
            EpisodeError: There is no such episode, or somebody waits for its actions.
        """
        with self._news:
            line = self._line("end_episode", episode_id)
            turn = line.turn(obs)
            turn.over = not truncated, truncated
            self._say(line, turn, size)

    def play(self, episode_id: str, piece: Played, size: int = 0) -> None:
        """Hand in a piece of an episode that was played elsewhere, the last one if it is over.

        Args:
            episode_id: The episode.
            piece: What was played.
            size: Bytes that it counts for in the backlog.

        Raises:
            EpisodeError: There is no such episode, or its actions are asked for here.
        """
        with self._news:
            line = self._line("episodes", episode_id)
            if line.plays is False or line.rewards:
                raise EpisodeError(
                    f"episodes: actions of episode {episode_id!r} were asked for one by one, expected whole "
                    "pieces from its beginning; do one or the other"
                )
            line.plays = True
            if piece.over:
                self._close(line)
            self._push(line, piece, size)
            self._ring()

    def lose(self, episode_ids: Iterable[str], why: str) -> None:
        """Break episodes off whose client is gone; what their last actions led to is unknown.

        Args:
            episode_ids: Episodes; those that are not open are left alone.
            why: What happened, in a few words; the first of a run is shown in results.
        """
        with self._news:
            for episode_id in episode_ids:
                line = self._lines.get(episode_id)
                if line is None or self._stopped:
                    continue
                line.lost = why
                turn = line.turn(None)
                turn.over = False, True
                self._close(line)
                self._push(line, turn, 0)
            self._ring()

    def fail(self, fault: BaseException) -> None:
        """Let `collect` raise, once everything that was said before has been taken, but soon in any case."""
        with self._news:
            if self._fault is None:
                self._fault, self._fault_at = fault, time.monotonic()
            self._news.notify_all()

    def stop(self) -> None:
        """Nobody samples any more: those who wait are told, and later calls are refused."""
        with self._news:
            self._stopped = True
            waiting = [turn for line in self._lines.values() for turn in line.turns if isinstance(turn, Turn)]
            self._ready.clear()
            self._news.notify_all()
        for turn in waiting:
            turn.tell(stopped())

    def wake(self) -> None:
        """Let a `collect` that waits return."""
        with self._news:
            self._woken = True
            self._news.notify_all()

    def collect(self, timeout: float | None) -> list[Line]:
        """Return the episodes in which something was said, waiting for the first one.

        Args:
            timeout: Most seconds to wait; None for as long as it takes.

        Raises:
            BaseException: What `fail` was given.
            CallOrderError: It was stopped.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while not (self.ready or self._fault or self._woken or self._stopped):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._news.wait(left)
            self._woken = False
            if self._stopped:
                raise over()
            if self._fault and (not self.ready or time.monotonic() - self._fault_at > _PATIENCE):
                raise self._fault
            return self._ready.take(self.ready - len(self._ready))

    def next_turns(self, lines: Sequence[Line]) -> list[Turn | Played | None]:
        """Return what is to be taken next in each episode, None while its last turn is not answered."""
        found: list[Turn | Played | None] = []
        with self._lock:
            for line in lines:
                if line.busy or not line.turns:
                    found.append(None)
                    continue
                if len(line.turns) == _MOST_AHEAD:
                    self._news.notify_all()
                found.append(line.pop())
                if line.over and not line.turns:
                    self._ready.used_up(line)
                    self._backlog -= 1
                    if self._backlog == _MOST_OVER - 1:
                        self._news.notify_all()
            for line in lines:
                if line.plays and line.turns:
                    self._ready.add(line)
        return found

    def answered(self, lines: Iterable[Line]) -> None:
        """Note that turns have been answered; what was said since comes up in `collect`."""
        with self._news:
            self.expected = 0
            for line in lines:
                self.expected += line.asked
                line.asked = line.busy = False
                if line.turns:
                    self._ready.add(line)

    def held_rewards(self, known: Iterable[Line] = ()) -> dict[EnvId, dict[AgentId, float]]:
        """Return what was paid and the sampler has not taken, by episode and agent.

        Args:
            known: Episodes that the sampler has begun; some of them may be closed here.
        """
        with self._news:
            everybody = (*known, *self._ready, *self._lines.values())
            found = {line.episode_id: line.owed() for line in everybody}
        return {name: owed for name, owed in found.items() if owed}

    def _line(self, call: str, episode_id: str) -> Line:
        """Return an open episode in which nobody waits."""
        if self._stopped:
            raise stopped()
        return self._lines.free(call, episode_id)

    def _may_ask(self, episode_id: str) -> Line:
        line = self._lines.named(episode_id)
        if line is None or line.asked or self._stopped:
            line = self._line("get_action", episode_id)
        if line.plays:
            raise mixed("episode", episode_id)
        return line

    def _say(self, line: Line, turn: Turn, size: int) -> None:
        if line.plays:
            raise mixed("episode", line.episode_id)
        line.plays = False
        if turn.over is not None:
            self._close(line)
        self._push(line, turn, size)
        self._ring()

    def _push(self, line: Line, said: Turn | Played, size: int) -> None:
        line.push(said, size)
        if not line.busy:
            self._ready.add(line)

    def _ring(self) -> None:
        if self._ready:
            self._news.notify_all()
            if self.on_news is not None:
                self.on_news()

    def _close(self, line: Line) -> None:
        line.over = True
        self._backlog += 1
        self._lines.close(line)
