"""Settings that every algorithm has."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from menv.adapters.local_envs import TOLERATED
from menv.algorithms.config.builder_chain import BuilderChain, CallbacksSetting
from menv.algorithms.config.field_checks import LARGEST, MOST, MOST_ROWS, check_count, check_number, shown
from menv.algorithms.config.keys import ReadAsDict, section, section_named
from menv.algorithms.networks.stock_spec import MOST_SIZE, Cell, ConvFilter, is_count, read_filters
from menv.errors import ConfigError
from menv.migration_hints import hinted

# SEAM menv.algorithms.config.multi_agent_config
# Which policies there are, who answers for whom, and who learns.


@section_named("multiagent")
@dataclass(frozen=True, kw_only=True)
class MultiAgentConfig:
    """The `multiagent` section; `docs/settings.md` explains each key."""

    policies: Mapping[str, Any] | Iterable[str] | None = None
    """Specs by policy id, or ids alone; None means one policy, `default_policy`."""
    policy_mapping_fn: Callable[..., Any] | None = None
    """`(agent_id, episode, worker, **kwargs) -> policy id`, asked when an agent first appears in an episode."""
    policies_to_train: Iterable[str] | Callable[..., bool] | None = None
    """Ids, or `(policy_id, batch) -> bool`; None trains every policy that can learn. Running means of observations
    stand still for policies that a list leaves out; a function, which is asked about every batch, stops none."""
    observation_fn: Callable[..., Mapping[Any, Any]] | None = None
    """`(agent_obs, worker, base_env, policies, episode, **kw) -> {agent_id: new obs}`, asked on every env step;
    the policies' `observation_space` says what the new observations look like. Remote clients have to ask for each
    action then: episodes that they played by themselves are refused."""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """What fragment lengths, the train batch size and `min_sample_timesteps_per_iteration` count: "env_steps", or
    "agent_steps", the actions of agents."""

    def __post_init__(self) -> None:
        """Refuse what cannot be called; ids and functions are looked at together, where the policies are."""
        if self.observation_fn is not None and not callable(self.observation_fn):
            raise ConfigError(
                f"multiagent: observation_fn is a {type(self.observation_fn).__name__}, expected a function "
                "(agent_obs, worker, base_env, policies, episode) -> {agent_id: new obs}; pass the function itself"
            )


# SEAM menv.algorithms.config.model_config
# What the networks look like.


_ACTIVATIONS = ("tanh", "relu", "silu", "elu", "linear")
_MOST_LAYERS = 256
_MODEL_FLAGS = ("vf_share_layers", "use_lstm", "use_gru")


@section_named("model")
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The `model` section; `docs/settings.md` explains each key."""

    fcnet_hiddens: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, which lie above the convolutions where there are any."""
    fcnet_activation: Literal["tanh", "relu", "silu", "elu", "linear"] = "relu"
    """Activation after each hidden layer: "relu", "tanh", "silu", "elu" or "linear"."""
    vf_share_layers: bool = False
    """Whether the value function uses the policy's hidden layers and convolutions. Sharing nearly halves the work of
    learning from images, but a value error of large returns then drowns what the policy learns."""
    use_lstm: bool = False
    """Whether an LSTM follows the hidden layers; the value function has its own, unless it shares them."""
    use_gru: bool = False
    """Whether a GRU does instead."""
    lstm_cell_size: int = 64
    """Units of the LSTM or GRU."""
    max_seq_len: int = 20
    """Rows through which a recurrent policy learns at a time; longer pieces of trajectories are cut."""
    shared_layers: str | None = None
    """Name of a group of policies that stand on one set of hidden layers, each with heads of its own; None shares
    nothing. Each makes its own gradient steps, and what they change holds for all: so all of a group learn, or none."""
    conv_filters: tuple[ConvFilter, ...] | None = None
    """Convolutions over images, Boxes of shape (height, width, channels): a list of [out_channels, kernel, stride],
    such as [[16, [8, 8], 4], [32, 4, 2]]. All but the last are padded with zeros. None takes defaults for images of
    at least 24 x 24; [] means none. Images of bytes stay bytes in batches; convolutions divide by 255. An image beside
    other parts of a Dict or Tuple, but for an `action_mask`, gets none and is read as the numbers that it holds; a
    `custom_model` may convolve it."""
    conv_activation: Literal["tanh", "relu", "silu", "elu", "linear"] = "relu"
    """Activation after each convolution, one of the same."""
    custom_model: Callable[..., Any] | None = None
    """A network of your own: a `torch.nn.Module` class, or a function that returns a module; it takes the place of all
    layers above. `menv.algorithms.networks.custom_model` says what it gets and has to give."""
    custom_model_config: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for it."""

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
                "module, because every policy gets one of its own; pass that and put arguments into custom_model_config"
            )
        if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
            raise ConfigError(
                f"model: custom_model_config is {type(settings).__name__}, expected a dict of keyword arguments; "
                'write {"width": 64}'
            )
        if (model is None and settings) or (model is not None and self.conv_filters):
            stray = "custom_model_config without" if model is None else "conv_filters beside"
            raise ConfigError(f"model: {stray} custom_model, expected one or the other way; leave it out")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"model: {name} is {shown(value)}, expected True or False; choose one")
    return bool(value)


