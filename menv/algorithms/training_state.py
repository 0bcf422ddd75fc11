"""A training run as what files can hold, and back: weights, learners, counters, metrics and where the sampler stands.

`menv.algorithms.checkpoints` calls it. It reads and sets the fields of an `Algorithm`, whose other half it is, and
knows no files.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.algorithms.evaluation import Evaluation
from menv.errors import ConfigError
from menv.loop.net_policy import NetPolicy
from menv.multi_agent_batch import MultiAgentBatch
from menv.plain_data import Arrays, from_plain, is_plain, to_plain
from menv.sample_batch import SampleBatch
from menv.segments import Segments

if TYPE_CHECKING:
    from menv.algorithms.algorithm import Algorithm

Files = dict[str, Any]
Gathered = list[tuple[MultiAgentBatch, int]]

STATE, ARRAYS, WEIGHTS, LEARNERS = (
    "state.json",
    "state_arrays.safetensors",
    "weights.safetensors",
    "learners.safetensors",
)


def training_state(algo: Algorithm) -> Files:
    """Return everything that the next iterations depend on, by file.

    Raises:
        CallOrderError: A fragment is being sampled.
        ConfigError: A learner of somebody's own cannot be written down.
    """
    population, arrays = algo._population, Arrays()
    learners = population.learners.state()
    evaluated = algo._evaluated
    tree = {
        "iteration": algo.iteration,
        "seed": algo._seed,
        "time_total_s": time.perf_counter() - algo._started,
        "metrics": algo._metrics.state(),
        "sampler": algo._rollouts.state(),
        "evaluation": None if algo._evaluation is None else algo._evaluation.state(),
        "evaluated": evaluated if is_plain(evaluated) else {},
        "gathered": _written(algo._gathered),
        "learners": [[policy_id, seed] for policy_id, (seed, _) in learners.items()],
        "weights_seq_no": 0 if algo._published is None else algo._published.weights_seq_no,
        "env_steps_trained": population.learners.env_steps_trained,
        "agent_steps_trained": population.learners.agent_steps_trained,
        "connectors": {
            name: one.connectors_state()
            for name, one in population.policies.items()
            if isinstance(one, NetPolicy)
        },
        "draws": {
            name: [one._key, one._calls]
            for name, one in population.policies.items()
            if isinstance(one, NetPolicy)
        },
    }
    plain = to_plain(tree, arrays)
    return {
        STATE: plain,
        ARRAYS: arrays,
        WEIGHTS: _flat({name: one.get_weights() for name, one in population.policies.items()}),
        LEARNERS: _flat({name: own for name, (_, own) in learners.items()}),
    }


def set_training_state(algo: Algorithm, files: Mapping[str, Any], *, seed: int) -> None:
    """Go on from what `training_state` returned for an algorithm with the same policies, or more.

    Args:
        algo: What it has done is forgotten.
        files: What was returned.
        seed: Of the run from now on.

    Raises:
        ConfigError: A policy has another network, or the environments cannot begin again; nothing has changed then.
    """
    weights, learners = _nested(files[WEIGHTS]), _nested(files[LEARNERS])
    tree = from_plain(files[STATE], files[ARRAYS])
    population = algo._population
    for policy_id, policy in population.policies.items():
        _check_weights(policy_id, weights.get(policy_id, {}), policy.get_weights())
    _begin_again(algo, seed)
    for policy_id, policy in population.policies.items():
        if policy_id in weights:
            policy.set_weights(weights[policy_id])
        if isinstance(policy, NetPolicy):
            policy.set_connectors_state(tree.get("connectors", {}).get(policy_id))
            policy._key, policy._calls = tree["draws"].get(policy_id, (policy._key, 0))
    algo.iteration, algo._evaluated = tree["iteration"], tree["evaluated"]
    algo._started = time.perf_counter() - tree["time_total_s"]
    chosen = {
        name: (own, learners.get(name, {})) for name, own in tree["learners"] if name in population.policies
    }
    population.learners.set_state(chosen, seed)
    population.learners.env_steps_trained = tree["env_steps_trained"]
    population.learners.agent_steps_trained = tree["agent_steps_trained"]
    if algo._published is not None:
        # Numbers go on from those that clients may know.
        algo._published.publish(tree.get("weights_seq_no", 0))
    algo._gathered = _read(tree.get("gathered", ()), population.policies)
    algo._metrics.set_state(tree["metrics"])
    algo._metrics.episodes_not_resumed += algo._rollouts.resume(tree["sampler"])
    if tree["evaluation"] is not None:
        algo._evaluation = Evaluation(algo.config, population, algo._evaluation_envs, algo._callbacks, seed)
        algo._evaluation.set_state(tree["evaluation"])


def _begin_again(algo: Algorithm, seed: int) -> None:
    """Let an algorithm stand at its beginning, with a new sampler over the same environments."""
    algo._rollouts.begin_again(seed)
    algo._seed = algo._population._seed = seed
    if algo._published is not None:
        algo._published.follow(algo._sampler)
    if algo._evaluation is not None:
        algo._evaluation.stop()
        algo._evaluation = None


def stored_seed(files: Mapping[str, Any]) -> int:
    """Return the seed of the run that was written down."""
    return int(files[STATE]["seed"])


def _written(gathered: Gathered) -> list[Any]:
    """Return the fragments of a batch that is not full, but for infos; none where a file cannot hold them."""
    found = [
        [
            steps,
            batch.env_steps(),
            {
                name: [rows.stored(), {part: getattr(rows.segments, part) for part in Segments.__slots__}]
                for name, rows in batch.policy_batches.items()
            },
        ]
        for batch, steps in gathered
    ]
    return found if is_plain(found) else []


def _read(fragments: Sequence[Any], policies: Collection[str]) -> Gathered:
    """Return the fragments of which `_written` told, with the rows of some policies."""
    found = []
    for steps, env_steps, by_policy in fragments:
        rows = {
            name: SampleBatch(columns, Segments(**parts))
            for name, (columns, parts) in by_policy.items()
            if name in policies
        }
        found.append((MultiAgentBatch(rows, env_steps), steps))
    return found


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
    """Return arrays by policy again."""
    found: dict[str, Arrays] = {}
    for key, array in arrays.items():
        policy_id, _, name = key.partition("/")
        found.setdefault(policy_id, {})[name] = array
    return found


def _check_weights(policy_id: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse the weights of another network."""
    for name in sorted({*found, *wanted}):
        shapes = [np.shape(side[name]) if name in side else None for side in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"checkpoint, policy {policy_id!r}: weights {name!r} have shape {shapes[0]}, expected {shapes[1]}; "
                "build the same model over the same spaces"
            )
