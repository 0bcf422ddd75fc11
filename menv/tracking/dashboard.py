"""The dashboard: the page of reports, live, for all runs in a folder. Only this machine can open it.

A browser holds one stream of server-sent events; a message has the list of runs and the report of the chosen ones, and
is sent when a file of them has changed. Pages of other sites cannot read it: the name of the host is checked.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from menv.errors import ConfigError, MissingExtraError
from menv.plain_files import path_given
from menv.tracking.report import page, report_data
from menv.tracking.run_folder import Run

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, Response, StreamingResponse
    from starlette.routing import Route
    from uvicorn import Config, Server
except ImportError as error:
    raise MissingExtraError(
        "dashboard: the packages starlette and uvicorn are not installed, expected them; run: pip install "
        "'menv-rl[serve]', or write a report with menv report"
    ) from error

HOST = "127.0.0.1"
_PAUSE_S, _PAUSES = 1.0, 20.0
"""Seconds between two looks at the files, and how much longer than a report takes to make."""
_MOST_LISTED = 200


class Dashboard:
    """Serves the runs in a folder, or one run.

    Args:
        folder: A folder of run folders, or a run folder.
        port: The port; 0 is any free one.

    Attributes:
        url: The address of the page.

    Raises:
        ConfigError: There is no such folder, or the port is taken.
    """

    def __init__(self, folder: str | PathLike[str] = "runs", port: int = 0) -> None:
        self._folder = path_given("dashboard", folder)
        if not self._folder.is_dir():
            raise ConfigError(
                f"dashboard: there is no folder {folder}, expected one with runs; train first, or pass another folder"
            )
        self._known: dict[Path, tuple[int, Run]] = {}
        self._socket = _listening(port)
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}/"
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False)
        app = Starlette(routes=[Route("/", _page), Route("/events", self._events)], middleware=[hosts])
        self._server = Server(Config(app, log_config=None, access_log=False, lifespan="off"))

    def run(self) -> None:
        """Answer browsers until Ctrl-C or `stop`."""
        with self._socket:
            self._server.run([self._socket])

    def stop(self) -> None:
        """Let `run` return; may be called in another thread."""
        self._server.should_exit = True

    async def _events(self, request: Request) -> Response:
        stream = self._messages(request.query_params.getlist("run"))
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def _messages(self, names: Sequence[str]) -> AsyncIterator[str]:
        shown: object = None
        while not self._server.should_exit:
            began = time.monotonic()
            runs = await asyncio.to_thread(self._runs)
            chosen = [run for run in runs if run.name in names] or runs[:1]
            stamp = [(run.path, run.is_running, _changed(run)) for run in (*runs, *chosen)]
            if stamp != shown:
                message = await asyncio.to_thread(_message, runs, chosen)
                yield f"data: {message}\n\n"
            shown = stamp
            # A report of many iterations must not keep training from the processor.
            due = began + max(_PAUSE_S, _PAUSES * (time.monotonic() - began))
            while time.monotonic() < due and not self._server.should_exit:
                await asyncio.sleep(0.1)

    def _runs(self) -> list[Run]:
        """Return the runs in the folder, the latest ones first."""
        found, paths = [], [self._folder]
        with suppress(OSError):
            paths += self._folder.iterdir()
        for path in paths:
            # A folder may vanish, and others are no runs.
            with suppress(OSError, ConfigError):
                stamp = (path / "config.json").stat().st_mtime_ns
                if path not in self._known or self._known[path][0] != stamp:
                    self._known[path] = stamp, Run(path)
                found.append(self._known[path][1])
        return sorted(found, key=_changed, reverse=True)[:_MOST_LISTED]


async def _page(request: Request) -> Response:
    return HTMLResponse(page({"live": True}))


def _message(runs: Sequence[Run], chosen: Sequence[Run]) -> str:
    listed = [
        {"name": run.name, "env": str(run.config.get("env")), "algorithm": str(run.config.get("algorithm")),
         "running": run.is_running, "chosen": run in chosen}
        for run in runs
    ]  # fmt: skip
    message: dict[str, Any] = {"runs": listed}
    try:
        message["data"] = report_data(chosen) if chosen else None
    except (ConfigError, OSError) as error:
        message["error"] = str(error)
    return json.dumps(message, separators=(",", ":"), default=str)


def _changed(run: Run) -> int:
    """Return when the last iteration ended, in ns."""
    for name in ("progress.csv", "config.json"):
        with suppress(OSError):
            return (run.path / name).stat().st_mtime_ns
    return 0


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"dashboard: port {port} cannot be used ({error}), expected a free one; choose another with --port, or "
            "--port 0 for any"
        ) from error
