"""Policy clients and servers that lose each other: nothing is lost with a connection, and nothing arrives twice."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest

from menv.errors import ConfigError, EpisodeError, MenvError, ServerGoneError
from menv.serving.client import client_session
from menv.serving.client.policy_client import PolicyClient
from menv.serving.limits import Limits
from menv.serving.policy_server import TransportName
from tests.serving.courses import Course, cut_wire, observation, play
from tests.serving.test_policy_client_policies import TEAMS

MODES = ("local", "remote")
ROUNDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))]
"""Seeds of a test in which connections are cut; each cuts several of them at other places."""


@pytest.mark.slow_unless("*-0")
@pytest.mark.parametrize("seed", ROUNDS)
@pytest.mark.parametrize(
    ("mode", "transport", "most"), [("local", "tcp", 6000), ("remote", "tcp", 2500), ("remote", "http", 6000)]
)
def test_connections_may_be_cut_anywhere(
    mode: str, transport: str, most: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_session, "_LONGEST_PAUSE_S", 0.05)
    paid = [float(number) for number in range(90)]
    with Course(transport=transport) as course, cut_wire(course, seed, 8, most) as wire:  # type: ignore[arg-type]
        address = f"{course.scheme}://127.0.0.1:{wire.port}"
        with PolicyClient(address, mode, update_interval=0.01, timeout=20) as client:  # type: ignore[arg-type]
            for first in range(0, 90, 30):
                names = [client.start_episode() for _ in range(2)]
                for step in range(15):
                    for number, name in enumerate(names):
                        client.get_action(name, observation(step))
                        client.log_returns(name, paid[first + 15 * number + step])
                for name in names:
                    client.end_episode(name, observation(15))
        assert course.has_rewards(paid)
        assert wire.cuts >= 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [5, "", "x" * 257])
def test_an_id_that_no_server_takes_is_refused_before_anything_is_played(mode: str, name: str) -> None:
    with Course() as course, PolicyClient(course.address, mode, update_interval=None) as client:  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="expected a text of 1 to 256 characters"):
            client.start_episode(name)
        play(client, [1.0, 2.0])
        client.close()
        assert course.has_rewards([1.0, 2.0])


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_is_gone_is_one_clear_error(mode: str) -> None:
    with Course() as course:
        client = PolicyClient(course.address, mode, update_interval=None, timeout=0.5)  # type: ignore[arg-type]
        play(client, [1.0] * 3)
        name = client.start_episode()
        client.get_action(name, observation(0))

    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(ServerGoneError, match=r"does not answer .*expected a server there within 0\.5 s"):
            go_on(client, name)
        assert time.monotonic() - begun < 10
    with pytest.raises(ServerGoneError):
        PolicyClient(course.address, mode, timeout=0.2)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_a_client_waits_for_a_server_that_comes_back(mode: str) -> None:
    with Course() as first:
        port = first.port
        client = PolicyClient(first.address, mode, update_interval=None, timeout=20)  # type: ignore[arg-type]
        name = client.start_episode()
        for number in range(10):
            client.get_action(name, observation(number))
            client.log_returns(name, 1.0)
    with Course(port=port) as second:
        with pytest.raises(EpisodeError, match=r"forgotten"):
            go_on(client, name)
        play(client, [7.0] * 3)
        client.close()
        assert second.has_rewards([7.0] * 3)


@pytest.mark.parametrize("first_call", ["get_action", "update_policy_weights"])
def test_a_restarted_server_costs_a_local_client_the_episodes_that_it_knew_and_no_others(
    first_call: str,
) -> None:
    seen = np.zeros(10, np.float32)
    with Course(TEAMS) as first:
        port = first.port
        client = PolicyClient(first.address, "local", update_interval=None, timeout=20)
        known = client.start_episode()
        for _ in range(9):  # Rows are sent after 8.
            client.get_action(known, {"red_0": seen})
            client.log_returns(known, {"red_0": 1.0})
    with Course(TEAMS, port=port) as second:
        if first_call == "update_policy_weights":
            client.update_policy_weights()
        for _ in range(3):
            name = client.start_episode()
            for _ in range(4):
                client.get_action(name, {"red_0": seen})
                client.log_returns(name, {"red_0": 7.0})
            client.end_episode(name, {"red_0": seen})
        with pytest.raises(EpisodeError, match=r"forgotten"):
            client.get_action(known, {"red_0": seen})
        client.close()
        assert second.has_rewards([7.0] * 12, "red")


def test_a_local_client_that_asks_who_answers_waits_for_a_server_that_stops() -> None:
    seen = np.zeros(10, np.float32)
    failed: list[MenvError] = []

    def play_on() -> None:
        try:
            for _ in range(200):
                name = client.start_episode()
                client.get_action(name, {"red_0": seen})
        except MenvError as error:
            failed.append(error)

    with Course(TEAMS) as first:
        port = first.port
        client = PolicyClient(first.address, "local", update_interval=None, timeout=20)
        thread = threading.Thread(target=play_on)
        thread.start()
        time.sleep(0.05)
    with Course(TEAMS, port=port):
        thread.join()
        client.close()
    assert failed == []


def go_on(client: PolicyClient, name: str) -> None:
    for number in range(20):
        client.log_returns(name, 1.0)
        client.get_action(name, observation(number))


def test_a_client_that_is_early_waits_for_the_server() -> None:
    with Course() as course:
        port = course.port
    found: list[float] = []

    def early() -> None:
        with PolicyClient(f"tcp://127.0.0.1:{port}", "remote", timeout=20) as client:
            play(client, [3.0])
            found.append(3.0)

    thread = threading.Thread(target=early)
    thread.start()
    time.sleep(0.1)
    with Course(port=port) as course:
        thread.join(20)
        assert course.has_rewards([3.0])
    assert found == [3.0]


@pytest.mark.parametrize("transport", ["tcp", "http", "websocket"])
def test_a_client_waits_for_room_at_a_server_that_is_full(transport: TransportName) -> None:
    found: list[float] = []

    def late() -> None:
        with PolicyClient(course.address, "remote", timeout=20) as client:
            play(client, [3.0])
            found.append(3.0)

    with Course(transport=transport, limits=Limits(max_connections=1)) as course:
        with PolicyClient(course.address, "remote", timeout=20) as client:
            play(client, [1.0])
            with pytest.raises(ServerGoneError, match=r"see Limits.max_connections|HTTP 503"):
                PolicyClient(course.address, "remote", timeout=0.2)
            thread = threading.Thread(target=late)
            thread.start()
            time.sleep(0.1)
            play(client, [2.0])
        thread.join(20)
        assert found == [3.0]
        assert course.has_rewards([1.0, 2.0, 3.0])


def test_closing_wakes_a_thread_that_waits_for_an_answer() -> None:
    with Course() as course:
        client = PolicyClient(course.address, "remote", timeout=60)
        name = client.start_episode()
        course.algo._base_env.send_actions = lambda *_: None
        failed: list[BaseException] = []

        def ask() -> None:
            try:
                client.get_action(name, observation(0))
            except ServerGoneError as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.2)
        client.close()
        thread.join(10)
        assert not thread.is_alive()
        assert len(failed) == 1


@pytest.mark.parametrize("timeout", [None, "60", 0, math.nan, math.inf, 1e30])
def test_a_timeout_that_no_socket_can_wait_for_is_refused(timeout: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"PolicyClient: timeout=.*, expected seconds above 0, at most 1e\+09"
    ):
        PolicyClient("http://127.0.0.1:9", timeout=timeout)


def test_a_token_that_is_no_text_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="PolicyClient: token is a int, expected the server's") as caught:
        PolicyClient("tcp://127.0.0.1:9900", token=51342)  # type: ignore[arg-type]
    assert "51342" not in str(caught.value)
