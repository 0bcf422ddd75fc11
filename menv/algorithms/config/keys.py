"""Keys of config dicts: reading nested sections, refusing unknown keys, warning about those without meaning.

`classic_keys` reads the whole dict with it, `algorithm_config` the sections that are given as dicts.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

from menv.algorithms.config.classic_hints import HOLDS_ANYHOW, classic_hint
from menv.errors import ConfigError

S = TypeVar("S")

RENAMED = {"lambda": "lambda_"}
"""Classic keys that are no Python names, and the fields that they mean."""

_WITHOUT_MEANING = frozenset(
    {
        "_disable_action_flattening",
        "_disable_execution_plan_api",
        "_disable_preprocessor_api",
        "_enable_learner_api",
        "_enable_new_api_stack",
        "_enable_replay_buffer_api",
        "_enable_rl_module_api",
        "_fake_gpus",
        "_tf_policy_handles_more_than_one_loss",
        "_time_major",
        "_use_default_native_models",
        "always_check_shapes",
        "auto_wrap_old_gym_envs",
        "checkpoint_trainable_policies_only",
        "collect_metrics_timeout",
        "compress_observations",
        "create_env_on_driver",
        "create_env_on_local_worker",
        "custom_resources_per_worker",
        "delay_between_worker_restarts_s",
        "disable_env_checking",
        "eager_max_retraces",
        "eager_tracing",
        "enable_async_evaluation",
        "enable_connectors",
        "enable_env_runner_and_connector_v2",
        "enable_rl_module_and_learner",
        "enable_tf1_exec_eagerly",
        "evaluation_sample_timeout_s",
        "export_native_model_files",
        "framework",
        "framework_str",
        "ignore_worker_failures",
        "local_gpu_idx",
        "local_tf_session_args",
        "log_sys_usage",
        "max_num_worker_restarts",
        "max_requests_in_flight_per_sampler_worker",
        "metrics_episode_collection_timeout_s",
        "no_local_replay_buffer",
        "num_consecutive_worker_failures_tolerance",
        "num_cpus_for_driver",
        "num_cpus_for_local_worker",
        "num_cpus_per_env_runner",
        "num_cpus_per_learner",
        "num_cpus_per_learner_worker",
        "num_cpus_per_worker",
        "num_gpus_per_env_runner",
        "num_gpus_per_learner",
        "num_gpus_per_learner_worker",
        "num_gpus_per_worker",
        "num_learner_workers",
        "num_learners",
        "num_shards",
        "ope_split_batch_by_episode",
        "placement_strategy",
        "policy_map_cache",
        "policy_map_capacity",
        "policy_states_are_swappable",
        "post_fcnet_activation",
        "preprocessor_pref",
        "recreate_failed_workers",
        "render_env",
        "sample_timeout_s",
        "sampler_perf_stats_ema_coef",
        "shuffle_sequences",
        "sigma0",
        "simple_optimizer",
        "store_buffer_in_checkpoints",
        "sync_filters_on_rollout_workers_timeout_s",
        "synchronize_filters",
        "tf_session_args",
        "torch_compile_learner",
        "torch_compile_worker",
        "update_worker_filter_stats",
        "use_worker_filter_stats",
        "v_max",
        "v_min",
        "validate_workers_after_construction",
        "worker_health_probe_timeout_s",
        "worker_restore_timeout_s",
    }
)
_NOT_YET: dict[str, Any] = {
    "replay_mode": "independent",
    "use_critic": True,
    "use_gae": True,
}
"""Classic keys with the one value that they can have so far."""
_NEAR = 0.7
"""How alike a name has to be that is suggested; less is another word with letters in common."""
_warned: set[str] = set()


@contextmanager
def prefixed(where: str) -> Iterator[None]:
    """Let what is wrong with settings begin with `where` they were given.

    Raises:
        ConfigError: One of the settings is wrong.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from error


def section(section_class: type[S], value: Any, where: str) -> S:
    """Return a nested section, an instance of `section_class` or a dict of its fields.

    Raises:
        ConfigError: It is neither, or has an unknown key.
    """
    return (
        value
        if isinstance(value, section_class)
        else section_class(**section_values(section_class, value, where))
    )


def section_values(section_class: type[Any], value: Any, where: str) -> dict[str, Any]:
    """Return the keyword arguments that the dict of a nested section means."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"config[{where!r}]: {type(value).__name__}, expected a dict; write {where}={{...}}"
        )
    known = {field.name for field in fields(section_class)}
    for key, entry in value.items():
        if key not in known:
            refuse_or_warn(key, entry, known, f"config[{where!r}]: ")
    return {key: entry for key, entry in value.items() if key in known}


def refuse_or_warn(key: Any, value: Any, known: set[str], where: str, *, python_names: bool = False) -> None:
    """Warn once about a key without meaning; refuse any other unknown key, unless it says what holds anyhow.

    Args:
        key: As it was given.
        value: Of the key.
        known: Names of the fields.
        where: Begins the message.
        python_names: Whether near names are those of the fields, rather than classic keys.
    """
    if not isinstance(key, str):
        raise ConfigError(
            f"{where}unknown key {key!r:.60}, a {type(key).__name__}, expected the name of a setting; "
            "write it as a string"
        )
    if key in _NOT_YET:
        if value != _NOT_YET[key]:
            raise ConfigError(
                f"{where}{key} is {value!r}, expected {_NOT_YET[key]!r} in this version; leave it out"
            )
        return
    holds = HOLDS_ANYHOW.get(key)
    if key in HOLDS_ANYHOW and (value is None or (type(value) is type(holds) and value == holds)):
        return
    if key in _WITHOUT_MEANING:
        if key not in _warned:
            _warned.add(key)
            warnings.warn(
                f"{where}{key!r} has no meaning in menv and is ignored; leave it out",
                stacklevel=_frames_of_menv(),
            )
        return
    hint = classic_hint(key, known)
    if hint is not None:
        raise ConfigError(f"{where}unknown key {key!r}, expected a known one; {hint}")
    classic = {} if python_names else {old: new for old, new in RENAMED.items() if new in known}
    names = [*sorted(known - set(classic.values())), *classic]
    near = [name for name in names if name.startswith(key)] or difflib.get_close_matches(key, names, 1, _NEAR)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
    raise ConfigError(f"{where}unknown key {key!r}, expected a known one; {hint}")


def _frames_of_menv() -> int:
    """Return the `stacklevel` of the line outside menv that led here."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("menv."):
        frame, level = frame.f_back, level + 1
    return level
