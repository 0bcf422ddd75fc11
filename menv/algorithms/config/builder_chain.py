"""RLlib's builder chain: `PPOConfig().environment("CartPole-v1").training(lr=1e-3).build()`.

The base class of `AlgorithmConfig`. Each method returns a changed copy and takes any setting, also by RLlib's name;
`multi_agent` takes the settings of `multiagent`.
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
        return _with(self, settings if env is None else {"env": env, **settings})

    def training(self, **settings: Any) -> Self:
        """Set settings by their names or RLlib's; all methods of the chain but `multi_agent` take any of them."""
        return _with(self, settings)

    env_runners = rollouts = evaluation = offline_data = resources = training
    debugging = fault_tolerance = exploration = reporting = api_stack = training

    def multi_agent(self, **settings: Any) -> Self:
        """Set keys of `multiagent`, such as `policies` and `policy_mapping_fn`."""
        return _with(self, settings, of_agents=True)

    def framework(self, framework: str | None = None, **settings: Any) -> Self:
        """Set nothing: networks learn with torch. Other frameworks warn."""
        return _with(self, settings if framework in (None, "torch") else {"framework": framework})

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


def _with(config: C, given: Mapping[str, Any], *, of_agents: bool = False) -> C:
    """Return a copy with settings of this config, or of its section `multiagent`."""
    where, known = f"{type(config).__name__}: ", table(type(config))
    known = table(type(cast(Any, config).multiagent)) if of_agents else known
    settings: dict[str, Any] = {}
    for key, value in given.items():
        name = key if key in known else renamed(key, known)
        if name in settings:
            raise ConfigError(f"{where}{key!r} is {name!r}, expected one of them; leave {key!r} out")
        if name is None:
            refuse_or_warn(key, value, known, where, python_names=True)
        else:
            settings[name] = value
    return changed(config, {"multiagent": settings} if of_agents else settings)
