"""Actions that are asked for in one round of the loop: they are read together, and none costs another anything."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.serving.doors import TCP, Door
from tests.serving.served import AGENTS, TWO, Served, obs_of, served
from tests.serving.voices import Voice

TOO_LARGE = [99.0, 0.0, 0.0]


def say_at_once(voice: Voice, door: Door, *said: dict[str, Any] | bytes) -> None:
    """Send several bodies in one go."""
    bodies = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in said]
    voice.client.raw(b"".join(map(door.wrap, bodies)))


def asks(name: str, obs: Any, **more: Any) -> dict[str, Any]:
    return {"type": "GET_ACTION", "episode_id": name, "observation": obs, **more}


def begin(voice: Voice, count: int) -> list[str]:
    """Begin episodes and return their ids."""
    names = [f"e{number}" for number in range(count)]
    for name in names:
        assert voice.ask("START_EPISODE", episode_id=name)["type"] == "EPISODE"
    return names


def heard(voice: Voice, count: int) -> dict[str, Any]:
    """Return so many answers by episode, errors by their code."""
    answers = [voice.hear() for _ in range(count)]
    return {answer.get("episode_id") or answer["code"]: answer for answer in answers}


def test_a_bad_question_among_good_ones_is_refused_alone_and_nothing_of_it_is_taken() -> None:
    with served() as one, one.voice(TCP) as voice:
        with one.sampling():
            names = begin(voice, 8)
            obs = {name: obs_of(number) for number, name in enumerate(names)} | {"e5": TOO_LARGE}
            say_at_once(voice, TCP, *(asks(name, obs[name], seq=0, reward=1.0) for name in names))
            answers = heard(voice, 8)
            assert sorted(answers) == sorted([*(name for name in names if name != "e5"), "out_of_range"])
            assert answers["out_of_range"]["seq"] == 0
            assert one.refused == 1
            # Under the same number, with the same reward: it was not taken the first time.
            assert voice.ask(**kind(asks("e5", obs_of(5), seq=0, reward=1.0)))["type"] == "ACTION"
            for name in names:
                voice.tell("END_EPISODE", episode_id=name, observation=obs_of(1))
            assert all(answer["type"] == "OK" for answer in (voice.hear() for _ in names))
        assert one.paid() == pytest.approx(8.0)


def kind(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the arguments of `Voice.ask`."""
    return {"kind" if key == "type" else key: value for key, value in message.items()}


def test_refusals_come_in_the_order_of_what_is_refused() -> None:
    with served() as one, one.sampling(), one.voice(TCP) as voice:
        begin(voice, 2)
        said = (
            asks("e0", TOO_LARGE),
            {"type": "PING"},
            asks("e1", TOO_LARGE),
            asks("nobody", obs_of(0)),
            asks("e1", [0.0]),
            b"{}",
            asks("e1", TOO_LARGE),
            asks("e0", obs_of(0), reward="much"),
            asks("e0", TOO_LARGE),
            {"type": "LOG_RETURNS", "episode_id": "e0", "reward": 1.0},
        )
        say_at_once(voice, TCP, *said)
        told = [voice.hear() for _ in said]
        assert [answer.get("code", answer["type"]) for answer in told] == [
            "out_of_range", "PONG", "out_of_range", "unknown_episode", "wrong_length", "malformed",
            "out_of_range", "wrong_type", "out_of_range", "OK",
        ]  # fmt: skip


def test_the_same_question_twice_in_one_round_is_answered_twice_and_asked_once() -> None:
    with served() as one, one.voice(TCP) as voice:
        with one.sampling():
            begin(voice, 1)
            said = asks("e0", obs_of(0), seq=0, reward=2.0)
            say_at_once(voice, TCP, said, said)
            first, second = voice.hear(), voice.hear()
            assert first == second
            assert first["type"] == "ACTION"
            assert voice.ask("END_EPISODE", episode_id="e0", observation=obs_of(1))["type"] == "OK"
        assert one.paid() == pytest.approx(2.0)


def calls_of_the_network(one: Served) -> list[int]:
    """Return a list that grows by the number of rows of each call."""
    backend: Any = one.algo.get_policy().networks.backend  # type: ignore[attr-defined]
    decide, calls = backend.decide, list[int]()

    def counted(obs: Any, *rest: Any) -> Any:
        calls.append(len(obs))
        return decide(obs, *rest)

    backend.decide = counted
    return calls


def test_what_is_asked_in_one_round_is_decided_together() -> None:
    with served() as one:
        calls = calls_of_the_network(one)
        with one.sampling(), one.voice(TCP) as voice:
            names = begin(voice, 16)
            say_at_once(voice, TCP, *(asks(name, obs_of(number)) for number, name in enumerate(names)))
            assert sorted(heard(voice, 16)) == sorted(names)
        assert sum(calls) == 16
        assert len(calls) <= 4


def test_as_many_questions_as_were_answered_last_are_waited_for_and_decided_in_one_call() -> None:
    with served(settings={"batch_wait": 2.0}) as one:
        calls = calls_of_the_network(one)
        with one.sampling(), one.voice() as voice:
            names = begin(voice, 3)
            while calls[-1:] != [3]:
                say_at_once(voice, TCP, *(asks(name, obs_of(0)) for name in names))
                assert sorted(heard(voice, 3)) == names
            for name in names:
                time.sleep(0.05)
                voice.tell(**kind(asks(name, obs_of(1))))
            assert sorted(heard(voice, 3)) == names
        assert calls[-2:] == [3, 3]


def test_a_bad_question_of_several_agents_costs_only_its_own_episode() -> None:
    with served(**TWO) as one, one.sampling(), one.voice() as voice:
        begin(voice, 3)
        good = {"ann": [0.1, 0.2], "bob": [0.1, 0.2, 0.3]}
        say_at_once(voice, TCP, asks("e0", good), asks("e1", {**good, "bob": [0.1]}), asks("e2", good))
        answers = heard(voice, 3)
        assert sorted(answers) == ["e0", "e2", "wrong_length"]
        assert answers["e0"]["action"].keys() == AGENTS.keys()