def _check_activation(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise ConfigError(
            f"model: {name} {value!r:.60}, expected one of {', '.join(_ACTIVATIONS)}; choose one of these"
        )


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
"""The least and the most of each: systems have no room for more processes, more threads end this one, and workers are
asked for all fragments that they may run ahead."""
_COUNTS_OR: dict[str, tuple[Any, int]] = {
    "rollout_fragment_length": ("auto", MOST_ROWS), "evaluation_interval": (None, MOST),
}  # fmt: skip
"""What may stand in the place of the count, and the most of it."""

_MEANS_NOTHING_WITHOUT = {
    "max_staleness": ("overlap", 1),
    "evaluation_parallel_to_training": ("evaluation_num_workers", False),
    "remote_env_batch_wait_ms": ("remote_worker_envs", 0),
}
"""Settings with the one that each belongs to, and its default."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(BuilderChain, ReadAsDict):
    """Environment, sampling and policies; an algorithm's own config adds how it learns."""

    if not TYPE_CHECKING:
        __getattr__ = hinted("Config")

    env: Any = None
    """A registered name, a class, a function of the context, a gymnasium id, or "package.module:Class"."""
    input: Any = None
    """A function of an `InputContext` that returns what experience comes from instead of `env`, such as a server."""
    env_config: Mapping[str, Any] = field(default_factory=dict)
    """Items of the `EnvContext` that the environment is created with."""
    observation_space: Any = None
    """Of every agent, or a dict of spaces by agent id, where the environment declares none before its first reset."""
    action_space: Any = None
    """Likewise."""
    num_workers: int = 0
    """Processes that sample; 0 samples in this one."""
    engine: Literal["process", "ray"] | None = None
    """What workers and remote environments run on: "process", this machine, or "ray"; None takes Ray where it is
    installed."""
    worker_start_timeout_s: float | None = None
    """Seconds that workers wait for room in a Ray cluster; None is 300 with an autoscaler or more than one node, 10 on
    one machine. Training then runs with the workers that are there, and the others join when Ray has placed them."""
    num_envs_per_worker: int = 1
    """Sub-environments that each worker steps together."""
    remote_worker_envs: bool = False
    """Whether sub-environments live in processes of their own, which pays where a step takes milliseconds."""
    remote_env_batch_wait_ms: int = 0
    """How long a poll waits for more of them once one is ready; 0 answers whoever is ready."""
    env_timeout: float | None = None
    """Seconds after which an environment that does not return, in another process, is given up; None never."""
    overlap: bool = False
    """Whether workers sample the next batch while this process learns from the last one."""
    max_staleness: int = 1
    """With `overlap`: so many updates may lie between the weights that acted and those that learn from it."""
    log_level: str | None = None
    """Level of what workers and remote environments log, to stderr, such as "INFO"; None leaves it alone."""
    restart_failed_sub_environments: bool = True
    """Whether one that raises is created again and costs its episode only; with False the run ends."""
    num_consecutive_env_failures_tolerance: int = TOLERATED
    """So many crashes of one sub-environment in a row, each in a reset or in the first 10 env steps of an episode, do
    not end the run; the next one does."""
    rollout_fragment_length: int | Literal["auto"] = "auto"
    """Steps of each sub-environment in a fragment; "auto" makes one fragment a train batch."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """Whether a fragment may cut an episode, or ("complete_episodes") runs on to its end; in vectorised environments
    rows wait for it. Callers of external environments wait in new episodes until those that run are over: who plays
    several at once needs a thread for each then."""
    train_batch_size: int = 4096
    """Steps, of all sub-environments together, that one training iteration learns from."""
    explore: bool = True
    """Whether sampled actions are drawn; False takes the most likely ones."""
    seed: int | None = None
    """Makes runs repeatable: gives every reset its own seed, and seeds `random` and `numpy.random` in each process,
    this one included; None does neither."""
    clip_rewards: bool | float = False
    """True learns from the signs of rewards, a number from rewards clipped to plus and minus it."""
    clip_actions: bool = False
    """Whether Box actions are clipped into the bounds, those of custom policies too."""
    normalize_actions: bool | None = None
    """Whether Box actions in [-1, 1] are scaled to the bounds; None scales those of networks and passes on those of
    custom policies unchanged."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """"MeanStdFilter" puts running means and standard deviations of observations into the agent connectors."""
    agent_connectors: Sequence[Any] = ()
    """More agent connectors behind the filter: registered names, or pairs of a name and its parameters."""
    metrics_num_episodes_for_smoothing: int = 100
    """Episodes that the means of a result are taken over."""
    inference: Literal["auto", "onnx", "torch"] = "auto"
    """What runs the networks while sampling: "onnx", "torch", or "auto", ONNX Runtime where it agrees with torch."""
    torch_threads: int | Literal["auto"] | None = "auto"
    """Threads for torch in this process; "auto" is one, and all processors while a large network learns; None leaves
    torch alone. Only with a number does a large network learn the same on machines with other numbers of processors."""
    num_gpus: float = 0
    """1 learns on a GPU, which pays for convolutions and wide layers; what torch runs in this process acts there."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The stock networks."""
    evaluation_interval: int | None = None
    """Training iterations from one evaluation to the next; None evaluates only when asked."""
    evaluation_duration: int = 10
    """Episodes or env steps of one evaluation, of all sub-environments together."""
    evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes"
    """What `evaluation_duration` counts, "episodes" or ("timesteps") env steps, rounded up to whole episodes."""
    evaluation_config: Mapping[str, Any] | None = None
    """Settings that differ in evaluations, such as `{"explore": False}`; items of `env_config` are merged. The
    run's own policies play: what they are made with, such as `model` or `exploration_config`, is the same."""
    evaluation_num_workers: int = 0
    """Processes that play evaluations, each in `num_envs_per_worker` sub-environments; 0 plays in this one."""
    evaluation_parallel_to_training: bool = False
    """With `evaluation_num_workers`: whether they play while an iteration trains, with the weights of its beginning."""
    always_attach_evaluation_results: bool = False
    """Whether results without an evaluation of their own repeat the last one."""
    callbacks: Any = CallbacksSetting()  # noqa: RUF009 - a descriptor
    """A subclass of `DefaultCallbacks`, an instance of one, or a list of several."""
    multiagent: MultiAgentConfig = field(default_factory=MultiAgentConfig)
    """Policies and their mapping."""

    def __post_init__(self) -> None:
        for name, off in (("input", "sampler"), ("evaluation_interval", 0)):
            # Classic ways of saying that there is none.
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
            # The classic default, which clips those of Atari's games alone.
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
            # Those of numpy overflow where seeds are mixed.
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
                    f"env_timeout: {self.env_timeout} with environments in this process, which cannot be given up, "
                    "expected some in others; set num_workers or remote_worker_envs=True"
                )
        if self.overlap and not self.num_workers:
            what = "without workers, expected some that sample meanwhile; set num_workers to 1 or more"
            if self.input is not None:
                what = "with an input, expected False, because its clients play while this process learns; leave it out"
            raise ConfigError(f"overlap: True {what}")
        self._check_company()

    def _check_company(self) -> None:
        """Refuse settings that mean nothing without another one; a default is no setting."""
        for name, (other, default) in _MEANS_NOTHING_WITHOUT.items():
            if getattr(self, name) != default and not getattr(self, other):
                needed = "True" if isinstance(getattr(self, other), bool) else "1 or more"
                raise ConfigError(
                    f"{name}: {getattr(self, name)} without {other}, expected {other}={needed}; set that, or leave "
                    f"this at {default}"
                )

    own_meaning: ClassVar[frozenset[str]] = frozenset()
    """Fields of this class that mean something of their own in an algorithm: its policies never take them
    from the config of another one."""
    of_the_run: ClassVar[frozenset[str]] = frozenset()
    """Fields of this class alone that hold for a whole run, so that no policy may have its own."""

    def sample_size(self, num_envs: int) -> int:
        """Return the steps that are sampled before the learners get them."""
        return self.train_batch_size

    def iteration_size(self, num_envs: int) -> int:
        """Return the steps of one `train()`, at least; they are made up of whole samples."""
        return self.sample_size(num_envs)

    def rows_of_a_step(self) -> int:
        """Return the rows of one gradient step."""
        return self.train_batch_size

    def fragment_length(self, num_envs: int) -> int:
        """Return the steps of each of `num_envs` sub-environments in one fragment."""
        if self.rollout_fragment_length == "auto":
            return max(1, -(-self.train_batch_size // num_envs))
        return self.rollout_fragment_length


def left_over(values: Mapping[str, Any], given: Container[str]) -> dict[str, Any]:
    """Return defaults for settings of another run that mean nothing any more, now that others were changed.

    Args:
        values: All settings, by name.
        given: Those that were chosen with the changes; they stay as they are.
    """
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
