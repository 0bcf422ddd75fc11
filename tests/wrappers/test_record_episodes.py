"""Episodes are written as they were rendered, to the last state, wherever they are played, and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from menv import ConfigError, ContractError, NotWrittenError, VectorEnv, check_env
from menv.algorithms import PPO
from menv.envs import TicTacToe
from menv.wrappers import RecordEpisodes
from tests.checkpoints.test_full_disk import no_file_larger_than
from tests.worlds import Alone, Several, like

SPACE, CHOICE = gym.spaces.Box(0.0, 1.0, (1,), np.float32), gym.spaces.Discrete(2)
SHOWN = np.zeros(1, np.float32)


class Bar(Several):
    """A bar that grows with each of four steps; `shows` is what it renders instead."""

    observation_space, length, task, closed = SPACE, 4, 7, False

    def __init__(self, shows: Any = None) -> None:
        super().__init__()
        self.shows = shows

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a", "b"]
        return super().reset(seed=seed)

    def see(self, agent: Any) -> Any:
        return SHOWN

    def pay(self, actions: Any) -> Any:
        return {"a": 1.0}

    def render(self) -> Any:
        return bar(self.at) if self.shows is None else self.shows(self)

    def close(self) -> None:
        self.closed = True


# The same for one agent, as gymnasium has it.
SoloBar = like(
    Alone, observation_space=SPACE, length=4, see=lambda self: SHOWN, render=lambda self: bar(self.at)
)


def bar(length: int) -> npt.NDArray[np.uint8]:
    """Return a picture of a bar."""
    picture = np.zeros((8, 40, 3), np.uint8)
    picture[:, : 8 * length] = (200, 60, 50)
    return picture


def pictures(path: Path) -> list[npt.NDArray[np.uint8]]:
    """Return the pictures of a file."""
    found = []
    with Image.open(path) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            found.append(np.array(image.convert("RGB")))
    return found


def seconds(path: Path) -> float:
    """Return how long a file is seen; pictures that are the same one after the other are one that is seen longer."""
    with Image.open(path) as image:
        times = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            times.append(image.info["duration"])
    return float(sum(times)) / 1000


def names(folder: Path) -> list[str]:
    """Return what lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def played(env: Any, episodes: int, action: Any) -> None:
    """Play whole episodes."""
    for _ in range(episodes):
        env.reset()
        over = False
        while not over:
            ended, cut = env.step(action)[2:4]
            over = ended["__all__"] or cut["__all__"] if isinstance(ended, dict) else ended or cut


@pytest.mark.parametrize("make", [Bar, SoloBar])
def test_every_state_of_an_episode_is_in_the_file_the_last_one_too(tmp_path: Path, make: Any) -> None:
    env = RecordEpisodes(make(), tmp_path / "films")
    played(env, 1, {"a": 0, "b": 0} if make is Bar else 0)
    (name,) = names(tmp_path / "films")
    assert name == "episode-000000.gif"
    found = pictures(tmp_path / "films" / name)
    assert len(found) == 5
    for length, picture in enumerate(found):
        np.testing.assert_array_equal(picture, bar(length))


def test_each_nth_episode_is_recorded(tmp_path: Path) -> None:
    rendered = []

    def shows(own: Bar) -> Any:
        rendered.append(4 - own.at)
        return bar(own.at)

    env = RecordEpisodes(Bar(shows), tmp_path, every=3)
    played(env, 8, {"a": 0, "b": 0})
    assert names(tmp_path) == ["episode-000000.gif", "episode-000003.gif", "episode-000006.gif"]
    # Nothing is rendered for the others.
    assert len(rendered) == 15


def test_an_interrupted_episode_is_written_up_to_its_last_step(tmp_path: Path) -> None:
    core = Bar()
    env = RecordEpisodes(core, tmp_path)
    env.reset()
    env.step({"a": 0, "b": 0})
    env.reset()
    env.step({"a": 0, "b": 0})
    env.step({"a": 0, "b": 0})
    # Nobody moves in the one that is next.
    env.reset()
    env.close()
    assert core.closed
    assert [len(pictures(tmp_path / name)) for name in names(tmp_path)] == [2, 3]


