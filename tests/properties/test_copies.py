"""Copies that go round in whole frames live, count and are written down as those that go row by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.adapters.gym import GymEnvs
from menv.algorithms import PPO
from menv.algorithms.rollouts import LocalRollouts
from menv.callbacks import DefaultCallbacks
from menv.metrics import Metrics
from menv.policy_map import PolicyMap
from menv.sample_batch import MultiAgentBatch
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.sampler import Sampler
from tests.contract.crashing import World, together
from tests.contract.scripted import SOLO, Script
from tests.properties.schedules import as_found, policy_group
from tests.properties.test_crashes import Due, dues
from tests.properties.test_vectorised import solo_scripts

SEED = 5
STEPS = 40
COLUMNS = (
    "obs",
    "new_obs",
    "actions",
    "rewards",
    "terminateds",
    "truncateds",
    "t",
    "eps_id",
    "env_id",
    "unroll_id",
)
quick = settings(as_found, max_examples=12)


pytestmark = pytest.mark.usefixtures("no_pauses")


class Run:
    """Copies of one schedule, some of which may crash, in whole frames or row by row."""

    def __init__(
        self, script: Script, length: int, crashes: Sequence[Due] = (Due(), Due(), Due()), *, frames: bool = True,
        callbacks: DefaultCallbacks | None = None, **quota: Any,
    ) -> None:  # fmt: skip
        self.worlds = [
            World(script, number, steps=due.steps, resets=due.resets, salt=True)
            for number, due in enumerate(crashes)
        ]
        self.loop = Sampler(
            together(self.worlds, solo=True, seed=SEED), PolicyMap(["even"]), [policy_group("networks", ["even"])],
            FragmentLimit(length, **quota), metrics=Metrics(10_000), seed=SEED, callbacks=callbacks,
        )  # fmt: skip
        self.loop.use_vector_loop = frames

    @property
    def short(self) -> bool:
        """Whether the last fragment went round in whole frames to its end."""
        return self.loop._copies_loop is not None

    def told(self) -> dict[str, Any]:
        """Return the summary of what happened, sums of returns to the last bit."""
        summary = self.loop.metrics.summary()
        for name, values in summary["hist_stats"].items():
            # Which of two episodes of one fragment comes first is told by nobody.
            summary["hist_stats"][name] = sorted(values)
        return {name: value for name, value in summary.items() if "mean" not in name}


def same(one: MultiAgentBatch, other: MultiAgentBatch) -> None:
    assert one.env_steps() == other.env_steps()
    assert one.policy_batches.keys() == other.policy_batches.keys()
    for policy, mine in one.policy_batches.items():
        for name in COLUMNS:
            np.testing.assert_array_equal(mine[name], other[policy][name], err_msg=name)
        assert list(mine["infos"]) == list(other[policy]["infos"])


def step_by_step(short: Run, long: Run, fragments: int) -> None:
    """Sample both and check that nobody could tell them apart."""
    for _ in range(fragments):
        same(short.loop.sample(), long.loop.sample())
        assert short.loop.agent_steps == long.loop.agent_steps
        assert short.loop.held_rewards() == long.loop.held_rewards()
        assert not long.short
    assert short.loop.digest.state() == long.loop.digest.state()


@given(script=solo_scripts(), length=st.integers(1, 12))
@quick
def test_frames_of_copies_give_the_rows_of_the_long_way(script: Script, length: int) -> None:
    short, long = Run(script, length), Run(script, length, frames=False)
    step_by_step(short, long, STEPS // length)
    assert short.short
    assert short.told() == long.told()


@given(script=solo_scripts(), length=st.integers(1, 12), crashes=st.lists(dues, min_size=1, max_size=3))
@quick
def test_copies_that_raise_cost_what_they_cost_row_by_row(
    script: Script, length: int, crashes: list[Due]
) -> None:
    short, long = Run(script, length, crashes), Run(script, length, crashes, frames=False)
    step_by_step(short, long, STEPS // length)
    assert [world.crashes for world in short.worlds] == [world.crashes for world in long.worlds]
    assert short.told() == long.told()


@given(script=solo_scripts(), length=st.integers(1, 9), ways=st.lists(st.booleans(), min_size=8, max_size=8))
@quick
def test_frames_may_begin_and_end_with_every_fragment(script: Script, length: int, ways: list[bool]) -> None:
    short, long = Run(script, length), Run(script, length, frames=False)
    for frames in ways:
        short.loop.use_vector_loop = frames
        step_by_step(short, long, 1)
        assert short.short == frames
    assert short.told() == long.told()


def test_frames_go_on_after_a_crash() -> None:
    run = Run(SOLO, 10, [Due([4]), Due(), Due(resets=[3])])
    ways = []
    for _ in range(4):
        run.loop.sample()
        ways.append(run.short)
    assert run.loop.metrics.summary()["num_faulty_episodes"] == 2
    assert ways == [False, False, True, True] or ways == [False, True, True, True]


def test_a_run_that_is_written_down_goes_on_with_frames_there_and_here(tmp_path: Path) -> None:
    settings = {"num_envs_per_worker": 3, "rollout_fragment_length": 11, "train_batch_size": 33, "seed": SEED}
    here = PPO(env="CartPole-v1", config=settings)
    for _ in range(5):
        here.sample()
    there = PPO.from_checkpoint(here.save(tmp_path))
    for _ in range(5):
        same(here.sample(), there.sample())
    for algo in (here, there):
        assert isinstance(algo._rollouts, LocalRollouts)
        assert algo._rollouts.sampler._copies_loop is not None
        algo.stop()


def test_episodes_that_run_outlive_a_change_of_policies() -> None:
    short, long = Run(SOLO, 6), Run(SOLO, 6, frames=False)
    step_by_step(short, long, 2)
    for run in (short, long):
        run.loop.change_policies(
            PolicyMap(["even", "odd"], lambda agent_id: "odd"), [policy_group("networks", ["odd"])]
        )
    step_by_step(short, long, 3)
    assert not short.short
    assert short.told() == long.told()


@pytest.mark.parametrize(
    "settings", [{"batch_mode": "complete_episodes"}, {"count_steps_by": "agent_steps"}, {"callbacks": True}]
)
def test_what_frames_do_not_tell_goes_row_by_row(settings: dict[str, Any]) -> None:
    class Told(DefaultCallbacks):
        def on_episode_end(self, **kwargs: Any) -> None:
            pass

    if "callbacks" in settings:
        settings = {"callbacks": Told()}
    run = Run(SOLO, 6, **settings)
    run.loop.sample()
    assert not run.short


def test_who_keeps_episodes_sees_those_that_run() -> None:
    run = Run(SOLO, 6)
    batch = run.loop.sample()
    assert run.short
    run.loop.keep_episodes()
    batch = run.loop.sample()
    assert not run.short
    assert set(batch["even"]["eps_id"].tolist()) <= set(run.loop.episodes)


def test_there_is_no_frame_while_only_some_copies_have_been_answered() -> None:
    env = together([World(SOLO, number) for number in range(3)], solo=True)
    assert isinstance(env, GymEnvs)
    env.poll()
    env.send_actions(np.array([1]), [0])
    assert env.poll_vector_step() is None
    assert env.poll().slots.tolist() == [1]
    env.send_actions(np.array([2, 0, 1]), [0, 0, 0])
    frame = env.poll_vector_step()
    assert frame is not None
    assert frame.rewards.tolist() == [1.0, 1.0, 1.0]


def test_copies_that_came_apart_step_in_their_order_again_once_all_are_answered() -> None:
    env = together([World(SOLO, number) for number in range(3)], solo=True)
    env.poll()
    env.send_actions(np.array([1]), [0])
    env.poll()
    env.send_actions(np.array([2, 0]), [0, 0])
    env.send_actions(np.array([1]), [0])
    assert env.poll().slots.tolist() == [0, 1, 2]
