"""`verify_backends` plays an environment in every back-end that can host it and reports the first difference.

`menv verify` prints its report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from menv.algorithms.algorithm import check_packages
from menv.base_env import Column
from menv.checking.env_runner import state_of_generators, used_since
from menv.errors import ConfigError, MenvError
from menv.registry import import_first
from menv.verify.backends import BACKENDS, COMPARED, Backend, NotHostedError, Part, RunRecord
from menv.verify.task import Task
from menv.workers.engines import ray_runs

Row = tuple[Part, int]

_NO_ROW = "no such row"
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """The first timestep that differs between two back-ends.

    Attributes:
        env_index: Index of the sub-environment among all.
        agent: The agent's id, as `repr` shows it.
        episode: Number of the episode in its sub-environment, from 0; episodes without timesteps do not count.
        step: Index in the agent's trajectory.
        env_step: Env steps of the sub-environment at that time.
        column: The column that differs, with the index in it; "row" if only one of the two has this timestep.
        values: Both values, shortened.
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


def first_difference(one: RunRecord, other: RunRecord) -> Difference:
    """Return the first difference, in env steps of its sub-environment, of two records with different digests."""
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


def _rows(record: RunRecord) -> dict[Any, Row]:
    found: dict[Any, Row] = {}
    for part in record.parts:
        keys = zip(*(part[name].tolist() for name in ("eps_id", "life", "t")), strict=True)
        found |= {key: (part, row) for row, key in enumerate(keys)}
    return found


def _hash(row: Row | None) -> int | None:
    return None if row is None else int(row[0]["hash"][row[1]])


def _place(row: Row) -> tuple[int, int, int, str, Any]:
    """Return the sort key of a row, which ends with its key in `_rows`."""
    part, number = row
    key = tuple(int(part[name][number]) for name in ("eps_id", "life", "t"))
    return (
        int(part["env_t"][number]), int(part["env_index"][number]), key[2], str(part["agent"][number]), key
    )  # fmt: skip


def _episode(record: RunRecord, part: Part, row: int) -> int:
    """Return the row's episode number among the recorded episodes of its sub-environment."""
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


