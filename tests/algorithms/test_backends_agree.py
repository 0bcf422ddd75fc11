"""One grid of networks: torch and ONNX Runtime agree, and no row's answer depends on the rows beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from menv.algorithms.networks.stock_spec import Cell, ConvStack, StockSpec, default_filters, read_filters
from menv.algorithms.networks.torch_backend import TorchBackend, check_against
from menv.algorithms.sac.network import SACSpec
from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical, MultiCategorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import ActionHead
from menv.inference.heads.mixed import Mixed
from menv.inference.heads.q_values import QValues
from menv.inference.heads.squashed_gaussian import SquashedGaussian
from menv.inference.onnx_backend import OnnxBackend
from tests.algorithms import groups_of_three as groups
from tests.inference.lively import lively_weights

CHOICES, NUMBERS = Categorical((5,)), Gaussian((3,))
SEVERAL, WORTH = MultiCategorical((3, 2, 4)), QValues((4,))
HEADS = [
    CHOICES, NUMBERS, SEVERAL, WORTH, Categorical((2,)), Gaussian((1,)),
    QValues((2,)), MultiCategorical((2, 2)), MultiCategorical((2,)),
    MultiCategorical((2,) * 9), Gaussian((17,)),
    Mixed((0, 3, 0, 2)), Mixed((2, 0)), SquashedGaussian((1,)), SquashedGaussian((3,)),
]  # fmt: skip
# Even and odd sizes, kernels that need more zeros on one side, a wide last layer, one with a single channel.
IMAGES: list[tuple[tuple[int, int, int], Any]] = [
    ((24, 24, 1), None),
    ((46, 12, 3), [[8, [4, 3], [2, 1]], [5, 3, 2], [7, [3, 2], 1]]),
    ((12, 13, 4), [[4, 2, 2], [1, 3, 1], [3, 3, 2]]),
]


def of_images(
    place: int, head: ActionHead, activation: Any = "tanh", pixels: bool = True, share: bool = False
) -> StockSpec:
    shape, filters = IMAGES[place]
    stack = ConvStack(shape, read_filters(filters) if filters else default_filters(shape), activation)
    return StockSpec(int(np.prod(shape)), head, (33,), activation, share, conv=stack, pixels=pixels)


FLAT = {f"{head.kind} {head.sizes}": StockSpec(6, head, (32, 24), dueling=head == WORTH) for head in HEADS}
RECURRENT = {
    "lstm": StockSpec(5, CHOICES, (16,), cell=Cell("lstm", 24)),
    "gru": StockSpec(5, Categorical((2,)), (16,), cell=Cell("gru", 24)),
    "lstm shared": StockSpec(5, SEVERAL, (16,), vf_share_layers=True, cell=Cell("lstm", 7)),
    "gru gaussian": StockSpec(3, NUMBERS, (), cell=Cell("gru", 9)),
    "lstm q": StockSpec(5, WORTH, (16,), cell=Cell("lstm", 64)),
    "gru dueling": StockSpec(5, WORTH, (16,), dueling=True, cell=Cell("gru", 33)),
    "one unit": StockSpec(5, CHOICES, (16,), cell=Cell("lstm", 1)),
}
SPECS: dict[str, Any] = {
    **FLAT,
    **RECURRENT,
    **{f"{hiddens}, {head.kind}": StockSpec(size, head, hiddens)
       for size, hiddens in ((5, (150,)), (300, (37, 200))) for head in (CHOICES, NUMBERS, SEVERAL)},
    **{f"{name}, {head.kind}": StockSpec(6, head, (37, 21), name, vf_share_layers=head != WORTH)
       for name in ("relu", "silu", "elu", "linear") for head in (CHOICES, WORTH)},
    **{f"images {place}, {head.kind}": of_images(place, head, pixels=place != 1)
       for place, head in ((0, CHOICES), (1, NUMBERS), (2, SEVERAL), (0, WORTH))},
    **{f"images, {name}": of_images(2, CHOICES, name) for name in ("relu", "silu", "elu", "linear")},
    "sac": SACSpec(6, SquashedGaussian((2,)), (32, 24), "relu"),
    "sac, one number": SACSpec(5, SquashedGaussian((1,)), (150,), "tanh"),
    "group": groups.spec_of(),
    "group, dueling": groups.spec_of(5, dueling=True, hiddens=(37, 21)),
    "group, vdn": groups.spec_of(3, 1, mixer="vdn"),
    "group, no mixer": groups.spec_of(4, 5, mixer=None, activation="tanh", hiddens=()),
    "group, one choice": groups.spec_of(1),
}  # fmt: skip
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def weights_of(spec: Any, policies: int) -> list[Any]:
    shaken_by = 0.1 if getattr(spec, "conv", None) else 0.3
    return [lively_weights(spec, seed, shaken_by=shaken_by) for seed in range(policies)]


def with_onnx(spec: Any, policies: int = 1) -> OnnxBackend:
    weights = weights_of(spec, policies)
    return OnnxBackend(spec.graphs(weights[0]), spec.head, weights, sum(spec.state_sizes))


def with_torch(spec: Any, policies: int = 1) -> TorchBackend:
    return TorchBackend(spec.torch_network, spec.head, weights_of(spec, policies), sum(spec.state_sizes))


def random_rows(spec: Any, count: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return observations, masks that allow something, and draws."""
    rng, head = np.random.default_rng((count, seed)), spec.head
    obs: Any = rng.standard_normal((count, spec.obs_size), np.float32)
    if getattr(spec, "pixels", False):
        obs = rng.integers(0, 256, obs.shape, np.uint8)
    mask = None
    if head.mask_width:
        mask = rng.random((count, head.mask_width)) < 0.5
        mask[:, np.cumsum((0, *head.choices[:-1]))] = True
    return obs, mask, head.sample_noise(rng, count)


