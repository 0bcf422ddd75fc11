"""The files of `deploy/` and the Dockerfile, without containers: the same commands, and a real nginx with TLS."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
import msgspec
import pytest

from menv.cli.main import main
from menv.serving import PolicyClient
from tests.cli.servers import line_with, serving
from tests.house.sources import ROOT
from tests.serving.certificates import made_in, needs_openssl

REQUIRED = "MENV_NGINX"
"""Set to `required`, this environment variable makes a machine without nginx fail instead of skipping."""

AROUND = """
daemon off;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  {site}
}}
"""


@contextmanager
def nginx(folder: Path, server: str) -> Iterator[str]:
    """Run nginx with the project's configuration in front of a server; give the address for clients."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        assert os.environ.get(REQUIRED) != "required", "nginx is not installed"
        pytest.skip("nginx is not installed")
    certificate, key = made_in(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = (ROOT / "deploy" / "nginx.conf").read_text("utf-8")
    for there, here in {
        "menv:9900": server.removeprefix("http://"),
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/nginx/tls/fullchain.pem": str(certificate),
        "/etc/nginx/tls/privkey.pem": str(key),
    }.items():
        assert there in site
        site = site.replace(there, here)
    # The worker of a master that is root would be a user who cannot read the test's folder.
    (folder / "nginx.conf").write_text("user root;" * (os.getuid() == 0) + AROUND.format(site=site))
    process = subprocess.Popen([program, "-p", folder, "-e", "stderr", "-c", folder / "nginx.conf"])
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                continue
        yield f"https://localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def play(client: PolicyClient) -> None:
    env = gym.make("CartPole-v1")
    episode, obs, over = client.start_episode(), env.reset(seed=0)[0], False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(client.get_action(episode, obs))
        client.log_returns(episode, float(reward))
        over = terminated or truncated
    client.end_episode(episode, obs)


def status(request: str | urllib.request.Request, trusting: ssl.SSLContext) -> int:
    try:
        with urllib.request.urlopen(request, context=trusting) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@needs_openssl
@pytest.mark.slow
def test_the_composed_server_is_healthy_speaks_tls_and_follows_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["train", "CartPole-v1", "--no-zoo", "--stop", "training_iteration=1", "--run-dir", "runs/pole"])
        == 0
    )
    Path("runs/token").write_text("a long secret\n")
    services = msgspec.yaml.decode((ROOT / "deploy" / "compose.yaml").read_bytes())["services"]
    with serving(*services["menv"]["command"][1:], folder=tmp_path / "runs") as (address, output):
        address = address.replace("0.0.0.0", "127.0.0.1")
        (check,) = re.findall(r"HEALTHCHECK .*CMD (\[.*\])", (ROOT / "Dockerfile").read_text("utf-8"))
        _, *healthy = json.loads(check.replace("http://127.0.0.1:9900", address))
        assert subprocess.run([sys.executable, *healthy], check=False).returncode == 0
        with nginx(tmp_path, address) as proxy:
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
            with PolicyClient(proxy, "remote", token="a long secret") as client:
                play(client)
                assert main(["train", "--resume", "runs/pole", "--stop", "training_iteration=2"]) == 0
                line_with("serving the policies of", output)
                play(client)
            trusting = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
            assert status(f"{proxy}/health", trusting) == 404
            token = {"Authorization": "Bearer a long secret"}
            small, large = (
                urllib.request.Request(f"{proxy}/rllink", body, token)
                for body in (b'{"type": "GET_CONFIG"}', b" " * 1_100_000)
            )
            assert (status(small, trusting), status(large, trusting)) == (200, 413)
