"""Whatever applications call, from however many threads: nothing that was paid is lost and no two lives are mixed."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv import ExternalMultiAgentEnv, to_base_env
from menv.base_env import ALL
from tests.contract.callers import without_own_truncations
from tests.contract.scripted import ACTIONS, OBS, Moment, Script, ScriptedEnv, Seen, seen
from tests.properties.schedules import (
    UNITS,
    as_found,
    by_agent,
    check_memory,
    paid_in,
    sampler_of_callers,
    scripts,
    trajectories,
)
from tests.properties.test_schedules import check_life

quick = settings(as_found, max_examples=8)
# For each episode in turn: at which step it is lost, beyond its end for never; and which steps are logged.
habits = st.lists(st.tuples(st.integers(1, 14), st.sets(st.integers(0, 9))), min_size=1, max_size=4)


class Quiet(ExternalMultiAgentEnv):
    """Says nothing by itself."""

    def run(self) -> None:
        threading.Event().wait()


class Game:
    """A scripted game that is played through an external environment, two episodes of each."""

    def __init__(self, env: Quiet, script: Script, world: int, habit: Any) -> None:
        self.env, self.habit = env, habit
        self.game = ScriptedEnv(without_own_truncations(script), world, "abc")
        self.lost: set[tuple[int, int]] = set()
        self.faults: list[BaseException] = []

    def play(self) -> None:
        """Play; to be called in a thread."""
        try:
            for number in range(2 * len(self.game.script)):
                self._episode(*self.habit[number % len(self.habit)])
        except BaseException as fault:
            self.faults.append(fault)

    def _episode(self, lost: int, logged: set[int]) -> None:
        env, game = self.env, self.game
        episode = env.start_episode()
        observed, infos = game.reset()
        env.log_returns(episode, {}, infos)
        while True:
            if game.step_count in logged:
                actions: Any = dict.fromkeys(game.asked, 1)
                env.log_action(episode, observed, actions)
            else:
                actions = env.get_action(episode, observed)
            if game.step_count + 1 == lost:
                env.broker.lose([episode], "it is a test")
                self.lost.add((game.world, game.episode))
                game.ended += [game.end_of(agent, False, True, None) for agent in sorted(game.alive)]
                game.alive.clear()
                return
            observed, rewards, terminateds, truncateds, infos = game.step(actions)
            over = terminateds.pop(ALL), truncateds.pop(ALL)
            env.log_returns(episode, rewards, infos, terminateds)
            if any(over):
                env.end_episode(episode, observed, truncated=over[1])
                return


class Run:
    """The fragments of some games."""

    def __init__(
        self, script: Script, habit: Any, kind: str, length: int, worlds: int, threads: int, **quota: Any
    ) -> None:
        self.env = Quiet(dict.fromkeys("abc", ACTIONS), dict.fromkeys("abc", OBS))
        rotate = [[*script[world % len(script) :], *script[: world % len(script)]] for world in range(worlds)]
        self.games = [Game(self.env, moments, world, habit) for world, moments in enumerate(rotate)]
        base_env: Any = to_base_env(self.env)
        base_env.observation_space, base_env.action_space = OBS, ACTIONS
        base_env.idle_timeout = 0.02
        self.sampler, limits = sampler_of_callers(base_env, kind, length, **quota)
        players = [
            threading.Thread(target=self._play, args=(self.games[n::threads],)) for n in range(threads)
        ]
        for player in players:
            player.start()
        self.batches = []
        while any(player.is_alive() for player in players) or not self.sampler.idle:
            self.batches.append(self.sampler.sample())
        # Whatever there is of a fragment closes it.
        limits.length = 0
        self.batches.append(self.sampler.sample())
        base_env.stop()

    def _play(self, games: list[Game]) -> None:
        for game in games:
            game.play()

    def check(self) -> None:
        for game in self.games:
            if game.faults:
                raise game.faults[0]
            assert game.game.complaints == []
        self.check_rewards()
        self.check_trajectories()

    def check_rewards(self) -> None:
        paid: Counter[str] = Counter()
        for game in self.games:
            paid.update({agent: int(reward) for agent, reward in game.game.paid.items()})
        running = sum(episode.unclaimed_rewards for episode in self.sampler.running.values())
        got = paid_in(self.batches)
        got.update(by_agent(self.sampler.held_rewards()))
        got.update(by_agent(self.sampler.metrics.unclaimed_rewards + running))
        assert {agent: got[agent] for agent in UNITS} == {agent: paid[agent] for agent in UNITS}

    def check_trajectories(self) -> None:
        lives = trajectories(self.batches)
        shown: dict[Any, list[Seen]] = {}
        for row in (row for game in self.games for row in game.game.shown):
            shown.setdefault(row[:4], []).append(row)
        ended = {end[:4]: end for game in self.games for end in game.game.ended}
        lost = set().union(*(game.lost for game in self.games))
        assert set(lives) <= set(shown)
        ids: dict[Any, int] = {}
        for life, rows in lives.items():
            cut = life[:2] in lost and (ended[life].terminated, ended[life].truncated) == (False, True)
            if cut:
                # The last action's row is withdrawn; the one before leads to what was observed then. If it has left
                # in an earlier fragment, it could not be flagged any more.
                assert len(rows) == len(shown[life]) - 1
                assert rows[-1].flags in ((False, True), (False, False))
                assert seen_in(rows[-1].new_obs) == shown[life][-1]
                assert [row.at for row in rows] == shown[life][:-1]
            else:
                check_life(rows, shown[life], ended.get(life))
            assert ids.setdefault(life[:2], rows[0].eps_id) == rows[0].eps_id
        assert len(set(ids.values())) == len(ids), "two episodes share an id"
        for life, end in ended.items():
            if life in shown and life[:2] not in lost:
                assert len(lives[life]) == len(shown[life]), f"rows of {end} are missing"


def seen_in(row: bytes) -> Seen:
    return seen(np.frombuffer(row, np.float32))


@pytest.mark.slow_unless("recurrent-3", "own-1")
@pytest.mark.parametrize("length", [1, 3, 10])
@pytest.mark.parametrize("kind", ["networks", "recurrent", "own"])
@given(script=scripts, habit=habits, worlds=st.integers(1, 3), threads=st.integers(1, 3))
@quick
def test_no_reward_is_lost_and_no_lives_are_mixed(
    kind: str, length: int, script: Script, habit: Any, worlds: int, threads: int
) -> None:
    run = Run(script, habit, kind, length, worlds, threads)
    run.check()
    if kind == "recurrent":
        check_memory(run.batches)


@pytest.mark.slow_unless("agent_steps-complete_episodes")
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("count_steps_by", ["env_steps", "agent_steps"])
@given(script=scripts, habit=habits, length=st.integers(1, 10), worlds=st.integers(1, 3))
@quick
def test_the_same_holds_for_each_way_to_cut_fragments(
    batch_mode: Any, count_steps_by: Any, script: Script, habit: Any, length: int, worlds: int
) -> None:
    run = Run(
        script,
        habit,
        "networks",
        length,
        worlds,
        worlds,
        batch_mode=batch_mode,
        count_steps_by=count_steps_by,
    )
    run.check()


def test_a_lost_episode_takes_its_last_rows_with_it() -> None:
    script = [
        [
            Moment("ab"),
            Moment("ab", {"a": 1.0, "b": 128.0}),
            Moment("a", {"a": 2.0}),
            Moment("a", over="terminated"),
        ]
    ]
    run = Run(script, [(3, {1})], "networks", 100, 1, 1)
    run.check()
    lives = trajectories(run.batches)
    rewards = {(life[2], life[1]): [row.reward for row in rows] for life, rows in lives.items()}
    assert rewards == {("a", 0): [1.0, 2.0], ("b", 0): [128.0], ("a", 1): [1.0, 2.0], ("b", 1): [128.0]}
    # All of it was in one fragment, so that every last row could be flagged.
    assert {rows[-1].flags for rows in lives.values()} == {(False, True)}
