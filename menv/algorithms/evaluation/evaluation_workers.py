"""An evaluation that workers play: each has its share of the sub-environments, and so of the episodes.

`menv.algorithms.evaluation.evaluations` has one where `evaluation_num_workers` is not 0. What comes out is what one
process tells that has as many sub-environments.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.evaluation.evaluation import as_result
from menv.algorithms.evaluation.evaluation_seat import EvaluationSeat, Played
from menv.algorithms.rollouts.experience import check_evaluable
from menv.algorithms.rollouts.headlines import Headlines
from menv.algorithms.rollouts.rollouts import Crew
from menv.algorithms.rollouts.stand import Stand
from menv.algorithms.rollouts.workers import Workers, sealed_settings
from menv.errors import EnvFaultWarning
from menv.metrics import Metrics
from menv.policy_map import PolicyMap
from menv.scale.engines import make_engine
from menv.scale.packing import Sealed, UnsendableError
from menv.scale.same_spaces import Declared


class EvaluationWorkers:
    """Workers that play; they are started when the first evaluation begins.

    Args:
        settings: Those of evaluations.
        crew: The policies; what workers know of them is made good before each evaluation.
        training_env: That which is trained in, if there is one.
        seed: Key of every random draw.
        first: What `sealed` returned when the run was built.
        declared: The spaces of the driver's environment, which theirs must have too.

    Raises:
        ConfigError: There is no environment to play in.
    """

    def __init__(
        self,
        settings: AlgorithmConfig,
        crew: Crew,
        training_env: Any,
        seed: int,
        first: Sealed | None = None,
        declared: Declared | None = None,
    ) -> None:
        check_evaluable(settings, training_env)
        self._settings = _of_workers(settings)
        self._first, self._declared = first, declared
        self._crew = crew
        self._seed = seed
        self._metrics = Metrics(0)
        self._headlines = Headlines(crew)
        self._engine = make_engine(settings.engine, patience=settings.worker_start_timeout_s)
        self._workers: Workers | None = None
        self._playing: PolicyMap | None = None
        self._broken_off = False
        # Whether workers were asked to play and nobody has waited for them, what they were told, and what came of it.
        self._begun = False
        self._parcel: Any = None
        self._played: Sequence[Played] | None = None
        # Where another run's samplers stood, until somebody plays on from there.
        self._resumed: Mapping[str, Any] | None = None
        self._warned: set[str] = set()

    @property
    def begun(self) -> bool:
        """Whether the next `run` tells what was begun before it."""
        return self._begun or self._played is not None

    def begin(self) -> None:
        """Let workers play with the policies of now; `run` waits for them."""
        # What was begun and nobody has waited for is forgotten.
        self._broken_off |= self._begun
        self._played = None
        workers = self._ready()
        self._headlines.tell_filters()
        # What cannot be sent has been told to nobody.
        self._broken_off = True
        parcel = self._engine.put(self._headlines.news())
        self._begun = True
        if self._resumed is not None:
            tree, self._resumed = self._resumed, None
            replaced = tree.get("replaced", ())
            if len(replaced) == len(workers):
                workers.stand_in(replaced)
            workers.all_at_once("resume", tree)
        workers.ask_all("play", parcel=parcel)
        self._parcel, self._broken_off = parcel, False

    def run(self) -> dict[str, Any]:
        """Play, or wait for what was begun, and return the metrics of the episodes that were played.

        Raises:
            WorkerLostError: Workers are lost again and again.
        """
        if not self.begun:
            self.begin()
        env_steps = agent_steps = 0
        for own in self._all_played():
            self._metrics.absorb(own.metrics)
            self._warn(own)
            env_steps, agent_steps = env_steps + own.env_steps, agent_steps + own.agent_steps
        self._played = None
        return as_result(self._metrics, env_steps, agent_steps)

    def _all_played(self) -> Sequence[Played]:
        if self._played is None:
            assert self._workers is not None
            self._begun, self._broken_off = False, True
            self._played = self._workers.answers("play", parcel=self._parcel)
            self._broken_off = False
        return self._played

    def recreated(self) -> list[int]:
        """Return the numbers, from 1, of the workers that were replaced since the last look."""
        if self._workers is None:
            return []
        numbers, self._workers.recreated = self._workers.recreated, []
        return numbers

    def state(self) -> dict[str, Any] | None:
        """Return what the next evaluation depends on as a plain tree, None before the first and after a failed one."""
        if self._resumed is not None:
            return {"sampler": self._resumed, "metrics": self._metrics.state()}
        if self._workers is None or self._broken_off:
            return None
        if self._begun:
            self._all_played()
        # With other policies than those that played, the next one begins anew.
        states = self._workers.all_at_once("state") if self._playing is self._crew.policy_map else [None]
        whole = None
        if None not in states:
            replaced = self._workers.replaced
            whole = {"workers": states, "gone": Stand().state(), "pieces": 0, "replaced": replaced}
        return {"sampler": whole, "metrics": self._metrics.state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` of another run's evaluation returned, whoever played it."""
        self._resumed = state["sampler"]
        self._metrics.set_state(state["metrics"])

    def stop(self) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.stop()

    def _ready(self) -> Workers:
        policy_map = self._crew.policy_map
        if self._workers is None:
            self._workers = Workers(
                self._settings, self._headlines, self._seed, self._metrics, self._engine,
                self._settings.num_envs_per_worker, seat=EvaluationSeat, label="evaluation worker",
                first=self._first, declared=self._declared,
            )  # fmt: skip
        elif self._broken_off or policy_map is not self._playing:
            self._workers.brief_again()
        else:
            return self._workers
        self._headlines.told()
        self._playing = policy_map
        return self._workers

    def _warn(self, played: Played) -> None:
        for line in played.warnings:
            if line not in self._warned:
                self._warned.add(line)
                warnings.warn(line, EnvFaultWarning, stacklevel=2)


def sealed(settings: AlgorithmConfig) -> Sealed | None:
    """Return what workers of evaluations are told of the settings, as it is before callbacks hear of the run.

    Returns:
        None if that cannot be sent at all; the first evaluation says so.
    """
    with suppress(UnsendableError):
        return sealed_settings(_of_workers(settings))
    return None


def _of_workers(settings: AlgorithmConfig) -> AlgorithmConfig:
    return replace(
        settings, num_workers=settings.evaluation_num_workers, overlap=False, max_staleness=1, input=None
    )
