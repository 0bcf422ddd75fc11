"""Episodes whose actions clients ask for one by one, from many clients through every door at once."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN
from tests.serving.doors import DOORS, TCP, Door
from tests.serving.served import PLACES, Served, obs_of, served, settled
from tests.serving.talks import eventually
from tests.serving.voices import Turns, Voice

every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
AGENTS = {"ann": gym.spaces.Box(-1, 1, (2,), np.float32), "bob": gym.spaces.Box(-1, 1, (3,), np.float32)}
TWO: dict[str, Any] = {
    "observation_space": AGENTS,
    "action_space": dict.fromkeys(AGENTS, gym.spaces.Discrete(3)),
    "multiagent": {
        "policies": {"for_ann", "for_bob"},
        "policy_mapping_fn": lambda agent_id, episode, worker, **_: f"for_{agent_id}",
    },
}
MASKED: dict[str, Any] = {
    "observation_space": gym.spaces.Dict(
        {"action_mask": gym.spaces.MultiBinary(3), "at": gym.spaces.Box(-1, 1, (2,), np.float32)}
    ),
    "action_space": gym.spaces.Discrete(3),
}
LSTM: dict[str, Any] = {"model": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}}


def play(voice: Voice, name: str, steps: int, first: int = 0) -> tuple[list[int], float]:
    """Play an episode; return its actions and what was paid."""
    turns, paid, actions = Turns(voice, name), 0.0, []
    for step in range(steps):
        actions.append(turns.act(obs_of(first + step)))
        for part in (0.25, step):
            turns.pay(part)
            paid += part
    turns.end(obs_of(first + steps))
    return actions, paid


def test_many_clients_with_many_episodes_each_through_every_door_at_once() -> None:
    paid: list[float] = []

    def client(one: Served, door: Door, number: int) -> None:
        with one.voice(door, msgpack=bool(number % 2)) as voice:
            voice.greet(client=f"client {number}")
            for episode in range(5):
                paid.append(play(voice, f"e{episode}", 3 + number, first=number)[1])

    with served() as one:
        with one.sampling():
            clients = [
                threading.Thread(target=client, args=(one, DOORS[number % 3], number)) for number in range(12)
            ]
            for thread in clients:
                thread.start()
            for thread in clients:
                thread.join(60)
        assert len(paid) == 60
        assert one.paid() == pytest.approx(sum(paid))
        assert one.refused == 0
        assert one.status["open_episodes"] == 0
        told = one.summary()
        assert sorted(told["hist_stats"]["episode_reward"]) == pytest.approx(sorted(paid))
        assert sum(told["hist_stats"]["episode_lengths"]) == 5 * sum(range(3, 15))


@every_door
def test_many_episodes_of_one_connection_run_beside_each_other(door: Door) -> None:
    with served() as one, one.sampling(), one.voice(door) as voice:
        voice.greet()
        episodes = [Turns(voice, f"e{number}") for number in range(8)]
        for step in range(4):
            for number, turns in enumerate(episodes):
                turns.act(obs_of(10 * number + step))
            for turns in reversed(episodes):
                turns.pay(1.0)
        for turns in episodes[::2]:
            turns.end(obs_of(99))
        assert settled(one, 4)
        for turns in episodes[1::2]:
            turns.end(obs_of(99), truncated=True)
        assert settled(one)
        assert set(one.summary()["hist_stats"]["episode_lengths"]) == {4}


def test_rows_hold_what_was_asked_answered_and_paid() -> None:
    with served() as one:
        with one.sampling(), one.voice() as voice:
            turns = Turns(voice, "e")
            actions = []
            for step in range(40):
                actions.append(turns.act(obs_of(step)))
                turns.pay(step)
                turns.pay(0.5)
            turns.end(obs_of(40))
            assert settled(one)
            with one.voice() as other:
                # Fills the second fragment, so that the end of the first episode is in a batch.
                play(other, "f", 40, first=50)
            assert settled(one)
        np.testing.assert_array_equal(
            one.column("obs")[:40], np.array([obs_of(step) for step in range(40)], np.float32)
        )
        assert one.column("actions")[:40].tolist() == actions
        assert one.column("rewards")[:40].tolist() == [step + 0.5 for step in range(40)]
        assert one.column("terminateds")[:40].tolist() == [False] * 39 + [True]


def test_a_truncated_episode_is_no_terminated_one() -> None:
    with served() as one:
        with one.sampling(), one.voice() as voice:
            turns = Turns(voice, "e")
            for step in range(20):
                turns.act(obs_of(step))
            turns.end(obs_of(20), truncated=True)
            play(voice, "f", 20)
            assert settled(one)
        assert one.column("truncateds")[:20].tolist() == [False] * 19 + [True]
        assert not one.column("terminateds")[:20].any()


def test_episodes_that_nobody_may_learn_from_are_in_the_metrics_and_in_no_batch() -> None:
    with served() as one:
        with one.sampling(), one.voice() as voice:
            silent = Turns(voice, "silent", training_enabled=False)
            for step in range(40):
                silent.act(obs_of(step))
                silent.pay(100.0)
            silent.end(obs_of(40))
            play(voice, "loud", 40)
            assert settled(one)
        assert 100.0 not in one.column("rewards")
        assert 4_000.0 in one.summary()["hist_stats"]["episode_reward"]


def alone(steps: int, first: int) -> list[int]:
    """Return the greedy actions of an episode that is played by itself."""
    with served(**LSTM, explore=False) as one, one.sampling(), one.voice() as voice:
        return play(voice, "e", steps, first)[0]


def act_at_once(episodes: list[Turns], obs: list[Any]) -> list[int]:
    """Ask for actions of several episodes, each on a connection of its own, so that they are decided together."""
    for turns, own in zip(episodes, obs, strict=True):
        turns.tell("GET_ACTION", observation=own)
    return [turns.voice.hear()["action"] for turns in episodes]


def test_a_recurrent_policy_remembers_each_episode_by_itself() -> None:
    firsts = (0, 3, 6)
    with served(**LSTM, explore=False, settings={"batch_wait": 0.1}) as one, one.sampling():
        voices = [one.voice(door) for door in DOORS]
        episodes = [Turns(voice, f"e{number}") for number, voice in enumerate(voices)]
        together = [act_at_once(episodes, [obs_of(first + step) for first in firsts]) for step in range(12)]
        for voice in voices:
            voice.leave()
    assert [list(actions) for actions in zip(*together, strict=True)] == [
        alone(12, first) for first in firsts
    ]


def states(interleaved: bool) -> Any:
    """Return the recurrent state of each row of an episode, while another one runs or by itself."""
    config = {**LSTM, "explore": False, "rollout_fragment_length": 16, "train_batch_size": 16}
    with served(**config, settings={"batch_wait": 0.1 * interleaved}) as one:
        with one.sampling(), one.voice() as voice, one.voice() as second:
            turns = Turns(voice, "e")
            others = [Turns(second, "f")] if interleaved else []
            for step in range(16):
                act_at_once([turns, *others], [obs_of(step), obs_of(-step - 1)][: 1 + interleaved])
            for one_of_them in (turns, *others):
                one_of_them.end(obs_of(16))
            if not interleaved:
                play(voice, "g", 16, first=20)
            assert settled(one)
        one.paid()
        obs, state = one.column("obs"), one.column("state_in_0")
        wanted = [
            np.flatnonzero((obs == np.array(obs_of(step), np.float32)).all(axis=1))[0] for step in range(16)
        ]
        return state[wanted]


def test_a_recurrent_state_is_written_down_per_episode() -> None:
    both = states(True)
    assert np.abs(both[1:]).max() > 0
    np.testing.assert_array_equal(both, states(False))


@every_door
def test_several_agents_with_policies_of_their_own(door: Door) -> None:
    with served(**TWO) as one, one.sampling(), one.voice(door) as voice:
        config = voice.greet()
        assert config["multi_agent"] is True
        assert set(config["policies"]) == {"for_ann", "for_bob"}
        turns = Turns(voice, "e")
        both = {"ann": [0, 0], "bob": [0, 0, 0]}
        assert set(turns.act(both)) == {"ann", "bob"}
        turns.pay({"ann": 1.0, "bob": 2.0})
        assert set(turns.act({"ann": [0, 1]})) == {"ann"}
        turns.pay({"bob": 4.0})
        # Bob is done; its observation is its last one, and nobody asks it any more.
        turns.pay({"bob": 8.0}, done={"bob": True})
        assert set(turns.act({"ann": [0, 1], "bob": [1, 1, 1]})) == {"ann"}
        turns.pay({"ann": 16.0})
        turns.end({"ann": [1, 1]})
        assert settled(one)
        assert one.summary()["hist_stats"]["episode_reward"] == [31.0]
        told = one.summary()["hist_stats"]
        assert told["policy_for_bob_reward"] == [14.0]


@pytest.mark.slow_unless("tcp")
@every_door
def test_a_question_about_nobody_who_acts_is_answered_at_once(door: Door) -> None:
    with served(**TWO, settings={"idle_timeout": 30.0}) as one, one.sampling(), one.voice(door) as voice:
        turns = Turns(voice, "e")
        assert turns.act({}) == {}
        assert set(turns.act({"ann": [0, 0]})) == {"ann"}
        turns.pay({"ann": 1.0}, done={"ann": True})
        assert turns.act({"ann": [0, 1]}) == {}
        assert set(turns.act({"bob": [0, 0, 0]})) == {"bob"}
        turns.end({"bob": [0, 0, 0]})


@pytest.mark.parametrize("padding", [0, 40_000], ids=["small", "read beside"])
@pytest.mark.parametrize("told", ["before", "with it"])
def test_last_observations_of_agents_that_are_done_need_no_action_and_no_choice(
    told: str, padding: int
) -> None:
    agents = ("ann", "bob", "cid")
    several: dict[str, Any] = {name: dict.fromkeys(agents, space) for name, space in MASKED.items()}
    with served(DQN, **several) as one, one.sampling(), one.voice() as voice:
        turns, free = Turns(voice, "e"), {"action_mask": [1, 1, 1], "at": [0, 0]}
        last, padded = {"action_mask": [0, 0, 0], "at": [1, 1]}, [0] * padding

        def rest(agent: str) -> dict[str, Any]:
            if told == "before":
                turns.pay({agent: 1.0}, done={agent: True})
                return {"unknown": padded}
            return {"done": {agent: True}, "unknown": padded}

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


def test_masked_actions_are_never_answered() -> None:
    with served(**MASKED) as one, one.sampling(), one.voice() as voice:
        turns = Turns(voice, "e")
        for step in range(30):
            mask = [int(step % 3 != kept) for kept in range(3)]
            assert mask[turns.act({"action_mask": mask, "at": [0, 0]})] == 1


def test_actions_that_a_client_chose_itself_reach_dqn_and_are_counted_by_ppo() -> None:
    for algorithm in (DQN, None):
        kind = {"algorithm": DQN} if algorithm else {}
        with served(**kind) as one:  # type: ignore[arg-type]
            with one.training(), one.voice() as voice:
                turns = Turns(voice, "e")
                for step in range(80):
                    answer = turns.say("LOG_ACTION", observation=obs_of(step), action=step % 2)
                    assert answer == {"type": "OK", "seq": 2 * step + 1}
                    turns.pay(1.0)
                turns.end(obs_of(80))
                assert settled(one)
            external = one.results[-1]["external"]
            assert external["num_off_policy_steps"] == 80
            assert (external["num_agent_steps_left_out"] > 0) == (algorithm is None)


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
def test_who_waits_when_the_server_stops_is_told_so_and_the_port_is_free_at_once(door: Door) -> None:
    with served() as one, one.voice(door) as voice, one.voice(door) as other:
        voice.greet()
        turns = Turns(voice, "e")
        turns.tell("GET_ACTION", observation=obs_of(0))
        other.tell("EPISODES_AND_GET_STATE", episodes=[])
        assert eventually(lambda: one.source.tasks.waiting and one.source.sessions.backlog.waiting)
        address = one.envs.addresses[PLACES[door]]
        began = time.monotonic()
        one.algo.stop()
        assert time.monotonic() - began < 10
        for waiting in (voice, other):
            answer = waiting.hear()
            assert (answer["type"], answer["code"]) == ("ERROR", "stopping"), answer
            assert waiting.client.rest() in (b"", b"\x88\x02\x03\xe8", b"\x88\x02\x03\xf4")
        with socket.create_server(address):
            pass
        assert "menv-serving" not in [thread.name for thread in threading.enumerate()]


def test_reading_that_is_interrupted_leaves_no_later_question_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with served(doors=(TCP,)) as one, one.voice() as voice:
        turns = Turns(voice, "e")
        questions = one.source.sessions.action_requests
        with monkeypatch.context() as patch:
            patch.setattr(questions, "_decode", interrupted)
            with pytest.raises(KeyboardInterrupt):
                questions.decode_deferred()
        said = {"type": "GET_ACTION", "episode_id": turns.name, "seq": 1, "observation": obs_of(0)}
        # So long that it is read by itself: nobody but the question has it asked.
        voice.body((json.dumps(said) + " " * 2_000).encode())
        assert eventually(lambda: one.envs.broker.ready == 1)
