"""Acting for a group: each member by its own Q-values, in ONNX Runtime as in torch, whatever the batch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms.networks.torch_backend import TorchBackend
from menv.algorithms.qmix.network import GroupSpec, group_layout
from menv.errors import ConfigError
from menv.inference.backend import ActingBackend
from menv.inference.onnx_backend import OnnxBackend
from tests.algorithms.groups_of_three import MEMBERS, SEEN, STATE, random_rows, spec_of
from tests.inference.lively import lively_weights

LARGEST = float(1.0 - 2.0**-23)
KINDS = pytest.mark.parametrize("kind", ["onnx", "torch"])


def acting_of(spec: GroupSpec, kind: str, *weights: Any) -> ActingBackend:
    if kind == "torch":
        return TorchBackend(spec.torch_network, spec.head, weights)
    return OnnxBackend(spec.graphs(weights[0]), spec.head, weights)


def constant_q(q_values: list[float], epsilon: float, kind: str, members: int = 2) -> ActingBackend:
    """Every member's Q-values are these, whatever is seen."""
    spec = spec_of(len(q_values), members, hiddens=())
    weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    weights["policy.out.bias"][:] = q_values
    weights["epsilon"][:] = epsilon
    return acting_of(spec, kind, weights)


def rows(count: int, members: int = 2) -> Any:
    return np.zeros((count, (SEEN + STATE) * members), np.float32)


@KINDS
def test_each_member_explores_with_separate_draws(kind: str) -> None:
    acting = constant_q([0.0, 3.0, 1.0, 2.0], 0.25, kind)
    noise = np.array([[0.0, 0.0, 0.25, 0.9], [0.9, 0.0, 0.2, 0.6], [0.1, LARGEST, 0.24, 0.3]], np.float32)
    assert acting.decide(rows(3), None, noise).actions.tolist() == [[0, 1], [1, 2], [3, 1]]
    assert acting.decide(rows(3), None, None).actions.tolist() == [[1, 1]] * 3


@pytest.mark.each_value
@KINDS
@pytest.mark.parametrize("draw", [0.0, 0.49, 0.5, LARGEST])
@pytest.mark.parametrize("epsilon", [0.0, 0.6, 1.0])
def test_a_member_never_takes_a_masked_action(kind: str, draw: float, epsilon: float) -> None:
    spec = spec_of(5)
    acting = acting_of(spec, kind, {**lively_weights(spec), "epsilon": np.array([epsilon], np.float32)})
    obs, mask, _ = random_rows(spec, 200)
    assert not mask.all()
    noise = np.full((200, 2 * MEMBERS), draw, np.float32)
    for actions in (acting.decide(obs, mask, noise).actions, acting.decide(obs, mask, None).actions):
        assert np.take_along_axis(mask.reshape(200, MEMBERS, 5), actions[..., None], 2).all()


@KINDS
def test_the_chance_of_a_row_is_the_product_of_its_members_chances(kind: str) -> None:
    acting = constant_q([1.0, 2.0, 3.0], 0.3, kind)
    inputs, logp = acting.evaluate(0, rows(3), None, np.array([[0, 1], [2, 1], [2, 2]]))
    np.testing.assert_array_equal(inputs, np.tile(np.array([1, 2, 3, 1, 2, 3], np.float32), (3, 1)))
    np.testing.assert_allclose(np.exp(logp), [0.01, 0.08, 0.64], rtol=1e-5)
    mask = np.tile([True, True, False, True, True, True], (2, 1))
    inputs, logp = acting.evaluate(0, rows(2), mask, np.array([[1, 2], [2, 2]]))
    np.testing.assert_array_equal(inputs[0], np.array([1, 2, -1e9, 1, 2, 3], np.float32))
    np.testing.assert_allclose(np.exp(logp), [0.85 * 0.8, 0.0], rtol=1e-5, atol=1e-9)
    assert np.isfinite(logp).all()


