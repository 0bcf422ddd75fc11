"""QMIX in torch: `QMIXLearner` trains a group like DQN on the Q-value of joint actions; `TorchGroup` is the network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import elu

from menv.algorithms.dqn.learner import DQNLearner, RecurrentDQNLearner, best_value, sequence_priorities
from menv.algorithms.networks.torch_stock import TorchStock
from menv.algorithms.off_policy.learner import TDTerms, td_loss
from menv.algorithms.qmix.network import STATE_SHARE, GroupSpec
from menv.algorithms.qmix.qmix import QMIXConfig
from menv.inference.heads.head import masked


class QMIXLearner(DQNLearner):
    """A `DQNLearner` whose online and target networks mix the Q-values of a group."""

    _network: TorchGroup
    _target: TorchGroup

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> TDTerms:
        q_values = self._network.by_member(rows["obs"], None)
        return self._loss(
            q_values, rows["obs"], rows["actions"], rows.get("mask"), self.targets(rows), weights
        )

    def _loss(
        self,
        q_values: Tensor,
        obs: Tensor,
        actions: Tensor,
        mask: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
    ) -> TDTerms:
        """Return the loss of N rows with the members' q_values [N, C, n] and actions [N, C]."""
        taken = q_values.gather(2, actions[..., None])[..., 0]
        values, gaps = self._network.mixed(taken, obs), None
        if self._settings.conservatism:
            joint = q_values if values.ndim > 1 else self._network.deviations(q_values, taken, obs)
            gaps = self._gaps(joint, actions, None if mask is None else mask.reshape(joint.shape))
        if values.ndim == 1:
            gaps = None if gaps is None else gaps.sum(-1)
            return td_loss(values, targets, weights, self._knee(), gaps)
        # Without a mixer every member that is there has a separate error.
        targets = targets * self._network.there(obs)
        each = None if weights is None else weights[:, None]
        terms = td_loss(values, targets, each, self._knee(), gaps)
        return terms._replace(td_errors=terms.td_errors.abs().mean(-1))

    @torch.no_grad()
    def targets(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the targets of the group's Q-values [B], or of each member's [B, C] without a mixer.

        Every member takes its best allowed action in the next observation; because the mixing is monotonic, these
        are the best joint action.
        """
        next_obs, allowed = rows["next_obs"], rows.get("next_mask")
        target_next = self._target.by_member(next_obs, allowed)
        online_next = self._network.by_member(next_obs, allowed) if self._settings.double_q else None
        values = self._target.mixed(best_value(target_next, online_next), next_obs)
        returns, discounts = rows["returns"], rows["discounts"]
        if values.ndim > 1:
            returns, discounts = returns[:, None], discounts[:, None]
        return returns + discounts * values


class QMIXSequenceLearner(QMIXLearner, RecurrentDQNLearner):
    """A `QMIXLearner` whose buffer holds sequences, for recurrent groups and TD(lambda) targets."""

    _settings: QMIXConfig

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> TDTerms:
        obs, valid, mask, state = rows["obs"], rows["valid"], rows.get("next_mask"), rows.get("state")
        shape, steps = obs.shape[:2], obs.flatten(0, 1)
        allowed = None if mask is None else mask.flatten(0, 1)
        q_values = self._network.by_member(steps, None, state)
        number = torch.arange(len(obs), device=obs.device)[:, None].expand_as(valid)
        with torch.no_grad():
            target_next = self._target.by_member(steps, allowed, state)
            online = q_values.flatten(1) if allowed is None else masked(q_values.flatten(1), allowed)
            best = best_value(target_next, online.view_as(q_values) if self._settings.double_q else None)
            values = self._target.mixed(best, steps)
            targets = self._targets(rows, values.reshape(*shape, *values.shape[1:]), number)
        terms = self._loss(
            q_values.reshape(*shape, *q_values.shape[1:])[:, :-1][valid], obs[:, :-1][valid], rows["actions"][valid],
            None if mask is None else mask[:, :-1][valid], targets[valid],
            None if weights is None else weights[number[valid]],
        )  # fmt: skip
        return terms._replace(td_errors=sequence_priorities(terms.td_errors.abs(), valid))

    def _targets(self, rows: Mapping[str, Tensor], values: Tensor, number: Tensor) -> Tensor:
        """Return targets [B, T, ...] from the values [B, T + 1, ...] of all observations."""
        returns, discounts = rows["returns"], rows["discounts"]
        if self._settings.td_lambda is not None:
            return lambda_targets(returns, discounts, values[:, 1:], rows["valid"], self._settings.td_lambda)
        more = (...,) + (None,) * (values.ndim - 2)
        return returns[more] + discounts[more] * values[number, rows["after"]]


def lambda_targets(
    rewards: Tensor, discounts: Tensor, next_values: Tensor, valid: Tensor, lambda_: float
) -> Tensor:
    """Return TD(lambda) targets of B sequences of at most T timesteps.

    `G_t = r_t + d_t * ((1 - lambda) V_t+1 + lambda G_t+1)`, and `G_t = r_t + d_t * V_t+1` at the last valid timestep.

    Args:
        rewards: [B, T].
        discounts: [B, T] gamma, 0 after a termination.
        next_values: [B, T, ...] V of the observation after each timestep.
        valid: [B, T] False behind the end of a sequence.
        lambda_: From 0 to 1.
    """
    more = (...,) + (None,) * (next_values.ndim - 2)
    found, following = [], next_values[:, -1]
    for step in reversed(range(valid.shape[1])):
        goes_on = valid[:, step + 1] if step + 1 < valid.shape[1] else torch.zeros_like(valid[:, 0])
        share = (lambda_ * goes_on)[more]
        value = next_values[:, step]
        following = rewards[:, step][more] + discounts[:, step][more] * (value + share * (following - value))
        found.append(following)
    return torch.stack(found[::-1], 1)


class TorchGroup:
    """A `TorchNetwork` of `spec` over `params`, whose current values every call reads.

    The state [B, C * S] of a recurrent group has that of one member after the other.
    """

    def __init__(self, spec: GroupSpec, params: Mapping[str, Tensor]) -> None:
        self.obs_size = spec.obs_size
        self._mixer, self._embed_dim = spec.mixer, spec.embed_dim
        self._members, self._choices = len(spec.layout.members), spec.layout.choices
        self._member = TorchStock(spec.member, params)
        self._width = spec.member.obs_size
        device = next(iter(params.values())).device
        self._inputs = torch.tensor(spec.inputs, device=device)
        self._state = torch.tensor(spec.state, device=device)
        self._owners = torch.tensor(spec.owners, device=device)
        self._marks = spec.marks
        self._zero_one = torch.tensor([[0.0, 1.0]], device=device, dtype=torch.float32)
        self._layers = [
            (params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]) for layer in spec.mixing_layers()
        ]

    def dist_inputs(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> Tensor:
        """Return masked Q-values of all members [N, C * n] from obs [N, F] and mask [N, C * n]."""
        rows = self._rows(obs)
        inputs = self._inputs_of(rows)
        if state is None:
            q_values = self._member.dist_inputs(inputs.flatten(0, 1), None)
        else:
            # The cell reads the rows of one sequence, which is one member's, after the other.
            each = inputs.reshape(len(state), -1, self._members, self._width).transpose(1, 2)
            own = state.reshape(len(state) * self._members, -1)
            q_values = self._member.dist_inputs(each.reshape(-1, self._width), None, own)
            q_values = q_values.reshape(len(state), self._members, -1, self._choices).transpose(1, 2)
        return self._completed(q_values, rows, mask)

    def step(self, obs: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q-values and the state after them."""
        rows = self._rows(obs)
        own = state.reshape(len(state) * self._members, -1)
        q_values, after = self._member.step(self._inputs_of(rows).flatten(0, 1), None, own)
        return self._completed(q_values, rows, mask), after.reshape(state.shape)

    def _inputs_of(self, rows: Tensor) -> Tensor:
        """Return the members' inputs [N, C, W]."""
        wide = torch.cat((rows, self._zero_one.expand(len(rows), 2)), 1).index_select(1, self._inputs)
        return wide.reshape(-1, self._members, self._width)

    def _completed(self, q_values: Tensor, rows: Tensor, mask: Tensor | None) -> Tensor:
        q_values = q_values.reshape(-1, self._members, self._choices)
        if self._marks:
            q_values = q_values * rows[:, -self._marks :, None]
        return masked(q_values.flatten(1), mask)

    def there(self, obs: Tensor) -> Tensor:
        """Return [N, C] 1 for each member that is there, 0 for absent ones; [1, 1] a 1 if none is marked."""
        marks = obs[:, obs.shape[1] - self._marks :]
        return (marks >= 0.0).to(torch.float32) if self._marks else self._zero_one[:, 1:]

    def _rows(self, obs: Tensor) -> Tensor:
        """Return obs [N, F] with zeros for absent members, marks turned into flags."""
        if not self._marks:
            return obs
        there = self.there(obs)
        kept = torch.cat((there, self._zero_one[:, 1:].expand(len(obs), 1)), 1).index_select(1, self._owners)
        return torch.cat((obs[:, : -self._marks] * kept, there), 1)

    def by_member(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> Tensor:
        """Return `dist_inputs` as [N, C, n]."""
        return self.dist_inputs(obs, mask, state).reshape(-1, self._members, self._choices)

    def values(self, obs: Tensor, state: Tensor | None = None) -> Tensor:
        """Return the sums of the members' highest Q-values [N], without the mixing network."""
        return self.by_member(obs, None, state).amax(-1).sum(-1)

    def both(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.dist_inputs(obs, mask, state), self.values(obs, state)

    def mixed(self, q_values: Tensor, obs: Tensor) -> Tensor:
        """Return the group's Q-values [N] from one Q-value of each member [N, C], unchanged without a mixer.

        Unlike in Rashid et al. 2018, the state is divided by sqrt(1 + its mean square), and hidden units are averaged:
        the first Q-values are of the size of the returns, whatever the observations and the width, and do not diverge.
        Weights of Q-values depend on a tenth of the state, so that they change slowly while Q-values are learned. The
        first half of the hidden units is linear: exponential units alone have slopes near 0 where the members' sum is
        far below 0, and members learn nothing there.
        """
        if self._mixer is None:
            return q_values
        if self._mixer == "vdn":
            return q_values.sum(-1)
        state = self._rows(obs).index_select(1, self._state)
        state = state / (1.0 + state.square().mean(-1, keepdim=True)).sqrt()
        share = STATE_SHARE * state
        seen = (share, state, share, state)
        weight, bias, out_weight, out_bias = map(_affine, self._layers[:4], seen)
        weight = weight.abs().reshape(-1, self._members, self._embed_dim)
        inner = torch.bmm(q_values[:, None], weight)[:, 0] + bias
        linear = self._embed_dim // 2
        hidden = torch.cat((inner[:, :linear], elu(inner[:, linear:])), 1)
        return (hidden * out_weight.abs()).mean(-1) + _affine(self._layers[4], out_bias.relu())[:, 0]

    def deviations(self, q_values: Tensor, taken: Tensor, obs: Tensor) -> Tensor:
        """Return the group's Q-values [N, C, n] where one member takes another action (Shao et al. 2023, "CFCQL").

        q_values [N, C, n] are the members' Q-values, taken [N, C] the Q-values of the actions taken.
        """
        one = torch.eye(self._members, dtype=torch.bool, device=obs.device)[:, None]
        joint = torch.where(one, q_values[..., None], taken[:, None, None])
        rows = obs.repeat_interleave(self._members * self._choices, 0)
        return self.mixed(joint.flatten(0, 2), rows).reshape(q_values.shape)


def _affine(layer: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    weight, bias = layer
    return torch.addmm(bias, x, weight)
