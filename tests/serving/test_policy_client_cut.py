"""Policy clients over WebSocket and over TLS whose connections are cut, in the middle of handshakes too."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from menv.serving.client import client_session
from menv.serving.client.policy_client import PolicyClient
from menv.serving.policy_server import TransportName
from menv.serving.transports.access import Access
from tests.serving.certificates import made_in, needs_openssl
from tests.serving.courses import SCHEMES, Course, cut_wire, observation

Mode = Literal["local", "remote"]

EPISODES, STEPS = 6, 15
ROUNDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))]
"""Seeds; each cuts connections at other places."""
MOST: dict[Mode, int] = {"local": 6000, "remote": 3000}
"""Bytes after which a connection has been cut, beside those of the handshake that encrypts it."""
HANDSHAKE = 4000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a certificate for localhost, and its key."""
    return made_in(tmp_path_factory.mktemp("tls"))


def play_while_cut(client: PolicyClient, paid: list[float]) -> None:
    """Play two episodes at a time; every reward is paid once."""
    rewards = iter(paid)
    for _ in range(0, EPISODES, 2):
        names = [client.start_episode() for _ in range(2)]
        for step in range(STEPS):
            for name in names:
                client.get_action(name, observation(step))
                client.log_returns(name, next(rewards))
        for name in names:
            client.end_episode(name, observation(STEPS))


def lose_nothing(
    mode: Mode, transport: TransportName, scheme: str, seed: int, most: int, **settings: object
) -> None:
    """Play over a wire that is cut again and again, and look for each reward."""
    paid = [float(number) for number in range(EPISODES * STEPS)]
    course = Course(transport=transport, **settings)  # type: ignore[arg-type]
    with course, cut_wire(course, seed, 8, most) as wire:
        address = f"{scheme}://localhost:{wire.port}"
        with PolicyClient(address, mode, update_interval=0.01, timeout=20) as client:
            play_while_cut(client, paid)
        assert course.has_rewards(paid)
        assert wire.cuts >= 1


@pytest.mark.slow_unless("local*")
@pytest.mark.parametrize("seed", ROUNDS)
@pytest.mark.parametrize("mode", ["local", "remote"])
def test_nothing_is_lost_over_a_websocket_that_is_cut_anywhere(
    mode: Mode, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_session, "_LONGEST_PAUSE_S", 0.05)
    lose_nothing(mode, "websocket", "ws", seed, MOST[mode])


@pytest.mark.slow_unless("tcp-remote-0", "http-local-0", "websocket-remote-0")
@needs_openssl
@pytest.mark.parametrize("seed", ROUNDS)
@pytest.mark.parametrize("mode", ["local", "remote"])
@pytest.mark.parametrize("transport", ["tcp", "http", "websocket"])
def test_nothing_is_lost_over_an_encrypted_connection_that_is_cut_anywhere(
    transport: TransportName, mode: Mode, seed: int, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_session, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
    access = Access(ssl_certificate=files[0], ssl_key=files[1])
    lose_nothing(mode, transport, f"{SCHEMES[transport]}s", seed, HANDSHAKE + MOST[mode], access=access)
