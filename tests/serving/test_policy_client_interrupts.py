"""Ctrl-C while a policy client waits for an answer: the next call gets its own, and nothing is lost or paid twice."""

from __future__ import annotations

from typing import Any

import pytest

from menv.serving.client.policy_client import PolicyClient
from menv.serving.policy_server import TransportName
from tests.interrupting import Alarm
from tests.serving.courses import Course, observation, play


def interrupted(client: PolicyClient, call: Any, *arguments: Any) -> None:
    """Make a call that is left while it waits; its answer comes later."""
    connection: Any = client._first._connection
    receive = connection.receive

    def fails() -> bytes:
        connection.receive = receive
        raise Alarm

    connection.receive = fails
    with pytest.raises(Alarm):
        call(*arguments)


@pytest.mark.parametrize("transport", ["tcp", "http", "websocket"])
def test_after_an_interrupted_question_the_episode_goes_on(transport: TransportName) -> None:
    with Course(transport=transport) as course, PolicyClient(course.address, "remote", timeout=20) as client:
        name = client.start_episode()
        interrupted(client, client.get_action, name, observation(0))
        client.log_returns(name, 1.0)
        client.get_action(name, observation(1))
        client.log_returns(name, 2.0)
        client.end_episode(name, observation(2))
        assert client.open_episodes == []
        assert course.has_rewards([1.0, 2.0])


@pytest.mark.parametrize("transport", ["tcp", "http", "websocket"])
def test_after_an_interrupted_fetch_of_weights_those_that_come_are_those_that_were_asked_for(
    transport: TransportName,
) -> None:
    config = {"train_batch_size": 8, "sgd_minibatch_size": 8, "num_sgd_iter": 1}
    with (
        Course(config, transport, trains=True, force_on_policy=True) as course,
        PolicyClient(course.address, "local", update_interval=None, timeout=20) as client,
    ):
        play(client, [1.0] * 8)
        interrupted(client, client.update_policy_weights)
        for _ in range(5):
            number = client.weights_seq_no or 0
            play(client, [1.0] * 8)
            assert (client.weights_seq_no or 0) > number
