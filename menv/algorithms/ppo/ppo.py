"""PPO: proximal policy optimization (Schulman et al. 2017, "Proximal Policy Optimization Algorithms")."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import (
    AlgorithmConfig,
    LearningConfig,
    Schedule,
    check_schedule,
    value_at,
)
from menv.algorithms.config.setting import FASTEST, LARGEST, by_name, setting, shown
from menv.algorithms.networks.network_choice import chosen_network
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.ppo.advantages import compute_advantages
from menv.algorithms.recipe import Learner, Weights
from menv.algorithms.training.sequences import state_before
from menv.base_env import Column
from menv.connectors.action_output import flat_action_space
from menv.errors import ConfigError
from menv.inference.backend import ActingBackend, Floats
from menv.inference.heads.head import ActionHead
from menv.inference.heads.known import head_for_space
from menv.sample_batch import SampleBatch

CriticObs: TypeAlias = Callable[..., Any]


@by_name
@dataclass(frozen=True, kw_only=True)
class PPOConfig(LearningConfig):
    """Settings of PPO, in addition to the settings of `AlgorithmConfig`; see `docs/reference/settings.md`."""

    _where: ClassVar[str] = "PPO"

    lr: float = setting(3e-3, low=0, high=FASTEST, old="learning_rate")
    """Learning rate of Adam, unless `lr_schedule` is set."""
    gamma: float = setting(0.99, low=0, high=1)
    """Discount factor."""
    lambda_: float = setting(0.95, low=0, high=1, old="gae_lambda")
    """Lambda of generalized advantage estimation (GAE): 0 is one-step TD, 1 is Monte Carlo."""
    clip_param: float = setting(0.3, low=0, high=math.inf, old="clip_range")
    """Clipping range of the probability ratio; infinity disables clipping."""
    vf_clip_param: float | None = setting(None, positive=True, high=math.inf)
    """Upper limit of the squared value error of a timestep, in the squared unit of the environment's rewards. None
    disables the limit."""
    vf_loss_coeff: float = setting(0.5, low=0, old="vf_coef")
    """Coefficient of the value loss."""
    normalize_values: bool = True
    """Whether the value function learns in units of the running standard deviation of the value targets (Pop-Art, van
    Hasselt et al. 2016), so that large returns are learned as quickly as small ones. Predicted values and `vf_loss`
    are in the environment's unit either way. This applies to stock networks, custom models and policies with a custom
    `loss`; the first values of a new network are 0. For policies with a custom critic, only the value loss is divided
    by the squared unit. Without `normalize_values`, and with a custom critic, PPO learns rewards of about 1 best and
    warns of others."""
    entropy_coeff: float = setting(0.0, old="ent_coef")
    """Coefficient of the entropy bonus, unless `entropy_coeff_schedule` is set."""
    kl_coeff: float | None = setting(None, low=0)
    """Initial coefficient of the KL penalty; 0 disables the penalty. None means 0.2 for action spaces with Boxes,
    whose means and deviations could diverge within an update, and 0 for discrete ones. After each update the
    coefficient is halved if the KL divergence was below half of `kl_target`, and multiplied by 1.5 if it was above
    twice `kl_target`, within 1e-6 and 1e6."""
    kl_target: float = setting(0.01, low=0)
    """Target KL divergence of one update, for the adaptive coefficient."""
    magnet_coeff: float = setting(0.0, low=0)
    """Coefficient of the KL divergence of the policy from a magnet, a copy of it that follows slowly (magnetic mirror
    descent, Sokota et al. 2023). In two-player games of hidden information, such as poker, self-play then comes to rest
    at an equilibrium instead of circling around it. 0 has no magnet."""
    magnet_tau: float = setting(0.01, low=0, high=1)
    """Share of the policy's weights that is copied into the magnet after each train batch; 0 keeps the first policy. It
    falls with the learning rate of `lr_schedule`, so that the magnet stays slower than the policy."""
    grad_clip: float | None = setting(1.0, positive=True, high=math.inf, old="max_grad_norm")
    """Maximum global norm of the gradient; None disables clipping."""
    num_sgd_iter: int = setting(4, high=1_000_000, old="n_epochs num_epochs")
    """Number of epochs over each train batch."""
    sgd_minibatch_size: int = setting(256, old="batch_size minibatch_size")
    """Number of timesteps per gradient step; for recurrent policies on average, because sequences stay whole."""
    entropy_coeff_schedule: Schedule | None = None
    """Entropy coefficient over env steps, as in `lr_schedule`. None keeps `entropy_coeff`."""
    bc_weight: float | None = setting(None, low=0)
    """Coefficient of behaviour cloning, unless `bc_weight_schedule` is set: the loss has this times the mean negative
    log-likelihood of the actions that the policy did not choose: actions of recorded episodes and of clients. 0
    leaves them out. None means 1 with recorded episodes as `input`, alone or with the sampler, and 0 otherwise. PPO
    learns nothing else from recorded episodes, so a weight of 0 is refused there."""
    bc_weight_schedule: Schedule | None = None
    """The same coefficient over env steps, as in `lr_schedule`, such as [[0, 1], [100000, 0]] for a warm start. None
    keeps `bc_weight`."""
    critic_obs: Literal["state", "all_agents"] | CriticObs | None = None
    """Input of the value network while learning, for a centralized critic (MAPPO): "state" is the policy's observation
    and what the environment's `state()` returns, or "all_agents" if it has no state; "all_agents" (see
    `menv.algorithms.rollouts.centralized_critic`); or a function `(batch, other_agent_batches, episode)` of one
    trajectory chunk, with the arguments of `Policy.postprocess_trajectory`. It returns [T, C] numbers for T timesteps,
    or [T + 1, C] including the state after the chunk; without that, the value of the last timestep is the bootstrap.
    The acting network never sees this input. None gives the value network the observations of the policy."""
    critic_obs_size: int | None = None
    """C, the size of the critic input; required with a function."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_target == 0 and self.kl_coeff != 0:
            raise ConfigError(
                f"PPO: kl_target is {self.kl_target}, which every update exceeds, so the KL term would grow until "
                "nothing is learned, expected a number above 0; set kl_coeff=0 to switch the term off"
            )
        check_schedule("PPO", "entropy_coeff_schedule", self.entropy_coeff_schedule, least=-LARGEST)
        check_schedule("PPO", "bc_weight_schedule", self.bc_weight_schedule)
        _check_critic_obs(self.critic_obs, self.critic_obs_size)
        if self.critic_obs is not None and self.model.vf_share_layers:
            raise ConfigError(
                "config: critic_obs with model.vf_share_layers, expected a separate value network, because the "
                "policy must not see the critic's input; set vf_share_layers to False"
            )
        recorded = isinstance(self.input, str | Mapping)
        if self.clones and self.model.cell is not None:
            raise ConfigError(
                f"config: {'recorded episodes as input of' if recorded else 'bc_weight with'} a recurrent policy, "
                "expected feed-forward layers, because recordings hold no hidden states; leave use_lstm and use_gru "
                f"out, or {'train with DQN' if recorded else 'bc_weight at 0'}"
            )
        if recorded and not self.clones:
            raise ConfigError(
                "config: bc_weight is 0 with recorded episodes as input, expected a number above 0, because PPO can "
                "only imitate recorded actions; leave it out, or train with DQN"
            )

    def first_kl_coeff(self, head: ActionHead) -> float:
        """Return the initial KL coefficient for policies with this head."""
        if self.kl_coeff is None:
            return _KL_OF_NUMBERS if head.numbers else 0.0
        return float(self.kl_coeff)

    def entropy_coeff_at(self, env_steps: int) -> float:
        """Return the entropy coefficient after `env_steps` env steps of the run."""
        return value_at(self.entropy_coeff_schedule, self.entropy_coeff, env_steps)

    def magnet_tau_at(self, env_steps: int) -> float:
        """Return the magnet's share after `env_steps` env steps; `magnet_tau` is that at the highest learning rate."""
        highest = max(lr for _, lr in self.lr_schedule or [[0, self.lr]])
        return self.magnet_tau * self.lr_at(env_steps) / highest if highest else 0.0

    def bc_weight_at(self, env_steps: int) -> float:
        """Return the coefficient of behaviour cloning after `env_steps` env steps of the run."""
        recorded = isinstance(self.input, str | Mapping)
        constant = float(recorded) if self.bc_weight is None else self.bc_weight
        return value_at(self.bc_weight_schedule, constant, env_steps)

    @property
    def clones(self) -> bool:
        """Whether actions that the policy did not choose are cloned, at least at some time."""
        if self.bc_weight_schedule is None:
            return self.bc_weight_at(0) > 0
        return any(weight > 0 for _, weight in self.bc_weight_schedule)

    def rows_of_a_step(self) -> int:
        """Return the timesteps of one gradient step."""
        return min(self.sgd_minibatch_size, self.train_batch_size)


