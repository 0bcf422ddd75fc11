"""Whatever agents do and whenever, nothing that was paid is lost and no two lives are mixed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv import to_base_env
from tests.contract.scripted import Moment, Script, ScriptedEnv, Seen, SixDicts, altered, seen
from tests.properties.schedules import (
    UNITS,
    Row,
    Tap,
    as_found,
    by_agent,
    check_memory,
    paid_in,
    sampler,
    scripts,
    trajectories,
)

FRAGMENTS = list(range(1, 11))
quick = settings(as_found, max_examples=12)
# Most fragment lengths among them, each with other schedules; tests/soak has all of them.
many = settings(quick, max_examples=20)


class Run:
    """Some fragments of one schedule."""

    def __init__(
        self, script: Script, kind: str, length: int, num_envs: int = 2, adapter: str = "agents", **quota: Any
    ) -> None:
        rotate = [script[world % len(script) :] + script[: world % len(script)] for world in range(num_envs)]  # type: ignore[operator]
        self.games = [ScriptedEnv(moments, world, "abc") for world, moments in enumerate(rotate)]
        inner = (
            to_base_env(self.games[0], self.games.__getitem__, num_envs)
            if adapter == "agents"
            else to_base_env(SixDicts(self.games, adapter))
        )
        self.env = Tap(inner)
        self.sampler = sampler(self.env, kind, length, **quota)
        self.batches = [self.sampler.sample() for _ in range(-(-30 // length))]

    def check_rewards(self) -> None:
        paid: Counter[str] = Counter()
        for game in self.games:
            paid.update({agent: int(reward) for agent, reward in game.paid.items()})
        got = paid_in(self.batches)
        got.update(by_agent(self.sampler.held_rewards()))
        got.update(self.env.unclaimed)
        assert {agent: got[agent] for agent in UNITS} == {agent: paid[agent] for agent in UNITS}

    def check_trajectories(self) -> None:
        lives = trajectories(self.batches)
        shown: dict[Any, list[Seen]] = {}
        for row in (row for game in self.games for row in game.shown):
            shown.setdefault(row[:4], []).append(row)
        ended = {end[:4]: end for game in self.games for end in game.ended}
        assert set(lives) <= set(shown)
        ids: dict[Any, int] = {}
        for life, rows in lives.items():
            check_life(rows, shown[life], ended.get(life))
            assert ids.setdefault(life[:2], rows[0].eps_id) == rows[0].eps_id
        assert len(set(ids.values())) == len(ids), "two episodes share an id"
        for life, end in ended.items():
            if life in shown:
                assert len(lives[life]) == len(shown[life]), f"rows of {end} are missing"


def check_life(rows: list[Row], shown: list[Seen], end: Any) -> None:
    """Check that a life's rows are those that were shown, from the first on, each followed by the next."""
    assert [row.at for row in rows] == shown[: len(rows)]
    assert [row.t for row in rows] == list(range(len(rows)))
    assert len({row.eps_id for row in rows}) == 1
    assert all(before.new_obs == after.obs for before, after in pairwise(rows))
    last = rows[-1]
    if len(rows) < len(shown) or end is None:
        assert last.flags == (False, False)
        assert seen(np.frombuffer(last.new_obs, np.float32)) in shown
        return
    assert last.flags == (end.terminated, end.truncated)
    after = seen(np.frombuffer(last.new_obs, np.float32))
    assert after == (shown[-1] if end.final is None else altered(shown[-1], step=end.final))


@pytest.mark.slow_unless("recurrent")
@pytest.mark.parametrize("kind", ["networks", "recurrent", "own"])
@given(length=st.sampled_from(FRAGMENTS), script=scripts, num_envs=st.integers(1, 3))
@many
def test_no_reward_is_lost_and_no_lives_are_mixed(
    kind: str, length: int, script: Script, num_envs: int
) -> None:
    run = Run(script, kind, length, num_envs)
    assert [game.complaints for game in run.games] == [[]] * num_envs
    run.check_rewards()
    run.check_trajectories()


@pytest.mark.slow_unless("agent_steps-complete_episodes")
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("count_steps_by", ["env_steps", "agent_steps"])
@given(script=scripts, length=st.integers(1, 10))
@quick
def test_the_same_holds_for_each_way_to_cut_fragments(
    batch_mode: Any, count_steps_by: Any, script: Script, length: int
) -> None:
    run = Run(script, "networks", length, batch_mode=batch_mode, count_steps_by=count_steps_by)
    run.check_rewards()
    run.check_trajectories()
    if batch_mode == "complete_episodes":
        ended = {end[:4] for game in run.games for end in game.ended}
        assert set(trajectories(run.batches)) <= ended


@pytest.mark.slow_unless("new id")
@pytest.mark.parametrize("adapter", ["now", "later", "new id"])
@given(script=scripts, length=st.integers(1, 10))
@quick
def test_the_same_holds_for_a_custom_base_env(adapter: str, script: Script, length: int) -> None:
    run = Run(script, "networks", length, adapter=adapter)
    assert [game.complaints for game in run.games] == [[], []]
    run.check_rewards()
    run.check_trajectories()


@given(script=scripts, length=st.integers(1, 10))
@quick
def test_fragment_lengths_do_not_change_what_was_lived(script: Script, length: int) -> None:
    one = Run(script, "networks", 30)
    other = Run(script, "networks", length)
    shared = trajectories(one.batches)
    compared = 0
    for life, rows in trajectories(other.batches).items():
        known = shared.get(life, [])
        shorter = min(len(known), len(rows))
        assert rows[:shorter] == known[:shorter]
        compared += shorter
    assert compared


@pytest.mark.parametrize("adapter", ["agents", "now"])
def test_an_episode_without_actions_is_recorded_with_its_rewards(adapter: str) -> None:
    script = [
        [Moment("a"), Moment("a", {"a": UNITS["a"]}), Moment("a", over="terminated")],
        [Moment(), Moment("", {"b": UNITS["b"]}), Moment("", {"c": UNITS["c"]}, over="truncated")],
    ]
    run = Run(script, "own", 5, num_envs=1, adapter=adapter)
    run.check_rewards()
    summary = run.sampler.metrics.summary()["hist_stats"]
    assert summary["episode_reward"][:4] == [UNITS["a"], UNITS["b"] + UNITS["c"]] * 2
    assert summary["episode_lengths"][:4] == [2, 2, 2, 2]


@quick
@given(scripts, st.sampled_from(FRAGMENTS))
def test_every_trajectory_has_a_separate_memory_that_survives_cuts(script: Script, length: int) -> None:
    run = Run(script, "recurrent", length)
    check_memory(run.batches)
