"""The first row in which two back-ends differ, and in which of its columns.

`menv.verify.verify` asks for it when digests differ. It looks at records and knows nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from menv.segments import Column
from menv.verify.record import COMPARED, Part, Record

Row = tuple[Part, int]

_NO_ROW = "no such row"
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two back-ends part.

    Attributes:
        env_index: Of the sub-environment, among all.
        agent: The agent's id, as `repr` shows it.
        episode: Number of the episode in its sub-environment, from 0, those without a row left out.
        step: Index of the row in the agent's trajectory.
        env_step: Env steps of the sub-environment when the row was observed.
        column: What differs, with the index of the number in it; "row" if only one of the two has such a row.
        values: What both have there, shortened.
    """

    env_index: int
    agent: str
    episode: int
    step: int
    env_step: int
    column: str
    values: tuple[str, str]

    def __str__(self) -> str:
        where = f"env {self.env_index}, agent {self.agent}, episode {self.episode}, step {self.step}"
        return f"{where} (env step {self.env_step}): {self.column} is {self.values[0]} and {self.values[1]}"


def first_difference(one: Record, other: Record) -> Difference:
    """Return the first row that differs, in env steps of its sub-environment, of two records with other digests."""
    rows = [_rows(one), _rows(other)]
    found = [
        _place(rows[key not in rows[0]][key])
        for key in rows[0].keys() | rows[1].keys()
        if _hash(rows[0].get(key)) != _hash(rows[1].get(key))
    ]
    *_, key = min(found)
    pair = rows[0].get(key), rows[1].get(key)
    whose, record = (pair[0], one) if pair[0] is not None else (pair[1], other)
    assert whose is not None
    part, row = whose
    column, values = _column(*pair)
    return Difference(
        int(part["env_index"][row]), str(part["agent"][row]), _episode(record, part, row), int(part["t"][row]),
        int(part["env_t"][row]), column, values,
    )  # fmt: skip


def _rows(record: Record) -> dict[Any, Row]:
    found: dict[Any, Row] = {}
    for part in record.parts:
        keys = zip(*(part[name].tolist() for name in ("eps_id", "life", "t")), strict=True)
        found |= {key: (part, row) for row, key in enumerate(keys)}
    return found


def _hash(row: Row | None) -> int | None:
    return None if row is None else int(row[0]["hash"][row[1]])


def _place(row: Row) -> tuple[int, int, int, str, Any]:
    """Return what tells the first of several rows, and its key."""
    part, number = row
    key = tuple(int(part[name][number]) for name in ("eps_id", "life", "t"))
    return (
        int(part["env_t"][number]), int(part["env_index"][number]), key[2], str(part["agent"][number]), key
    )  # fmt: skip


def _episode(record: Record, part: Part, row: int) -> int:
    """Return the number of a row's episode among those of its sub-environment that have rows."""
    began: dict[int, int] = {}
    for other in record.parts:
        mine = other["env_index"] == part["env_index"][row]
        for eps_id, env_t in zip(other["eps_id"][mine].tolist(), other["env_t"][mine].tolist(), strict=True):
            began[eps_id] = min(env_t, began.get(eps_id, env_t))
    return sorted(began, key=began.__getitem__).index(int(part["eps_id"][row]))


def _column(one: Row | None, other: Row | None) -> tuple[str, tuple[str, str]]:
    if one is None or other is None:
        texts = [_NO_ROW if row is None else "one" for row in (one, other)]
        return "row", (texts[0], texts[1])
    for name in COMPARED:
        if name == "last_obs" and not (_flag(one) or _flag(other)):
            continue
        pair = [part[name][row] if name in part else None for part, row in (one, other)]
        if not _same(*pair):
            return _value(name, pair[0], pair[1])
    return "last_obs", ("given", "not given")


def _flag(row: Row) -> bool:
    part, number = row
    return bool(part["terminateds"][number] or part["truncateds"][number])


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    first, second = np.asarray(one), np.asarray(other)
    alike = first.shape == second.shape and first.dtype == second.dtype
    return alike and first.tobytes() == second.tobytes()


def _value(name: str, one: Any, other: Any) -> tuple[str, tuple[str, str]]:
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.ndim == 0:
        return name, (_short(one), _short(other))
    flat = one.ravel(), other.ravel()
    place = next(index for index in range(len(flat[0])) if not _same(flat[0][index], flat[1][index]))
    return f"{name}[{place}]", (_short(flat[0][place]), _short(flat[1][place]))


def _short(value: Column) -> str:
    text = repr(np.asarray(value).item()) if np.ndim(value) == 0 else f"of shape {np.shape(value)}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
