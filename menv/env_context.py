"""`EnvContext`: the `env_config` dict together with the place for which an environment is created.

`menv.registry` hands one to the creator of every sub-environment. `InputContext` is the same for a
`config["input"]` function.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium as gym

from menv.errors import ConfigError, in_words


class EnvContext(dict[str, Any]):
    """The settings of an environment, as a dict, and the place where it will live.

    The settings are copied when the context is created, and every copy (`copy()`, `copy.copy`, `copy.deepcopy`,
    pickling, `copy_with_overrides`) keeps the attributes and shares no nested value.

    Attributes:
        worker_index: 0 for the local process, 1 and up for remote workers.
        vector_index: Index of the sub-environment within its worker.
        remote: True if the sub-environment lives in its own process.
        num_workers: The configured number of remote workers; None if unknown.
        recreated_worker: True if the worker replaces one that was lost.
        in_evaluation: True if the environment is used in evaluations only.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        worker_index: int = 0,
        vector_index: int = 0,
        remote: bool = False,
        num_workers: int | None = None,
        recreated_worker: bool = False,
        in_evaluation: bool = False,
    ) -> None:
        super().__init__(_own_copy("env_config", env_config if env_config is not None else {}))
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.remote = remote
        self.num_workers = num_workers
        self.recreated_worker = recreated_worker
        self.in_evaluation = in_evaluation

    def copy(self) -> Self:
        """Return an independent context with the same settings and attributes."""
        return copy.deepcopy(self)

    __copy__ = copy

    def copy_with_overrides(
        self,
        env_config: Mapping[str, Any] | None = None,
        worker_index: int | None = None,
        vector_index: int | None = None,
        remote: bool | None = None,
        num_workers: int | None = None,
        recreated_worker: bool | None = None,
        in_evaluation: bool | None = None,
    ) -> Self:
        """Return a copy in which every argument that is not None replaces the attribute of that name.

        Args:
            env_config: Replaces all settings.
            worker_index: Replaces the attribute.
            vector_index: Replaces the attribute.
            remote: Replaces the attribute.
            num_workers: Replaces the attribute.
            recreated_worker: Replaces the attribute.
            in_evaluation: Replaces the attribute.

        Raises:
            ConfigError: `env_config` is not a mapping, or holds a value that cannot be copied.
        """
        twin = self.copy()
        if env_config is not None:
            settings = _own_copy("env_config", env_config)
            twin.clear()
            twin.update(settings)
        overrides = {
            "worker_index": worker_index,
            "vector_index": vector_index,
            "remote": remote,
            "num_workers": num_workers,
            "recreated_worker": recreated_worker,
            "in_evaluation": in_evaluation,
        }
        vars(twin).update({name: value for name, value in overrides.items() if value is not None})
        return twin

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Add the settings that are missing.

        Raises:
            ConfigError: `defaults` is not a mapping, or holds a value that cannot be copied.
        """
        for key, value in _own_copy("defaults", defaults).items():
            self.setdefault(key, value)

    def __repr__(self) -> str:
        attributes = "".join(f", {name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({super().__repr__()}{attributes})"


def _own_copy(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"EnvContext: {name} is a {type(settings).__name__}, expected a mapping of settings to values; "
            'pass a dict, such as {"size": 5}'
        )
    try:
        return copy.deepcopy(dict(settings))
    except Exception as error:
        raise ConfigError(
            f"EnvContext: {name} cannot be copied ({in_words(error)}), "
            "expected values that copy.deepcopy takes; open files, locks and connections in the constructor "
            "of the environment"
        ) from error


@dataclass(frozen=True, slots=True)
class InputContext:
    """What a `config["input"]` function knows about its worker and about the environments of its clients.

    Attributes:
        worker_index: 0 in the main process, from 1 in workers.
        num_workers: Number of workers.
        observation_space: Of an agent, None if it depends on the agent.
        action_space: Of an agent, None if it depends on the agent.
        observation_spaces: By agent, if agents have different spaces.
        action_spaces: By agent, if agents have different spaces.
        possible_agents: Agents that may ever appear, () if unknown.
        multi_agent: Whether clients name agents.
        env_config: Items of the config.
        env_steps_per_sample: Env steps of one fragment.
    """

    worker_index: int = 0
    num_workers: int = 0
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    observation_spaces: Mapping[Hashable, gym.Space[Any]] = field(default_factory=dict)
    action_spaces: Mapping[Hashable, gym.Space[Any]] = field(default_factory=dict)
    possible_agents: tuple[Hashable, ...] = ()
    multi_agent: bool = False
    env_config: Mapping[str, Any] = field(default_factory=dict)
    env_steps_per_sample: int = 1

    @property
    def worker(self) -> InputContext:
        """This context: RLlib's functions read `ioctx.worker.num_workers`."""
        return self

    def spaces_of(self, agent_id: Hashable) -> tuple[gym.Space[Any] | None, gym.Space[Any] | None]:
        """Return an agent's observation and action space."""
        observation = self.observation_spaces.get(agent_id, self.observation_space)
        return observation, self.action_spaces.get(agent_id, self.action_space)
