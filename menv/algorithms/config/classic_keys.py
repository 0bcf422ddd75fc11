"""The classic nested dict, read as one of the config dataclasses.

Unknown keys are refused with the nearest right one; keys that have no meaning here warn once.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.model_config import ModelConfig
from menv.algorithms.config.multi_agent_config import MultiAgentConfig
from menv.errors import ConfigError

C = TypeVar("C", bound=AlgorithmConfig)

_RENAMED = {"lambda": "lambda_"}
_WITHOUT_MEANING = frozenset(
    {
        "_disable_action_flattening",
        "_disable_execution_plan_api",
        "_disable_preprocessor_api",
        "_enable_learner_api",
        "_enable_new_api_stack",
        "_enable_rl_module_api",
        "_tf_policy_handles_more_than_one_loss",
        "auto_wrap_old_gym_envs",
        "compress_observations",
        "create_env_on_driver",
        "create_env_on_local_worker",
        "custom_resources_per_worker",
        "disable_env_checking",
        "eager_max_retraces",
        "eager_tracing",
        "enable_connectors",
        "framework",
        "framework_str",
        "local_tf_session_args",
        "num_cpus_for_driver",
        "num_cpus_for_local_worker",
        "num_cpus_per_worker",
        "num_gpus",
        "num_gpus_per_worker",
        "placement_strategy",
        "preprocessor_pref",
        "shuffle_sequences",
        "simple_optimizer",
        "synchronize_filters",
        "tf_session_args",
        "torch_compile_learner",
        "torch_compile_worker",
    }
)
_warned: set[str] = set()


def read_config(config_class: type[C], config: Any, env: Any = None) -> C:
    """Return `config`, a dataclass or a classic dict, as a `config_class`.

    Args:
        config_class: The algorithm's config.
        config: An instance of it, a mapping, or None for the defaults.
        env: Takes precedence over the config's own `env`.

    Raises:
        ConfigError: An unknown key, or a section that is no dict.
    """
    if config is None:
        config = {}
    if isinstance(config, config_class):
        return config if env is None else replace(config, env=env)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"config: {type(config).__name__}, expected a dict or {config_class.__name__}; "
            f"pass config={{...}} or {config_class.__name__}(...).build()"
        )
    values = read_keys(config_class, config)
    if env is not None:
        values["env"] = env
    return config_class(**values)


def override(config: C, changes: Mapping[str, Any] | None, policy_id: str) -> C:
    """Return `config` with a policy's own settings put over it."""
    if not changes:
        return config
    values = read_keys(type(config), changes, f"policies[{policy_id!r}].config: ")
    if isinstance(changes.get("model"), Mapping):
        values["model"] = replace(config.model, **_section(ModelConfig, changes["model"], "model"))
    return replace(config, **values)


def read_keys(
    config_class: type[AlgorithmConfig], config: Mapping[str, Any], where: str = "config: "
) -> dict[str, Any]:
    """Return keyword arguments for `config_class` from classic keys."""
    known = {field.name for field in fields(config_class)}
    values: dict[str, Any] = {}
    for key, value in config.items():
        name = _RENAMED.get(key, key)
        if name not in known:
            _refuse_or_warn(key, known, where)
        elif name == "model":
            values[name] = (
                value if isinstance(value, ModelConfig) else ModelConfig(**_section(ModelConfig, value, key))
            )
        elif name == "multiagent":
            section = (
                _section(MultiAgentConfig, value, key) if not isinstance(value, MultiAgentConfig) else {}
            )
            values[name] = value if isinstance(value, MultiAgentConfig) else MultiAgentConfig(**section)
        else:
            values[name] = value
    return values


def _section(section_class: type[Any], value: Any, where: str) -> dict[str, Any]:
    """Return the keyword arguments of a nested section."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"config[{where!r}]: {type(value).__name__}, expected a dict; write {where}={{...}}"
        )
    known = {field.name for field in fields(section_class)}
    for key in value:
        if key not in known:
            _refuse_or_warn(key, known, f"config[{where!r}]: ")
    chosen = {key: entry for key, entry in value.items() if key in known}
    if "fcnet_hiddens" in chosen:
        chosen["fcnet_hiddens"] = tuple(chosen["fcnet_hiddens"])
    return chosen


def _refuse_or_warn(key: str, known: set[str], where: str) -> None:
    """Warn once about a key without meaning; refuse any other unknown key."""
    if key in _WITHOUT_MEANING:
        if key not in _warned:
            _warned.add(key)
            warnings.warn(
                f"{where}{key!r} has no meaning in menv and is ignored; leave it out",
                stacklevel=_frames_of_menv(),
            )
        return
    names = [*sorted(known - set(_RENAMED.values())), *(old for old, new in _RENAMED.items() if new in known)]
    near = [name for name in names if name.startswith(key)] or difflib.get_close_matches(key, names, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
    raise ConfigError(f"{where}unknown key {key!r}, expected a known one; {hint}")


def _frames_of_menv() -> int:
    """Return the `stacklevel` of the line outside menv that led here."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("menv."):
        frame, level = frame.f_back, level + 1
    return level
