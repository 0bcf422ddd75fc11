"""The switchboard: where callers from any thread meet the one thread that samples.

`ExternalEnv` and the serving sessions call `start, ask, log, pay, end, play, lose`; the adapter of external
environments takes what they said in `collect`. It keeps the order of calls within an episode and refuses calls that
make no sense at once, in the caller's thread. It knows neither spaces nor policies.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any

from menv.adapters.episode_channel import Answer, ByteBudget, Call, ChannelStep, EpisodeChannel, RequestBatch
from menv.base_env import ALL, SINGLE_AGENT, AgentId, EnvId, ExternalTrajectory
from menv.errors import CallOrderError, EpisodeError
from menv.external_env import mixed, over, stopped, unlike

# SEAM menv.open_lines
# The open episodes of a switchboard by id, and the ids that were used lately.
#
# `menv.adapters.episode_broker` keeps them, and guards them with its lock. It knows neither callers nor the
# sampler.


_KEPT_IDS = 10_000


class ChannelTable(dict[str, EpisodeChannel]):
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

    def named(self, episode_id: str) -> EpisodeChannel | None:
        """Return the line of an open episode; None if there is none, as for what can be no id."""
        try:
            return self.get(episode_id)
        except TypeError:
            return None

    def free(self, call: str, episode_id: str) -> EpisodeChannel:
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

    def close(self, line: EpisodeChannel) -> None:
        """Take an episode's id out of use."""
        del self[line.episode_id]
        self._finished[line.episode_id] = None
        if len(self._finished) > _KEPT_IDS:
            self._finished.popitem(last=False)


# SEAM menv.ready_lines
# The episodes in which something was said that the sampler has not taken.
#
# `menv.adapters.episode_broker` keeps them, and guards them with its lock. Whatever costs the sampler time is
# taken a little at a
# time: thousands of episodes that end at once, or are played elsewhere, must not keep those waiting who ask
# for actions.


_MOST_AT_ONCE = 16
# The end of an episode takes the sampler several times as long as a question.
_MOST_ENDS = 4
# A piece costs the sampler several times as much as the end of an episode.
_MOST_PIECES = 2


