"""Acting by Q-values: the best choice, or with a chance of epsilon any legal one."""

from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from menv.algorithms.networks.stock_graphs import StockGraphs
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.networks.torch_backend import TorchBackend
from menv.algorithms.networks.torch_stock import TorchStock
from menv.inference.backend import ActingBackend
from menv.inference.heads.q_values import QValues
from menv.inference.onnx_backend import OnnxBackend

LARGEST = float(1.0 - 2.0**-23)
Floats = npt.NDArray[np.float32]


def constant_q(q_values: list[float], epsilon: float, kind: str = "onnx", policies: int = 1) -> ActingBackend:
    """Return policies with the same Q-values for every observation; later ones explore always."""
    spec = StockSpec(1, QValues((len(q_values),)), hiddens=())
    weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    weights["policy.out.bias"][:] = q_values
    weights["epsilon"][:] = epsilon
    each = [weights, *({**weights, "epsilon": np.ones(1, np.float32)} for _ in range(policies - 1))]
    if kind == "torch":
        return TorchBackend(partial(TorchStock, spec), spec.head, each)
    return OnnxBackend(StockGraphs(spec), spec.head, each)


def rows(count: int) -> Floats:
    return np.zeros((count, 1), np.float32)


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_a_first_draw_below_epsilon_explores_and_the_second_picks_uniformly(kind: str) -> None:
    acting = constant_q([0.0, 3.0, 1.0, 2.0], 0.25, kind)
    noise = np.array([[0.0, 0.0], [0.2, 0.3], [0.24, LARGEST], [0.25, 0.0], [LARGEST, 0.9]], np.float32)
    assert acting.decide(rows(5), None, noise).actions.tolist() == [0, 1, 3, 1, 1]
    assert acting.decide(rows(5), None, None).actions.tolist() == [1] * 5


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_exploring_counts_legal_choices_only(kind: str) -> None:
    acting = constant_q([0.0, 3.0, 1.0, 2.0], 1.0, kind)
    mask = np.tile([False, True, False, True], (4, 1))
    noise = np.array([[0.0, 0.0], [0.0, 0.49], [0.0, 0.5], [0.0, LARGEST]], np.float32)
    assert acting.decide(rows(4), mask, noise).actions.tolist() == [1, 1, 3, 3]


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["onnx", "torch"])
@pytest.mark.parametrize("choices", [1, 2, 3, 7, 33, 1000])
@pytest.mark.parametrize("draw", [0.0, 0.5, LARGEST])
def test_no_draw_picks_an_illegal_or_missing_choice(kind: str, choices: int, draw: float) -> None:
    acting = constant_q([0.0] * choices, 1.0, kind)
    noise = np.full((50, 2), draw, np.float32)
    assert acting.decide(rows(50), None, noise).actions.max() < choices
    rng = np.random.default_rng(choices)
    mask = rng.random((50, choices)) < 0.3
    mask[np.arange(50), rng.integers(0, choices, 50)] = True
    drawn = acting.decide(rows(50), mask, noise).actions
    assert mask[np.arange(50), drawn].all()
    only = np.zeros((50, choices), np.bool_)
    only[np.arange(50), np.arange(50) % choices] = True
    np.testing.assert_array_equal(acting.decide(rows(50), only, noise).actions, np.arange(50) % choices)


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_every_policy_of_a_batch_explores_by_its_own_epsilon(kind: str) -> None:
    acting = constant_q([1.0, 0.0], 0.0, kind, policies=2)
    which = np.arange(10) % 2
    noise = np.full((10, 2), 0.9, np.float32)
    for mask in (None, np.ones((10, 2), np.bool_)):
        assert acting.decide(rows(10), mask, noise, which).actions.tolist() == which.tolist()


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_evaluate_returns_masked_q_values_and_the_chance_of_each_action(kind: str) -> None:
    acting = constant_q([1.0, 2.0, 3.0], 0.3, kind)
    actions = np.array([0, 1, 2])
    inputs, logp = acting.evaluate(0, rows(3), None, actions)
    np.testing.assert_array_equal(inputs, np.tile(np.array([1.0, 2.0, 3.0], np.float32), (3, 1)))
    np.testing.assert_allclose(np.exp(logp), [0.1, 0.1, 0.8], rtol=1e-5)
    mask = np.tile([True, True, False], (3, 1))
    inputs, logp = acting.evaluate(0, rows(3), mask, actions)
    np.testing.assert_array_equal(inputs[0], np.array([1.0, 2.0, -1e9], np.float32))
    np.testing.assert_allclose(np.exp(logp), [0.15, 0.85, 0.0], rtol=1e-5, atol=1e-9)
    assert np.isfinite(logp).all()


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_dueling_adds_the_value_to_advantages_about_their_mean(kind: str) -> None:
    spec = StockSpec(2, QValues((3,)), hiddens=(), dueling=True)
    weights = {name: np.zeros_like(value) for name, value in spec.first_weights(0).items()}
    weights["policy.out.weight"][:] = [[1.0, 2.0, 6.0], [0.0, 3.0, 0.0]]
    weights["value.out.weight"][:] = [[10.0], [-1.0]]
    acting: ActingBackend = (
        OnnxBackend(StockGraphs(spec), spec.head, [weights])
        if kind == "onnx"
        else TorchBackend(partial(TorchStock, spec), spec.head, [weights])
    )
    obs = np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)
    # Advantages (1, 2, 6) have mean 3 and value 10; (0, 6, 0) have mean 2 and value -2.
    wanted = [[8.0, 9.0, 13.0], [-4.0, 2.0, -4.0]]
    np.testing.assert_allclose(acting.evaluate(0, obs, None, np.zeros(2, np.int64)).dist_inputs, wanted)
    assert acting.decide(obs, None, None).actions.tolist() == [2, 1]