_KL_OF_NUMBERS = 0.2


def _check_critic_obs(critic_obs: object, size: int | None) -> None:
    named = isinstance(critic_obs, str) and critic_obs in ("state", "all_agents")
    if critic_obs is not None and not named and not _takes_chunk(critic_obs):
        raise ConfigError(
            f'PPO: critic_obs is {shown(critic_obs)}, expected "state", "all_agents", a function (batch, '
            "other_agent_batches, episode) or None; choose one"
        )
    if (callable(critic_obs) and size is None) or (size is not None and critic_obs is None):
        raise ConfigError(
            f"PPO: critic_obs_size is {shown(size)} with critic_obs {'None' if critic_obs is None else 'given'}, "
            "expected the number of columns that the function returns; set both or neither"
        )


def _takes_chunk(function: object) -> bool:
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:
        # Some callables have no signature.
        return True
    return True


class PPORecipe:
    """How PPO builds, completes and trains a policy."""

    name = "PPO"
    config_class: type[AlgorithmConfig] = PPOConfig
    off_policy = False

    def network(
        self, obs_size: int, action_space: Any, config: PPOConfig, observation_space: Any = None
    ) -> NetworkSpec:
        """Return the description of a policy network and a value network."""
        model, head = config.model, head_for_space(flat_action_space(action_space))
        stock = StockSpec(
            obs_size, head, tuple(model.fcnet_hiddens), model.fcnet_activation or "tanh", model.vf_share_layers,
            cell=model.cell, critic_size=config.critic_obs_size or 0,
        )  # fmt: skip
        return chosen_network(stock, model, observation_space)

    def first_weights(self, network: NetworkSpec, config: PPOConfig, seed: int) -> dict[str, Any]:
        """Return the initial weights of a policy; with `normalize_values` its first values are 0, right in any unit."""
        weights = network.first_weights(seed)
        if config.normalize_values:
            for name in network.unit_weights().powers:
                weights[name][:] = 0.0
        return weights

    def complete(
        self,
        batch: SampleBatch,
        backend: ActingBackend,
        index: int,
        config: PPOConfig,
        *,
        later: bool = False,
    ) -> None:
        """Add `action_logp, action_dist_inputs, vf_preds, advantages, value_targets`; with `later`, the first two.

        Values bootstrap where a trajectory was truncated or its fragment ended, and not where it terminated.
        """
        _add_logp(batch, backend, index)
        if not later or SampleBatch.VF_PREDS in batch:
            add_advantages(batch, backend, index, config)

    def make_learner(self, network: NetworkSpec, weights: Weights, config: PPOConfig, seed: int) -> Learner:
        """Return a `PPOLearner`."""
        from menv.algorithms.ppo.learner import PPOLearner

        return PPOLearner(network, config, weights, seed)