class ReadyQueue:
    """Lines by id.

    Attributes:
        room: How many more steps the sampler wants. Without room only pieces of episodes that it has begun count, and
            are taken.
        by_rows: Whether the steps of all agents count, not env steps.
    """

    def __init__(self) -> None:
        self.room: float = float("inf")
        self.by_rows = False
        self._asking: dict[str, EpisodeChannel] = {}
        # Lines that are over: those that the sampler had begun before, those that it has not begun, and those of
        # `_under_way`.
        self._ended: dict[str, EpisodeChannel] = {}
        self._logged: dict[str, EpisodeChannel] = {}
        self._going_on: dict[str, EpisodeChannel] = {}
        # Lines with pieces, by client; the client whose turn it is comes first.
        self._playing: dict[ByteBudget, dict[str, EpisodeChannel]] = {}
        self._kinds = (self._asking, self._ended, self._logged, self._going_on)
        self._pieces = self._begun_pieces = 0
        self._latest = 0
        # The ids of those that were over when they were begun, and have steps left.
        self._under_way: set[str] = set()

    def __len__(self) -> int:
        pieces = self._pieces if self.room > 0 else self._begun_pieces
        return sum(map(len, self._kinds)) + pieces

    def __iter__(self) -> Iterator[EpisodeChannel]:
        for lines in (*self._kinds, *self._playing.values()):
            yield from lines.values()

    def clear(self) -> None:
        """Forget all lines."""
        for lines in (*self._kinds, self._playing):
            lines.clear()
        self._pieces = self._begun_pieces = 0

    def add(self, line: EpisodeChannel) -> None:
        """Add a line, or note that more was said in it."""
        name, before = line.episode_id, None
        if line.plays:
            lines = self._playing.setdefault(line.backlog, {})
            self._pieces += name not in lines
            self._begun_pieces += line.begun and name not in lines
        elif line.over:
            before = self._asking.pop(name, None)
            begun = self._going_on if name in self._under_way else self._ended
            lines = begun if line.begun else self._logged
        else:
            lines = self._asking
        if name not in lines:
            lines[name] = line
            if before is None:
                self._latest = line.place = self._latest + 1

    def take(self, others: int = 0) -> list[EpisodeChannel]:
        """Take out what the sampler is to take next, in the order in which it was said.

        Args:
            others: How many episodes ask for actions that are not here.
        """
        lines = list(self._asking.values())
        self._asking.clear()
        more = self._take_over(len(lines) + others) + self._take_pieces()
        return sorted(lines + more, key=attrgetter("place")) if more else lines

    def _take_over(self, asking: int) -> list[EpisodeChannel]:
        """Take out a few lines that are over.

        Of a caller that only logs, hundreds of episodes may be over before the sampler takes the first step of one.
        Each of them completes a step at most, so a fragment takes no more of them than it lacks steps.
        """
        room = self.room if self.room > 0 else _MOST_AT_ONCE
        most = min(_MOST_AT_ONCE, room)
        # Every episode asks once at least: where as many ends as questions are taken, ends do not pile up.
        ended = _first(self._ended, max(min(_MOST_ENDS, room), asking), self.by_rows)
        taken = _first(self._going_on, most, self.by_rows)
        begun = _first(self._logged, most - max(len(taken), len(self._under_way)), self.by_rows)
        self._under_way.update(line.episode_id for line in begun)
        return ended + taken + begun

    def _take_pieces(self) -> list[EpisodeChannel]:
        """Take out a few lines with pieces, of each client in turn, while there is room."""
        taken: list[EpisodeChannel] = []
        room, full = self.room, self.room <= 0
        while len(taken) < _MOST_PIECES and (self._begun_pieces if full else self._pieces and room > 0):
            client = next(iter(self._playing))
            lines = self._playing.pop(client)
            line = next((one for one in lines.values() if one.begun or not full), None)
            if line is not None:
                del lines[line.episode_id]
                self._pieces -= 1
                self._begun_pieces -= line.begun
                room -= self._steps(line.turns[0])
                # An end that comes without a step needs no room.
                ends = takewhile(lambda said: not self._steps(said), islice(line.turns, 1, None))
                taken += [line, *(line for _ in ends)]
            if lines:
                self._playing[client] = lines
        return taken

    def _steps(self, said: ChannelStep | ExternalTrajectory) -> int:
        """Return how many steps a piece has; the loss of an episode has none."""
        if not isinstance(said, ExternalTrajectory):
            return 0
        return sum(len(moves.rewards) for moves in said.agents.values()) if self.by_rows else said.env_steps

    def used_up(self, line: EpisodeChannel) -> None:
        """Note that nothing is left of an episode that is over."""
        self._under_way.discard(line.episode_id)


def _first(lines: dict[str, EpisodeChannel], most: float, by_rows: bool) -> list[EpisodeChannel]:
    """Take out the first lines, at most so many, or where rows count about so many agents."""
    taken = []
    while lines and most > 0:
        line = lines.pop(next(iter(lines)))
        taken.append(line)
        said = line.turns[0] if by_rows and line.turns else None
        most -= max(1, len(said.obs or ())) if isinstance(said, ChannelStep) else 1
    return taken


_MOST_AHEAD = 64
# Episodes that are over and not taken in yet, and the most seconds for which a new one waits for these: a caller that
# plays several by turns may have to go on before they can be.
_MOST_OVER = 256
_LONGEST_WAIT = 1.0
# Seconds after a fault in which what others have said is still taken; they may never be silent.
_PATIENCE = 0.5


