"""A training run as what files can hold, and back: weights, learners, counters, metrics and where the sampler stands.

`menv.algorithms.checkpoints` asks for it. Each part of a run gives and takes its own state; here these are put
together, in an order in which nothing has changed yet when something does not fit. It knows no folders.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from menv.algorithms.config.numbers import check_stored
from menv.algorithms.evaluation.evaluations import Evaluations
from menv.algorithms.export.published import Published
from menv.algorithms.population import Population
from menv.algorithms.rollouts.gathering import Gathering
from menv.algorithms.rollouts.rollouts import LocalRollouts, Rollouts
from menv.errors import ConfigError
from menv.metrics import Metrics
from menv.plain_data import Arrays, from_plain, to_plain
from menv.policy import weights_of

Files = dict[str, Any]

STATE, ARRAYS, WEIGHTS, LEARNERS = (
    "state.json",
    "state_arrays.safetensors",
    "weights.safetensors",
    "learners.safetensors",
)


_COUNTS = (
    "iteration", "weights_seq_no", "env_steps_trained", "agent_steps_trained", "env_steps", "agent_steps", "left_out",
    "pieces", "running", "replaced", "steps", "begun", "start", "stop", "length", "new_count", "new_faulty",
    "faulty_total", "episodes_total", "episodes_not_resumed", "released",
)  # fmt: skip
_PLACES = ("env_index", "agent_index", "slot", "slots")
_RANGES: dict[str, tuple[str, float]] = {
    **dict.fromkeys(_COUNTS, ("iu", 2**53)),
    **dict.fromkeys(_PLACES, ("iu", 2**24)),
    "time_total_s": ("fiu", 2**53),
    "draws": ("fiu", 2**64),
    "seed": ("iu", 2**64),
}
"""Entries of a state, at any depth, that hold numbers: the kinds of these, and the largest that can be."""
_OF_USERS = (
    "connectors", "evaluated", "gathered", "extras", "actions", "last", "lives", "remembered", "raw", "shown",
    "columns", "agent_rewards", "policies", "open", "rng",
)  # fmt: skip
"""Entries that hold what users and environments gave, under names of their own."""


@dataclass(slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        seed: What every random draw depends on.
        iteration: Training iterations so far.
        began: When it began, had it never been interrupted; of `time.perf_counter`.
    """

    seed: int
    iteration: int = 0
    began: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Everything that the next iterations depend on.

    Attributes:
        progress: How far the run has come.
        population: Its policies, and who learns.
        rollouts: Where fragments come from.
        metrics: Of the episodes.
        evaluations: Those so far.
        gathering: What there is of a batch that is not full.
        published: What clients are given, if there are any.
    """

    progress: Progress
    population: Population
    rollouts: Rollouts
    metrics: Metrics
    evaluations: Evaluations
    gathering: Gathering
    published: Published | None

    def files(self) -> Files:
        """Return it by file.

        Raises:
            CallOrderError: A fragment is being sampled.
            ConfigError: A learner of somebody's own cannot be written down.
        """
        population, progress, arrays = self.population, self.progress, Arrays()
        learners = population.learners.state()
        # First, because a worker may be found to be lost then, whose episodes are counted.
        sampler = self.rollouts.state()
        tree = {
            "iteration": progress.iteration,
            "seed": progress.seed,
            "time_total_s": time.perf_counter() - progress.began,
            "metrics": self.metrics.state(),
            "sampler": sampler,
            **self.evaluations.state(),
            "gathered": self.gathering.state(),
            "learners": [[policy_id, seed] for policy_id, (seed, _) in learners.items()],
            "weights_seq_no": 0 if self.published is None else self.published.weights_seq_no,
            "env_steps_trained": population.learners.env_steps_trained,
            "agent_steps_trained": population.learners.agent_steps_trained,
            **population.state(),
        }
        plain = to_plain(tree, arrays)
        return {
            STATE: plain,
            ARRAYS: arrays,
            WEIGHTS: _flat({name: weights_of(one) for name, one in population.policies.items()}),
            LEARNERS: _flat({name: own for name, (_, own) in learners.items()}),
        }

    def restore(
        self,
        files: Mapping[str, Any],
        *,
        keep_seed: bool = False,
        changing: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Go on from what `files` returned for a run with the same policies, or more; what this one did is forgotten.

        Args:
            files: What was returned.
            keep_seed: Whether this run's seed holds, and not the other's.
            changing: Is entered while anything changes.

        Raises:
            ConfigError: A policy has another network or keeps other experience, or the environments cannot begin again;
                nothing has changed then.
        """
        weights, learners = _nested(files[WEIGHTS]), _nested(files[LEARNERS])
        tree = from_plain(files[STATE], files[ARRAYS])
        _check_counts(tree)
        for policy_id, learner_seed in tree["learners"]:
            _check_counts({"seed": learner_seed}, f"learners.{policy_id}")
        population, progress = self.population, self.progress
        seed = progress.seed if keep_seed else int(tree["seed"])
        for policy_id, policy in population.policies.items():
            _check_weights(policy_id, weights.get(policy_id, {}), weights_of(policy))
        chosen = {
            name: (own, learners.get(name, {}))
            for name, own in tree["learners"]
            if name in population.policies
        }
        population.learners.check_state(chosen)
        self.rollouts.check_begins_again()
        with changing or nullcontext():
            self._take_over(tree, weights, chosen, seed)

    def _take_over(
        self, tree: Mapping[str, Any], weights: Mapping[str, Any], chosen: Mapping[str, Any], seed: int
    ) -> None:
        population, progress = self.population, self.progress
        self._begin_again(seed)
        population.set_state(tree, weights, seed)
        progress.iteration = int(tree["iteration"])
        progress.began = time.perf_counter() - tree["time_total_s"]
        population.learners.set_state(chosen, seed)
        population.learners.env_steps_trained = int(tree["env_steps_trained"])
        population.learners.agent_steps_trained = int(tree["agent_steps_trained"])
        if self.published is not None:
            # Numbers go on from those that clients may know.
            self.published.publish(tree["weights_seq_no"])
        self.gathering.set_state(tree["gathered"], population.policies)
        self.metrics.set_state(tree["metrics"])
        self.metrics.episodes_not_resumed += self.rollouts.resume(tree["sampler"])
        self.evaluations.set_state(tree)

    def _begin_again(self, seed: int) -> None:
        self.rollouts.begin_again(seed)
        self.progress.seed = seed
        if self.published is not None:
            assert isinstance(self.rollouts, LocalRollouts)
            self.published.follow(self.rollouts.sampler)
        self.evaluations.begin_again(seed)


