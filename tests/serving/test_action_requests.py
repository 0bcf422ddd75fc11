"""Actions that are asked for in one round of the loop: they are read together, and none costs another anything."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.serving.doors import TCP
from tests.serving.served import Served, obs_of, served
from tests.serving.voices import Voice

TOO_LARGE = [99.0, 0.0, 0.0]


def ask_at_once(voice: Voice, obs: Mapping[str, Any], **more: Any) -> None:
    """Ask for actions of several episodes in one go."""
    asked = [{"type": "GET_ACTION", "episode_id": name, "observation": obs[name], **more} for name in obs]
    voice.raw(b"".join(TCP.wrap(json.dumps(one).encode()) for one in asked))


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
            ask_at_once(voice, obs, seq=0, reward=1.0)
            answers = heard(voice, 8)
            assert sorted(answers) == sorted([*(name for name in names if name != "e5"), "out_of_range"])
            assert answers["out_of_range"]["seq"] == 0
            assert one.refused == 1
            # Under the same number, with the same reward: it was not taken the first time.
            ask_at_once(voice, {"e5": obs_of(5)}, seq=0, reward=1.0)
            assert voice.hear()["type"] == "ACTION"
            for name in names:
                voice.tell("END_EPISODE", episode_id=name, observation=obs_of(1))
            assert all(answer["type"] == "OK" for answer in (voice.hear() for _ in names))
        assert one.paid() == pytest.approx(8.0)


def calls_of_the_network(one: Served) -> list[int]:
    """Return a list that grows by the number of rows of each call."""
    backend: Any = one.algo.get_policy().networks.backend
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
                ask_at_once(voice, dict.fromkeys(names, obs_of(0)))
                assert sorted(heard(voice, 3)) == names
            for name in names:
                time.sleep(0.05)
                ask_at_once(voice, {name: obs_of(1)})
            assert sorted(heard(voice, 3)) == names
        assert calls[-2:] == [3, 3]
