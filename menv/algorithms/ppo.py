"""PPO: proximal policy optimisation (Schulman et al. 2017, "Proximal Policy Optimization Algorithms")."""

from __future__ import annotations

from typing import Any

import numpy as np

from menv.acting.action_head import ActionHead
from menv.acting.backend import ActingBackend
from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.ppo_config import PPOConfig
from menv.algorithms.networks.network_choice import chosen_network
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock import StockSpec
from menv.algorithms.recipe import Learner, Weights
from menv.algorithms.returns import gae
from menv.connectors.clip_reward import clip_reward
from menv.connectors.flat_actions import flat_action_space
from menv.sample_batch import SampleBatch


class PPORecipe:
    """How a PPO policy is trained."""

    name = "PPO"
    config_class: type[AlgorithmConfig] = PPOConfig

    def network(
        self, obs_size: int, action_space: Any, config: PPOConfig, observation_space: Any = None
    ) -> NetworkSpec:
        """Return a policy and a value network; see `Recipe.network`."""
        model, head = config.model, ActionHead.for_space(flat_action_space(action_space))
        stock = StockSpec(
            obs_size, head, tuple(model.fcnet_hiddens), model.fcnet_activation, model.vf_share_layers
        )
        return chosen_network(stock, model, observation_space)

    def first_weights(self, network: NetworkSpec, config: PPOConfig, seed: int) -> dict[str, Any]:
        """Return the weights that a policy begins with."""
        return network.first_weights(seed)

    def complete(self, batch: SampleBatch, backend: ActingBackend, index: int, config: PPOConfig) -> None:
        """Add `action_logp, action_dist_inputs, vf_preds, advantages, value_targets`.

        Values bootstrap where a trajectory was truncated or its fragment was cut, and not where it
        terminated.
        """
        add_advantages(batch, backend, index, config)

    def make_learner(
        self, network: NetworkSpec, policy_id: str, weights: Weights, config: PPOConfig, seed: int
    ) -> Learner:
        """Return a `PPOLearner`."""
        from menv.algorithms.ppo_learner import PPOLearner

        return PPOLearner(network, config, weights, seed)


class PPO(Algorithm):
    """Clipped policy gradient with generalised advantages.

    Built as `PPO(env=..., config={...classic keys...})` or `PPOConfig(env=..., ...).build()`.
    """

    recipe = PPORecipe()


def add_advantages(batch: SampleBatch, backend: ActingBackend, index: int, config: PPOConfig) -> None:
    """Add what PPO learns from to a batch of released rows; one pass of each network over all rows."""
    obs, segments, count = batch["obs"], batch.segments, batch.count
    mask = batch.get(SampleBatch.ACTION_MASK)
    inputs = batch.get(SampleBatch.ACTION_DIST_INPUTS)
    if inputs is None:
        inputs, logp = backend.evaluate(index, obs, mask, batch["actions"])
        batch[SampleBatch.ACTION_DIST_INPUTS] = inputs
    else:
        # The logits that the actions were drawn from, by the weights of that moment.
        logp = backend.head.logp(inputs, batch["actions"])
    batch[SampleBatch.ACTION_LOGP] = logp
    ends = segments.ends - 1
    goes_on = ~batch["terminateds"][ends]
    values = backend.values(index, np.concatenate((obs, segments.next_obs[goes_on])))
    after = np.empty(count, np.float32)
    after[:-1] = values[1:count]
    after[ends] = 0.0
    after[ends[goes_on]] = values[count:]
    is_last = np.zeros(count, np.bool_)
    is_last[ends] = True
    if config.clip_rewards:
        batch[SampleBatch.REWARDS] = clip_reward(batch["rewards"], config.clip_rewards)
        segments.prev_reward = clip_reward(segments.prev_reward, config.clip_rewards)
    own = values[:count]
    advantages = gae(batch["rewards"], own, after, is_last, config.gamma, config.lambda_)
    batch[SampleBatch.VF_PREDS] = own
    batch[SampleBatch.ADVANTAGES] = advantages
    batch[SampleBatch.VALUE_TARGETS] = advantages + own
