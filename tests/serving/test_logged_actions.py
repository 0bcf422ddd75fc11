"""A client that only tells what it did: it waits for the sampler, and fragments keep their length."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from menv.algorithms import DQN
from menv.errors import ServerGoneError
from menv.serving import PolicyClient
from tests.external.told import Told, obs, training
from tests.serving.courses import every_mode, observation, playing
from tests.serving.doors import HTTP, TCP, WEBSOCKET, Door
from tests.serving.served import obs_of, served
from tests.serving.talks import eventually

STEPS = 240
OF_20: dict[str, Any] = {"rollout_fragment_length": 20, "num_steps_sampled_before_learning_starts": 10_000}


def sampled(batches: Sequence[Any]) -> list[int]:
    """Return how many rows each fragment has, but for those that nothing came for."""
    rows = [sum(len(batch[name]["rewards"]) for name in batch) for batch in list(batches)]
    return [count for count in rows if count]


@pytest.mark.parametrize("length", [1, 3, 120])
def test_fragments_of_a_client_that_only_logs_keep_their_length(length: int) -> None:
    with playing("remote", OF_20, kind=DQN, idle_timeout=0.3) as (course, client):
        for _ in range(STEPS // length):
            name = client.start_episode()
            for step in range(length):
                client.log_action(name, observation(step), step % 2)
                client.log_returns(name, 1.0)
            client.end_episode(name, observation(0))
        assert eventually(lambda: sum(sampled(course.batches)) == STEPS)
        assert set(sampled(course.batches)) == {20}


@pytest.mark.parametrize("length", [1, 40])
@pytest.mark.parametrize("door", [TCP, HTTP, WEBSOCKET], ids=lambda door: door.name)
def test_what_was_said_ahead_is_answered_in_order_and_makes_fragments_of_their_length(
    door: Door, length: int
) -> None:
    with served(DQN, **OF_20) as one, one.voice(door) as voice:
        numbers = []
        for number in range(STEPS // length):
            turns: list[tuple[str, dict[str, Any]]] = [
                ("LOG_ACTION", {"observation": obs_of(step), "action": 0}) for step in range(length)
            ]
            said = [("START_EPISODE", {}), *turns, ("END_EPISODE", {"observation": obs_of(0)})]
            for seq, (kind, fields) in enumerate(said):
                voice.tell(kind, episode_id=f"{number}", seq=seq, **fields)
                numbers.append(seq)
                if door is HTTP:
                    assert voice.hear()["seq"] == seq
        if door is not HTTP:
            assert [voice.hear()["seq"] for _ in numbers] == numbers
        with one.sampling():
            assert eventually(lambda: sum(sampled(one.batches)) == STEPS)
        assert set(sampled(one.batches)) == {20}


@every_mode
def test_log_action_waits_for_the_sampler_while_other_clients_are_served(mode: Any) -> None:
    with served(DQN, **OF_20) as one, one.voice() as other:
        host, port = one.envs.addresses[0]
        with PolicyClient(f"tcp://{host}:{port}", mode) as client:
            name, logged = client.start_episode(), threading.Event()

            def log() -> None:
                for step in range(3):
                    client.log_action(name, obs_of(step), 0)
                logged.set()

            logging = threading.Thread(target=log)
            logging.start()
            for _ in range(20):
                assert other.ask("GET_STATE")["type"] == "SET_STATE"
            assert not logged.wait(0.1)
            with one.sampling():
                assert logged.wait(20)
                logging.join(20)
                client.end_episode(name, obs_of(0))


def test_whoever_waits_for_the_sampler_is_answered_when_the_server_ends() -> None:
    failed: list[BaseException] = []
    with served(DQN, **OF_20) as one:
        host, port = one.envs.addresses[0]
        client = PolicyClient(f"tcp://{host}:{port}", "remote", timeout=0.5)
        name = client.start_episode()

        def log() -> None:
            try:
                client.log_action(name, obs_of(0), 0)
            except ServerGoneError as error:
                failed.append(error)

        logging = threading.Thread(target=log)
        logging.start()
        assert eventually(lambda: one.envs.broker.ready == 1)
    logging.join(20)
    assert len(failed) == 1


def test_fragments_of_an_application_that_logged_ahead_keep_their_length() -> None:
    env = Told()
    with training(env, DQN, idle_timeout=0.2, **OF_20) as algo:
        for _ in range(60):
            env.log_action(name := env.start_episode(), obs(0, 0), 0)
            env.end_episode(name, obs(0, 1))
        found = [algo.sample().count for _ in range(3)]
    assert found == [20, 20, 20]
