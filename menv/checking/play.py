"""Playing on a stage: once at length with every check on, and in short repeatable pieces.

`menv.checking.check` plays at length, the probes of seeds and ownership play pieces.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

from menv.adapters.validation import MAX_EMPTY_STEPS
from menv.checking.codes import Broken, FindingCollector
from menv.checking.env_runner import EnvRunner, Key, RunnerStep
from menv.checking.values import components, usable_mask
from menv.connectors.action_output import component_sizes
from menv.spaces import built, own_copy, parts_of, values_in

ActionFn: TypeAlias = Callable[[Any, Any], Any]
"""`actions(obs, agent_id) -> action`."""
Tape: TypeAlias = list[dict[Key, Any]]


class Actor:
    """Answers all who wait, turn after turn.

    Attributes:
        tape: The answers so far.
    """

    def __init__(
        self, seed: int, given: ActionFn | None, tape: Tape | None = None, *, in_unison: bool = False
    ) -> None:
        """Prepare the answers of one play.

        Args:
            seed: Of the random actions.
            given: Decides instead of chance.
            tape: Answers that are repeated for the same agents at the same turn.
            in_unison: Give everybody the answer of the first who waits.
        """
        self._rng = np.random.default_rng(seed)
        self._given = given
        self._old = tape or []
        self._in_unison = in_unison
        self.tape: Tape = []

    @property
    def is_random(self) -> bool:
        """Whether the actions are ours."""
        return self._given is None

    def answer(self, stage: EnvRunner, turn: RunnerStep) -> dict[Key, Any]:
        """Return an action for each who waits."""
        old = self._old[len(self.tape)] if len(self.tape) < len(self._old) else {}
        if old.keys() == turn.waiting.keys():
            answers = dict(old)
        elif self._in_unison and turn.waiting:
            key, obs = next(iter(turn.waiting.items()))
            answers = dict.fromkeys(turn.waiting, self._one(stage, key, obs))
        else:
            answers = {key: self._one(stage, key, obs) for key, obs in turn.waiting.items()}
        self.tape.append(answers)
        return dict(answers)

    def _one(self, stage: EnvRunner, key: Key, obs: Any) -> Any:
        _, action_space = stage.spaces(key)
        if self._given is None:
            return frozen(draw(action_space, self._rng, usable_mask(obs, action_space)))
        action = self._given(obs, key[1])
        if not action_space.contains(action):
            message = f"agent {key[1]!r}: the action given is no element of {action_space}"
            stage.report.add("ME094", message, stage.env_steps)
        return action


def draw(space: gym.Space[Any], rng: np.random.Generator, mask: Any = None) -> Any:
    """Return a random element of `space` that `mask` allows; one that allows nothing is passed over."""
    if isinstance(space, gym.spaces.Discrete):
        return space.dtype.type(int(space.start) + _pick(int(space.n), rng, mask))
    if isinstance(space, gym.spaces.MultiDiscrete):
        parts = components(mask, space) if mask is not None else [None] * space.nvec.size
        picked = [_pick(int(n), rng, part) for n, part in zip(space.nvec.reshape(-1), parts, strict=True)]
        return space.start + np.array(picked, space.dtype).reshape(space.shape)
    if parts_of(space) is not None:
        flags = iter([] if mask is None else components(mask, space))
        return built(space, lambda keys, leaf: draw(leaf, rng, _next(flags, leaf)))
    if isinstance(space, gym.spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
        return _draw_box(space, rng)
    # Drawing from the space itself would change what its owner draws.
    twin = copy.deepcopy(space)
    twin.seed(int(rng.integers(2**31)))
    return twin.sample()


def _next(flags: Iterator[Any], leaf: gym.Space[Any]) -> Any:
    """Return the flags of the next leaf of an action, one component after the other; None where there are none."""
    found = list(islice(flags, len(component_sizes(leaf))))
    return np.concatenate(found) if found else None


def _pick(n: int, rng: np.random.Generator, flags: Any) -> Any:
    if flags is None or not flags.any():
        return rng.integers(n)
    return rng.choice(np.flatnonzero(flags))


def _draw_box(space: gym.spaces.Box, rng: np.random.Generator) -> Any:
    """Draw evenly within bounds, from a normal distribution where there are none, and clip."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    even = np.where(bounded, low, 0.0) + rng.random(space.shape) * np.where(bounded, high - low, 1.0)
    drawn = np.clip(np.where(bounded, even, rng.standard_normal(space.shape)), low, high)
    return np.asarray(drawn, space.dtype)


def frozen(action: Any) -> Any:
    """Make the arrays in an action read-only."""
    for part in values_in(action):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return action


