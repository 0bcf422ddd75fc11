"""`check_env` runs an environment and returns findings about the contract.

It creates copies, runs one of them at length and others in short plays with equal and different seeds, and closes them.
Errors of the environment become findings.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv.adapters.validation import MAX_EMPTY_STEPS
from menv.checking.codes import Broken, Finding, FindingCollector, checked_codes
from menv.checking.runner import Key, Runner, RunnerStep, describe
from menv.checking.values import kept_generators, same, sample_action, usable_mask
from menv.env_context import EnvContext
from menv.errors import ConfigError, ContractError, EnvCrashError, UnknownNameError
from menv.registry import acts_like_an_env, resolve_env, wrapped_if_foreign
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


class EnvUnderTest:
    """Creates the runners of an environment's copies. The caller owns and closes an existing instance."""

    def __init__(self, env: Any, config: Mapping[str, Any] | None) -> None:
        self.runners: list[Runner] = []
        self.is_instance = not isinstance(env, type | str) and acts_like_an_env(env)
        self.ignored: Any = getattr(env, "menv_ignore", ())
        self._env = env
        self._config = config
        self._created: list[Any] = []
        if self.is_instance and config is not None:
            raise ConfigError(
                "check_env: config is given with an environment that exists, expected None; pass the class instead"
            )
        self._creator = None if self.is_instance else _creator(env)

    def new_runner(self, collector: FindingCollector, vector_index: int) -> Runner:
        """Return a runner of a new copy, or of the existing instance."""
        env = self._env if self._creator is None else self._create(self._creator, vector_index)
        if self._creator is not None and any(one is env for one in self._created):
            raise Broken(
                "ME077", "two calls of the creator returned the same object, expected a new one each time"
            )
        self._created.append(env)
        self.ignored = getattr(env, "menv_ignore", None) or getattr(_inner(env), "menv_ignore", self.ignored)
        try:
            env = wrapped_if_foreign(env)
        except ContractError as error:
            raise Broken.of(error) from error
        runner = Runner(env, collector)
        self.runners.append(runner)
        return runner

    def _create(self, creator: Callable[[EnvContext], Any], vector_index: int) -> Any:
        try:
            env = creator(EnvContext(self._config, vector_index=vector_index))
        except (Exception, SystemExit) as error:
            raise Broken(
                "ME092", f"the creator (vector_index={vector_index}) raised {describe(error)}"
            ) from error
        if env is None or isinstance(env, type):
            got = "None" if env is None else f"the class {env.__name__}"
            raise Broken("ME092", f"the creator returned {got}, expected an environment")
        return env


def _creator(env: Any) -> Callable[[EnvContext], Any]:
    try:
        return resolve_env(env)
    except UnknownNameError:
        raise
    except EnvCrashError as error:
        raise Broken("ME092", str(error)) from error
    except ConfigError as error:
        if not callable(env) and not isinstance(env, str):
            raise
        message, _, fix = str(error).partition("; ")
        raise Broken("ME092", message, fix=fix) from error


def _inner(env: Any) -> Any:
    return env.unwrapped if isinstance(env, gym.Env) else env


def check_closing(collector: FindingCollector, runners: Iterable[Runner]) -> None:
    """Close every runner, the first one twice."""
    for number, runner in enumerate(runners):
        for which in ("close", "the second close")[: 2 - bool(number)]:
            try:
                runner.close()
            except (Exception, SystemExit) as error:
                collector.add("ME080", f"{which} raised {describe(error)}")
                break


ENV_STEPS = 500
_SLOW = 0.1
"""Seconds: a median env step above it is reported."""
_SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def check_env(
    env: Any,
    config: Mapping[str, Any] | None = None,
    *,
    actions: ActionFn | None = None,
    ignore: Iterable[str] = (),
    seed: int = 0,
    env_steps: int = ENV_STEPS,
) -> list[Finding]:
    """Play an environment of any kind and return what is wrong with it; nothing is printed.

    Args:
        env: A registered name, a gymnasium id, "module:Class", a class, a creator that takes an `EnvContext`, or
            an environment. An existing one is left open, and the checks that need a second copy or
            close the environment are left out.
        config: The env_config for the copies.
        actions: `actions(obs, agent_id) -> action` chooses the actions; None samples them within action masks.
        ignore: Codes to leave out, in addition to the environment's attribute `menv_ignore`.
        seed: Of resets and random actions: the same seed gives the same findings.
        env_steps: Length of the long play; the short plays that compare seeds are extra.

    Returns:
        Findings, errors first; an empty list if there are none.

    Raises:
        ConfigError: `env` is not an environment or an unknown name, or another argument is invalid.
    """
    silent = checked_codes(ignore, "check_env: ignore")
    for name, value, least in (("env_steps", env_steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ConfigError(
                f"check_env: {name}={value!r}, expected an integer of at least {least}; pass one"
            )
    if actions is not None and not callable(actions):
        raise ConfigError(
            f"check_env: actions is {actions!r:.100}, expected a function (obs, agent_id); leave it out for random "
            "actions"
        )
    collector = FindingCollector()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for category in _SILENT:
            warnings.simplefilter("ignore", category)
        own = _check(collector, env, config, actions, seed, env_steps)
    for warning in caught:
        text = f"{warning.category.__name__}: {warning.message}"
        collector.add("ME095", text, about=text)
    return collector.findings(silent | checked_codes(own, "check_env: menv_ignore of the environment"))


def _check(
    collector: FindingCollector,
    env: Any,
    config: Mapping[str, Any] | None,
    actions: ActionFn | None,
    seed: int,
    env_steps: int,
) -> Any:
    """Run all checks and return the codes in the environment's `menv_ignore`."""
    try:
        under_test = EnvUnderTest(env, config)
    except Broken as broken:
        collector.take(broken)
        return getattr(env, "menv_ignore", ())
    try:
        runner = under_test.new_runner(collector, 0)
        spaces = runner.declared()
        play_at_length(runner, Actor(seed, actions), seed, env_steps)
        seconds = _median_seconds(runner)
        if seconds > _SLOW:
            collector.add("ME096", f"half of the env steps last longer than {seconds:.2f} s")
        _check_seeds(collector, under_test, runner, spaces, seed, actions)
    except Broken as broken:
        collector.take(broken)
    if not under_test.is_instance:
        check_closing(collector, under_test.runners)
    return under_test.ignored


def _median_seconds(runner: Runner) -> float:
    return statistics.median(runner.seconds) if runner.seconds else 0.0


def _check_seeds(
    collector: FindingCollector,
    under_test: EnvUnderTest,
    runner: Runner,
    spaces: Any,
    seed: int,
    actions: ActionFn | None,
) -> None:
    """Compare copies with equal and different seeds; all must declare `spaces`."""

    def new_runner(vector_index: int) -> Runner | None:
        if under_test.is_instance:
            return None
        copy = under_test.new_runner(FindingCollector(), vector_index)
        if not same(spaces, copy.declared()):
            raise Broken(
                "ME004", "copies for different vector_index declare different spaces, expected the same"
            )
        return copy

    if not runner.repeats:
        new_runner(1)
        return
    # What was wrong in the long play is reported already.
    again = Runner(runner.env, FindingCollector())
    SeedProbe(collector, again, new_runner, seed, actions, _median_seconds(runner) > _SLOW).run()
