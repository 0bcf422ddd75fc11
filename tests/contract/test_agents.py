"""Agents that come late, pause, die, return, and what they are paid: small scripts with known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv import BaseEnv, ContractError, Ready, to_base_env
from menv.base_env import ALL
from tests.contract.adapters import answer_all
from tests.contract.scripted import Moment, ScriptedEnv, SixDicts, seen
from tests.worlds import like

by_both = pytest.mark.parametrize("own", [False, True], ids=["agents", "own"])


def base_env_of(game: ScriptedEnv, own: bool) -> BaseEnv:
    return to_base_env(SixDicts([game], "now") if own else game)


def play(base_env: BaseEnv) -> list[Ready]:
    """Return the polls of one episode; the last one holds its end, and the next episode's rows."""
    polls: list[Ready] = [base_env.poll()]
    while not polls[-1].episodes:
        answer_all(base_env, polls[-1])
        polls.append(base_env.poll())
    return polls


def rows_of(ready: Ready) -> dict[Any, float]:
    slots = zip(ready.slots.tolist(), ready.rewards, strict=True)
    return {ready.seats[slot][1]: float(reward) for slot, reward in slots}


# For each script: its moments; what the rows of each poll earned; by poll and agent, the end of a life (its reward,
# whether it terminated, and the env step of its final observation); by poll and agent, rewards that no life gets.
CASES: dict[str, Any] = {
    "rewards wait for the next row of their agent": (
        [Moment("a"), Moment("b", {"a": 1}), Moment("b", {"a": 2, "b": 10}), Moment("a", {"a": 4}),
         Moment("", {"a": 3, "b": 20}, over="terminated")],
        [{"a": 0}, {"b": 0}, {"b": 10}, {"a": 7}],
        {(4, "a"): (3, True, None), (4, "b"): (20, True, None)},
        {},
    ),
    "a reward before the first row comes with it": (
        [Moment("a"), Moment("a", {"b": 5}), Moment("ab", {"b": 2}), Moment("ab", over="truncated")],
        [{"a": 0}, {"a": 0}, {"a": 0, "b": 7}],
        {(3, "a"): (0, False, 3), (3, "b"): (0, False, 3)},
        {},
    ),
    "an agent that never acts": (
        [Moment("a"), Moment("a", {"c": 5}), Moment("a", {"c": 2}, over="terminated")],
        [{"a": 0}, {"a": 0}],
        {(2, "a"): (0, True, 2)},
        {(2, "c"): 7},
    ),
    "a reward after the end": (
        [Moment("ab"), Moment("a", {"b": 1}, terminated="b", final="b"), Moment("a", {"b": 8}),
         Moment("a", over="terminated")],
        [{"a": 0, "b": 0}, {"a": 0}, {"a": 0}],
        {(1, "b"): (1, True, 1), (3, "a"): (0, True, 3)},
        {(2, "b"): 8},
    ),
    "ends with the first observation": (
        [Moment("a"), Moment("a", {"b": 6, "d": 5}, terminated="bd", final="bd"), Moment("", over="terminated")],
        [{"a": 0}, {"a": 0}],
        {(2, "a"): (0, True, None)},
        {(1, "b"): 6, (1, "d"): 5},
    ),
    "a flag without an observation": (
        [Moment("ab"), Moment("a", {"b": 3}), Moment("a", {"b": 4}, truncated="b"), Moment("a", over="terminated")],
        [{"a": 0, "b": 0}, {"a": 0}, {"a": 0}],
        {(2, "b"): (7, False, None), (3, "a"): (0, True, 3)},
        {},
    ),
    "a return is a new life": (
        [Moment("ab"), Moment("a", {"b": 1}, terminated="b"), Moment("ab", {"b": 2}), Moment("ab", {"b": 4}),
         Moment("ab", {"b": 8}, over="truncated")],
        [{"a": 0, "b": 0}, {"a": 0}, {"a": 0, "b": 2}, {"a": 0, "b": 4}],
        {(1, "b"): (1, True, None), (4, "a"): (0, False, 4), (4, "b"): (8, False, 4)},
        {},
    ),
    "five returns": (
        [Moment("a"), *[Moment("ab", {"b": 1}), Moment("a", {"b": 1}, truncated="b", final="b")] * 5,
         Moment("a", over="terminated")],
        [{"a": 0}, *[{"a": 0, "b": 1}, {"a": 0}] * 5],
        {**{(poll, "b"): (1, False, poll) for poll in (2, 4, 6, 8, 10)}, (11, "a"): (0, True, 11)},
        {},
    ),
    "own flags go before those of the episode": (
        [Moment("abc"), Moment("abc", terminated="a", truncated="b", over="truncated")],
        [{"a": 0, "b": 0, "c": 0}],
        {(1, "a"): (0, True, 1), (1, "b"): (0, False, 1), (1, "c"): (0, False, 1)},
        {},
    ),
    "an observation with all set is a final one": (
        [Moment("ab"), Moment("a", over="terminated")],
        [{"a": 0, "b": 0}],
        {(1, "a"): (0, True, 1), (1, "b"): (0, True, None)},
        {},
    ),
    "steps without a waiting agent are taken within the poll": (
        [Moment("a"), Moment(), Moment("", {"a": 3}), Moment("a", {"a": 4}), Moment("a", over="truncated")],
        [{"a": 0}, {"a": 7}],
        {(2, "a"): (0, False, 4)},
        {},
    ),
}  # fmt: skip


