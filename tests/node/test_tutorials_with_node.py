"""Readers who follow the tutorials with Node.js see what these show."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.doc_blocks import follow


@pytest.mark.slow
def test_the_simulator_in_node_learns_over_http(node_modules: Path, tmp_path: Path) -> None:
    follow("docs/tutorials/nodejs_simulator.md", tmp_path, {"30_000": "4_000"})


@pytest.mark.slow
def test_the_exported_policy_balances_the_pole_in_node_and_in_a_browser(
    node_modules: Path, tmp_path: Path
) -> None:
    (tmp_path / "node_modules").symlink_to(node_modules, target_is_directory=True)
    follow("docs/tutorials/deploy_onnx.md", tmp_path)
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)
    ) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        with Browser() as page:
            page.open(f"http://127.0.0.1:{files.server_port}/")
            page.wait_for("Number(document.getElementById('steps').textContent) > 100")
        files.shutdown()
