"""Acting with a memory: what states a network takes, and what it makes of them."""

from typing import Any

import numpy as np
import pytest
import torch

from menv.algorithms.networks.stock_spec import Cell, CellKind, StockSpec
from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical
from menv.inference.onnx_backend import OnnxBackend
from tests.algorithms.test_backends_agree import RECURRENT, random_rows, random_state, with_onnx
from tests.inference.lively import lively_weights


def test_a_missing_or_unfit_state_is_refused_by_name() -> None:
    spec = RECURRENT["lstm"]
    acting = with_onnx(spec)
    (obs, _, noise), state = random_rows(spec, 4), random_state(spec, 4)
    for wrong in (None, state[:, :5], state.astype(float)):
        with pytest.raises(ConfigError, match=r"\[4, 96\]"):
            acting.decide(obs, None, noise, 0, wrong)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_one_step_is_that_of_torch_modules(kind: CellKind) -> None:
    """The reference is torch's own module, fed our weights transposed."""
    spec = StockSpec(6, Categorical((2,)), (), vf_share_layers=True, cell=Cell(kind, 5))
    weights = lively_weights(spec, 3)
    module: Any = (torch.nn.LSTMCell if kind == "lstm" else torch.nn.GRUCell)(6, 5)
    named = {name: torch.from_numpy(value) for name, value in weights.items()}
    with torch.no_grad():
        module.weight_ih.copy_(named["shared.cell.input.weight"].t())
        module.weight_hh.copy_(named["shared.cell.state.weight"].t())
        module.bias_ih.copy_(named["shared.cell.input.bias"])
        module.bias_hh.copy_(named.get("shared.cell.state.bias", torch.zeros(20)))
    (obs, _, noise), state = random_rows(spec, 9), random_state(spec, 9)
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
    weights = StockSpec(4, Categorical((2,)), (8,), cell=Cell("lstm", 6)).first_weights(0)
    bias = weights["policy.cell.input.bias"]
    assert bias[6:12].tolist() == [1.0] * 6
    assert not bias[:6].any()
    assert not bias[12:].any()
    for number in range(4):
        gate = weights["policy.cell.state.weight"][:, 6 * number : 6 * number + 6]
        np.testing.assert_allclose(gate.T @ gate, np.eye(6), atol=1e-5)
