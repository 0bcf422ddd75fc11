"""Clients that leave and return: what they had open goes on, whatever was lost; and those that do not return."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from menv.serving import RLlinkInput
from menv.serving import session as sessions
from tests.serving.doors import HTTP, TCP, Client, Door
from tests.serving.served import Served, obs_of, served, settled
from tests.serving.talks import eventually
from tests.serving.voices import Turns, episode

every_change = pytest.mark.parametrize(
    "doors",
    [(TCP, TCP), (TCP, HTTP), (HTTP, TCP)],
    ids=lambda pair: "-".join(d.name for d in pair),
)
AWAY_S = 0.5
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


def stays_open(one: Served) -> None:
    """Watch an episode for as long as it takes to give a client up that is away."""
    end = time.monotonic() + 1.5 * AWAY_S
    while time.monotonic() < end:
        assert one.status["open_episodes"] == 1
        time.sleep(0.01)


def returned(one: Served, door: Door, session: str, before: Turns) -> Turns:
    """Return the same episode on another connection, at the number that the server names."""
    voice = one.voice(door)
    greeting = voice.greet(session=session)
    assert greeting["session"] == session
    return before.taken_up(voice, greeting["resume"][before.name]["seq"])


@pytest.mark.slow_unless("*-tcp-http", "*-http-tcp")
@pytest.mark.each_value
@every_change
@every_state
def test_an_episode_goes_on_over_another_connection_whatever_it_waited_for(
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
@pytest.mark.parametrize("leave", [Client.leave, Client.reset], ids=["closed", "reset"])
def test_a_client_that_never_asked_to_return_loses_its_episodes_at_once(
    state: State, leave: Callable[[Client], None]
) -> None:
    with served() as one:
        with one.sampling():
            voice = one.voice(TCP)
            turns = Turns(voice, "e")
            turns.act(obs_of(1))
            turns.pay(0.5)
            expected = 0.5 + state(turns)
            leave(voice.client)
            assert settled(one)
            assert eventually(lambda: one.status["clients_connected"] == 0)
        assert one.paid() == expected


@every_state
def test_a_client_that_does_not_return_in_time_loses_its_episodes_though_nobody_else_comes(
    state: State,
) -> None:
    with served(settings={"return_s": 0.2}) as one:
        with one.sampling():
            voice = one.voice()
            session = voice.greet()["session"]
            turns = Turns(voice, "e")
            expected = state(turns)
            voice.leave()
            assert settled(one)
            with one.voice() as late:
                greeting = late.greet(session=session)
                assert greeting["session"] != session
                assert greeting["resume"] == {}
                assert late.refused("GET_ACTION", episode_id="e", observation=obs_of(0)) == "unknown_episode"
        assert one.paid() == expected


def test_a_client_that_has_returned_in_time_keeps_its_episodes() -> None:
    with served(settings={"return_s": AWAY_S}) as one, one.sampling():
        voice = one.voice()
        session = voice.greet()["session"]
        turns = Turns(voice, "e")
        voice.leave()
        again = returned(one, TCP, session, turns)
        with again.voice:
            stays_open(one)
            assert again.act(obs_of(0)) in (0, 1)


def test_a_client_may_return_before_its_old_connection_is_known_to_be_lost() -> None:
    with served(settings={"return_s": AWAY_S}) as one, one.sampling():
        with one.voice() as old:
            session = old.greet()["session"]
            turns = Turns(old, "e")
            again = returned(one, HTTP, session, turns)
        with again.voice:
            assert eventually(lambda: one.status["clients_connected"] == 1)
            stays_open(one)
            assert again.act(obs_of(0)) in (0, 1)


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
                assert other.greet(session=session)["resume"] == {}
                assert turns.taken_up(other, 2).at(3, "END_EPISODE", observation=obs_of(1))["type"] == "OK"
            assert settled(one)
        assert one.summary()["hist_stats"]["episode_lengths"] == [1]


def test_whole_episodes_go_on_where_the_server_says_that_they_stand() -> None:
    def chunk(begin: int, end: int, over: bool = False) -> Any:
        return episode(
            [obs_of(n) for n in range(begin, end + 1)], [0] * (end - begin), [float(n) for n in range(begin, end)],
            "terminated" if over else "", id="e", t=begin,
        )  # fmt: skip

    with served(kind=RLlinkInput) as one:
        with one.sampling():
            voice = one.voice()
            session = voice.greet()["session"]
            voice.bring(chunk(0, 10))
            voice.bring(chunk(10, 15))
            voice.ask("PING")
            voice.leave()
            with one.voice(HTTP, msgpack=True) as other:
                assert other.greet(session=session)["resume"]["e"]["t"] == 15
                other.bring(chunk(10, 20))
                other.bring(chunk(20, 30, over=True))
            assert settled(one)
        assert one.paid() == sum(range(30))
        assert one.summary()["hist_stats"]["episode_lengths"] == [30]


@pytest.mark.parametrize("session", ["0" * 32, "x"])
def test_a_session_that_never_was_is_a_new_one_with_an_id_of_the_servers(session: str) -> None:
    with served() as one, one.sampling(), one.voice() as voice:
        greeting = voice.greet(session=session)
        assert greeting["session"] != session
        assert len(greeting["session"]) >= 32
        assert greeting["resume"] == {}


def test_who_asks_for_nothing_more_is_told_nothing_more() -> None:
    with served() as one, one.sampling(), one.voice() as voice:
        assert set(voice.ask("GET_CONFIG")) == {"type", "env_steps_per_sample", "force_on_policy"}
        assert set(voice.ask("GET_CONFIG", extensions=["menv-2"])) == {
            "type",
            "env_steps_per_sample",
            "force_on_policy",
        }
        greeting = voice.greet()
        assert greeting["extensions"] == ["menv-1"]
        assert greeting["multi_agent"] is False
        assert greeting["observation_space"]["shape"] == [3]
        assert greeting["action_space"]
        assert set(greeting["policies"]) == {"default_policy"}


def test_of_clients_that_come_and_go_only_the_last_ones_may_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MAX_AWAY", 3)
    with served() as one:
        with one.sampling():
            gone = []
            for number in range(6):
                with one.voice() as voice:
                    gone.append(voice.greet()["session"])
                    turns = Turns(voice, "e")
                    turns.act(obs_of(number))
                    turns.pay(2.0**number)
                assert eventually(lambda: one.status["clients_connected"] == 0)
            assert settled(one, 3)
            with one.voice() as voice:
                returned = [voice.greet(session=session)["resume"] for session in gone]
        assert returned == [{}] * 3 + [{"e": {"seq": 2}}] * 3
        assert one.paid() == 63.0


def test_nothing_is_kept_of_a_client_whose_place_another_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MAX_AWAY", 1)
    with served() as one, one.voice(TCP) as stays:
        states = one.source.sessions.states
        session = stays.greet()["session"]
        with one.voice(TCP) as voice:
            gone = weakref.ref(states[voice.greet(client="x" * 4000)["session"]])
        for _ in range(2):
            with one.voice(TCP) as voice:
                voice.greet()
            assert eventually(lambda: one.status["clients_connected"] == 1)
        assert eventually(lambda: gc.collect() is not None and gone() is None)
        assert session in states


def test_a_connection_that_goes_on_as_another_client_takes_nothing_from_the_one_that_it_was() -> None:
    with served() as one, one.sampling():
        with one.voice(TCP) as first, one.voice(TCP) as second, one.voice(TCP) as other:
            session = first.greet()["session"]
            turns = Turns(first, "e")
            turns.act(obs_of(0))
            assert second.greet(session=session)["resume"] == {"e": {"seq": 1}}
            assert second.greet(session=other.greet()["session"])["resume"] == {}
            turns.act(obs_of(1))
            turns.end(obs_of(2))
        assert settled(one)


def test_a_connection_that_goes_on_as_another_client_loses_the_episodes_begun_over_it_alone() -> None:
    with served() as one, one.sampling(), one.voice(TCP) as alone, one.voice(TCP) as other:
        alone.greet()
        Turns(alone, "e").act(obs_of(0))
        assert one.status["open_episodes"] == 1
        assert alone.greet(session=other.greet()["session"])["resume"] == {}
        assert eventually(lambda: one.status["open_episodes"] == 0)
