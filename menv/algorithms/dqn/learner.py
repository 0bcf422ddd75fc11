"""Learning one DQN policy: what comes in is kept, and gradient steps are made on rows drawn from it.

The algorithm's loop calls `learn` with each fragment of one policy and publishes `weights()`, epsilon among
them, to the acting back-ends. It does not know environments, agents, or who chose the actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms.config.field_checks import LEARNERS, check_stored
from menv.algorithms.dqn.config import DQNSettings
from menv.algorithms.dqn.replay_buffer import ReplayBuffer, ReplaySample, column_of
from menv.algorithms.flat_adam import FlatAdam
from menv.algorithms.networks.network_spec import NetworkSpec, obs_column
from menv.algorithms.networks.stock_spec import EPSILON
from menv.algorithms.return_scaling import RewardScale
from menv.algorithms.torch_runtime import CPU, array_of, repeatable, tensor_of
from menv.base_env import Column
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch

# SEAM menv.algorithms.learning.dqn_loss
# The loss of Q-learning: how far the worth of what was done is from what came of it.
#
# `dqn_learner` calls it with Q-values in which illegal choices hold a very low number already. It knows
# neither
# networks nor where rows came from.


class DQNTerms(NamedTuple):
    """The loss and what it was made of.

    Attributes:
        loss: [] weighted mean of the rows' losses.
        q_taken: [B] worth of the actions that were taken.
        td_errors: [B] `q_taken` minus its target, without a gradient.
    """

    loss: Tensor
    q_taken: Tensor
    td_errors: Tensor


def td_targets(returns: Tensor, discounts: Tensor, target_next: Tensor, online_next: Tensor | None) -> Tensor:
    """Return the [B] targets.

    Args:
        returns: [B] discounted rewards up to the next observation.
        discounts: [B] of what follows; 0 where nothing does.
        target_next: [B, n] Q-values of the next observation by the target network, masked.
        online_next: [B, n] by the network that learns, masked, or None; see `best_worth`.
    """
    return returns + discounts * best_worth(target_next, online_next)


def best_worth(target_next: Tensor, online_next: Tensor | None) -> Tensor:
    """Return what the best of n choices is worth.

    Args:
        target_next: [..., n] Q-values by the target network, masked.
        online_next: [..., n] by the network that learns, masked: its best choice is the one that counts (van
            Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning", eq. 4); None takes the
            best of `target_next` (Mnih et al. 2015).
    """
    if online_next is None:
        return target_next.amax(-1)
    return target_next.gather(-1, online_next.argmax(-1, keepdim=True))[..., 0]


def dqn_loss(
    q_values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None, knee: float | None = 1.0
) -> DQNTerms:
    """Return half the squared error of each row, linear beyond the knee (Huber, as in Mnih et al. 2015).

    Args:
        q_values: [B, n].
        actions: [B] int64 choices that were taken.
        targets: [B], without a gradient.
        weights: [B] importance of the rows; None weighs all alike.
        knee: The error from which on the loss is linear; None squares all errors.
    """
    return td_loss(q_values.gather(1, actions[:, None])[:, 0], targets, weights, knee)


def td_loss(q_taken: Tensor, targets: Tensor, weights: Tensor | None, knee: float | None) -> DQNTerms:
    """Return the loss of the Q-values [B] of the actions taken; other arguments as for `dqn_loss`."""
    if knee is None:
        losses = 0.5 * torch.nn.functional.mse_loss(q_taken, targets, reduction="none")
    else:
        losses = torch.nn.functional.huber_loss(q_taken, targets, reduction="none", delta=knee)
    loss = losses.mean() if weights is None else (weights * losses).mean()
    return DQNTerms(loss, q_taken.detach(), q_taken.detach() - targets)


# SEAM menv.algorithms.learning.n_step
# n-step returns over many pieces of trajectories at once, in numpy.
#
# Learners that replay transitions call it with the rows of a batch. It does not know episodes or agents: only
# where pieces end and what follows them.


class Transitions(NamedTuple):
    """What each row leads to: `returns + discounts * (worth of next_obs)` is the target of its action.

    Attributes:
        returns: [N] float32 sums of discounted rewards of up to n steps.
        discounts: [N] float32 gamma to the number of these steps, 0 where the last of them terminated.
        next_obs: [N, F] the observation after them.
        next_mask: [N, M] the choices that are allowed there, None where nothing is ever masked.
    """

    returns: npt.NDArray[np.float32]
    discounts: npt.NDArray[np.float32]
    next_obs: Column
    next_mask: Column | None


def transitions(batch: SampleBatch, gamma: float, n: int) -> Transitions:
    """Return the n-step transitions of a batch (Sutton 1988; Mnih et al. 2016, equation of section 4.2).

    A row closer than n steps to the end of its piece takes the steps that there are. At a truncation or the
    cut of a fragment the observation after the piece stands for the rest; behind a termination nothing does.

    Args:
        batch: Rows of trajectories, one piece after the other, not padded.
        gamma: Discount of one step.
        n: Steps, at least 1.

    Raises:
        ConfigError: `n` is below 1, or the batch is padded.
    """
    if n < 1 or SampleBatch.SEQ_MASK in batch:
        padded = "a padded" if SampleBatch.SEQ_MASK in batch else "an unpadded"
        raise ConfigError(
            f"n_step: n is {n} with {padded} batch, expected at least 1 and no padding; correct n_step"
        )
    segments, count = batch.segments, batch.count
    ends = np.repeat(segments.ends, segments.lengths)
    # [N] the row after the last step that a row's return counts.
    after = np.minimum(np.arange(count) + n, ends)
    steps = after - np.arange(count)
    rewards = np.asarray(batch["rewards"], np.float64)
    returns = rewards.copy()
    for lag in range(1, min(n, int(steps.max(initial=0)))):
        returns[:-lag] += np.where(steps[:-lag] > lag, gamma**lag * rewards[lag:], 0.0)
    discounts = np.where(batch["terminateds"][after - 1], 0.0, gamma**steps)
    leaves = after == ends
    piece = np.repeat(np.arange(len(segments.lengths)), segments.lengths)[leaves]
    next_mask = _next_mask(batch, after, leaves, piece)
    next_obs = _followers(batch["obs"], after, leaves, segments.next_obs[piece])
    # What is too large for float32 is infinite, and nobody learns from it; learners tell so.
    with np.errstate(over="ignore"):
        worth = returns.astype(np.float32)
    return Transitions(worth, discounts.astype(np.float32), next_obs, next_mask)


def _followers(column: Column, after: Column, leaves: Column, beyond: Column) -> Column:
    """Return the rows `after`; those that leave their piece get what lies `beyond` it."""
    found = column.take(np.minimum(after, len(column) - 1), axis=0)
    found[leaves] = beyond
    return found


def _next_mask(batch: SampleBatch, after: Column, leaves: Column, piece: Column) -> Column | None:
    masks = batch.get(SampleBatch.ACTION_MASK)
    if masks is None:
        return None
    return _followers(masks, after, leaves, batch.segments.next_mask[piece])


Weights = Mapping[str, npt.NDArray[np.float32]]

_REPLAY, _TARGET = "replay.", "target."
# Sums of fractions such as 0.1 may end just below the whole number that they make.
_LOST = 1e-9
_STATISTICS = ("loss", "mean_q", "mean_td_error", "grad_gnorm")


class DQNLearner:
    """A policy's network, its target network, its optimizer and its experience.

    Q-values are learned in the `RewardScale` of the policy. `weights` and `set_weights` are in the environment's unit.

    Args:
        spec: The network, its head of kind "q_values".
        settings: Numbers of the loss, the optimizer, the buffer and the exploration.
        weights: First weights by name; copied.
        seed: Decides which rows are drawn; the same seed and fragments give the same weights.
        rows_each: Rows that one entry of the buffer has room for, which its capacity counts.
        device: Where gradient steps are made; experience stays with the processor.

    Attributes:
        replay: What was experienced.
        has_first_weights: Whether the weights are random numbers of no unit. They become those of the first unit as
            they are; weights that are given keep the Q-values that they stand for.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        spec: NetworkSpec,
        settings: DQNSettings,
        weights: Weights,
        seed: int,
        *,
        rows_each: int = 1,
        device: torch.device = CPU,
    ) -> None:
        self._settings = settings
        self._choices = max(spec.head.sizes)
        self._seed = seed
        self._calls = 0
        # Gradient steps that are owed, and rows since the last copy; both carry over to the next fragment.
        self._owed = 0.0
        self._since_copy = 0.0
        self._epsilon = float(weights[EPSILON][0])
        self.has_first_weights = False
        self._unit = RewardScale()
        self._powers = spec.unit_weights().powers
        # In the order of the description, whatever the order of `weights`: state is saved flat.
        ordered = {name: weights[name] for name in spec.weight_shapes() if name != EPSILON}
        self._device = device
        self._adam = FlatAdam(
            ordered, settings.lr, grad_clip=settings.grad_clip, eps=settings.adam_epsilon, device=self._device
        )
        self._network = spec.torch_network(self._adam.params)
        self._target_params = {name: param.detach().clone() for name, param in self._adam.params.items()}
        self._target = spec.torch_network(self._target_params)
        buffer = settings.replay_buffer_config
        if buffer.capacity < rows_each:
            raise ConfigError(
                f"replay_buffer_config: capacity is {buffer.capacity}, expected at least {rows_each}, because a "
                "sequence counts as max_seq_len rows; raise it, or lower max_seq_len"
            )
        self.replay = ReplayBuffer(
            buffer.capacity // rows_each,
            prioritized=buffer.prioritized_replay,
            alpha=buffer.prioritized_replay_alpha,
            beta=buffer.prioritized_replay_beta,
            eps=buffer.prioritized_replay_eps,
        )

    # Something that was raised between two instructions may have left gradients off, and callers may be in any mode.
    @torch.inference_mode(False)
    def learn(self, batch: SampleBatch, env_steps: int) -> dict[str, float]:
        """Keep one fragment and make the gradient steps that it calls for.

        Args:
            batch: Rows of this policy: obs, action_mask (optional), actions, rewards and flags. The actions may
                be anybody's.
            env_steps: Env steps of the whole run so far, for epsilon and the start of learning.

        Returns:
            epsilon, cur_lr, replay_rows, and updates, the number of gradient steps. If there were any, as means
            over them: loss, mean_q (of the actions taken), mean_td_error (its size) and grad_gnorm (before
            clipping).
        """
        settings = self._settings
        self._store(batch)
        self._epsilon = settings.epsilon_at(env_steps)
        begun = env_steps >= settings.num_steps_sampled_before_learning_starts
        steps = self._steps_due(batch.count) if begun and self.replay.rows else 0
        means = self.gradient_steps(steps)
        return {
            **means,
            "epsilon": self._epsilon,
            "cur_lr": self._adam.lr,
            **({"skipped_updates": self._adam.skipped} if self._adam.skipped else {}),
            "replay_rows": float(self._rows_kept()),
            "updates": float(steps),
        }

    def gradient_steps(self, count: int) -> dict[str, float]:
        """Make so many gradient steps on rows drawn from what is kept.

        Returns:
            loss, mean_q, mean_td_error and grad_gnorm as means over the steps; nothing if there are none.
        """
        # A pure function of seed and call: a resumed run draws as if it had never stopped.
        rng = np.random.default_rng((self._seed, self._calls))
        self._calls += 1
        size = self._entries_of_a_step()
        if not count:
            return {}
        self._renew_unit()
        with repeatable(self._device):
            done = [self._step(self.replay.sample(size, rng)) for _ in range(count)]
        stats = dict(zip(_STATISTICS, torch.stack(done).mean(0).tolist(), strict=True))
        unit = self._unit.unit
        in_unit = {"loss": unit * unit, "mean_q": unit, "mean_td_error": unit}
        return {name: value * in_unit.get(name, 1.0) for name, value in stats.items()}

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the weights by name, epsilon among them."""
        own = self._converted(self._adam.weights(), self._unit.unit)
        return {**own, EPSILON: np.array([self._epsilon], np.float32)}

    def set_weights(self, weights: Weights) -> None:
        """Copy `weights` in, for the target network too; the optimizer's state and the experience stay.

        Raises:
            ConfigError: Names or shapes differ.
        """
        own = {name: value for name, value in weights.items() if name != EPSILON}
        self._adam.set_weights(self._converted(own, 1.0 / self._unit.unit))
        self.has_first_weights = False
        if EPSILON in weights:
            self._epsilon = float(weights[EPSILON][0])
        self._copy_to_target()

    def take(self, weights: Weights) -> None:
        """Copy in what another policy has learned about layers that both share; the target network stays."""
        self._adam.take(weights)

    def state(self) -> dict[str, Column]:
        """Return everything besides the weights that the next step depends on, experience included, as arrays."""
        return {
            **self._adam.state(),
            **{_TARGET + name: array_of(param).copy() for name, param in self._target_params.items()},
            **{_REPLAY + name: column for name, column in self.replay.state().items()},
            "calls": np.array(self._calls, np.int64),
            "owed": np.array(self._owed),
            "since_copy": np.array(self._since_copy),
            **self._unit.state(),
            "has_first_weights": np.array(self.has_first_weights),
        }

    def check_state(self, state: Mapping[str, Column]) -> None:
        """Refuse what `set_state` could not take over; nothing changes.

        Raises:
            ConfigError: The state belongs to another kind of buffer, or no learner can have reached it.
        """
        self._adam.check_state(state)
        self.replay.check_state(replayed(state))
        if "reward_unit" in state:
            self._unit.check_state(state)
        check_stored(LEARNERS, "calls", state["calls"])
        # Whole steps are made at once.
        check_stored(LEARNERS, "owed", state["owed"], "f", -1, 1)
        check_stored(LEARNERS, "since_copy", state["since_copy"], "f", -1)
        taken = column_of(replayed(state), "actions")
        check_stored(
            LEARNERS,
            "replay.column.actions",
            np.zeros(0, np.int64) if taken is None else taken,
            most=self._choices - 1,
        )

    def set_state(self, state: Mapping[str, Column]) -> None:
        """Take over what `state` returned; set the weights before.

        Raises:
            ConfigError: The state belongs to another network or another kind of buffer.
        """
        self._adam.set_state(state)
        self.replay.set_state(replayed(state))
        for name, param in self._target_params.items():
            param.copy_(torch.from_numpy(np.array(state[_TARGET + name], np.float32)))
        if "reward_unit" in state:
            before = self._unit.unit
            self._unit.set_state(state)
            self._rescale(self._adam.params, before / self._unit.unit)
            self.has_first_weights = bool(state["has_first_weights"])
        self._calls = int(state["calls"])
        self._owed, self._since_copy = float(state["owed"]), float(state["since_copy"])

    def _store(self, batch: SampleBatch) -> None:
        if batch.count:
            columns = self._columns(batch)
            returns = columns["returns"][columns["valid"]] if "valid" in columns else columns["returns"]
            self._unit.follow(returns, self._settings.replay_buffer_config.capacity)
            self.replay.add(columns)

    def _knee(self) -> float | None:
        """Return from which error on the loss is linear, None for never.

        Below the spread of the targets of an action the loss would be least at their median: at 0 where an action pays
        100 with probability 0.2.
        """
        return self._unit.span if self._settings.td_error_loss_fn == "huber" else None

    def _renew_unit(self) -> None:
        """Follow the size of the rewards; Q-values stay what they are, unless they are those of first weights."""
        before = self._unit.unit
        if not self._powers or not self._unit.renew():
            return
        if not self.has_first_weights:
            for params in (self._adam.params, self._target_params):
                self._rescale(params, before / self._unit.unit)
        self.has_first_weights = False

    @torch.no_grad()
    def _rescale(self, params: Mapping[str, Tensor], factor: float) -> None:
        for name, power in self._powers.items():
            params[name].mul_(factor**power)

    def _converted(self, weights: Weights, factor: float) -> dict[str, npt.NDArray[np.float32]]:
        """Return weights for rewards that are `factor` times as large."""
        return {
            name: np.asarray(value * np.float32(factor ** self._powers[name]), np.float32)
            if name in self._powers and factor != 1.0 else value
            for name, value in weights.items()
        }  # fmt: skip

    def _rows_kept(self) -> int:
        return self.replay.rows

    def _entries_of_a_step(self) -> int:
        """Return how many entries of the buffer a gradient step is made on."""
        return self._settings.train_batch_size

    def _columns(self, batch: SampleBatch) -> dict[str, Column]:
        """Return what is kept of a batch, [N, ...]; see `_terms`."""
        found = transitions(batch, self._settings.gamma, self._settings.target_steps())
        columns: dict[str, Column] = {
            "obs": obs_column(batch["obs"]),
            "actions": np.asarray(batch["actions"], np.int64),
            "returns": found.returns,
            "discounts": found.discounts,
            "next_obs": obs_column(found.next_obs),
        }
        if found.next_mask is not None:
            columns["next_mask"] = found.next_mask
        return columns

    def _steps_due(self, rows: int) -> int:
        self._owed += rows * self._settings.training_intensity / self._settings.train_batch_size
        steps = int(self._owed + _LOST)
        self._owed -= steps
        return steps

    def _step(self, sample: ReplaySample) -> Tensor:
        """Make one gradient step and return the statistics, a tensor each number."""
        rows = {name: tensor_of(column, self._device) for name, column in sample.columns.items()}
        rows["returns"] = rows["returns"] / self._unit.unit
        prioritized = self._settings.replay_buffer_config.prioritized_replay
        terms = self._terms(rows, tensor_of(sample.weights, self._device) if prioritized else None)
        torch.autograd.backward(terms.loss)
        norm = self._adam.step(sound=math.isfinite(terms.loss.item()))
        errors = array_of(terms.td_errors)
        # Nothing is learned from rows whose error is no number, however often they are drawn.
        self.replay.update_priorities(sample.indices, np.where(np.isfinite(errors), errors, 0.0))
        self._count_towards_copy()
        return torch.stack((terms.loss.detach(), terms.q_taken.mean(), terms.td_errors.abs().mean(), norm))

    def _terms(self, rows: Mapping[str, Tensor], weights: Tensor | None) -> DQNTerms:
        """Return the loss of sampled rows, and what it is made of, in the unit of the Q-values.

        Args:
            rows: obs, actions, returns, discounts, next_obs and, where choices are masked, next_mask; [B, ...].
            weights: [B] importance of the rows; None weighs all alike.
        """
        next_obs, allowed = rows["next_obs"], rows.get("next_mask")
        with torch.no_grad():
            target_next = self._target.dist_inputs(next_obs, allowed)
            online_next = self._network.dist_inputs(next_obs, allowed) if self._settings.double_q else None
            targets = td_targets(rows["returns"], rows["discounts"], target_next, online_next)
        q_values = self._network.dist_inputs(rows["obs"], None)
        return dqn_loss(q_values, rows["actions"], targets, weights, self._knee())

    def _count_towards_copy(self) -> None:
        # Counted in the rows that a step stands for, so that a long fragment is not learned with one old target.
        self._since_copy += self._settings.train_batch_size / self._settings.training_intensity
        frequency = self._settings.target_network_update_freq
        copies = int(self._since_copy / frequency + _LOST)
        if copies:
            self._since_copy -= copies * frequency
            self._copy_to_target()

    @torch.no_grad()
    def _copy_to_target(self) -> None:
        for name, param in self._target_params.items():
            param.copy_(self._adam.params[name])


def replayed(state: Mapping[str, Column]) -> dict[str, Column]:
    """Return what a learner's state holds of its buffer."""
    return {name.removeprefix(_REPLAY): state[name] for name in state if name.startswith(_REPLAY)}
