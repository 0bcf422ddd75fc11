"""The `env_config` dict together with the place that an environment is created for.

`menv.loop` makes one for every sub-environment and `menv.registry` hands it to the creator. Nothing here
knows how environments are created.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium as gym

from menv.errors import ConfigError


class EnvContext(dict[str, Any]):
    """A dict of the environment's settings that also knows where the environment will live.

    The settings belong to this context alone: they are copied on the way in, and every copy (`copy()`,
    `copy.copy`, `copy.deepcopy`, pickling, `copy_with_overrides`) keeps the attributes and shares no nested
    value, so an environment that changes its settings changes nobody else's.

    Attributes:
        worker_index: 0 for the local process, 1 and up for remote workers.
        vector_index: Index of the sub-environment within its worker.
        remote: True if the sub-environment lives in a process of its own.
        num_workers: The configured number of remote workers; None if nobody said.
        recreated_worker: True if the worker replaces one that was lost.
        in_evaluation: True if the environment is played in evaluations only.
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
        """Return a context of its own with the same settings and attributes."""
        return copy.deepcopy(self)

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

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
        """Return a copy in which everything that is given, and not None, replaces what was there.

        Args:
            env_config: Replaces all settings, not only those that it names.
            worker_index: See the attributes.
            vector_index: See the attributes.
            remote: See the attributes.
            num_workers: See the attributes.
            recreated_worker: See the attributes.
            in_evaluation: See the attributes.

        Raises:
            ConfigError: `env_config` is no mapping, or holds a value that cannot be copied.
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
        """Add the settings that are missing, and leave those that exist as they are.

        Raises:
            ConfigError: `defaults` is no mapping, or holds a value that cannot be copied.
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
            f"EnvContext: {name} cannot be copied ({type(error).__name__}: {error}){_culprits(settings)}, "
            "expected values that copy.deepcopy takes; open files, locks and connections in the constructor "
            "of the environment"
        ) from error


def _culprits(settings: Mapping[str, Any]) -> str:
    names = []
    for key, value in settings.items():
        try:
            copy.deepcopy(value)
        except Exception:  # whatever a user's __deepcopy__ raises
            names.append(repr(key))
    return f" because of {', '.join(names)}" if names else ""


# SEAM menv.input_context
# InputContext: what the function `config["input"]` is told, when it makes the source of all experience.


@dataclass(frozen=True, slots=True)
class InputContext:
    """Where an input belongs and what its clients play.

    Attributes:
        worker_index: 0 in the driver's own process, from 1 in workers.
        num_workers: How many workers there are.
        observation_space: Of an agent, None where it depends on the agent.
        action_space: Likewise.
        observation_spaces: By agent, where agents have spaces of their own.
        action_spaces: Likewise.
        possible_agents: Agents that may ever appear, () if nobody knows.
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
        """Itself: classic functions ask `ioctx.worker.num_workers`."""
        return self

    def spaces_of(self, agent_id: Hashable) -> tuple[gym.Space[Any] | None, gym.Space[Any] | None]:
        """Return an agent's observation and action space."""
        observation = self.observation_spaces.get(agent_id, self.observation_space)
        return observation, self.action_spaces.get(agent_id, self.action_space)
