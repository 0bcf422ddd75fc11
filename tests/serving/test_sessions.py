"""Clients that leave and return: what they had open goes on, whatever was lost; and those that do not return."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.serving.doors import HTTP, TCP, Door
from tests.serving.served import obs_of, served, settled
from tests.serving.talks import eventually
from tests.serving.voices import Turns

every_change = pytest.mark.parametrize(
    "doors", [(TCP, TCP), (TCP, HTTP), (HTTP, TCP)], ids=lambda pair: "-".join(d.name for d in pair)
)
STATES: dict[str, tuple[Callable[[Turns], object], float]] = {
    "begun": (lambda turns: None, 0.0),
    "paid before anything": (lambda turns: turns.pay(8.0), 8.0),
    "asked": (lambda turns: turns.tell("GET_ACTION", observation=obs_of(5)), 0.0),
    "answered": (lambda turns: turns.act(obs_of(5)), 0.0),
    "paid": (lambda turns: [turns.act(obs_of(5)), turns.pay(1.0), turns.pay(2.0)], 3.0),
    "logged": (
        lambda turns: [turns.say("LOG_ACTION", observation=obs_of(5), action=1), turns.pay(4.0)], 4.0
    ),
}  # fmt: skip
"""What brings an episode into a state, and what is paid in it."""
every_state = pytest.mark.parametrize("state", STATES)


@pytest.mark.slow_unless("*-tcp-http", "*-http-tcp")
@pytest.mark.each_value
@every_change
@every_state
def test_an_episode_continues_over_another_connection_whatever_it_waited_for(
    doors: tuple[Door, Door], state: str
) -> None:
    with served() as one:
        with one.sampling():
            voice = one.voice(doors[0])
            session = voice.greet()["session"]
            turns = Turns(voice, "e")
            turns.act(obs_of(1))
            turns.pay(0.5)
            bring, expected = STATES[state]
            bring(turns)
            voice.ask("PING") if state != "asked" else None
            voice.leave()
            with one.voice(doors[1]) as turns.voice:
                assert turns.voice.greet(session=session)["session"] == session
                if state == "asked":
                    # Its answer may be lost, or still to come; in both cases it is this one.
                    answer = turns.again()
                    assert answer["type"] == "ACTION"
                    assert turns.again() == answer
                turns.act(obs_of(7))
                turns.pay(16.0)
                turns.end(obs_of(8))
                assert settled(one)
        assert one.paid() == 0.5 + expected + 16.0
        assert one.refused == 0
        lengths = one.summary()["hist_stats"]["episode_lengths"]
        assert lengths == [2 + (state in ("asked", "answered", "paid", "logged"))]


def test_the_latency_of_actions_is_reported_once() -> None:
    with served() as one, one.sampling(), one.voice() as voice:
        turns = Turns(voice, "e")
        turns.act(obs_of(0))
        found = one.status
        assert 0 < found["latency_ms_mean"] == found["latency_ms_max"] < 10_000
        turns.act(obs_of(1))
        turns.act(obs_of(2))
        found = one.status
        assert 0 < found["latency_ms_mean"] <= found["latency_ms_max"] < 10_000
        assert one.status["latency_ms_max"] is None


@every_state
@pytest.mark.parametrize("end", ["closed", "reset", "late"])
def test_a_client_that_cannot_return_or_does_not_in_time_loses_its_episodes(state: str, end: str) -> None:
    """Nobody else comes meanwhile."""
    with served(settings={"return_s": 0.2}) as one:
        with one.sampling():
            voice = one.voice(TCP)
            session = voice.greet()["session"] if end == "late" else None
            turns = Turns(voice, "e")
            turns.act(obs_of(1))
            turns.pay(0.5)
            bring, expected = STATES[state]
            bring(turns)
            voice.reset() if end == "reset" else voice.leave()
            assert settled(one)
            assert eventually(lambda: one.status["clients_connected"] == 0)
            with one.voice() as late:
                assert late.greet(session=session)["session"] != session
                assert late.refused("GET_ACTION", episode_id="e", observation=obs_of(0)) == "unknown_episode"
        assert one.paid() == 0.5 + expected


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
            with one.voice(HTTP) as turns.voice:
                turns.voice.greet(session=session)
                assert turns.again()["type"] == "OK"
            assert settled(one)
        assert one.summary()["hist_stats"]["episode_lengths"] == [1]
