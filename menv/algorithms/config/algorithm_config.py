"""Settings of every algorithm, with the sections `model` and `multiagent`, as dataclasses that check their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from msgspec import Meta

from menv.adapters.local_envs import TOLERATED
from menv.algorithms.config.builder_chain import BuilderChain, CallbacksSetting
from menv.algorithms.config.setting import (
    FASTEST,
    LARGEST,
    MOST_ROWS,
    Settings,
    by_name,
    check_most,
    field_name,
    setting,
    setting_hint,
    shown,
    table,
)
from menv.algorithms.config.zoo import required_zoo_settings
from menv.algorithms.networks.stock_spec import MOST_SIZE, Cell, ConvFilter, read_filters
from menv.errors import ConfigError
from menv.migration_hints import hinted
from menv.policy_map import MappingSetting


@by_name
@dataclass(frozen=True, kw_only=True)
class MultiAgentConfig(Settings):
    """The `multiagent` section: policies, and the mapping of agents to them."""

    _where: ClassVar[str] = "multiagent"

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
        super().__post_init__()
        if self.observation_fn is not None and not callable(self.observation_fn):
            raise ConfigError(
                f"multiagent: observation_fn is a {type(self.observation_fn).__name__}, expected a function "
                "(agent_obs, worker, base_env, policies, episode) -> {agent_id: new obs}; pass the function itself"
            )


@by_name
@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig(Settings):
    """The `self_play` section: a league of frozen snapshots as opponents."""

    _where: ClassVar[str] = "self_play"

    enabled: bool = True
    """Whether there is a league. `self_play=True` means `{"enabled": True}`, and so does a dict of other keys."""
    matchmaking: Literal["latest", "uniform", "prioritized"] | Mapping[str, float] = setting(
        {"current": 0.5, "prioritized": 0.4, "fixed": 0.1}
    )
    """Opponents of the learning side: "latest", the last snapshot; "uniform", any member of the league; "prioritized",
    members in proportion to how often the learner loses to them (prioritized fictitious self-play). Or shares of these
    by name, among which "current" is the learner itself, whose both sides learn, "fixed" are `opponents`, and each of
    these may be named."""
    opponents: Mapping[str, Any] = setting({"random": "random"})
    """Fixed members by name: "random", or a custom `Policy` class such as a search. Their rating is 1200."""
    sides: Mapping[str, Sequence[str]] | None = None
    """Patterns of agent names by side: `{"red": ["red_*"], "blue": ["blue_*"]}`. The agents of a side win together.
    None makes a side of each agent, or of each policy if there are several."""
    snapshot_interval: int = 10
    """Number of training iterations between two snapshots of the learner."""
    snapshot_score: float = setting(0.0, low=0.0, high=1.0)
    """Share of points that the learner must have won against its opponents since the last snapshot; else the snapshot
    waits."""
    members_in_memory: int = setting(20, high=1000)
    """Number of snapshots of each role in memory. The others are on disk."""
    opponents_at_once: int = setting(1, high=1000)
    """Number of members that "uniform" and "prioritized" sample for each iteration. More of them make smaller batches,
    which take longer."""
    win_if: Literal["highest_return"] | Mapping[str, float] | None = None
    """Who wins an episode. None: the side with the highest return, and returns that do not add up to 0 are refused.
    "highest_return" allows them, for sides whose returns can be compared. `{"seeker": 5.0}`: the sides with at least
    this return win, and the others only if none of these does."""
    folder: str | None = None
    """Where the snapshots are while the run lasts; None uses a temporary folder. Checkpoints have all of them."""


Activation: TypeAlias = Literal["tanh", "relu", "silu", "elu", "linear"]
_WIDTHS = "a list of at most 256 positive integers below 2**31, such as [64, 64]"
Widths: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=1, lt=2**31)], ...], Meta(max_length=256, description=_WIDTHS)
]


@by_name
@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings):
    """The `model` section: the architecture of the networks."""

    _where: ClassVar[str] = "model"

    fcnet_hiddens: Widths = (64, 64)
    """Sizes of the hidden layers, which follow the convolutions if there are any."""
    fcnet_activation: Activation | None = None
    """Activation after each hidden layer: "relu", "tanh", "silu", "elu" or "linear". None means "tanh" for PPO, and
    "relu" for all others."""
    vf_share_layers: bool = False
    """Whether the value function shares the policy's hidden layers and convolutions. Sharing nearly halves the cost of
    learning from images, but with large returns the value error can dominate the shared layers."""
    use_lstm: bool = False
    """Whether to add an LSTM after the hidden layers. The value function has a separate one unless `vf_share_layers`
    is set, and so has a centralized critic."""
    use_gru: bool = False
    """Whether to add a GRU instead of an LSTM."""
    lstm_cell_size: int = setting(64, high=MOST_SIZE)
    """Number of units of the LSTM or GRU."""
    max_seq_len: int = setting(20, high=MOST_ROWS)
    """Length of the training sequences of recurrent policies and of `td_lambda`, in timesteps. Longer trajectory chunks
    are split."""
    shared_layers: str | None = None
    """Name of a group of policies that share one set of hidden layers and have separate heads. None shares nothing.
    The gradient steps of each policy change the shared layers for the whole group, so either all policies of a group
    learn or none. A group of PPO and DQN policies needs one `fcnet_activation` for both."""
    conv_filters: tuple[ConvFilter, ...] | None = None
    """Convolutions over image observations, Boxes of shape (height, width, channels): a list of [out_channels, kernel,
    stride], such as [[16, [8, 8], 4], [32, 4, 2]]. All but the last use zero padding. None selects default filters for
    images of at least 24 x 24; [] disables convolutions. Byte images stay bytes in batches, and the network divides
    them by 255. An image inside a Dict or Tuple gets convolutions only if the other entry is an `action_mask`;
    otherwise the stock network reads its pixels as plain numbers, and a `custom_model` can convolve it."""
    conv_activation: Activation = "relu"
    """Activation after each convolution: "relu", "tanh", "silu", "elu" or "linear"."""
    custom_model: Callable[..., Any] | None = None
    """A custom network: a `torch.nn.Module` class, or a function that returns a module. It replaces all layers above.
    `menv.algorithms.networks.custom_model` defines its inputs and outputs."""
    custom_model_config: Mapping[str, Any] = setting({}, old="custom_options")
    """Keyword arguments for `custom_model`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conv_filters is not None:
            object.__setattr__(self, "conv_filters", read_filters(self.conv_filters))
        self._check_custom_model()
        if self.use_lstm and self.use_gru:
            raise ConfigError("model: use_lstm and use_gru are both set, expected one of them; leave one out")

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
        if not all(isinstance(name, str) for name in settings):
            raise ConfigError(
                f"model: custom_model_config is {shown(settings)}, expected a dict of keyword arguments; write "
                '{"width": 64}'
            )
        if (model is None and settings) or (model is not None and self.conv_filters):
            both, one = (
                "custom_model_config without custom_model, expected both",
                "conv_filters with custom_model, expected one of them",
            )
            raise ConfigError(f"model: {both if model is None else one}; leave it out")


LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"]
_PROCESSES = 10_000
_ENVS = 1_000_000
_SECONDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(BuilderChain, Settings, Mapping[str, Any]):
    """Settings of the environment, sampling and policies; the config of each algorithm adds how it learns.

    A config is also read like a classic nested dict: `config["model"]["use_lstm"]`; `copy()` returns such a dict, which
    you may change and pass to an algorithm.
    """

    if not TYPE_CHECKING:
        __getattr__ = hinted(lambda config, key: setting_hint(key, table(type(config))))

    env: Any = None
    """A registered name, a class, a function of the `EnvContext`, a gymnasium id, or "package.module:Class"."""
    input: Any = setting(None, classic="sampler", old="input_")
    """Where experience comes from instead of `env`: a path or a pattern of recorded episodes, such as
    `"games/*.parquet"`, or a function of an `InputContext` that returns a source, such as a policy server. The
    environment is then only needed for evaluations. `{"sampler": 0.5, "games/*.parquet": 0.5}` samples the environment
    too: the numbers are shares of the env steps. Only env steps of the environment are counted."""
    common_reward: Literal["sum", "mean"] | None = None
    """Pays every agent the reward of the team, the sum or the mean of what the environment paid to its agents in an env
    step. "mean" divides by the agents with a running episode. The environment itself pays it, so that batches, results
    and recordings have it; `evaluation_config={"common_reward": None}` scores each agent's own rewards."""
    env_config: Mapping[str, Any] = setting({})
    """Items of the `EnvContext` that is passed to the environment."""
    observation_space: Any = None
    """Observation space of every agent, or a dict of spaces by agent id, for environments that declare none before
    their first reset."""
    action_space: Any = None
    """Action space of every agent, or a dict of spaces by agent id, for the same environments."""
    num_workers: int = setting(0, low=0, high=_PROCESSES, old="num_env_runners num_rollout_workers")
    """Number of rollout worker processes; 0 samples in the main process."""
    engine: Literal["process", "ray"] | None = None
    """What runs rollout workers and remote environments: "process", processes on this machine, or "ray". None uses Ray
    if it is installed."""
    worker_start_timeout_s: float | None = setting(None, positive=True, high=_SECONDS)
    """Seconds to wait until a Ray cluster has room for the workers; None means 60. Training then starts with the
    workers that run; the others join once Ray has placed them."""
    num_envs_per_worker: int = setting(1, high=_ENVS, old="n_envs num_envs_per_env_runner")
    """Number of sub-environments that each worker steps together."""
    remote_worker_envs: bool = False
    """Whether every sub-environment runs in a separate process, which pays off if a step takes milliseconds."""
    remote_env_batch_wait_ms: int = setting(0, low=0, high=1000 * _SECONDS)
    """Milliseconds to wait for more remote sub-environments once one is ready; 0 does not wait. For
    `remote_worker_envs`."""
    env_timeout: float | None = setting(None, positive=True, high=_SECONDS)
    """Seconds after which an environment in another process that does not return is given up. None waits forever."""
    overlap: bool = False
    """Whether workers sample the next batch while the main process learns from the last one."""
    max_staleness: int = setting(1, high=1000)
    """Maximum number of updates between the weights that sampled a batch and the weights that learn from it; for
    `overlap`."""
    log_level: LogLevel | None = None
    """Log level of workers and remote environments, which log to stderr, such as "INFO". None leaves it unchanged."""
    restart_failed_sub_environments: bool = True
    """Whether a sub-environment that raises is re-created, which ends only its current episode. With False the run
    ends."""
    num_consecutive_env_failures_tolerance: int = setting(TOLERATED, low=0)
    """Number of consecutive crashes of one sub-environment that do not end the run. A crash counts if it happens in a
    reset or in the first 10 env steps of an episode."""
    rollout_fragment_length: int | Literal["auto"] = setting("auto", high=MOST_ROWS, old="sample_batch_size")
    """Number of steps of each sub-environment in a rollout fragment. With "auto", one fragment is one train batch."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """"truncate_episodes" may end a fragment in the middle of an episode; "complete_episodes" extends it to the end of
    the episode. Vectorized environments then hold timesteps back until their episode ends. External clients wait at
    the start of a new episode until the running episodes have ended, so a client that plays several episodes at once
    needs a thread for each."""
    train_batch_size: int = setting(4096, high=MOST_ROWS, old="train_batch_size_per_learner")
    """Number of steps, over all sub-environments, per training iteration."""
    explore: bool = True
    """Whether to sample actions from the policy; False takes the most likely action."""
    seed: int | None = setting(None, low=0, high=math.inf)
    """Seed for reproducible runs. It seeds every reset, and `random` and `numpy.random` in each process, the main
    process included. None seeds none of these."""
    clip_rewards: bool | float = setting(False, classic=None, low=0, high=math.inf, scope="policy")
    """True learns from the signs of rewards; a number clips rewards to [-number, number]."""
    clip_actions: bool = setting(False, scope="connectors")
    """Whether to clip the Box actions of networks to the bounds of the space."""
    normalize_actions: bool = setting(True, scope="connectors")
    """Whether to scale the Box actions of networks from [-1, 1] to the bounds of the space."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = setting("NoFilter", scope="connectors")
    """"MeanStdFilter" normalizes observations by their running mean and standard deviation, as an agent connector."""
    agent_connectors: Sequence[Any] = setting((), scope="connectors")
    """Additional agent connectors after the filter: registered names, or pairs of a name and its parameters."""
    agent_ids: bool = setting(False, scope="connectors")
    """Whether observations are followed by a one-hot code of the agent, with a column for each of `possible_agents`, so
    that agents that share a policy may act differently in the same situation. It is the last agent connector."""
    metrics_num_episodes_for_smoothing: int = setting(100, old="metrics_smoothing_episodes")
    """Number of recent episodes over which results report means."""
    inference: Literal["auto", "onnx", "torch"] = setting("auto", scope="policy")
    """Backend that runs the networks while sampling: "onnx", "torch", or "auto", which uses ONNX Runtime where it
    agrees with torch."""
    torch_threads: int | None = setting(1, high=256)
    """Number of torch threads in the main process. One is fastest for small networks; large ones and convolutions
    learn faster with more. None keeps the setting of torch. Another number may change the last bits of results."""
    num_gpus: float = setting(0, low=0, high=1, scope="policy")
    """1 trains on a GPU, which pays off for convolutions and wide layers. Networks that torch runs in the main process
    then act on the GPU too."""
    model: ModelConfig = setting(ModelConfig(), scope="network", old="model_config")
    """Architecture of the stock networks."""
    evaluation_interval: int | None = setting(None, classic=0, scope="schedule")
    """Number of training iterations between evaluations. None evaluates only when `evaluate()` is called."""
    evaluation_duration: int = setting(10, high=MOST_ROWS, old="evaluation_num_episodes")
    """Number of episodes or env steps per evaluation, over all sub-environments, or its seconds."""
    evaluation_duration_unit: Literal["episodes", "timesteps", "seconds"] = "episodes"
    """Unit of `evaluation_duration`: "episodes", "timesteps", which are env steps rounded up to whole episodes, or
    "seconds", after which running episodes are played to their end."""
    evaluation_config: Mapping[str, Any] | None = None
    """Settings that differ in evaluations, such as `{"explore": False}`. Items of `env_config` are merged. Evaluations
    use the run's policies, so settings that define a policy, such as `model` or `exploration_config`, cannot differ."""
    evaluation_num_workers: int = setting(
        0, low=0, high=_PROCESSES, scope="schedule", old="evaluation_num_env_runners"
    )
    """Number of evaluation processes, each with `num_envs_per_worker` sub-environments; 0 evaluates in the main
    process."""
    evaluation_parallel_to_training: bool = setting(False, scope="schedule")
    """Whether evaluations run while an iteration trains, with the weights from its beginning; needs
    `evaluation_num_workers`."""
    always_attach_evaluation_results: bool = setting(False, scope="schedule")
    """Whether results of iterations without an evaluation repeat the last one."""
    callbacks: Any = CallbacksSetting()  # noqa: RUF009 - a descriptor
    """A subclass of `DefaultCallbacks`, an instance of one, or a list of these."""
    multiagent: MultiAgentConfig = setting(MultiAgentConfig(), old="multi_agent")
    """Policies, and the mapping of agents to policies."""
    self_play: SelfPlayConfig = setting(SelfPlayConfig(enabled=False), scope="schedule")
    """Self-play against a league of snapshots; True uses its defaults."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.agent_connectors, str) or not isinstance(self.agent_connectors, Sequence):
            raise ConfigError(
                f"{self._where}: agent_connectors is {shown(self.agent_connectors)}, expected a list; write "
                'agent_connectors=[("FrameStackAgentConnector", {"num_frames": 4})]'
            )
        vars(self)["agent_connectors"] = tuple(self.agent_connectors)
        if isinstance(self.input, Mapping):
            shares = [*self.input.values()]
            numbers = all(isinstance(one, int | float) and 0 < one < math.inf for one in shares)
            if len(shares) != 2 or "sampler" not in self.input or not numbers:
                raise ConfigError(
                    f"{self._where}: input is {shown(self.input)}, expected shares above 0 of the sampler and of one "
                    'recording; write {"sampler": 0.5, "games/*.parquet": 0.5}'
                )
        self._check_processes()

    def _check_processes(self) -> None:
        if self.remote_worker_envs:
            check_most(self._where, "num_envs_per_worker", self.num_envs_per_worker, _PROCESSES)
        in_processes = self.num_workers or self.evaluation_num_workers or self.remote_worker_envs
        if self.env_timeout is not None and not in_processes:
            raise ConfigError(
                f"{self._where}: env_timeout is {self.env_timeout} with environments in this process, which cannot be "
                "interrupted, expected some in other processes; set num_workers or remote_worker_envs=True, or leave "
                "env_timeout out for an external environment or an input, whose applications set the pace"
            )
        if self.evaluation_parallel_to_training and not self.evaluation_num_workers:
            raise ConfigError(
                f"{self._where}: evaluation_parallel_to_training is True with evaluation_num_workers 0, expected 1 or "
                "more; set that"
            )
        if self.overlap and not self.num_workers:
            raise ConfigError(
                f"{self._where}: overlap is True without workers, expected some that sample meanwhile; set num_workers "
                "to 1 or more, or leave overlap out for external environments, which play on while this process learns"
            )
        if self.overlap and self.self_play.enabled:
            raise ConfigError(
                f"{self._where}: overlap is True with self_play, expected False, because opponents change between "
                "iterations; leave it out"
            )

    @classmethod
    def from_zoo(cls, env: str, zoo: str | None = None) -> Self:
        """Return the settings that `menv train ENV` uses.

            PPOConfig.from_zoo("CartPole-v1").training(lr=1e-3).build()

        Args:
            env: The name of the environment.
            zoo: Another table of `menv/zoo` than the algorithm's, such as "MAPPO", or your own file, "my.toml" or
                "my.toml:TABLE".

        Raises:
            ConfigError: There is no such table for the environment, or it is one of another algorithm.
        """
        found = required_zoo_settings(env, zoo or cls._where, cls._where)
        if found.algorithm != cls._where:
            raise ConfigError(
                f"{cls._where}: zoo {zoo} is for {found.algorithm}, expected a table of {cls._where}; name another one"
            )
        return cls(env=env).training(**found.settings)

    @property
    def replaces_env(self) -> bool:
        """Whether `input` is the only source of experience."""
        return self.input is not None and not isinstance(self.input, Mapping)

    groups_agents: ClassVar[bool] = False
    """Whether the algorithm trains groups of agents, whose rows mark which members are there."""
    own_meaning: ClassVar[frozenset[str]] = frozenset()
    """Fields with another meaning in this algorithm, which its policies never take from the config of another one."""

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
        known = table(type(self))
        name = field_name(key, known)
        if name not in known:
            hint = setting_hint(key, known) or "keys() lists them"
            raise KeyError(f"config: no setting {key!r}, expected an existing one; {hint}")
        value = vars(self)[name]
        return dict(vars(value)) if known[name].section else value

    def __iter__(self) -> Iterator[str]:
        return iter([row.key for row in table(type(self)).values()])

    def __len__(self) -> int:
        return len(table(type(self)))

    def copy(self) -> dict[str, Any]:
        """Return the settings as a dict, by their classic names."""
        return {key: self[key] for key in self}

    to_dict = copy


def team_note(config: object) -> str:
    """Return a hint for errors about different networks or spaces: some networks fit teams of one size."""
    mixer = getattr(config, "mixer", "")
    name = "" if mixer == "" else str(mixer or "QMIX").upper()
    if getattr(config, "critic_obs", None) in ("state", "all_agents"):
        name = "MAPPO"
    return name and f"; a network of {name} fits teams of one size, so keep the number of agents"


Schedule: TypeAlias = Sequence[Sequence[float]]
"""`[env_steps, value]` pairs in ascending order, interpolated linearly and constant outside."""


@dataclass(frozen=True, kw_only=True)
class LearningConfig(AlgorithmConfig):
    """Settings of an algorithm whose learning rate `lr` may follow a schedule."""

    if TYPE_CHECKING:
        lr: float

    lr_schedule: Schedule | None = None
    """Learning rate over env steps: pairs such as [[0, 1e-3], [100000, 1e-4]], interpolated linearly and constant
    outside. None keeps `lr`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_schedule(self._where, "lr_schedule", self.lr_schedule, most=FASTEST)

    def lr_at(self, env_steps: int) -> float:
        """Return the learning rate after `env_steps` env steps of the run."""
        return value_at(self.lr_schedule, self.lr, env_steps)


def value_at(schedule: Schedule | None, constant: float, env_steps: int) -> float:
    """Return the value of a schedule after `env_steps` env steps, `constant` without one."""
    if schedule is None:
        return float(constant)
    return float(np.interp(env_steps, [point[0] for point in schedule], [point[1] for point in schedule]))


def check_schedule(
    where: str, name: str, schedule: Schedule | None, *, least: float = 0.0, most: float = LARGEST
) -> None:
    """Refuse what is not a schedule of values from `least` to `most`; `where` begins the message."""
    if schedule is None:
        return
    try:
        points = np.asarray(schedule)
    except ValueError:
        points = np.empty(0)
    pairs = points.ndim == 2 and points.shape[1] == 2 and len(points) > 0 and points.dtype.kind in "iuf"
    fits = pairs and (np.abs(points) <= (LARGEST, most)).all() and (np.diff(points[:, 0]) > 0.0).all()
    if not fits or points[:, 1].min() < least:
        values = "values" if least else "values of at least 0"
        raise ConfigError(
            f"{where}: {name} is {shown(schedule)}, expected [env_steps, value] pairs with rising env_steps and "
            f"{values} up to {most:g}; for example [[0, 1e-3], [100000, 1e-4]]"
        )
