"""One grid of networks: torch and ONNX Runtime agree, and no row's answer depends on the rows beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from menv.algorithms.networks.stock_spec import ConvStack, StockSpec, default_filters, read_filters
from menv.algorithms.networks.torch_backend import TorchBackend, check_against
from menv.errors import ConfigError
from menv.inference.action_heads import ActionHead
from menv.inference.onnx_backend import OnnxBackend
from tests.algorithms import groups_of_three as groups
from tests.inference.lively import lively_weights

CHOICES, NUMBERS = ActionHead("categorical", (5,)), ActionHead("gaussian", (3,))
SEVERAL, WORTH = ActionHead("multi_categorical", (3, 2, 4)), ActionHead("q_values", (4,))
HEADS = [
    CHOICES, NUMBERS, SEVERAL, WORTH, ActionHead("categorical", (2,)), ActionHead("gaussian", (1,)),
    ActionHead("q_values", (2,)), ActionHead("multi_categorical", (2, 2)), ActionHead("multi_categorical", (2,)),
    ActionHead("mixed", (0, 3, 0, 2)), ActionHead("mixed", (2, 0)),
]  # fmt: skip
# Even and odd sizes, kernels that need more zeros on one side, a wide last layer, one with a single channel.
IMAGES: list[tuple[tuple[int, int, int], Any]] = [
    ((24, 24, 1), None),
    ((46, 12, 3), [[8, [4, 3], [2, 1]], [5, 3, 2], [7, [3, 2], 1]]),
    ((12, 13, 4), [[4, 2, 2], [1, 3, 1], [3, 3, 2]]),
]


def of_images(place: int, head: ActionHead, activation: Any = "tanh", pixels: bool = True) -> StockSpec:
    shape, filters = IMAGES[place]
    stack = ConvStack(shape, read_filters(filters) if filters else default_filters(shape), activation)
    return StockSpec(int(np.prod(shape)), head, (33,), activation, conv=stack, pixels=pixels)


FLAT = {f"{head.kind} {head.sizes}": StockSpec(6, head, (32, 24), dueling=head == WORTH) for head in HEADS}
SPECS: dict[str, Any] = {
    **FLAT,
    **{f"{name}, {head.kind}": StockSpec(6, head, (37, 21), name, vf_share_layers=head != WORTH)
       for name in ("relu", "silu", "elu", "linear") for head in (CHOICES, WORTH)},
    **{f"images {place}, {head.kind}": of_images(place, head, pixels=place != 1)
       for place, head in ((0, CHOICES), (1, NUMBERS), (2, SEVERAL), (0, WORTH))},
    **{f"images, {name}": of_images(2, CHOICES, name) for name in ("relu", "silu", "elu", "linear")},
    "group": groups.spec_of(),
    "group, dueling": groups.spec_of(5, dueling=True, hiddens=(37, 21)),
    "group, vdn": groups.spec_of(3, 1, mixer="vdn"),
    "group, no mixer": groups.spec_of(4, 5, mixer=None, activation="tanh", hiddens=()),
    "group, one choice": groups.spec_of(1),
}  # fmt: skip
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def backends(spec: Any, policies: int = 1) -> tuple[OnnxBackend, TorchBackend]:
    weights = [
        lively_weights(spec, seed, shaken_by=0.1 if getattr(spec, "conv", None) else 0.3)
        for seed in range(policies)
    ]
    return OnnxBackend(spec.graphs(weights[0]), spec.head, weights), TorchBackend(
        spec.torch_network, spec.head, weights
    )


def random_rows(spec: Any, count: int) -> tuple[Any, Any, Any]:
    """Return observations, masks that allow something, and draws."""
    rng, head = np.random.default_rng(count), spec.head
    obs: Any = rng.standard_normal((count, spec.obs_size), np.float32)
    if getattr(spec, "pixels", False):
        obs = rng.integers(0, 256, obs.shape, np.uint8)
    mask = None
    if head.mask_width:
        mask = rng.random((count, head.mask_width)) < 0.5
        mask[:, np.cumsum((0, *head.choices[:-1]))] = True
    return obs, mask, head.sample_noise(rng, count)


def answers(one: Any, obs: Any, mask: Any, noise: Any, actions: Any) -> list[Any]:
    """Return all that a back-end says: actions that are drawn, the best ones, judgements and values."""
    drawn, best = (one.decide(obs, mask, draws).actions for draws in (noise, None))
    return [drawn, best, *one.evaluate(0, obs, mask, actions), one.values(0, obs)]


@every_spec
def test_torch_and_onnx_agree_on_everything(spec: Any) -> None:
    mine, reference = backends(spec, 2)
    obs, mask, noise = random_rows(spec, 60)
    for allowed in (mask, None):
        actions = mine.decide(obs, allowed, noise).actions
        pairs = (answers(one, obs, allowed, noise, actions) for one in (mine, reference))
        for ours, theirs in zip(*pairs, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        check_against(mine, reference, np.random.default_rng(0), allowed is not None, dtype=obs.dtype)
    assert mine.weight_names == reference.weight_names == tuple(sorted(spec.weight_shapes()))


@every_spec
def test_a_rows_answer_does_not_depend_on_the_batch_size_to_the_last_bit(spec: Any) -> None:
    acting, _ = backends(spec)
    obs, mask, noise = random_rows(spec, 67)
    actions = acting.decide(obs, mask, noise).actions
    expected = answers(acting, obs, mask, noise, actions)
    for size in (0, 1, 2, 3, 4, 5, 7, 8, 13, 31, 64, 66):
        for part in (slice(0, size), slice(67 - size, 67)):
            allowed = None if mask is None else mask[part]
            found = answers(acting, obs[part], allowed, noise[part], actions[part])
            for ours, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours, wanted[part])


@every_spec
def test_many_policies_in_one_batch_answer_as_each_alone(spec: Any) -> None:
    # What torch computes is rounded in its own way in each batch.
    for acting, rtol in zip(backends(spec, policies=3), (0.0, 1e-4), strict=True):
        for count in (0, 1, 2, 50):
            obs, mask, noise = random_rows(spec, count)
            which = np.random.default_rng(count).integers(0, 3, count)
            for draws in (noise, None):
                found = acting.decide(obs, mask, draws, which).actions
                for policy in range(3):
                    alone = acting.decide(obs, mask, draws, policy).actions
                    np.testing.assert_allclose(found[which == policy], alone[which == policy], rtol=rtol)


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
    ("policy.log_std", 0.01, "policy 1"), ("value.out.bias", np.nan, "values of policy 1 differ by nan"),
])  # fmt: skip
def test_the_check_names_what_differs_and_for_which_policy(name: str, change: float, what: str) -> None:
    mine, reference = backends(StockSpec(6, NUMBERS), policies=2)
    changed = mine.get_weights(1)
    changed[name] += change
    mine.set_weights(1, changed)
    with pytest.raises(ConfigError, match=what):
        check_against(mine, reference, np.random.default_rng(0))
