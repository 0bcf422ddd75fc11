"""A sub-environment that crashes costs the episode that runs there, and nothing else."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections import Counter
from typing import Any

import pytest

from menv import to_base_env
from menv.errors import ContractError, EnvCrashError
from menv.rng import reset_seed
from tests.contract.adapters import (
    LOCAL_ADAPTERS,
    Adapter,
    Watch,
    answer_as_dicts,
    held,
    name_of,
    nested,
    rotated,
    run,
)
from tests.contract.crashing import CrashError, World, every_letter, together
from tests.contract.scripted import SOLO, TOGETHER, ScriptedEnv, SoloGym
from tests.worlds import like, raising

every_adapter = pytest.mark.parametrize("adapter", LOCAL_ADAPTERS, ids=name_of)
both_kinds = pytest.mark.parametrize("solo", [True, False], ids=["gym", "agents"])
STEPS, RESETS = (1, 3, 9, 16, 17, 30), (3, 5, 6, 8, 10, 13)
POLLS = 60


def worlds_of(adapter: Adapter) -> list[World]:
    return [
        World(rotated(adapter.script, number), number, steps=steps, resets=resets)
        for number, (steps, resets) in enumerate([(STEPS, RESETS), ((), ()), ((2, 5, 6, 20), ())])
    ]


def build(adapter: Adapter, **settings: Any) -> tuple[Any, list[World]]:
    worlds = worlds_of(adapter)
    return together(worlds, solo=adapter.solo, **settings), worlds


@every_adapter
def test_each_row_is_delivered_once_and_each_agent_is_asked_exactly_once(adapter: Adapter) -> None:
    base_env, worlds = build(adapter)
    watch = run(base_env, POLLS)
    assert set(worlds[0].crashes) == {"step", "reset", "replacement"}
    assert [world.complaints for world in worlds] == [[], [], []]
    assert Counter(watch.rows) == Counter(row for world in worlds for row in world.shown)
    assert set(Counter(watch.rows).values()) == {1}


@every_adapter
def test_what_was_paid_is_in_rows_and_ends_or_held_or_unclaimed_after_crashes_too(adapter: Adapter) -> None:
    base_env, worlds = build(adapter)
    watch = run(base_env, POLLS)
    paid, got = Counter[str](), Counter[str]()
    for world in worlds:
        paid.update(world.paid)
    for part in (watch.income, held(base_env), watch.unclaimed):
        got.update(part)
    assert every_letter(got) == every_letter(paid)


@every_adapter
def test_trajectories_of_a_lost_episode_end_withdrawn_and_truncated(adapter: Adapter) -> None:
    base_env, worlds = build(adapter)
    watch, withdrawn = Watch(), []
    for _ in range(POLLS):
        ready = base_env.poll()
        withdrawn += [watch.lives[end.slot][:4] for end in ready.ended if end.withdrawn]
        watch.take(ready)
        answer_as_dicts(base_env, ready)
    lives = {row[:4] for row in watch.rows}
    lost = [end for world in worlds for end in world.lost]
    meant = [end for world in worlds for end in world.ended if end[:4] in lives]
    assert Counter(watch.ended) == Counter(meant + lost)
    assert Counter(withdrawn) == Counter(end[:4] for end in lost)


@every_adapter
def test_a_crash_is_reported_once_and_the_next_episode_begins_in_the_same_poll(adapter: Adapter) -> None:
    base_env, worlds = build(adapter)
    told: list[tuple[Any, str]] = []
    for _ in range(POLLS):
        before = [len(world.crashes) for world in worlds]
        ready = base_env.poll()
        mine = [(fault.env_id, fault.where) for fault in ready.faults]
        assert all(fault.line.startswith("CrashError: number ") for fault in ready.faults)
        lost = [end.env_id for end in ready.episodes if end.faulty]
        assert sorted(lost) == sorted(env_id for env_id, where in mine if where == "step")
        for number, world in enumerate(worlds):
            if len(world.crashes) > before[number]:
                assert any(ready.seats[slot][0] == number for slot in ready.slots.tolist())
                assert any(join.env_id == number for join in ready.joined)
        told += mine
        base_env.send_actions(ready.slots, [1] * len(ready.slots))
    assert [[where for env_id, where in told if env_id == number] for number in range(3)] == [
        [where for where in world.crashes if where != "replacement"] for world in worlds
    ]


@every_adapter
def test_only_the_crashed_environment_is_closed_and_created_again(adapter: Adapter) -> None:
    base_env: Any
    base_env, worlds = build(adapter)
    created: list[int] = []
    base_env.on_created = lambda index, env: created.append(index)
    run(base_env, POLLS)
    for number, world in enumerate(worlds):
        assert len(world.games) == 1 + len(world.crashes)
        assert [game.closed for game in world.games] == [1] * len(world.crashes) + [0]
        assert created.count(number) == len(world.crashes)
    base_env.stop()
    assert all(game.closed == 1 for world in worlds for game in world.games)


@every_adapter
def test_after_a_crash_a_reset_has_a_seed_that_none_before_it_had(adapter: Adapter) -> None:
    base_env: Any
    base_env, worlds = build(adapter, seed=3, first_index=5)
    run(base_env, POLLS)
    for number, world in enumerate(worlds):
        seeds = [reset["seed"] for reset in world.resets]
        assert len(set(seeds)) == len(seeds) > 2
        steps = int(base_env.env_steps[number])
        assert set(seeds) <= {reset_seed(3, 5 + number, step) for step in range(steps + 1)}
        # A step or a reset that raises counts as an env step.
        assert steps == world.calls["step"] + len(world.crashes) - world.crashes.count("step")


@both_kinds
def test_a_lost_episode_counts_the_steps_that_returned_and_is_truncated_and_polls_after_it_are_empty(
    solo: bool,
) -> None:
    base_env = together([World(SOLO if solo else TOGETHER, steps=[3])], solo=solo)
    for _ in range(3):
        base_env.send_actions(nested(base_env.poll()))
    ready = base_env.poll()
    assert [(end.env_steps, end.faulty) for end in ready.episodes] == [(2, True)]
    _, _, terminateds, truncateds, _, _ = ready
    assert set(terminateds[0].values()) == {False}
    assert set(truncateds[0].values()) == {True}
    again = base_env.poll()
    assert [*again.slots, *again.joined, *again.ended, *again.episodes, *again.faults] == []


@both_kinds
def test_a_crash_in_an_external_reset_is_recovered(solo: bool) -> None:
    world = World(SOLO if solo else TOGETHER, resets=[2])
    base_env = together([world], solo=solo)
    run(base_env, 2)
    obs, _ = base_env.try_reset(0, seed=8, options={"hard": True})
    assert obs[0]
    assert world.crashes == ["reset"]
    assert world.resets[-1] == {"seed": 8, "options": {"hard": True}}
    assert len(base_env.poll().slots)


@both_kinds
def test_a_crash_in_the_first_reset_is_an_error_at_once(solo: bool) -> None:
    worlds = [World(SOLO if solo else TOGETHER, 0), World(SOLO if solo else TOGETHER, 1, resets=[1])]
    with pytest.raises(EnvCrashError, match="CrashError: number 1") as caught:
        together(worlds, solo=solo).poll()
    assert isinstance(caught.value.__cause__, CrashError)
    assert len(worlds[1].games) == 1


@both_kinds
@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_crash_ends_the_run_if_the_config_says_so(solo: bool, where: str) -> None:
    world = World(SOLO if solo else TOGETHER, **{f"{where}s": [2]})  # type: ignore[arg-type]
    with pytest.raises(EnvCrashError, match=f"env 0 {where}"):
        run(together([world], solo=solo, restart_failed_sub_environments=False), POLLS)
    assert len(world.games) == 1


@both_kinds
def test_a_crash_without_make_env_ends_the_run(solo: bool) -> None:
    world = World(SOLO if solo else TOGETHER, steps=[2])
    env = world.make_solo() if solo else world.make()
    with pytest.raises(EnvCrashError, match="make_env"):
        run(to_base_env(env), POLLS)


@both_kinds
def test_a_creator_that_returns_the_broken_environment_again_ends_the_run(solo: bool) -> None:
    world = World(SOLO if solo else TOGETHER, steps=[2])
    env: Any = world.make_solo() if solo else world.make()
    with pytest.raises(EnvCrashError, match="make_env"):
        run(to_base_env(env, lambda index: env, 1), POLLS)


@both_kinds
def test_the_third_crash_without_progress_ends_the_run_with_the_first_as_its_cause(solo: bool) -> None:
    world = World(SOLO if solo else TOGETHER, steps=range(2, 99), most=99)
    with pytest.raises(EnvCrashError) as caught:
        run(together([world], solo=solo), POLLS)
    assert str(caught.value) == (
        "env 0 step, env step 2: raised CrashError: number 1, the first of 3 crashes in a row in reset or in the first "
        "10 env steps of an episode, expected 2 at most (num_consecutive_env_failures_tolerance); the environment's "
        "own traceback is above"
    )
    assert str(caught.value.__cause__) == "number 1"
    assert "in step" in "".join(traceback.format_exception(caught.value.__cause__))
    assert world.calls["step"] == 4


@both_kinds
def test_a_finished_episode_makes_up_for_the_crashes_before_it(solo: bool) -> None:
    world = World(SOLO if solo else TOGETHER, steps=range(1, 999, 2), most=2)
    run(together([world], solo=solo), 200)
    assert len(world.crashes) > 20
    assert len(world.finished) > 10


class Unmakeable:
    """A creator that fails for a while."""

    def __init__(self, world: World, failures: int, solo: bool) -> None:
        self.world, self.failures, self.solo, self.calls = world, failures, solo, 0

    def __call__(self, index: int) -> Any:
        self.calls += 1
        if 1 < self.calls <= 1 + self.failures:
            raise OSError("port taken")
        return self.world.make_solo() if self.solo else self.world.make()


@both_kinds
def test_a_replacement_that_cannot_be_made_is_tried_again_and_not_for_ever(solo: bool) -> None:
    script = SOLO if solo else TOGETHER
    world = World(script, steps=[2], agents="a" if solo else "abcd")
    make = Unmakeable(world, 1, solo)
    run(to_base_env(make(0), make, 1), POLLS)
    assert make.calls == 3
    world = World(script, steps=[2], agents="a" if solo else "abcd")
    make = Unmakeable(world, 2, solo)
    with pytest.raises(EnvCrashError) as caught:
        run(to_base_env(make(0), make, 1), POLLS)
    assert "CrashError: number 1, the first of 3 " in str(caught.value)
    assert isinstance(caught.value.__cause__, CrashError)
    assert make.calls == 3


def test_what_breaks_the_contract_is_an_error_at_once() -> None:
    old = like(SoloGym, step=lambda self, action: SoloGym.step(self, action)[:4])
    made: list[Any] = []

    def make(index: int) -> Any:
        made.append(old(SOLO))
        return made[-1]

    base_env = to_base_env(make(0), make, 1)
    with pytest.raises(ContractError, match="step"):
        run(base_env, 3)
    assert len(made) == 1


def test_a_keyboard_interrupt_does_not_count_as_a_fault() -> None:
    interrupted = like(SoloGym, step=raising(KeyboardInterrupt))
    base_env = to_base_env(interrupted(SOLO), lambda index: interrupted(SOLO), 1)
    with pytest.raises(KeyboardInterrupt):
        run(base_env, 3)


@both_kinds
def test_a_crashed_environment_is_released_after_its_successor_finished_an_episode(solo: bool) -> None:
    alive: list[weakref.ref[Any]] = []

    class Team(ScriptedEnv):
        def step(self, action_dict: Any) -> Any:
            if len(alive) == 1:
                raise CrashError
            return super().step(action_dict)

    class Alone(SoloGym):
        def step(self, action: Any) -> Any:
            if len(alive) == 1:
                raise CrashError
            return super().step(action)

    def make(index: int) -> Any:
        env = Alone(SOLO) if solo else Team(TOGETHER)
        alive.append(weakref.ref(env))
        return env

    base_env = to_base_env(make(0), make, 1)
    gc.disable()
    try:
        watch = run(base_env, 20)
        assert watch.episodes > 2
        assert [env() is not None for env in alive] == [False, True]
    finally:
        gc.enable()
