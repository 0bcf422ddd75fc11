"""Settings in a checkpoint: JSON values and gymnasium spaces are written out, all other objects only by name.

Nothing is imported for a file. `_decoded` resolves each name in it, at any depth, to an environment that this process
knows or to a class that menv offers for that setting. The user passes all other objects again.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import of_scope, read_config
from menv.algorithms.config.setting import known_values, shown, table
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError
from menv.multi_agent_env import MultiAgentEnv
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec, ids_given
from menv.registry import is_known, names_module
from menv.serialization import SpaceDecoder, space_to_json

_NAMED = "$named"
_FLOAT, _ENDLESS = "$float", ("nan", "inf", "-inf")
_TUPLE = "$tuple"
_SPACE = "$space"
_OFFERING = ("menv", "menv.algorithms", "menv.envs")
"""Packages of menv whose classes are restored by name."""
_OFFERED: dict[str, tuple[type, ...]] = {
    "env": (MultiAgentEnv, gym.Env), "callbacks": (DefaultCallbacks,), "policy_class": (Policy,),
}  # fmt: skip
"""The settings that accept such a class, and its base class. No other setting accepts a class from a file: `env=PPO`
would build an algorithm from the file's `env_config`."""
_DATA = ("env_config", "custom_model_config", "agent_connectors")
"""Settings whose content menv passes on; its keys are not settings."""
_PLAIN = (bool, int, float, str)
_MOST_NAMED = 8
_OF_A_SPEC = ("policy_class", "observation_space", "action_space", "config", "algorithm", "inferred")

Tree = dict[str, Any]

_named: ContextVar[Mapping[str, Any]] = ContextVar("_named", default={})  # noqa: B039 - never changed
"""Objects of `named_objects`."""


class NamedOnlyError(ConfigError):
    """Settings that a checkpoint holds only by name were not passed again.

    `missing` lists their paths in the config and descriptions; `summary` is the message without the advice.
    """

    def __init__(self, missing: list[tuple[tuple[Any, ...], str]]) -> None:
        places = ["".join(f"[{key!r}]" for key in path) for path, _ in missing]
        names = ", ".join(
            f"config{place} was {was}" for place, (_, was) in zip(places[:_MOST_NAMED], missing, strict=False)
        )
        more = f" and {len(missing) - _MOST_NAMED} more" * (len(missing) > _MOST_NAMED)
        them = "it" if len(missing) == 1 else "them"
        self.missing = missing
        self.summary = (
            f"from_checkpoint: {names}{more}, which a checkpoint holds by name only, "
            "expected to be given again"
        )
        super().__init__(f"{self.summary}; pass {them} in config")


