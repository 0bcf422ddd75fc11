"""The description of the stock network, its first weights and its graphs."""

import numpy as np
import pytest

from menv.algorithms.networks.stock_graphs import StockGraphs
from menv.algorithms.networks.stock_spec import Activation, StockSpec
from menv.inference.heads.categorical import Categorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.q_values import QValues
from menv.inference.onnx_backend import open_session

HEAD = Categorical((3,))


def test_names_and_shapes_of_separate_networks() -> None:
    shapes = StockSpec(4, HEAD, (8,)).weight_shapes()
    assert shapes == {
        "policy.0.weight": (4, 8),
        "policy.0.bias": (8,),
        "policy.out.weight": (8, 3),
        "policy.out.bias": (3,),
        "value.0.weight": (4, 8),
        "value.0.bias": (8,),
        "value.out.weight": (8, 1),
        "value.out.bias": (1,),
    }


def test_shared_layers_appear_once_and_a_gaussian_head_has_a_free_log_std() -> None:
    shapes = StockSpec(4, Gaussian((2,)), (8,), vf_share_layers=True).weight_shapes()
    assert [name for name in shapes if name.endswith("weight")] == [
        "shared.0.weight",
        "policy.out.weight",
        "value.out.weight",
    ]
    assert shapes["policy.out.weight"] == (8, 2)
    assert shapes["policy.log_std"] == (2,)


def test_q_values_have_an_epsilon_of_1_and_a_value_head_only_if_they_duel() -> None:
    head = QValues((3,))
    assert list(StockSpec(4, head, (8,)).weight_shapes()) == [
        "policy.0.weight",
        "policy.0.bias",
        "policy.out.weight",
        "policy.out.bias",
        "epsilon",
    ]
    dueling = StockSpec(4, head, (8,), dueling=True)
    assert [name for name in dueling.weight_shapes() if not name.endswith("bias")] == [
        "shared.0.weight",
        "policy.out.weight",
        "value.out.weight",
        "epsilon",
    ]
    assert dueling.first_weights(0)["epsilon"].tolist() == [1.0]


def test_first_weights_are_orthogonal_with_their_gains_and_biases_zero() -> None:
    weights = StockSpec(4, HEAD, (8, 6)).first_weights(1)
    for name, gain in (
        ("policy.0", 2.0**0.5),
        ("value.1", 2.0**0.5),
        ("policy.out", 0.01),
        ("value.out", 1.0),
    ):
        matrix = weights[f"{name}.weight"].astype(np.float64)
        small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        np.testing.assert_allclose(small, gain**2 * np.eye(len(small)), atol=1e-6)
        assert not weights[f"{name}.bias"].any()
    assert all(value.dtype == np.float32 for value in weights.values())


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu", "elu", "linear"])
def test_a_graph_with_defaults_runs_alone_and_yields_to_weights_that_are_fed(activation: Activation) -> None:
    spec = StockSpec(4, HEAD, (8,), activation)
    weights = spec.first_weights(0)
    session = open_session(StockGraphs(spec, weights).build("values"))
    obs = np.ones((3, 4), np.float32)
    alone = session.run(None, {"obs": obs})[0]
    fed = session.run(None, {"obs": obs, "value.out.bias": np.ones(1, np.float32)})[0]
    np.testing.assert_allclose(fed, alone + 1.0, rtol=1e-6)
