"""Cutting pieces into sequences, and learning through them as through whole pieces."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from menv.algorithms import ModelConfig, PPOConfig
from menv.algorithms.networks.stock_spec import Cell, CellKind, StockSpec
from menv.algorithms.ppo.learner import PPOLearner
from menv.algorithms.training.sequences import sequences, state_before
from menv.inference.heads.categorical import Categorical

SPEC = StockSpec(3, Categorical((2,)), (4,), cell=Cell("lstm", 5))


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(1, 12))
def test_each_row_is_in_one_sequence_that_stays_within_its_piece(lengths: list[int], most: int) -> None:
    cut = sequences(np.array(lengths, np.int64), most)
    piece = np.repeat(np.arange(len(lengths)), lengths)
    assert cut.rows[cut.valid].tolist() == list(range(sum(lengths)))
    assert (cut.lengths <= most).all()
    for rows, valid in zip(cut.rows, cut.valid, strict=True):
        assert len(set(piece[rows].tolist())) == 1
        own = rows[valid]
        assert own.tolist() == list(range(own[0], own[0] + len(own)))
    assert len(cut.rows) == sum(-(-length // most) for length in lengths)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_padded_and_unpadded_sequences_give_the_same_outputs_and_states(kind: CellKind) -> None:
    spec = StockSpec(3, Categorical((2,)), (4,), cell=Cell(kind, 5))
    network: Any = spec.torch_network({name: torch.from_numpy(value) for name, value in lively(spec).items()})
    lengths = [4, 1, 7, 2]
    obs = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(0))
    cut = sequences(np.array(lengths), 7)
    state = torch.randn(4, sum(spec.state_sizes), generator=torch.Generator().manual_seed(1))
    padded = network.dist_inputs(obs[torch.from_numpy(cut.rows)].flatten(0, 1), None, state)
    padded = padded[torch.from_numpy(cut.valid).flatten()]
    start = 0
    for number, length in enumerate(lengths):
        own = obs[start : start + length]
        whole, after = network.step(own, None, state[number : number + 1])
        torch.testing.assert_close(padded[start : start + length], whole)
        now = state[number : number + 1]
        for row in range(length):
            one, now = network.step(own[row : row + 1], None, now)
            torch.testing.assert_close(one[0], whole[row])
        torch.testing.assert_close(now, after)
        start += length


def lively(spec: StockSpec) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        name: (value + 0.4 * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in spec.first_weights(0).items()
    }


def batch_of(lengths: list[int], critic_size: int = 0) -> dict[str, Any]:
    rng, count = np.random.default_rng(5), sum(lengths)
    columns = {
        "obs": rng.standard_normal((count, 3)).astype(np.float32),
        "actions": rng.integers(0, 2, count),
        "action_logp": np.full(count, np.log(0.5), np.float32),
        "action_dist_inputs": np.zeros((count, 2), np.float32),
        "advantages": rng.standard_normal(count).astype(np.float32),
        "value_targets": rng.standard_normal(count).astype(np.float32),
        "seq_lens": np.array(lengths),
        **{f"state_in_{part}": 0.5 * rng.standard_normal((count, 5)).astype(np.float32) for part in range(4)},
    }
    if critic_size:
        del columns["state_in_2"], columns["state_in_3"]
        columns["critic_obs"] = rng.standard_normal((count, critic_size)).astype(np.float32)
        columns["critic_state_in"] = 0.5 * rng.standard_normal((count, 10)).astype(np.float32)
    return columns


@pytest.mark.parametrize("critic_size", [0, 2])
def test_a_gradient_step_is_that_of_the_loss_over_unpadded_pieces(critic_size: int) -> None:
    """One step over everything, against a loss written out piece by piece; plain gradient of Adam's first step."""
    spec = replace(SPEC, critic_size=critic_size)
    columns, weights = batch_of([3, 6, 1], critic_size), lively(spec)
    settings = PPOConfig(
        num_sgd_iter=1, sgd_minibatch_size=1000, lr=1e-3, grad_clip=None, normalize_values=False,
        model=ModelConfig(max_seq_len=4),
    )  # fmt: skip
    learner = PPOLearner(spec, settings, weights, 0)
    learner.learn(columns, 0)

    params = {name: torch.from_numpy(value).clone().requires_grad_() for name, value in weights.items()}
    network = spec.torch_network(params)
    advantages = torch.from_numpy(columns["advantages"])
    advantages = (advantages - advantages.mean()) / advantages.std(correction=0)
    states = torch.from_numpy(state_before(columns))
    policy, value = [], []
    for start, stop in ((0, 3), (3, 7), (7, 9), (9, 10)):
        rows = slice(start, stop)
        seen, first = torch.from_numpy(columns["obs"][rows]), slice(start, start + 1)
        inputs = network.dist_inputs(seen, None, states[first])
        if critic_size:
            seen = torch.from_numpy(columns["critic_obs"][rows])
            values = network.values(seen, torch.from_numpy(columns["critic_state_in"][first]))
        else:
            values = network.values(seen, states[first])
        actions = torch.from_numpy(columns["actions"][rows])
        logp = torch.log_softmax(inputs, -1).gather(1, actions[:, None])[:, 0]
        ratio = (logp - torch.from_numpy(columns["action_logp"][rows])).exp()
        own = advantages[rows]
        policy.append(torch.minimum(ratio * own, ratio.clamp(0.7, 1.3) * own))
        value.append((values - torch.from_numpy(columns["value_targets"][rows])) ** 2)
    loss = -torch.cat(policy).mean() + 0.5 * torch.cat(value).mean()
    torch.autograd.backward(loss)
    for name, after in learner.weights().items():
        gradient = params[name].grad
        assert gradient is not None
        # Adam's first step is lr * g / (|g| + eps).
        step = 1e-3 * gradient / (gradient.abs() + 1e-5)
        np.testing.assert_allclose(after, weights[name] - step.numpy(), atol=2e-6, err_msg=name)


def test_every_row_is_learned_from_in_every_epoch_however_sequences_are_batched() -> None:
    columns = batch_of([9, 2, 14, 5, 1])
    for size in (1, 4, 10, 100):
        settings = PPOConfig(num_sgd_iter=1, sgd_minibatch_size=size, model=ModelConfig(max_seq_len=4))
        learner = PPOLearner(SPEC, settings, lively(SPEC), 0)
        seen: list[int] = []
        update = learner._update

        def watched(
            rows: Any,
            weights: Any,
            report: bool,
            cloned: Any = None,
            update: Any = update,
            seen: list[int] = seen,
        ) -> Any:
            seen.append(int(rows.valid.sum()))
            return update(rows, weights, report)

        learner._update = watched  # type: ignore[method-assign]
        learner.learn(columns, 0)
        assert sum(seen) == 31
