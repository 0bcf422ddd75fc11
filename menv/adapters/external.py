"""External episodes as a `BaseEnv`: an episode is a sub-environment that comes and goes.

Callers talk to a `EpisodeBroker` from their own threads; each poll takes what they said, with the same `Roster` as the
other dict adapters. `menv.adapters.convert` makes one of `ExternalEnv`s, the serving inputs one of their own. It knows
neither sockets nor policies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from menv.adapters.agent_tracker import ExternalAgentTracker, SlotPool, WaitingAgents, join_slots
from menv.adapters.episode_broker import BatchedEpisodeBroker, EpisodeBroker
from menv.adapters.episode_channel import ChannelStep, EpisodeChannel, RequestBatch
from menv.adapters.poll_events import PollEvents
from menv.adapters.validation import as_rewards, by_sub_environment, check_answers, of_rosters
from menv.base_env import (
    ALL,
    AgentChunk,
    AgentId,
    BaseEnv,
    End,
    EnvId,
    ExternalTrajectory,
    IntArray,
    Ready,
    TrajectoryChunk,
    Unclaimed,
)
from menv.errors import CALLER, ContractError, EnvCrashError, EnvFault
from menv.external_env import over, stopped

# SEAM menv.adapters.game
# Game: an open external episode as the sampler has it.
#
# `menv.adapters.external` keeps one for each, and answers its turns. It knows neither callers nor policies.


class ExternalEpisode:
    """An open episode: its line, its agents, and the turn that waits for an answer.

    Attributes:
        line: As given; so is `roster`.
        turn: None where nobody waits, or a whole round does.
        acted: Whether an agent has been asked, or has acted elsewhere; without it there was no episode.
    """

    __slots__ = ("acted", "line", "roster", "turn")

    def __init__(self, line: EpisodeChannel, roster: ExternalAgentTracker) -> None:
        self.line = line
        self.roster = roster
        self.turn: ChannelStep | None = None
        self.acted = False


def chosen_actions(games: Iterable[ExternalEpisode]) -> dict[int, Any]:
    """Return the actions that callers chose themselves, by slot."""
    return {
        slot: game.turn.actions[agent]
        for game in games
        if game.turn is not None and game.turn.actions is not None
        for agent, slot in zip(game.roster.waiting.agents, game.roster.waiting.slot_list, strict=True)
    }


# SEAM menv.adapters.played_pieces
# Pieces of episodes that were played elsewhere, as the sampler takes them: with slots, joins and ends.
#
# `menv.adapters.external` calls it for what clients send that choose their actions themselves.


def next_piece(
    roster: ExternalAgentTracker, played: ExternalTrajectory, trained: bool, now: int
) -> TrajectoryChunk:
    """Return a piece of the episode that `roster` stands for.

    Agents that live on in an episode that ends, end with it, with the observation that they wait with.

    Args:
        roster: Of the episode.
        played: What was played.
        trained: Whether policies may learn from it.
        now: Env steps of the sub-environment, those of the piece included.
    """
    parts = []
    times = now - roster.episode_steps, now
    for agent, moves in played.agents.items():
        if not len(moves.rewards) and agent not in roster.living():
            continue
        slot, join = roster.enter(agent)
        end = None
        if moves.over or played.over:
            own = (moves.terminated, moves.truncated) if moves.over else (played.terminated, played.truncated)
            # Without an action the observation that waits is the last one.
            acted = len(moves.rewards) > 0
            last = moves.obs[len(moves.rewards)] if acted else None
            reward = float(moves.rewards[-1]) if acted else 0.0
            end = End(slot, roster.env_id, agent, reward, *own, last, {}, withdrawn=not acted)
            roster.leave(agent)
        if join is not None:
            join = join._replace(trained=trained, policy_id=played.policies.get(agent))
        parts.append(AgentChunk(slot, join, moves, end))
    if not played.over:
        return TrajectoryChunk(roster.env_id, roster.env_index, parts, None, played.weights_seq_no, *times)
    parts += _others(roster, played.terminated, played.truncated)
    episode = roster.close(played.terminated, played.truncated)
    return TrajectoryChunk(roster.env_id, roster.env_index, parts, episode, played.weights_seq_no, *times)


def last_piece(roster: ExternalAgentTracker, now: int) -> TrajectoryChunk:
    """Return the end of an episode whose client is gone; see `next_piece`."""
    parts, began = _others(roster, False, True), now - roster.episode_steps
    episode = roster.close(False, True)._replace(faulty=True)
    return TrajectoryChunk(roster.env_id, roster.env_index, parts, episode, None, began, now)


def _others(roster: ExternalAgentTracker, terminated: bool, truncated: bool) -> list[AgentChunk]:
    parts = []
    for agent in roster.living():
        slot, _ = roster.enter(agent)
        end = End(slot, roster.env_id, agent, 0.0, terminated, truncated, None, {}, withdrawn=True)
        parts.append(AgentChunk(slot, None, None, end))
        roster.leave(agent)
    return parts


_GOES_ON: dict[AgentId, bool] = {ALL: False}
_FEW = 16


class ExternalEnvs(BaseEnv):
    """The open episodes of one `EpisodeBroker`.

    Args:
        switchboard: Where callers call.
        envs: External environments that call it, whose `run` is started with the first poll.
        observation_space: Of each agent, if there are no such environments.
        action_space: Likewise.
        possible_agents: Agents that may ever appear, () if nobody knows.
        idle_timeout: Seconds without anything after which the sampler gives up for the time being.
    """

    returns_table = True
    external = True

    def __init__(
        self,
        switchboard: EpisodeBroker,
        envs: Sequence[Any] = (),
        *,
        observation_space: Any = None,
        action_space: Any = None,
        possible_agents: Iterable[AgentId] = (),
        idle_timeout: float | None = 30.0,
    ) -> None:
        self.switchboard = switchboard
        self.idle_timeout = idle_timeout
        self.observation_space = observation_space
        self.action_space = action_space
        self.possible_agents = list(possible_agents)
        self._possible = frozenset(self.possible_agents) or None
        self._envs = list(envs)
        self._started = False
        self._pool = SlotPool()
        self._games: dict[EnvId, ExternalEpisode] = {}
        self._free: list[ExternalAgentTracker] = []
        # Those whose last piece is under way; their slots are in use until it has been taken in.
        self._leaving: list[ExternalAgentTracker] = []
        # The first of as many counts as there is room for.
        self._counts = self._env_steps = np.zeros(0, np.int64)
        # Of the sub-environments that have stepped since the last poll, once for each step.
        self._stepped: list[int] = []
        self._due: list[ExternalEpisode] = []
        # How many of these show observations, and nothing else.
        self._plain = 0
        # Those who wait for answers, in the order of the rows that were delivered last.
        self._asked: list[ExternalEpisode] = []
        self._report = PollEvents()
        self._pieces: list[TrajectoryChunk] = []
        self._delivered = (list[WaitingAgents](), np.zeros(0, np.int64))
        # Held by who takes turns or answers them, so that whoever stops it finds each of them at its place.
        self._by_turns = threading.RLock()
        self._over = False

    def connect(self, trainer: Any) -> None:
        """Begin to take calls for an algorithm; what it is asked is up to kinds of this class."""

    def published(self) -> None:
        """Note that the weights have changed; called in the sampler's thread."""

    def poll(self, timeout: float | None = None) -> Ready:
        """Return what callers have said since the last poll, waiting `timeout` seconds at most for the first."""
        if not self._started:
            self._started = True
            for env in self._envs:
                name = f"{type(env).__name__}.run"
                threading.Thread(target=self._run, args=(env,), name=name, daemon=True).start()
        self._free += self._leaving
        self._leaving = []
        for env in self._envs:
            env.sampler = threading.get_ident()
        lines = self.switchboard.collect(timeout)
        with self._by_turns:
            if self._over:
                raise over()
            return self._take_in(lines)

    def rest(self) -> None:
        """Note that nobody polls for a while; see `BaseEnv.rest`."""
        for env in self._envs:
            env.sampler = None

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer callers; see `BaseEnv.send_actions`."""
        with self._by_turns:
            # Whoever stops it tells those who wait; the next poll raises.
            if not self._over:
                self._answer(slots, actions)

    def _answer(self, slots: Any, actions: Any) -> None:
        due = self._answers_of_all(slots, actions) or self._answers(slots, actions)
        # First the line is free, then its caller is told: it calls again at once.
        self._let_go([game for game, _, _ in due])
        for game, turn, answers in due:
            game.turn = None
            turn.tell(answers)

    def _answers(
        self, slots: Any, actions: Any
    ) -> list[tuple[ExternalEpisode, ChannelStep, Mapping[AgentId, Any]]]:
        due: list[tuple[ExternalEpisode, ChannelStep, Mapping[AgentId, Any]]] = []
        for env_id, answers in by_sub_environment(slots, actions, self._pool.seats).items():
            game = self._games.get(env_id)
            turn = None if game is None else game.turn
            check_answers(env_id, [] if game is None or turn is None else game.roster.waiting.agents, answers)
            if game is not None and turn is not None:
                due.append((game, turn, answers))
        return due

    def _answers_of_all(
        self, slots: Any, actions: Any
    ) -> list[tuple[ExternalEpisode, ChannelStep, Mapping[AgentId, Any]]] | None:
        """Return the answers where all rows of the last poll are answered, in their order; None where that is not so.

        Then nobody has to be looked up, and nobody can be missing.
        """
        games = self._asked
        if (
            slots is not self._delivered[1]
            or type(actions) not in (list, np.ndarray)
            or len(actions) != len(slots)
        ):
            return None
        due: list[tuple[ExternalEpisode, ChannelStep, Mapping[AgentId, Any]]] = []
        given = iter(actions)
        for game in games:
            if game.turn is None:
                return None
            agents = game.roster.waiting.agents
            answers = dict(zip(agents, given, strict=False)) if len(agents) > 1 else {agents[0]: next(given)}
            due.append((game, game.turn, answers))
        return due

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the external environments whose `run` is executed here."""
        return dict(enumerate(self._envs)) if as_dict else list(self._envs)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that may ever appear, as far as they are known, and those that play."""
        return set(self.possible_agents).union(*(game.roster.known for game in self._games.values()))

    def episodes_at(self, env_indices: Iterable[int]) -> list[EnvId]:
        """Return the open episodes that are these sub-environments."""
        wanted = set(env_indices)
        return [env_id for env_id, game in self._games.items() if game.roster.env_index in wanted]

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that wait for their agent's next row."""
        games = self._games
        untaken = self.switchboard.held_rewards(game.line for game in games.values())
        found: dict[EnvId, dict[AgentId, float]] = dict(untaken.items())
        for env_id, game in games.items():
            for agent, reward in game.roster.held.items():
                by_agent = found.setdefault(env_id, {})
                by_agent[agent] = by_agent.get(agent, 0.0) + reward
        return found

    def status(self) -> dict[str, Any]:
        """Return how many episodes are open."""
        return {"open_episodes": self.switchboard.open_episodes}

    def stop(self) -> None:
        """Refuse further calls and tell those who wait, from any thread; those of `run` end when they call next."""
        self._over = True
        self.switchboard.stop()
        with self._by_turns:
            self._tell_stopped()

    def _tell_stopped(self) -> None:
        for game in self._games.values():
            turn, game.turn = game.turn, None
            if turn is not None:
                turn.tell(stopped())

    def _run(self, env: Any) -> None:
        name = type(env).__name__
        try:
            env.run()
        except BaseException as error:
            fault = EnvCrashError(
                f"{name}.run: raised {type(error).__name__}: {error}; its traceback is above"
            )
            fault.__cause__ = error
        else:
            fault = EnvCrashError(
                f"{name}.run: returned while its actions are sampled, expected it to go on; loop over episodes, or "
                "train less often"
            )
        self.switchboard.fail(fault)

    def _take_in(self, lines: Sequence[EpisodeChannel]) -> Ready:
        for line, turn in zip(lines, self.switchboard.next_turns(lines), strict=True):
            self._advance(line, turn)
        return self._deliver()

    def _let_go(self, games: Sequence[ExternalEpisode]) -> None:
        self.switchboard.answered([game.line for game in games])

    def _advance(self, line: EpisodeChannel, turn: ChannelStep | ExternalTrajectory | None) -> None:
        """Take what was said in an episode: a piece, or turns up to one that must be answered first."""
        if isinstance(turn, ExternalTrajectory):
            self._play(line, turn)
            return
        while isinstance(turn, ChannelStep) and not self._take_or_tell(line, turn):
            (turn,) = self.switchboard.next_turns([line])

    def _take_or_tell(self, line: EpisodeChannel, turn: ChannelStep) -> bool:
        """Take in a turn; who made a call that breaks the rules is told why, as the sampler is."""
        try:
            return self._take(line, turn)
        except ContractError as error:
            self.switchboard.answered([line])
            turn.tell(ContractError(str(error)))
            raise

    def _take(self, line: EpisodeChannel, turn: ChannelStep) -> bool:
        """Take in a turn; True if it waits for an answer."""
        game = self._games.get(line.episode_id)
        if line.plays:
            # Only its loss is told by a turn.
            if game is not None:
                self._note_lost(game)
                self._hand_on(game, last_piece(game.roster, int(self._env_steps[game.roster.env_index])))
            return False
        if game is None:
            if turn.over is not None:
                self._drop(line, turn.rewards)
                return False
            game, before = self._open(line), len(self._report.joined)
            game.roster.credit(turn.rewards, self._report)
            # Who was done before it saw anything never acts.
            shown = {agent: obs for agent, obs in (turn.obs or {}).items() if agent not in turn.done}
            game.roster.begin(shown, turn.infos, self._report)
            self._mark_untrained(line, before)
        elif turn.obs and turn.plain and game.roster.go_on(turn.obs):
            # Nobody is new, gone or owed anything, as in nearly all steps.
            self._stepped.append(game.roster.env_index)
            self._plain += turn.actions is None
        elif self._step(game, turn):
            del self._games[line.episode_id]
            self._free.append(game.roster)
            return False
        if not game.roster.waiting.agents:
            self.switchboard.answered([line])
            turn.tell({})
            return False
        game.turn, line.busy = turn, True
        game.acted = True
        self._due.append(game)
        return True

    def _step(self, game: ExternalEpisode, turn: ChannelStep) -> bool:
        """Take in one env step; True if the episode is over."""
        roster, report = game.roster, self._report
        if turn.obs is None:
            self._note_lost(game)
            roster.lose(turn.rewards, report, faulty=True)
            return True
        self._stepped.append(roster.env_index)
        terminateds, truncateds = _GOES_ON, _GOES_ON
        if turn.done or turn.over is not None:
            terminated, truncated = turn.over or (False, False)
            terminateds, truncateds = {**turn.done, ALL: terminated}, {ALL: truncated}
        before = len(report.joined)
        over = roster.step((turn.obs, turn.rewards, terminateds, truncateds, turn.infos), report)
        self._mark_untrained(game.line, before)
        if over and not game.acted:
            self._count_out()
        return over

    def _count_out(self) -> None:
        """Keep the episode that ended last out of all means: without a step it was none."""
        self._report.episodes[-1] = self._report.episodes[-1]._replace(faulty=True)

    def _note_lost(self, game: ExternalEpisode) -> None:
        """Report that an episode was broken off, if an agent has acted in it."""
        line = game.line
        if not game.acted:
            return
        told = f"episode {line.episode_id!r:.60} was broken off: {line.lost}"
        index = game.roster.env_index
        self._report.faults.append(
            EnvFault(line.episode_id, index, CALLER, told, (CALLER, str(line.lost), 0))
        )

    def _play(self, line: EpisodeChannel, played: ExternalTrajectory) -> None:
        """Take in a piece that was played elsewhere; one without actions begins nothing."""
        game = self._games.get(line.episode_id)
        if game is None and not any(len(moves.rewards) for moves in played.agents.values()):
            self._drop(line, played.unclaimed)
            return
        game = game or self._open(line)
        game.acted, roster = True, game.roster
        self._env_steps[roster.env_index] += played.env_steps
        roster.episode_steps += played.env_steps
        self._report.unclaimed += [
            Unclaimed(line.episode_id, agent, float(reward), roster.env_index)
            for agent, reward in played.unclaimed.items()
            if reward
        ]
        self._hand_on(game, next_piece(roster, played, line.trained, int(self._env_steps[roster.env_index])))

    def _hand_on(self, game: ExternalEpisode, piece: TrajectoryChunk) -> None:
        self._pieces.append(piece)
        if piece.episode is not None:
            del self._games[game.line.episode_id]
            self._leaving.append(game.roster)

    def _open(self, line: EpisodeChannel) -> ExternalEpisode:
        if self._free:
            roster = self._free.pop()
            roster.reopen(line.episode_id)
        else:
            roster = ExternalAgentTracker(line.episode_id, len(self._env_steps), self._pool, self._possible)
            if len(self._env_steps) == len(self._counts):
                self._counts = np.append(
                    self._counts, np.zeros_like(self._counts, shape=64 + len(self._counts))
                )
            self._env_steps = self._counts[: len(self._env_steps) + 1]
        game = self._games[line.episode_id] = ExternalEpisode(line, roster)
        return game

    def _mark_untrained(self, line: EpisodeChannel, before: int) -> None:
        """Say that policies do not learn from the lives that have begun since so many, if the caller wants it so."""
        if not line.trained:
            joined = self._report.joined
            joined[before:] = [join._replace(trained=False) for join in joined[before:]]

    def _drop(self, line: EpisodeChannel, rewards: Mapping[AgentId, float]) -> None:
        """Forget an episode in which nobody acted, but for what was paid in it."""
        paid = {agent: reward for agent, reward in rewards.items() if reward}
        if paid:
            game = self._open(line)
            index = game.roster.env_index
            self._report.unclaimed += [
                Unclaimed(line.episode_id, agent, float(reward), index) for agent, reward in paid.items()
            ]
            game.roster.begin({}, {}, self._report)
            game.roster.step(({}, {}, {ALL: True}, {ALL: False}, {}), self._report)
            self._count_out()
            del self._games[line.episode_id]
            self._free.append(game.roster)

    def _count_steps(self) -> None:
        stepped, self._stepped = self._stepped, []
        if len(stepped) > _FEW:
            self._env_steps += np.bincount(stepped, minlength=len(self._env_steps))
            return
        for index in stepped:
            self._env_steps[index] += 1

    def _deliver(self) -> Ready:
        due, self._due = self._due, []
        self._asked = due
        all_plain, self._plain = self._plain == len(due), 0
        self._count_steps()
        rosters = [game.roster for game in due]
        layouts = [roster.waiting for roster in rosters]
        before, slots = self._delivered
        if layouts != before:
            slots = join_slots(layouts)
        self._delivered = (layouts, slots)
        if all_plain:
            rewards = np.zeros(len(slots))
        else:
            paid = list(chain.from_iterable([roster.rewards for roster in rosters]))
            rewards = as_rewards(paid, lambda: of_rosters(rosters))
        report, self._report = self._report, PollEvents()
        pieces, self._pieces = self._pieces, []
        return Ready(
            slots,
            list(chain.from_iterable([roster.obs for roster in rosters])),
            rewards,
            self._env_steps,
            report.joined, report.ended, report.episodes, report.unclaimed,
            None if all_plain else list(chain.from_iterable(roster.infos for roster in rosters)),
            {} if all_plain else chosen_actions(due), self._pool.seats, pieces, report.faults,
        )  # fmt: skip


