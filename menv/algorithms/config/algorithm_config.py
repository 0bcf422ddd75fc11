"""Settings of every algorithm, with the sections `model` and `multiagent`, as dataclasses that check their values."""

from __future__ import annotations

import math
from collections.abc import (
    Callable,
    Container,
    Hashable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from menv.adapters.local_envs import TOLERATED
from menv.algorithms.config.builder_chain import BuilderChain, CallbacksSetting
from menv.algorithms.config.field_checks import LARGEST, MOST, MOST_ROWS, check_count, check_number, shown
from menv.algorithms.config.keys import RENAMED, section, section_named, setting_hint
from menv.algorithms.networks.stock_spec import MOST_SIZE, Cell, ConvFilter, is_count, read_filters
from menv.errors import ConfigError
from menv.migration_hints import hinted
from menv.policy_map import MappingSetting


@section_named("multiagent")
@dataclass(frozen=True, kw_only=True)
class MultiAgentConfig:
    """The `multiagent` section: policies, and the mapping of agents to them."""

    policies: Mapping[str, Any] | Iterable[str] | None = None
    """Policy specs by policy id, or ids alone. None creates one policy, `default_policy`."""
    policy_mapping_fn: MappingSetting = None
    """`(agent_id, episode, worker, **kwargs) -> policy id`, called when an agent first appears in an episode. Or pairs
    of patterns and policy ids, such as `[("car_*", "cars"), ("*", "others")]`: the first that matches counts, and a `*`
    in a policy id is the agent's name. A checkpoint holds pairs, and only the name of a function."""
    policies_to_train: Iterable[str] | Callable[..., bool] | None = None
    """Ids of the policies to train, or `(policy_id, batch) -> bool`. None trains every policy that can learn.
    Observation filters of policies that a list leaves out stay frozen; a function, called for every batch, freezes
    none."""
    observation_fn: Callable[..., Mapping[Any, Any]] | None = None
    """`(agent_obs, worker, base_env, policies, episode, **kw) -> {agent_id: new obs}`, called on every env step. The
    policies' `observation_space` describes the new observations. Remote clients must then request every action:
    episodes whose actions they chose locally are refused."""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """Unit of fragment lengths, the train batch size and `min_sample_timesteps_per_iteration`: "env_steps", or
    "agent_steps", the number of agent actions."""

    def __post_init__(self) -> None:
        if self.observation_fn is not None and not callable(self.observation_fn):
            raise ConfigError(
                f"multiagent: observation_fn is a {type(self.observation_fn).__name__}, expected a function "
                "(agent_obs, worker, base_env, policies, episode) -> {agent_id: new obs}; pass the function itself"
            )


_ACTIVATIONS = ("tanh", "relu", "silu", "elu", "linear")
_MOST_LAYERS = 256
_MODEL_FLAGS = ("vf_share_layers", "use_lstm", "use_gru")


@section_named("model")
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The `model` section: the architecture of the networks."""

    fcnet_hiddens: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers, which follow the convolutions if there are any."""
    fcnet_activation: Literal["tanh", "relu", "silu", "elu", "linear"] = "relu"
    """Activation after each hidden layer: "relu", "tanh", "silu", "elu" or "linear"."""
    vf_share_layers: bool = False
    """Whether the value function shares the policy's hidden layers and convolutions. Sharing nearly halves the cost of
    learning from images, but with large returns the value error can dominate the shared layers."""
    use_lstm: bool = False
    """Whether to add an LSTM after the hidden layers. The value function has a separate one unless `vf_share_layers`
    is set."""
    use_gru: bool = False
    """Whether to add a GRU instead of an LSTM."""
    lstm_cell_size: int = 64
    """Number of units of the LSTM or GRU."""
    max_seq_len: int = 20
    """Length of the training sequences of recurrent policies, in timesteps. Longer trajectory chunks are split."""
    shared_layers: str | None = None
    """Name of a group of policies that share one set of hidden layers and have separate heads. None shares nothing.
    The gradient steps of each policy change the shared layers for the whole group, so either all policies of a group
    learn or none."""
    conv_filters: tuple[ConvFilter, ...] | None = None
    """Convolutions over image observations, Boxes of shape (height, width, channels): a list of [out_channels, kernel,
    stride], such as [[16, [8, 8], 4], [32, 4, 2]]. All but the last use zero padding. None selects default filters for
    images of at least 24 x 24; [] disables convolutions. Byte images stay bytes in batches, and the network divides
    them by 255. An image inside a Dict or Tuple gets convolutions only if the other entry is an `action_mask`;
    otherwise the stock network reads its pixels as plain numbers, and a `custom_model` can convolve it."""
    conv_activation: Literal["tanh", "relu", "silu", "elu", "linear"] = "relu"
    """Activation after each convolution; same choices as `fcnet_activation`."""
    custom_model: Callable[..., Any] | None = None
    """A custom network: a `torch.nn.Module` class, or a function that returns a module. It replaces all layers above.
    `menv.algorithms.networks.custom_model` defines its inputs and outputs."""
    custom_model_config: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for `custom_model`."""

    def __post_init__(self) -> None:
        widths = self.fcnet_hiddens
        if (
            not isinstance(widths, Sequence)
            or isinstance(widths, str | bytes)
            or len(widths) > _MOST_LAYERS
            or not all(map(is_count, widths))
        ):
            raise ConfigError(
                f"model: fcnet_hiddens is {shown(widths)}, expected a list of at most {_MOST_LAYERS} positive integers "
                "below 2**31; for example [64, 64]"
            )
        object.__setattr__(self, "fcnet_hiddens", tuple(map(int, widths)))
        for name in ("fcnet_activation", "conv_activation"):
            _check_activation(name, getattr(self, name))
        for name in _MODEL_FLAGS:
            object.__setattr__(self, name, _flag(name, getattr(self, name)))
        if self.shared_layers is not None and (
            not isinstance(self.shared_layers, str) or not self.shared_layers
        ):
            raise ConfigError(
                f"model: shared_layers is {shown(self.shared_layers)}, expected the name of a group of policies, or "
                'None; for example "trunk"'
            )
        if self.conv_filters is not None:
            object.__setattr__(self, "conv_filters", read_filters(self.conv_filters))
        self._check_custom_model()
        if self.use_lstm and self.use_gru:
            raise ConfigError("model: use_lstm and use_gru are both set, expected one of them; leave one out")
        check_count("model", "lstm_cell_size", self.lstm_cell_size, most=MOST_SIZE)
        check_count("model", "max_seq_len", self.max_seq_len, most=MOST_ROWS)

    @property
    def cell(self) -> Cell | None:
        """The recurrent layer, None without one."""
        if not self.use_lstm and not self.use_gru:
            return None
        return Cell("lstm" if self.use_lstm else "gru", self.lstm_cell_size)

    def _check_custom_model(self) -> None:
        model, settings = self.custom_model, self.custom_model_config
        instance = hasattr(model, "named_parameters") and not isinstance(model, type)
        if model is not None and (instance or not callable(model)):
            given = f"an instance of {type(model).__name__}" if instance else shown(model)
            raise ConfigError(
                f"model: custom_model is {given}, expected a torch.nn.Module class or a function that returns a "
                "module, because every policy gets a separate one; pass that and put arguments into custom_model_config"
            )
        if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
            raise ConfigError(
                f"model: custom_model_config is {type(settings).__name__}, expected a dict of keyword arguments; "
                'write {"width": 64}'
            )
        if (model is None and settings) or (model is not None and self.conv_filters):
            both, one = (
                "custom_model_config without custom_model, expected both",
                "conv_filters with custom_model, expected one of them",
            )
            raise ConfigError(f"model: {both if model is None else one}; leave it out")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"model: {name} is {shown(value)}, expected True or False; choose one")
    return bool(value)


def _check_activation(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise ConfigError(
            f"model: {name} {value!r:.60}, expected one of {', '.join(_ACTIVATIONS)}; choose one of these"
        )


_CLASSIC = {name: key for key, name in RENAMED.items()}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "evaluation_duration_unit": ("episodes", "timesteps"),
    "batch_mode": ("truncate_episodes", "complete_episodes"),
    "inference": ("auto", "onnx", "torch"),
    "engine": (None, "process", "ray"),
    "observation_filter": ("NoFilter", "MeanStdFilter"),
    "normalize_actions": (None, True, False),
}
_FLAGS = (
    "always_attach_evaluation_results", "evaluation_parallel_to_training", "explore", "clip_actions",
    "restart_failed_sub_environments", "remote_worker_envs", "overlap",
)  # fmt: skip
_LEVELS = ("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL")
_PROCESSES = 10_000
_ENVS = 1_000_000
_THREADS = 256
_AHEAD = 1000
_SECONDS = 1_000_000
_COUNTS = {
    "num_workers": (0, _PROCESSES), "evaluation_num_workers": (0, _PROCESSES), "num_envs_per_worker": (1, _ENVS),
    "remote_env_batch_wait_ms": (0, 1000 * _SECONDS), "max_staleness": (1, _AHEAD), "train_batch_size": (1, MOST_ROWS),
    "metrics_num_episodes_for_smoothing": (1, MOST), "evaluation_duration": (1, MOST_ROWS),
    "num_consecutive_env_failures_tolerance": (0, MOST),
}  # fmt: skip
"""Minimum and maximum of each count."""
_COUNTS_OR: dict[str, tuple[Any, int]] = {
    "rollout_fragment_length": ("auto", MOST_ROWS), "evaluation_interval": (None, MOST),
}  # fmt: skip
"""The alternative to a count, and its maximum."""

_MEANS_NOTHING_WITHOUT = {
    "max_staleness": ("overlap", 1),
    "evaluation_parallel_to_training": ("evaluation_num_workers", False),
    "remote_env_batch_wait_ms": ("remote_worker_envs", 0),
}
"""Settings that need another one, with that one and their default."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(BuilderChain):
    """Settings of the environment, sampling and policies; the config of each algorithm adds how it learns.

    A config is also read like a classic nested dict: `config["model"]["use_lstm"]`; `copy()` returns such a dict.
    """

    if not TYPE_CHECKING:
        __getattr__ = hinted("Config")

    env: Any = None
    """A registered name, a class, a function of the `EnvContext`, a gymnasium id, or "package.module:Class"."""
    input: Any = None
    """A function of an `InputContext` that returns the source of experience, such as a policy server, instead of
    `env`."""
    env_config: Mapping[str, Any] = field(default_factory=dict)
    """Items of the `EnvContext` that is passed to the environment."""
    observation_space: Any = None
    """Observation space of every agent, or a dict of spaces by agent id, for environments that declare none before
    their first reset."""
    action_space: Any = None
    """Action space of every agent, or a dict of spaces by agent id, for the same environments."""
    num_workers: int = 0
    """Number of rollout worker processes; 0 samples in the main process."""
    engine: Literal["process", "ray"] | None = None
    """What runs rollout workers and remote environments: "process", processes on this machine, or "ray". None uses Ray
    if it is installed."""
    worker_start_timeout_s: float | None = None
    """Seconds to wait until a Ray cluster has room for the workers. None means 300 with an autoscaler or several
    nodes, and 10 on one machine. Training then starts with the workers that run; the others join once Ray has placed
    them."""
    num_envs_per_worker: int = 1
    """Number of sub-environments that each worker steps together."""
    remote_worker_envs: bool = False
    """Whether every sub-environment runs in a separate process, which pays off if a step takes milliseconds."""
    remote_env_batch_wait_ms: int = 0
    """Milliseconds to wait for more remote sub-environments once one is ready; 0 does not wait."""
    env_timeout: float | None = None
    """Seconds after which an environment in another process that does not return is given up. None waits forever."""
    overlap: bool = False
    """Whether workers sample the next batch while the main process learns from the last one."""
    max_staleness: int = 1
    """Maximum number of updates between the weights that sampled a batch and the weights that learn from it; for
    `overlap`."""
    log_level: str | None = None
    """Log level of workers and remote environments, which log to stderr, such as "INFO". None leaves it unchanged."""
    restart_failed_sub_environments: bool = True
    """Whether a sub-environment that raises is re-created, which ends only its current episode. With False the run
    ends."""
    num_consecutive_env_failures_tolerance: int = TOLERATED
    """Number of consecutive crashes of one sub-environment that do not end the run. A crash counts if it happens in a
    reset or in the first 10 env steps of an episode."""
    rollout_fragment_length: int | Literal["auto"] = "auto"
    """Number of steps of each sub-environment in a rollout fragment. With "auto", one fragment is one train batch."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """"truncate_episodes" may end a fragment in the middle of an episode; "complete_episodes" extends it to the end of
    the episode. Vectorized environments then hold timesteps back until their episode ends. External clients wait at
    the start of a new episode until the running episodes have ended, so a client that plays several episodes at once
    needs a thread for each."""
    train_batch_size: int = 4096
    """Number of steps, over all sub-environments, per training iteration."""
    explore: bool = True
    """Whether to sample actions from the policy; False takes the most likely action."""
    seed: int | None = None
    """Seed for reproducible runs. It seeds every reset, and `random` and `numpy.random` in each process, the main
    process included. None seeds none of these."""
    clip_rewards: bool | float = False
    """True learns from the signs of rewards; a number clips rewards to [-number, number]."""
    clip_actions: bool = False
    """Whether to clip Box actions to the bounds of the space, including the actions of custom policies."""
    normalize_actions: bool | None = None
    """Whether to scale Box actions from [-1, 1] to the bounds of the space. None scales the actions of networks and
    leaves the actions of custom policies unchanged."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """"MeanStdFilter" normalizes observations by their running mean and standard deviation, as an agent connector."""
    agent_connectors: Sequence[Any] = ()
    """Additional agent connectors after the filter: registered names, or pairs of a name and its parameters."""
    metrics_num_episodes_for_smoothing: int = 100
    """Number of recent episodes over which results report means."""
    inference: Literal["auto", "onnx", "torch"] = "auto"
    """Backend that runs the networks while sampling: "onnx", "torch", or "auto", which uses ONNX Runtime where it
    agrees with torch."""
    torch_threads: int | Literal["auto"] | None = "auto"
    """Number of torch threads in the main process. "auto" uses one, and all processors while a large network learns.
    None keeps the setting of torch. Only a number makes large networks learn the same on machines with different
    numbers of processors."""
    num_gpus: float = 0
    """1 trains on a GPU, which pays off for convolutions and wide layers. Networks that torch runs in the main process
    then act on the GPU too."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Architecture of the stock networks."""
    evaluation_interval: int | None = None
    """Number of training iterations between evaluations. None evaluates only when `evaluate()` is called."""
    evaluation_duration: int = 10
    """Number of episodes or env steps per evaluation, over all sub-environments."""
    evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes"
    """Unit of `evaluation_duration`: "episodes", or "timesteps", which are env steps rounded up to whole episodes."""
    evaluation_config: Mapping[str, Any] | None = None
    """Settings that differ in evaluations, such as `{"explore": False}`. Items of `env_config` are merged. Evaluations
    use the run's policies, so settings that define a policy, such as `model` or `exploration_config`, cannot differ."""
    evaluation_num_workers: int = 0
    """Number of evaluation processes, each with `num_envs_per_worker` sub-environments; 0 evaluates in the main
    process."""
    evaluation_parallel_to_training: bool = False
    """Whether evaluations run while an iteration trains, with the weights from its beginning; needs
    `evaluation_num_workers`."""
    always_attach_evaluation_results: bool = False
    """Whether results of iterations without an evaluation repeat the last one."""
    callbacks: Any = CallbacksSetting()  # noqa: RUF009 - a descriptor
    """A subclass of `DefaultCallbacks`, an instance of one, or a list of these."""
    multiagent: MultiAgentConfig = field(default_factory=MultiAgentConfig)
    """Policies, and the mapping of agents to policies."""

    def __post_init__(self) -> None:
        for name, off in (("input", "sampler"), ("evaluation_interval", 0)):
            # Classic spellings of None.
            if type(getattr(self, name)) is type(off) and getattr(self, name) == off:
                object.__setattr__(self, name, None)
        object.__setattr__(self, "model", section(ModelConfig, self.model, "model"))
        object.__setattr__(self, "multiagent", section(MultiAgentConfig, self.multiagent, "multiagent"))
        for name in _FLAGS:
            _check_choice(name, getattr(self, name), (True, False))
        self._check_counts()
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        _check_choice("count_steps_by", self.multiagent.count_steps_by, ("env_steps", "agent_steps"))
        self._check_kinds()
        if self.evaluation_config is not None and not isinstance(self.evaluation_config, Mapping):
            raise ConfigError(
                f"evaluation_config: {type(self.evaluation_config).__name__}, expected a dict; "
                'write {"explore": False}'
            )

    def _check_counts(self) -> None:
        for name, (least, most) in _COUNTS.items():
            check_count("config", name, getattr(self, name), least, most)
        for name, (other, most) in _COUNTS_OR.items():
            if getattr(self, name) != other:
                check_count("config", name, getattr(self, name), 1, most)
        if self.remote_worker_envs:
            check_count("config", "num_envs_per_worker", self.num_envs_per_worker, 1, _PROCESSES)

    def _check_kinds(self) -> None:
        if self.clip_rewards is None:
            # The classic default, which clips the rewards of Atari games only.
            object.__setattr__(self, "clip_rewards", False)
        limit = self.clip_rewards
        most = math.inf if isinstance(limit, float) else LARGEST
        if not isinstance(limit, bool | int | float) or not 0 <= limit <= most:
            raise ConfigError(
                f"clip_rewards: {shown(limit)}, expected True (signs), False or a positive limit; choose one"
            )
        if isinstance(self.agent_connectors, str) or not isinstance(self.agent_connectors, Sequence):
            raise ConfigError(
                f"agent_connectors: {shown(self.agent_connectors)}, expected a list; write "
                'agent_connectors=[("FrameStackAgentConnector", {"num_frames": 4})]'
            )
        object.__setattr__(self, "agent_connectors", tuple(self.agent_connectors))
        if not isinstance(self.env_config, Mapping):
            raise ConfigError(
                f"env_config: {type(self.env_config).__name__}, expected a dict; pass env_config={{...}}"
            )
        no_number = isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer)
        if self.seed is not None and (no_number or self.seed < 0):
            raise ConfigError(
                f"seed: {shown(self.seed)}, expected an integer of at least 0, or None; choose one"
            )
        if self.seed is not None:
            # numpy integers overflow where seeds are mixed.
            object.__setattr__(self, "seed", int(self.seed))
        self._check_scale()

    def _check_scale(self) -> None:
        check_number("config", "num_gpus", self.num_gpus, 0, 1)
        if self.torch_threads not in ("auto", None):
            check_count("config", "torch_threads", self.torch_threads, 1, _THREADS)
        _check_choice("log_level", self.log_level, (None, *_LEVELS))
        if self.worker_start_timeout_s is not None:
            _check_seconds("worker_start_timeout_s", self.worker_start_timeout_s)
        if self.env_timeout is not None:
            _check_seconds("env_timeout", self.env_timeout)
            if not (self.num_workers or self.evaluation_num_workers or self.remote_worker_envs):
                raise ConfigError(
                    f"env_timeout: {self.env_timeout} with environments in this process, which cannot be interrupted, "
                    "expected some in other processes; set num_workers or remote_worker_envs=True"
                )
        if self.overlap and not self.num_workers:
            what = "without workers, expected some that sample meanwhile; set num_workers to 1 or more"
            if self.input is not None:
                what = "with an input, expected False, because clients play while this process learns; leave it out"
            raise ConfigError(f"overlap: True {what}")
        self._check_needed()

    def _check_needed(self) -> None:
        for name, (other, default) in _MEANS_NOTHING_WITHOUT.items():
            if getattr(self, name) != default and not getattr(self, other):
                needed = "True" if isinstance(getattr(self, other), bool) else "1 or more"
                raise ConfigError(
                    f"{name}: {getattr(self, name)} without {other}, expected {other}={needed}; set that, or leave "
                    f"this at {default}"
                )

    own_meaning: ClassVar[frozenset[str]] = frozenset()
    """Fields with another meaning in this algorithm, which its policies never take from the config of another one."""
    of_the_run: ClassVar[frozenset[str]] = frozenset()
    """Additional fields of this class that no policy may override."""

    def sample_size(self, num_envs: int) -> int:
        """Return the steps that are sampled between two learning phases."""
        return self.train_batch_size

    def iteration_size(self, num_envs: int) -> int:
        """Return the minimum steps of one `train()`; an iteration consists of whole samples."""
        return self.sample_size(num_envs)

    def rows_of_a_step(self) -> int:
        """Return the timesteps of one gradient step."""
        return self.train_batch_size

    def fragment_length(self, num_envs: int) -> int:
        """Return the steps of each of `num_envs` sub-environments in one fragment."""
        if self.rollout_fragment_length == "auto":
            return max(1, -(-self.train_batch_size // num_envs))
        return self.rollout_fragment_length

    def __getitem__(self, key: str) -> Any:
        name, known = RENAMED.get(key, key), self._names()
        if name not in known:
            hint = setting_hint(key, known) or "keys() lists them"
            raise KeyError(f"config: no setting {key!r}, expected an existing one; {hint}")
        value = vars(self)[name]
        return {one.name: getattr(value, one.name) for one in fields(value)} if is_dataclass(value) else value

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError(
            f"config[{key!r}]: settings are read-only, expected no assignment; change a copy() and build from it"
        )

    def __contains__(self, key: object) -> bool:
        return RENAMED.get(str(key), key) in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter([_CLASSIC.get(name, name) for name in self._names()])

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting, `default` if there is no setting of this name."""
        with suppress(KeyError):
            return self[key]
        return default

    def keys(self) -> KeysView[str]:
        """Return the names in classic spelling."""
        return self.copy().keys()

    def values(self) -> ValuesView[Any]:
        """Return the settings."""
        return self.copy().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the settings by name."""
        return self.copy().items()

    def copy(self) -> dict[str, Any]:
        """Return the settings as a dict that you may change and pass to an algorithm as `config`."""
        return {key: self[key] for key in self}

    def to_dict(self) -> dict[str, Any]:
        """Return the same as `copy`."""
        return self.copy()

    def _names(self) -> list[str]:
        return [field.name for field in fields(self)]


def left_over(values: Mapping[str, Any], given: Container[str]) -> dict[str, Any]:
    """Return defaults for settings that lost the setting they need, except for the names in `given`."""
    return {
        name: default
        for name, (other, default) in _MEANS_NOTHING_WITHOUT.items()
        if name not in given and not values.get(other)
    }


def _check_seconds(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _SECONDS:
        raise ConfigError(
            f"{name}: {shown(value)}, expected seconds above 0 and at most {_SECONDS}, or None; choose one"
        )


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not isinstance(value, Hashable) or value not in choices:
        raise ConfigError(f"{name}: {shown(value)}, expected one of {choices}; choose one of these")
