"""Drives a runner: one long play, then short repeatable plays, which `SeedProbe` compares.

Episodes repeat with their seed, and differ without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from menv.adapters.validation import MAX_EMPTY_STEPS
from menv.checking.codes import Broken, FindingCollector
from menv.checking.runner import Key, Runner, RunnerStep
from menv.checking.values import kept_generators, same, sample_action, usable_mask
from menv.errors import ConfigError
from menv.spaces import values_in

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

    def answer(self, runner: Runner, timestep: RunnerStep) -> dict[Key, Any]:
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

    def _action(self, runner: Runner, key: Key, obs: object) -> Any:
        _, action_space = runner.spaces(key)
        if self._action_fn is None:
            return frozen(sample_action(action_space, self._rng, usable_mask(obs, action_space)))
        action = self._action_fn(obs, key[1])
        if not action_space.contains(action):
            raise ConfigError(
                f"check_env: actions returned {action!r:.100} for agent {key[1]!r}, expected an element of "
                f"{action_space}; correct the function"
            )
        return action


def frozen(action: object) -> Any:
    """Make the arrays in an action read-only."""
    for part in values_in(action):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return action


Play: TypeAlias = list[RunnerStep]
"""Copies of the timesteps of a play, in order."""


def first_difference(one: Play, other: Play) -> tuple[int, str] | None:
    """Return env step and subject of the first difference, None if there is none."""
    for mine, theirs in zip(one, other, strict=False):
        raised, raised_there = (step.broken.message if step.broken else "" for step in (mine, theirs))
        if raised != raised_there:
            return mine.env_steps, f"in one of them {raised_there or raised}"
        if list(mine.waiting) != list(theirs.waiting):
            return mine.env_steps, "the waiting agents differ"
        if not same(mine.shown, theirs.shown):
            return mine.env_steps, "obs differ"
        if not same(mine.outcome, theirs.outcome):
            return mine.env_steps, "rewards or flags differ"
    if len(one) != len(other):
        return min(step.env_steps for step in one[-1:] + other[-1:]), "their lengths differ"
    return None


EPISODES = 3
EPISODE_STEPS = 40
"""Usual length of a short play: number of episodes, and env steps after which each is stopped."""


def play_at_length(runner: Runner, actor: Actor, seed: int, env_steps: int) -> None:
    """Play for `env_steps` env steps; only the first reset gets a seed."""
    timestep = runner.begin(seed)
    # Env steps without an action are counted to their end: the count is what is checked.
    while runner.env_steps < env_steps or (runner.idle and runner.env_steps <= env_steps + MAX_EMPTY_STEPS):
        timestep = runner.step(actor.answer(runner, timestep))
    runner.finish()
    if not runner.episodes:
        runner.collector.add("ME049", f"no episode ended within {runner.env_steps} env steps")


def play_episodes(runner: Runner, actor: Actor, seed: int, length: tuple[int, int]) -> Iterator[RunnerStep]:
    """Yield copies of the timesteps of a few short episodes; a crash is the last one.

    Args:
        runner: The environment.
        actor: Chooses the actions.
        seed: Seed of the first episode, counted up for the next ones.
        length: Number of episodes, and env steps after which each is stopped.
    """
    start = runner.env_steps
    episodes, steps = length
    try:
        for episode in range(episodes):
            timestep = runner.reset(seed + episode)
            begin = runner.env_steps
            yield timestep.copied(runner.env_steps - start)
            while not timestep.over and runner.env_steps - begin < steps:
                timestep = runner.step(actor.answer(runner, timestep))
                yield timestep.copied(runner.env_steps - start)
    except Broken as broken:
        yield RunnerStep({}, {}, env_steps=runner.env_steps - start, broken=broken)


_OTHER_SEED = 1_000_003
_EPISODES_COMPARED = 12
_COMMON = 3
"""Randomness that changes less than one episode in three proves nothing in a few episodes."""
_SLOW_STEPS = 2

NewRunner = Callable[[int], Runner | None]
"""Creates a runner of a new copy with a vector_index; None if there is only one instance."""


class SeedProbe:
    """Compares short plays with equal and with different seeds."""

    def __init__(
        self,
        collector: FindingCollector,
        runner: Runner,
        new_runner: NewRunner,
        seed: int,
        action_fn: ActionFn | None,
        is_slow: bool = False,
    ) -> None:
        self._collector = collector
        self._runner = runner
        self._new_runner = new_runner
        self._seed = seed
        self._action_fn = action_fn
        self._action_log: ActionLog = []
        self._first: Play = []
        self._copies: list[Runner] = []
        self._length = (1, _SLOW_STEPS) if is_slow else (EPISODES, EPISODE_STEPS)
        self._one_episode = (1, self._length[1])

    def run(self) -> None:
        self._copies = [copy for copy in (self._new_runner(1), self._new_runner(1)) if copy is not None]
        first = self._copies[0] if self._copies else self._runner
        actor = Actor(self._seed, self._action_fn)
        self._first = list(play_episodes(first, actor, self._seed, self._length))
        self._action_log = actor.action_log
        broken = self._first[-1].broken
        if broken is not None:
            self._collector.take(broken, "in a play of episodes that are cut by a reset: ")
        elif self._shares_episodes() or not self._repeats(first):
            # The other checks compare with episodes that repeat.
            return
        else:
            self._check_neighbours()
            self._check_rows(first)

    def _again(self) -> Actor:
        """Return an actor that repeats the recorded actions as far as they fit."""
        return Actor(self._seed, self._action_fn, self._action_log)

    def _play(self, runner: Runner, seed: int) -> Play:
        return list(play_episodes(runner, self._again(), seed, self._length))

    def _repeats(self, runner: Runner) -> bool:
        again = [(runner, "of the same environment"), *((copy, "of two copies") for copy in self._copies[1:])]
        for which, where in again:
            found = first_difference(self._first, self._play(which, self._seed))
            if found is not None:
                step, what = found
                self._collector.add(
                    "ME060", f"two episodes {where} with the same seed and actions: {what}", step
                )
                return False
        return True

    def _shares_episodes(self) -> bool:
        """Report copies that are random and still equal under different seeds."""
        seed = self._seed + _OTHER_SEED
        if len(self._copies) < 2 or first_difference(self._first, self._play(self._copies[1], seed)):
            return False
        # Equal under different seeds: the episodes are not random, or all copies sample the same numbers.
        if first_difference(self._first, self._play(self._copies[1], seed)) is None:
            return False
        elsewhere = self._new_runner(2)
        if elsewhere is None or first_difference(self._first, self._play(elsewhere, seed)):
            return False
        self._collector.add(
            "ME062",
            "new environments with different vector_index and seed play the same episodes, and the second time they "
            "play others",
        )
        return True

    def _check_rows(self, runner: Runner) -> None:
        """Report sub-environments of one vectorised environment that play the same episodes."""
        seed = self._seed + _OTHER_SEED
        indices = sorted({key[0] for key in self._first[0].shown}, key=str)
        if len(indices) < 2 or first_difference(self._first, self._play(runner, seed)) is None:
            return
        entries = list(
            play_episodes(runner, Actor(self._seed, self._action_fn, same_for_all=True), seed, self._length)
        )
        for index in indices[1:]:
            alike = all(same(_part(entry, indices[0]), _part(entry, index)) for entry in entries)
            if alike and self._always_alike(runner, indices[0], index):
                self._collector.add(
                    "ME062",
                    f"env {indices[0]} and env {index} of one reset play the same episodes, expected others",
                )
                return

    def _always_alike(self, runner: Runner, one: object, other: object) -> bool:
        """Return whether two sub-environments play the same episode with every seed, and many seeds another one."""
        shown = []
        for number in range(_EPISODES_COMPARED):
            seed = self._seed + _OTHER_SEED * number
            actor = Actor(self._seed, self._action_fn, same_for_all=True)
            entries = list(play_episodes(runner, actor, seed, self._one_episode))
            shown.append([_part(entry, one) for entry in entries])
            if not same(shown[-1], [_part(entry, other) for entry in entries]):
                return False
        return _COMMON * sum(not same(shown[0], episode) for episode in shown[1:]) > len(shown)

    def _check_neighbours(self) -> None:
        """Report a copy that plays differently while another one is played."""
        if len(self._copies) < 2:
            return
        one, other = self._copies
        mine: Play = []
        neighbour = play_episodes(
            other, Actor(self._seed + 1, self._action_fn), self._seed + _OTHER_SEED, self._length
        )
        for entry in play_episodes(one, self._again(), self._seed, self._length):
            mine.append(entry)
            # Copies that draw from the generators of the process influence each other by them alone (ME061).
            with kept_generators():
                next(neighbour, None)
        found = first_difference(self._first, mine)
        if found is not None:
            step, what = found
            self._collector.add(
                "ME076", f"an episode played while another copy runs, with the same seed: {what}", step
            )


def _part(entry: RunnerStep, env_id: object) -> Any:
    return {key[1:]: obs for key, obs in entry.shown.items() if key[0] == env_id}
