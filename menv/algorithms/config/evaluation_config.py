"""The settings of evaluations: a run's own, with `evaluation_config` put over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from menv.algorithms.config.algorithm_config import AlgorithmConfig, MultiAgentConfig, left_over
from menv.algorithms.config.classic_keys import OF_CONNECTORS, read_config, read_keys
from menv.algorithms.config.field_checks import shown
from menv.algorithms.config.keys import prefixed, section_values
from menv.errors import ConfigError
from menv.policy_map import PolicyMap

_OF_THE_RUN = (
    "evaluation_interval",
    "evaluation_num_workers",
    "evaluation_parallel_to_training",
    "always_attach_evaluation_results",
)
"""Settings that say when evaluations are, and who plays them."""
_OF_POLICIES = ("model", "exploration_config", *OF_CONNECTORS)
"""Settings that policies are made with, and play evaluations with as well."""


def evaluation_settings(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return the settings of an evaluation: the run's own, with `evaluation_config` put over them."""
    changes = dict(config.evaluation_config or {})
    values = read_keys(type(config), changes, "evaluation_config: ")
    _check_place(config, values)
    values = _without_those_of_policies(config, values)
    if isinstance(values.get("env_config"), Mapping):
        values["env_config"] = {**config.env_config, **values["env_config"]}
    if isinstance(values.get("multiagent"), Mapping):
        own = section_values(MultiAgentConfig, values["multiagent"], "evaluation_config.multiagent")
        _check_policies(own.get("policies"), config.multiagent.policies)
        values["multiagent"] = replace(config.multiagent, **own)
    with prefixed("evaluation_config: "):
        return replace(config, **left_over({**vars(config), **values}, values), **values)


def _check_place(config: AlgorithmConfig, values: Mapping[str, Any]) -> None:
    """Refuse settings that nobody looks for here, where they are others than the run's own.

    Raises:
        ConfigError: There is one.
    """
    for key in _OF_THE_RUN:
        own = getattr(config, key)
        if values.get(key, own) != own:
            raise ConfigError(
                f"evaluation_config: {key}={values[key]!r}, expected it beside evaluation_config, where it is {own!r}; "
                "put it there"
            )
    workers = values.get("num_workers", config.num_workers)
    if workers not in (config.num_workers, config.evaluation_num_workers):
        raise ConfigError(
            f"evaluation_config: num_workers={workers!r}, expected evaluation_num_workers beside evaluation_config, "
            f"where it is {config.evaluation_num_workers}; put the number there"
        )


def _without_those_of_policies(config: AlgorithmConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that the run's policies have been made with.

    Raises:
        ConfigError: One of these is another than the run's own.
    """
    given = {key: values[key] for key in _OF_POLICIES if key in values}
    with prefixed("evaluation_config: "):
        meant = read_config(type(config), given, default=config)
    for key in given:
        if getattr(meant, key) != getattr(config, key):
            advice = (
                "write explore=False for the best actions" if key == "exploration_config" else "leave it out"
            )
            raise ConfigError(
                f"evaluation_config: {key}={shown(given[key])}, expected {key} as it is beside evaluation_config, "
                f"because the run's own policies play; {advice}, or change it there for training too"
            )
    return {key: value for key, value in values.items() if key not in given}


def _check_policies(given: Any, known: Any) -> None:
    """Refuse policies that the run has not got.

    Raises:
        ConfigError: There are some.
    """
    if given is None:
        return
    ids = list(PolicyMap(known).specs)
    strange = [name for name in PolicyMap(given).specs if name not in ids]
    if strange:
        raise ConfigError(
            f"evaluation_config.multiagent: policies {strange} are none of the run, expected some of {ids}; put them "
            "into its own multiagent, and let a policy_mapping_fn here choose who plays"
        )
