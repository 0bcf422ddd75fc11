"""`replay` repeats the episode of a crash capsule in this process, up to the env step that failed.

One environment is created as it was for its place, reset with the same seed and given the same actions through the
adapter that stepped it. `menv replay` calls it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any

from menv.adapters.convert import to_local_base_env
from menv.adapters.local_envs import LocalEnvs
from menv.algorithms.training.crash_capsules import Capsule, read_capsule
from menv.env_calls import close_env
from menv.env_context import EnvContext
from menv.errors import ConfigError, EnvFault, MenvError
from menv.registry import import_first, is_known, make_env
from menv.wrappers.group_agents import as_team

SAME, ANOTHER, NONE = "same fault", "another fault", "no fault, differs"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        verdict: `SAME`, `ANOTHER` or `NONE`.
        env_steps: Env steps that were replayed.
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
    modules: Sequence[str] = (),
) -> ReplayReport:
    """Repeat the episode of a crash capsule in this process, which ends with it if the environment ends its process.

    Args:
        path: The capsule.
        env: The environment, as for an algorithm; None if this process knows the capsule's by name.
        env_config: Settings over the capsule's, such as secrets, which it does not hold.
        modules: Modules, or paths of .py files, to import first.

    Raises:
        ConfigError: The file is not a capsule of this version, or the environment is unknown here.
    """
    capsule = read_capsule(path)
    import_first(modules, "replay: module")
    if env is None and not is_known(capsule.env):
        raise ConfigError(
            f"capsule: its environment {capsule.env!r} is not registered here, expected a known name, because "
            "nothing is imported for a file; name it with --env MODULE:CLASS, or its module with --import MODULE"
        )
    context = EnvContext(
        capsule.settings(env_config or {}), worker_index=capsule.worker_index, vector_index=capsule.vector_index,
        num_workers=capsule.num_workers,
    )  # fmt: skip
    return _Replay(capsule).run(capsule.env if env is None else env, context)


class _Replay:
    """One replay: takes the recorded actions from each agent's list as the agent waits."""

    def __init__(self, capsule: Capsule) -> None:
        self._capsule = capsule
        actions = capsule.actions_by_agent()
        self._actions = {agent: iter(own) for agent, own in actions.items()}
        self._left = sum(map(len, actions.values()))
        self._steps = 0

    def run(self, env: Any, context: EnvContext) -> ReplayReport:
        """Create the environment and replay in it."""
        created = make_env(env, context)
        # The agents of a capsule may be groups that the run has formed.
        grouped = self._actions.keys().isdisjoint(getattr(created, "possible_agents", None) or self._actions)
        created = as_team(created, None, grouped=grouped)
        try:
            base_env = to_local_base_env(
                created, seed=self._capsule.seed, first_index=self._capsule.env_index,
                restart_failed_sub_environments=False,
            )  # fmt: skip
            if not isinstance(base_env, LocalEnvs):
                raise ConfigError(
                    f"capsule: {type(created).__name__} is not an environment that menv steps one by one, expected the "
                    "gymnasium.Env or MultiAgentEnv of the capsule; name it with --env"
                )
            try:
                return self._repeat(base_env)
            except MenvError as error:
                return self._judged(error)
        finally:
            with suppress(Exception):
                close_env(created)

    def _repeat(self, base_env: LocalEnvs) -> ReplayReport:
        base_env.begin_at({0: self._capsule.began})
        ready = base_env.poll()
        while self._left:
            agents = [base_env.seats[slot][1] for slot in ready.slots.tolist()]
            actions = [action for agent in agents for action in islice(self._actions.get(agent, iter(())), 1)]
            if ready.episodes or not agents or len(actions) < len(agents):
                return self._report(NONE, f"the episode takes another course after env step {self._steps}")
            self._left -= len(agents)
            base_env.send_actions(ready.slots, actions)
            try:
                ready = base_env.poll()
            finally:
                self._steps = int(base_env.env_steps[0]) - self._capsule.began
        return self._report(NONE, f"nothing was raised in {self._steps} env steps")

    def _judged(self, error: MenvError) -> ReplayReport:
        fault, recorded = error._fault or EnvFault.of(0, 0, self._capsule.where, error), self._capsule
        same = _place(fault.origin) == _place(recorded.origin)
        early = f"; {self._left} actions are left" if self._left else ""
        verdict = SAME if same and not self._left else ANOTHER
        return self._report(verdict, f"{fault.line} at env step {self._steps}{early}", fault.trace.rstrip())

    def _report(self, verdict: str, what: str, *trace: str) -> ReplayReport:
        lines = [f"{verdict}: {what}", f"recorded: {self._capsule.line}"]
        if verdict in (ANOTHER, NONE) and self._capsule.seed is None:
            lines.append("the seed of the reset is unknown: set seed in the run's config")
        return ReplayReport(verdict, self._steps, "\n".join([*lines, *trace]))


def _place(origin: tuple[str, str, int]) -> tuple[str, str, int]:
    return origin[0], PurePath(origin[1]).name, origin[2]
