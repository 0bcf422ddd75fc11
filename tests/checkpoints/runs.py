"""Small runs that the tests of checkpoints stop and go on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from menv.algorithms import Algorithm

SMALL: dict[str, Any] = {
    "seed": 3,
    "num_envs_per_worker": 3,
    "train_batch_size": 96,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 2,
    "model": {"fcnet_hiddens": [16]},
}
REPLAYED: dict[str, Any] = {
    "seed": 3,
    "num_envs_per_worker": 2,
    "rollout_fragment_length": 4,
    "train_batch_size": 16,
    "training_intensity": 4,
    "min_sample_timesteps_per_iteration": 64,
    "num_steps_sampled_before_learning_starts": 32,
    "model": {"fcnet_hiddens": [16]},
}


def by_seat(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    """Map the agents of a game of two to the policies "a" and "b"."""
    return "ab"[int(str(agent_id)[-1]) % 2]


def weights_of(algo: Algorithm) -> dict[str, bytes]:
    """Return the bytes of all weights of all policies."""
    found = algo.get_weights()
    return {
        f"{policy}/{name}": array.tobytes() for policy, own in found.items() for name, array in own.items()
    }


def trained(algo: Algorithm, iterations: int) -> dict[str, Any]:
    """Train some iterations and return the last result."""
    result: dict[str, Any] = {}
    for _ in range(iterations):
        result = dict(algo.train())
    return result


def resumed_twice(kind: type[Algorithm], folder: Path, iterations: int, **given: Any) -> dict[str, Any]:
    """Train two runs from one checkpoint, which must be the same to the last bit; return the last result."""
    ends = []
    for _ in range(2):
        with kind.from_checkpoint(folder, **given) as again:
            result = trained(again, iterations)
            ends.append(
                (
                    weights_of(again),
                    *(result[key] for key in ("digest", "hist_stats", "info")),
                    again.counts(),
                )
            )
    assert ends[0] == ends[1]
    return result
