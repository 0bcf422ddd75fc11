"""A server of W&B that accepts a run and what is logged to it, and may hang."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PROJECT = {"id": "p", "name": "games", "entity": {"id": "e", "name": "me"}}
_ANSWERS: dict[str, Any] = {
    "Viewer": {
        "viewer": {"id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}},
        "serverInfo": {"cliVersionInfo": {"max_cli_version": "9.0.0"}, "latestLocalVersionInfo": None},
    },
    "ServerFeaturesQuery": {"serverInfo": {"features": []}},
    "UpsertBucket": {
        "upsertBucket": {
            "bucket": {
                "id": "b", "name": "a-run", "displayName": "a-run", "description": None, "config": "{}",
                "sweepName": None, "historyLineCount": 0, "project": _PROJECT,
            },
            "inserted": True,
        }
    },
}  # fmt: skip


@contextmanager
def wandb_server(answers: threading.Event) -> Iterator[str]:
    """Serve and return the address; while `answers` is not set, requests wait."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            request = json.loads(data) if self.path == "/graphql" else {}
            files = request.get("variables", {}).get("files", [])
            urls = [{"name": name, "uploadUrl": f"{address}/{name}"} for name in files]
            made = {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": urls}}
            self._reply({"data": _ANSWERS.get(str(request.get("operationName")), made if files else {})})

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._reply({})

        def _reply(self, content: dict[str, Any]) -> None:
            answers.wait()
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    address = f"http://127.0.0.1:{http.server_port}"
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield address
    finally:
        http.shutdown()
        http.server_close()
