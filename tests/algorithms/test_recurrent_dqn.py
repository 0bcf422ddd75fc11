"""Q-learning with a memory: what is kept of sequences, and the loss over them against one written out row by row."""

from typing import Any

import numpy as np
import pytest
import torch

from menv.algorithms import DQNConfig
from menv.algorithms.dqn.learner import RecurrentDQNLearner
from menv.algorithms.networks.stock_spec import Cell, StockSpec
from menv.errors import ConfigError
from menv.inference.heads.q_values import QValues
from menv.sample_batch import SampleBatch
from tests.written_batches import batch as written

SPEC = StockSpec(1, QValues((4,)), (5,), dueling=True, cell=Cell("lstm", 3))
MOST = 3


def lively(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shaken = {
        name: (value + 0.5 * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in SPEC.first_weights(seed).items()
    }
    shaken["epsilon"][:] = 0.5
    return shaken


def learner(**settings: Any) -> RecurrentDQNLearner:
    sizes: dict[str, Any] = {
        "train_batch_size": 12, "num_steps_sampled_before_learning_starts": 0, "gamma": 0.9,
        "model": {"use_lstm": True, "max_seq_len": MOST},
    }  # fmt: skip
    return RecurrentDQNLearner(SPEC, DQNConfig(**{**sizes, **settings}), lively(1), 0)


def columns_of(one: RecurrentDQNLearner, batch: SampleBatch) -> Any:
    """Return what is kept of a batch."""
    return one._columns(batch)


def pieces(masked: bool = False) -> SampleBatch:
    """Pieces of 5, 2 and 3 rows; the second one goes on after its last row."""
    batch = written([5, 2, 3])
    rng = np.random.default_rng(2)
    batch["obs"][:] *= 0.01
    batch.segments.next_obs *= np.float32(0.01)
    batch["terminateds"][6] = False
    for part in range(2):
        batch[f"state_in_{part}"] = rng.standard_normal((10, 3)).astype(np.float32)
    if masked:
        mask = rng.random((10, 4)) < 0.6
        mask[:, 0] = True
        batch["action_mask"] = mask
        batch.segments.next_mask = np.array([[True, False, True, False]] * 3)
    return batch


def test_sequences_are_kept_with_the_state_before_them_and_the_observation_behind_them() -> None:
    found = columns_of(learner(n_step=1), pieces())
    obs = [[0.0, 0.01, 0.02, 0.03], [0.03, 0.04, 0.15], [1.0, 1.01, 1.12], [2.0, 2.01, 2.02, 2.13]]
    for row, wanted in zip(found["obs"][..., 0].tolist(), obs, strict=True):
        assert row[: len(wanted)] == pytest.approx(wanted)
    assert found["valid"].tolist() == [[True] * 3, [True, True, False], [True, True, False], [True] * 3]
    assert found["after"].tolist() == [[1, 2, 3], [1, 2, 0], [1, 2, 0], [1, 2, 3]]
    np.testing.assert_array_equal(found["state"][:, :3], pieces()["state_in_0"][[0, 3, 5, 7]])
    assert found["discounts"][found["valid"]] == pytest.approx([0.9] * 4 + [0.0] + [0.9] * 4 + [0.0])


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_the_loss_equals_the_loss_of_every_row_unrolled_separately(
    double_q: bool, masked: bool, n_step: int
) -> None:
    batch, one = pieces(masked), learner(n_step=n_step, double_q=double_q)
    for param in one._target_params.values():
        param += 0.1
    stored = {name: torch.from_numpy(column) for name, column in columns_of(one, batch).items()}
    weights = torch.tensor([1.0, 0.5, 0.25, 2.0])
    terms = one._terms(stored, weights)

    losses, errors, means = [], [], []
    for number, (start, length, piece) in enumerate(((0, 3, 0), (3, 2, 0), (5, 2, 1), (7, 3, 2))):
        whole_end = int(batch.segments.ends[piece])
        leaves = start + length == whole_end
        beyond = batch.segments.next_obs[piece] if leaves else batch["obs"][start + length]
        shown = torch.from_numpy(np.concatenate((batch["obs"][start : start + length], beyond[None])))
        state = torch.from_numpy(
            np.concatenate([batch[f"state_in_{part}"][start] for part in range(2)])[None].astype(np.float32)
        )
        online = one._network.dist_inputs(shown, None, state)
        with torch.no_grad():
            target = one._target.dist_inputs(shown, None, state)
        of_sequence = []
        for row in range(length):
            steps = min(n_step, length - row)
            rewards = batch["rewards"][start + row : start + row + steps]
            wanted = sum(0.9**lag * float(reward) for lag, reward in enumerate(rewards))
            last, after = start + row + steps - 1, row + steps
            if not batch["terminateds"][last]:
                allowed = np.ones(4, bool)
                if masked:
                    at_end = leaves and after == length
                    allowed = batch.segments.next_mask[piece] if at_end else batch["action_mask"][last + 1]
                choice_of = (online if double_q else target)[after].detach().numpy()
                best = int(np.argmax(np.where(allowed, choice_of, -1e9)))
                wanted += 0.9**steps * float(target[after, best])
            error = online[row, int(batch["actions"][start + row])] - wanted
            size = error.abs()
            losses.append(weights[number] * torch.where(size < 1, 0.5 * error**2, size - 0.5))
            of_sequence.append(float(size.detach()))
        errors.append(max(of_sequence))
        means.append(sum(of_sequence) / length)
    torch.testing.assert_close(terms.loss, torch.stack(losses).mean())
    priorities = 0.9 * np.array(errors) + 0.1 * np.array(means)
    np.testing.assert_allclose(terms.td_errors.numpy(), priorities, rtol=1e-4)


def begun_earlier(batch: SampleBatch, piece: int) -> SampleBatch:
    """Let a piece begin at the fifth timestep of its episode."""
    start, length = int(batch.segments.starts[piece]), int(batch.segments.lengths[piece])
    batch["t"][start : start + length] += 4
    return batch


def test_sequences_overlap_by_the_burn_in_and_each_row_after_it_teaches_once() -> None:
    found = columns_of(
        learner(n_step=1, replay_buffer_config={"replay_burn_in": 1}), begun_earlier(pieces(), 2)
    )
    # Rows 0 to 4, 5 and 6, which begin episodes, and 7 to 9. Row 2 warms up for rows 3 and 4.
    obs = [[0.0, 0.01, 0.02, 0.03], [0.02, 0.03, 0.04, 0.15], [1.0, 1.01, 1.12], [2.0, 2.01, 2.02, 2.13]]
    for row, wanted in zip(found["obs"][..., 0].tolist(), obs, strict=True):
        assert row[: len(wanted)] == pytest.approx(wanted)
    assert found["valid"].tolist() == [
        [True] * 3,
        [False, True, True],
        [True, True, False],
        [False, True, True],
    ]
    assert found["after"].tolist() == [[1, 2, 3], [0, 2, 3], [1, 2, 0], [0, 2, 3]]
    np.testing.assert_array_equal(found["state"][:, :3], pieces()["state_in_0"][[0, 2, 5, 7]])


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_sequence_that_only_warms_up_is_left_out(prioritized: bool) -> None:
    kept = {"replay_burn_in": 2, "prioritized_replay": prioritized}
    one = learner(replay_buffer_config=kept, training_intensity=120.0)
    stats = one.learn(begun_earlier(of_lengths([2]), 0), 100)
    assert (stats["replay_rows"], stats["updates"]) == (0.0, 0.0)
    stats = one.learn(begun_earlier(of_lengths([3, 2]), 1), 100)
    assert (stats["replay_rows"], stats["updates"]) == (3.0, 50.0)
    assert np.isfinite(stats["loss"])


@pytest.mark.parametrize("burn_in", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_with_a_burn_in_is_that_of_the_tail_with_the_state_after_the_head(
    burn_in: int, masked: bool
) -> None:
    whole = begun_earlier(pieces(masked), 2)[7:10]
    one = learner(n_step=2, replay_buffer_config={"replay_burn_in": burn_in})
    head, state = torch.from_numpy(whole["obs"][:burn_in]), torch.from_numpy(states_of(whole)[:1])
    _, after = one._network.step(head, None, state)  # type: ignore[attr-defined]
    tail = whole[burn_in:]
    tail["state_in_0"][0], tail["state_in_1"][0] = after[0].detach().numpy().reshape(2, 3)
    plain = learner(n_step=2)
    burnt, wanted = (
        each._terms({name: torch.from_numpy(column) for name, column in columns_of(each, rows).items()}, None)
        for each, rows in ((one, whole), (plain, tail))
    )
    torch.testing.assert_close(burnt.loss, wanted.loss)
    torch.testing.assert_close(burnt.q_taken, wanted.q_taken)
    torch.testing.assert_close(burnt.td_errors, wanted.td_errors)


def states_of(batch: SampleBatch) -> Any:
    """Return the states before the rows."""
    return np.concatenate([batch["state_in_0"], batch["state_in_1"]], 1)


def test_a_capacity_counts_whole_sequences() -> None:
    one = learner(replay_buffer_config={"capacity": 30})
    assert one.replay.capacity == 10
    assert one.learn(pieces(), 100)["replay_rows"] == 10.0
    assert one.replay.rows == 4


def test_a_capacity_below_one_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match="replay_buffer_config"):
        learner(replay_buffer_config={"capacity": 2})


def rows_learned_from(one: RecurrentDQNLearner, steps: int) -> list[int]:
    """Return the rows of each of some gradient steps."""
    counts: list[int] = []
    terms = one._terms

    def watched(rows: Any, weights: Any) -> Any:
        counts.append(int(rows["valid"].sum()))
        return terms(rows, weights)

    one._terms = watched  # type: ignore[method-assign]
    one.gradient_steps(steps)
    return counts


def of_lengths(lengths: list[int]) -> SampleBatch:
    """Return pieces of these lengths, played from states of zeros."""
    batch = written(lengths)
    batch["obs"][:] *= 0.01
    for part in range(2):
        batch[f"state_in_{part}"] = np.zeros((batch.count, 3), np.float32)
    return batch


@pytest.mark.each_value
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("lengths", [[1] * 20, [3] * 20, [1, 2, 3, 3, 8, 1, 1]], ids=str)
def test_a_step_is_made_on_as_many_rows_as_a_batch_has_however_short_sequences_are(
    lengths: list[int], prioritized: bool
) -> None:
    kept = {"replay_buffer_config": {"prioritized_replay": prioritized}}
    one = learner(train_batch_size=60, training_intensity=1e-6, **kept)
    one.learn(of_lengths(lengths), 100)
    again = learner(train_batch_size=60, training_intensity=1e-6, **kept)
    again.set_state(one.state())
    counts = rows_learned_from(one, 20)
    assert np.mean(counts) == pytest.approx(60, rel=0.1)
    assert rows_learned_from(again, 20) == counts