# SEAM menv.adapters.round_envs
# External episodes that may be asked for in rounds: whole columns from the switchboard to the sampler and
# back.
#
# Serving inputs are kinds of it. A round is delivered as it is where nothing else was said since the last
# poll, and told
# at once where all of it is answered together; otherwise it goes on as the turns of its episodes, with the
# code that
# `menv.adapters.external` has for these.


class BatchedExternalEnvs(ExternalEnvs):
    """The open episodes of a switchboard that takes rounds.

    Args:
        switchboard: Where callers call.
        observation_space: Of each agent.
        action_space: Likewise.
        possible_agents: Agents that may ever appear, () if nobody knows.
        idle_timeout: See `ExternalEnvs`.
    """

    def __init__(
        self,
        switchboard: BatchedEpisodeBroker,
        *,
        observation_space: Any = None,
        action_space: Any = None,
        possible_agents: Iterable[AgentId] = (),
        idle_timeout: float | None = 30.0,
    ) -> None:
        super().__init__(
            switchboard, observation_space=observation_space, action_space=action_space,
            possible_agents=possible_agents, idle_timeout=idle_timeout,
        )  # fmt: skip
        self._board = switchboard
        # The round that the sampler has and has not answered.
        self._open_round: RequestBatch | None = None
        # The episodes of the last round, mostly those of the next one, and what was looked up for them.
        self._lines: list[EpisodeChannel] = []
        self._players: list[ExternalEpisode] = []
        self._indices: IntArray = np.zeros(0, np.int64)
        self._rows: tuple[list[WaitingAgents], IntArray] = ([], self._indices)

    def _answer(self, slots: Any, actions: Any) -> None:
        asked, self._open_round = self._open_round, None
        if asked is None:
            super()._answer(slots, actions)
        elif (
            slots is self._delivered[1]
            and isinstance(actions, Sequence | np.ndarray)
            and len(actions) == len(slots)
        ):
            self._board.answered_round(asked)
            asked.tell(actions)
        else:
            # Some of them, or in another order.
            for game, turn in zip(self._players, asked.turns(), strict=True):
                game.turn = turn
            self._asked = self._players
            super()._answer(slots, actions)

    def _tell_stopped(self) -> None:
        super()._tell_stopped()
        if (asked := self._open_round) is not None:
            asked.tell(stopped())

    def _take_in(self, lines: Sequence[EpisodeChannel]) -> Ready:
        """Take what was said in some episodes, and the round that waits; return what there is for the sampler."""
        asked = self._board.take_round()
        if asked is not None and not lines:
            return self._deliver_round(asked)
        if asked is not None:
            for line, turn in zip(asked.lines, asked.turns(), strict=True):
                self._advance(line, turn)
        return super()._take_in(lines)

    def _deliver_round(self, asked: RequestBatch) -> Ready:
        if asked.lines != self._lines:
            self._lines = asked.lines
            games = self._players = [self._games[line.episode_id] for line in asked.lines]
            layouts = [game.roster.waiting for game in games]
            self._indices = np.array([game.roster.env_index for game in games], np.int64)
            self._rows = (layouts, join_slots(layouts))
        self._delivered = self._rows
        for game in self._players:
            game.roster.episode_steps += 1
        self._env_steps[self._indices] += 1
        self._open_round = asked
        return Ready(self._rows[1], asked.obs, asked.rewards, self._env_steps, seats=self._pool.seats)

    def _let_go(self, games: Sequence[ExternalEpisode]) -> None:
        """Note that what was said in some games has been answered; they may be part of a round next time."""
        super()._let_go(games)
        self._board.steady([game.line for game in games if game.roster.alone])