class Entry(NamedTuple):
    """One turn, copied.

    Attributes:
        env_steps: Env steps since the beginning of the play.
        acting: Who waits, in order.
        obs: Everything that was shown.
        rewards: As they came.
        flags: As they came.
        broken: What was raised instead, None if nothing was.
    """

    env_steps: int
    acting: Any
    obs: Any
    rewards: Any = None
    flags: Any = None
    broken: Broken | None = None

    @property
    def raised(self) -> str:
        """What was raised, "" if nothing was."""
        return self.broken.message if self.broken is not None else ""


def entry_of(turn: RunnerStep, env_steps: int) -> Entry:
    """Return a copy of a step."""
    return Entry(
        env_steps, list(turn.waiting), own_copy(turn.shown), own_copy(turn.rewards), own_copy(turn.flags)
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


def same(one: Any, other: Any) -> bool:
    """Return whether two values are bit-identical; NaN equals NaN."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, tuple | list):
        return isinstance(other, tuple | list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic) or isinstance(other, np.ndarray | np.generic):
        return _same_arrays(np.asarray(one), np.asarray(other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    try:
        return bool(one == other)
    except Exception:  # values of the environment's own that do not compare
        return True


def _same_arrays(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


class Buffers:
    """Compares the previous step with a copy of it."""

    def __init__(self, report: FindingCollector) -> None:
        self._report = report
        self._turn: RunnerStep | None = None
        self._obs: Any = None
        self._infos: dict[Any, Any] = {}

    def keep(self, turn: RunnerStep) -> None:
        """Remember a turn."""
        self._turn = turn
        self._obs = own_copy(turn.shown)
        self._infos = {key: copy.copy(info) for key, info in turn.infos.items() if isinstance(info, dict)}

    def compare(self, step: int) -> None:
        """Report arrays and infos that changed since."""
        assert self._turn is not None
        for key, obs in self._turn.shown.items():
            if not same(obs, self._obs.get(key)):
                message = f"agent {key[1]!r}: the observation of the turn before has changed"
                self._report.add("ME070", message, step)
        for name, info in self._infos.items():
            if not same(self._turn.infos[name], info):
                self._report.add("ME074", f"the info of {name!r} of the turn before has changed", step)


During: TypeAlias = Callable[[RunnerStep], AbstractContextManager[Any]]
"""Does something to a turn, and undoes it after the step that answers it."""

EPISODES = 3
EPISODE_STEPS = 40
"""Usual length of a piece: so many episodes, each cut after so many env steps."""


def play_at_length(stage: EnvRunner, actor: Actor, seed: int, env_steps: int) -> None:
    """Play for `env_steps` env steps, episode after episode; only the first reset is given a seed.

    Raises:
        Broken: It cannot be played on.
    """
    buffers = Buffers(stage.report)
    turn = stage.reset(seed)
    # Env steps without an action are counted to their end: the count is what is checked.
    while stage.env_steps < env_steps or (stage.idle and stage.env_steps <= env_steps + MAX_EMPTY_STEPS):
        buffers.keep(turn)
        turn = stage.reset(None) if turn.over else step(stage, actor, turn)
        buffers.compare(stage.env_steps)
    stage.finish()
    if not stage.episodes:
        stage.report.add("ME049", f"no episode ended within {stage.env_steps} env steps")


def step(stage: EnvRunner, actor: Actor, turn: RunnerStep) -> RunnerStep:
    """Answer all who wait.

    Raises:
        Broken: The environment cannot be played on.
    """
    try:
        return stage.step(actor.answer(stage, turn))
    except Broken as broken:
        masked = any(usable_mask(obs, stage.spaces(key)[1]) is not None for key, obs in turn.waiting.items())
        if broken.code == "ME090" and masked and actor.is_random:
            broken.code = "ME053"
            broken.message = f"an action that the mask allows was taken and {broken.message}"
        raise


def undisturbed(turn: RunnerStep) -> AbstractContextManager[Any]:
    """Do nothing to a turn."""
    return nullcontext()


def piece(
    stage: EnvRunner,
    actor: Actor,
    seed: int | None,
    length: tuple[int, int],
    during: During = undisturbed,
) -> Iterator[Entry]:
    """Yield what is seen in a few short episodes; a crash ends the piece with a last entry.

    Args:
        stage: The environment.
        actor: Answers.
        seed: Of the first episode, the next one gets the next; None gives none.
        length: How many episodes, and after how many env steps each is cut.
        during: Surrounds each step with something done to the turn that is answered.
    """
    start = stage.env_steps
    episodes, steps = length
    try:
        for episode in range(episodes):
            turn = stage.reset(None if seed is None else seed + episode)
            begin = stage.env_steps
            yield entry_of(turn, stage.env_steps - start)
            while not turn.over and stage.env_steps - begin < steps:
                answers = actor.answer(stage, turn)
                with during(turn):
                    turn = stage.step(answers)
                    entry = entry_of(turn, stage.env_steps - start)
                yield entry
    except Broken as broken:
        yield Entry(stage.env_steps - start, None, None, broken=broken)
