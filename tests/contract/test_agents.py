"""Agents that come late, pause, die, return, and what they are paid: small scripts with known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv import to_base_env
from menv.base_env import ALL, BaseEnv, Ready
from menv.errors import ContractError
from tests.contract.adapters import answer_all, held
from tests.contract.scripted import Moment, ScriptedEnv, SixDicts, seen

by_both = pytest.mark.parametrize("own", [False, True], ids=["agents", "own"])


def play(moments: list[Moment], own: bool) -> tuple[BaseEnv, list[Ready]]:
    """Return the polls of one episode; the last one holds its end, and the next episode's rows."""
    game = ScriptedEnv([moments])
    base_env = to_base_env(SixDicts([game], "now") if own else game)
    polls: list[Ready] = []
    while not polls or not polls[-1].episodes:
        polls.append(base_env.poll())
        if not polls[-1].episodes:
            answer_all(base_env, polls[-1])
    return base_env, polls


def rows(ready: Ready) -> dict[Any, float]:
    return {
        ready.seats[slot][1]: float(reward)
        for slot, reward in zip(ready.slots.tolist(), ready.rewards, strict=True)
    }


def ends(ready: Ready) -> dict[Any, tuple[float, bool, bool]]:
    return {end.agent_id: (end.reward, end.terminated, end.truncated) for end in ready.ended}


def unclaimed(polls: list[Ready]) -> list[tuple[Any, float]]:
    return [(one.agent_id, one.reward) for ready in polls for one in ready.unclaimed]


@by_both
def test_rewards_wait_for_the_next_row_of_their_agent(own: bool) -> None:
    _, polls = play(
        [
            Moment("a"),
            Moment("b", {"a": 1}),
            Moment("b", {"a": 2, "b": 10}),
            Moment("a", {"a": 4}),
            Moment("", {"a": 3, "b": 20}, over="terminated"),
        ],
        own,
    )
    assert [rows(ready) for ready in polls[:4]] == [{"a": 0.0}, {"b": 0.0}, {"b": 10.0}, {"a": 7.0}]
    assert ends(polls[4]) == {"a": (3.0, True, False), "b": (20.0, True, False)}
    assert unclaimed(polls) == []


@by_both
def test_a_reward_before_the_first_row_comes_with_it(own: bool) -> None:
    _, polls = play(
        [Moment("a"), Moment("a", {"b": 5}), Moment("ab", {"b": 2}), Moment("ab", over="truncated")], own
    )
    assert rows(polls[2]) == {"a": 0.0, "b": 7.0}


@by_both
def test_a_reward_for_an_agent_that_never_acts_is_unclaimed_at_the_end(own: bool) -> None:
    _, polls = play([Moment("a"), Moment("a", {"d": 5}), Moment("a", {"d": 2}, over="terminated")], own)
    assert unclaimed(polls) == [("d", 7.0)]
    assert [ready.unclaimed for ready in polls[:2]] == [[], []]


@by_both
def test_a_reward_after_the_end_is_unclaimed_at_once(own: bool) -> None:
    _, polls = play(
        [
            Moment("ab"),
            Moment("a", {"b": 1}, terminated="b", final="b"),
            Moment("a", {"b": 8}),
            Moment("a", over="terminated"),
        ],
        own,
    )
    assert ends(polls[1]) == {"b": (1.0, True, False)}
    assert unclaimed(polls) == [("b", 8.0)]
    assert unclaimed(polls[:3]) == [("b", 8.0)]


@by_both
def test_an_agent_that_ends_with_its_first_observation_never_acts_and_its_reward_is_unclaimed(
    own: bool,
) -> None:
    _, polls = play(
        [Moment("a"), Moment("a", {"b": 6}, terminated="b", final="b"), Moment("a", over="terminated")], own
    )
    assert rows(polls[1]) == {"a": 0.0}
    assert "b" not in ends(polls[1])
    assert unclaimed(polls) == [("b", 6.0)]


@by_both
def test_a_flag_without_an_observation_ends_the_life_in_that_poll(own: bool) -> None:
    _, polls = play(
        [
            Moment("ab"),
            Moment("a", {"b": 3}),
            Moment("a", {"b": 4}, truncated="b"),
            Moment("a", over="terminated"),
        ],
        own,
    )
    (end,) = polls[2].ended
    assert (end.agent_id, end.reward, end.terminated, end.truncated, end.obs) == ("b", 7.0, False, True, None)


@by_both
def test_a_returning_agent_is_a_new_life_with_a_new_join(own: bool) -> None:
    _, polls = play(
        [
            Moment("ab"),
            Moment("a", {"b": 1}, terminated="b"),
            Moment("ab", {"b": 2}),
            Moment("ab", {"b": 4}),
            Moment("ab", {"b": 8}, over="truncated"),
        ],
        own,
    )
    assert [[join.agent_id for join in ready.joined] for ready in polls[:4]] == [["a", "b"], [], ["b"], []]
    assert ends(polls[1])["b"] == (1.0, True, False)
    assert rows(polls[2])["b"] == 2.0
    assert rows(polls[3])["b"] == 4.0
    assert ends(polls[4])["b"] == (8.0, False, True)
    assert unclaimed(polls) == []


