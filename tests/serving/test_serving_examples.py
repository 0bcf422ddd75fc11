"""Servers and clients of the examples, as processes that a newcomer would start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.sources import ROOT

LIMIT_S = 240


def started(name: str, *arguments: str, folder: Path = ROOT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


@contextlib.contextmanager
def serving(folder: Path, name: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server on a free port, with its run folder in a folder; yield it and the port."""
    server = started(name, "--port=0", *arguments, folder=folder)
    try:
        assert server.stdout is not None
        first = server.stdout.readline()
        assert "listening at " in first, first
        yield server, first.rpartition(":")[2].strip()
    finally:
        server.kill()
        server.communicate()


def stopped(server: subprocess.Popen[str]) -> str:
    """Return what a server printed, after Ctrl-C."""
    server.send_signal(signal.SIGINT)
    return finished(server)


def finished(process: subprocess.Popen[str]) -> str:
    """Return what a process printed, once it has ended as it should."""
    try:
        printed, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", "remote"])
def test_a_game_of_two_teams_is_played_elsewhere(mode: str, tmp_path: Path) -> None:
    with serving(tmp_path, "unity3d_server") as (server, port):
        client = started("unity3d_client", f"--inference-mode={mode}", f"--port={port}", "--games=2")
        assert finished(client).count("'purple_1'") == 2
        stopped(server)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("mode", ["local", "remote"])
@pytest.mark.parametrize("run", ["PPO", "DQN"])
def test_clients_learn_cartpole_together(run: str, mode: str, clients: int, tmp_path: Path) -> None:
    with serving(tmp_path, "cartpole_server", f"--run={run}") as (server, port):
        playing = [
            started("cartpole_client", f"--inference-mode={mode}", f"--port={port}", "--stop-reward=200")
            for _ in range(clients)
        ]
        for client in playing:
            last = finished(client).splitlines()[-21:-1]
            assert sum(float(line.rpartition(" ")[2]) for line in last) / 20 >= 200.0
        assert '"iterations": ' in stopped(server)


@pytest.mark.slow
def test_rllink_clients_learn_cartpole(tmp_path: Path) -> None:
    with serving(tmp_path, "cartpole_server", "--transport=rllink") as (server, port):
        last = finished(started("rllink_client", f"--port={port}", folder=tmp_path)).splitlines()[-21:-1]
        assert sum(float(line.rpartition(" ")[2]) for line in last) / 20 >= 200.0
        stopped(server)