def test_the_environment_is_what_it_was(tmp_path: Path) -> None:
    core = TicTacToe({"render_mode": "rgb_array"})
    env: Any = RecordEpisodes(core, tmp_path)
    assert env.possible_agents == core.possible_agents
    env.reset(seed=3)
    assert env.agents == core.agents
    assert env.num_agents == core.num_agents
    agent = core.possible_agents[0]
    assert env.get_observation_space(agent) == core.get_observation_space(agent)
    assert env.metadata is core.metadata
    classic = Bar()
    classic.possible_agents, classic._agent_ids = [], {"a", "b"}
    other: Any = RecordEpisodes(classic, tmp_path)
    assert other.task == 7
    assert set(other.observation_space_sample()) == {"a", "b"}
    with pytest.raises(AttributeError, match="nonsense"):
        _ = env.nonsense
    grouped = other.with_agent_groups({"team": ["a", "b"]})
    assert grouped.possible_agents == ["team"]
    assert check_env(lambda context: RecordEpisodes(TicTacToe(), tmp_path / "checked")) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_recording_changes_nothing_of_a_run(tmp_path: Path, workers: int) -> None:
    def seen(context: Any) -> Any:
        return RecordEpisodes(TicTacToe({"render_mode": "rgb_array"}), tmp_path, every=5)

    sizes = {"num_envs_per_worker": 2, "train_batch_size": 96, "sgd_minibatch_size": 96, "num_sgd_iter": 1}
    config = {**sizes, "num_workers": workers, "engine": "process", "seed": 3, "rollout_fragment_length": 24}
    with PPO(env=seen, config=config) as recorded, PPO(env="tictactoe", config=config) as plain:
        assert recorded.train()["digest"] == plain.train()["digest"]
    films = names(tmp_path)
    assert len(films) >= 2 * max(workers, 1)
    assert all(len(pictures(tmp_path / name)) > 1 for name in films)


def test_evaluations_can_be_recorded_alone(tmp_path: Path) -> None:
    def pole(context: Any) -> Any:
        env = gym.make("CartPole-v1", render_mode="rgb_array")
        return RecordEpisodes(env, tmp_path) if context["film"] else env

    evaluation = {"evaluation_duration": 2, "evaluation_config": {"env_config": {"film": True}}}
    sizes = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}
    with PPO(env=pole, config={**sizes, **evaluation, "env_config": {"film": False}}) as algo:
        algo.train()
        assert names(tmp_path) == []
        lengths = algo.evaluate()["evaluation"]["hist_stats"]["episode_lengths"]
    first = tmp_path / "episode-000000.gif"
    assert pictures(first)[0].shape == (400, 600, 3)
    # 50 pictures a second, as the environment says.
    assert seconds(first) == pytest.approx((lengths[0] + 1) / 50)


@pytest.mark.parametrize(("first", "later"), [
    (None, None), (np.zeros((8, 8, 3)), None), (bar(0), np.zeros((8, 9, 3), np.uint8)), (bar(0), "a text"),
    ("a text", bar(0)),
])  # fmt: skip
def test_what_cannot_be_recorded_is_refused_at_once(tmp_path: Path, first: Any, later: Any) -> None:
    env = RecordEpisodes(Bar(lambda own: first if not own.at else later), tmp_path)
    with pytest.raises(ContractError, match="render"):
        played(env, 1, {"a": 0, "b": 0})


def test_a_file_instead_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "films").write_text("mine", "utf-8")
    env = RecordEpisodes(Bar(), tmp_path / "films")
    with pytest.raises(NotWrittenError, match="films"):
        played(env, 1, {"a": 0, "b": 0})
    assert (tmp_path / "films").read_text("utf-8") == "mine"


def test_a_disk_without_room_leaves_nothing_half_written(tmp_path: Path) -> None:
    env = RecordEpisodes(Bar(), tmp_path)
    with no_file_larger_than(100), pytest.raises(NotWrittenError, match=f"{tmp_path} .*File too large"):
        played(env, 1, {"a": 0, "b": 0})
    assert names(tmp_path) == []
    played(env, 1, {"a": 0, "b": 0})
    assert names(tmp_path) == ["episode-000001.gif"]


class Worlds(VectorEnv):
    """Several at once."""


@pytest.mark.parametrize("arguments", [{"every": 0}, {"every": True}, {"most_pictures": 1.5}])
def test_invalid_counts_are_refused(tmp_path: Path, arguments: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        RecordEpisodes(Bar(), tmp_path, **arguments)


def test_other_kinds_of_environments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gymnasium\.Env"):
        RecordEpisodes(Worlds(SPACE, CHOICE, 2), tmp_path)
