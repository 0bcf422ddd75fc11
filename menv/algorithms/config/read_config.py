"""Resolve settings: a classic dict becomes a config, and a policy or an evaluation overrides some of its settings.

Unknown keys are refused with the nearest known one; keys without meaning in menv warn once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from menv.algorithms.config.algorithm_config import AlgorithmConfig, MultiAgentConfig
from menv.algorithms.config.builder_chain import changed
from menv.algorithms.config.setting import known_values, prefixed, section_values, shown, table
from menv.errors import ConfigError
from menv.policy_map import PolicyMap

C = TypeVar("C", bound=AlgorithmConfig)


def of_scope(config_class: type[AlgorithmConfig], *scopes: str) -> list[str]:
    """Return the settings that have one of these scopes, as `Facts` describes them."""
    common = table(AlgorithmConfig)
    return [
        name
        for name, row in table(config_class).items()
        if row.facts.get("scope", "run" if name in common else "policy") in scopes
    ]


def read_config(config_class: type[C], config: object, env: object = None, default: object = None) -> C:
    """Return `config`, an instance, a classic dict or None, as a `config_class`; `default` has what a dict omits."""
    if config is None:
        config = {}
    if isinstance(config, config_class):
        return config if env is None else replace(config, env=env)
    if not isinstance(config, Mapping) or isinstance(config, AlgorithmConfig):
        name = config_class.__name__
        got = config.__name__ if isinstance(config, type) else type(config).__name__
        raise ConfigError(
            f"config: {got}, expected a dict or {name}; write {name.removesuffix('Config')}(env=..., config={{...}}), "
            f"or {name}(...).build()"
        )
    values = known_values(config_class, config)
    if env is not None:
        values["env"] = env
    if default is None:
        return config_class(**values)
    return changed(read_config(config_class, default), values)


def override(
    config: C, changes: Mapping[str, Any] | None, policy_id: str, own_meaning: frozenset[str] = frozenset()
) -> C:
    """Return `config` with a policy's settings over it; settings in `own_meaning` are not shared by all policies."""
    if not changes:
        return config
    where = f"policies[{policy_id!r}].config: "
    values = known_values(type(config), changes, where)
    own = {*of_scope(type(config), "policy", "network", "connectors"), *own_meaning}
    shared = sorted(values.keys() - own)
    if shared:
        raise ConfigError(
            f"{where}{shared[0]!r} applies to all policies, expected one of {', '.join(sorted(own))}; set it in the "
            "main config"
        )
    with prefixed(where):
        return changed(config, values)


def adopt(
    config_class: type[C], main: AlgorithmConfig, changes: Mapping[str, Any] | None, policy_id: str
) -> C:
    """Return the settings of a policy that another algorithm than the main one trains.

    The settings of `AlgorithmConfig`, and `gamma`, which belongs to the task, come from `main`; the others are the
    defaults of the algorithm.
    """
    own = config_class.own_meaning | type(main).own_meaning
    names = {"gamma", *table(AlgorithmConfig)} - own
    shared = config_class(**{name: getattr(main, name) for name in names})
    return override(shared, changes, policy_id, own)


def evaluation_settings(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return the settings of an evaluation: the settings of the run with `evaluation_config` over them."""
    values = known_values(type(config), dict(config.evaluation_config or {}), "evaluation_config: ")
    if isinstance(values.get("multiagent"), Mapping):
        own = section_values(MultiAgentConfig, values["multiagent"], "evaluation_config.multiagent")
        _check_policies(own.get("policies"), config.multiagent.policies)
    with prefixed("evaluation_config: "):
        meant = changed(config, values)
    for key in of_scope(type(config), "schedule", "network", "connectors"):
        if getattr(meant, key) != getattr(config, key):
            advice = (
                "write explore=False for the best actions" if key == "exploration_config" else "leave it out"
            )
            raise ConfigError(
                f"evaluation_config: {key}={shown(values[key])}, expected the {key} of the main settings, "
                f"because evaluations use the policies of the run; {advice}, or change it there"
            )
    if meant.num_workers not in (config.num_workers, config.evaluation_num_workers):
        raise ConfigError(
            f"evaluation_config: num_workers={meant.num_workers}, expected evaluation_num_workers in the main "
            f"settings, where it is {config.evaluation_num_workers}; set it there"
        )
    return meant


def _check_policies(given: Any, known: Any) -> None:
    if given is None:
        return
    ids = list(PolicyMap(known).specs)
    strange = [name for name in PolicyMap(given).specs if name not in ids]
    if strange:
        raise ConfigError(
            f"evaluation_config.multiagent: policies {strange} are not in the run, expected some of {ids}; add them "
            "to the main multiagent, and choose among them with a policy_mapping_fn here"
        )
