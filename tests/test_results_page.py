"""docs/reference/results.md names what is in a result, all of it and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning.page import PAGE, PICTURES, draw_curves, section
from benchmarks.learning.tables import groups, published
from menv.algorithms import PPO, QMIX, SAC, DQNConfig, PPOConfig, QMIXConfig, SACConfig
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import read_config
from menv.algorithms.training.results import EpisodeResult, TrainResult
from menv.cli.arguments import with_objects
from menv.envs import TicTacToe, TwoStepGame
from menv.serving import PolicyServerInput
from tests.house.sources import ROOT

PARTS = (ROOT / "docs" / "reference" / "results.md").read_text("utf-8").split("\n## ")


def named(part: str, column: str = "key") -> set[str]:
    """Return the keys in the first column of a part's table with that heading."""
    (text,) = [one for one in PARTS if one.startswith(part)]
    _, _, table = text.partition(f"| {column} |")
    rows = [line for line in table.split("\n\n")[0].splitlines() if line.startswith("| `")]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def counts() -> set[str]:
    """Return the keys that every training result has beside those about episodes."""
    return named("Counts and times") | {"info"}


def test_the_keys_of_a_result_are_those_of_the_page() -> None:
    with PPO(env=TicTacToe, config={"train_batch_size": 64}) as algo:
        result: dict[str, Any] = dict(algo.train())
        evaluated = algo.evaluate()["evaluation"]
    episodes = named("Episodes")
    assert result.keys() == episodes | counts() == TrainResult.__required_keys__
    assert result["sampler_results"].keys() == episodes - {"sampler_results"}
    both = {"num_env_steps_sampled_this_iter", "num_agent_steps_sampled_this_iter"}
    assert evaluated.keys() == episodes - {"sampler_perf"} | both == EpisodeResult.__required_keys__
    assert result["info"]["default_policy"].keys() == named("Learning", "of PPO")


def test_the_keys_of_qmix_and_sac_are_those_of_the_page() -> None:
    settings = {"num_steps_sampled_before_learning_starts": 8, "min_sample_timesteps_per_iteration": 64}
    with QMIX(env=TwoStepGame, config={"train_batch_size": 8, **settings}) as algo:
        common = named("Learning", "of DQN, SAC and QMIX")
        assert algo.train()["info"]["default_policy"].keys() == common | {"epsilon"}
    with SAC(env="Pendulum-v1", config={"train_batch_size": 64, **settings}) as algo:
        own = named("Learning", "of SAC alone")
        assert algo.train()["info"]["default_policy"].keys() == common | own


def test_the_keys_of_workers_and_external_environments_are_on_the_page() -> None:
    spread = {"num_workers": 1, "engine": "process", "overlap": True, "train_batch_size": 64}
    with PPO(env=TicTacToe, config=spread) as algo:
        assert algo.train().keys() - named("Episodes") - counts() == named("With workers")
    assert {
        "evaluation",
        "external",
        "recording",
        *named("With workers"),
        *named("With self-play"),
    } == TrainResult.__optional_keys__
    served = {"input": lambda ioctx: PolicyServerInput(ioctx, "127.0.0.1", 0, idle_timeout=0.1)}
    with PPO(env=TicTacToe, config=served) as algo:
        result = algo.train()
    assert result.keys() - named("Episodes") - counts() == {"external"}
    assert result["external"].keys() == named("External environments and servers")


# The page of the learning benchmark says what its CSV files say, and each environment has its settings.


def test_the_page_is_made_of_the_results() -> None:
    for group in groups():
        assert section(group) in PAGE.read_text("utf-8"), "run make benchmark-learning ARGS=--report"


@pytest.mark.slow
def test_the_pictures_are_drawn_from_the_results(tmp_path: Path) -> None:
    draw_curves(tmp_path)
    for picture in tmp_path.iterdir():
        assert picture.read_text("utf-8") == (PICTURES / picture.name).read_text("utf-8")


def test_each_experiment_has_valid_settings_and_published_scores_belong_to_one() -> None:
    experiments = [one for group in groups() for one in group.experiments]
    kinds: dict[str, type[AlgorithmConfig]] = {
        "PPO": PPOConfig,
        "DQN": DQNConfig,
        "QMIX": QMIXConfig,
        "SAC": SACConfig,
    }
    for one in experiments:
        zoo = one.zoo
        read_config(kinds[zoo.algorithm], with_objects(zoo.settings))
        assert zoo.env_steps
    assert set(published()) <= {(one.env, one.table) for one in experiments}


def test_a_table_of_the_zoo_may_score_sampled_actions() -> None:
    samples = {(one.env, one.table): one.explore for group in groups() for one in group.experiments}
    assert samples["rware:rware-tiny-2ag-v2", "PPO_LONG"]
    assert not samples["CartPole-v1", "PPO"]
