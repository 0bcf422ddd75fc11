"""Recorded episodes become Minari data sets and back."""

from __future__ import annotations

import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from menv import ConfigError
from menv.algorithms import DQN
from menv.base_env import ExternalSteps
from menv.offline import (
    RecordedEpisode,
    RecordedTrajectory,
    read_episodes,
    record,
    write_episodes,
    write_minari,
)


def test_a_minari_data_set_is_written_for_each_agent_and_read_as_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    path = tmp_path / "some.parquet"
    record(lambda obs: 0, "CartPole-v1", path, episodes=3)
    (name,) = write_minari(path, "poles/some")
    assert name == "poles/some-agent0-v0"
    for wrong in ("poles/some", "poles/so me"):
        with pytest.raises(ConfigError, match="write_minari"):
            write_minari(path, wrong)
    ours = [one.trajectories[0].steps for one in read_episodes(path)]
    with DQN(env="CartPole-v1", config={"input": f"minari:{name}", "seed": 0}) as algo:
        batch = algo.sample()["default_policy"]
    rows = {tuple(row) for row in batch["obs"].tolist()}
    assert rows <= {tuple(row) for steps in ours for row in steps.obs.tolist()}
    shutil.rmtree(tmp_path / "sets")
    with pytest.raises(ConfigError, match="minari download poles/some"):
        DQN(env="CartPole-v1", config={"input": f"minari:{name}"})


def test_a_minari_data_set_recovers_the_environment_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    path, again = tmp_path / "ice.parquet", tmp_path / "again.parquet"
    settings = {"is_slippery": False, "map_name": "8x8"}
    record(lambda obs: 1, "FrozenLake-v1", path, episodes=2, env_config=settings)
    (name,) = write_minari(path, "lakes/ice")
    env = minari.load_dataset(name).recover_environment()
    assert env.spec.id == "FrozenLake-v1"
    assert env.spec.kwargs == settings
    # The spec passes through a recording of the data set, too.
    write_episodes(again, read_episodes(f"minari:{name}"))
    (name,) = write_minari(again, "lakes/again")
    assert minari.load_dataset(name).recover_environment().spec.kwargs == settings


def test_trajectories_without_a_last_observation_are_left_out_of_minari_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    space, path = gym.spaces.Discrete(2), tmp_path / "some.parquet"

    def trajectory(agent: str, last: int | None) -> RecordedTrajectory:
        steps = ExternalSteps([0, last], [1], np.ones(1), True, env_t=np.arange(2))
        return RecordedTrajectory(agent, steps, space, space)

    write_episodes(path, [RecordedEpisode([trajectory("a", 1), trajectory("b", None)])])
    with pytest.warns(UserWarning, match=r"\{'b': 1\} trajectories without .* left out"):
        assert write_minari(path, "games/some") == ["games/some-a-v0"]
    write_episodes(path, [RecordedEpisode([trajectory("b", None)])])
    with pytest.raises(ConfigError, match="'b'"):
        write_minari(path, "games/none")
