"""Actions that are asked for in one round of the loop: they are read together, and none costs another anything."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.serving.doors import TCP, Door
from tests.serving.served import Served, obs_of, served
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


def calls_of_the_network(one: Served) -> list[int]:
    """Return a list that grows by the number of rows of each call."""
    backend: Any = one.algo.get_policy().networks.backend  # type: ignore[attr-defined]
    decide, calls = backend.decide, list[int]()

    def counted(obs: Any, *rest: Any) -> Any:
        calls.append(len(obs))
        return decide(obs, *rest)

    backend.decide = counted
    return calls


def test_as_many_questions_as_were_answered_last_are_waited_for_and_decided_in_one_call() -> None:
    """What is asked in one round of the loop is decided together."""
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