DEFAULT_CONFIG = PPOConfig()
"""The default settings; `DEFAULT_CONFIG.copy()` returns them as a dict."""


class PPO(Algorithm):
    """Clipped policy gradient with generalized advantage estimation.

    Built as `PPO(env=..., config={...classic keys...})` or `PPOConfig(env=..., ...).build()`.
    """

    recipe = PPORecipe()


def add_advantages(batch: SampleBatch, backend: ActingBackend, index: int, config: PPOConfig) -> None:
    """Add values, advantages and value targets to a batch that lacks them, in one pass of the value network.

    If the batch has `vf_preds`, the bootstrap is `next_vf_preds` of the last timestep of a chunk or, without that
    column, the value of the last timestep.
    """
    segments = batch.segments
    ends = segments.ends - 1
    if SampleBatch.VF_PREDS in batch:
        after = batch[
            SampleBatch.NEXT_VF_PREDS if SampleBatch.NEXT_VF_PREDS in batch else SampleBatch.VF_PREDS
        ]
        last = after[ends]
    else:
        bootstraps = ~batch["terminateds"][ends]
        state = state_before(batch) if backend.state_size else None
        if state is not None:
            state = np.concatenate((state, _state_after(batch, backend, index, state, ends[bootstraps])))
        values = backend.values(index, np.concatenate((batch["obs"], segments.next_obs[bootstraps])), state)
        batch[SampleBatch.VF_PREDS] = values[: batch.count]
        last = np.zeros(len(ends), np.float32)
        last[bootstraps] = values[batch.count :]
    if SampleBatch.ADVANTAGES not in batch:
        compute_advantages(batch, last, gamma=config.gamma, lambda_=config.lambda_)
    elif SampleBatch.VALUE_TARGETS not in batch:
        batch[SampleBatch.VALUE_TARGETS] = batch[SampleBatch.ADVANTAGES] + batch[SampleBatch.VF_PREDS]


def _add_logp(batch: SampleBatch, backend: ActingBackend, index: int) -> None:
    logp, inputs = batch.get(SampleBatch.ACTION_LOGP), batch.get(SampleBatch.ACTION_DIST_INPUTS)
    if inputs is None or np.isnan(inputs).any():
        state = state_before(batch) if backend.state_size else None
        mask = batch.get(SampleBatch.ACTION_MASK)
        fresh, computed = backend.evaluate(index, batch["obs"], mask, batch["actions"], state)
        if inputs is None:
            inputs = fresh
        else:
            lacking = np.logical_or.reduce(np.isnan(inputs), axis=1)
            inputs = np.where(lacking[:, None], fresh, inputs)
            computed = np.where(lacking, computed, backend.head.logp(inputs, batch["actions"]))
    elif logp is None or np.isnan(logp).any():
        # The distribution inputs of the policy that acted.
        computed = backend.head.logp(inputs, batch["actions"])
    else:
        return
    batch[SampleBatch.ACTION_DIST_INPUTS] = inputs
    batch[SampleBatch.ACTION_LOGP] = computed if logp is None else np.where(np.isnan(logp), computed, logp)


def _state_after(
    batch: SampleBatch, backend: ActingBackend, index: int, state: Floats, rows: Column
) -> Floats:
    mask = batch.get(SampleBatch.ACTION_MASK)
    decision = backend.decide(
        batch["obs"][rows], None if mask is None else mask[rows], None, index, state[rows]
    )
    assert decision.state is not None
    return decision.state