@KINDS
def test_members_share_one_network_that_sees_their_code_and_own_observation_only(kind: str) -> None:
    spec = spec_of()
    acting = acting_of(spec, kind, lively_weights(spec))
    one, other = (np.zeros((1, spec.obs_size), np.float32) for _ in range(2))
    # The second member sees something else; then the state of the whole is another.
    other[0, SEEN + STATE : SEEN + STATE + SEEN] = 5.0
    no_action = np.zeros((1, MEMBERS), np.int64)
    before, after = (acting.evaluate(0, obs, None, no_action).dist_inputs[0] for obs in (one, other))
    assert np.array_equal(before[:3], after[:3])
    assert np.array_equal(before[6:], after[6:])
    assert not np.allclose(before[3:6], after[3:6])
    assert not np.allclose(before[:3], before[3:6])
    for place in range(MEMBERS):
        start = (SEEN + STATE) * place + SEEN
        other[0, start : start + STATE] = 7.0
    np.testing.assert_array_equal(acting.evaluate(0, other, None, no_action).dist_inputs[0], after)


def test_the_same_seed_gives_the_same_first_weights_in_the_order_of_their_shapes() -> None:
    spec = spec_of()
    one, same, other = (spec.first_weights(seed) for seed in (3, 3, 4))
    assert {name: value.shape for name, value in one.items()} == spec.weight_shapes()
    assert list(one) == list(spec.weight_shapes())
    for name, value in one.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, same[name])
        mixing = name.startswith("mixer.") and name.endswith(".bias")
        drawn = name != "epsilon" and not mixing
        assert drawn != np.array_equal(value, other[name])


# Whose numbers are where in a group's flat observation, and which spaces are those of no group.


BOX = gym.spaces.Box(0.0, 1.0, (2,))
TWO = gym.spaces.Discrete(2)


def both(first: Any, second: Any = None) -> gym.spaces.Tuple[Any]:
    return gym.spaces.Tuple([first, first if second is None else second])


def test_without_a_state_everything_that_the_members_see_is_the_state() -> None:
    layout = group_layout(both(BOX), both(TWO))
    assert layout.members == ((0, 1), (2, 3))
    assert layout.state == (0, 1, 2, 3)
    assert layout.choices == 2


def test_no_member_observes_the_state_which_comes_from_the_first_one() -> None:
    parts = {"state": gym.spaces.Discrete(3), "obs": BOX, "action_mask": gym.spaces.MultiBinary(2)}
    layout = group_layout(both(gym.spaces.Dict(parts)), both(TWO))
    # Entries of a Dict come in the order of their names; masks are apart.
    assert layout.members == ((0, 1), (5, 6))
    assert layout.state == (2, 3, 4)


def test_all_entries_but_the_state_are_seen_and_a_state_may_have_parts() -> None:
    state = gym.spaces.Dict({"far": BOX, "near": TWO})
    member = gym.spaces.Dict({"a": TWO, "state": state, "z": gym.spaces.Dict({"state": BOX})})
    layout = group_layout(both(member), both(TWO))
    assert layout.members == ((0, 1, 6, 7), (8, 9, 14, 15))
    assert layout.state == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (BOX, both(TWO), "with_agent_groups"),
        (both(BOX), TWO, "with_agent_groups"),
        (both(BOX), gym.spaces.MultiDiscrete([2, 2]), "with_agent_groups"),
        (gym.spaces.Tuple([BOX] * 3), gym.spaces.Tuple([TWO]), "3 members"),
        (both(BOX), both(TWO, gym.spaces.Discrete(3)), r"Discrete\(2\).*Discrete\(3\)"),
        (both(BOX), both(TWO, BOX), r"Discrete\(2\).*Box"),
        (both(BOX, gym.spaces.Box(0.0, 1.0, (3,))), both(TWO), r"\(2,\).*\(3,\)"),
        (both(BOX), both(BOX), "Box"),
        (both(BOX), both(gym.spaces.MultiBinary(2)), "MultiBinary"),
        (gym.spaces.Tuple([]), gym.spaces.Tuple([]), r"Tuple\(\)"),
    ],
)  # fmt: skip
def test_spaces_of_no_group_are_refused_in_one_line(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        group_layout(observation, action)
    assert str(caught.value).startswith("QMIX: ")
    assert "\n" not in str(caught.value)