@contextlib.contextmanager
def named_objects(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let settings that are read within use these objects, by what a checkpoint calls them: `class shop:Log`."""
    token = _named.set(objects)
    try:
        yield
    finally:
        _named.reset(token)


def as_json(value: Any, theirs: bool = False) -> Any:
    """Return a setting as JSON, with names in place of objects that JSON cannot hold.

    With `theirs`, the value belongs to an environment or a model: a list is not a tuple there, a str Enum no string.
    """
    if isinstance(value, np.generic):
        return as_json(value.item(), theirs)
    if value is None or (type(value) in _PLAIN if theirs else isinstance(value, _PLAIN)):
        endless = isinstance(value, float) and not math.isfinite(value)
        return {_FLOAT: repr(value)} if endless else value
    if isinstance(value, type):
        return {_NAMED: f"class {value.__module__}:{value.__qualname__}"}
    ours = isinstance(value, Mapping) and not (theirs or isinstance(value, AlgorithmConfig))
    if (ours or type(value) is dict) and all(type(key) in (str, np.str_) for key in value):
        return {key: as_json(item, theirs=True) for key, item in value.items()}
    return _of_parts(value, theirs)


def _of_parts(value: object, theirs: bool) -> Any:
    ours = type(value).__module__.partition(".")[0] == "menv"
    if isinstance(value, AlgorithmConfig):
        return {name: as_json(one) for name, one in vars(value).items()}
    if is_dataclass(value) and ours:
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if type(value) is list or (isinstance(value, list | tuple) and (ours or not theirs)):
        return [as_json(item, theirs) for item in value]
    if type(value) is tuple:
        # Readers that do not know the first mark ask for the value again.
        return {_TUPLE: [as_json(item, theirs) for item in value], _NAMED: "a tuple"}
    if isinstance(value, gym.Space) and _is_gymnasiums(value):
        with contextlib.suppress(ConfigError):
            # A space without a JSON form is stored by name.
            return {_SPACE: space_to_json(value), _NAMED: "a space"}
    return {_NAMED: _name_of(value)}


def _is_gymnasiums(space: object) -> bool:
    inner = getattr(space, "spaces", ())
    parts = inner.values() if isinstance(inner, Mapping) else inner
    return type(space).__module__.partition(".")[0] == "gymnasium" and all(map(_is_gymnasiums, parts))


def given_map(policy_map: PolicyMap) -> PolicyMap:
    """Return the policies and the mapping of the settings, without the changes of self-play."""
    given: PolicyMap = getattr(policy_map.settings[0], "base_map", policy_map)
    return given


def stored_config(config: AlgorithmConfig, policy_map: PolicyMap) -> Tree:
    """Return the settings of an algorithm with its current policies."""
    tree: Tree = as_json(config)
    policy_map = given_map(policy_map)
    mapping_fn, to_train = policy_map.settings
    tree["multiagent"] |= {
        "policies": {
            name: {field: as_json(getattr(spec, field)) for field in _OF_A_SPEC}
            for name, spec in policy_map.specs.items()
        },
        "policy_mapping_fn": as_json(mapping_fn),
        "policies_to_train": as_json(to_train),
    }
    return tree


def restored_config(
    config_class: type[AlgorithmConfig],
    stored: Tree,
    given: object,
    env: object = None,
    policy_ids: Collection[str] | None = None,
) -> AlgorithmConfig:
    """Return the settings of a checkpoint, for `policy_ids` or all policies, with `given` and `env` over them.

    Raises ConfigError if an object that is stored by name is not passed again, or a wanted policy is not there.
    """
    policy_ids = None if policy_ids is None else ids_given("from_checkpoint", policy_ids)
    values = _decoded(stored)
    multi = values.pop("multiagent")
    own = _given(config_class, given)
    theirs = own.pop("multiagent", {})
    if isinstance(own.get("self_play"), Mapping):
        # As in new settings, even where the stored ones say False.
        own["self_play"] = {"enabled": True, **own["self_play"]}
    policies, known = theirs.pop("policies", None), table(config_class)
    for name, value in own.items():
        both = known[name].section and isinstance(value, Mapping) and isinstance(values.get(name), dict)
        values[name] = {**values[name], **value} if both else value
    multi |= theirs
    multi["policies"] = _policies(multi["policies"], policies, policy_ids)
    if policy_ids is not None and isinstance(multi["policies_to_train"], list):
        multi["policies_to_train"] = [
            name for name in multi["policies_to_train"] if name in multi["policies"]
        ]
    values["multiagent"] = multi
    _fit_to_machine(values, own)
    if env is not None:
        values["env"] = env
    _check_given(values)
    multi["policies"] = {
        name: one if isinstance(one, PolicySpec) else PolicySpec(**one)
        for name, one in multi["policies"].items()
    }
    return read_config(config_class, values)


def stored_setting(stored: Mapping[str, Any], *path: str) -> Any:
    """Return one of the stored settings, such as `"multiagent", "policies"`; None if it is missing.

    Raises:
        NamedOnlyError: It holds objects by name only.
    """
    value: Any = stored
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    found = _decoded(value, path[-1])
    _check_given(found, *path)
    return found


def _fit_to_machine(values: Tree, given: Mapping[str, Any]) -> None:
    specs = values["multiagent"]["policies"].values()
    of_policies = [spec.get("config") for spec in specs if isinstance(spec, dict)]
    settings = [one for one in (values, values.get("evaluation_config"), *of_policies) if one]
    ray = [one for one in settings if one.get("engine") == "ray"]
    if ray and "engine" not in given and not find_spec("ray"):
        warnings.warn(
            "from_checkpoint: engine is 'ray' in the checkpoint and Ray is not installed here, so workers are "
            "processes of this machine; run: pip install 'menv-rl[ray]', or pass engine='process' in config",
            stacklevel=4,
        )
        for one in ray:
            one["engine"] = None
    gpu = [one for one in settings if isinstance(one.get("num_gpus"), int | float) and one["num_gpus"]]
    if gpu and "num_gpus" not in given and not _finds_gpu():
        warnings.warn(
            "from_checkpoint: the checkpoint has num_gpus and torch finds no GPU here, so the processor learns; pass "
            "num_gpus=0 in config",
            stacklevel=4,
        )
        for one in gpu:
            one["num_gpus"] = 0


def _finds_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def check_connectors(
    where: str,
    stored: Tree,
    kept: Collection[str],
    config: AlgorithmConfig,
    specs: Mapping[str, PolicySpec],
) -> None:
    """Refuse changed connector settings of policies whose connectors the checkpoint restores (`kept`)."""
    for name in sorted(specs.keys() & kept):
        before = _decoded(stored["multiagent"]["policies"][name]["config"]) or {}
        own = specs[name].config or {}
        for key in of_scope(type(config), "connectors"):
            was = as_json(before.get(key, _decoded(stored[key])))
            now = as_json(own.get(key, getattr(config, key)))
            if was != now:
                raise ConfigError(
                    f"{where}: policy {name!r} has {key}={shown(now)}, expected {shown(was)}, because its connectors "
                    "continue from the checkpoint; leave it unchanged, or edit policy.agent_connectors and "
                    "policy.action_connectors afterwards"
                )


def _given(config_class: type[AlgorithmConfig], given: object) -> Tree:
    if isinstance(given, Mapping) and not isinstance(given, AlgorithmConfig):
        found = known_values(config_class, given)
    else:
        found = {} if given is None else dict(vars(read_config(config_class, given)))
    multi = found.get("multiagent", {})
    return {**found, "multiagent": dict(multi if isinstance(multi, Mapping) else vars(multi))}


def _policies(stored: Tree, given: Any, policy_ids: Collection[str] | None) -> dict[str, Any]:
    wanted = list(stored if policy_ids is None else policy_ids)
    missing = sorted(set(wanted) - stored.keys())
    if missing:
        raise ConfigError(
            f"policy_ids: {missing} not in the checkpoint, expected some of {sorted(stored)}; correct them"
        )
    entries = given if isinstance(given, Mapping) else dict.fromkeys(given or ())
    found: dict[str, Any] = {}
    for name in wanted:
        spaces = stored[name].get("inferred")
        known = isinstance(spaces, list) and all(isinstance(space, gym.Space) for space in spaces)
        inferred = tuple(spaces) if known and len(spaces) == 2 else None
        found[name] = (
            {**stored[name], "inferred": inferred}
            if entries.get(name) is None
            else replace(PolicySpec.of(name, entries[name]), inferred=inferred)
        )
    return found


def _check_given(found: object, *path: str) -> None:
    missing = list(_by_name_only(found, *path))
    if missing:
        raise NamedOnlyError(missing)


def _by_name_only(value: object, *path: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, Mapping):
        if _NAMED in value:
            yield path, str(value[_NAMED])
            return
        for key, item in value.items():
            yield from _by_name_only(item, *path, key)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _by_name_only(item, *path, place)


def _decoded(value: object, field: str = "", data: bool = False, spaces: SpaceDecoder | None = None) -> Any:
    """Return a stored value; an object that is stored by name stays `{_NAMED: ...}`, unless it is known here."""
    spaces = spaces or SpaceDecoder()
    if isinstance(value, list):
        return [_decoded(item, field, data, spaces) for item in value]
    if isinstance(value, str):
        foreign = not is_known(value) if field == "env" and not data else names_module(value)
        return {_NAMED: value} if foreign and value not in _named.get() else value
    if not isinstance(value, dict):
        return value
    if value.get(_FLOAT) in _ENDLESS:
        return float(value[_FLOAT])
    if isinstance(value.get(_TUPLE), list):
        return tuple(_decoded(item, field, data, spaces) for item in value[_TUPLE])
    if _SPACE in value:
        return spaces.read(value[_SPACE], "from_checkpoint: a space of the config")
    if _NAMED in value:
        if (known := _named.get().get(str(value[_NAMED]))) is not None:
            return known
        return (None if data else _offered(value, field)) or {_NAMED: str(value[_NAMED])}
    named = next((key for key in value if names_module(key) and key not in _named.get()), None)
    if named is not None:
        return {_NAMED: named}
    inner = data or field in _DATA
    return {key: _decoded(item, key, inner, spaces) for key, item in value.items()}


def _offered(stored: Tree, field: str) -> type | None:
    name = str(stored[_NAMED]).rpartition(":")[2]
    for package in map(import_module, _OFFERING):
        found = getattr(package, name) if name in package.__all__ else None
        right = isinstance(found, type) and issubclass(found, _OFFERED.get(field, ()))
        if right and as_json(found) == stored:
            return found
    return None


def _name_of(value: object) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module and name:
        return f"function {module}:{name}"
    return f"an instance of {type(value).__module__}:{type(value).__qualname__}"
