"""RLlib's builder chain: `PPOConfig().environment("CartPole-v1").training(lr=1e-3).build()`.

The base class of `AlgorithmConfig`. Each method returns a changed copy. `_METHODS` lists the settings of each method;
`training` has all others. RLlib's names of the same settings are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Self, TypeVar, cast

from menv.algorithms.config.keys import newly_chosen, refuse_or_warn, section_values
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError
from menv.migration_hints import RENAMED_SETTINGS

C = TypeVar("C")

SECTIONS = ("model", "replay_buffer_config", "exploration_config")
"""Sections that a policy may override key by key; not every algorithm has all of them."""
_ROLLOUTS = (
    "num_workers", "num_envs_per_worker", "rollout_fragment_length", "batch_mode", "explore", "exploration_config",
    "observation_filter", "agent_connectors", "engine", "remote_worker_envs", "remote_env_batch_wait_ms", "env_timeout",
    "worker_start_timeout_s", "overlap", "max_staleness", "inference",
)  # fmt: skip
_METHODS: dict[str, tuple[str, ...]] = {
    "environment": (
        "env", "env_config", "observation_space", "action_space", "clip_rewards", "clip_actions", "normalize_actions",
    ),
    "env_runners": _ROLLOUTS,
    "rollouts": _ROLLOUTS,
    "multi_agent": ("policies", "policy_mapping_fn", "policies_to_train", "observation_fn", "count_steps_by"),
    "evaluation": (
        "evaluation_interval", "evaluation_duration", "evaluation_duration_unit", "evaluation_config",
        "evaluation_num_workers", "evaluation_parallel_to_training", "always_attach_evaluation_results",
    ),
    "callbacks": ("callbacks",),
    "resources": ("num_gpus", "num_workers", "torch_threads"),
    "debugging": ("seed", "log_level"),
    "fault_tolerance": ("restart_failed_sub_environments", "num_consecutive_env_failures_tolerance"),
    "framework": (),
    "exploration": ("explore", "exploration_config"),
    "reporting": ("metrics_num_episodes_for_smoothing", "min_sample_timesteps_per_iteration"),
    "api_stack": (),
}  # fmt: skip
"""The settings of each method except `training`."""


class BuilderChain:
    """The methods of the chain; each returns a copy with other settings."""

    def environment(self, env: Any = None, **settings: Any) -> Self:
        """Set the environment: `env`, `env_config`, spaces, and clipping."""
        return _changed(self, "environment", settings if env is None else {"env": env, **settings})

    def env_runners(self, **settings: Any) -> Self:
        """Set how experience is sampled, such as `num_env_runners` and `rollout_fragment_length`."""
        return _changed(self, "env_runners", settings)

    def rollouts(self, **settings: Any) -> Self:
        """Set the same as `env_runners`, by its earlier name."""
        return _changed(self, "rollouts", settings)

    def training(self, **settings: Any) -> Self:
        """Set how the algorithm learns, such as `lr`, `train_batch_size` and `model`."""
        return _changed(self, "training", settings)

    def multi_agent(self, **settings: Any) -> Self:
        """Set keys of `multiagent`, such as `policies` and `policy_mapping_fn`."""
        return _changed(self, "multi_agent", settings)

    def evaluation(self, **settings: Any) -> Self:
        """Set when and how policies are evaluated."""
        return _changed(self, "evaluation", settings)

    def resources(self, **settings: Any) -> Self:
        """Set `num_gpus` and `torch_threads`."""
        return _changed(self, "resources", settings)

    def debugging(self, **settings: Any) -> Self:
        """Set `seed` and `log_level`."""
        return _changed(self, "debugging", settings)

    def fault_tolerance(self, **settings: Any) -> Self:
        """Set what happens when a sub-environment fails."""
        return _changed(self, "fault_tolerance", settings)

    def framework(self, framework: Any = None, **settings: Any) -> Self:
        """Set nothing: networks learn with torch. Other frameworks warn."""
        return _changed(
            self, "framework", settings if framework in (None, "torch") else {"framework": framework}
        )

    def exploration(self, **settings: Any) -> Self:
        """Set `explore` and `exploration_config`."""
        return _changed(self, "exploration", settings)

    def reporting(self, **settings: Any) -> Self:
        """Set over how many episodes and steps results are reported."""
        return _changed(self, "reporting", settings)

    def api_stack(self, **settings: Any) -> Self:
        """Set nothing: there is one stack."""
        return _changed(self, "api_stack", settings)

    def build_algo(self, env: Any = None) -> Any:
        """Return the same as `build`."""
        return self.build(env)  # type: ignore[attr-defined]

    @staticmethod
    def overrides(**settings: Any) -> dict[str, Any]:
        """Return settings for `evaluation_config` or `PolicySpec(config=...)`, a dict."""
        return settings


class CallbacksSetting:
    """Descriptor of the field `callbacks`, whose default can be called: `PPOConfig().callbacks(MyCallbacks)`."""

    def __init__(self, config: Any = None) -> None:
        self._config = config

    def __get__(self, config: Any, owner: type[Any]) -> Any:
        value = DefaultCallbacks if config is None else vars(config)["callbacks"]
        return CallbacksSetting(config) if config is not None and value is DefaultCallbacks else value

    def __set__(self, config: Any, value: Any) -> None:
        vars(config)["callbacks"] = DefaultCallbacks if isinstance(value, CallbacksSetting) else value

    def __call__(self, callbacks_class: Any) -> Any:
        return _changed(self._config, "callbacks", {"callbacks": callbacks_class})

    def __eq__(self, other: object) -> bool:
        return other is DefaultCallbacks or isinstance(other, CallbacksSetting)

    def __hash__(self) -> int:
        return hash(DefaultCallbacks)

    def __repr__(self) -> str:
        return repr(DefaultCallbacks)


def merged_sections(
    config: Any, changes: Mapping[str, Any], names: Sequence[str] = (*SECTIONS, "multiagent", "env_config")
) -> dict[str, Any]:
    """Return the sections that `changes` gives as dicts, merged over the sections of `config`."""
    sections: dict[str, Any] = {}
    for name in names:
        before, given = getattr(config, name, None), changes.get(name)
        if isinstance(given, Mapping) and isinstance(before, Mapping):
            sections[name] = {**before, **given}
        elif before is not None and isinstance(given, Mapping):
            sections[name] = replace(before, **section_values(type(before), newly_chosen(given), name))
    return sections


def _changed(config: C, method: str, given: Mapping[str, Any]) -> C:
    where, whole = f"{type(config).__name__}.{method}: ", cast(Any, config)
    names = {field.name for field in fields(whole)}
    methods = {name: names.intersection(known) for name, known in _METHODS.items()}
    methods["multi_agent"] = set(_METHODS["multi_agent"])
    methods["training"] = names.difference(*methods.values()) | {"min_sample_timesteps_per_iteration"} & names
    settings: dict[str, Any] = {}
    for key, value in given.items():
        name = RENAMED_SETTINGS.get(key, key)
        home = method if name in methods[method] else next((m for m in methods if name in methods[m]), None)
        if name in settings:
            raise ConfigError(f"{where}{key!r} is {name!r}, expected one of them; leave {key!r} out")
        if home == method:
            settings[name] = value
        elif home is not None:
            raise ConfigError(f"{where}unknown key {key!r}, expected a known one; write .{home}({key}=...)")
        else:
            refuse_or_warn(key, value, methods[method], where, python_names=True)
    if method == "multi_agent":
        settings = {"multiagent": settings}
    return cast(C, replace(whole, **{**settings, **merged_sections(config, settings)}))
