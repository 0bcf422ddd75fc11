"""Policy clients that were closed, and those of a process that was forked: calls are refused and cost nothing."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from menv.errors import CallOrderError, MenvError, ServerGoneError
from menv.serving.client.policy_client import PolicyClient
from menv.serving.policy_server import TransportName
from tests.serving.courses import Course, observation, play

every_mode = pytest.mark.parametrize("mode", ["local", "remote"])


@every_mode
def test_a_client_that_is_closed_says_so_whatever_is_called(mode: Any) -> None:
    with Course() as course:
        client = PolicyClient(course.address, mode, timeout=20)
        name = client.start_episode()
        client.get_action(name, observation(0))
        client.close()
        for call in (
            client.start_episode,
            lambda: client.get_action(name, observation(1)),
            lambda: client.log_action(name, observation(1), 0),
            lambda: client.log_returns(name, 1.0),
            lambda: client.end_episode(name, observation(1)),
        ):
            with pytest.raises(ServerGoneError, match="PolicyClient: is closed, expected no further call"):
                call()
        client.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@every_mode
@pytest.mark.parametrize("transport", ["tcp", "http", "websocket"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told_to_make_a_client_of_its_own(transport: TransportName, mode: Any) -> None:
    with Course(transport=transport) as course, PolicyClient(course.address, mode, timeout=20) as client:
        name = client.start_episode()
        client.get_action(name, observation(0))
        child = os.fork()
        if not child:
            code = 1
            try:
                code = _in_the_child(client, name, mode)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        client.log_returns(name, 5.0)
        client.end_episode(name, observation(1))
        play(client, [1.0, 2.0])
        client.close()
        assert course.has_rewards([5.0, 1.0, 2.0])


def _in_the_child(client: PolicyClient, name: str, mode: str) -> int:
    """Call what a parent has made; return how often that was not refused."""
    calls = [client.start_episode, client.update_policy_weights if mode == "local" else client.start_episode]
    if mode == "remote":
        calls.append(lambda: client.get_action(name, observation(1)))
    taken = 0
    for call in calls:
        try:
            call()
        except CallOrderError as error:
            taken += "expected a client for each process; make another here" not in str(error)
        except MenvError as error:
            sys.stderr.write(str(error))
            taken += 1
        else:
            taken += 1
    client._disconnect()
    return taken
