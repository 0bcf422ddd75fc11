"""A process that is killed, or hangs, costs the episodes of its own sub-environments, and nothing else."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from menv.base_env import BaseEnv, Ready
from menv.errors import EnvCrashError, WorkerLostError
from tests.contract.adapters import Watch, held, nested
from tests.contract.remote import LOCK_STEP, remote
from tests.contract.scripted import IRREGULAR, SOLO, TOGETHER, TURNS, seen
from tests.remote_envs.doomed import Fate

SCRIPTS = {"gym": SOLO, "turns": TURNS, "together": TOGETHER, "irregular": IRREGULAR}
every_script = pytest.mark.parametrize("name", SCRIPTS)
DIES = [("step", 0, 1), ("step", 1, 12), ("step", 2, 24)]
"""Far enough from each other that an episode is finished in between, whoever shares a process."""


class Told(Watch):
    """A watch that also keeps the ends and faults."""

    def __init__(self, base_env: BaseEnv) -> None:
        super().__init__()
        self.base_env = base_env
        self.polls: list[Ready] = []

    def poll(self) -> Ready:
        ready: Ready = self.base_env.poll()
        self.take(ready)
        self.polls.append(ready)
        return ready

    def round(self) -> Ready:
        """Poll, and answer everybody."""
        ready = self.poll()
        self.base_env.send_actions(ready.slots, [1] * len(ready.slots))
        return ready

    def until(self, world: int, steps: int) -> None:
        """Play until a sub-environment has taken so many env steps."""
        while not self.polls or self.polls[-1].env_steps[world] < steps:
            ready = self.round()
            assert len(ready.slots) or ready.faults, "nothing is under way"

    @property
    def faults(self) -> list[Any]:
        return [fault for ready in self.polls for fault in ready.faults]

    @property
    def faulty(self) -> list[int]:
        return [one.env_index for ready in self.polls for one in ready.episodes if one.faulty]


def every_letter(counts: Counter[str]) -> dict[str, int]:
    return {agent: counts[agent] for agent in "abcd"}


ALONE, TOGETHER_IN_STEP = (1, 0), (2, LOCK_STEP)
OTHERS = [(1, LOCK_STEP), (2, 0), (3, 0), (3, LOCK_STEP)]


@pytest.mark.slow_unless("1-0-gym", "2-*-irregular")
@every_script
@pytest.mark.parametrize(
    ("per_process", "wait"),
    [ALONE, TOGETHER_IN_STEP, *[pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS]],
)
def test_what_was_paid_is_in_rows_and_ends_or_held_or_unclaimed(
    name: str, per_process: int, wait: int, tmp_path: Path
) -> None:
    # Whoever dies is the first of its process to be stepped, so that no others' rewards are lost on the way.
    first = [world for world in range(3) if world % per_process == 0]
    deaths = [("step", world, number) for world in first for number in (1, 12, 24)]
    fate = Fate(tmp_path, SCRIPTS[name], name == "gym", deaths)
    base_env = remote(fate, 3, wait=wait, per_process=per_process, seed=1)
    watch = Told(base_env)
    for world in (0, 1, 2):
        watch.until(world, 42)
    ready = watch.poll()
    while len(ready.slots) or ready.episodes:
        ready = watch.poll()
    got: Counter[str] = Counter()
    for part in (watch.income, watch.unclaimed, held(base_env)):
        got.update(part)
    assert every_letter(got) == every_letter(fate.paid(3))
    assert len(watch.faulty) >= len(deaths)
    assert Counter(watch.faulty) == Counter(fault.env_index for fault in watch.faults)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("turns", "together") else name
        for name in SCRIPTS
    ],
)
def test_every_reset_has_a_seed_of_its_own(name: str, tmp_path: Path) -> None:
    fate = Fate(tmp_path, SCRIPTS[name], name == "gym", DIES)
    watch = Told(remote(fate, 3, seed=1))
    for world in (0, 1, 2):
        watch.until(world, 42)
    seeds = [reset["seed"] for world in range(3) for reset in fate.noted("resets", world)]
    assert len(seeds) > 20
    assert len(set(seeds)) == len(seeds)


@every_script
def test_the_others_play_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    def rows(fate: Fate) -> list[Any]:
        fate.folder.mkdir()
        watch = Told(remote(fate, 3, seed=1))
        watch.until(1, 40)
        return [row for row in watch.rows if row.world == 1 and row.step]

    deaths = [one for one in DIES if one[1] != 1]
    disturbed = rows(Fate(tmp_path / "a", SCRIPTS[name], name == "gym", deaths))
    expected = rows(Fate(tmp_path / "b", SCRIPTS[name], name == "gym"))
    assert disturbed[: len(expected) - 5] == expected[: len(disturbed)][: len(expected) - 5]


@pytest.mark.parametrize("solo", [True, False])
def test_a_lost_episode_ends_withdrawn_and_truncated_and_the_next_begins_one_step_later(
    solo: bool, tmp_path: Path
) -> None:
    script = SOLO if solo else TOGETHER
    watch = Told(remote(Fate(tmp_path, script, solo, [("step", 0, 3)]), 1, seed=1))
    while not watch.faulty:
        watch.round()
    ready = watch.polls[-1]
    assert {(end.truncated, end.terminated, end.withdrawn) for end in ready.ended} == {(True, False, True)}
    assert [(one.truncated, one.env_steps, one.faulty) for one in ready.episodes] == [(True, 2, True)]
    (fault,) = ready.faults
    assert fault.line.startswith("WorkerLostError: process of env 0 (pid ")
    assert "SIGKILL" in fault.line
    assert fault.line.endswith(" in step of env 0")
    if not len(ready.slots):
        ready = watch.poll()
    assert ready.env_steps.tolist() == [3]
    assert {seen(obs).step for obs in ready.obs} == {0}
    assert len(ready.slots) == (1 if solo else 2)


def test_the_third_loss_without_progress_ends_the_run_with_the_first_as_its_cause(tmp_path: Path) -> None:
    watch = Told(remote(Fate(tmp_path, TOGETHER, dies=[("step", 0, n) for n in range(3, 99)]), 1))
    with pytest.raises(EnvCrashError) as caught:
        watch.until(0, 50)
    message, cause = str(caught.value), caught.value.__cause__
    assert message.startswith("env 0 step, env step 2: process of env 0 (pid ")
    assert "ended with exit code -9 (SIGKILL), the first of 3 crashes in a row in reset" in message
    assert message.endswith("; what is known of its process is above")
    assert isinstance(cause, WorkerLostError)
    assert str(cause).endswith("no wheels")
    assert len(watch.faulty) == 2


def test_polls_after_a_loss_that_ended_one_begin_in_another_process(tmp_path: Path) -> None:
    fate = Fate(tmp_path, TOGETHER, dies=[("step", 0, number) for number in (3, 4, 5)])
    watch = Told(remote(fate, 2, env_timeout=30.0))
    with pytest.raises(EnvCrashError, match="SIGKILL"):
        watch.until(0, 20)
    watch.until(0, 20)
    assert watch.faulty == [0, 0, 0]


def test_polls_after_a_process_that_could_not_begin_try_another_one(tmp_path: Path) -> None:
    watch = Told(remote(Fate(tmp_path, TOGETHER, dies=[("reset", 0, 1)]), 1, env_timeout=30.0))
    with pytest.raises(EnvCrashError, match="SIGKILL"):
        watch.poll()
    watch.until(0, 20)
    assert watch.faulty == []


def test_a_process_that_dies_in_a_later_reset_costs_an_episode(tmp_path: Path) -> None:
    watch = Told(remote(Fate(tmp_path, TOGETHER, dies=[("reset", 0, 3)]), 1))
    watch.until(0, 20)
    assert len(watch.faulty) == 1


def test_a_finished_episode_makes_up_for_losses_before_it(tmp_path: Path) -> None:
    fate = Fate(tmp_path, TOGETHER, dies=[("step", 0, 2), ("step", 0, 9), ("step", 0, 16), ("step", 0, 23)])
    watch = Told(remote(fate, 1))
    watch.until(0, 40)
    assert len(watch.faulty) == 4


def test_a_loss_ends_the_run_where_that_is_asked_for(tmp_path: Path) -> None:
    fate = Fate(tmp_path, TOGETHER, dies=[("step", 0, 2)])
    watch = Told(remote(fate, 1, restart_failed_sub_environments=False))
    with pytest.raises(EnvCrashError, match=r"env 0 step, env step 1: .*SIGKILL"):
        watch.until(0, 5)


def test_a_process_that_dies_in_its_first_reset_is_an_error_at_once(tmp_path: Path) -> None:
    base_env = remote(Fate(tmp_path, TOGETHER, dies=[("reset", 1, 1)]), 2)
    with pytest.raises(EnvCrashError, match=r"env 1 reset, env step 0: .*SIGKILL") as caught:
        base_env.poll()
    assert str(caught.value.__cause__).endswith("no wheels")


@pytest.mark.slow
def test_a_successor_that_cannot_begin_is_tried_again_and_not_for_ever(tmp_path: Path) -> None:
    dies = [("step", 0, 2), ("reset", 0, 2)]
    watch = Told(remote(Fate(tmp_path, TOGETHER, dies=dies), 1))
    watch.until(0, 10)
    assert len(watch.faulty) == 1
    folder = tmp_path / "again"
    folder.mkdir()
    watch = Told(remote(Fate(folder, TOGETHER, dies=[*dies, ("reset", 0, 3)]), 1))
    with pytest.raises(EnvCrashError, match="the first of 3 crashes in a row") as caught:
        watch.until(0, 10)
    assert isinstance(caught.value.__cause__, WorkerLostError)


@pytest.mark.slow_unless("0")
@pytest.mark.parametrize("wait", [0, LOCK_STEP])
def test_what_hangs_is_given_up_and_the_others_play_on(wait: int, tmp_path: Path) -> None:
    fate = Fate(tmp_path, TOGETHER, hangs=[("step", 1, 4), ("reset", 0, 3)])
    watch = Told(remote(fate, 3, wait=wait, env_timeout=1.5))
    for world in (0, 1, 2):
        watch.until(world, 15)
    assert sorted(watch.faulty) == [0, 1]
    assert all("no answer for 1.5 s, expected one within env_timeout=1.5" in one.line for one in watch.faults)


def test_with_nobody_waiting_for_it_what_hangs_holds_nobody_up(tmp_path: Path) -> None:
    watch = Told(remote(Fate(tmp_path, TOGETHER, hangs=[("step", 0, 1)]), 2, wait=0, env_timeout=20))
    watch.until(1, 50)
    assert watch.polls[-1].env_steps[0] == 0
    assert watch.faulty == []


@pytest.mark.alone
def test_a_poll_with_a_timeout_comes_back_with_nothing_while_what_it_waits_for_takes_longer(
    tmp_path: Path,
) -> None:
    base_env = remote(Fate(tmp_path, TOGETHER, hangs=[("step", 0, 1)]), 1)
    base_env.send_actions(nested(base_env.poll()))
    began = time.monotonic()
    for timeout in (0.0, 0.2):
        ready = base_env.poll(timeout)
        assert (len(ready.slots), list(ready.episodes)) == (0, [])
    assert 0.2 <= time.monotonic() - began < 2.0


@pytest.mark.slow
def test_a_process_that_was_killed_from_outside_is_found_out_when_it_is_asked(tmp_path: Path) -> None:
    base_env = remote(Fate(tmp_path, TOGETHER), 2)
    watch = Told(base_env)
    watch.until(0, 3)
    ready = watch.poll()
    pid = base_env.call(0, "tell", "pid")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="SIGKILL"):
        base_env.call(0, "tell", "pid")
    # Nobody is told of the loss while the rows of the episode wait.
    assert watch.faulty == []
    assert len(watch.poll().slots) == 0
    assert watch.faulty == []
    base_env.send_actions(nested(ready))
    watch.round()
    assert watch.faulty == [0]
    watch.until(0, 20)
    assert base_env.call(0, "tell", "pid") != pid


@pytest.mark.parametrize("name", ["gym", "irregular"])
def test_an_episode_whose_rows_wait_is_lost_when_they_are_answered(name: str, tmp_path: Path) -> None:
    """Two sub-environments share a process that dies when only the first of them has been answered."""
    base_env = remote(
        Fate(tmp_path, SCRIPTS[name], name == "gym", [("step", 0, 1)]), 2, per_process=2, seed=1
    )
    watch = Told(base_env)
    ready = watch.poll()
    waiting = nested(ready, [1])
    base_env.send_actions(nested(ready, [0]))
    for _ in range(6):
        # The first one goes on in the new process; the other is as it was.
        polled = watch.poll()
        assert {polled.seats[slot][0] for slot in polled.slots.tolist()} == {0}
        base_env.send_actions(nested(polled))
    assert watch.faulty == [0]
    base_env.send_actions(waiting)
    for _ in range(6):
        polled = watch.poll()
        base_env.send_actions(nested(polled))
    assert watch.faulty == [0, 1]
    assert len([row for row in watch.rows if row.world == 1]) > 5


@pytest.mark.parametrize("where", ["waiting", "under way"])
def test_a_reset_from_outside_makes_a_loss_good(where: str, tmp_path: Path) -> None:
    base_env = remote(Fate(tmp_path, TOGETHER), 1, seed=1)
    watch = Told(base_env)
    watch.until(0, 2)
    ready = watch.poll()
    os.kill(base_env.call(0, "tell", "pid"), signal.SIGKILL)
    if where == "under way":
        base_env.send_actions(nested(ready))
    obs, _ = base_env.try_reset(0)
    assert seen(obs[0]["a"]).step == 0
    watch.round()
    assert watch.faulty == [0]
    assert len(watch.polls[-1].slots) == 2
    watch.until(0, 10)


@pytest.mark.slow
def test_stopping_does_not_wait_for_what_hangs(tmp_path: Path) -> None:
    from menv import to_base_env

    fate = Fate(tmp_path, TOGETHER, hangs=[("step", 0, 1)])
    base_env = to_base_env(fate(0), fate, 1, remote_envs=True, engine="process")
    ready = base_env.poll()
    base_env.send_actions(ready.slots, [1, 1])
    began = time.monotonic()
    base_env.stop()
    assert time.monotonic() - began < 50


@pytest.mark.usefixtures("running_ray")
@pytest.mark.slow
@pytest.mark.parametrize("per_process", [1, 2])
def test_losses_on_ray_are_made_good_too(per_process: int, tmp_path: Path) -> None:
    deaths = [("step", 0, 3), ("step", 2, 20)]
    fate = Fate(tmp_path, TOGETHER, dies=deaths, hangs=[("step", 0, 26)])
    # Long enough for a busy machine: whoever is slow would count as a fourth loss.
    base_env = remote(fate, 3, wait=0, per_process=per_process, on="ray", seed=1, env_timeout=5.0)
    watch = Told(base_env)
    for world in (0, 1, 2):
        watch.until(world, 40)
    ready = watch.poll()
    while len(ready.slots) or ready.episodes:
        ready = watch.poll()
    assert len(watch.faulty) == 3 if per_process == 1 else len(watch.faulty) >= 4
    got: Counter[str] = Counter()
    for part in (watch.income, watch.unclaimed, held(base_env)):
        got.update(part)
    assert every_letter(got) == every_letter(fate.paid(3))
