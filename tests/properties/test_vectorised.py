"""Sub-environments that step together live the same lives as those that step one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from menv import to_base_env
from menv.metrics import Metrics
from menv.policy_map import PolicyMap
from menv.sample_batch import MultiAgentBatch
from menv.vector_env import VectorEnv
from tests.contract.scripted import SOLO, Moment, Script, SoloGym
from tests.properties.schedules import Row, as_found, sampler, sampler_of_whole_episodes, trajectories

MODES = ["NextStep", "SameStep", "Disabled"]
KINDS = ["gym", "vector", *MODES]
SEED = 5
quick = settings(as_found, max_examples=10)


@st.composite
def solo_scripts(draw: st.DrawFn) -> Script:
    """Episodes of one agent, some of a single step, with any rewards and both kinds of ends."""
    number = st.integers(-3, 3).map(float)
    steps = draw(st.lists(st.lists(number, min_size=1, max_size=7), min_size=1, max_size=3))
    ways = st.sampled_from(["terminated", "truncated"])
    return [
        [
            Moment("a"),
            *[Moment("a", {"a": reward}) for reward in rewards[:-1]],
            Moment("a", {"a": rewards[-1]}, over=draw(ways)),
        ]
        for rewards in steps
    ]


class Run:
    """Some fragments of one schedule, sampled the short way round or the long one."""

    def __init__(
        self, kind: str, script: Script, length: int, *, envs: int = 3, short: bool = True, salt: bool = False,
        whole: bool = False,
    ) -> None:  # fmt: skip
        self.made = [SoloGym(script, world, salt, copies=kind == "SameStep") for world in range(envs)]
        base_env = to_base_env(self.env(kind), self.made.__getitem__, envs if kind == "gym" else 1, seed=SEED)
        mapping = PolicyMap(["even"], None if short else lambda agent_id: "even")
        self.metrics = Metrics(10_000)
        same: Any = {"mapping": mapping, "metrics": self.metrics, "seed": SEED}
        if whole:
            self.loop = sampler_of_whole_episodes(base_env, length, **same)
        else:
            self.loop = sampler(base_env, "networks", length, lockstep=base_env.lockstep, **same)

    def env(self, kind: str) -> Any:
        if kind == "gym":
            return self.made[0]
        if kind == "vector":
            return VectorEnv.vectorize_gym_envs(existing_envs=self.made, num_envs=len(self.made))
        makers = [partial(self.made.__getitem__, index) for index in range(len(self.made))]
        return SyncVectorEnv(makers, copy=False, autoreset_mode=kind)

    def lived(self, fragments: int) -> dict[Any, list[Row]]:
        self.batches = [self.loop.sample() for _ in range(fragments)]
        return trajectories(self.batches)

    def paid(self) -> float:
        return float(sum(one.game.paid["a"] for one in self.made))


def earned(batches: Sequence[MultiAgentBatch]) -> float:
    return float(sum(batch["even"]["rewards"].sum() for batch in batches))


def common(one: dict[Any, list[Row]], other: dict[Any, list[Row]]) -> int:
    """Check that two accounts agree as far as both go, and return how many rows that is."""
    rows = 0
    for life in one.keys() & other.keys():
        for mine, theirs in zip(one[life], other[life], strict=False):
            assert mine == theirs
            rows += 1
    return rows


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("length", [1, 3, 20])
def test_the_fast_path_gives_the_rows_of_the_general_one(kind: str, length: int) -> None:
    salt = kind == "vector"
    short, long = (Run(kind, SOLO, length, short=way, salt=salt) for way in (True, False))
    one, other = short.lived(60 // length), long.lived(60 // length)
    assert one == other
    assert sum(map(len, one.values())) > 150
    assert short.loop.env_steps == long.loop.env_steps
    assert short.loop.agent_steps == long.loop.agent_steps
    for mine, theirs in zip(short.batches, long.batches, strict=True):
        assert mine.env_steps() == theirs.env_steps()
    first, second = short.metrics.summary(), long.metrics.summary()
    keys = ("episodes_this_iter", "episode_reward_mean", "episode_len_mean", "policy_reward_mean")
    assert [first[key] for key in keys] == [second[key] for key in keys]
    assert sorted(first["hist_stats"]["episode_reward"]) == sorted(second["hist_stats"]["episode_reward"])
    assert first["episodes_this_iter"] > 30


@pytest.mark.slow_unless("vector", "SameStep")
@pytest.mark.parametrize("kind", KINDS[1:])
def test_exploring_may_be_switched_off_and_on(kind: str) -> None:
    short, long = (Run(kind, SOLO, 30, short=way) for way in (True, False))
    for explore in (True, False, False, False, True, True, False, True):
        for run in (short, long):
            run.loop.explore = explore
            run.lived(1)
        one, other = (run.batches[0]["even"] for run in (short, long))
        np.testing.assert_array_equal(one["actions"], other["actions"])
        np.testing.assert_array_equal(one["obs"], other["obs"])
    assert len(set(one["actions"].tolist())) > 1


@pytest.mark.slow_unless("True")
@pytest.mark.parametrize("short", [True, False])
@given(script=solo_scripts(), length=st.integers(1, 9))
@quick
def test_each_way_to_vectorise_lives_the_same_episodes(short: bool, script: Script, length: int) -> None:
    fragments = 40 // length
    reference = Run("gym", script, length).lived(fragments)
    for kind in KINDS[1:]:
        lived = Run(kind, script, length, short=short).lived(fragments)
        # With NextStep a reset takes the env step of a sub-environment, so that others may be ahead.
        assert common(reference, lived) >= 40


@pytest.mark.slow_unless("SameStep")
@pytest.mark.parametrize("kind", KINDS[1:])
@given(script=solo_scripts(), length=st.integers(1, 9))
@quick
def test_no_reward_is_lost_between_vectorised_episodes(kind: str, script: Script, length: int) -> None:
    run = Run(kind, script, length)
    for rows in run.lived(40 // length).values():
        assert [row.t for row in rows] == list(range(len(rows)))
    assert earned(run.batches) + run.loop.held_rewards() == run.paid()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_fragment_holds_the_env_steps_that_were_asked_for(kind: str) -> None:
    run = Run(kind, SOLO, 10)
    counts = []
    for _ in range(6):
        before = sum(env_steps_of(run))
        batch = run.loop.sample()
        counts.append(batch.env_steps())
        assert sum(env_steps_of(run)) - before == batch.env_steps()
    # The resets of NextStep make room in lockstep: at most one round more than asked for.
    assert all(30 <= count < 33 for count in counts)
    assert kind == "NextStep" or counts == [30] * 6


def env_steps_of(run: Run) -> list[int]:
    steps: np.ndarray[Any, Any] = run.loop.base_env.env_steps  # type: ignore[attr-defined]
    return [int(count) for count in steps]
