"""`verify_backends` plays an environment in every back-end that can host it and reports the first difference.

A `Task` is what all of them play: an environment, fixed policies, a number of env steps and a seed. `BACKENDS` is the
table of ways to host it; a new way is a new entry. Each returns a `RunRecord`, whose digest is compared with the first
one's. `menv verify` prints the report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.convert import to_local_base_env
from menv.algorithms.algorithm import check_packages
from menv.algorithms.config.read_config import override, read_config
from menv.algorithms.network_group_builder import build_groups
from menv.algorithms.ppo.config import PPOConfig
from menv.algorithms.ppo.ppo import PPORecipe
from menv.base_env import SINGLE_AGENT, AgentId, Column
from menv.checking.values import state_of_generators, used_since
from menv.env_context import EnvContext
from menv.errors import ConfigError, MenvError
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec
from menv.registry import RegisteredEnv, describe_env, env_kind, import_first, make_env
from menv.sample_batch import SampleBatch
from menv.sampling.digest import Digest, row_hashes
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.infer_policies import AgentSpaces, resolve_agents, resolve_specs
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.sampler import Sampler
from menv.vector_env import VectorEnv
from menv.workers.convert import to_base_env
from menv.workers.engine import EngineName
from menv.workers.engines import make_engine, ray_runs
from menv.workers.pipe_channel import UnsendableError
from menv.workers.registered_envs import RemoteEnvSpec, known_here

SINGLE, MULTI, WHOLE = "single_agent", "multi_agent", "whole"
"""Kinds of environments: single-agent copies, multi-agent copies, and vectorised ones."""
_COPIES = (SINGLE, MULTI)


class Task:
    """An environment and fixed policies that any number of samplers can share.

    Attributes:
        env: What the registry creates environments from.
        settings: The config as the caller passed it.
        config: All settings.
        env_steps: Env steps of each sub-environment.
        kind: `SINGLE`, `MULTI` or `WHOLE`.
    """

    def __init__(
        self, env: Any, settings: Mapping[str, Any] | None, num_envs: int, env_steps: int, seed: int
    ) -> None:
        """Create one environment and, from its spaces, the policies."""
        self.env = env
        self.settings = dict(settings or {})
        self.seed = seed
        config = read_config(PPOConfig, self.settings, env)
        self.config = _acting_by_onnx(replace(config, seed=seed))
        first = self.make_env(0)
        base_env = to_local_base_env(first)
        try:
            if base_env.external:
                raise ConfigError(
                    f"verify_backends: {type(first).__name__} is an external environment, expected one "
                    "that is stepped; compare digests of results instead"
                )
            kind = env_kind(first)
            self.kind: str = kind if kind in _COPIES else WHOLE
            self.num_envs = num_envs if self.kind != WHOLE else base_env.num_envs or 1
            self.env_steps = max(1, env_steps // self.num_envs)
            self._policy_map, self._groups = self._policies(first, base_env)
        finally:
            base_env.stop()

    @property
    def name(self) -> str:
        """The environment's name for reports."""
        return describe_env(self.env)

    def make_env(self, index: int, worker_index: int = 0, num_workers: int = 0) -> Any:
        """Create sub-environment number `index` of a worker, 0 for the driver."""
        return make_env(self.env, self.context(index, worker_index, num_workers))

    def context(self, index: int, worker_index: int = 0, num_workers: int = 0) -> EnvContext:
        """Return the context that sub-environment number `index` of a worker is created with."""
        config = dict(self.config.env_config)
        return EnvContext(config, worker_index=worker_index, vector_index=index, num_workers=num_workers)

    def sampler(self, base_env: Adapter, first_index: int) -> Sampler:
        """Return a sampler for some of the sub-environments, with the same policies."""
        limit = FragmentLimit(self.env_steps, lockstep=base_env.lockstep)
        sampler = Sampler(
            base_env, self._policy_map, [group.clone() for group in self._groups], limit, seed=self.seed,
            first_index=first_index, observation_fn=self.config.multiagent.observation_fn,
        )  # fmt: skip
        sampler.explore = self.config.explore
        return sampler

    def _policies(self, first: Any, base_env: Adapter) -> tuple[PolicyMap, list[PolicyGroup]]:
        config, multi = self.config, self.config.multiagent
        declares, reshaped = base_env if base_env.lockstep else first, multi.observation_fn is not None
        observations = AgentSpaces(declares, "observation", config.observation_space, reshaped=reshaped)
        actions = AgentSpaces(declares, "action", config.action_space)
        policy_map = PolicyMap(multi.policies, multi.policy_mapping_fn)
        if multi.policies is None and self.kind == MULTI:
            agents = resolve_agents(policy_map, base_env, first)
            policy_map = _by_spaces(agents, observations, actions) or policy_map
        specs = resolve_specs(policy_map, base_env, first, observations, actions)
        configs = {
            name: override(config, spec.config, name)
            for name, spec in specs.items()
            if not spec.answers_itself
        }
        recipes = {name: PPORecipe() for name in configs}
        groups, _ = build_groups(specs, configs, recipes, self.seed, config)
        return policy_map, groups