@by_both
@pytest.mark.parametrize("case", CASES)
def test_agents_are_paid_join_and_end_as_their_script_says(case: str, own: bool) -> None:
    moments, rows, ended, unclaimed = CASES[case]
    polls = play(base_env_of(ScriptedEnv([moments], agents="abc"), own))
    assert [rows_of(ready) for ready in polls[:-1]] == rows
    ends = [(poll, end) for poll, ready in enumerate(polls) for end in ready.ended]
    assert {
        (poll, end.agent_id): (end.reward, end.terminated, None if end.obs is None else seen(end.obs).step)
        for poll, end in ends
    } == ended
    assert all(end.truncated is not end.terminated for _, end in ends)
    found = [
        ((poll, one.agent_id), one.reward) for poll, ready in enumerate(polls) for one in ready.unclaimed
    ]
    assert found == list(unclaimed.items())
    alive: set[Any] = set()
    for ready in polls[:-1]:
        alive -= {end.agent_id for end in ready.ended}
        assert [join.agent_id for join in ready.joined] == [one for one in rows_of(ready) if one not in alive]
        alive |= set(rows_of(ready))
    over = moments[-1].over
    assert [(one.terminated, one.truncated, one.env_steps) for one in polls[-1].episodes] == [
        (over == "terminated", over == "truncated", len(moments) - 1)
    ]


@by_both
def test_pending_rewards_are_reported(own: bool) -> None:
    script = [Moment("ab"), Moment("a", {"b": 3, "c": 4}), Moment("a", over="truncated")]
    base_env = base_env_of(ScriptedEnv([script]), own)
    answer_all(base_env, base_env.poll())
    base_env.poll()
    assert base_env.held_rewards() == {0: {"b": 3.0, "c": 4.0}}


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


GOES_ON = {ALL: False}
BAD_STEPS: dict[str, tuple[Any, str]] = {
    "four values": (({}, {}, GOES_ON, {}), "returned 4 values"),
    "no all": (({}, {}, {}, GOES_ON, {}), "terminateds .*'__all__'"),
    "no all in truncateds": (({}, {}, GOES_ON, {}, {}), "truncateds .*'__all__'"),
    "all in obs": (({ALL: 1}, {}, GOES_ON, GOES_ON, {}), "'__all__' .*obs"),
    "all in rewards": (({}, {ALL: 1}, GOES_ON, GOES_ON, {}), "'__all__' .*rewards"),
    "obs no dict": ((1, {}, GOES_ON, GOES_ON, {}), "obs is int"),
    "infos no dict": (({}, {}, GOES_ON, GOES_ON, None), "infos is NoneType"),
    "reward no number": (({}, {"a": "x"}, GOES_ON, GOES_ON, {}), "the reward of 'a' is str"),
    "a number as text": (({"a": 0}, {"a": "1"}, GOES_ON, GOES_ON, {}), "the reward of 'a' is str"),
    "reward not finite": (({"a": 0}, {"a": np.nan}, GOES_ON, GOES_ON, {}), "the reward of 'a' is nan"),
    "no reward": (({"a": 0}, {"a": None}, GOES_ON, GOES_ON, {}), "the reward of 'a' is NoneType"),
    "no flag": (({"a": 0}, {}, {ALL: None}, GOES_ON, {}), "the flag of '__all__' is NoneType"),
    "no truncation": (({"a": 0}, {}, GOES_ON, {"a": None, ALL: False}, {}), "the flag of 'a' is NoneType"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_broken_step_names_env_step_and_fault(case: str) -> None:
    result, message = BAD_STEPS[case]

    base_env = to_base_env(like(ScriptedEnv, step=lambda self, action_dict: result)([[Moment("a")]]))
    answer_all(base_env, base_env.poll())
    with pytest.raises(ContractError, match=f"env 0 step, env step 1 of the episode: {message}.*; "):
        base_env.poll()


@pytest.mark.parametrize(("polled", "message"), [(({},) * 5, "poll"), (({"a": 1}, *({},) * 5), "env_id")])
def test_a_poll_of_the_wrong_form_names_what_to_return(polled: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        to_base_env(like(SixDicts, poll=lambda self: polled)([ScriptedEnv([[Moment("a")]])], "now")).poll()
