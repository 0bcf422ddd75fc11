"""What goes between a driver and its workers: plans, news of the policies, fragments.

`menv.algorithms.rollouts.rollout_worker` is one end, `menv.algorithms.rollouts.worker_rollouts` the other. Nothing
here does anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.company import Company
from menv.algorithms.rollouts.experience import Place
from menv.loop.times import Times
from menv.metrics import Taken
from menv.multi_agent_batch import MultiAgentBatch
from menv.registry import Known
from menv.scale.packing import Sealed
from menv.scale.same_spaces import Declared


@dataclass(frozen=True, slots=True)
class Settings:
    """What workers are told of the settings.

    Attributes:
        config: They.
        known: What names of environments mean.
    """

    config: AlgorithmConfig
    known: Known


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker is made from.

    Attributes:
        settings: The settings, or those of an earlier time.
        place: Which worker it is.
        company: The policies.
        seed: Key of every random draw.
        declared: The spaces of the driver's environment.
        num_envs: How many sub-environments each worker has.
    """

    settings: Settings | Sealed
    place: Place
    company: Company
    seed: int
    declared: Declared
    num_envs: int


class Fragment(NamedTuple):
    """What a worker has sampled, and where it stands.

    Attributes:
        batch: Ready to be learned from.
        env_steps: Since the worker's start.
        agent_steps: Likewise.
        digest: Of all rows since then.
        left_out: Rows since then that could not be learned from.
        num_envs: Of this worker.
        running: Episodes that run.
        metrics: Episodes that ended.
        filters: What filters have seen since the last fragment, by policy id; see `News`.
        warnings: What is to be warned of.
        times: Where the time has gone since the last fragment.
    """

    batch: MultiAgentBatch
    env_steps: int
    agent_steps: int
    digest: list[int]
    left_out: int
    num_envs: int
    running: int
    metrics: Taken
    filters: Mapping[str, Sequence[tuple[int, Any]]]
    warnings: Sequence[str]
    times: Times
