"""Clients whose address has the wrong scheme, or whose server shows a certificate that nobody trusts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from menv.errors import ConfigError
from menv.serving import Access, PolicyClient
from menv.serving.policy_server import TransportName
from tests.serving.certificates import dated_in, made_in, needs_openssl
from tests.serving.courses import SCHEMES, Course, observation, play

# A client that waits would fail with another error after as long.
PATIENCE = 60


@pytest.mark.parametrize("transport", ["tcp", "http", "websocket"])
def test_a_client_is_told_at_once_which_scheme_its_address_should_have(transport: TransportName) -> None:
    with Course(transport=transport) as course:
        for scheme in ("tcp", "http", "ws", "tcps", "https", "wss"):
            if scheme == course.scheme or {scheme, course.scheme} == {"http", "ws"}:
                continue
            better = scheme[:-1] if scheme.endswith("s") and scheme != "ws" else course.scheme
            with pytest.raises(ConfigError, match=rf"{scheme}://.*{better}://"):
                PolicyClient(f"{scheme}://127.0.0.1:{course.port}", "remote", timeout=PATIENCE)
        with PolicyClient(course.address, "remote", timeout=PATIENCE) as client:
            play(client, [1.0, 2.0])
            assert client.get_action(client.start_episode(), observation(0)) in (0, 1)
        assert course.has_rewards([1.0, 2.0])
        assert course.algo._external_clients.report()["external"]["server_faults"] == 0


@pytest.mark.slow_unless("tcp")
@needs_openssl
@pytest.mark.parametrize("transport", ["tcp", "http", "websocket"])
def test_a_client_is_told_at_once_of_a_certificate_that_does_not_hold(
    transport: TransportName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = made_in(tmp_path)
    scheme = SCHEMES[transport] + "s"
    with Course(transport=transport, access=Access(ssl_certificate=files[0], ssl_key=files[1])) as course:
        with pytest.raises(ConfigError, match=r"self-signed certificate.*SSL_CERT_FILE"):
            PolicyClient(f"{scheme}://localhost:{course.port}", "remote", timeout=PATIENCE)
        monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
        with pytest.raises(ConfigError, match=re.escape("not valid for '127.0.0.1'")):
            PolicyClient(f"{scheme}://127.0.0.1:{course.port}", "remote", timeout=PATIENCE)
        with PolicyClient(f"{scheme}://localhost:{course.port}", "remote", timeout=PATIENCE) as client:
            play(client, [1.0, 2.0])
        assert course.has_rewards([1.0, 2.0])


@needs_openssl
@pytest.mark.parametrize(("about", "told"), [
    ((2020, 2021), "has expired), expected one that is valid now; renew the server's, or set the clock"),
    ((2098, 2099), "not yet valid), expected one that is valid now; renew the server's, or set the clock"),
    ((2020, 2099, "other.example"), "for 'localhost'), expected one for this host; write the host as the certificate"),
], ids=["too old", "too new", "of another host"])  # fmt: skip
def test_what_is_wrong_with_a_certificate_decides_what_to_do_about_it(
    about: tuple[Any, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dated_in(tmp_path, *about)
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
    with (
        Course(access=Access(ssl_certificate=files[0], ssl_key=files[1])) as course,
        pytest.raises(ConfigError, match=re.escape(told)),
    ):
        PolicyClient(f"tcps://localhost:{course.port}", "remote", timeout=PATIENCE)
