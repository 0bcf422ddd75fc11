"""PPO: proximal policy optimization (Schulman et al. 2017, "Proximal Policy Optimization Algorithms")."""

from __future__ import annotations

from typing import Any

import numpy as np

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.networks.network_choice import chosen_network
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.ppo.advantages import compute_advantages
from menv.algorithms.ppo.config import PPOConfig
from menv.algorithms.recipe import Learner, Weights
from menv.algorithms.training.sequences import state_before
from menv.base_env import Column
from menv.connectors.action_output import flat_action_space
from menv.inference.backend import ActingBackend, Floats
from menv.inference.heads.known import head_for_space
from menv.sample_batch import SampleBatch


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
