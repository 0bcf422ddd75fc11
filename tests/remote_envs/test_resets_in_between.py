"""Resets, answers and calls between two polls, while steps are under way in other processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.contract.adapters import Watch, held, nested
from tests.contract.remote import LOCK_STEP, Make, remote
from tests.contract.scripted import IRREGULAR, SOLO, TOGETHER, TURNS, seen
from tests.remote_envs.doomed import Fate

SCRIPTS = {"gym": SOLO, "turns": TURNS, "together": TOGETHER, "irregular": IRREGULAR}
every_script = pytest.mark.parametrize("name", SCRIPTS)


@pytest.mark.slow_unless("1-gym", "2-irregular")
@every_script
@pytest.mark.parametrize("per_process", [1, 2])
def test_what_a_step_under_way_pays_is_not_lost_by_a_reset(
    name: str, per_process: int, tmp_path: Path
) -> None:
    fate = Fate(tmp_path, SCRIPTS[name], name == "gym")
    base_env = remote(fate, 2, per_process=per_process, seed=1)
    watch = Watch()
    for number in range(60):
        ready = base_env.poll()
        watch.take(ready)
        base_env.send_actions(nested(ready))
        if number % 3 == 0:
            base_env.try_reset(number % 2)
    ready = base_env.poll()
    watch.take(ready)
    got: Counter[str] = Counter()
    for part in (watch.income, watch.unclaimed, held(base_env)):
        got.update(part)
    paid = fate.paid(2)
    assert {agent: got[agent] for agent in "abcd"} == {agent: paid[agent] for agent in "abcd"}
    assert watch.episodes > 20


@pytest.mark.parametrize("solo", [True, False])
def test_rows_that_a_reset_returned_and_that_were_answered_do_not_come_again(solo: bool) -> None:
    base_env = remote(Make([[SOLO[0] if solo else TOGETHER[0]]] * 2, solo), 2)
    base_env.send_actions(nested(base_env.poll()))
    obs, _ = base_env.try_reset(0)
    base_env.send_actions({0: dict.fromkeys(obs[0], 1)})
    steps: dict[int, set[int]] = {0: set(), 1: set()}
    ready = base_env.poll()
    for one in ready.obs:
        steps[seen(one).world].add(seen(one).step)
    assert steps == {0: {1}, 1: {1}}


def test_while_the_same_agents_wait_in_all_processes_the_slots_are_the_same_array() -> None:
    base_env = remote(Make([TOGETHER] * 3, False), 3, wait=LOCK_STEP)
    arrays = []
    for _ in range(4):
        ready = base_env.poll()
        arrays.append(ready.slots)
        base_env.send_actions(ready.slots, [1] * len(ready.slots))
    assert len(arrays[0]) == 6
    assert all(array is arrays[0] for array in arrays)


def test_a_call_waits_for_the_step_under_way_and_takes_nothing_from_it() -> None:
    base_env = remote(Make([TOGETHER] * 2, False), 2, wait=LOCK_STEP)
    ready = base_env.poll()
    steps: list[Any] = ready.env_steps.tolist()
    base_env.send_actions(ready.slots, [1] * 4)
    assert [base_env.call(index, "tell", "step_count") for index in (0, 1)] == [1, 1]
    # What nobody has been told of does not count yet.
    assert ready.env_steps.tolist() == steps == [0, 0]
    ready = base_env.poll()
    assert ready.env_steps.tolist() == [1, 1]
    assert {seen(obs).step for obs in ready.obs} == {1}


def test_partial_answers_of_sub_environments_that_share_a_process_step_these_alone() -> None:
    base_env = remote(Make([TOGETHER] * 3, False), 3, per_process=3, wait=0)
    ready = base_env.poll()
    base_env.send_actions(nested(ready, [1]))
    ready = base_env.poll()
    assert {ready.seats[slot][0] for slot in ready.slots.tolist()} == {1}
    assert ready.env_steps.tolist() == [0, 1, 0]
