"""What connectors know is part of a checkpoint: their statistics, and what they remember of lives that go on."""

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
    AgentConnector,
    FrameStackAgentConnector,
    register_connector,
    register_lambda_agent_connector,
)
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch
from tests.checkpoints.runs import SMALL, trained, weights_of

ENVS = SMALL["num_envs_per_worker"]
FRAMES: dict[str, Any] = {**SMALL, "agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})]}

UNCHANGED: Any = register_lambda_agent_connector("Unchanged", lambda data: data)


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


def test_a_running_algorithm_goes_back_to_the_frames_of_then(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=FRAMES) as algo:
        trained(algo, 2)
        folder = algo.save(tmp_path)
        trained(algo, 2)
        wanted = weights_of(algo)
        algo.restore(folder)
        assert trained(algo, 2)["num_episodes_not_resumed"] == 0
        assert weights_of(algo) == wanted


@pytest.mark.slow
def test_workers_go_on_with_the_frames_of_then_and_through_pipelines_that_are_edited(tmp_path: Path) -> None:
    def edit(algo: PPO) -> None:
        pipeline: Any = algo.get_policy().agent_connectors  # type: ignore[attr-defined]
        pipeline.append(UNCHANGED(None))

    def edited(algo: PPO) -> Any:
        trained(algo, 1)
        edit(algo)
        return trained(algo, 1)["digest"]

    spread: dict[str, Any] = {**FRAMES, "num_workers": 1, "engine": "process"}
    with PPO(env="CartPole-v1", config=spread) as algo, PPO(env="CartPole-v1", config=FRAMES) as here:
        trained(algo, 2)
        folder = algo.save(tmp_path)
        wanted = edited(algo)
        trained(here, 2)
        assert edited(here) == wanted
    with PPO.from_checkpoint(folder) as again:
        assert edited(again) == wanted


def test_two_checkpoints_in_a_row_hold_the_same_frames(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=FRAMES) as algo:
        trained(algo, 1)
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path) as second:
            second.save(tmp_path / "second")
        with PPO.from_checkpoint(tmp_path / "second") as third:
            trained(algo, 2)
            assert trained(third, 2)["num_episodes_not_resumed"] == 0
            assert weights_of(third) == weights_of(algo)


class Earlier(AgentConnector):
    """Shows the sum of a life's observations so far; it says whose."""

    keeps_lives = True
    sums: dict[Any, Any]

    def __init__(self, ctx: Any = None) -> None:
        super().__init__(ctx)
        self.sums = {}

    def transform(self, ac_data: Any) -> Any:
        data, key = ac_data.data, (ac_data.env_id, ac_data.agent_id)
        self.sums[key] = self.sums.get(key, 0) + data[SampleBatch.NEXT_OBS]
        data[SampleBatch.NEXT_OBS] = self.sums[key]
        return ac_data

    def reset(self, env_id: Any) -> None:
        for key in [key for key in self.sums if key[0] == env_id]:
            del self.sums[key]

    def to_state(self) -> Any:
        return type(self).__name__, None

    @classmethod
    def from_state(cls, ctx: Any, params: Any) -> Any:
        return cls(ctx)


class Silent(Earlier):
    """The same; only that it is told of ends says that it remembers something."""

    keeps_lives = False


class Slower(FrameStackAgentConnector):
    """Stacks agent by agent."""

    def transform(self, ac_data: Any) -> Any:
        return super().transform(ac_data)

    def to_state(self) -> Any:
        return type(self).__name__, None


for connector in (Earlier, Silent, Slower):
    register_connector(connector.__name__, connector)


@pytest.mark.parametrize("name", ["Earlier", "Silent", "Slower"])
def test_episodes_end_where_connectors_of_ones_own_remember_something(name: str, tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config={**SMALL, "agent_connectors": [name]}) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path) as again:
            assert trained(again, 1)["num_episodes_not_resumed"] == ENVS


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


def test_ends_without_an_observation_are_paid_as_ever_where_the_life_was_shown_its_last_one_before_a_checkpoint(
    tmp_path: Path,
) -> None:
    register_env("fallen", Fallen)
    config = {**SMALL, "agent_connectors": ["PaysForWhatIsShown"]}
    with PPO(env="fallen", config=config) as algo:
        trained(algo, 1)
        for _ in range(3):
            algo.save(tmp_path)
            with PPO.from_checkpoint(tmp_path) as again:
                assert trained(again, 1)["num_episodes_not_resumed"] == 0
                trained(algo, 1)
                assert weights_of(again) == weights_of(algo)


def test_ends_without_an_observation_are_paid_as_ever_where_connectors_were_changed_in_between() -> None:
    register_env("fallen", Fallen)
    config = {**SMALL, "agent_connectors": ["PaysForWhatIsShown"]}
    with PPO(env="fallen", config=config) as algo, PPO(env="fallen", config=config) as other:
        for _ in range(4):
            trained(algo, 1)
            trained(other, 1)
            algo.get_policy().agent_connectors.append(UNCHANGED(None))  # type: ignore[attr-defined]
        assert weights_of(algo) == weights_of(other)