@by_both
def test_an_agent_may_end_and_return_in_the_same_episode_many_times(own: bool) -> None:
    moments = [Moment("a")]
    for _ in range(5):
        moments += [Moment("ab", {"b": 1}), Moment("a", {"b": 1}, truncated="b", final="b")]
    _, polls = play([*moments, Moment("a", over="terminated")], own)
    assert sum(len(ready.joined) for ready in polls[:-1]) == 6
    assert [end.reward for ready in polls[:-1] for end in ready.ended] == [1.0] * 5


@by_both
def test_own_flags_decide_before_those_of_the_episode(own: bool) -> None:
    _, polls = play([Moment("abc"), Moment("abc", terminated="a", truncated="b", over="truncated")], own)
    assert ends(polls[1]) == {"a": (0.0, True, False), "b": (0.0, False, True), "c": (0.0, False, True)}
    assert [(one.terminated, one.truncated, one.env_steps) for one in polls[1].episodes] == [(False, True, 1)]


@by_both
def test_an_observation_with_all_set_is_a_final_one(own: bool) -> None:
    _, polls = play([Moment("ab"), Moment("a", over="terminated")], own)
    final = {end.agent_id: end.obs for end in polls[1].ended}
    assert seen(final["a"]).step == 1
    assert final["b"] is None


@by_both
def test_steps_without_a_waiting_agent_are_taken_within_the_poll_and_counted(own: bool) -> None:
    base_env, polls = play(
        [Moment("a"), Moment(), Moment("", {"a": 3}), Moment("a", {"a": 4}), Moment("a", over="truncated")],
        own,
    )
    assert rows(polls[1]) == {"a": 7.0}
    assert polls[1].env_steps.tolist() == [3] or polls[1].env_steps is polls[2].env_steps
    assert polls[2].episodes[0].env_steps == 4
    assert base_env.get_sub_environments()


@by_both
def test_rewards_that_wait_are_told(own: bool) -> None:
    game = ScriptedEnv([[Moment("ab"), Moment("a", {"b": 3, "c": 4}), Moment("a", over="truncated")]])
    base_env = to_base_env(SixDicts([game], "now") if own else game)
    answer_all(base_env, base_env.poll())
    base_env.poll()
    assert held(base_env) == {"b": 3, "c": 4}
    assert base_env.held_rewards() == {0: {"b": 3.0, "c": 4.0}}


def test_all_agents_done_without_all_goes_on_and_is_an_error_after_a_thousand_empty_steps() -> None:
    class Endless(ScriptedEnv):
        def step(self, action_dict: Any) -> Any:
            done = dict.fromkeys("ab", True)
            return {}, {"a": 1.0}, {ALL: False, **done}, {ALL: False}, {}

    base_env = to_base_env(Endless([[Moment("ab")]]))
    answer_all(base_env, base_env.poll())
    with pytest.raises(ContractError, match='end the episode with "__all__" once all agents are gone'):
        base_env.poll()