def random_state(spec: Any, count: int) -> Any:
    """Return the states of a recurrent network before the rows, None for others."""
    size = sum(spec.state_sizes)
    return np.random.default_rng(count).standard_normal((count, size), np.float32) if size else None


def answers(one: Any, obs: Any, mask: Any, noise: Any, actions: Any, state: Any) -> list[Any]:
    """Return all that a back-end says: actions that are drawn, the best ones, judgements, values and states."""
    drawn, best = (one.decide(obs, mask, draws, 0, state) for draws in (noise, None))
    judged = [*one.evaluate(0, obs, mask, actions, state), one.values(0, obs, state)]
    return [drawn.actions, best.actions, *judged, *([] if state is None else [drawn.state])]


@every_spec
def test_torch_and_onnx_agree_on_everything(spec: Any) -> None:
    mine, reference = with_onnx(spec, 2), with_torch(spec, 2)
    obs, mask, noise = random_rows(spec, 60)
    state = random_state(spec, 60)
    for allowed in (mask, None):
        actions = mine.decide(obs, allowed, noise, 0, state).actions
        pairs = (answers(one, obs, allowed, noise, actions, state) for one in (mine, reference))
        for ours, theirs in zip(*pairs, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        check_against(mine, reference, np.random.default_rng(0), allowed is not None, dtype=obs.dtype)
    assert mine.weight_names == reference.weight_names == tuple(sorted(spec.weight_shapes()))


@every_spec
def test_a_rows_answer_does_not_depend_on_the_batch_size_bit_for_bit(spec: Any) -> None:
    acting, most = with_onnx(spec), 67 if getattr(spec, "conv", None) else 257
    obs, mask, noise = random_rows(spec, most)
    state = random_state(spec, most)
    actions = acting.decide(obs, mask, noise, 0, state).actions
    expected = answers(acting, obs, mask, noise, actions, state)
    for size in (0, 1, 2, 3, 4, 5, 7, 8, 13, 31, 64, most - 1):
        for part in (slice(0, size), slice(most - size, most)):
            allowed, before = (None if one is None else one[part] for one in (mask, state))
            found = answers(acting, obs[part], allowed, noise[part], actions[part], before)
            for ours, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours, wanted[part])


@every_spec
def test_many_policies_in_one_batch_answer_as_each_alone(spec: Any) -> None:
    # What torch computes is rounded in its own way in each batch.
    for make, rtol in ((with_onnx, 0.0), (with_torch, 1e-4)):
        acting: Any = make(spec, policies=3)
        # Few rows are computed by all policies, many policy by policy.
        for count in (0, 1, 2, 50) if getattr(spec, "conv", None) else (0, 1, 2, 50, 1000):
            obs, mask, noise = random_rows(spec, count)
            which, state = np.random.default_rng(count).integers(0, 3, count), random_state(spec, count)
            for draws in (noise, None):
                found = acting.decide(obs, mask, draws, which, state)
                for policy in range(3):
                    mine, alone = which == policy, acting.decide(obs, mask, draws, policy, state)
                    for together, own in zip(found[:3], alone[:3], strict=True):
                        if together is not None and own is not None:
                            np.testing.assert_allclose(together[mine], own[mine], rtol=rtol, atol=rtol)


@every_spec
def test_every_graph_is_valid_onnx(spec: Any) -> None:
    graphs = spec.graphs(lively_weights(spec))
    kinds: Any = ("act", "greedy", "evaluate", "values")
    for kind in kinds:
        for stacked in {False, graphs.stacks and kind in ("act", "greedy")}:
            model = onnx.load_from_string(
                graphs.build(kind, stacked, spec.head.mask_width > 0 and kind != "values")
            )
            onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize(("name", "change", "what"), [
    ("policy.out.bias", 0.01, "distribution inputs of policy 1"), ("value.1.weight", 0.01, "values of policy 1"),
    ("policy.log_std", 0.01, "policy 1"), ("value.out.bias", np.nan, "values of policy 1"),
])  # fmt: skip
def test_the_check_names_what_differs_and_for_which_policy(name: str, change: float, what: str) -> None:
    mine, reference = (make(StockSpec(6, NUMBERS), policies=2) for make in (with_onnx, with_torch))
    changed = mine.get_weights(1)
    changed[name] += change
    mine.set_weights(1, changed)
    with pytest.raises(ConfigError, match=what):
        check_against(mine, reference, np.random.default_rng(0))