class EpisodeBroker:
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
        self._lines = ChannelTable()
        self._ready = ReadyQueue()
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
        """Note how many more steps the sampler wants of pieces; see `ReadyQueue.room`."""
        self._ready.room, self._ready.by_rows = steps, by_rows

    def start(
        self,
        episode_id: str | None = None,
        trained: bool = True,
        *,
        wait: bool = False,
        backlog: ByteBudget | None = None,
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
            self._lines[episode_id] = EpisodeChannel(episode_id, trained, backlog)
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

    def play(self, episode_id: str, piece: ExternalTrajectory, size: int = 0) -> None:
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
            waiting = [
                turn for line in self._lines.values() for turn in line.turns if isinstance(turn, ChannelStep)
            ]
            self._ready.clear()
            self._news.notify_all()
        for turn in waiting:
            turn.tell(stopped())

    def wake(self) -> None:
        """Let a `collect` that waits return."""
        with self._news:
            self._woken = True
            self._news.notify_all()

    def collect(self, timeout: float | None) -> list[EpisodeChannel]:
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

    def next_turns(self, lines: Sequence[EpisodeChannel]) -> list[ChannelStep | ExternalTrajectory | None]:
        """Return what is to be taken next in each episode, None while its last turn is not answered."""
        found: list[ChannelStep | ExternalTrajectory | None] = []
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

    def answered(self, lines: Iterable[EpisodeChannel]) -> None:
        """Note that turns have been answered; what was said since comes up in `collect`."""
        with self._news:
            self.expected = 0
            for line in lines:
                self.expected += line.asked
                line.asked = line.busy = False
                if line.turns:
                    self._ready.add(line)

    def held_rewards(self, known: Iterable[EpisodeChannel] = ()) -> dict[EnvId, dict[AgentId, float]]:
        """Return what was paid and the sampler has not taken, by episode and agent.

        Args:
            known: Episodes that the sampler has begun; some of them may be closed here.
        """
        with self._news:
            everybody = (*known, *self._ready, *self._lines.values())
            found = {line.episode_id: line.owed() for line in everybody}
        return {name: owed for name, owed in found.items() if owed}

    def _line(self, call: str, episode_id: str) -> EpisodeChannel:
        """Return an open episode in which nobody waits."""
        if self._stopped:
            raise stopped()
        return self._lines.free(call, episode_id)

    def _may_ask(self, episode_id: str) -> EpisodeChannel:
        line = self._lines.named(episode_id)
        if line is None or line.asked or self._stopped:
            line = self._line("get_action", episode_id)
        if line.plays:
            raise mixed("episode", episode_id)
        return line

    def _say(self, line: EpisodeChannel, turn: ChannelStep, size: int) -> None:
        if line.plays:
            raise mixed("episode", line.episode_id)
        line.plays = False
        if turn.over is not None:
            self._close(line)
        self._push(line, turn, size)
        self._ring()

    def _push(self, line: EpisodeChannel, said: ChannelStep | ExternalTrajectory, size: int) -> None:
        line.push(said, size)
        if not line.busy:
            self._ready.add(line)

    def _ring(self) -> None:
        if self._ready:
            self._news.notify_all()
            if self.on_news is not None:
                self.on_news()

    def _close(self, line: EpisodeChannel) -> None:
        line.over = True
        self._backlog += 1
        self._lines.close(line)


# SEAM menv.round_board
# A switchboard that takes rounds: the short way of questions that came together and go on as they did before.
#
# Serving inputs have one. A round is taken where none waits and each of its episodes is steady: one agent was
# answered,
# and nothing has been said since. Everything else goes the way of `menv.adapters.episode_broker`.


class BatchedEpisodeBroker(EpisodeBroker):
    """A `EpisodeBroker` at which at most one round waits, so that nobody's backlog has to count it."""

    def __init__(self, max_open: int | None = None) -> None:
        super().__init__(max_open)
        self._round: RequestBatch | None = None

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

    def ask_round(self, asked: RequestBatch) -> bool:
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

    def take_round(self) -> RequestBatch | None:
        """Return the round that waits, None if there is none; its episodes are busy until `answered_round`."""
        with self._lock:
            taken, self._round = self._round, None
        return taken

    def answered_round(self, answered: RequestBatch) -> None:
        """Note that a round has been answered; what was said since comes up in `collect`."""
        with self._lock:
            self._expected = len(answered.lines)
            for line in answered.lines:
                line.asked = line.busy = False
                if line.turns:
                    self._ready.add(line)

    def steady(self, lines: Iterable[EpisodeChannel]) -> None:
        """Note that one agent of each of these episodes was answered, so that they may be part of a round."""
        with self._lock:
            for line in lines:
                said = line.asked or line.busy or line.turns or line.rewards or line.infos or line.done
                line.steady = not (said or line.over)

    def stop(self) -> None:
        """Nobody samples any more; see `EpisodeBroker.stop`."""
        super().stop()
        waiting = self.take_round()
        if waiting is not None:
            waiting.tell(stopped())

    def held_rewards(self, known: Iterable[EpisodeChannel] = ()) -> dict[EnvId, dict[AgentId, float]]:
        """Return what was paid and the sampler has not taken; see `EpisodeBroker.held_rewards`."""
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
    def _take_back(lines: list[EpisodeChannel]) -> None:
        for line in lines:
            line.asked = line.busy = False
        lines.clear()
