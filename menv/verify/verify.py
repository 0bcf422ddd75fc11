"""`verify_backends` plays an environment in every back-end that can host it and reports the first difference.

A `Task` is what all of them play: an environment, fixed policies, a number of env steps and a seed. `BACKENDS` is the
table of ways to host it. Each returns a `RunRecord`, whose digest is compared with the first one's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.convert import to_local_base_env
from menv.algorithms.config.read_config import override, read_config
from menv.algorithms.ppo.ppo import PPOConfig, PPORecipe
from menv.algorithms.training.network_group_builder import build_groups
from menv.algorithms.training.torch_threads import check_packages
from menv.base_env import SINGLE_AGENT, AgentId, Column
from menv.checking.values import same
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
from menv.workers.engine import EngineName
from menv.workers.engines import make_engine, ray_runs
from menv.workers.messages import UnsendableError
from menv.workers.registered_envs import known_here

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
                    f"verify_backends: {type(first).__name__} is an external environment, expected an environment that "
                    "menv steps; compare digests of results instead"
                )
            kind = env_kind(first)
            self.kind: str = kind if kind in _COPIES else WHOLE
            self.num_envs = num_envs if self.kind != WHOLE else base_env.num_envs or 1
            self.env_steps = max(1, env_steps // self.num_envs)
            self._policy_map, self._groups = self._policies(first, base_env)
        finally:
            base_env.stop()

    def make_env(self, index: int, worker: tuple[int, int] = (0, 0)) -> Any:
        """Create sub-environment number `index` of a worker, `(number, of how many)`; 0 of 0 is the driver."""
        config = dict(self.config.env_config)
        context = EnvContext(config, worker_index=worker[0], vector_index=index, num_workers=worker[1])
        return make_env(self.env, context)

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
        groups, _ = build_groups(specs, configs, {name: PPORecipe() for name in configs}, self.seed)
        return policy_map, groups


def _acting_by_onnx(config: PPOConfig) -> PPOConfig:
    """Return settings that skip the comparison with torch, whose import takes longer than the task."""
    stock = config.model.custom_model is None and config.inference == "auto"
    return replace(config, inference="onnx") if stock else config


def _by_spaces(agents: Iterable[AgentId], *spaces: AgentSpaces) -> PolicyMap | None:
    """Return one policy for each group of agents with equal spaces; None if all have the same spaces."""
    kinds: list[Any] = []
    owners: dict[AgentId, str] = {}
    for agent in agents:
        found = [kind.of_policy("any", PolicySpec(), [agent]) for kind in spaces]
        if found not in kinds:
            kinds.append(found)
        owners[agent] = f"policy_{kinds.index(found)}"
    return PolicyMap(sorted(set(owners.values())), partial(_owner, owners)) if len(kinds) > 1 else None


def _owner(owners: Mapping[AgentId, str], agent_id: AgentId) -> str:
    return owners[agent_id]


Key = tuple[int, int, int, str]
"""Env step of the sub-environment, its index among all, step of the trajectory, and agent."""
Row = dict[str, Any]
"""The columns of a timestep, each of which depends on the ones before it, and its hash."""

COMPARED = ("obs", "action_mask", "actions", "rewards", "terminateds", "truncateds")


@dataclass(slots=True)
class RunRecord:
    """The timesteps of all samplers of one back-end, and their digest."""

    digest: Digest = field(default_factory=Digest)
    rows: dict[Key, Row] = field(default_factory=dict)


def _rows(sampler: Sampler, batch: SampleBatch, first_index: int) -> dict[Key, Row]:
    chunks, episodes = batch.segments, sampler.episodes
    env_indices = chunks.spread("env_id")
    env_t = batch[SampleBatch.ENV_T] if SampleBatch.ENV_T in batch else _counted(env_indices)
    agents = [
        repr(episodes[eps_id].get_agents()[number] if eps_id in episodes else SINGLE_AGENT)
        for eps_id, number in zip(chunks.eps_id.tolist(), chunks.agent_index.tolist(), strict=True)
    ]
    named = np.repeat(agents, chunks.lengths).tolist()
    places = zip(
        env_t.tolist(),
        (env_indices + first_index).tolist(),
        batch[SampleBatch.T].tolist(),
        named,
        strict=True,
    )
    columns = {name: batch[name] for name in COMPARED if name in batch}
    over = columns["terminateds"] | columns["truncateds"]
    last, hashes = batch[SampleBatch.NEXT_OBS], row_hashes(batch)
    return {
        key: {name: column[row] for name, column in columns.items()}
        | {"last_obs": last[row] if over[row] else None, "hash": hashes[row]}
        for row, key in enumerate(places)
    }


def _counted(env_indices: Column) -> Column:
    """Return [N] the number of earlier timesteps of the same sub-environment."""
    order = np.argsort(env_indices, kind="stable")
    in_order = env_indices[order]
    counts = np.empty_like(env_indices)
    counts[order] = np.arange(len(order)) - np.searchsorted(in_order, in_order)
    return counts


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
    return to_local_base_env(env, seed=task.seed, first_index=first_index)


def play_share(task: Task, samplers: int, number: int, host: Host = host_copies) -> RunRecord:
    """Play the share of sampler `number`; each has as many sub-environments as the others, or one more."""
    size, more = divmod(task.num_envs, samplers)
    first_index = number * size + min(number, more)
    # A single sampler is the driver.
    worker = (number + 1, samplers) if samplers > 1 else (0, 0)
    base_env = host(task, lambda index: task.make_env(index, worker), size + (number < more), first_index)
    try:
        sampler = task.sampler(base_env, first_index)
        if not base_env.lockstep:
            # Episodes date timesteps and name agents. Lockstep environments need neither and use the faster loop.
            sampler.keep_episodes()
        batch = sampler.sample()
        rows: dict[Key, Row] = {}
        for one in batch.policy_batches.values():
            rows |= _rows(sampler, one, first_index)
        sampler.finish(batch)
        return RunRecord(sampler.digest, rows)
    finally:
        base_env.stop()


def play_here(task: Task, host: Host = host_copies) -> RunRecord:
    """Play a task in this process."""
    return play_share(task, 1, 0, host)


_HASH_SEEDS = ("1", "2")


def play_in_workers(task: Task, engine_name: EngineName) -> RunRecord:
    """Play a task in two processes, or one for a vectorised environment; UnsendableError if none can create it."""
    engine, record = make_engine(engine_name), RunRecord()
    known, samplers = known_here(task.env), 1 if task.kind == WHOLE else min(2, task.num_envs)
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
            share = worker.answer()
            record.digest.add(share.digest)
            record.rows |= share.rows
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
        on_ray: Whether the environments run in processes of Ray.
    """

    name: str
    kinds: tuple[str, ...]
    play: Callable[[Task], RunRecord]
    on_ray: bool = False


