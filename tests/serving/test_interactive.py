"""Episodes whose actions clients ask for one by one, through every door, and what costs them an error."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from menv.algorithms import DQN
from tests.serving.doors import DOORS, Door, every_door
from tests.serving.served import MASKED, TWO, obs_of, played, served, settled
from tests.serving.talks import eventually
from tests.serving.voices import Turns, Voice


def play(voice: Voice, name: str, steps: int, first: int = 0) -> float:
    """Play an episode and return what was paid."""
    turns = Turns(voice, name)
    for step in range(steps):
        turns.act(obs_of(first + step))
        turns.pay(0.25)
        turns.pay(step)
    turns.end(obs_of(first + steps))
    return 0.25 * steps + sum(range(steps))


def test_many_clients_with_many_episodes_each_through_every_door_at_once() -> None:
    def client(number: int) -> list[float]:
        with one.voice(DOORS[number % 2]) as voice:
            voice.greet(client=f"client {number}")
            return [play(voice, f"e{episode}", 3 + number, first=number) for episode in range(3)]

    with served() as one:
        with one.sampling(), ThreadPoolExecutor(6) as pool:
            paid = [reward for own in pool.map(client, range(6)) for reward in own]
        assert len(paid) == 18
        assert one.paid() == pytest.approx(sum(paid))
        assert one.refused == 0
        assert one.status["open_episodes"] == 0
        told = one.summary()
        assert sorted(told["hist_stats"]["episode_reward"]) == pytest.approx(sorted(paid))
        assert sum(told["hist_stats"]["episode_lengths"]) == 3 * sum(range(3, 9))


@pytest.mark.parametrize("told", ["before", "with it"])
def test_last_observations_of_agents_that_are_done_need_no_action_and_no_choice(told: str) -> None:
    agents = ("ann", "bob", "cid")
    several: dict[str, Any] = {name: dict.fromkeys(agents, space) for name, space in MASKED.items()}
    with served(DQN, **several) as one, one.sampling(), one.voice() as voice:
        turns, free = Turns(voice, "e"), {"action_mask": [1, 1, 1], "at": [0, 0]}
        last = {"action_mask": [0, 0, 0], "at": [1, 1]}

        def rest(agent: str) -> dict[str, Any]:
            if told == "before":
                turns.pay({agent: 1.0}, done={agent: True})
                return {}
            return {"done": {agent: True}}

        assert set(turns.act(dict.fromkeys(agents, free))) == set(agents)
        more = rest("bob")
        answer = turns.say("GET_ACTION", observation={"ann": free, "bob": last, "cid": free}, **more)
        assert set(answer["action"]) == {"ann", "cid"}
        more = rest("cid")
        both = {"ann": free, "cid": last}
        assert (
            voice.refused("LOG_ACTION", episode_id="e", observation=both, action={}, **more) == "wrong_length"
        )
        assert turns.say("LOG_ACTION", observation=both, action={"ann": 1}, **more)["type"] == "OK"
        turns.end({"ann": free})


def test_stamps_tell_which_weights_decided() -> None:
    with served() as one, one.training(), one.voice() as voice:
        turns = Turns(voice, "e")
        numbers = []
        for step in range(120):
            numbers.append(turns.say("GET_ACTION", observation=obs_of(step))["weights_seq_no"])
        assert numbers[0] == 1
        assert numbers == sorted(numbers)
        assert numbers[-1] > 2


@every_door
def test_a_server_that_stops_answers_waiting_clients_and_frees_its_port_at_once(door: Door) -> None:
    with served() as one, one.voice(door) as voice, one.voice(door) as other:
        voice.greet()
        turns = Turns(voice, "e")
        turns.tell("GET_ACTION", observation=obs_of(0))
        other.tell("EPISODES_AND_GET_STATE", episodes=[])
        assert eventually(lambda: one.envs.sessions._waiting and one.envs.sessions.backlog.waiting)
        address = one.envs.addresses[DOORS.index(door)]
        began = time.monotonic()
        one.algo.stop()
        assert time.monotonic() - began < 10
        for waiting in (voice, other):
            answer = waiting.hear()
            assert (answer["type"], answer["code"]) == ("ERROR", "stopping"), answer
            assert waiting.rest() == b""
        with socket.create_server(address):
            pass
        assert "menv-serving" not in [thread.name for thread in threading.enumerate()]


HUGE, ANN = 1e39, [0, 0]

ONE_AGENT: list[tuple[str, dict[str, Any], str]] = [
    ("GET_ACTION", {"episode_id": "x", "observation": obs_of(0)}, "unknown_episode"),
    ("START_EPISODE", {}, "wrong_order"),
    ("GET_ACTION", {"observation": [0, 0, 11]}, "out_of_range"),
    ("LOG_ACTION", {"observation": obs_of(0), "action": 2}, "out_of_range"),
    ("LOG_ACTION", {"observation": obs_of(0), "action": [1]}, "wrong_type"),
    ("LOG_RETURNS", {"reward": "1"}, "wrong_type"),
    ("LOG_RETURNS", {"reward": True}, "wrong_type"),
    ("LOG_RETURNS", {"reward": HUGE}, "out_of_range"),
    ("LOG_RETURNS", {"reward": {"agent0": 1.0}}, "wrong_type"),
    ("END_EPISODE", {"observation": [0, 0, 0, 0]}, "wrong_length"),
    ("END_EPISODE", {"observation": obs_of(0), "truncated": 1}, "wrong_type"),
]
TWO_AGENTS: list[tuple[str, dict[str, Any], str]] = [
    ("GET_ACTION", {"observation": {"carl": ANN}}, "unknown_id"),
    ("GET_ACTION", {"observation": {"ann": ANN, "carl": ANN}}, "unknown_id"),
    ("GET_ACTION", {"observation": {"bob": ANN}}, "wrong_length"),
    ("GET_ACTION", {"observation": ANN}, "wrong_type"),
    ("LOG_ACTION", {"observation": {"ann": ANN}, "action": {}}, "wrong_length"),
    ("LOG_ACTION", {"observation": {"ann": ANN}, "action": {"ann": 3}}, "out_of_range"),
    ("LOG_ACTION", {"observation": {"ann": ANN}, "action": 0}, "wrong_type"),
    ("LOG_RETURNS", {"reward": {"carl": 1.0}}, "unknown_id"),
    ("LOG_RETURNS", {"reward": {"ann": 1.0}, "done": {"carl": True}}, "unknown_id"),
    ("LOG_RETURNS", {"reward": {"ann": 1.0}, "info": {"ann": 1}}, "wrong_type"),
    ("LOG_RETURNS", {"reward": {"__all__": 1.0}}, "unknown_id"),
    ("LOG_RETURNS", {"reward": {}, "info": {"carl": {}}}, "unknown_id"),
    ("LOG_RETURNS", {"reward": 1.0}, "wrong_type"),
    ("LOG_RETURNS", {"reward": {"ann": HUGE}}, "out_of_range"),
    ("END_EPISODE", {"observation": {"carl": ANN}}, "unknown_id"),
    ("GET_POLICIES", {"agent_ids": ["ann", "carl"]}, "unknown_id"),
    ("EPISODES", {"episodes": [{"agents": {"carl": {}}, "id": "p"}]}, "malformed"),
]


@every_door
@pytest.mark.parametrize("several", [False, True], ids=["one agent", "several"])
def test_an_illegal_move_costs_an_error_and_the_episode_continues(door: Door, several: bool) -> None:
    moves, seen, reward = (
        (TWO_AGENTS, {"ann": ANN}, {"ann": 0.25, "bob": 0.75}) if several else (ONE_AGENT, obs_of(3), 1.0)
    )
    with served(**(TWO if several else {})) as one:
        with one.sampling(), one.voice(door) as voice:
            turns = Turns(voice, "e")
            for kind, fields, code in moves:
                turns.act(seen)
                assert voice.refused(kind, **{"episode_id": "e", **fields}) == code, (kind, fields)
                turns.pay(reward)
            turns.end(seen)
            assert settled(one)
        assert one.refused == len(moves)
        assert one.paid() == len(moves)
        assert one.summary()["hist_stats"]["episode_lengths"] == [len(moves)]


STEPS: dict[str, dict[str, Any]] = {
    "GET_ACTION": {"observation": obs_of(1)},
    "LOG_ACTION": {"observation": obs_of(1), "action": 0},
    "LOG_RETURNS": {"reward": 2.0, "info": {"a": 1}},
    "END_EPISODE": {"observation": obs_of(1)},
}


@pytest.mark.each_value
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("numbered", [False, True], ids=["without numbers", "with numbers"])
def test_no_message_of_an_episode_is_taken_while_its_action_is_awaited(kind: str, numbered: bool) -> None:
    with served() as one, one.voice() as voice:
        seq = iter(range(10)) if numbered else iter(lambda: None, 0)
        assert voice.ask("START_EPISODE", episode_id="e", seq=next(seq))["type"] == "EPISODE"
        first = next(seq)
        voice.tell("GET_ACTION", episode_id="e", observation=obs_of(0), seq=first)
        assert voice.refused(kind, episode_id="e", seq=next(seq), **STEPS[kind]) == "wrong_order"
        with one.sampling():
            answer = voice.hear()
            assert (answer["type"], answer.get("seq")) == ("ACTION", first)
            after = None if first is None else first + 1
            assert voice.ask("LOG_RETURNS", episode_id="e", reward=1.0, seq=after)["type"] == "OK"
        assert one.paid() == 1.0


def test_nothing_is_taken_after_the_end_and_an_id_is_used_once() -> None:
    with served() as one, one.sampling(), one.voice() as voice:
        Turns(voice, "e").end(obs_of(0))
        for kind, fields in STEPS.items():
            assert voice.refused(kind, episode_id="e", **fields) == "unknown_episode"
        assert voice.refused("START_EPISODE", episode_id="e") == "wrong_order"
        assert voice.ask("START_EPISODE")["episode_id"] != voice.ask("START_EPISODE")["episode_id"]


def test_episodes_of_another_client_are_out_of_reach() -> None:
    with served() as one, one.sampling(), one.voice() as voice, one.voice() as other:
        turns = Turns(voice, "e")
        assert other.refused("LOG_RETURNS", episode_id="e", reward=1.0) == "unknown_episode"
        assert other.ask("START_EPISODE", episode_id="e")["type"] == "EPISODE"
        turns.end(obs_of(0))
        assert other.ask("END_EPISODE", episode_id="e", observation=obs_of(0))["type"] == "OK"


def test_policies_that_do_not_exist_and_forms_that_cannot_be_had_are_refused() -> None:
    with served(**TWO) as one, one.sampling(), one.voice() as voice:
        assert voice.refused("GET_STATE", policy_ids=["nobody"]) == "unknown_id"
        assert voice.refused("GET_STATE") == "unknown_id"
        assert voice.ask("GET_STATE", policy_ids=["for_ann"])["type"] == "SET_STATE"
        assert set(voice.ask("GET_STATE", form="weights")["weights"]) == {"for_ann", "for_bob"}
        assert set(voice.ask("GET_STATE", form="bundle", policy_ids=["for_bob"])["bundles"]) == {"for_bob"}
        number = voice.ask("GET_STATE", form="weights")["weights_seq_no"]
        assert voice.ask("GET_STATE", form="weights", have=number) == {
            "type": "SET_STATE", "weights_seq_no": number
        }  # fmt: skip


def test_an_episode_is_either_played_elsewhere_or_asked_for_here() -> None:
    with served() as one, one.sampling(), one.voice() as voice:
        turns = Turns(voice, "asked")
        assert voice.refused("EPISODES", episodes=[played(1, "", id="asked")]) == "wrong_order"
        voice.bring(played(1, "", id="played"))
        assert voice.refused("START_EPISODE", episode_id="played") == "wrong_order"
        assert voice.refused("GET_ACTION", episode_id="played", observation=obs_of(0)) == "unknown_episode"
        assert turns.act(obs_of(0)) in (0, 1)


@pytest.mark.each_value
@every_door
@pytest.mark.parametrize("kind", STEPS)
def test_a_message_that_comes_again_gets_the_same_answer_and_is_taken_once(door: Door, kind: str) -> None:
    with served() as one:
        with one.sampling(), one.voice(door) as voice:
            voice.greet()
            turns = Turns(voice, "e")
            assert turns.again() == {"type": "EPISODE", "episode_id": "e", "seq": 0}
            turns.act(obs_of(0))
            turns.pay(1.0)
            answer = turns.say(kind, **STEPS[kind])
            assert answer["seq"] == 3
            assert [turns.again() for _ in range(3)] == [answer] * 3
            if kind != "END_EPISODE":
                turns.end(obs_of(9))
            assert settled(one)
        assert one.paid() == 1.0 + 2.0 * (kind == "LOG_RETURNS")
        steps = 1 + (kind in ("GET_ACTION", "LOG_ACTION"))
        assert one.summary()["hist_stats"]["episode_lengths"] == [steps]
        assert one.refused == 0


@pytest.mark.parametrize("kind", STEPS)
def test_another_message_under_a_number_that_was_taken_and_gaps_are_refused(kind: str) -> None:
    with served() as one:
        with one.sampling(), one.voice() as voice:
            turns = Turns(voice, "e")
            assert turns.at(0, "LOG_RETURNS", reward=4.0)["code"] == "wrong_order"
            for gap in (2, 9):
                told = turns.at(gap, "LOG_RETURNS", reward=4.0)
                assert (told["code"], told["seq"]) == ("wrong_order", gap)
            answer = turns.say(kind, **STEPS[kind])
            assert kind == "END_EPISODE" or turns.at(0, "LOG_RETURNS", reward=4.0)["code"] == "wrong_order"
            for other in STEPS.keys() - {kind}:
                assert turns.at(1, other, **STEPS[other])["code"] == "wrong_order"
            assert turns.again() == answer
            if kind != "END_EPISODE":
                turns.end(obs_of(9))
            assert settled(one)
        assert one.paid() == 2.0 * (kind == "LOG_RETURNS")
