"""RLlib's builder chain: `PPOConfig().environment("CartPole-v1").training(lr=1e-3).build()`.

The base class of `AlgorithmConfig`. Each method returns a changed copy. The field of a setting says which methods set
it; RLlib's names of the same settings are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from menv.algorithms.config.setting import refuse_or_warn, renamed, section_values, table
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.algorithms import Algorithm

C = TypeVar("C")


class BuilderChain:
    """The methods of the chain; each returns a copy with other settings."""

    _where: ClassVar[str]
    """The name of the algorithm in `menv.algorithms`."""

    def environment(self, env: Any = None, **settings: Any) -> Self:
        """Set the environment: `env`, `env_config`, spaces, and clipping."""
        return _with(self, "environment", settings if env is None else {"env": env, **settings})

    def env_runners(self, **settings: Any) -> Self:
        """Set how experience is sampled, such as `num_env_runners` and `rollout_fragment_length`."""
        return _with(self, "env_runners", settings)

    rollouts = env_runners

    def training(self, **settings: Any) -> Self:
        """Set how the algorithm learns, such as `lr`, `train_batch_size` and `model`."""
        return _with(self, "training", settings)

    def multi_agent(self, **settings: Any) -> Self:
        """Set keys of `multiagent`, such as `policies` and `policy_mapping_fn`."""
        return _with(self, "multi_agent", settings)

    def evaluation(self, **settings: Any) -> Self:
        """Set when and how policies are evaluated."""
        return _with(self, "evaluation", settings)

    def offline_data(self, **settings: Any) -> Self:
        """Set `input_`, the recorded episodes to learn from."""
        return _with(self, "offline_data", settings)

    def resources(self, **settings: Any) -> Self:
        """Set `num_gpus` and `torch_threads`."""
        return _with(self, "resources", settings)

    def debugging(self, **settings: Any) -> Self:
        """Set `seed` and `log_level`."""
        return _with(self, "debugging", settings)

    def fault_tolerance(self, **settings: Any) -> Self:
        """Set what happens when a sub-environment fails."""
        return _with(self, "fault_tolerance", settings)

    def framework(self, framework: str | None = None, **settings: Any) -> Self:
        """Set nothing: networks learn with torch. Other frameworks warn."""
        return _with(
            self, "framework", settings if framework in (None, "torch") else {"framework": framework}
        )

    def exploration(self, **settings: Any) -> Self:
        """Set `explore` and `exploration_config`."""
        return _with(self, "exploration", settings)

    def reporting(self, **settings: Any) -> Self:
        """Set over how many episodes and steps results are reported."""
        return _with(self, "reporting", settings)

    def api_stack(self, **settings: Any) -> Self:
        """Set nothing: there is one stack."""
        return _with(self, "api_stack", settings)

    def build(self, env: Any = None) -> Algorithm:
        """Return the algorithm, its environments created; `env` overrides the config's own."""
        from menv import algorithms

        built: Algorithm = getattr(algorithms, self._where)(config=self, env=env)
        return built

    def build_algo(self, env: Any = None) -> Algorithm:
        """Return the same as `build`."""
        return self.build(env)

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

    def __set__(self, config: Any, value: object) -> None:
        vars(config)["callbacks"] = DefaultCallbacks if isinstance(value, CallbacksSetting) else value

    def __call__(self, callbacks_class: Any) -> Any:
        return replace(self._config, callbacks=callbacks_class)

    def __eq__(self, other: object) -> bool:
        return other is DefaultCallbacks or isinstance(other, CallbacksSetting)

    def __hash__(self) -> int:
        return hash(DefaultCallbacks)

    def __repr__(self) -> str:
        return repr(DefaultCallbacks)


def changed(config: C, values: Mapping[str, Any]) -> C:
    """Return a copy of a config with other settings; dicts of sections and of `env_config` change only their keys."""
    whole, merged = cast(Any, config), dict(values)
    for name, row in table(type(config)).items():
        before, given = getattr(config, name), values.get(name)
        if isinstance(given, Mapping) and row.section is not None:
            merged[name] = replace(before, **section_values(row.section, given, name))
        elif isinstance(given, Mapping) and name == "env_config":
            merged[name] = {**before, **given}
    return cast(C, replace(whole, **merged))


def _with(config: C, method: str, given: Mapping[str, Any]) -> C:
    where, of_agents = f"{type(config).__name__}.{method}: ", table(type(cast(Any, config).multiagent))
    known = {**table(type(config)), **of_agents}
    methods = {name: ["multi_agent"] if name in of_agents else row.methods for name, row in known.items()}
    own = {name: row for name, row in known.items() if method in methods[name]}
    settings: dict[str, Any] = {}
    for key, value in given.items():
        name = key if key in known else renamed(key, known)
        if name in settings:
            raise ConfigError(f"{where}{key!r} is {name!r}, expected one of them; leave {key!r} out")
        if name in own:
            settings[name] = value
        elif name is not None:
            raise ConfigError(
                f"{where}unknown key {key!r}, expected a known one; write .{methods[name][0]}({key}=...)"
            )
        else:
            refuse_or_warn(key, value, own, where, python_names=True)
    return changed(config, {"multiagent": settings} if method == "multi_agent" else settings)