def _acting_by_onnx(config: PPOConfig) -> PPOConfig:
    """Return settings that skip the comparison with torch, whose import takes longer than the task."""
    stock = config.model.custom_model is None and config.inference == "auto"
    return replace(config, inference="onnx") if stock else config


def _by_spaces(agents: Mapping[AgentId, str], *spaces: AgentSpaces) -> PolicyMap | None:
    """Return one policy for each group of agents with equal spaces; None if all have the same spaces."""
    kinds: list[tuple[Any, ...]] = []
    owners: dict[AgentId, str] = {}
    for agent in agents:
        found = tuple(kind.of_policy("any", PolicySpec(), [agent]) for kind in spaces)
        if found not in kinds:
            kinds.append(found)
        owners[agent] = f"policy_{kinds.index(found)}"
    if len(kinds) < 2:
        return None
    return PolicyMap(sorted(set(owners.values())), partial(_owner, owners))


def _owner(owners: Mapping[AgentId, str], agent_id: AgentId) -> str:
    return owners[agent_id]


Part = dict[str, Column]

COMPARED = ("obs", "action_mask", "actions", "rewards", "terminateds", "truncateds", "last_obs")
"""Columns, each of which depends on the ones before it."""


@dataclass(slots=True)
class RunRecord:
    """The timesteps of all samplers of one back-end.

    Attributes:
        digest: The digest of all of them.
        parts: Columns of [N] timesteps each: all of `COMPARED`, `hash`, the trajectory (`life`, `eps_id`, `env_index`
            among all, `agent` as text) and the time (`t` in the trajectory, `env_t` in the sub-environment).
    """

    digest: Digest = field(default_factory=Digest)
    parts: list[Part] = field(default_factory=list)

    def add(self, other: RunRecord) -> None:
        """Add the timesteps of other samplers."""
        self.digest.add(other.digest)
        self.parts += other.parts


def _part(sampler: Sampler, batch: SampleBatch, first_index: int) -> Part:
    chunks = batch.segments
    env_indices = chunks.spread("env_id")
    has_time = SampleBatch.ENV_T in batch
    part: Part = {
        "hash": row_hashes(batch),
        "life": chunks.spread("life"),
        "eps_id": chunks.spread("eps_id"),
        "env_index": env_indices + first_index,
        "agent": np.repeat(_agents(sampler, batch), chunks.lengths),
        "t": batch[SampleBatch.T],
        "env_t": batch[SampleBatch.ENV_T] if has_time else _counted(env_indices),
        "last_obs": batch[SampleBatch.NEXT_OBS],
    }
    return part | {name: _plain(batch[name]) for name in COMPARED if name in batch}


def _agents(sampler: Sampler, batch: SampleBatch) -> Column:
    """Return [S] the agents' ids as text, one for each trajectory chunk."""
    episodes, chunks = sampler.episodes, batch.segments
    names = [
        repr(episodes[eps_id].get_agents()[number] if eps_id in episodes else SINGLE_AGENT)
        for eps_id, number in zip(chunks.eps_id.tolist(), chunks.agent_index.tolist(), strict=True)
    ]
    return np.array(names, np.str_)


def _counted(env_indices: Column) -> Column:
    """Return [N] the number of earlier timesteps of the same sub-environment."""
    order = np.argsort(env_indices, kind="stable")
    in_order = env_indices[order]
    counts = np.empty_like(env_indices)
    counts[order] = np.arange(len(order)) - np.searchsorted(in_order, in_order)
    return counts


def _plain(column: Column) -> Column:
    if column.dtype != object:
        return column
    return np.array([repr(value) for value in column.tolist()], np.str_)


MakeEnv = Callable[[int], Any]
Host = Callable[[Task, MakeEnv, int, int], Adapter]
"""`(task, make_env, size, first_index)`: hosts `size` sub-environments."""


def host_copies(task: Task, make_env: MakeEnv, size: int, first_index: int) -> Adapter:
    """Host copies in this process, or one environment that has its own sub-environments."""
    size = 1 if task.kind == WHOLE else size
    return to_local_base_env(make_env(0), make_env, size, seed=task.seed, first_index=first_index)


