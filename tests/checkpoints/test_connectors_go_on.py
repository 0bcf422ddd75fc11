"""The statistics of connectors are part of a checkpoint; what they remember of running episodes is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import MultiAgentEnv, PolicySpec, register_env
from menv.algorithms import PPO
from menv.connectors import (
    register_lambda_agent_connector,
)
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch
from tests.checkpoints.runs import SMALL, resumed_twice, trained, weights_of

ENVS = SMALL["num_envs_per_worker"]

UNCHANGED: Any = register_lambda_agent_connector("Unchanged", lambda data: data)


def test_running_means_go_on_to_the_last_bit(tmp_path: Path) -> None:
    config: dict[str, Any] = {**SMALL, "observation_filter": "MeanStdFilter"}
    with PPO(env="CartPole-v1", config=config) as algo:
        trained(algo, 2)
        path = algo.save(tmp_path)
        before = algo.get_policy().agent_connectors.to_state()  # type: ignore[attr-defined]
    with PPO.from_checkpoint(path) as algo:
        assert algo.get_policy().agent_connectors.to_state() == before  # type: ignore[attr-defined]
    resumed_twice(PPO, path, 2)


OTHERS: list[dict[str, Any]] = [
    {"observation_filter": "NoFilter"},
    {"agent_connectors": ["Unchanged"]},
    {"clip_actions": True},
    {"multiagent": {"policies": {"default_policy": PolicySpec(config={"observation_filter": "NoFilter"})}}},
]


@pytest.mark.parametrize("other", OTHERS)
def test_other_settings_of_connectors_that_go_on_are_refused(other: dict[str, Any], tmp_path: Path) -> None:
    config: dict[str, Any] = {**SMALL, "observation_filter": "MeanStdFilter"}
    with PPO(env="CartPole-v1", config=config) as algo:
        path = algo.save(tmp_path)
    message = (
        r"policy 'default_policy' has .*, expected .*, because its connectors continue from the checkpoint"
    )
    with pytest.raises(ConfigError, match=f"^from_checkpoint: {message}"):
        PPO.from_checkpoint(path, other)
    with PPO(env="CartPole-v1", config={**config, **other}) as algo:
        before = weights_of(algo)
        with pytest.raises(ConfigError, match=f"^restore: {message}"):
            algo.restore(path)
        assert weights_of(algo) == before


def test_settings_of_connectors_may_be_given_again_and_make_those_that_have_no_state(tmp_path: Path) -> None:
    pair = ("FrameStackAgentConnector", {"num_frames": 3})
    config: dict[str, Any] = {**SMALL, "observation_filter": "MeanStdFilter", "agent_connectors": [pair]}
    with PPO(env="CartPole-v1", config=config) as algo:
        algo.save(tmp_path / "kept")
    PPO.from_checkpoint(tmp_path / "kept", config).stop()
    with PPO(env="Pendulum-v1", config=SMALL) as algo:
        algo.save(tmp_path / "made")
    with PPO.from_checkpoint(tmp_path / "made", {"clip_actions": True}) as algo:
        assert "ClipActionsConnector" in str(algo.get_policy().action_connectors)  # type: ignore[attr-defined]


def test_running_means_count_no_row_twice_where_a_run_goes_on_with_workers(tmp_path: Path) -> None:
    config: dict[str, Any] = {**SMALL, "observation_filter": "MeanStdFilter", "engine": "process"}

    def means(algo: Any) -> Any:
        return (
            algo.get_policy()
            .agent_connectors["MeanStdObservationFilterAgentConnector"][0]
            .statistics.to_state()
        )

    ends = []
    for workers in (0, 1):
        folder = tmp_path / str(workers)
        with PPO(env="CartPole-v1", config={**config, "num_workers": workers}) as algo:
            trained(algo, 2)
            algo.save(folder)
            before = means(algo)
        # Episodes begin anew in either, because the number of workers is another one.
        with PPO.from_checkpoint(folder, {"num_workers": 1 - workers}) as algo:
            assert means(algo) == before
            digest = trained(algo, 2)["digest"]
            ends.append((before, means(algo), digest, weights_of(algo)))
    assert ends[0] == ends[1]
    assert ends[0][1]["count"] - ends[0][0]["count"] == 2 * SMALL["train_batch_size"] + ENVS


class Fallen(MultiAgentEnv):
    """Two agents, each of which dies now and then without a last observation and is back a step later."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: Any = None) -> None:
        self.possible_agents = ["a", "b"]
        self.now = 0

    def _seen(self, agents: Sequence[str]) -> dict[str, Any]:
        return {agent: self.np_random.uniform(-1, 1, 2).astype(np.float32) for agent in agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.now = 0
        return self._seen(self.possible_agents), {}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        self.now += 1
        gone = [agent for place, agent in enumerate(self.possible_agents) if (self.now + place) % 5 == 4]
        obs = self._seen([agent for agent in self.possible_agents if agent not in gone])
        rewards = {agent: float(action) for agent, action in action_dict.items()}
        flags = dict.fromkeys(gone, True) | {"__all__": False}
        return obs, rewards, flags, {"__all__": self.now == 13}, {}


# It pays for what was shown, also at an end without an observation.
PAYS_FOR_WHAT_IS_SHOWN: Any = register_lambda_agent_connector(
    "PaysForWhatIsShown",
    lambda data: {
        **data,
        SampleBatch.REWARDS: data[SampleBatch.REWARDS] + float(data[SampleBatch.NEXT_OBS][0]),
    },
)


def test_ends_without_an_observation_are_paid_as_ever_where_connectors_were_changed_in_between() -> None:
    register_env("fallen", Fallen)
    config = {**SMALL, "agent_connectors": ["PaysForWhatIsShown"]}
    with PPO(env="fallen", config=config) as algo, PPO(env="fallen", config=config) as other:
        for _ in range(4):
            trained(algo, 1)
            trained(other, 1)
            algo.get_policy().agent_connectors.append(UNCHANGED(None))  # type: ignore[attr-defined]
        assert weights_of(algo) == weights_of(other)