def test_slots_of_a_life_are_kept_until_it_ends_and_arrays_stay_short() -> None:
    """Options with one-shot ids (a hierarchical environment) do not use up ever more slots."""

    class Options(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__([[Moment("a")]])
            self.possible_agents = []

        def step(self, action_dict: Any) -> Any:
            self.step_count += 1
            old, new = f"option_{self.step_count - 1}", f"option_{self.step_count}"
            gone = {old: True} if self.step_count > 1 else {}
            obs = {"a": np.zeros(6, np.float32), new: np.zeros(6, np.float32)}
            over = self.step_count % 3000 == 0
            return obs, {new: 1.0}, {ALL: over, **gone}, {ALL: False}, {}

    base_env = to_base_env(Options())
    highest = 0
    for _ in range(4000):
        ready = base_env.poll()
        highest = max(highest, int(ready.slots.max()))
        answer_all(base_env, ready)
    assert highest < 1000


def test_hundreds_of_agents_that_the_environment_does_not_list_are_there_again_in_the_next_episode() -> None:
    agents = [f"agent{number}" for number in range(300)]

    class Crowd(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__([[Moment("a")]])
            self.possible_agents = []

        def reset(self, **kwargs: Any) -> Any:
            return {agent: np.zeros(6, np.float32) for agent in agents}, {}

        def step(self, action_dict: Any) -> Any:
            return self.reset()[0], dict.fromkeys(agents, 1.0), {ALL: True}, {ALL: False}, {}

    base_env = to_base_env(Crowd())
    for _ in range(3):
        ready = base_env.poll()
        assert [ready.seats[slot][1] for slot in ready.slots.tolist()] == agents
        answer_all(base_env, ready)


BAD_STEPS: dict[str, tuple[Any, str]] = {
    "four values": (
        ({}, {}, {ALL: False}, {}),
        r"returned 4 values, expected \(obs, rewards, terminateds, truncateds",
    ),
    "no all": (({}, {}, {}, {ALL: False}, {}), "terminateds has no '__all__', expected"),
    "no all in truncateds": (({}, {}, {ALL: False}, {}, {}), "truncateds has no '__all__', expected"),
    "all in obs": (({ALL: 1}, {}, {ALL: False}, {ALL: False}, {}), "'__all__' is among obs or rewards"),
    "all in rewards": (({}, {ALL: 1}, {ALL: False}, {ALL: False}, {}), "'__all__' is among obs or rewards"),
    "obs no dict": ((1, {}, {ALL: False}, {ALL: False}, {}), "obs is int, expected a dict keyed by agent id"),
    "infos no dict": (({}, {}, {ALL: False}, {ALL: False}, None), "infos is NoneType, expected a dict"),
    "reward no number": (
        ({}, {"a": "x"}, {ALL: False}, {ALL: False}, {}),
        "the reward of 'a' is str, expected a number",
    ),
    "a number as text": (
        ({"a": 0}, {"a": "1"}, {ALL: False}, {ALL: False}, {}),
        "the reward of 'a' is str, expected a number",
    ),
    "reward not finite": (
        ({"a": 0}, {"a": float("nan")}, {ALL: False}, {ALL: False}, {}),
        "the reward of 'a' is nan, expected a finite number",
    ),
    "a flag of nothing": (
        ({"a": 0}, {}, {ALL: None}, {ALL: False}, {}),
        "the flag of '__all__' is NoneType, expected True or False",
    ),
    "no truncation": (
        ({"a": 0}, {}, {"a": False, ALL: False}, {"a": None, ALL: False}, {}),
        "the flag of 'a' is NoneType, expected True or False",
    ),
    "no reward": (
        ({"a": 0}, {"a": None}, {ALL: False}, {ALL: False}, {}),
        "the reward of 'a' is NoneType, expected a number",
    ),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_broken_step_names_env_step_and_fault(case: str) -> None:
    result, message = BAD_STEPS[case]

    class Broken(ScriptedEnv):
        def step(self, action_dict: Any) -> Any:
            return result

    base_env = to_base_env(Broken([[Moment("a")]]))
    answer_all(base_env, base_env.poll())
    with pytest.raises(ContractError, match=f"env 0 step, env step 1 of the episode: {message}.*; "):
        base_env.poll()


@pytest.mark.parametrize("result", [{"a": 1}, (1, 2, 3), None])
def test_a_reset_with_another_number_of_values_names_the_right_one(result: Any) -> None:
    class Broken(ScriptedEnv):
        def reset(self, **kwargs: Any) -> Any:
            return result

    with pytest.raises(ContractError, match=r"env 0 reset: returned .*, expected \(obs, info\); return both"):
        to_base_env(Broken([[Moment("a")]])).poll()


def test_a_poll_of_five_values_is_told_that_dones_were_split() -> None:
    class Old(SixDicts):
        def poll(self) -> Any:  # type: ignore[override]
            return super().poll()[:5]

    with pytest.raises(
        ContractError, match=r"Old.poll: returned 5 values, expected six nested dicts .*split the old"
    ):
        to_base_env(Old([ScriptedEnv([[Moment("a")]])], "now")).poll()


def test_six_flat_dicts_are_told_how_to_be_keyed() -> None:
    class Flat(SixDicts):
        def poll(self) -> Any:  # type: ignore[override]
            return {"a": 1}, {}, {}, {}, {}, {}

    with pytest.raises(
        ContractError, match=r"expected \{env_id: \{agent_id: value\}\}; key by sub-environment first"
    ):
        to_base_env(Flat([ScriptedEnv([[Moment("a")]])], "now")).poll()


@by_both
def test_a_stranger_that_appears_with_its_last_observation_never_acts_and_its_reward_is_unclaimed(
    own: bool,
) -> None:
    script = [
        Moment("a"),
        Moment("a", {"a": 1, "d": 5}, terminated="d", final="d"),
        Moment("", over="terminated"),
    ]
    game = ScriptedEnv([script], agents="abc")
    base_env = to_base_env(SixDicts([game], "now") if own else game)
    polls = [base_env.poll()]
    while not polls[-1].episodes:
        answer_all(base_env, polls[-1])
        polls.append(base_env.poll())
    assert unclaimed(polls) == [("d", 5.0)]
    assert set(ends(polls[-1])) == {"a"}
