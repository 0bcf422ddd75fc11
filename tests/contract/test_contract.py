"""The rules of the contract, the same for every adapter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from menv.base_env import ALL, BaseEnv, Ready
from menv.errors import ContractError
from tests.contract.adapters import (
    ALL_ADAPTERS,
    REMOTE_ADAPTERS,
    Adapter,
    answer_all,
    held,
    name_of,
    nested,
    run,
)
from tests.contract.scripted import ScriptedEnv

every_adapter = pytest.mark.parametrize("adapter", [*ALL_ADAPTERS, *REMOTE_ADAPTERS], ids=name_of)
POLLS = 60


def shown_in(games: list[ScriptedEnv]) -> Counter[Any]:
    return Counter(row for game in games for row in game.shown)


@pytest.mark.each_value
@every_adapter
@pytest.mark.parametrize("num_envs", [1, 3])
def test_each_row_is_delivered_once_and_only_living_agents_are_asked(adapter: Adapter, num_envs: int) -> None:
    base_env, games = adapter.build(num_envs)
    watch = run(base_env, POLLS)
    assert [game.complaints for game in games] == [[]] * num_envs
    assert watch.episodes >= num_envs
    assert min(game.episode for game in games) >= 2
    missing = shown_in(games) - Counter(watch.rows)
    assert set(watch.rows) <= set(shown_in(games))
    if adapter.kind in ("later", "new id"):  # the first rows of an episode come a poll after its reset
        missing = Counter(row for row in missing if row.step or row.episode != games[row.world].episode)
    assert missing == Counter()
    assert set(Counter(watch.rows).values()) == {1}
    assert set(shown_in(games).values()) == {1}


@every_adapter
def test_what_was_paid_and_every_life_and_final_observation_are_handed_out_once(adapter: Adapter) -> None:
    base_env, games = adapter.build()
    watch = run(base_env, POLLS)
    paid = sum((game.paid for game in games), Counter())
    total: Counter[str] = Counter()
    for part in (watch.income, held(base_env), watch.unclaimed):
        total.update(part)
    assert {agent: total[agent] for agent in paid} == dict(paid)
    # A life that ended without a row of its own has nothing to end.
    lives = {row[:4] for row in watch.rows}
    meant = [end for game in games for end in game.ended if end[:4] in lives]
    assert Counter(watch.ended) == Counter(meant)
    assert {end.terminated for end in watch.ended} == {end.truncated for end in watch.ended} == {True, False}
    # Final observations are copies that the environment cannot change.
    given = [(obs, then) for obs, then in watch.finals if obs is not None]
    assert given
    for obs, then in given:
        np.testing.assert_array_equal(obs, then)


@every_adapter
def test_a_poll_with_nothing_to_deliver_returns_empty_at_once(adapter: Adapter) -> None:
    base_env, _ = adapter.build()
    rows = run(base_env, 5).rows
    if adapter.kind in ("later", "new id"):
        base_env.poll()  # the first rows of an episode come a poll after its reset
    again = base_env.poll()
    assert rows
    assert (len(again.slots), len(again.obs), len(again.rewards)) == (0, 0, 0)
    assert [*again.joined, *again.ended, *again.episodes, *again.unclaimed] == []
    assert [dict(part) for part in again] == [{}] * 6


@every_adapter
def test_the_first_poll_joins_everybody_with_nothing_earned(adapter: Adapter) -> None:
    base_env, games = adapter.build()
    assert [game.resets for game in games] == [[], [], []]
    ready = base_env.poll()
    assert [len(game.resets) for game in games] == [1, 1, 1]
    assert sorted(join.slot for join in ready.joined) == sorted(ready.slots.tolist())
    assert {ready.seats[join.slot] for join in ready.joined} == {
        (join.env_id, join.agent_id) for join in ready.joined
    }
    assert not ready.ended
    assert not ready.episodes


@every_adapter
def test_infos_belong_to_their_rows(adapter: Adapter) -> None:
    base_env, _ = adapter.build()
    for _ in range(20):
        ready = base_env.poll()
        assert ready.infos is not None
        assert [info["at"] for info in ready.infos] == [int(obs[4]) for obs in ready.obs]
        answer_all(base_env, ready)


@every_adapter
def test_env_steps_are_counted_by_sub_environment(adapter: Adapter) -> None:
    base_env, games = adapter.build()
    before = np.zeros(0, np.int64)
    steps: Counter[int] = Counter()
    ready = base_env.poll()
    for _ in range(POLLS):
        assert len(ready.env_steps) >= len(before)
        assert (ready.env_steps[: len(before)] >= before).all()
        before = ready.env_steps.copy()
        for episode in ready.episodes:
            steps[episode.env_steps] += 1
        # A caller steps its game as soon as it is answered.
        total = sum(game.step_count for game in games)
        answer_all(base_env, ready)
        ready = base_env.poll()
    lengths = {len(episode) - 1 for episode in adapter.script}
    assert set(steps) == lengths
    played = sum(length * count for length, count in steps.items())
    assert before.sum() == played + total


@every_adapter
def test_a_partial_answer_is_an_error_that_names_who_is_missing(adapter: Adapter) -> None:
    base_env, _ = adapter.build(1)
    for _ in range(POLLS):
        ready = base_env.poll()
        if len(ready.slots) > 1:
            break
        answer_all(base_env, ready)
    else:
        assert adapter.solo or "turns" in adapter.name, "two agents never waited together"
        return
    agents = [ready.seats[slot][1] for slot in ready.slots.tolist()]
    with pytest.raises(ContractError, match=f"send_actions: env .*{agents[1]!r}"):
        base_env.send_actions(ready.slots[:1], [1])
    # The refused answer has not spoilt anything.
    answer_all(base_env, ready)
    base_env.poll()


@every_adapter
def test_an_action_for_an_agent_that_does_not_wait_is_an_error_that_names_it(adapter: Adapter) -> None:
    base_env, _ = adapter.build(2)
    ready = base_env.poll()
    actions = nested(ready)
    base_env.send_actions(actions)
    with pytest.raises(ContractError, match="send_actions"):
        base_env.send_actions(actions)
    ready = base_env.poll()
    env_id = ready.seats[int(ready.slots[0])][0]
    stranger = {**nested(ready, [env_id])[env_id], "nobody": 1}
    with pytest.raises(ContractError, match="'nobody'"):
        base_env.send_actions({env_id: stranger})


@pytest.mark.parametrize("adapter", [one for one in ALL_ADAPTERS if one.lockstep], ids=name_of)
def test_sub_environments_that_step_together_are_answered_together(adapter: Adapter) -> None:
    base_env, games = adapter.build(3)
    ready = base_env.poll()
    base_env.send_actions(ready.slots[:1], [1])
    with pytest.raises(ContractError, match=r"\[1, 2\]"):
        base_env.poll()
    base_env.send_actions(ready.slots[1:], [1, 1])
    assert base_env.poll().env_steps.tolist() == [1, 1, 1]
    # The third game's first episode has one step.
    assert [game.step_count for game in games[:2]] == [1, 1]


@pytest.mark.parametrize("adapter", [one for one in ALL_ADAPTERS if not one.lockstep], ids=name_of)
def test_sub_environments_may_be_answered_one_at_a_time(adapter: Adapter) -> None:
    base_env, games = adapter.build(2)
    ready = base_env.poll()
    first = ready.seats[int(ready.slots[0])][0]
    waiting = {slot for slot in ready.slots.tolist() if ready.seats[slot][0] != first}
    for _ in range(12):
        base_env.send_actions(nested(ready, [first]))
        ready = base_env.poll()
        assert not waiting & set(ready.slots.tolist())
        if adapter.kind in ("new id", "external") and len(ready.slots):
            first = ready.seats[int(ready.slots[0])][0]
    assert [game.complaints for game in games] == [[], []]
    assert games[1].episode == 0
    assert games[0].episode > 0


@every_adapter
def test_the_slots_array_is_the_same_object_while_the_same_agents_wait(adapter: Adapter) -> None:
    base_env, _ = adapter.build(1)
    before = base_env.poll()
    answer_all(base_env, before)
    repeats = 0
    for _ in range(POLLS):
        now = base_env.poll()
        # A layout is only ever repeated without anything between if nobody joined or ended.
        if now.slots.tolist() == before.slots.tolist() and len(now.slots):
            assert now.slots is before.slots
            repeats += 1
        answer_all(base_env, now)
        before = now
    assert repeats or "turns" in adapter.name


@every_adapter
def test_every_row_is_in_the_view_of_six_dicts(adapter: Adapter) -> None:
    base_env, _ = adapter.build()
    for _ in range(POLLS):
        ready = base_env.poll()
        obs, rewards, terminateds, truncateds, infos, taken = ready
        check_view(ready, (obs, rewards, terminateds, truncateds, infos))
        assert taken == {}
        answer_all(base_env, ready)


def check_view(ready: Ready, view: tuple[Any, ...]) -> None:
    obs, rewards, terminateds, truncateds, infos = view
    assert set(terminateds) == set(truncateds) == set(obs)
    assert all(ALL in terminateds[env_id] and ALL in truncateds[env_id] for env_id in obs)
    assert all(ALL not in by_agent for part in (obs, rewards, infos) for by_agent in part.values())
    over = {episode.env_id: (episode.terminated, episode.truncated) for episode in ready.episodes}
    for env_id in obs:
        assert (terminateds[env_id][ALL], truncateds[env_id][ALL]) == over.get(env_id, (False, False))
    for row, slot in enumerate(ready.slots.tolist()):
        env_id, agent_id = ready.seats[slot]
        np.testing.assert_array_equal(obs[env_id][agent_id], ready.obs[row])
    assert sum(map(len, obs.values())) == len(ready.slots)
    for end in ready.ended:
        assert terminateds[end.env_id][end.agent_id] == end.terminated
        assert truncateds[end.env_id][end.agent_id] == end.truncated
        np.testing.assert_array_equal(infos[end.env_id][end.agent_id]["final_obs"], end.obs)


@every_adapter
def test_stop_closes_everything_and_may_be_called_twice(adapter: Adapter) -> None:
    base_env, games = adapter.build()
    base_env.poll()
    base_env.stop()
    base_env.stop()
    if adapter.on is None and (adapter.kind in ("gym", "agents") or adapter.lockstep):
        assert [game.closed for game in games] == [1, 1, 1]


@pytest.mark.parametrize("adapter", [one for one in ALL_ADAPTERS if one.kind != "external"], ids=name_of)
def test_sub_environments_and_agents_are_reported(adapter: Adapter) -> None:
    base_env, games = adapter.build(2)
    base_env.poll()
    found = base_env.get_sub_environments()
    assert [getattr(env, "game", env) for env in found] == games
    assert list(base_env.get_sub_environments(as_dict=True)) == [0, 1]
    assert base_env.get_agent_ids() == ({"agent0"} if adapter.solo else set("abcd"))


@every_adapter
def test_a_base_env_in_table_form_is_not_wrapped_again(adapter: Adapter) -> None:
    base_env, _ = adapter.build()
    assert isinstance(base_env, BaseEnv)
    assert base_env.to_base_env() is base_env
