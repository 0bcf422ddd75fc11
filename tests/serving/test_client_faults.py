"""Policy clients and servers that lose each other: nothing is lost with a connection, and nothing arrives twice."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.errors import CallOrderError, EpisodeError, ServerGoneError
from menv.serving import Access, Limits, PolicyClient
from menv.serving.policy_server import TransportName
from tests.interrupting import Alarm
from tests.serving.certificates import made_in, needs_openssl
from tests.serving.courses import (
    TEAMS,
    Wire,
    every_mode,
    every_transport,
    keeping,
    observation,
    play,
    playing,
)
from tests.serving.doors import HTTP, TCP
from tests.serving.served import obs_of, served, settled
from tests.serving.talks import eventually

ROUNDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))]
"""Seeds; each cuts connections at other places."""
HANDSHAKE = 4000
"""Bytes of the handshake that encrypts a connection."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a certificate for localhost, and its key."""
    return made_in(tmp_path_factory.mktemp("tls"))


@every_mode
def test_a_server_that_is_gone_is_one_clear_error(mode: str) -> None:
    with keeping() as course:
        client = PolicyClient(course.address, mode, update_interval=None, timeout=0.5)  # type: ignore[arg-type]
        play(client, [1.0] * 3)
        name = client.start_episode()
        client.get_action(name, observation(0))

    # It accepts no connection, and no other server gets the port.
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", course.port))
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(ServerGoneError, match=r"0\.5 s"):
                go_on(client, name)
            assert time.monotonic() - begun < 10
        with pytest.raises(ServerGoneError):
            PolicyClient(course.address, mode, timeout=0.2)  # type: ignore[arg-type]


@every_mode
def test_a_client_waits_for_a_server_that_comes_back(mode: str) -> None:
    with keeping() as first:
        port = first.port
        client = PolicyClient(first.address, mode, update_interval=None, timeout=20)  # type: ignore[arg-type]
        name = client.start_episode()
        for number in range(10):
            client.get_action(name, observation(number))
            client.log_returns(name, 1.0)
    with keeping(port=port) as second:
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
    with keeping(TEAMS) as first:
        port = first.port
        client = PolicyClient(first.address, "local", update_interval=None, timeout=20)
        known = client.start_episode()
        for _ in range(9):  # Rows are sent after 8.
            client.get_action(known, {"red_0": seen})
            client.log_returns(known, {"red_0": 1.0})
    with keeping(TEAMS, port=port) as second:
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


def go_on(client: PolicyClient, name: str) -> None:
    for number in range(20):
        client.log_returns(name, 1.0)
        client.get_action(name, observation(number))


@every_transport
def test_a_client_waits_for_a_server_and_for_room_at_one_that_is_full(transport: TransportName) -> None:
    with keeping(transport=transport) as course:
        port = course.port

    def late() -> None:
        with PolicyClient(course.address, "remote", timeout=20) as client:
            play(client, [3.0])

    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(late)
        time.sleep(0.1)
        with keeping(transport=transport, port=port, limits=Limits(max_connections=1)) as course:
            early.result(20)
            with PolicyClient(course.address, "remote", timeout=20) as client:
                play(client, [1.0])
                with pytest.raises(ServerGoneError, match=r"max_connections|503"):
                    PolicyClient(course.address, "remote", timeout=0.2)
                waiting = pool.submit(late)
                time.sleep(0.1)
                play(client, [2.0])
            waiting.result(20)
            assert course.has_rewards([1.0, 2.0, 3.0, 3.0])


def test_closing_wakes_a_thread_that_waits_for_an_answer() -> None:
    with served() as one, ThreadPoolExecutor(1) as pool:
        client = one.client("remote", timeout=60)
        # Nobody samples: the question waits.
        asking = pool.submit(client.get_action, client.start_episode(), obs_of(0))
        assert eventually(lambda: one.envs.broker.ready)
        client.close()
        with pytest.raises(ServerGoneError):
            asking.result(10)


AGENTS = ("red_0", "red_1", "blue_0")
SEEN = np.zeros(10, np.float32)


def some(chance: random.Random, share: float) -> list[str]:
    return [agent for agent in AGENTS if chance.random() < share]


def play_at_random(client: PolicyClient, chance: random.Random, calls: int, logs: bool) -> float:
    """Make so many calls, end what is open, and return what was paid."""
    paid, names = 0, list[str]()
    total = 0.0
    for _ in range(calls):
        what = chance.random()
        if not names or (what < 0.1 and len(names) < 4):
            names.append(client.start_episode())
            continue
        name = chance.choice(names)
        if what < 0.5:
            obs = dict.fromkeys(some(chance, 0.6), SEEN)
            if logs and chance.random() < 0.3:
                client.log_action(name, obs, dict.fromkeys(obs, 0))
            else:
                client.get_action(name, obs)
        elif what < 0.92:
            rewards = {agent: float(paid + k) for k, agent in enumerate(some(chance, 0.5), 1)}
            paid += len(rewards)
            total += sum(rewards.values())
            infos = {agent: {"x": 1} for agent in rewards} if chance.random() < 0.3 else None
            client.log_returns(name, rewards, infos, dict.fromkeys(some(chance, 0.15), True))
        else:
            names.remove(name)
            client.end_episode(name, dict.fromkeys(some(chance, 0.6), SEEN), chance.random() < 0.5)
    for name in names:
        client.end_episode(name, {})
    return total


