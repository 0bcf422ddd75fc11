"""Acting with a memory: ONNX Runtime as torch, one row as many, one policy as several."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from menv.algorithms.networks.stock_spec import Cell, CellKind, StockSpec
from menv.algorithms.networks.torch_backend import TorchBackend, check_against
from menv.errors import ConfigError
from menv.inference.action_heads import ActionHead
from menv.inference.backend import Decision
from menv.inference.onnx_backend import OnnxBackend
from tests.inference.lively import lively_weights

Floats = npt.NDArray[np.float32]

SPECS = {
    "lstm": StockSpec(5, ActionHead("categorical", (3,)), (16,), cell=Cell("lstm", 24)),
    "gru": StockSpec(5, ActionHead("categorical", (2,)), (16,), cell=Cell("gru", 24)),
    "lstm shared": StockSpec(
        5, ActionHead("multi_categorical", (3, 2)), (16,), vf_share_layers=True, cell=Cell("lstm", 7)
    ),
    "gru gaussian": StockSpec(3, ActionHead("gaussian", (2,)), (), cell=Cell("gru", 9)),
    "lstm q": StockSpec(5, ActionHead("q_values", (4,)), (16,), cell=Cell("lstm", 64)),
    "gru dueling": StockSpec(5, ActionHead("q_values", (3,)), (16,), dueling=True, cell=Cell("gru", 33)),
    "one unit": StockSpec(5, ActionHead("categorical", (3,)), (16,), cell=Cell("lstm", 1)),
}
SPEC = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def onnx(spec: StockSpec, policies: int = 1) -> OnnxBackend:
    weights = [lively_weights(spec, seed) for seed in range(policies)]
    return OnnxBackend(spec.graphs({}), spec.head, weights, sum(spec.state_sizes))


def random_rows(spec: StockSpec, rows: int) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(rows)
    obs = rng.standard_normal((rows, spec.obs_size), np.float32)
    noise = rng.integers(0, 2**23, (rows, spec.head.noise_width)).astype(np.float32) * np.float32(2.0**-23)
    return obs, noise, rng.standard_normal((rows, sum(spec.state_sizes)), np.float32)


def same(one: Decision, other: Decision) -> bool:
    return all(
        (a is None and b is None) or (a is not None and b is not None and a.tobytes() == b.tobytes())
        for a, b in zip(one[:3], other[:3], strict=True)
    )


@SPEC
def test_both_back_ends_agree(spec: StockSpec) -> None:
    reference = TorchBackend(spec.torch_network, spec.head, [lively_weights(spec, 0)], sum(spec.state_sizes))
    check_against(onnx(spec), reference, np.random.default_rng(0), masked=False)


@SPEC
def test_a_row_is_answered_alike_in_batches_of_every_size(spec: StockSpec) -> None:
    acting = onnx(spec)
    obs, noise, state = random_rows(spec, 257)
    whole = acting.decide(obs, None, noise, 0, state)
    values, logp = acting.values(0, obs, state), acting.evaluate(0, obs, None, whole.actions, state).logp
    for rows in (1, 2, 3, 5, 8, 15, 16, 17, 31, 64, 100, 256):
        part = acting.decide(obs[:rows], None, noise[:rows], 0, state[:rows])
        first: list[Any] = [column if column is None else column[:rows] for column in whole[:3]]
        assert same(part, Decision(*first))
        assert acting.values(0, obs[:rows], state[:rows]).tobytes() == values[:rows].tobytes()
        found = acting.evaluate(0, obs[:rows], None, part.actions, state[:rows]).logp
        assert found.tobytes() == logp[:rows].tobytes()


@pytest.mark.each_value
@SPEC
@pytest.mark.parametrize("rows", [2, 7, 40, 2000])
def test_policies_that_answer_together_answer_as_each_alone(spec: StockSpec, rows: int) -> None:
    acting = onnx(spec, policies=3)
    obs, noise, state = random_rows(spec, rows)
    which = np.random.default_rng(1).integers(0, 3, rows)
    which.flags.writeable = False
    # The same array again and again is laid out otherwise than the first times.
    for _ in range(6):
        found = acting.decide(obs, None, noise, which, state)
        for policy in range(3):
            mine = which == policy
            alone = acting.decide(obs[mine], None, noise[mine], policy, state[mine])
            np.testing.assert_array_equal(found.actions[mine], alone.actions)
            assert found.state is not None
            assert alone.state is not None
            np.testing.assert_array_equal(found.state[mine], alone.state)


def test_a_missing_or_unfit_state_is_refused_by_name() -> None:
    spec = SPECS["lstm"]
    acting = onnx(spec)
    obs, noise, state = random_rows(spec, 4)
    for wrong, words in (
        (None, "missing"),
        (state[:, :5], r"float32 \[4, 5\]"),
        (state.astype(float), r"float64 \[4, 96\]"),
    ):
        with pytest.raises(ConfigError, match=rf"state is {words}, expected float32 \[4, 96\]"):
            acting.decide(obs, None, noise, 0, wrong)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_one_step_is_that_of_torch_modules(kind: CellKind) -> None:
    """The reference is torch's own module, fed our weights transposed."""
    spec = StockSpec(6, ActionHead("categorical", (2,)), (), vf_share_layers=True, cell=Cell(kind, 5))
    weights = lively_weights(spec, 3)
    module: Any = (torch.nn.LSTMCell if kind == "lstm" else torch.nn.GRUCell)(6, 5)
    named = {name: torch.from_numpy(value) for name, value in weights.items()}
    with torch.no_grad():
        module.weight_ih.copy_(named["shared.cell.input.weight"].t())
        module.weight_hh.copy_(named["shared.cell.state.weight"].t())
        module.bias_ih.copy_(named["shared.cell.input.bias"])
        module.bias_hh.copy_(named.get("shared.cell.state.bias", torch.zeros(20)))
    obs, noise, state = random_rows(spec, 9)
    before = torch.from_numpy(state)
    with torch.no_grad():
        after = module(torch.from_numpy(obs), before if kind == "gru" else before.split(5, 1))  # type: ignore[no-untyped-call]
    wanted = after if kind == "gru" else torch.cat(after, 1)
    found = OnnxBackend(spec.graphs({}), spec.head, [weights], len(state[0])).decide(
        obs, None, noise, 0, state
    )
    assert found.state is not None
    np.testing.assert_allclose(found.state, wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_a_new_cell_remembers_and_its_matrices_are_orthogonal() -> None:
    weights = StockSpec(4, ActionHead("categorical", (2,)), (8,), cell=Cell("lstm", 6)).first_weights(0)
    bias = weights["policy.cell.input.bias"]
    assert bias[6:12].tolist() == [1.0] * 6
    assert not bias[:6].any()
    assert not bias[12:].any()
    for number in range(4):
        gate = weights["policy.cell.state.weight"][:, 6 * number : 6 * number + 6]
        np.testing.assert_allclose(gate.T @ gate, np.eye(6), atol=1e-5)
