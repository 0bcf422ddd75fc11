"""Episodes of several agents that clients play by themselves, and who answers for whom in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.serving import RLlinkInput
from tests.serving.served import served, settled
from tests.serving.test_interactive import TWO
from tests.serving.voices import episode

both_dialects = pytest.mark.parametrize("msgpack", [False, True], ids=["json", "msgpack"])


def member(width: int, steps: int, begin: int = 0, end: str = "", **more: Any) -> Any:
    numbers = range(begin, begin + steps + 1)
    return episode(
        [[number % 10 / 10] * width for number in numbers], [number % 3 for number in numbers[:-1]],
        [float(number) for number in numbers[:-1]], end, **more,
    )  # fmt: skip


def together(name: str, agents: dict[str, Any], t: int = 0, end: str = "") -> dict[str, Any]:
    return {
        "id": name, "t": t, "agents": agents,
        "is_terminated": end == "terminated", "is_truncated": end == "truncated",
    }  # fmt: skip


@both_dialects
def test_agents_that_end_at_different_times_reach_the_batches_of_their_policies(msgpack: bool) -> None:
    agents = {"ann": member(2, 40, end="terminated"), "bob": member(3, 35, end="truncated")}
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice(msgpack=msgpack) as voice:
            voice.bring(together("e", agents, end="terminated"))
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.paid() == sum(range(40)) + sum(range(35))
        for name, policy in (("ann", "for_ann"), ("bob", "for_bob")):
            sent = agents[name]
            np.testing.assert_array_equal(one.column("obs", policy), np.array(sent["obs"][:-1], np.float32))
            np.testing.assert_array_equal(one.column("actions", policy), sent["actions"])
            np.testing.assert_array_equal(
                one.column("rewards", policy), np.array(sent["rewards"], np.float32)
            )
        assert one.column("terminateds", "for_ann").tolist() == [False] * 39 + [True]
        assert one.column("truncateds", "for_bob").tolist() == [False] * 34 + [True]
        assert one.summary()["hist_stats"]["episode_reward"] == [sum(range(40)) + sum(range(35))]


def test_each_agent_counts_its_own_steps_over_chunks() -> None:
    first = together("e", {"ann": member(2, 10), "bob": member(3, 4)})
    second = together("e", {"ann": member(2, 25, begin=10, end="terminated", t=10)}, t=10)
    third = together("e", {"bob": member(3, 30, begin=4, end="terminated", t=4)}, t=35, end="terminated")
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            session = voice.greet()
            voice.bring(first, first)
            voice.bring(second)
            assert voice.ask("PING") == {"type": "PONG"}
            standing = voice.greet(session=session["session"])["resume"]["e"]["agents"]
            assert standing == {"ann": 35, "bob": 4}
            voice.bring(second, third, third)
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.paid() == sum(range(35)) + sum(range(34))
        assert one.status["steps_sent_again"] == 14 + 25 + 30


def test_the_end_of_a_life_that_comes_again_does_not_end_the_next_one() -> None:
    first = together("e", {"ann": member(2, 5, end="terminated")})
    second = together("e", {"ann": member(2, 3, begin=5, t=5), "bob": member(3, 2)}, t=5)
    last = together("e", {"ann": member(2, 30, begin=8, t=8)}, t=8, end="truncated")
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            voice.bring(first, second)
            voice.bring(first, second)
            voice.bring(last)
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.paid() == sum(range(38)) + 1
        assert one.column("terminateds", "for_ann").nonzero()[0].tolist() == [4]
        assert one.column("t", "for_ann").tolist() == [*range(5), *range(33)]


@pytest.mark.parametrize("size", [30, 4_000], ids=["read here", "read beside"])
def test_what_no_action_can_own_counts_once_and_with_the_end(size: int) -> None:
    paid = {"unclaimed": {"bob": 1_000.5, "ann": -0.5}}
    first = together("e", {"ann": member(2, size)}) | paid
    last = together("e", {"ann": member(2, 5, begin=size, t=size, end="terminated")}, end="terminated")
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            for wrong, code in (
                (3.0, "wrong_type"),
                ({"bob": "x"}, "wrong_type"),
                ({"bob": 1e300}, "out_of_range"),
                ({"bob": 1.0, "nobody": 1.0}, "unknown_id"),
            ):
                assert voice.refused("EPISODES", episodes=[last | {"unclaimed": wrong}]) == code
            voice.bring(first)
            voice.bring(last | paid, last | paid)
            voice.bring(
                together("f", {"ann": member(2, 1, end="terminated")}, end="terminated") | {"unclaimed": None}
            )
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.paid() == 1_000 + sum(range(size + 5))
        returns = one.summary()["hist_stats"]["episode_reward"]
        assert sorted(returns) == [0.0, 1_000 + sum(range(size + 5))]


def test_what_is_paid_in_an_episode_in_which_nobody_acts_is_unclaimed() -> None:
    paid = {"unclaimed": {"bob": 2.5, "ann": -0.5}}
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            voice.bring(together("e", {}, end="terminated") | paid, together("f", {}, end="terminated"))
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.paid() == 2.0
        assert one.summary()["episodes_total"] == 0


@both_dialects
def test_rows_of_a_client_that_tells_no_times_lie_at_the_end_of_their_own_chunk(msgpack: bool) -> None:
    first = {"ann": member(2, 4), "bob": member(3, 2)}
    second = {"ann": member(2, 2, begin=4, t=4), "bob": member(3, 3, begin=2, t=2)}
    with served(kind=RLlinkInput, **TWO, critic_obs="all_agents", rollout_fragment_length=1) as one:
        with one.sampling(), one.voice(msgpack=msgpack) as voice:
            # Both may come with one poll.
            voice.bring(together("e", first), together("e", second, end="terminated"))
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.column("env_t", "for_ann").tolist() == [0, 1, 2, 3, 4, 6]
        assert one.column("env_t", "for_bob").tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(("told", "length"), [(None, 13), (0, 5), (14, 19), (15, 20), (2**62, 20)])
def test_env_steps_of_agents_that_take_turns_are_told(told: int | None, length: int) -> None:
    agents = {"ann": member(2, 10), "bob": member(3, 5)}
    last = {
        "ann": member(2, 3, begin=10, t=10, end="terminated"),
        "bob": member(3, 2, begin=5, t=5, end="terminated"),
    }
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            first = together("e", agents) | ({} if told is None else {"env_steps": told})
            voice.bring(first, first)
            voice.bring(together("e", last, end="terminated") | ({} if told is None else {"env_steps": 5}))
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.summary()["hist_stats"]["episode_lengths"] == [length if told is not None else 13]


def test_a_gap_of_one_agent_refuses_the_whole_chunk_and_nothing_is_lost() -> None:
    first = together("e", {"ann": member(2, 10), "bob": member(3, 10)})
    gap = together("e", {"ann": member(2, 10, begin=10, t=10), "bob": member(3, 5, begin=15, t=15)}, t=10)
    whole = together(
        "e",
        {
            "ann": member(2, 25, begin=10, t=10, end="terminated"),
            "bob": member(3, 25, begin=10, t=10, end="terminated"),
        },
        t=10, end="terminated",
    )  # fmt: skip
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            voice.bring(first)
            assert voice.refused("EPISODES", episodes=[gap]) == "wrong_order"
            voice.bring(whole)
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.paid() == 2 * sum(range(35))


def test_who_answers_is_told_before_and_kept_through_the_episode() -> None:
    asked: list[Any] = []

    def mapping(agent_id: Any, episode: Any, worker: Any = None, **_: Any) -> str:
        asked.append(agent_id)
        return "even" if len(asked) % 2 else "odd"

    space = TWO["observation_space"]["ann"]
    config = {
        "observation_space": {"ann": space, "bob": space}, "action_space": TWO["action_space"],
        "multiagent": {"policies": {"even", "odd"}, "policy_mapping_fn": mapping},
    }  # fmt: skip
    with served(kind=RLlinkInput, **config) as one:
        with one.sampling(), one.voice() as voice:
            told = voice.ask("GET_POLICIES", episode_id="e", agent_ids=["ann", "bob"])
            assert told["type"] == "POLICIES"
            assert set(told["policy_ids"].values()) == {"even", "odd"}
            assert voice.ask("GET_POLICIES", episode_id="e", agent_ids=["bob", "ann"]) == told
            asked.append("somebody in between")
            agents = {"ann": member(2, 40, end="terminated"), "bob": member(2, 36, end="terminated")}
            voice.bring(together("e", agents, end="terminated"))
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        one.paid()
        lengths = {"ann": 40, "bob": 36}
        for agent, policy in told["policy_ids"].items():
            assert len(one.column("obs", policy)) == lengths[agent]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (member(2, 5, end="terminated"), "malformed"),
        ({**together("e", {"ann": member(2, 5)}), "id": None}, "malformed"),
        (together("e", {"carl": member(2, 5)}), "unknown_id"),
        (together("e", {"ann": member(3, 5)}), "wrong_length"),
        (together("e", {"ann": member(2, 5), "bob": member(2, 5)}), "wrong_length"),
    ],
)
def test_episodes_of_another_kind_are_refused(wrong: Any, code: str) -> None:
    with served(kind=RLlinkInput, **TWO) as one, one.voice() as voice:
        assert voice.refused("EPISODES", episodes=[wrong]) == code
        assert one.status["open_episodes"] == 0
