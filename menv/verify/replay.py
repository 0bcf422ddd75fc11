"""`replay` repeats the episode of a crash capsule in this process, up to the env step that failed.

One environment is created as it was for its place, reset with the same seed and given the same actions through the
adapter that stepped it, so that errors and refusals are the same ones. `menv replay` calls it.
"""

from __future__ import annotations

import multiprocessing
import os
import pdb
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

from menv.adapters.convert import to_local_base_env
from menv.adapters.local_envs import LocalEnvs
from menv.algorithms.crash_capsules import Capsule, read_capsule
from menv.base_env import Ready
from menv.env_context import EnvContext
from menv.errors import ConfigError, ContractError, EnvCrashError, EnvFault, MenvError
from menv.registry import import_first, is_known, make_env
from menv.sampling.infer_policies import AgentSpaces
from menv.sampling.policy_group import outside_space_error
from menv.spaces import OutsideSpaceError, close_env, why_outside

SAME, ANOTHER, NONE, STOPPED = "same fault", "another fault", "no fault, differs", "stopped"
_LOST = "WorkerLostError"
_NO_ACTIONS: Iterator[Any] = iter(())


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        verdict: `SAME`, `ANOTHER`, `NONE`, or `STOPPED` where it was asked to stop.
        env_steps: Env steps that were taken.
        text: The whole report.
    """

    verdict: str
    env_steps: int
    text: str

    def __str__(self) -> str:
        return self.text


def replay(
    path: str | os.PathLike[str],
    env: Any = None,
    env_config: Mapping[str, Any] | None = None,
    *,
    until_step: int | None = None,
    debug: bool = False,
    modules: Sequence[str] = (),
) -> ReplayReport:
    """Repeat the episode of a crash capsule.

    Args:
        path: The capsule.
        env: The environment, as for an algorithm; None if this process knows the capsule's by name.
        env_config: Settings over the capsule's, such as secrets, which it does not hold.
        until_step: Stop after so many env steps.
        debug: Take the last step in the debugger `pdb`.
        modules: Modules, or paths of .py files, to import first.

    Raises:
        ConfigError: The file is no capsule of this version, the environment is unknown here, or the actions are not
            known.
    """
    capsule = read_capsule(path)
    import_first(modules, "replay: module")
    if env is None and not is_known(capsule.env):
        raise ConfigError(
            f"capsule: its environment {capsule.env!r} is not registered here, expected a known name, because "
            "nothing is imported for a file; name it with --env MODULE:CLASS, or its module with --import MODULE"
        )
    if capsule.actions is None:
        raise ConfigError(
            "capsule: it holds no actions, expected those since the reset; environments whose steps others take, "
            "vectorised ones and policies with connectors that act cannot be repeated: its traceback is all there is"
        )
    context = EnvContext(
        capsule.settings(env_config or {}), worker_index=capsule.worker_index, vector_index=capsule.vector_index,
        num_workers=capsule.num_workers,
    )  # fmt: skip
    created = make_env(capsule.env if env is None else env, context)
    base_env = to_local_base_env(
        created, seed=capsule.seed, first_index=capsule.env_index, restart_failed_sub_environments=False
    )
    if not isinstance(base_env, LocalEnvs):
        raise ConfigError(
            f"capsule: {type(created).__name__} is no environment that menv steps one by one, expected the "
            "gymnasium.Env or MultiAgentEnv of the capsule; name it with --env"
        )
    try:
        repeated = _Replay(capsule, base_env, created)
        if capsule.origin[0] == _LOST and not debug:
            return repeated.run_apart(until_step)
        return repeated.run(until_step, debug)
    finally:
        with suppress(Exception):
            close_env(created)


class _Replay:
    """One replay: takes the recorded actions from each agent's list as the agent waits."""

    def __init__(self, capsule: Capsule, base_env: LocalEnvs, env: Any) -> None:
        self._capsule = capsule
        self._base_env = base_env
        self._env = env
        actions = capsule.actions_by_agent()
        self._actions = {agent: iter(own) for agent, own in actions.items()}
        self._left = sum(map(len, actions.values()))
        # Whether the debugger stops at the next call of the environment.
        self._breaks = False

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return pdb.runcall(method, *args, **kwargs) if self._breaks else method(*args, **kwargs)

    @property
    def _steps(self) -> int:
        return int(self._base_env.env_steps[0]) - self._capsule.began

    def run_apart(self, until_step: int | None) -> ReplayReport:
        """Replay in a child of this process, which may end with the environment."""
        context = multiprocessing.get_context("fork")
        reader, writer = context.Pipe(duplex=False)
        child = context.Process(target=lambda: writer.send(self.run(until_step, False)))
        child.start()
        writer.close()
        report: ReplayReport | None = None
        with suppress(EOFError):
            report = reader.recv()
        child.join()
        return report or self._report(SAME, f"the process ended with exit code {child.exitcode}")

    def run(self, until_step: int | None, debug: bool) -> ReplayReport:
        base_env, inner = self._base_env, getattr(self._env, "unwrapped", self._env)
        for method in ("reset", "step") if debug else ():
            setattr(inner, method, partial(self._call, getattr(inner, method)))
        self._breaks = debug and not self._left
        try:
            base_env.begin_at({0: self._capsule.began})
            ready = base_env.poll()
            while self._left:
                if until_step is not None and self._steps >= until_step:
                    return self._report(STOPPED, f"after env step {self._steps}, as asked")
                agents = [base_env.seats[slot][1] for slot in ready.slots.tolist()]
                actions = [next(self._actions.get(agent, _NO_ACTIONS), _NO_ACTIONS) for agent in agents]
                if ready.episodes or not agents or any(action is _NO_ACTIONS for action in actions):
                    return self._report(
                        NONE, f"the episode takes another course after env step {self._steps}"
                    )
                self._left -= len(agents)
                self._breaks = debug and not self._left
                base_env.send_actions(ready.slots, actions)
                ready = base_env.poll()
            self._check_observations(ready)
        except MenvError as error:
            return self._judged(error)
        return self._report(NONE, f"nothing was raised in {self._steps} env steps")

    def _check_observations(self, ready: Ready) -> None:
        """Refuse observations outside their space, as the sampler does."""
        spaces = AgentSpaces(self._env, "observation")
        for row, slot in enumerate(ready.slots.tolist()):
            agent = self._base_env.seats[slot][1]
            space = spaces.found(agent)
            why = None if space is None else why_outside(space, ready.obs[row])
            if why is not None and self._capsule.origin[0] == ContractError.__name__:
                outside = OutsideSpaceError(row, why)
                raise outside_space_error(0, agent, f"env step {self._steps}", outside, space)

    def _judged(self, error: MenvError) -> ReplayReport:
        crashed = isinstance(error, EnvCrashError) and error.__cause__ is not None
        found: BaseException = error.__cause__ or error if crashed else error
        fault, recorded = EnvFault.of(0, 0, self._capsule.where, found), self._capsule
        same = _said(fault.line) == _said(recorded.line) or _place(fault.origin) == _place(recorded.origin)
        early = f"; {self._left} actions are left" if self._left else ""
        verdict = SAME if same and not self._left else ANOTHER
        return self._report(verdict, f"{fault.line} at env step {self._steps}{early}", fault.trace)

    def _report(self, verdict: str, what: str, trace: str = "") -> ReplayReport:
        lines = [f"{verdict}: {what}", f"recorded: {self._capsule.line}"]
        if verdict in (ANOTHER, NONE) and self._capsule.seed is None:
            lines.append("the run had no seed, so that its resets cannot be repeated: set seed in its config")
        return ReplayReport(verdict, self._steps, "\n".join([*lines, *[trace.rstrip()][: bool(trace)]]))


def _place(origin: tuple[str, str, int]) -> tuple[str, str, int]:
    return origin[0], PurePath(origin[1]).name, origin[2]


def _said(line: str) -> str:
    """Return the type and the message of a fault, without numbers of sub-environments and env steps."""
    return re.sub(r"\benv( step)? \d+", "env", line).rpartition(" in ")[0]
