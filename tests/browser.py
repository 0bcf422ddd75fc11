"""A headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

from tests.chromium import chromium

_TIMEOUT = 30.0


class Browser:
    """A page in a browser of its own; a context manager."""

    def __init__(self, *flags: str, width: int = 1000, height: int = 760) -> None:
        self._number = 0
        self.logged: list[str] = []
        """Errors of the page's script."""
        with ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            self._process = stack.enter_context(self._started(*flags))
            stack.callback(self._process.terminate)
            self._socket = stack.enter_context(connect(self._address(), max_size=None, proxy=None))
            for domain in ("Page", "Runtime"):
                self.send(f"{domain}.enable")
            self.resize(width, height)
            self._stack = stack.pop_all()

    def _started(self, *flags: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={self._folder}",
                *flags, "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def _address(self) -> str:
        file = Path(self._folder, "DevToolsActivePort")
        give_up = time.monotonic() + _TIMEOUT
        while time.monotonic() < give_up:
            if file.exists() and "\n" in file.read_text():
                with urllib.request.urlopen(f"http://127.0.0.1:{file.read_text().split()[0]}/json") as found:
                    pages = [one for one in json.load(found) if one["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
            time.sleep(0.05)
        raise AssertionError(f"Chromium has not started ({self._process.poll()})")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(_TIMEOUT))
            if message.get("method") == "Runtime.exceptionThrown":
                self.logged.append(json.dumps(message["params"]["exceptionDetails"]))
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return dict(message["result"])

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Show the page at this size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip

    def open(self, url: str) -> None:
        """Load a page."""
        self.send("Page.navigate", url=url)
        self.wait_for(f"location.href === {url!r} && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        told = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until an expression is true and return its value."""
        give_up = time.monotonic() + _TIMEOUT
        while not (value := self.evaluate(script)):
            assert time.monotonic() < give_up, f"waited for {script}: {self.text()}; {self.logged}"
            time.sleep(0.02)
        return value

    def text(self, selector: str = "body") -> str:
        """Return the text that an element shows."""
        return str(self.evaluate(f"document.querySelector({selector!r})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """Click into the middle of an element with the mouse."""
        place = self.evaluate(
            f"(() => {{ const box = document.querySelector({selector!r}); box.scrollIntoView({{block: 'nearest'}});"
            " const at = box.getBoundingClientRect();"
            " return {x: at.x + at.width / 2, y: at.y + at.height / 2} })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def screenshot(self, file: Path) -> None:
        """Write what the page shows as a PNG."""
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))
