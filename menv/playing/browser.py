"""`PlayServer`: a page on this machine where a person plays against the policies of a run.

The page is one file, `page.html`. It posts JSON objects and gets one answer to each: `about` describes the game, `new`
starts one, `move` takes an action, `advance` lets a policy act, `reveal` shows what other agents may hide. There is one
game, which the latest page has. One thread plays it, because environments may not like several.
"""

from __future__ import annotations

import base64
import json
import logging
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId
from menv.errors import ConfigError, ContractError, MenvError, in_words
from menv.playing.game import Game, Position, metadata_of
from menv.tracking.local_page import LocalPage

_log = logging.getLogger("menv")

_PAGE = Path(__file__).with_name("page.html")


class PlayServer(LocalPage):
    """Serves the page of a game, and closes the game when `run` ends.

    Args:
        game: The game; the person plays `game.human` at first, or the first agent with Discrete actions.
        title: The run's name, for the page.
        port: The port on 127.0.0.1; 0 chooses a free one.

    Raises:
        ConfigError: No agent has Discrete actions, or the port is taken.
    """

    def __init__(self, game: Game, *, title: str, port: int = 0) -> None:
        self._game, self._about = game, _about(game, title)
        self._seats = {str(agent): agent for agent in game.agents if str(agent) in self._about["seats"]}
        self._position: Position | None = None
        # Counts positions, so that a message about an earlier one is refused.
        self._turn = 0
        self._thread = ThreadPoolExecutor(1, "menv-play")
        super().__init__(port, lambda: _PAGE.read_text("utf-8"), self._answer)

    def run(self) -> None:
        """Serve until Ctrl-C or `shutdown`."""
        try:
            super().run()
        finally:
            self._thread.shutdown()
            self._game.close()

    def _answer(self, text: bytes) -> str:
        return json.dumps(self._thread.submit(self._answered, text).result())

    def _answered(self, text: bytes) -> dict[str, Any]:
        try:
            return self._act(_read(text))
        except MenvError as error:
            found: dict[str, Any] = {"error": str(error)}
            if self._position is not None:
                found["position"] = self._shown(self._position)
        except Exception as error:
            # Of the environment: the person can start another game.
            _log.exception("menv play: the game failed")
            self._position = None
            found = {"error": f"The game failed ({in_words(error)}); start a new game."}
        return found

    def _act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        game, kind = self._game, message.get("do")
        if kind == "about":
            return {"game": self._about}
        if kind == "new":
            game.human = self._seat(message.get("seat"))
            self._show(game.start())
        elif kind in ("move", "advance", "reveal"):
            position = self._current(message.get("turn"))
            if kind == "reveal":
                self._show(game.reveal())
            elif kind == "move":
                self._show(game.step(self._action(position, message.get("action"))))
            elif position.agent != game.human:
                self._show(game.advance(1))
        else:
            raise ContractError(f"message: do is {kind!r:.40}, expected about, new, move, advance or reveal")
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
        if position.agent != self._game.human:
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
        board = _board(self._game)
        # The person sees no other agent's actions and probabilities.
        mine = position.agent == self._game.human
        actions = zip(position.legal, position.names, strict=True) if mine else ()
        chances = position.probabilities or {}
        picture = None if board else position.picture
        return {
            "turn": self._turn,
            "agent": None if position.agent is None else str(position.agent),
            "actions": [
                {"action": action, "name": name, "probability": chances.get(action)}
                for action, name in actions
            ],
            "asks": self._game.may_reveal and not self._game.show_all and not position.done,
            "cells": None if board is None else board["cells"],
            "text": picture if isinstance(picture, str) else None,
            "image": _data_url(picture) if isinstance(picture, np.ndarray) else None,
            "returns": {str(agent): value for agent, value in position.returns.items()},
            "steps": position.steps,
            "done": position.done,
            "outcome": position.outcome,
        }


def _about(game: Game, title: str) -> dict[str, Any]:
    """Return what stays the same in all games."""
    seats = game.seats(game.human)
    game.start()
    board = _board(game)
    spec = getattr(game.env, "spec", None)
    return {
        "env": str(getattr(spec, "id", None) or type(getattr(game.env, "unwrapped", game.env)).__name__),
        "run": title,
        "agents": [str(agent) for agent in game.agents],
        "seats": seats,
        "seat": seats[0] if game.human is None else str(game.human),
        "board": None if board is None else {key: board[key] for key in ("rows", "columns", "by")},
    }


def _board(game: Game) -> dict[str, Any] | None:
    """Return the board that an environment declares: `metadata["board"]` is (rows, columns), `board` its cells."""
    env = getattr(game.env, "unwrapped", game.env)
    shape = metadata_of(env).get("board")
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


def _read(text: bytes) -> Mapping[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise ContractError('message: it is not JSON, expected an object such as {"do": "advance"}') from None
    if not isinstance(message, dict):
        raise ContractError(
            f'message: it is a {type(message).__name__}, expected an object such as {{"do": "advance"}}'
        )
    return message


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
