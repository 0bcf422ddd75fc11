"""Wherever sub-environments crash, nothing that was paid is lost, no two lives are mixed, and nobody else notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.crashing import World, together
from tests.contract.scripted import SOLO, Script, Seen, altered, seen
from tests.properties.schedules import (
    UNITS,
    Row,
    Tap,
    as_found,
    by_agent,
    check_memory,
    paid_in,
    same,
    sampler,
    scripts,
    trajectories,
)
from tests.properties.test_schedules import check_life

STEPS = 30
quick = settings(as_found, max_examples=10)
# Most fragment lengths among them, each with other schedules; tests/soak has all of them.
many = settings(quick, max_examples=16)


class Due(NamedTuple):
    """Calls that raise; never the first reset."""

    steps: Collection[int] = ()
    resets: Collection[int] = ()


dues = st.builds(
    Due, st.sets(st.integers(1, 40), min_size=1, max_size=15), st.sets(st.integers(2, 12), max_size=4)
)


class Run:
    """Some fragments of one schedule, in worlds of which some crash."""

    def __init__(
        self, script: Script, kind: str, length: int, crashes: list[Due], *, seed: int | None = None,
        solo: bool = False, **quota: Any,
    ) -> None:  # fmt: skip
        self.worlds = [
            World(
                [*script[number % len(script) :], *script[: number % len(script)]],
                number, steps=due.steps, resets=due.resets, agents="abc", salt=seed is not None,
            )
            for number, due in enumerate(crashes)
        ]  # fmt: skip
        self.env = Tap(together(self.worlds, solo=solo, seed=seed))
        self.sampler = sampler(self.env, kind, length, seed or 0, **quota)
        self.batches = [self.sampler.sample() for _ in range(-(-STEPS // length))]
        self.lives = trajectories(self.batches)

    def of(self, number: int) -> dict[Any, list[Row]]:
        return {life: rows for life, rows in self.lives.items() if life[0] == number}

    def check(self) -> None:
        """Check everything that holds in every run."""
        assert not any(world.complaints for world in self.worlds)
        self.check_rewards()
        for world in self.worlds:
            self.check_world(world)
        self.check_metrics()

    def check_rewards(self) -> None:
        """Check that every reward of a step that returned is somewhere."""
        paid, got = Counter[str](), paid_in(self.batches)
        for world in self.worlds:
            paid.update({agent: int(reward) for agent, reward in world.paid.items()})
        got.update(by_agent(self.sampler.held_rewards()))
        got.update(self.env.unclaimed)
        got.update(by_agent(self.disowned()))
        assert {agent: got[agent] for agent in UNITS} == {agent: paid[agent] for agent in UNITS}

    def disowned(self) -> float:
        """Return what came in before first actions that do not count, which only the books know."""
        told = sum(self.env.unclaimed.values())
        running = sum(episode.unclaimed_rewards for episode in self.sampler.running.values())
        return self.sampler.metrics.unclaimed_rewards + running - told

    def check_world(self, world: World) -> None:
        """Check that rows are those that were shown, but for the last of each life that was lost."""
        shown: dict[Any, list[Seen]] = {}
        for row in world.shown:
            shown.setdefault(row[:4], []).append(row)
        ended, lost = {end[:4]: end for end in world.ended}, {end[:4] for end in world.lost}
        mine = self.of(world.number)
        assert set(mine) <= set(shown)
        for life, rows in mine.items():
            if life in lost:
                check_lost(rows, shown[life], len(self.batches) == 1)
            else:
                check_life(rows, shown[life], ended.get(life))
        for life, seen_rows in shown.items():
            if life in lost or life in ended:
                assert len(mine.get(life, [])) == len(seen_rows) - (life in lost)

    def check_metrics(self) -> None:
        """Check that episodes that were lost are counted, and in no mean."""
        summary = self.sampler.metrics.summary()
        crashes = [where for world in self.worlds for where in world.crashes if where != "replacement"]
        assert summary["num_faulty_episodes"] == len(crashes)
        meant = Counter(
            sum(sum(moment.pays.values()) for moment in world.script[number % len(world.script)])
            for world in self.worlds
            for number in world.finished
        )
        assert summary["episodes_this_iter"] == sum(meant.values())
        if not self.worlds[0].settings["salt"]:
            assert Counter(summary["hist_stats"]["episode_reward"]) == meant


def check_lost(rows: list[Row], shown: list[Seen], told: bool) -> None:
    """Check the rows of a life that was lost: the last one does not count, and that before leads to it.

    The flags say so unless the row before left in an earlier fragment than that in which the life was lost (`told`).
    """
    assert [row.at for row in rows] == shown[:-1]
    assert [row.t for row in rows] == list(range(len(rows)))
    assert all(before.new_obs == after.obs for before, after in pairwise(rows))
    assert [row.flags for row in rows[:-1]] == [(False, False)] * (len(rows) - 1)
    assert rows[-1].flags in [(False, True), (False, told)]
    assert seen(np.frombuffer(rows[-1].new_obs, np.float32)) == shown[-1]


@pytest.mark.slow_unless("recurrent")
@pytest.mark.parametrize("kind", ["networks", "recurrent", "own"])
@given(
    length=st.sampled_from([*range(1, 11), STEPS]),
    script=scripts,
    crashes=st.lists(dues, min_size=1, max_size=3),
)
@many
def test_no_reward_is_lost_and_no_lives_are_mixed(
    kind: str, length: int, script: Script, crashes: list[Due]
) -> None:
    Run(script, kind, length, crashes).check()


@pytest.mark.slow_unless("3")
@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 3, 10, STEPS])
@given(crashes=st.lists(dues, min_size=1, max_size=3))
@quick
def test_the_same_holds_where_each_has_one_agent(length: int, crashes: list[Due]) -> None:
    Run(UNIT_SOLO, "networks", length, crashes, solo=True).check()


@pytest.mark.slow_unless("env_steps-complete_episodes")
@pytest.mark.slow
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("count_steps_by", ["env_steps", "agent_steps"])
@given(script=scripts, length=st.integers(1, 10), due=dues)
@quick
def test_the_same_holds_for_each_way_to_cut_fragments(
    batch_mode: Any, count_steps_by: Any, script: Script, length: int, due: Due
) -> None:
    Run(
        script, "networks", length, [due, Due()], batch_mode=batch_mode, count_steps_by=count_steps_by
    ).check()


@given(script=scripts, length=st.integers(1, 10), due=dues)
@quick
def test_other_sub_environments_are_bit_identical_to_a_run_without_crashes(
    script: Script, length: int, due: Due
) -> None:
    with_crashes = Run(script, "networks", length, [due, Due(), Due()], seed=5)
    without = Run(script, "networks", length, [Due(), Due(), Due()], seed=5)
    for number in (1, 2):
        assert without.of(number)
        same(with_crashes.of(number), without.of(number))


@pytest.mark.slow
@given(script=scripts, length=st.integers(1, 10), crashes=st.lists(dues, min_size=1, max_size=2))
@quick
def test_the_same_seed_gives_the_same_run_with_crashes(
    script: Script, length: int, crashes: list[Due]
) -> None:
    first, second = (Run(script, "networks", length, crashes, seed=9) for _ in range(2))
    same(first.lives, second.lives)
    longer = Run(script, "networks", STEPS, crashes, seed=9)
    for life, rows in first.lives.items():
        # Whether a row's flags tell of a crash in the step after it depends on the fragment that it is in.
        known = [altered(row, flags=(False, False)) for row in longer.lives.get(life, [])]
        shorter = min(len(rows), len(known))
        assert [altered(row, flags=(False, False)) for row in rows[:shorter]] == known[:shorter]


@given(script=scripts, length=st.integers(1, 10), due=dues)
@quick
def test_a_life_after_a_crash_remembers_nothing(script: Script, length: int, due: Due) -> None:
    check_memory(Run(script, "recurrent", length, [due, Due()]).batches)


# Each of these pays what `UNITS` can read apart again.
UNIT_SOLO: Script = [
    [altered(moment, pays={agent: UNITS[agent] for agent in moment.pays}) for moment in episode]
    for episode in SOLO
]
