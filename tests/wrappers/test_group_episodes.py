"""Members of a group die, come late and return; when the group ends, and what is told of it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import to_base_env
from menv.base_env import ALL
from menv.episode import MEMBER_REWARDS
from menv.multi_agent_env import AgentDict
from tests.contract.scripted import Moment, ScriptedEnv, seen
from tests.worlds import Several, like
from tests.wrappers.groups import BOTH, DEATH, playing, steps_of


def absent_in(obs: Any) -> frozenset[int]:
    """Return the places of absent members; a group without any observes a plain tuple."""
    return getattr(obs, "absent", frozenset())


def test_a_member_that_died_is_all_zeros_while_its_group_continues() -> None:
    game = ScriptedEnv([DEATH], agents="abc")
    env = game.with_agent_groups(BOTH)
    obs, infos = env.reset()
    assert infos["ab"]["acting"] == ["a", "b"]
    assert absent_in(obs["ab"]) == frozenset()
    obs, rewards, terminateds, _, infos = env.step({"ab": (0, 0)})
    assert (rewards, terminateds) == ({"ab": 1.0}, {ALL: False})
    assert infos["ab"]["acting"] == ["b"]
    for step, paid in ((1, None), (2, 6.0)):
        if paid is not None:
            obs, rewards, _, _, infos = env.step({"ab": (0, 0)})
            assert rewards == {"ab": paid}
            assert infos["ab"]["individual_rewards"] == {"a": 2.0, "b": 4.0}
        assert obs["ab"][0].tolist() == [0.0] * 6
        assert seen(obs["ab"][1]).step == step
        assert absent_in(obs["ab"]) == {0}
        assert env.observation_space_contains(obs)
        # What is written there is not shown again.
        obs["ab"][0][:] = 9
    assert game.complaints == []


def test_a_group_ends_with_its_last_member_and_is_truncated_if_one_member_was() -> None:
    env = playing(*DEATH)
    env.reset()
    env.step({"ab": (0, 0)})
    env.step({"ab": (0, 0)})
    obs, rewards, terminateds, truncateds, infos = env.step({"ab": (0, 0)})
    assert obs["ab"][0].tolist() == [0.0] * 6
    assert seen(obs["ab"][1]).step == 3
    assert rewards == {"ab": 8.0}
    assert (terminateds["ab"], truncateds["ab"], truncateds[ALL]) == (False, True, False)
    assert infos["ab"]["individual_rewards"] == {"b": 8.0}
    assert env.agents == []


def test_a_member_that_has_not_appeared_is_a_blank_and_is_sent_no_action() -> None:
    game = ScriptedEnv([[Moment("a"), Moment("ab"), Moment("ab")]], agents="ab")
    env = game.with_agent_groups(BOTH)
    obs, infos = env.reset()
    assert obs["ab"][1].tolist() == [0.0] * 6
    assert infos["ab"]["acting"] == ["a"]
    assert env.observation_space_contains(obs)
    obs, _, _, _, infos = env.step({"ab": (1, 1)})
    assert steps_of(obs["ab"]) == [1, 1]
    assert infos["ab"]["acting"] == ["a", "b"]
    env.step({"ab": (1, 1)})
    assert game.complaints == []


# "a" ends after the first step, "c" comes after it; everybody is shown the state of the whole, the step.
Fading = like(
    Several,
    possible_agents=tuple("abc"),
    length=3,
    observation_space=gym.spaces.Dict(dict.fromkeys(("obs", "state"), gym.spaces.Box(0.0, 9.0, (1,)))),
    shown=lambda self: ("ab", "b", "bc", "bc")[self.at],
    see=lambda self, agent: dict.fromkeys(("obs", "state"), np.full(1, self.at + 1, np.float32)),
    pay=lambda self, actions: {},
    dead=lambda self, actions: "a" if self.at == 1 else "",
)


def test_the_global_state_continues_for_members_that_are_absent() -> None:
    env = Fading().with_agent_groups({"all": ["a", "b", "c"]})

    def told(obs: AgentDict) -> list[list[float]]:
        return [[float(part[name][0]) for part in obs["all"]] for name in ("obs", "state")]

    obs, _ = env.reset()
    assert told(obs) == [[1, 1, 0], [1, 1, 1]]
    assert told(env.step({"all": (0, 0, 0)})[0]) == [[0, 2, 0], [2, 2, 2]]
    assert told(env.step({"all": (0, 0, 0)})[0]) == [[0, 3, 3], [3, 3, 3]]
    # What was shown before has not changed since.
    assert told(obs) == [[1, 1, 0], [1, 1, 1]]


def test_the_blank_of_a_nested_space_is_one_of_its_elements_and_allows_one_action() -> None:
    space = gym.spaces.Dict({
        "action_mask": gym.spaces.Box(0, 1, (3,), np.int8),
        "observation": gym.spaces.Tuple([gym.spaces.Discrete(3, start=2), gym.spaces.Box(1.0, 2.0, (2,))]),
        "bits": gym.spaces.MultiBinary(2), "digits": gym.spaces.MultiDiscrete([2, 3]),
    })  # fmt: skip
    game = ScriptedEnv([[Moment("a")]], agents="ab")
    game.observation_space = space
    obs, _ = game.with_agent_groups(BOTH).reset()
    assert space.contains(obs["ab"][1])
    assert obs["ab"][1]["action_mask"].tolist() == [1, 0, 0]
    assert obs["ab"][1]["observation"][1].tolist() == [1.0, 1.0]


def test_a_member_that_returns_continues_in_the_group() -> None:
    env = playing(Moment("ab"), Moment("b", terminated="a"), Moment("ab"), Moment("ab"))
    env.reset()
    env.step({"ab": (0, 0)})
    obs, _, terminateds, _, infos = env.step({"ab": (0, 0)})
    assert steps_of(obs["ab"]) == [2, 2]
    assert infos["ab"]["acting"] == ["a", "b"]
    assert "ab" not in terminateds


def test_a_member_that_returns_after_the_end_of_the_group_begins_a_new_life_of_it() -> None:
    env = playing(
        Moment("abc"),
        Moment("c", {"a": 1}, terminated="a", truncated="b", final="ab"),
        Moment("c", {"a": 2}),
        Moment("ac", {"a": 4}),
        Moment("c", {"a": 8}, terminated="a"),
    )
    env.reset()
    assert env.step({"ab": (0, 0), "c": 0})[3]["ab"] is True
    obs, rewards, terminateds, truncateds, _ = env.step({"c": 0})
    assert ("ab" in obs, rewards, terminateds, truncateds) == (False, {"ab": 2.0}, {ALL: False}, {ALL: False})
    obs, _, _, _, infos = env.step({"c": 0})
    assert (seen(obs["ab"][0]).step, absent_in(obs["ab"])) == (3, frozenset({1}))
    # What was paid between the two lives belongs to neither.
    assert infos["ab"]["individual_rewards"] == {"a": 4.0}
    _, _, terminateds, truncateds, _ = env.step({"ab": (0, 0), "c": 0})
    assert (terminateds["ab"], truncateds["ab"]) == (True, False)


def test_a_group_whose_first_observations_are_its_last_is_reported_once() -> None:
    env = playing(
        Moment("c"), Moment("c", {"a": 3}, terminated="ab", final="ab"), Moment("c", terminated="ab")
    )
    env.reset()
    obs, rewards, terminateds, _, _ = env.step({"c": 0})
    assert (steps_of(obs["ab"]), rewards, terminateds["ab"]) == ([1, 1], {"ab": 3.0}, True)
    obs, _, terminateds, _, _ = env.step({"c": 0})
    assert "ab" not in obs
    assert terminateds == {ALL: False}


def random_episode(rng: np.random.Generator) -> list[Moment]:
    """Return an episode in which members come late, die, return and are paid at any time, yet act together."""
    alive = set("ab")
    moments = [Moment("ab" if rng.random() < 0.7 else "a")]
    alive = set(moments[0].shown)
    for _ in range(int(rng.integers(1, 8))):
        dying = {agent for agent in alive if rng.random() < 0.25}
        alive -= dying
        alive |= {agent for agent in "ab" if agent not in dying and rng.random() < 0.2}
        shown = "".join(sorted(alive)) if rng.random() < 0.8 else ""
        alive = set(shown) or alive & set("".join(moment.shown for moment in moments))
        cut = "".join(agent for agent in sorted(dying) if rng.random() < 0.5)
        pays = {agent: float(rng.integers(-1, 3)) for agent in "abc" if rng.random() < 0.5}
        final = "".join(agent for agent in sorted(dying) if rng.random() < 0.6)
        ends = "".join(sorted(dying - set(cut)))
        moments.append(Moment(shown + "c", pays, ends, cut, final))
    over = ["terminated", "truncated"][int(rng.integers(2))]
    return [*moments, Moment("c", {"a": 1.0, "b": 2.0}, over=over)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_members_do_nothing_that_was_paid_is_lost_and_only_those_asked_act(seed: int) -> None:
    rng = np.random.default_rng(seed)
    game = ScriptedEnv([random_episode(rng) for _ in range(10)], agents="abc")
    base_env = to_base_env(game.with_agent_groups(BOTH))
    released, told = 0.0, 0.0
    lives: dict[int, float] = {}
    while len(game.resets) < 20:
        ready = base_env.poll()
        parts = (ready.rewards, [end.reward for end in ready.ended], [one.reward for one in ready.unclaimed])
        released += sum(sum(part) for part in parts)
        assert ready.infos is not None
        rows = [
            (reward, info)
            for reward, info in zip(ready.rewards, ready.infos, strict=True)
            if "acting" in info
        ]
        rows += [(end.reward, end.info) for end in ready.ended if "acting" in end.info]
        for reward, info in rows:
            assert sum(info["individual_rewards"].values()) == reward
        told += len(rows)
        for end in ready.ended:
            lived = lives.pop(end.slot) + end.reward
            if end.agent_id == "ab":
                assert sum(end.info[MEMBER_REWARDS].values()) == lived
        for slot, reward in zip(ready.slots.tolist(), ready.rewards.tolist(), strict=True):
            lives[slot] = lives.get(slot, 0.0) + reward
        base_env.send_actions(
            ready.slots, [(0, 0) if ready.seats[slot][1] == "ab" else 0 for slot in ready.slots]
        )
    held = sum(sum(by_agent.values()) for by_agent in base_env.held_rewards().values())
    assert game.complaints == []
    assert told > 20
    assert released + held == sum(game.paid.values())
