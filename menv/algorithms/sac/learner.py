"""SACLearner: the losses of soft actor-critic on samples from a replay buffer; `TorchSAC`: the networks in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from menv.algorithms.networks.torch_stock import TorchStock
from menv.algorithms.off_policy.learner import ReplayLearner, TDTerms, td_loss, transitions
from menv.algorithms.off_policy.replay_buffer import ReplaySample
from menv.algorithms.recipe import Weights
from menv.algorithms.sac.network import CRITICS, LOG_ALPHA, SACSpec
from menv.algorithms.sac.sac import SACConfig
from menv.base_env import Column
from menv.inference.heads.squashed_gaussian import SquashedGaussian
from menv.sample_batch import SampleBatch


class SACLearner(ReplayLearner):
    """Learns a policy, two critics and a temperature, all with one step of Adam.

    The temperature is relative to the unit of the Q-values, so it follows the size of the rewards.
    """

    _settings: SACConfig
    _head: SquashedGaussian
    _network: TorchSAC
    _target: TorchSAC
    _statistics: ClassVar[dict[str, int]] = {
        **ReplayLearner._statistics, "critic_loss": 2, "actor_loss": 1, "alpha": 1, "entropy": 0,
    }  # fmt: skip

    def __init__(self, spec: SACSpec, settings: SACConfig, weights: Weights, seed: int) -> None:
        super().__init__(spec, settings, weights, seed)
        auto = settings.target_entropy == "auto"
        self._target_entropy = -float(spec.head.numbers) if auto else float(settings.target_entropy)

    def _columns(self, batch: SampleBatch) -> dict[str, Column]:
        columns = super()._columns(batch)
        if SampleBatch.CRITIC_OBS in batch:
            after = transitions(batch, self._settings.gamma, self._settings.target_steps()).after
            columns["critic_obs"] = batch[SampleBatch.CRITIC_OBS]
            columns["next_critic_obs"] = batch[SampleBatch.NEXT_CRITIC_OBS][after - 1]
        return columns

    def _sample(self, count: int, rng: np.random.Generator) -> ReplaySample:
        sample = super()._sample(count, rng)
        shape = count, self._head.noise_width
        noise = {name: rng.standard_normal(shape, np.float32) for name in ("noise", "next_noise")}
        return sample._replace(columns={**sample.columns, **noise})

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> TDTerms:
        obs, next_obs, log_alpha = rows["obs"], rows["next_obs"], self._adam.params[LOG_ALPHA]
        seen, next_seen = rows.get("critic_obs", obs), rows.get("next_critic_obs", next_obs)
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            inputs = self._network.dist_inputs(next_obs, None)
            next_actions, next_logp = self._head.sampled(inputs, rows["next_noise"])
            next_q = self._target.q_values(next_seen, next_actions)
            targets = soft_targets(rows["returns"], rows["discounts"], next_q, next_logp, alpha)
        both = [
            td_loss(q_values, targets, weights, self._knee())
            for q_values in self._network.q_values(seen, rows["actions"]).unbind()
        ]
        actions, logp = self._head.sampled(self._network.dist_inputs(obs, None), rows["noise"])
        policy = actor_loss(self._network.q_values(seen, actions, fixed=True), logp, alpha)
        critic = both[0].loss + both[1].loss
        loss = critic + policy + temperature_loss(log_alpha, logp, self._target_entropy)
        errors = torch.stack([one.td_errors.abs() for one in both]).mean(0)
        others = critic.detach(), policy.detach(), alpha[0], -logp.detach().mean()
        return TDTerms(loss, both[0].q_taken, errors, others)


def soft_targets(
    returns: Tensor, discounts: Tensor, next_q: Tensor, next_logp: Tensor, alpha: Tensor
) -> Tensor:
    """Return targets [B]: returns, and the discounted lower Q-value of next_q [2, B] with the worth of its entropy.

    Haarnoja et al. 2018b, equations 3 and 5; discounts [B] are 0 after a termination.
    """
    return returns + discounts * (next_q.amin(0) - alpha * next_logp)


def actor_loss(q_values: Tensor, logp: Tensor, alpha: Tensor) -> Tensor:
    """Return the policy's loss (equation 7) for Q-values [2, B] and log-probabilities [B] of its actions."""
    return (alpha * logp - q_values.amin(0)).mean()


def temperature_loss(log_alpha: Tensor, logp: Tensor, target_entropy: float) -> Tensor:
    """Return the loss of the temperature: it rises while the policy has less entropy than the target (equation 18).

    As in the authors' code it is linear in log_alpha [1]; logp [B] gets no gradient.
    """
    return -(log_alpha * (logp.detach() + target_entropy)).mean()


class TorchSAC(TorchStock):
    """The networks of `spec` over `params`, whose current values every call reads."""

    def __init__(self, spec: SACSpec, params: Mapping[str, Tensor]) -> None:
        super().__init__(spec, params)
        own = [spec.of_critic(name, params) for name in CRITICS]
        fixed = [{name: param.detach() for name, param in one.items()} for one in own]
        self._critics = [TorchStock(spec.critic, one) for one in own]
        self._fixed = [TorchStock(spec.critic, one) for one in fixed]

    def q_values(self, obs: Tensor, actions: Tensor, *, fixed: bool = False) -> Tensor:
        """Return both critics' Q-values [2, N] of actions [N, k]; `fixed` leaves their weights without a gradient."""
        seen = torch.cat((obs, actions), 1)
        return torch.stack([one.values(seen) for one in (self._fixed if fixed else self._critics)])

    def values(self, obs: Tensor, state: Tensor | None = None) -> Tensor:
        """Return the lower Q-values [N] of the most likely actions, from the critics' input [N, C]."""
        inputs = self.dist_inputs(obs[:, : self.obs_size], None)
        return self.q_values(obs, self._head.chosen(inputs, None, None, {})).amin(0)

    def both(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.dist_inputs(obs, mask), self.values(obs)
