"""HTTP: POST /rllink with one body, and one body as the response. Starlette and uvicorn do the protocol.

uvicorn's connections run in the serving thread's loop, accepted by our own listener: its server would wait for signals
and for clients that do not leave, and would not know connections that have sent nothing yet.
"""

from __future__ import annotations

import asyncio
import math

from menv.errors import MissingExtraError
from menv.serving.carriers.http_sessions import HttpSessions
from menv.serving.carriers.listener import Listener
from menv.serving.carriers.plain_http import unavailable


class HttpTransport(Listener):
    """Listens for HTTP clients.

    A request that names a conversation in the header `menv-session` (16 to 64 random bytes in hexadecimal, chosen
    by the client) goes on with it; one that names none is a conversation of its own. Where a token is needed, every
    request shows it in the header `Authorization: Bearer`.

    Args:
        port: 0 takes one that is free.

    Attributes:
        sessions: The conversations that are named.
    """

    sessions: HttpSessions

    def _prepare(self) -> None:
        try:
            from starlette.routing import Route, Router
            from uvicorn.config import Config
            from uvicorn.server import ServerState

            from menv.serving.carriers.http_connection import HttpConnection
            from menv.serving.carriers.http_endpoint import HttpEndpoint
        except ImportError as error:
            raise MissingExtraError(
                "HttpTransport: the packages starlette and uvicorn are not installed, expected them for this "
                "transport; run: pip install 'menv[serve]'"
            ) from error
        self.sessions = HttpSessions(self.handler, self.limits, self.faults)
        self._connection_type = HttpConnection
        self._state = ServerState()
        # `log_config` and `access_log` as they are here are those that touch no logger.
        self._config = Config(
            Router(
                [Route("/rllink", HttpEndpoint(self), methods=["POST", "OPTIONS"])], redirect_slashes=False
            ),
            loop="none",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=True,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=math.ceil(self.limits.idle_s) + 1,
        )
        self._config.load()

    async def stop(self) -> None:
        """Close the port, then all connections and conversations."""
        await super().stop()
        if not hasattr(self, "sessions"):
            return
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.sessions.end_all()

    def _connection(self) -> asyncio.Protocol:
        return self._connection_type(self, self._config, self._state)

    def _full(self) -> bytes:
        return unavailable(self.handler.refused(self._why_full()))

    def _swept(self, now: float) -> None:
        self.sessions.sweep(now)