def _check_counts(value: Any, where: str = "") -> None:
    """Refuse counts, places and seeds that no run can have reached.

    Raises:
        ConfigError: There is one; the message names the file and the field.
    """
    if isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _check_counts(item, f"{where}[{place}]")
    for key, item in value.items() if isinstance(value, Mapping) else ():
        field = f"{where}.{key}".lstrip(".")
        if key in _RANGES:
            kinds, most = _RANGES[key]
            for numbers in item.values() if isinstance(item, Mapping) else [item]:
                # A seed of a user may be larger.
                right = key == "seed" and (numbers is None or (type(numbers) is int and numbers >= 0))
                check_stored(f"checkpoint, {STATE}", field, 0 if right else numbers, kinds, most=most)
        elif key not in _OF_USERS:
            _check_counts(item, field)


def kept_connectors(files: Mapping[str, Any]) -> list[str]:
    """Return the policies whose connectors are among `files`; those of others are made by settings alone."""
    return [name for name, own in files[STATE].get("connectors", {}).items() if own is not None]


def _flat(by_policy: Mapping[str, Mapping[str, Any]]) -> Arrays:
    """Return the arrays of all policies under one name each; no policy's id has a slash.

    Raises:
        ConfigError: Something is no array of numbers.
    """
    flat = {
        f"{policy_id}/{name}": np.asarray(own[name]) for policy_id, own in by_policy.items() for name in own
    }
    for key, array in flat.items():
        if array.dtype.kind not in "biuf":
            raise ConfigError(
                f"save: {key!r} is an array of {array.dtype}, expected numbers; return those as weights"
            )
    return flat


def _nested(arrays: Arrays) -> dict[str, Arrays]:
    found: dict[str, Arrays] = {}
    for key, array in arrays.items():
        policy_id, _, name = key.partition("/")
        found.setdefault(policy_id, {})[name] = array
    return found


def _check_weights(policy_id: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in sorted({*found, *wanted}):
        shapes = [np.shape(side[name]) if name in side else None for side in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"checkpoint, policy {policy_id!r}: weights {name!r} have shape {shapes[0]}, expected {shapes[1]}; "
                "build the same model over the same spaces"
            )
