"""Statistics of connectors are part of a checkpoint: a run with a filter goes on exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from menv.algorithms import PPO
from tests.checkpoints.runs import SMALL, trained


def test_running_means_go_on_to_the_last_bit(tmp_path: Path) -> None:
    config: dict[str, Any] = {**SMALL, "observation_filter": "MeanStdFilter"}
    with PPO(env="CartPole-v1", config=config) as algo:
        trained(algo, 2)
        path = algo.save(tmp_path)
        trained(algo, 2)
        wanted, before = algo.get_weights(), algo.get_policy().agent_connectors.to_state()  # type: ignore[attr-defined]
    with PPO.from_checkpoint(path) as algo:
        assert trained(algo, 2)["num_episodes_not_resumed"] == 0
        assert algo.get_policy().agent_connectors.to_state() == before  # type: ignore[attr-defined]
        found = algo.get_weights()
    for name, value in wanted["default_policy"].items():
        np.testing.assert_array_equal(found["default_policy"][name], value, err_msg=name)
