"""The classic nested dict, read as one of the config dataclasses.

Unknown keys are refused with the nearest right one; keys that have no meaning here warn once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.builder_chain import SECTIONS, merged_sections
from menv.algorithms.config.keys import RENAMED, prefixed, refuse_or_warn
from menv.errors import ConfigError

C = TypeVar("C", bound=AlgorithmConfig)

# Settings of `AlgorithmConfig` that a policy may have of its own.
OF_A_POLICY = {
    "model", "clip_rewards", "clip_actions", "normalize_actions", "inference", "observation_filter", "agent_connectors",
    "num_gpus",
}  # fmt: skip

OF_CONNECTORS = ("observation_filter", "agent_connectors", "normalize_actions", "clip_actions")
"""Settings that a policy's connectors are made by."""


def read_config(config_class: type[C], config: Any, env: Any = None, default: Any = None) -> C:
    """Return `config`, a dataclass or a classic dict, as a `config_class`.

    Args:
        config_class: The algorithm's config.
        config: An instance of it, a mapping, or None for the defaults.
        env: Takes precedence over the config's own `env`.
        default: Has what a dict leaves out, in either form; None takes the defaults of the class.

    Raises:
        ConfigError: An unknown key, or a section that is no dict.
    """
    if config is None:
        config = {}
    if isinstance(config, config_class):
        return config if env is None else replace(config, env=env)
    if not isinstance(config, Mapping):
        name = config_class.__name__
        advice = f"pass config={{...}} or {name}(...).build()"
        if isinstance(config, type) and issubclass(config, AlgorithmConfig):
            raise ConfigError(
                f"config: the class {config.__name__}, expected a dict or an instance of {name}; "
                f"write config={name}(...)"
            )
        if isinstance(config, str) or callable(config):
            advice = (
                f"the environment comes by name: write {name.removesuffix('Config')}(env=..., config={{...}})"
            )
        raise ConfigError(f"config: {type(config).__name__}, expected a dict or {name}; {advice}")
    values = read_keys(config_class, config)
    if env is not None:
        values["env"] = env
    if default is None:
        return config_class(**values)
    below = read_config(config_class, default)
    return replace(below, **{**values, **merged_sections(below, config)})


def override(
    config: C, changes: Mapping[str, Any] | None, policy_id: str, own_meaning: frozenset[str] = frozenset()
) -> C:
    """Return `config` with a policy's own settings put over it.

    Args:
        config: The settings without them.
        changes: What the policy's spec says.
        policy_id: The policy, for messages.
        own_meaning: Settings that mean something of their own here, and so do not hold for all policies.

    Raises:
        ConfigError: An unknown key, or a setting that holds for all policies.
    """
    if not changes:
        return config
    where = f"policies[{policy_id!r}].config: "
    values = read_keys(type(config), changes, where)
    of_all = {field.name for field in fields(AlgorithmConfig)} - OF_A_POLICY - own_meaning
    of_all |= config.of_the_run
    shared = sorted(values.keys() & of_all)
    if shared:
        own = sorted({field.name for field in fields(config)} - of_all - OF_A_POLICY)
        raise ConfigError(
            f"{where}{shared[0]!r} holds for all policies, expected one of {', '.join([*own, *sorted(OF_A_POLICY)])}; "
            "set it in the main config"
        )
    with prefixed(where):
        return replace(config, **{**values, **merged_sections(config, changes, SECTIONS)})


def adopt(
    config_class: type[C], main: AlgorithmConfig, changes: Mapping[str, Any] | None, policy_id: str
) -> C:
    """Return the settings of a policy that another algorithm trains than the main one.

    What holds for all policies, the model, and `gamma`, which belongs to the task, come from `main`; the rest are the
    algorithm's own defaults.

    Raises:
        ConfigError: An unknown key, or a setting that holds for all policies.
    """
    own = config_class.own_meaning | type(main).own_meaning
    names = {"gamma", *(field.name for field in fields(AlgorithmConfig))} - own
    shared = config_class(**{name: getattr(main, name) for name in names})
    return override(shared, changes, policy_id, own)


def read_keys(
    config_class: type[AlgorithmConfig], config: Mapping[str, Any], where: str = "config: "
) -> dict[str, Any]:
    """Return keyword arguments for `config_class` from classic keys."""
    known = {field.name for field in fields(config_class)}
    for key, value in config.items():
        name = RENAMED.get(key, key)
        if name not in known:
            refuse_or_warn(key, value, known, where)
        if name != key and name in config:
            raise ConfigError(
                f"{where}{key!r} and {name!r} are both given, expected one of them; leave {name!r} out"
            )
    named = {RENAMED.get(key, key): value for key, value in config.items()}
    return {name: value for name, value in named.items() if name in known}
