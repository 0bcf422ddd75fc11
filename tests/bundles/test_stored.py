"""Policies that were written once, by each version of the format, load and act for ever."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from menv import Policy, local_policy_inference
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


def test_a_policy_of_format_2_stacks_frames_as_it_did() -> None:
    policy = Policy.from_checkpoint(DATA / "format_2_stacked")
    assert isinstance(policy, Policy)
    told = json.loads((DATA / "format_2_stacked.json").read_text())
    for episode in told:
        for number, (seen, wanted, logp) in enumerate(episode):
            obs = np.array(seen, np.uint8)
            ((action, _, fetches),) = local_policy_inference(
                policy, 0, 0, obs, explore=False, terminated=number == len(episode) - 1
            )
            assert int(action) == wanted
            assert fetches["action_logp"] == pytest.approx(logp, rel=1e-4)
    assert len({step[1] for episode in told for step in episode}) > 1
