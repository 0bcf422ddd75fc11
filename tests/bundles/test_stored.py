"""Policies that were written once, by the first version of the format, load and act for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from menv import Policy
from tests.bundles.cases import FOUR, LIMITED, MASKED, observations

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(("name", "action_space", "states"), [
    ("format_1_masked", FOUR, []),
    ("format_1_lstm", LIMITED, [(5,)] * 4),
])  # fmt: skip
def test_a_policy_of_format_1_loads_and_acts(
    name: str, action_space: object, states: list[tuple[int]]
) -> None:
    policy = Policy.from_checkpoint(DATA / name)
    assert isinstance(policy, Policy)
    assert policy.action_space == action_space
    assert (policy.observation_space == MASKED) is (name == "format_1_masked")
    state = policy.get_initial_state()
    assert [part.shape for part in state] == states
    chosen = set()
    for obs in observations(policy, 20):
        action, state = policy.act(obs, state=state)
        assert policy.action_space.contains(action)
        chosen.add(str(action))
    assert len(chosen) > 1