def host_in_vector_env(task: Task, make_env: MakeEnv, size: int, first_index: int) -> Adapter:
    """Host copies of a gymnasium environment in one `VectorEnv`."""
    env = VectorEnv.vectorize_gym_envs(make_env, num_envs=size)
    return to_base_env(env, seed=task.seed, first_index=first_index)


def host_remotely(task: Task, make_env: MakeEnv, size: int, first_index: int, engine: EngineName) -> Adapter:
    """Host copies in two other processes."""
    return to_base_env(
        make_env(0), RemoteEnvSpec(task.env, task.context(0)), size, remote_envs=True,
        remote_envs_per_process=-(-size // 2), engine=engine, seed=task.seed, first_index=first_index,
    )  # fmt: skip


def play_share(task: Task, samplers: int, number: int, host: Host = host_copies) -> RunRecord:
    """Play the share of sampler `number`; each has as many sub-environments as the others, or one more."""
    size, more = divmod(task.num_envs, samplers)
    first_index = number * size + min(number, more)
    # A single sampler is the driver, number 0 of 0.
    worker = (number + 1, samplers) if samplers > 1 else (0, 0)
    base_env = host(task, lambda index: task.make_env(index, *worker), size + (number < more), first_index)
    try:
        sampler = task.sampler(base_env, first_index)
        if not base_env.lockstep:
            # Episodes date timesteps and name agents. Lockstep environments need neither and use the faster loop.
            sampler.keep_episodes()
        batch = sampler.sample()
        parts = [_part(sampler, one, first_index) for one in batch.policy_batches.values()]
        sampler.finish(batch)
        return RunRecord(sampler.digest, parts)
    finally:
        base_env.stop()


def play_here(task: Task, host: Host = host_copies, samplers: int = 1) -> RunRecord:
    """Play a task in this process with one or several samplers, one after another."""
    record, samplers = RunRecord(), min(samplers, task.num_envs)
    for number in range(samplers):
        record.add(play_share(task, samplers, number, host))
    return record


_HASH_SEEDS = ("1", "2")


def play_in_workers(task: Task, engine_name: EngineName, samplers: int = 2) -> RunRecord:
    """Play a task in a process for each sampler; raise UnsendableError if none can create the environment."""
    engine, record = make_engine(engine_name), RunRecord()
    known, samplers = known_here(task.env, task.settings), min(samplers, task.num_envs)
    try:
        with _other_hashes():
            workers = [
                engine.start(_Worker, task, known, samplers, number, label=f"worker {number + 1}")
                for number in range(samplers)
            ]
        for worker in workers:
            worker.ask(_Worker.play)
        for worker in workers:
            worker.answer()
            record.add(worker.answer())
    finally:
        engine.stop()
    return record


@contextmanager
def _other_hashes() -> Iterator[None]:
    """Let new processes hash strings in another way than this one, even if PYTHONHASHSEED is set."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = next(seed for seed in _HASH_SEEDS if seed != before)
    try:
        yield
    finally:
        del os.environ["PYTHONHASHSEED"]
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before


class _Worker:
    """Plays the share of one sampler in a worker process."""

    def __init__(self, task: Task, known: RegisteredEnv, samplers: int, number: int) -> None:
        known.register()
        self._share = task, samplers, number

    def play(self) -> RunRecord:
        return play_share(*self._share)


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to play a task.

    Attributes:
        name: Its name in reports.
        kinds: The kinds of environments that it can host.
        play: Plays the whole task.
        suspects: Likely causes of a difference, for the report.
        repeats: Whether it repeats the first back-end; a difference then explains the later ones.
        elsewhere: Whether the environments run in other processes.
        on_ray: Whether these are Ray's.
    """

    name: str
    kinds: tuple[str, ...]
    play: Callable[[Task], RunRecord]
    suspects: str = ""
    repeats: bool = False
    elsewhere: bool = False
    on_ray: bool = False


_NOT_ALONE = (
    "sub-environments that are not alone: attributes of a class or a module that they share, the global generators "
    "(random, numpy.random), or worker_index and vector_index of the EnvContext"
)
_ELSEWHERE = (
    "what differs from process to process: attributes of a class or a module, hash() of strings, the order of a set, "
    "the environment variables"
)


def _workers(engine: EngineName) -> Backend:
    play = partial(play_in_workers, engine_name=engine)
    return Backend(f"2 workers ({engine})", _COPIES, play, _ELSEWHERE, elsewhere=True, on_ray=engine == "ray")


def _remote(engine: EngineName) -> Backend:
    play = partial(play_here, host=partial(host_remotely, engine=engine))
    return Backend(
        f"remote environments ({engine})", _COPIES, play, _ELSEWHERE, elsewhere=True, on_ray=engine == "ray"
    )


BACKENDS: tuple[Backend, ...] = (
    Backend("copies", (*_COPIES, WHOLE), play_here),
    Backend(
        "copies once more", (*_COPIES, WHOLE), play_here,
        "what the seed of a reset does not decide: the time, the global generators (random, numpy.random), what an "
        "earlier environment left in a class or a module", repeats=True,
    ),
    Backend("2 samplers", _COPIES, partial(play_here, samplers=2), _NOT_ALONE),
    Backend("a sampler each", _COPIES, partial(play_here, samplers=1 << 30), _NOT_ALONE),
    Backend("VectorEnv", (SINGLE,), partial(play_here, host=host_in_vector_env), _NOT_ALONE),
    Backend(
        "another process", (*_COPIES, WHOLE), partial(play_in_workers, engine_name="process", samplers=1),
        "what differs from process to process: hash() of strings, the order of a set, ids of objects, the environment "
        "variables", elsewhere=True,
    ),
    _workers("process"),
    _remote("process"),
    _workers("ray"),
    _remote("ray"),
)  # fmt: skip
"""The others are compared with the first one."""

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
    rows, others = _rows(one), _rows(other)
    differing = [
        key
        for key in rows.keys() | others.keys()
        if key not in rows or key not in others or rows[key]["hash"] != others[key]["hash"]
    ]

    def time_of(key: Key) -> tuple[Any, ...]:
        row = rows.get(key) or others[key]
        return (row["env_t"], row["env_index"], row["t"], row["agent"], key)

    key = min(differing, key=time_of)
    known = rows if key in rows else others
    row = known[key]
    began: dict[int, int] = {}
    for same_env in (found for found in known.values() if found["env_index"] == row["env_index"]):
        eps_id = same_env["eps_id"]
        began[eps_id] = min(same_env["env_t"], began.get(eps_id, same_env["env_t"]))
    episode = sorted(began, key=began.__getitem__).index(row["eps_id"])
    column, values = _column(rows.get(key), others.get(key))
    return Difference(
        int(row["env_index"]), str(row["agent"]), episode, int(row["t"]), int(row["env_t"]), column, values
    )


Key = tuple[int, int, int]
Row = dict[str, Any]


def _rows(record: RunRecord) -> dict[Key, Row]:
    """Return the timesteps of a record by episode, trajectory and step."""
    found = [
        dict(zip(part, row, strict=True)) for part in record.parts for row in zip(*part.values(), strict=True)
    ]
    return {(row["eps_id"], row["life"], row["t"]): row for row in found}


def _column(one: Row | None, other: Row | None) -> tuple[str, tuple[str, str]]:
    if one is None or other is None:
        return "row", (_NO_ROW if one is None else "one", _NO_ROW if other is None else "one")
    over = any(row[flag] for row in (one, other) for flag in ("terminateds", "truncateds"))
    for name in COMPARED:
        pair = one.get(name), other.get(name)
        if (name != "last_obs" or over) and not _same(*pair):
            return _value(name, *pair)
    return "last_obs", ("given", "not given")


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
    _check_arguments(
        config, backends, modules, num_envs=(num_envs, 1), env_steps=(env_steps, 1), seed=(seed, 0)
    )
    import_first(modules, "verify_backends: module")
    task = Task(env, config, num_envs, env_steps, seed)
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
        except UnsendableError as error:
            left_out[backend.name] = f"{backend.name}: {error}"
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


def _check_arguments(config: Any, backends: Any, modules: Any, **counts: tuple[int, int]) -> None:
    wrong = ""
    if config is not None and not isinstance(config, Mapping):
        wrong = (
            f'config is {config!r:.100}, expected a dict of settings; write {{"env_config": {{"size": 5}}}}'
        )
    elif not isinstance(backends, Sequence) or {Backend} != set(map(type, backends)):
        wrong = f"backends is {backends!r:.100}, expected some of menv.verify.verify.BACKENDS; leave it out for all"
    elif not isinstance(modules, list | tuple) or not all(isinstance(one, str) and one for one in modules):
        wrong = f'modules is {modules!r:.100}, expected a list of names of modules, or of .py files; write ["my_game"]'
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            wrong = wrong or f"{name} is {value!r}, expected an integer of at least {least}; correct it"
    if wrong:
        raise ConfigError(f"verify_backends: {wrong}")