BACKENDS: tuple[Backend, ...] = (
    Backend("copies", (*_COPIES, WHOLE), play_here),
    Backend("copies once more", (*_COPIES, WHOLE), play_here),
    Backend("VectorEnv", (SINGLE,), partial(play_here, host=host_in_vector_env)),
    Backend("workers (process)", (*_COPIES, WHOLE), partial(play_in_workers, engine_name="process")),
    Backend("workers (ray)", (*_COPIES, WHOLE), partial(play_in_workers, engine_name="ray"), on_ray=True),
)
"""The others are compared with the first one."""

_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """The first timestep that differs between two back-ends.

    Attributes:
        env_index: Index of the sub-environment among all.
        agent: The agent's id, as `repr` shows it.
        step: Index in the agent's trajectory.
        env_step: Env steps of the sub-environment at that time.
        column: The column that differs, with the index in it; "row" if only one of the two has this timestep.
        values: Both values, shortened.
    """

    env_index: int
    agent: str
    step: int
    env_step: int
    column: str
    values: tuple[str, str]

    def __str__(self) -> str:
        where = f"env {self.env_index}, env step {self.env_step}, agent {self.agent}"
        return f"{where}: {self.column} is {self.values[0]} and {self.values[1]}"


def first_difference(one: RunRecord, other: RunRecord) -> Difference:
    """Return the first difference, in env steps of its sub-environment, of two records with different digests."""
    none: Row = {"hash": None}
    key = min(
        key
        for key in one.rows.keys() | other.rows.keys()
        if one.rows.get(key, none)["hash"] != other.rows.get(key, none)["hash"]
    )
    env_step, env_index, step, agent = key
    mine, theirs = one.rows.get(key), other.rows.get(key)
    pair: list[Any]
    if mine is None or theirs is None:
        column, pair = "row", ["no such row" if row is None else "one" for row in (mine, theirs)]
    else:
        column = next(name for name in mine if not same(mine[name], theirs.get(name)))
        pair = [mine[column], theirs.get(column)]
        if np.ndim(pair[0]) and np.shape(pair[0]) == np.shape(pair[1]):
            place = int(np.argmax(np.ravel(pair[0]) != np.ravel(pair[1])))
            column, pair = f"{column}[{place}]", [np.ravel(value)[place] for value in pair]
    return Difference(
        env_index, agent, step, env_step, column, (f"{pair[0]}"[:_LONGEST], f"{pair[1]}"[:_LONGEST])
    )


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify_backends`.

    Attributes:
        env: The environment's name.
        num_envs: Number of sub-environments.
        env_steps: Env steps of all sub-environments together.
        seed: The seed of resets, sampling and weights.
        digests: By back-end, in the order of play; all are compared with the first.
        differences: The first difference of each back-end whose digest differs from the first one's.
        left_out: Back-ends that were not played, with the reason.
    """

    env: str
    num_envs: int
    env_steps: int
    seed: int
    digests: Mapping[str, str]
    differences: Mapping[str, Difference]
    left_out: Mapping[str, str]

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
        for name in others:
            found = self.differences.get(name)
            lines.append(
                f"  {name}: " + (self.digests[name] if found is None else f"differs, first at {found} there")
            )
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
    explore, unless the config says otherwise. `docs/how_to/verifying.md` says what each back-end finds.

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
    for name, value, least in (("num_envs", num_envs, 1), ("env_steps", env_steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"verify_backends: {name} is {value!r}, expected an integer of at least {least}; correct it"
            )
    import_first(modules, "verify_backends: module")
    task = Task(env, config, num_envs, env_steps, seed)
    reference: RunRecord | None = None
    digests, left_out = {}, {}
    differences: dict[str, Difference] = {}
    for backend in [one for one in backends if task.kind in one.kinds]:
        if backend.on_ray and not (ray_runs() if ray is None else ray):
            left_out[backend.name] = f"{backend.name}: Ray does not run; pass ray=True (--ray) to start it"
            continue
        try:
            record = backend.play(task)
        except UnsendableError as error:
            left_out[backend.name] = f"{backend.name}: {error}"
            continue
        except MenvError as error:
            error.add_note(f"while verify_backends played in the back-end {backend.name!r}")
            raise
        # Only the reference keeps its timesteps, which may be large.
        reference = reference or record
        digests[backend.name] = record.digest.hex()
        if record.digest != reference.digest:
            differences[backend.name] = first_difference(reference, record)
    played = task.num_envs * task.env_steps
    return VerifyReport(describe_env(env), task.num_envs, played, seed, digests, differences, left_out)
