"""`PlayServer`: a page on this machine where a person plays against the policies of a run.

The page is one file, `page.html`. It sends JSON objects over a WebSocket and gets one answer to each: `new` starts a
game, `move` takes an action, `advance` lets a policy act. One thread plays all games, so
that environments and policies are used by one thread only.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
import socket
import struct
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId
from menv.errors import ConfigError, ContractError, MenvError, MissingExtraError, in_words
from menv.playing.game import Game, Position
from menv.serving.transports.access import Access, bind

try:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect
    from uvicorn import Config, Server
except ImportError as error:
    raise MissingExtraError(
        "--browser: the packages starlette and uvicorn are not installed, expected them for the page; "
        "run: pip install 'menv-rl[serve]'"
    ) from error

_log = logging.getLogger("menv")

_PAGE = Path(__file__).with_name("page.html")
_MAX_MESSAGE = 4096
"""Bytes of a message of the page."""
_MAX_GAMES = 8
"""Pages that are open at the same time."""
_MANY_AGENTS = 4
"""With more agents, the page does not show the move of each policy."""
_MAX_MOVES = 200
"""Moves of policies between two answers then."""
_TRY_AGAIN = 1013


class PlayServer:
    """Serves the page; each page that is open has a game of its own.

    Args:
        make_game: Makes a game; called once at first, and for further pages that are open at the same time.
        title: The run's name, for the page.
        human: The agent that the person plays at first; None takes the first one with Discrete actions.
        port: The port on 127.0.0.1; 0 chooses a free one.

    Attributes:
        url: The page's address.

    Raises:
        ConfigError: No agent has Discrete actions, or the port is taken.
    """

    def __init__(
        self,
        make_game: Callable[[], Game],
        *,
        title: str,
        human: AgentId | None = None,
        port: int = 0,
    ) -> None:
        self._access = Access()
        self._make_game = make_game
        game = make_game()
        try:
            self._about = _about(game, title, human)
            self._socket = bind(self._access.address, port, socket.socket)
        except BaseException:
            game.close()
            raise
        self.url = "http://{}:{}/".format(*self._socket.getsockname())
        self._free = [game]
        self._num_open = 0
        self._thread = ThreadPoolExecutor(1, "menv-play")
        self._text = _PAGE.read_text("utf-8")
        app = Starlette(routes=[Route("/", self._page), WebSocketRoute("/play", self._play)])
        self._server = Server(Config(
            app, log_level="critical", access_log=False, lifespan="off", proxy_headers=False, server_header=False,
            ws_max_size=_MAX_MESSAGE, timeout_graceful_shutdown=1,
        ))  # fmt: skip

    def run(self) -> None:
        """Serve until `stop`, Ctrl-C or SIGTERM."""
        try:
            asyncio.run(self._server.serve([self._socket]))
        finally:
            self._thread.shutdown()
            for game in self._free:
                game.close()

    def stop(self) -> None:
        """End `run`; may be called in another thread."""
        self._server.should_exit = True

    async def _page(self, request: Request) -> Response:
        if why := self._stranger(request):
            return PlainTextResponse(why, 403)
        return HTMLResponse(self._text, headers={"content-security-policy": _policy(self._text)})

    async def _play(self, socket: WebSocket) -> None:
        if self._stranger(socket):
            await socket.close()
            return
        await socket.accept()
        if self._num_open >= _MAX_GAMES:
            await socket.close(
                _TRY_AGAIN, f"{_MAX_GAMES} games are open, expected fewer; close another page."
            )
            return
        self._num_open += 1
        loop = asyncio.get_running_loop()
        table = None
        try:
            table = await loop.run_in_executor(self._thread, self._open)
            await socket.send_text(json.dumps({"game": self._about}))
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                answer = await loop.run_in_executor(self._thread, table.answer, message.get("text"))
                await socket.send_text(json.dumps(answer))
        except WebSocketDisconnect:
            pass
        finally:
            self._num_open -= 1
            if table is not None:
                self._free.append(table.game)

    def _open(self) -> _Table:
        game = self._free.pop() if self._free else self._make_game()
        return _Table(game, self._about["seats"])

    def _stranger(self, connection: HTTPConnection) -> str | None:
        """Return why a request is refused: its page is another one, or its host name was bound to this machine."""
        host, origin = connection.headers.get("host"), connection.headers.get("origin")
        if origin not in (None, f"http://{host}"):
            return "not_allowed: the header Origin names another page"
        return self._access.stranger(None, host)


class _Table:
    """A game and the page that shows it."""

    def __init__(self, game: Game, seats: list[str]) -> None:
        self.game = game
        self._seats = {str(agent): agent for agent in game.agents if str(agent) in seats}
        self._position: Position | None = None
        # Counts positions, so that a message about an earlier one is refused.
        self._turn = 0

    def answer(self, text: str | None) -> dict[str, Any]:
        """Return the answer to a message."""
        try:
            found = self._act(_read(text))
        except MenvError as error:
            found = {"error": str(error)}
            if self._position is not None:
                found["position"] = self._shown(self._position)
        except Exception as error:
            # Of the environment: the person can start another game.
            _log.exception("menv play: the game failed")
            self._position = None
            found = {"error": f"The game failed ({in_words(error)}); start a new game."}
        return found

    def _act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        game, kind = self.game, message.get("do")
        if kind == "new":
            game.human = self._seat(message.get("seat"))
            self._show(game.start())
        elif kind in ("move", "advance"):
            position = self._current(message.get("turn"))
            if kind == "move":
                self._show(game.step(self._action(position, message.get("action"))))
            elif position.agent != game.human:
                self._show(game.advance(1 if len(game.agents) <= _MANY_AGENTS else _MAX_MOVES))
        else:
            raise ContractError(f"message: do is {kind!r:.40}, expected new, move or advance")
        assert self._position is not None
        return {"position": self._shown(self._position)}

    def _seat(self, name: object) -> AgentId:
        if not isinstance(name, str) or name not in self._seats:
            raise ContractError(f"new: seat is {name!r:.60}, expected one of {list(self._seats)[:20]}")
        return self._seats[name]

    def _current(self, turn: object) -> Position:
        if self._position is None or self._position.done:
            raise ContractError("move: no game is running, expected one; start a new game")
        if turn != self._turn:
            raise ContractError(
                "move: it is about an earlier position, expected the current one; choose again"
            )
        return self._position

    def _action(self, position: Position, action: object) -> int:
        if position.agent != self.game.human:
            raise ContractError(
                f"move: it is the turn of {str(position.agent)!r}, expected yours; wait for it"
            )
        if type(action) is not int or action not in position.legal:
            raise ContractError(
                f"move: {action!r:.40} is not legal here, expected one of {list(position.legal)[:20]}; choose again"
            )
        return action

    def _show(self, position: Position) -> None:
        self._position = position
        self._turn += 1

    def _shown(self, position: Position) -> dict[str, Any]:
        """Return a position as JSON values."""
        board = _board(self.game)
        chances = position.probabilities or {}
        picture = None if board else position.picture
        return {
            "turn": self._turn,
            "agent": None if position.agent is None else str(position.agent),
            "actions": [
                {"action": action, "name": name, "probability": chances.get(action)}
                for action, name in zip(position.legal, position.names, strict=True)
            ],
            "cells": None if board is None else board["cells"],
            "text": picture if isinstance(picture, str) else None,
            "image": _data_url(picture) if isinstance(picture, np.ndarray) else None,
            "returns": {str(agent): value for agent, value in position.returns.items()},
            "steps": position.steps,
            "done": position.done,
            "outcome": position.outcome,
        }


def _about(game: Game, title: str, human: AgentId | None) -> dict[str, Any]:
    """Return what stays the same in all games."""
    seats = game.seats(human)
    game.start()
    board = _board(game)
    spec = getattr(game.env, "spec", None)
    return {
        "env": str(getattr(spec, "id", None) or type(getattr(game.env, "unwrapped", game.env)).__name__),
        "run": title,
        "agents": [str(agent) for agent in game.agents],
        "seats": seats,
        "seat": seats[0] if human is None else str(human),
        "board": None if board is None else {key: board[key] for key in ("rows", "columns", "by")},
    }


def _board(game: Game) -> dict[str, Any] | None:
    """Return the board that an environment declares: `metadata["board"]` is (rows, columns), `board` its cells."""
    env = getattr(game.env, "unwrapped", game.env)
    shape = (getattr(env, "metadata", None) or {}).get("board")
    if shape is None:
        return None
    rows, columns = shape
    cells = [int(owner) for owner in env.board]
    counts = {
        int(space.n) if isinstance(space := game.action_space(agent), gym.spaces.Discrete) else 0
        for agent in game.agents
    }
    by = {frozenset({rows * columns}): "cell", frozenset({columns}): "column"}.get(frozenset(counts))
    if by is None or len(cells) != rows * columns:
        raise ConfigError(
            f"{type(env).__name__}: metadata['board'] is {shape}, board has {len(cells)} cells and agents have "
            f"{sorted(counts)} actions, expected a cell or a column for each action; correct metadata['board']"
        )
    return {"rows": rows, "columns": columns, "by": by, "cells": cells}


def _read(text: str | None) -> Mapping[str, Any]:
    try:
        message = json.loads(text or "")
    except (ValueError, RecursionError):
        raise ContractError('message: it is no JSON, expected an object such as {"do": "advance"}') from None
    if not isinstance(message, dict):
        raise ContractError(
            f'message: it is a {type(message).__name__}, expected an object such as {{"do": "advance"}}'
        )
    return message


def _policy(page: str) -> str:
    """Return the content security policy: the page's own script and style run, and nothing else is loaded."""
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _data_url(picture: npt.NDArray[np.uint8]) -> str:
    """Return a picture [height, width, 3] as a PNG."""
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