@pytest.mark.slow_unless("tcp-*-0", "http-*-0", "tcps-remote-0", "https-local-0")
@pytest.mark.each_value
@pytest.mark.parametrize("seed", ROUNDS)
@every_mode
@pytest.mark.parametrize(
    "scheme",
    ["tcp", "http", pytest.param("tcps", marks=needs_openssl), pytest.param("https", marks=needs_openssl)],
)
def test_every_reward_arrives_once_in_random_games_over_connections_that_are_cut_anywhere(
    scheme: str, mode: Any, seed: int, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("menv.serving.client.client_session._LONGEST_PAUSE_S", 0.05)
    chance, remote, encrypted = random.Random(f"{seed} {mode} {scheme}"), mode == "remote", scheme[-1] == "s"
    settings: dict[str, Any] = {
        "env_steps_per_sample": chance.choice([1, 4, 16]),
        "force_on_policy": chance.choice([None, False]),
    }
    if encrypted:
        monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
        settings["access"] = Access(ssl_certificate=files[0], ssl_key=files[1])
    doors = (TCP if scheme.startswith("tcp") else HTTP,)
    # PPO leaves out what the application has done itself.
    with served(DQN if remote else PPO, doors=doors, settings=settings, **TEAMS) as one:
        most = chance.choice([800, 8000]) + HANDSHAKE * encrypted
        wire = Wire(one.port, seed, chance.choice([3, 20]), most)
        try:
            with one.sampling():
                interval, address = chance.choice([None, 0.01]), f"{scheme}://localhost:{wire.port}"
                with PolicyClient(address, mode, update_interval=interval, timeout=30) as client:
                    total = play_at_random(client, chance, chance.choice([60, 200]), logs=remote)
                assert settled(one)
        finally:
            wire.close()
        assert one.paid() == total
        assert one.refused == 0
        assert wire.cuts >= 1


@contextlib.contextmanager
def away(client: PolicyClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a client find nobody."""

    def fail(*arguments: Any) -> Any:
        raise ServerGoneError("nobody there")

    with monkeypatch.context() as changed:
        changed.setattr(client._session, "_attempt", fail)
        yield


@every_mode
def test_a_question_that_found_no_server_is_asked_again_and_its_observation_is_there_once(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with playing(mode) as (course, client):
        name = client.start_episode()
        for step in range(20):
            if step == 8:
                # With local inference a chunk is due.
                with away(client, monkeypatch), pytest.raises(ServerGoneError):
                    client.get_action(name, observation(step))
            client.get_action(name, observation(step))
            client.log_returns(name, float(step))
        client.end_episode(name, observation(20))
        client.close()
        assert course.has_rewards([float(step) for step in range(20)])
        seen = np.round(1000 * course.column("obs")[:, 2]).astype(int)
        assert seen.tolist() == course.column("rewards").tolist()


def interrupted(client: PolicyClient, call: Any, *arguments: Any) -> None:
    """Make a call that is left while it waits; its answer comes later."""
    connection: Any = client._session._connection
    receive = connection.receive

    def fails() -> bytes:
        connection.receive = receive
        raise Alarm

    connection.receive = fails
    with pytest.raises(Alarm):
        call(*arguments)


@every_transport
def test_after_an_interrupted_question_the_episode_continues(transport: TransportName) -> None:
    with playing("remote", transport=transport) as (course, client):
        name = client.start_episode()
        interrupted(client, client.get_action, name, observation(0))
        client.log_returns(name, 1.0)
        client.get_action(name, observation(1))
        client.log_returns(name, 2.0)
        client.end_episode(name, observation(2))
        assert client.open_episodes == []
        assert course.has_rewards([1.0, 2.0])


@every_mode
def test_a_client_that_is_closed_says_so_whatever_is_called(mode: Any) -> None:
    with keeping() as course:
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
            with pytest.raises(ServerGoneError):
                call()
        client.close()


@pytest.mark.each_value
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@every_mode
@every_transport
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told_to_make_a_client_of_its_own(transport: TransportName, mode: Any) -> None:
    with playing(mode, transport=transport) as (course, client):
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
    """Call what a parent has made; return 0 if that is refused."""
    acts = (
        client.update_policy_weights if mode == "local" else lambda: client.get_action(name, observation(1))
    )
    for call in (client.start_episode, acts):
        with pytest.raises(CallOrderError, match="PolicyClient: "):
            call()
    client._disconnect()
    return 0
