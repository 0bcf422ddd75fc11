"""The trees of small two-player games of OpenSpiel and Pgx: from states to states that a move may lead to.

`menv.playing.exploitability` walks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.wrappers.open_spiel_env import OpenSpielEnv
from menv.wrappers.pgx_env import PgxEnv

MOST_NODES = 50_000
"""Histories of the largest game that is walked; Leduc poker has 9,457."""
_DRAWS = 2**16
_AT_ONCE = 1024
_CARDS = ("kuhn_poker", "leduc_holdem")
"""Games of Pgx that draw all cards at the beginning."""

Outcomes: TypeAlias = list[tuple[float, Any]]
"""Chances and states that follow a move, after the moves of chance."""


class TooLargeError(Exception):
    """The game has more than MOST_NODES histories."""


class Seen(NamedTuple):
    """A state: its player, -1 at the end; what that one sees; its legal moves; what each player was paid just now."""

    player: int
    obs: Mapping[str, npt.NDArray[Any]]
    legal: list[int]
    paid: npt.NDArray[np.float64]


class SpielGame:
    """A game of OpenSpiel, which says what chance may do."""

    def __init__(self, env: OpenSpielEnv) -> None:
        self._env = env
        self._left = MOST_NODES

    def begin(self) -> Outcomes:
        return self._dealt(1.0, self._env.game.new_initial_state())

    def look(self, states: Sequence[Any]) -> Iterator[Seen]:
        for state in states:
            if state.is_terminal():
                yield Seen(-1, {}, [], np.array(state.returns()))
            else:
                player, legal = state.current_player(), state.legal_actions()
                yield Seen(player, self._env.seen_in(state, player, legal), legal, np.zeros(2))

    def play(self, states: Sequence[Any], moves: Sequence[int]) -> list[Outcomes]:
        return [self._dealt(1.0, state.child(move)) for state, move in zip(states, moves, strict=True)]

    def _dealt(self, chance: float, state: Any) -> Outcomes:
        self._left -= 1
        if self._left < 0:
            raise TooLargeError
        if not state.is_chance_node():
            return [(chance, state)]
        return [
            one
            for move, share in state.chance_outcomes()
            for one in self._dealt(chance * share, state.child(move))
        ]


class PgxGame:
    """A game of Pgx whose chances are all in its first state: it is dealt often, and equal deals are counted."""

    def __init__(self, env: PgxEnv) -> None:
        import jax

        self._env = env
        key = jax.random.PRNGKey(0)
        self._init = jax.jit(jax.vmap(env.env.init))
        self._step = jax.jit(jax.vmap(lambda state, move: env.env.step(state, move, key)))
        self._look = jax.jit(jax.vmap(env.seen_in))

    def begin(self) -> Outcomes:
        import jax

        leaves, shape = jax.tree.flatten(self._init(jax.random.split(jax.random.PRNGKey(0), _DRAWS)))
        columns = [np.asarray(leaf) for leaf in leaves]
        rows = np.concatenate([column.reshape(_DRAWS, -1).astype(np.float64) for column in columns], 1)
        _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
        return [
            (count / _DRAWS, jax.tree.unflatten(shape, [column[place] for column in columns]))
            for place, count in zip(first.tolist(), counts.tolist(), strict=True)
        ]

    def look(self, states: Sequence[Any]) -> Iterator[Seen]:
        for part in _parts(states):
            obs, player, over, rewards = self._look(_stacked(part))
            for row in range(len(part)):
                seen = {name: np.asarray(column[row]) for name, column in obs.items()}
                ended = bool(over[row])
                legal = [] if ended else np.flatnonzero(seen["action_mask"]).tolist()
                yield Seen(
                    -1 if ended else int(player[row]), seen, legal, np.asarray(rewards[row], np.float64)
                )

    def play(self, states: Sequence[Any], moves: Sequence[int]) -> list[Outcomes]:
        import jax

        found: list[Outcomes] = []
        for part, own in zip(_parts(states), _parts(moves), strict=True):
            after = jax.tree.map(
                np.asarray, self._step(_stacked(part), _stacked([np.int32(move) for move in own]))
            )
            found += [[(1.0, jax.tree.map(lambda leaf: leaf[row], after))] for row in range(len(part))]  # noqa: B023
        return found


Game: TypeAlias = SpielGame | PgxGame


def game_of(env: Any) -> Game | None:
    """Return the tree of an environment's game, None if it is not of two players who move in turn."""
    if isinstance(env, PgxEnv) and env.env.id in _CARDS:
        return PgxGame(env)
    if isinstance(env, OpenSpielEnv):
        kind = env.game.get_type()
        if (env.game.num_players(), kind.dynamics) == (2, kind.Dynamics.SEQUENTIAL):
            return SpielGame(env)
    return None


def _parts(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]


def _stacked(states: Sequence[Any]) -> Any:
    """Return states as one of arrays with `_AT_ONCE` rows, so that nothing is compiled twice."""
    import jax

    full = [*states, *[states[-1]] * (_AT_ONCE - len(states))]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *full)
