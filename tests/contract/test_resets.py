"""Resets, restarts and seeds, for the adapters that reset by themselves and for a user's own BaseEnv."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import to_base_env
from menv.base_env import ALL, BaseEnv, Ready
from menv.errors import ConfigError, ContractError
from menv.vector_env import VectorEnv
from tests.contract.adapters import (
    ALL_ADAPTERS,
    LOCAL_ADAPTERS,
    REMOTE_ADAPTERS,
    Adapter,
    Watch,
    answer_all,
    held,
    name_of,
    nested,
    run,
)
from tests.contract.scripted import SOLO, TOGETHER, ScriptedEnv, SixDicts, SoloGym, seen
from tests.worlds import LINE, Alone

copies_adapter = pytest.mark.parametrize("adapter", [*LOCAL_ADAPTERS, *REMOTE_ADAPTERS], ids=name_of)
OWN_NOW = [adapter for adapter in ALL_ADAPTERS if adapter.kind == "now"]


@pytest.mark.parametrize("adapter", [*LOCAL_ADAPTERS, *REMOTE_ADAPTERS, *OWN_NOW], ids=name_of)
def test_the_classic_loop_works(adapter: Adapter) -> None:
    base_env, games = adapter.build(2)
    over = {0: 0, 1: 0}
    for number in range(60):
        obs, _rewards, terminateds, truncateds, _infos, _taken = base_env.poll()
        waiting = dict(obs)
        for env_id in obs:
            if terminateds[env_id][ALL] or truncateds[env_id][ALL]:
                over[env_id] += 1
                first, _ = base_env.try_reset(env_id)
                waiting[env_id] = first[env_id]
        actions = {env_id: dict.fromkeys(agents, 1) for env_id, agents in waiting.items() if agents}
        if number < 59:  # who lives elsewhere steps without a poll
            base_env.send_actions(actions)
    assert [game.complaints for game in games] == [[], []]
    assert min(over.values()) > 1
    # One reset an episode: the loop's own try_reset has reset nothing a second time.
    assert [len(game.resets) for game in games] == [over[0] + 1, over[1] + 1]


@copies_adapter
def test_try_reset_of_a_fresh_sub_environment_resets_nothing(adapter: Adapter) -> None:
    base_env, games = adapter.build(2)
    obs, infos = base_env.try_reset()
    assert set(obs) == set(infos) == {0, 1}
    assert [len(game.resets) for game in games] == [1, 1]
    again, _ = base_env.try_reset(1)
    assert set(again) == {1}
    assert [len(game.resets) for game in games] == [1, 1]
    watch = run(base_env, 20)
    assert len(set(watch.rows)) == len(watch.rows)


@copies_adapter
def test_try_reset_of_a_running_sub_environment_ends_its_episode_as_truncated(adapter: Adapter) -> None:
    base_env, games = adapter.build(2)
    watch = Watch()
    for _ in range(3):
        ready = base_env.poll()
        watch.take(ready)
        answer_all(base_env, ready)
    watch.take(base_env.poll())
    alive = [slot for slot, row in watch.lives.items() if row is not None and row.world == 0]
    assert alive
    assert games[0].step_count > 0
    base_env.try_reset(0)
    ready = base_env.poll()
    watch.take(ready)
    assert [(end.env_id, end.terminated, end.truncated) for end in ready.ended] == [(0, False, True)] * len(
        alive
    )
    assert [(one.env_id, one.terminated, one.truncated) for one in ready.episodes] == [(0, False, True)]
    assert {ready.seats[slot][0] for slot in ready.slots.tolist()} == {0}
    paid = sum(sum(game.paid.values()) for game in games)
    handed_out = sum(watch.income.values()) + sum(watch.unclaimed.values()) + sum(held(base_env).values())
    assert handed_out == paid


@copies_adapter
def test_try_reset_between_answer_and_poll_drops_the_answer(adapter: Adapter) -> None:
    base_env, games = adapter.build(2)
    for _ in range(2):
        answer_all(base_env, base_env.poll())
    steps = games[0].step_count
    base_env.try_reset(0)
    ready = base_env.poll()
    assert games[0].step_count <= steps
    assert {env_id for env_id, _ in (ready.seats[slot] for slot in ready.slots.tolist())} == {0, 1}
    rows = [seen(obs) for obs in ready.obs if obs[0] == 0]
    assert all(row.episode == games[0].episode for row in rows)


@pytest.mark.slow_unless("2-*", "None-gym")
@copies_adapter
@pytest.mark.parametrize("env_id", [2, -1, "x", None])
def test_an_unknown_env_id_is_an_error_that_names_the_valid_ones(adapter: Adapter, env_id: Any) -> None:
    base_env, _ = adapter.build(2)
    base_env.poll()
    if env_id is None:
        env_id = (0, 1)
    with pytest.raises(ConfigError):
        base_env.try_reset(env_id)


@copies_adapter
@pytest.mark.parametrize("started", [False, True])
def test_try_restart_replaces_a_sub_environment_and_closes_the_old_one(
    adapter: Adapter, started: bool
) -> None:
    made: list[Any] = []

    def make(index: int) -> Any:
        kind: Any = SoloGym if adapter.kind == "gym" else ScriptedEnv
        made.append(kind(adapter.script, index))
        return made[-1]

    base_env = to_base_env(make(0), make, 2)
    watch = Watch()
    if started:
        for _ in range(3):
            answer_all(base_env, taken(base_env, watch))
        taken(base_env, watch)
    base_env.try_restart(1)
    assert len(made) == 3
    assert getattr(made[1], "game", made[1]).closed == 1
    assert base_env.get_sub_environments() == [made[0], made[2]]
    ready = taken(base_env, watch)
    assert {ready.seats[slot][0] for slot in ready.slots.tolist()} == ({1} if started else {0, 1})
    for _ in range(10):
        base_env.send_actions(nested(ready))
        ready = taken(base_env, watch)
    replacement = getattr(made[2], "game", made[2])
    assert len(replacement.resets) >= 1
    assert replacement.complaints == []


def taken(base_env: BaseEnv, watch: Watch) -> Ready:
    ready: Ready = base_env.poll()
    watch.take(ready)
    return ready


def test_an_instance_without_a_creator_cannot_be_restarted() -> None:
    base_env = to_base_env(SoloGym(SOLO))
    with pytest.raises(ConfigError, match="make_env"):
        base_env.try_restart(0)


@copies_adapter
def test_with_a_seed_every_reset_gets_a_separate_seed(adapter: Adapter) -> None:
    base_env, games = adapter.build(3, seed=5)
    run(base_env, 80)
    seeds = [reset["seed"] for game in games for reset in game.resets]
    assert len(seeds) > 12
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


@copies_adapter
def test_the_same_seed_gives_the_same_seeds_and_another_gives_others(adapter: Adapter) -> None:
    def seeds(seed: int) -> list[Any]:
        base_env, games = adapter.build(2, seed=seed)
        run(base_env, 40)
        return [game.resets for game in games]

    assert seeds(1) == seeds(1)
    assert seeds(1)[0][0] != seeds(2)[0][0]


@copies_adapter
def test_without_a_seed_reset_is_called_without_one(adapter: Adapter) -> None:
    base_env, games = adapter.build(2)
    run(base_env, 40)
    assert all(reset == {} for game in games for reset in game.resets)


@pytest.mark.parametrize("mode", ["now", "later", "new id"])
def test_an_own_base_env_is_reset_after_its_end_and_never_otherwise(mode: str) -> None:
    game = ScriptedEnv(TOGETHER)
    base_env = to_base_env(SixDicts([game], mode))
    ended = 0
    for _ in range(40):
        ready = base_env.poll()
        ended += len(ready.episodes)
        answer_all(base_env, ready)
    assert len(game.resets) == ended + 1
    assert all(reset == {} for reset in game.resets)


@pytest.mark.parametrize("adapter", OWN_NOW, ids=name_of)
def test_try_reset_of_a_running_own_base_env_ends_its_episode_as_truncated(adapter: Adapter) -> None:
    base_env, games = adapter.build(1)
    for _ in range(2):
        answer_all(base_env, base_env.poll())
    base_env.poll()
    obs, _ = base_env.try_reset(0)
    ready = base_env.poll()
    assert {(end.terminated, end.truncated) for end in ready.ended} == {(False, True)}
    assert [episode.truncated for episode in ready.episodes] == [True]
    waiting = {ready.seats[slot][1] for slot in ready.slots.tolist()}
    assert waiting == set(obs[0]) or not obs[0], "nobody waits after the reset, so the next steps are taken"
    assert len(games[0].resets) == 2


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("done", [{}, {"a": True, "b": True}], ids=["nobody waits", "all are done"])
def test_steps_without_a_waiting_agent_end_in_an_error_after_a_thousand(done: Any, own: bool) -> None:
    class Nobody(ScriptedEnv):
        def step(self, action_dict: Any) -> Any:
            self.step_count += 1
            return {}, {"a": 1.0}, {ALL: False, **done}, {ALL: False}, {}

    game = Nobody(TOGETHER)
    base_env = to_base_env(SixDicts([game], "now") if own else game)
    answer_all(base_env, base_env.poll())
    with pytest.raises(ContractError, match="__all__"):
        base_env.poll()
    assert 1000 <= game.step_count <= 1001


class Noting(Alone):
    """Shows how far it is in one buffer, which is part of a Dict."""

    observation_space = gym.spaces.Dict({"at": LINE})

    def see(self) -> Any:
        self.buffer: Any = getattr(self, "buffer", np.zeros(1, np.float32))
        self.buffer[:] = self.at
        return {"at": self.buffer}


def test_the_last_observation_of_an_episode_that_try_reset_ends_is_an_element_of_its_space() -> None:
    base_env = to_base_env(VectorEnv.vectorize_gym_envs(lambda index: Noting(), num_envs=2))
    base_env.send_actions(base_env.poll().slots, [0, 0])
    base_env.poll()
    base_env.try_reset(seed=4)
    ready = base_env.poll()
    assert [end.obs["at"].tolist() for end in ready.ended] == [[1.0], [1.0]]
    assert [obs["at"].tolist() for obs in ready.obs] == [[0.0], [0.0]]
