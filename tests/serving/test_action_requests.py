"""Actions that are asked for in one round of the loop: they are read together, and none costs another anything."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from menv.serving import protocol
from menv.serving.action_requests import read_action_requests
from menv.serving.protocol import BadMessageError, WireFormat
from tests.serving.doors import TCP, Door
from tests.serving.served import AGENTS, MASKED, TWO, Served, obs_of, served
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


def test_what_was_asked_before_a_broken_frame_is_refused_before_it() -> None:
    with served() as one, one.sampling(), one.voice() as voice:
        begin(voice, 1)
        say_at_once(voice, TCP, asks("e0", TOO_LARGE))
        voice.client.raw(TCP.wrap(json.dumps(asks("e0", TOO_LARGE)).encode()) + b"no digits")
        assert [voice.hear()["code"] for _ in range(3)] == ["out_of_range", "out_of_range", "bad_frame"]


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


def test_another_message_of_an_episode_that_waits_for_its_action_is_refused() -> None:
    with served() as one, one.voice(TCP) as voice, one.sampling():
        begin(voice, 1)
        over = {"type": "END_EPISODE", "episode_id": "e0", "observation": obs_of(1), "seq": 1}
        say_at_once(voice, TCP, asks("e0", obs_of(0), seq=0), over)
        answers = heard(voice, 2)
        assert sorted(answers) == ["e0", "wrong_order"]
        assert voice.ask(**kind(over))["type"] == "OK"


def test_questions_in_both_dialects_are_answered_in_their_own() -> None:
    with served() as one, one.sampling(), one.voice(TCP) as voice:
        names = begin(voice, 6)
        spoken = [
            asks(name, obs_of(number)) if number % 2 else msgspec.msgpack.encode(asks(name, obs_of(number)))
            for number, name in enumerate(names)
        ]
        say_at_once(voice, TCP, *spoken)
        bodies = [voice.client.receive() for _ in names]
        in_json = {json.loads(body)["episode_id"] for body in bodies if body[:1] == b"{"}
        packed = {msgspec.msgpack.decode(body)["episode_id"] for body in bodies if body[:1] != b"{"}
        assert (in_json, packed) == (set(names[1::2]), set(names[::2]))


def calls_of_the_network(one: Served) -> list[int]:
    """Return a list that grows by the number of rows of each call."""
    backend: Any = one.algo.get_policy().networks.backend  # type: ignore[attr-defined]
    decide, calls = backend.decide, list[int]()

    def counted(obs: Any, *rest: Any) -> Any:
        calls.append(len(obs))
        return decide(obs, *rest)

    backend.decide = counted
    return calls


def test_what_is_asked_in_one_round_is_decided_in_one_call() -> None:
    with served() as one:
        calls = calls_of_the_network(one)
        with one.sampling(), one.voice(TCP) as voice:
            names = begin(voice, 16)
            say_at_once(voice, TCP, *(asks(name, obs_of(number)) for number, name in enumerate(names)))
            assert sorted(heard(voice, 16)) == sorted(names)
        assert calls == [16]


def test_as_many_questions_as_were_answered_last_are_waited_for_and_decided_in_one_call() -> None:
    with served(settings={"batch_wait": 30.0}) as one:
        calls = calls_of_the_network(one)
        with one.sampling(), one.voice() as voice:
            names = begin(voice, 3)
            say_at_once(voice, TCP, *(asks(name, obs_of(0)) for name in names))
            assert sorted(heard(voice, 3)) == names
            begun = time.monotonic()
            for name in names:
                time.sleep(0.05)
                voice.tell(**kind(asks(name, obs_of(1))))
            assert sorted(heard(voice, 3)) == names
            # Nobody else is waited for.
            assert time.monotonic() - begun < 20.0
        assert calls == [3, 3]


def test_a_bad_question_of_several_agents_costs_only_its_own_episode() -> None:
    with served(**TWO) as one, one.sampling(), one.voice() as voice:
        begin(voice, 3)
        good = {"ann": [0.1, 0.2], "bob": [0.1, 0.2, 0.3]}
        say_at_once(voice, TCP, asks("e0", good), asks("e1", {**good, "bob": [0.1]}), asks("e2", good))
        answers = heard(voice, 3)
        assert sorted(answers) == ["e0", "e2", "wrong_length"]
        assert answers["e0"]["action"].keys() == AGENTS.keys()


def test_a_mask_that_allows_nothing_among_others_is_refused_alone() -> None:
    with served(**MASKED) as one, one.sampling(), one.voice() as voice:
        begin(voice, 3)
        masks = [[1, 0, 0], [0, 0, 0], [0, 0, 1]]
        said = [asks(f"e{n}", {"action_mask": mask, "at": [0.0, 0.5]}) for n, mask in enumerate(masks)]
        say_at_once(voice, TCP, *said)
        answers = heard(voice, 3)
        assert sorted(answers) == ["e0", "e2", "out_of_range"]
        assert (answers["e0"]["action"], answers["e2"]["action"]) == (0, 2)


def outcome(body: bytes) -> tuple[Any, ...]:
    """Return what a body is read as, or how it is refused."""
    try:
        return protocol.decode(body)
    except BadMessageError as error:
        return error.code, error.text, error.seq


def mutants(body: bytes, count: int) -> list[bytes]:
    """Return variants of a body: parts of it doubled, left out or swapped, and bytes changed."""
    rng, made = np.random.default_rng(len(body)), []
    for _ in range(count):
        a, b, c = sorted(rng.integers(0, len(body) + 1, 3).tolist())
        made.append(
            [
                body[:b] + body[a:],
                body[:a] + body[b:],
                body[:a] + body[b:c] + body[a:b] + body[c:],
                body[:a] + bytes([int(rng.integers(0, 256))]) + body[a + 1 :],
            ][int(rng.integers(0, 4))]
        )
    return made


WITH_MORE: tuple[dict[str, Any], ...] = (
    {},
    {"seq": 3, "reward": 1.5},
    {"more": "x"},
    {"info": {}},
    {"done": {"a": True}},
)
WRITTEN = [
    b'{"type": "GET_ACTION", "episode_id": "e", "observation": [0.5, 1], "seq": 3}',
    b'{"type":"GET_ACTION","episode_id":"e","observation":[0.5],"more":"x","seq":3,"more":"y"}',
    b'{"type":"GET_ACTION","episode_id":"e","observation":[0.5],"more":["x"],"and":{"x":"y"}}',
    b'{"type":"GET_ACTION","episode_id":"e\\"","observation":{"a":[1],"a":[2]},"reward":{"a":1}}',
    b'{"type":"GET_ACTION","episode_id":"e","observation":1,"reward":0.5,"seq":1,"info":{"k":1}}',
    b'{"type":"GET_ACTION","seq":4,"episode_id":"e","observation":[0.5],"observation":[0.5]}',
    b'{"observation":[0.5],"episode_id":"e","\\u0074ype":"GET_ACTION","type":"GET_ACTION"}',
    b'{"type":"GET_ACTION","episode_id":"e","observation":1,"done":{"a":true},"reward":null,"seq":null}',
    b'{"type":"LOG_RETURNS","episode_id":"GET_ACTION","reward":1}',
    *(
        msgspec.msgpack.encode({"type": "GET_ACTION", "episode_id": "e", "observation": [0.5], **more})
        for more in WITH_MORE
    ),
    b"\x84\xa4type\xaaGET_ACTION\xaaepisode_id\xa1e\xabobservation\x01\xabobservation\x02",
]


@pytest.mark.parametrize("dialect", WireFormat, ids=lambda dialect: dialect.name)
def test_what_is_read_with_others_is_read_as_it_is_by_itself(dialect: WireFormat) -> None:
    rng = np.random.default_rng(0)
    written = [body for body in WRITTEN if (body[:1] == b"{") is (dialect is WireFormat.JSON)]
    bodies = [one for body in written for one in (*[body] * 100, *mutants(body, 100))]
    read = 0
    for _ in range(3000):
        some = [bodies[place] for place in rng.integers(0, len(bodies), 2)]
        for body, request in zip(some, read_action_requests(some, dialect), strict=True):
            if request is not None:
                read += 1
                assert outcome(body) == (request, dialect)
    assert read > 100


@pytest.mark.parametrize("dialect", WireFormat, ids=lambda dialect: dialect.name)
def test_questions_that_come_together_are_read_together_unless_one_has_to_be_looked_at_closely(
    dialect: WireFormat,
) -> None:
    write = msgspec.json.encode if dialect is WireFormat.JSON else msgspec.msgpack.encode
    plain = [
        write(asks("e", [0.5], **more))
        for more in ({}, {"seq": 3}, {"reward": 1.5}, {"seq": 3, "reward": {"a": 1}})
    ]
    expected = [protocol.decode(body)[0] for body in plain]
    assert read_action_requests(plain, dialect) == expected
    closely = [WRITTEN[1], WRITTEN[5], b'{"type":"PING","GET_ACTION":1}', b"{GET_ACTION", WRITTEN[14]]
    for body in closely[:-1] if dialect is WireFormat.JSON else closely[-1:]:
        assert read_action_requests([plain[0], body, plain[0]], dialect)[1] is None


def test_a_body_that_goes_on_behind_that_of_another_peer_takes_nothing_of_it() -> None:
    begins = WRITTEN[0][:-1] + b', "more": [0'
    ends = b"0]}, " + WRITTEN[0] + b", " + WRITTEN[0]
    assert len(json.loads(b"[" + b", ".join([begins, WRITTEN[0], ends]) + b"]")) == 3
    assert read_action_requests([begins, WRITTEN[0], ends], WireFormat.JSON) == [None] * 3


def test_a_body_that_only_looks_like_a_question_finds_done_what_came_before_it() -> None:
    with served() as one, one.sampling(), one.voice(TCP) as voice:
        begin(voice, 1)
        over = {"type": "END_EPISODE", "episode_id": "e0", "observation": obs_of(1), "note": "GET_ACTION"}
        again = {"type": "START_EPISODE", "episode_id": "GET_ACTION"}
        say_at_once(voice, TCP, again, asks("GET_ACTION", obs_of(0)), over, asks("e0", obs_of(0)))
        told = [voice.hear() for _ in range(4)]
        assert sorted(answer.get("code", answer["type"]) for answer in told) == [
            "ACTION", "EPISODE", "OK", "unknown_episode",
        ]  # fmt: skip
        # What needs no decision comes in the order in which it was said.
        assert [answer["type"] for answer in told if answer["type"] != "ACTION"] == ["EPISODE", "OK", "ERROR"]
