"""WebSocket: one message is one body. JSON goes out as text, anything else as binary; both are taken in."""

from __future__ import annotations

import asyncio

from menv.errors import MissingExtraError
from menv.serving.carriers.listener import Listener
from menv.serving.carriers.plain_http import unavailable


class WebSocketTransport(Listener):
    """Listens for WebSocket clients at the path `/rllink`, or `/`.

    It has a port of its own beside HTTP's. A client shows its token in the header `Authorization: Bearer`, or in its
    GET_CONFIG, because a web page cannot set headers of a WebSocket.

    Args:
        port: 0 takes one that is free.
    """

    reads_together = True

    def _prepare(self) -> None:
        try:
            from menv.serving.carriers.websocket_connection import WebSocketConnection
        except ImportError as error:
            raise MissingExtraError(
                "WebSocketTransport: the package websockets is not installed, expected it for this transport; "
                "run: pip install 'menv[serve]'"
            ) from error
        self._connection_type = WebSocketConnection

    def _connection(self) -> asyncio.Protocol:
        return self._connection_type(self)

    def _full(self) -> bytes:
        return unavailable(self.handler.refused(self._why_full()))
