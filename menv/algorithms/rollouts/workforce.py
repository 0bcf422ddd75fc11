"""Who samples for an algorithm: this process, or workers.

`menv.algorithms.algorithm` has one. It knows how many there are and what they run on, not what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from menv.adapters.created_envs import CreatedEnvs
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.population import Population
from menv.algorithms.rollouts.experience import check_with_input, make_experience
from menv.algorithms.rollouts.rollouts import LocalRollouts, Rollouts
from menv.algorithms.torch_threads import set_torch_threads
from menv.base_env import AgentId, BaseEnv
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError
from menv.metrics import Metrics
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_spec import PolicySpec
from menv.scale.convert import to_base_env
from menv.scale.engine import Engine, Peer
from menv.scale.same_spaces import Declared, declared

if TYPE_CHECKING:
    from menv.algorithms.rollouts.worker_rollouts import WorkerRollouts


class Workforce:
    """The workers of one algorithm, if it has any.

    Args:
        config: The settings.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        """Start the processes of workers, which import what they need while this one does likewise."""
        self._config = config
        self._engine: Engine | None = None
        self._seats: list[Peer] = []
        self._workers: WorkerRollouts | None = None
        self._declared: Declared = {}
        if config.num_workers and config.input is None:
            from menv.algorithms.rollouts.rollout_worker import WorkerSeat
            from menv.scale.engines import make_engine

            self._engine = make_engine(config.engine, patience=config.worker_start_timeout_s)
            self._seats = [
                self._engine.start(WorkerSeat, label=f"worker {number}")
                for number in range(1, config.num_workers + 1)
            ]

    @property
    def pids(self) -> Sequence[int | None]:
        """The ids of the workers' processes; None for one that has not answered yet."""
        return [] if self._workers is None else self._workers.pids

    def make_envs(self) -> tuple[Any, BaseEnv]:
        """Create the environments of this process.

        With workers it is one, which is asked for its spaces only, and none at all if the config has these.
        """
        config = self._config
        if config.input is not None:
            check_with_input(config)
        if not config.num_workers:
            return make_experience(config)
        agents = _agents_of(config)
        if agents is not None:
            stub = _NotCreated(agents)
            given = {name: getattr(config, name) for name in ("observation_space", "action_space")}
            self._declared = {name: space for name, space in given.items() if isinstance(space, gym.Space)}
            return stub, to_base_env(stub)
        near = replace(config, num_envs_per_worker=1, remote_worker_envs=False, remote_env_batch_wait_ms=0)
        first, base_env = make_experience(near)
        if base_env.external:
            base_env.stop()
            raise ConfigError(
                f"num_workers: {config.num_workers} with a {type(first).__name__}, which calls by itself, expected 0; "
                "leave num_workers out"
            )
        self._declared = declared(first)
        return first, base_env

    def rollouts(
        self,
        base_env: BaseEnv,
        population: Population,
        callbacks: DefaultCallbacks,
        seed: int,
        metrics: Metrics,
    ) -> Rollouts:
        """Return what samples, once it is known what runs the networks.

        Args:
            base_env: The environments of this process.
            population: The policies.
            callbacks: Told about episodes, if it is this process that samples.
            seed: Key of every random draw.
            metrics: Where episodes are recorded.
        """
        config = self._config
        if not (config.num_workers and config.overlap):
            self._prepare_torch(population)
        if not config.num_workers:
            return LocalRollouts(config, base_env, population, callbacks, seed, metrics)
        workers = self._workers = self._new_workers(base_env, population, seed, metrics)
        if config.overlap:
            # Importing torch takes a second; workers that may run ahead have begun by then.
            workers.begin()
            if self._prepare_torch(population):
                workers.take_back()
        return workers

    def check_travels(self, mapping_fn: Any, to_train: Any) -> None:
        """Refuse functions that workers cannot be told, before anything has changed.

        Raises:
            UnsendableError: One of them cannot be pickled.
        """
        if self._config.num_workers:
            from menv.scale.packing import pack

            pack({"policy_mapping_fn": mapping_fn, "policies_to_train": to_train}, "multiagent")

    def replaced(self) -> list[int]:
        """Return the numbers, from 1, of the workers that were replaced since the last look."""
        if self._workers is None:
            return []
        return self._workers.recreated()

    def report(self) -> dict[str, Any]:
        """Return what a result tells of workers."""
        if self._workers is None:
            return {}
        told: dict[str, Any] = {"num_worker_restarts": self._workers.lost}
        if self._config.overlap:
            ages = np.concatenate([*self._workers.staleness, np.zeros(0, np.int64)])
            self._workers.staleness.clear()
            told["staleness"] = {
                "mean": float(ages.mean()) if len(ages) else None,
                "max": int(ages.max()) if len(ages) else None,
            }
        return told

    def _prepare_torch(self, population: Population) -> bool:
        """Import torch and check what runs the networks; return whether something else runs some of them now."""
        set_torch_threads(self._config.torch_threads)
        return population.settle()

    def _new_workers(
        self, base_env: BaseEnv, population: Population, seed: int, metrics: Metrics
    ) -> WorkerRollouts:
        from menv.algorithms.rollouts.worker_rollouts import WorkerRollouts

        assert self._engine is not None
        # A BaseEnv or a vectorised environment brings as many as it has.
        own = 0 if isinstance(base_env, CreatedEnvs) else base_env.num_envs
        return WorkerRollouts(
            self._config, population, seed, metrics, self._engine,
            own or self._config.num_envs_per_worker, self._seats, self._declared,
        )  # fmt: skip


class _NotCreated(MultiAgentEnv):
    """Stands for the environment in a process that does not create one: its agents, without spaces."""

    def __init__(self, agents: list[AgentId]) -> None:
        super().__init__()
        self.possible_agents = agents


def _agents_of(config: AlgorithmConfig) -> list[AgentId] | None:
    """Return the agents that the config names if it has all spaces, None if an environment must declare them."""
    multi, spaces = config.multiagent, (config.observation_space, config.action_space)
    if getattr(config, "critic_obs", None) is not None or any(
        isinstance(space, gym.spaces.Dict) for space in spaces
    ):
        # A joint observation needs every agent, and a Dict space may be that of one agent or of several.
        return None
    by_agent = [space for space in spaces if isinstance(space, Mapping)]
    if None not in spaces:
        agents = [set(one) for one in by_agent]
        return list(by_agent[0]) if by_agent and agents[0] == agents[-1] else None if by_agent else []
    named = multi.policies if isinstance(multi.policies, Mapping) else {}
    specs = [PolicySpec.of(policy_id, spec) for policy_id, spec in named.items()]
    whole = [spec.observation_space is not None and spec.action_space is not None for spec in specs]
    own_critic = any("critic_obs" in (spec.config or {}) for spec in specs)
    by_name = any(isinstance(spec.observation_space, gym.spaces.Dict) for spec in specs)
    return [] if whole and all(whole) and not own_critic and not by_name else None
