"""Drives a runner: one long play, and short repeatable plays whose recorded steps can be compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from menv.adapters.validation import MAX_EMPTY_STEPS
from menv.checking.codes import Broken
from menv.checking.runners import EnvRunner, Key, RunnerStep
from menv.checking.values import same, sample_action, usable_mask
from menv.spaces import own_copy, values_in

ActionFn: TypeAlias = Callable[[Any, Any], Any]
"""`actions(obs, agent_id) -> action`."""
ActionLog: TypeAlias = list[dict[Key, Any]]


class Actor:
    """Chooses the actions of all waiting agents: recorded, random, or from the user's function.

    Attributes:
        action_log: The actions so far.
    """

    def __init__(
        self,
        seed: int,
        action_fn: ActionFn | None,
        action_log: ActionLog | None = None,
        *,
        same_for_all: bool = False,
    ) -> None:
        """Prepare one play.

        Args:
            seed: Seed of the random actions.
            action_fn: Chooses the actions instead.
            action_log: Recorded actions, repeated for the same agents at the same timestep.
            same_for_all: Give all agents the action of the first one.
        """
        self._rng = np.random.default_rng(seed)
        self._action_fn = action_fn
        self._recorded = action_log or []
        self._same_for_all = same_for_all
        self.action_log: ActionLog = []

    @property
    def is_random(self) -> bool:
        return self._action_fn is None

    def answer(self, runner: EnvRunner, timestep: RunnerStep) -> dict[Key, Any]:
        """Return an action for each waiting agent."""
        step = len(self.action_log)
        recorded = self._recorded[step] if step < len(self._recorded) else {}
        if recorded.keys() == timestep.waiting.keys():
            answers = dict(recorded)
        elif self._same_for_all and timestep.waiting:
            key, obs = next(iter(timestep.waiting.items()))
            answers = dict.fromkeys(timestep.waiting, self._action(runner, key, obs))
        else:
            answers = {key: self._action(runner, key, obs) for key, obs in timestep.waiting.items()}
        self.action_log.append(answers)
        return dict(answers)

    def _action(self, runner: EnvRunner, key: Key, obs: Any) -> Any:
        _, action_space = runner.spaces(key)
        if self._action_fn is None:
            return frozen(sample_action(action_space, self._rng, usable_mask(obs, action_space)))
        action = self._action_fn(obs, key[1])
        if not action_space.contains(action):
            message = f"agent {key[1]!r}: the action given is no element of {action_space}"
            runner.collector.add("ME094", message, runner.env_steps)
        return action


def frozen(action: Any) -> Any:
    """Make the arrays in an action read-only."""
    for part in values_in(action):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return action


class Entry(NamedTuple):
    """A copied timestep of a play, or the error that ended the play.

    Attributes:
        env_steps: Env steps since the beginning of the play.
        acting: Keys of the agents that act next, in order.
    """

    env_steps: int
    acting: Any
    obs: Any
    rewards: Any = None
    flags: Any = None
    broken: Broken | None = None

    @property
    def raised(self) -> str:
        return self.broken.message if self.broken is not None else ""


def _entry_of(timestep: RunnerStep, env_steps: int) -> Entry:
    return Entry(
        env_steps,
        list(timestep.waiting),
        own_copy(timestep.shown),
        own_copy(timestep.rewards),
        own_copy(timestep.flags),
    )


def first_difference(one: list[Entry], other: list[Entry]) -> tuple[int, str] | None:
    """Return env step and subject of the first difference, None if there is none."""
    for mine, theirs in zip(one, other, strict=False):
        if theirs.raised or mine.raised:
            if theirs.raised != mine.raised:
                return mine.env_steps, f"in one of them {theirs.raised or mine.raised}"
            continue
        for name in ("acting", "obs", "rewards", "flags"):
            if not same(getattr(mine, name), getattr(theirs, name)):
                return mine.env_steps, f"{'the waiting agents' if name == 'acting' else name} differ"
    if len(one) != len(other):
        return min(one[-1:] + other[-1:])[0], "their lengths differ"
    return None


@contextmanager
def _reuse_reported(runner: EnvRunner, timestep: RunnerStep) -> Iterator[None]:
    """Report observations and infos of `timestep` that the steps within the context change."""
    kept = own_copy(timestep.shown)
    infos = {key: copy.copy(info) for key, info in timestep.infos.items() if isinstance(info, dict)}
    yield
    for key, obs in timestep.shown.items():
        if not same(obs, kept.get(key)):
            message = f"agent {key[1]!r}: the observation of the timestep before has changed"
            runner.collector.add("ME070", message, runner.env_steps)
    for name, info in infos.items():
        if not same(timestep.infos[name], info):
            message = f"the info of {name!r} of the timestep before has changed"
            runner.collector.add("ME074", message, runner.env_steps)


During: TypeAlias = Callable[[RunnerStep], AbstractContextManager[Any]]
"""Changes a timestep while the environment takes the next step."""

EPISODES = 3
EPISODE_STEPS = 40
"""Usual length of a short play: number of episodes, and env steps after which each is stopped."""


def play_at_length(runner: EnvRunner, actor: Actor, seed: int, env_steps: int) -> None:
    """Play for `env_steps` env steps; only the first reset gets a seed."""
    timestep = runner.reset(seed)
    # Env steps without an action are counted to their end: the count is what is checked.
    while runner.env_steps < env_steps or (runner.idle and runner.env_steps <= env_steps + MAX_EMPTY_STEPS):
        with _reuse_reported(runner, timestep):
            timestep = runner.reset(None) if timestep.over else _step(runner, actor, timestep)
    runner.finish()
    if not runner.episodes:
        runner.collector.add("ME049", f"no episode ended within {runner.env_steps} env steps")


def _step(runner: EnvRunner, actor: Actor, timestep: RunnerStep) -> RunnerStep:
    try:
        return runner.step(actor.answer(runner, timestep))
    except Broken as broken:
        masked = any(
            usable_mask(obs, runner.spaces(key)[1]) is not None for key, obs in timestep.waiting.items()
        )
        if broken.finding == "ME090" and masked and actor.is_random:
            broken.finding = "ME053"
            broken.message = f"an action that the mask allows was taken and {broken.message}"
        raise


def play_episodes(
    runner: EnvRunner,
    actor: Actor,
    seed: int | None,
    length: tuple[int, int],
    during: During = nullcontext,
) -> Iterator[Entry]:
    """Yield the timesteps of a few short episodes; a crash is the last entry.

    Args:
        runner: The environment.
        actor: Chooses the actions.
        seed: Seed of the first episode, counted up for the next ones; None for no seeds.
        length: Number of episodes, and env steps after which each is stopped.
        during: Context around each step.
    """
    start = runner.env_steps
    episodes, steps = length
    try:
        for episode in range(episodes):
            timestep = runner.reset(None if seed is None else seed + episode)
            begin = runner.env_steps
            yield _entry_of(timestep, runner.env_steps - start)
            while not timestep.over and runner.env_steps - begin < steps:
                answers = actor.answer(runner, timestep)
                with during(timestep):
                    timestep = runner.step(answers)
                    entry = _entry_of(timestep, runner.env_steps - start)
                yield entry
    except Broken as broken:
        yield Entry(runner.env_steps - start, None, None, broken=broken)
