"""Acting with ONNX Runtime: what is drawn, for whom, and that batching changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from menv.algorithms.networks.stock_graphs import StockGraphs
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.networks.torch_backend import TorchBackend
from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical, MultiCategorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import ActionHead
from menv.inference.onnx_backend import OnnxBackend
from tests.algorithms.test_backends_agree import HEADS, random_rows, with_onnx, with_torch
from tests.bundles.cases import CASES, Spaces, observations
from tests.inference.lively import lively_weights

ALMOST_ONE = np.float32(1.0 - 2.0**-23)


def spec_of(obs_size: int, head: ActionHead, hiddens: tuple[int, ...] = (64, 64)) -> StockSpec:
    """Q-values of more than two choices are dueling, so that both ways are met."""
    dueling = head.kind == "q_values" and head.sizes[0] > 2
    return StockSpec(obs_size, head, hiddens, dueling=dueling)


every_backend = pytest.mark.parametrize("make", [with_onnx, with_torch], ids=["onnx", "torch"])


def bias_only(logits: list[float], head: ActionHead) -> OnnxBackend:
    """A policy whose logits are the same for every observation."""
    spec = StockSpec(1, head, hiddens=())
    weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    weights["policy.out.bias"][:] = logits
    return OnnxBackend(StockGraphs(spec), head, [weights])


def test_a_draw_falls_where_the_cumulated_probabilities_pass_it() -> None:
    acting = bias_only([np.log(0.25), np.log(0.5), np.log(0.25)], Categorical((3,)))
    noise = np.array([[0.0], [0.24], [0.26], [0.74], [0.76], [ALMOST_ONE]], np.float32)
    assert acting.decide(np.zeros((6, 1), np.float32), None, noise).actions.tolist() == [0, 0, 1, 1, 2, 2]


def test_each_component_of_a_multi_discrete_action_reads_its_own_draw_and_logits() -> None:
    acting = bias_only([0.0, 0.0, np.log(0.9), np.log(0.05), np.log(0.05)], MultiCategorical((2, 3)))
    noise = np.array([[0.4, 0.8], [0.6, 0.92], [ALMOST_ONE, ALMOST_ONE]], np.float32)
    obs = np.zeros((3, 1), np.float32)
    assert acting.decide(obs, None, noise).actions.tolist() == [[0, 0], [1, 1], [1, 2]]
    assert acting.decide(obs, None, None).actions.tolist() == [[0, 0]] * 3


def test_a_continuous_action_is_the_mean_plus_the_scaled_draw() -> None:
    spec = StockSpec(1, Gaussian((2,)), hiddens=())
    weights = spec.first_weights(0)
    weights["policy.out.weight"][:] = [[1.0, -1.0]]
    weights["policy.log_std"][:] = [np.log(2.0), np.log(0.5)]
    acting = OnnxBackend(StockGraphs(spec), spec.head, [weights])
    obs = np.array([[3.0], [0.0]], np.float32)
    noise = np.array([[1.0, 1.0], [-1.0, 4.0]], np.float32)
    np.testing.assert_allclose(acting.decide(obs, None, noise).actions, [[5.0, -2.5], [-2.0, 2.0]], rtol=1e-6)
    np.testing.assert_allclose(acting.decide(obs, None, None).actions, [[3.0, -3.0], [0.0, 0.0]])
    # log N(5; 3, 2) + log N(-2.5; -3, 0.5), both one standard deviation from the mean.
    logp = acting.evaluate(0, obs[:1], None, np.array([[5.0, -2.5]], np.float32)).logp
    np.testing.assert_allclose(logp, [-1.0 - np.log(2.0 * np.pi)], rtol=1e-6)


@pytest.mark.each_value
@every_backend
@pytest.mark.parametrize("head", [head for head in HEADS if head.choices])
@pytest.mark.parametrize("draw", [0.0, 2.0**-23, 0.5, ALMOST_ONE])
def test_a_masked_choice_is_never_sampled_or_greedy(make: Any, head: ActionHead, draw: float) -> None:
    spec = spec_of(4, head)
    acting = make(spec, policies=2)
    obs, mask, _ = random_rows(spec, 60)
    assert mask is not None
    noise = np.full((60, head.noise_width), draw, np.float32)
    starts = np.cumsum((0, *head.choices[:-1]))
    chosen = np.flatnonzero(head.sizes)
    for which in (0, np.arange(60) % 2):
        for actions in (
            acting.decide(obs, mask, noise, which).actions,
            acting.decide(obs, mask, None, which).actions,
        ):
            flat = actions.reshape(60, -1)[:, chosen].astype(np.int64) + starts
            assert np.take_along_axis(mask, flat, 1).all()


@pytest.mark.parametrize("choices", [2, 9, 33, 1000])
def test_the_largest_draw_never_picks_a_choice_of_probability_zero(choices: int) -> None:
    spec = StockSpec(4, Categorical((choices,)))
    acting = with_onnx(spec)
    obs, _, _ = random_rows(spec, 50)
    for legal in range(0, choices, max(1, choices // 7)):
        mask = np.zeros((50, choices), np.bool_)
        mask[:, : legal + 1] = True
        drawn = acting.decide(obs, mask, np.full((50, 1), ALMOST_ONE, np.float32)).actions
        assert drawn.max() <= legal
        only = np.zeros((50, choices), np.bool_)
        only[:, legal] = True
        assert (acting.decide(obs, only, np.zeros((50, 1), np.float32)).actions == legal).all()


def test_evaluate_returns_masked_inputs_and_the_log_probability_of_each_action() -> None:
    acting = bias_only([1.0, 2.0, 3.0], Categorical((3,)))
    mask = np.array([[True, False, True]])
    inputs, logp = acting.evaluate(0, np.zeros((1, 1), np.float32), mask, np.array([2]))
    np.testing.assert_array_equal(inputs, np.array([[1.0, -1e9, 3.0]], np.float32))
    np.testing.assert_allclose(logp, [-np.log1p(np.exp(-2.0))], rtol=1e-6)


def test_new_weights_change_the_next_answer_of_that_policy_only() -> None:
    spec = StockSpec(4, Gaussian((2,)))
    acting = with_onnx(spec, policies=2)
    obs, _, _ = random_rows(spec, 8)
    before = [acting.decide(obs, None, None, policy).actions for policy in (0, 1)]
    stacked = acting.decide(obs, None, None, np.zeros(8, np.int64)).actions
    acting.set_weights(0, lively_weights(spec, 7))
    assert not np.array_equal(acting.decide(obs, None, None, np.zeros(8, np.int64)).actions, stacked)
    assert not np.array_equal(acting.decide(obs, None, None, 0).actions, before[0])
    np.testing.assert_array_equal(acting.decide(obs, None, None, 1).actions, before[1])
    np.testing.assert_array_equal(
        acting.decide(obs, None, None, np.arange(8) % 2).actions[1::2], before[1][1::2]
    )


@every_backend
def test_a_policy_added_later_copies_policy_0_or_brings_its_own_weights(make: Any) -> None:
    spec = StockSpec(4, Categorical((5,)))
    acting = make(spec)
    obs, mask, noise = random_rows(spec, 16)
    first = acting.decide(obs, mask, noise).actions
    assert (acting.add_policy(), acting.add_policy(lively_weights(spec, 9)), acting.policies) == (1, 2, 3)
    np.testing.assert_array_equal(acting.decide(obs, mask, noise, 1).actions, first)
    np.testing.assert_array_equal(acting.decide(obs, mask, noise, np.zeros(16, np.int64)).actions, first)
    assert not np.array_equal(acting.values(2, obs), acting.values(1, obs))


@every_backend
def test_weights_of_another_network_are_refused_with_name_and_shapes(make: Any) -> None:
    acting = make(StockSpec(4, Categorical((2,))))
    other = StockSpec(5, Categorical((2,))).first_weights(0)
    with pytest.raises(ConfigError, match=r"\(5, 64\)"):
        acting.set_weights(0, other)


@every_backend
@pytest.mark.parametrize("rows", [10, 1000])
def test_a_row_of_an_unknown_policy_is_an_error(make: Any, rows: int) -> None:
    spec = StockSpec(4, Categorical((2,)))
    acting = make(spec, policies=2)
    obs, mask, noise = random_rows(spec, rows)
    for unknown in (2, -1):
        with pytest.raises(ConfigError, match=f"policy {unknown}"):
            acting.decide(obs, mask, noise, unknown)
    which = np.full(rows, 2)
    which.flags.writeable = False
    for _ in range(6):
        with pytest.raises(Exception, match=r"policy 2|out of bounds|out of data bounds"):
            acting.decide(obs, mask, noise, which)


FLOAT = np.float32


@pytest.mark.parametrize(
    ("obs", "mask", "noise", "wrong"),
    [
        (np.zeros((3, 5), FLOAT), None, np.zeros((3, 1), FLOAT), r"\[3, 5\]"),
        (np.zeros((3, 1), FLOAT), None, np.zeros((3, 1), FLOAT), r"\[3, 1\]"),
        (np.zeros((3, 4)), None, np.zeros((3, 1), FLOAT), "float64"),
        (np.zeros((3, 4), FLOAT), np.ones((1, 2), bool), np.zeros((3, 1), FLOAT), "mask"),
        (np.zeros((3, 4), FLOAT), np.ones((3, 2), np.int8), np.zeros((3, 1), FLOAT), "mask"),
        (np.zeros((3, 4), FLOAT), None, np.zeros((1, 1), FLOAT), "noise"),
    ],
)
def test_rows_of_the_wrong_shape_or_type_are_refused_and_the_next_rows_are_answered(
    obs: Any, mask: Any, noise: Any, wrong: str
) -> None:
    spec = StockSpec(4, Categorical((2,)))
    acting = with_onnx(spec, policies=2)
    good = random_rows(spec, 3)
    expected = acting.decide(*good).actions
    for which in (0, np.array([0, 1, 0])):
        with pytest.raises(ConfigError, match=wrong):
            acting.decide(obs, mask, noise, which)
    np.testing.assert_array_equal(acting.decide(*good).actions, expected)


# A back-end of one's own answers as the one that it comes from, and neither notices the other's weights.


@pytest.mark.parametrize("kind", ["mlp", "continuous", "masked worth", "lstm", "picture"])
@pytest.mark.parametrize("inference", ["onnx", "torch"])
def test_a_new_back_end_has_one_policy_and_separate_weights(kind: str, inference: str) -> None:
    case = CASES[kind]
    config = {**case.settings, "inference": inference, "model": {"fcnet_hiddens": [8], **case.model}}
    shown = Spaces(case.observation_space, case.action_space)
    with case.algorithm(env=lambda context: shown, config=config) as algorithm:
        policy: Any = algorithm.get_policy()
        rows, mask = policy.networks.preprocess(observations(policy, 6))
        backend = policy.networks.backend
    assert isinstance(backend, OnnxBackend if inference == "onnx" else TorchBackend)
    other = {name: value * np.float32(0.5) for name, value in backend.get_weights(0).items()}
    second = backend.add_policy(other)
    alone = backend.extract_policy(second)
    assert (alone.policies, alone.obs_size, alone.state_size) == (1, backend.obs_size, backend.state_size)
    assert alone.weight_names == backend.weight_names
    rng = np.random.default_rng(0)
    noise = rng.random((6, backend.head.noise_width)).astype(np.float32)
    state = rng.random((6, backend.state_size), np.float32) if backend.state_size else None
    wanted = backend.decide(rows, mask, noise, second, state)
    for left, right in zip(wanted, alone.decide(rows, mask, noise, 0, state), strict=True):
        np.testing.assert_array_equal(left, right)
    alone.set_weights(0, backend.get_weights(0))
    backend.set_weights(second, {name: value * 0 for name, value in other.items()})
    first, alike = (one.evaluate(0, rows, mask, wanted.actions, state).logp for one in (backend, alone))
    np.testing.assert_array_equal(first, alike)
    still = backend.evaluate(second, rows, mask, wanted.actions, state).logp
    assert not np.array_equal(first, still)


# Rows of several policies are answered as by each policy alone.


def check_each_alone(
    acting: OnnxBackend, spec: StockSpec, which: npt.NDArray[np.int64], seed: int = 0
) -> None:
    """See that rows of several policies are answered as by each policy alone."""
    obs, mask, noise = random_rows(spec, len(which), seed)
    for draws in (noise, None):
        found = acting.decide(obs, mask, draws, which)
        for policy in np.unique(which).tolist():
            alone, mine = acting.decide(obs, mask, draws, policy), which == policy
            np.testing.assert_array_equal(found.actions[mine], alone.actions[mine])


@pytest.mark.each_value
@pytest.mark.parametrize("policies", [2, 9, 40])
@pytest.mark.parametrize("rows", [2, 3, 16, 64, 257, 1000])
def test_rows_of_any_number_of_policies_get_the_same_answers_in_any_order(policies: int, rows: int) -> None:
    spec = StockSpec(4, Categorical((3,)))
    acting = with_onnx(spec, policies)
    rng = np.random.default_rng(rows * policies)
    shares = [
        np.arange(rows) % policies,
        np.sort(rng.integers(0, policies, rows)),
        np.full(rows, policies - 1),
        np.where(rng.random(rows) < 0.9, 1, rng.integers(0, policies, rows)),
    ]
    for which in (*shares, *shares):
        check_each_alone(acting, spec, which, int(rng.integers(1000)))
