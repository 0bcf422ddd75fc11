"""Clients that leave and return: what they had open goes on, whatever was lost; and those that do not return."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.serving.doors import HTTP, TCP, Door
from tests.serving.served import Served, obs_of, served, settled
from tests.serving.talks import eventually
from tests.serving.voices import Turns

every_change = pytest.mark.parametrize(
    "doors", [(TCP, TCP), (TCP, HTTP), (HTTP, TCP)], ids=lambda pair: "-".join(d.name for d in pair)
)
State = Callable[[Turns], float]
"""Brings an episode into some state and leaves it; returns what was paid in it."""


def only_begun(turns: Turns) -> float:
    return 0.0


def paid_before_anything(turns: Turns) -> float:
    turns.pay(8.0)
    return 8.0


def asked(turns: Turns) -> float:
    turns.tell("GET_ACTION", observation=obs_of(5))
    return 0.0


def answered(turns: Turns) -> float:
    turns.act(obs_of(5))
    return 0.0


def paid(turns: Turns) -> float:
    turns.act(obs_of(5))
    turns.pay(1.0)
    turns.pay(2.0)
    return 3.0


def logged(turns: Turns) -> float:
    turns.say("LOG_ACTION", observation=obs_of(5), action=1)
    turns.pay(4.0)
    return 4.0


STATES: tuple[State, ...] = (only_begun, paid_before_anything, asked, answered, paid, logged)
every_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)


def returned(one: Served, door: Door, session: str, before: Turns) -> Turns:
    """Return the same episode on another connection."""
    voice = one.voice(door)
    assert voice.greet(session=session)["session"] == session
    return before.taken_up(voice)


@pytest.mark.slow_unless("*-tcp-http", "*-http-tcp")
@pytest.mark.each_value
@every_change
@every_state
def test_an_episode_continues_over_another_connection_whatever_it_waited_for(
    doors: tuple[Door, Door], state: State
) -> None:
    with served() as one:
        with one.sampling():
            voice = one.voice(doors[0])
            session = voice.greet()["session"]
            turns = Turns(voice, "e")
            turns.act(obs_of(1))
            turns.pay(0.5)
            expected = 0.5 + state(turns)
            voice.ask("PING") if state is not asked else None
            voice.leave()
            again = returned(one, doors[1], session, turns)
            with again.voice:
                if state is asked:
                    # Its answer may be lost, or still to come; in both cases it is this one.
                    answer = again.again()
                    assert answer["type"] == "ACTION"
                    assert again.again() == answer
                again.act(obs_of(7))
                again.pay(16.0)
                again.end(obs_of(8))
                assert settled(one)
        assert one.paid() == expected + 16.0
        assert one.refused == 0
        lengths = one.summary()["hist_stats"]["episode_lengths"]
        assert lengths == [2 + (state in (asked, answered, paid, logged))]


def test_the_latency_of_actions_is_reported_once() -> None:
    with served() as one, one.sampling():
        voice = one.voice(TCP)
        turns = Turns(voice, "e")
        turns.act(obs_of(0))
        found = one.status
        assert 0 < found["latency_ms_mean"] == found["latency_ms_max"] < 10_000
        turns.act(obs_of(1))
        turns.act(obs_of(2))
        found = one.status
        assert 0 < found["latency_ms_mean"] <= found["latency_ms_max"] < 10_000
        assert one.status["latency_ms_max"] is None
        voice.leave()


@every_state
@pytest.mark.parametrize("end", ["closed", "reset", "late"])
def test_a_client_that_cannot_return_or_does_not_in_time_loses_its_episodes(state: State, end: str) -> None:
    """Nobody else comes meanwhile."""
    with served(settings={"return_s": 0.2}) as one:
        with one.sampling():
            voice = one.voice(TCP)
            session = voice.greet()["session"] if end == "late" else None
            turns = Turns(voice, "e")
            turns.act(obs_of(1))
            turns.pay(0.5)
            expected = 0.5 + state(turns)
            voice.client.reset() if end == "reset" else voice.leave()
            assert settled(one)
            assert eventually(lambda: one.status["clients_connected"] == 0)
            with one.voice() as late:
                assert late.greet(session=session)["session"] != session
                assert late.refused("GET_ACTION", episode_id="e", observation=obs_of(0)) == "unknown_episode"
        assert one.paid() == expected


def test_a_last_message_whose_answer_was_lost_is_recognised_on_the_next_connection() -> None:
    with served() as one:
        with one.sampling():
            voice = one.voice()
            session = voice.greet()["session"]
            turns = Turns(voice, "e")
            turns.act(obs_of(0))
            turns.pay(1.0)
            turns.tell("END_EPISODE", observation=obs_of(1))
            voice.ask("PING")
            voice.leave()
            with one.voice(HTTP) as other:
                other.greet(session=session)
                assert turns.taken_up(other).again()["type"] == "OK"
            assert settled(one)
        assert one.summary()["hist_stats"]["episode_lengths"] == [1]
