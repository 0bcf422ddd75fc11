"""Stacked frames in training: each life's own, and a network that is as wide as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.errors import ContractError
from menv.sample_batch import SampleBatch
from tests.algorithms_e2e.test_connectors import SMALL, Counts, Pair


def frames_of(batch: SampleBatch, key: str) -> list[list[int]]:
    return [[int(number) for number in row[::2]] for row in batch[key]]


@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_stacked_frames_are_those_of_the_life_in_rows_and_in_last_observations(algorithm: Any) -> None:
    stack = [("FrameStackAgentConnector", {"num_frames": 3})]
    with algorithm(env=Counts, config={**SMALL, "agent_connectors": stack}) as algo:
        for _ in range(2):
            batch = algo.sample()["default_policy"]
            for row, t in zip(frames_of(batch, "obs"), batch["t"].tolist(), strict=True):
                assert row == [max(t - 2, 0), max(t - 1, 0), t]
            for row, t in zip(frames_of(batch, "new_obs"), batch["t"].tolist(), strict=True):
                assert row == [max(t - 1, 0), t, t + 1]
        algo.train()
        algo.evaluate()


def test_an_agent_that_comes_back_begins_with_new_frames() -> None:
    stack = [("FrameStackAgentConnector", {"num_frames": 2})]
    with PPO(env=Pair, config={**SMALL, "agent_connectors": stack}) as algo:
        batch = algo.sample()["default_policy"]
        first = batch["obs"][batch["t"] == 0]
        assert (first[:, :2] == first[:, 2:]).all()
        assert set(first[:, 0].tolist()) == {0.0, 50.0}
        later = batch["t"] > 0
        assert (batch["obs"][later][:, :2] != batch["obs"][later][:, 2:]).all()


def test_acting_without_lives_is_refused_where_connectors_keep_some() -> None:
    settings = {**SMALL, "agent_connectors": ["FrameStackAgentConnector"]}
    with PPO(env=Counts, config=settings) as algo, pytest.raises(ContractError, match="names the agents"):
        algo.compute_single_action(np.zeros(2, np.float32))