@dataclass(frozen=True, slots=True)
class BackendFinding:
    """A back-end whose episodes differ from the first one's.

    Attributes:
        backend: Its name.
        first: The first difference; the first of its two values is the first back-end's.
        suspects: Likely causes; "" where an earlier finding explains the difference.
    """

    backend: str
    first: Difference
    suspects: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify_backends`.

    Attributes:
        env: The environment's name.
        num_envs: Number of sub-environments.
        env_steps: Env steps of all sub-environments together.
        seed: The seed of resets, sampling and weights.
        digests: By back-end, in the order of play; all are compared with the first.
        differences: Back-ends whose digests differ from the first one's.
        left_out: Back-ends that were not played, with the reason.
        generators: Names of the global generators that the environment sampled or seeded, "" for none.
    """

    env: str
    num_envs: int
    env_steps: int
    seed: int
    digests: Mapping[str, str]
    differences: tuple[BackendFinding, ...]
    left_out: Mapping[str, str]
    generators: str = ""

    @property
    def same(self) -> bool:
        """Whether all digests are equal."""
        return not self.differences

    @property
    def lines(self) -> list[str]:
        """The report as text."""
        reference, *others = self.digests
        count = f"{self.num_envs} environments, {self.env_steps} env steps, seed {self.seed}"
        verdict = "the same everywhere" if self.same else "not the same everywhere"
        lines = [f"{self.env}: {verdict} ({count})", f"  {reference}: {self.digests[reference]}"]
        found = {finding.backend: finding for finding in self.differences}
        for name in others:
            lines.append(f"  {name}: {'differs' if name in found else self.digests[name]}")
            if name in found:
                lines.append(f"    first at {found[name].first} there")
                lines += [f"    look for {text}" for text in [found[name].suspects] if text]
        if self.generators:
            lines.append(f"  it draws from {self.generators}, or seeds it")
        lines += [f"  left out, {why}" for why in self.left_out.values()]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines)


NUM_ENVS = 8
ENV_STEPS = 2_000


def verify_backends(
    env: Any,
    config: Mapping[str, Any] | None = None,
    *,
    num_envs: int = NUM_ENVS,
    env_steps: int = ENV_STEPS,
    seed: int = 0,
    backends: Sequence[Backend] = BACKENDS,
    ray: bool | None = None,
    modules: Sequence[str] = (),
) -> VerifyReport:
    """Play an environment with fixed policies in every back-end that can host it, and compare.

    The same seed and number of environments give bit-identical trajectories, however the environments are batched and
    distributed, unless the environment itself is not reproducible. The policies are untrained stock networks that
    explore, unless the config says otherwise.

    Args:
        env: A registered name, a gymnasium id, "package.module:Class", a class, or a creator that takes an
            `EnvContext`.
        config: Settings as for an algorithm, such as `env_config`, `model` and `multiagent`. Without policies all
            agents with the same spaces share one.
        num_envs: Total number of environments; a vectorised environment has its own number.
        env_steps: Env steps of all environments together.
        seed: Seed of resets, sampling and weights.
        backends: The back-ends to play; all are compared with the first.
        ray: Whether to start Ray and play its back-ends too; None plays them if Ray is running.
        modules: Modules, or paths of .py files, to import first, here and in another process, such as the ones that
            register `env`.

    Returns:
        A report; nothing is printed. `report.same` says whether all agree.

    Raises:
        ConfigError: `env` cannot be created again, or a setting is wrong.
        ContractError: The environment broke its interface.
        EnvCrashError: The environment raised; its `__notes__` name the back-end.
        MissingExtraError: onnx is not installed.
    """
    check_packages("verify_backends", "onnx")
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"verify_backends: config is {config!r:.100}, expected a dict of settings; write "
            '{"env_config": {"size": 5}}'
        )
    _check_backends(backends)
    _check_counts(num_envs=(num_envs, 1), env_steps=(env_steps, 1), seed=(seed, 0))
    _check_modules(modules)
    import_first(modules, "verify_backends: module")
    task = Task(env, config, num_envs, env_steps, seed, modules)
    reference: RunRecord | None = None
    digests, left_out = {}, {}
    differences: list[BackendFinding] = []
    repeats, generators = True, ""
    for backend in [one for one in backends if task.kind in one.kinds]:
        if backend.on_ray and not (ray_runs() if ray is None else ray):
            left_out[backend.name] = f"{backend.name}: Ray does not run; pass ray=True (--ray) to start it"
            continue
        before = state_of_generators()
        try:
            record = backend.play(task)
        except NotHostedError as error:
            left_out[backend.name] = str(error)
            continue
        except MenvError as error:
            error.add_note(f"while verify_backends played in the back-end {backend.name!r}")
            raise
        if not backend.elsewhere:
            generators = generators or used_since(before) or ""
        # Only the reference keeps its timesteps, which may be large.
        reference = reference or record
        digests[backend.name] = record.digest.hex()
        if record.digest != reference.digest:
            first = first_difference(reference, record)
            known = [finding.suspects for finding in differences]
            # A difference within this process explains differences between processes.
            explained = backend.suspects in known or (backend.elsewhere and differences)
            suspects = backend.suspects if repeats and not explained else ""
            differences.append(BackendFinding(backend.name, first, suspects))
            repeats = repeats and not backend.repeats
    played = task.num_envs * task.env_steps
    return VerifyReport(
        task.name, task.num_envs, played, seed, digests, tuple(differences), left_out, generators
    )  # fmt: skip


def _check_backends(backends: Any) -> None:
    if (
        not isinstance(backends, Sequence)
        or not backends
        or not all(isinstance(one, Backend) for one in backends)
    ):
        raise ConfigError(
            f"verify_backends: backends is {backends!r:.100}, expected some of menv.verify.backends.BACKENDS; leave it "
            "out for all of them"
        )


def _check_modules(modules: Any) -> None:
    if not isinstance(modules, list | tuple) or not all(isinstance(one, str) and one for one in modules):
        raise ConfigError(
            f"verify_backends: modules is {modules!r:.100}, expected a list of names of modules, or of .py files; "
            'write ["my_game"]'
        )


def _check_counts(**counts: tuple[int, int]) -> None:
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"verify_backends: {name} is {value!r}, expected an integer of at least {least}; correct it"
            )
