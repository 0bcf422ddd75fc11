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
"""Far enough from each other that an episode is finished in between."""


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


@pytest.mark.slow_unless("0-gym", "*-irregular")
@every_script
@pytest.mark.parametrize("wait", [0, LOCK_STEP])
def test_what_was_paid_is_in_rows_and_ends_or_held_or_unclaimed(name: str, wait: int, tmp_path: Path) -> None:
    deaths = [("step", world, number) for world in range(3) for number in (1, 12, 24)]
    fate = Fate(tmp_path, SCRIPTS[name], name == "gym", deaths)
    base_env = remote(fate, 3, wait=wait, seed=1)
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
def test_every_reset_has_a_separate_seed(name: str, tmp_path: Path) -> None:
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
    assert message.endswith("; the report of its process is above")
    assert isinstance(cause, WorkerLostError)
    assert str(cause).endswith("no wheels")
    assert len(watch.faulty) == 2


LOSSES = {
    "three in a row": ([("step", 0, number) for number in (3, 4, 5)], True, 3),
    "the first reset": ([("reset", 0, 1)], True, 0),
    "a later reset": ([("reset", 0, 3)], False, 1),
    "with an episode between": ([("step", 0, number) for number in (2, 9, 16, 23)], False, 4),
    "and a successor": ([("step", 0, 2), ("reset", 0, 2)], False, 1),
    "and two successors": ([("step", 0, 2), ("reset", 0, 2), ("reset", 0, 3)], True, 1),
}


@pytest.mark.slow_unless("three*", "the first*", "with*")
@pytest.mark.parametrize("case", LOSSES)
def test_losses_cost_episodes_or_end_the_run_and_the_next_poll_begins_in_another_process(
    case: str, tmp_path: Path
) -> None:
    dies, ends, faulty = LOSSES[case]
    watch = Told(remote(Fate(tmp_path, TOGETHER, dies=dies), 1, env_timeout=30.0))
    if ends:
        with pytest.raises(EnvCrashError, match="SIGKILL"):
            watch.until(0, 40)
    watch.until(0, 40)
    assert watch.faulty == [0] * faulty


def test_a_lost_process_ends_the_run_if_the_config_says_so(tmp_path: Path) -> None:
    fate = Fate(tmp_path, TOGETHER, dies=[("step", 0, 2)])
    watch = Told(remote(fate, 1, restart_failed_sub_environments=False))
    with pytest.raises(EnvCrashError, match=r"env 0 .*SIGKILL"):
        watch.until(0, 5)


def test_a_process_that_dies_in_its_first_reset_is_an_error_at_once(tmp_path: Path) -> None:
    base_env = remote(Fate(tmp_path, TOGETHER, dies=[("reset", 1, 1)]), 2)
    with pytest.raises(EnvCrashError, match=r"env 1 .*SIGKILL") as caught:
        base_env.poll()
    assert str(caught.value.__cause__).endswith("no wheels")


@pytest.mark.slow_unless("0")
@pytest.mark.parametrize("wait", [0, LOCK_STEP])
def test_a_hanging_environment_is_dropped_and_the_others_continue(wait: int, tmp_path: Path) -> None:
    fate = Fate(tmp_path, TOGETHER, hangs=[("step", 1, 4), ("reset", 0, 3)])
    watch = Told(remote(fate, 3, wait=wait, env_timeout=1.5))
    for world in (0, 1, 2):
        watch.until(world, 15)
    assert sorted(watch.faulty) == [0, 1]
    assert all("did not return for env_timeout=1.5 s" in one.line for one in watch.faults)


@pytest.mark.parametrize("answered", [False, True])
def test_a_process_that_was_killed_from_outside_is_found_out_when_it_is_asked(
    answered: bool, tmp_path: Path
) -> None:
    base_env = remote(Fate(tmp_path, TOGETHER), 2)
    watch = Told(base_env)
    watch.until(0, 3)
    ready = watch.poll()
    pid = base_env.call(0, "tell", "pid")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="SIGKILL"):
        base_env.call(0, "tell", "pid")
    if answered:
        base_env.send_actions(ready.slots, [1] * len(ready.slots))
    lost = watch.round()
    # Without an action there is no result that could be unknown.
    assert {end.withdrawn for end in lost.ended if end.env_id == 0} == {answered}
    assert watch.faulty == [0]
    watch.until(0, 20)
    assert base_env.call(0, "tell", "pid") != pid


@pytest.mark.parametrize("where", ["waiting", "under way"])
def test_an_external_reset_recovers_a_lost_process(where: str, tmp_path: Path) -> None:
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
def test_stopping_does_not_wait_for_hanging_processes(tmp_path: Path) -> None:
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
def test_lost_actors_on_ray_are_replaced_too(tmp_path: Path) -> None:
    deaths = [("step", 0, 3), ("step", 2, 20)]
    fate = Fate(tmp_path, TOGETHER, dies=deaths, hangs=[("step", 0, 26)])
    # Long enough for a busy machine: whoever is slow would count as a fourth loss.
    base_env = remote(fate, 3, wait=0, on="ray", seed=1, env_timeout=5.0)
    watch = Told(base_env)
    for world in (0, 1, 2):
        watch.until(world, 40)
    ready = watch.poll()
    while len(ready.slots) or ready.episodes:
        ready = watch.poll()
    assert len(watch.faulty) == 3
    got: Counter[str] = Counter()
    for part in (watch.income, watch.unclaimed, held(base_env)):
        got.update(part)
    assert every_letter(got) == every_letter(fate.paid(3))
