"""The page of the learning benchmark says what its CSV files say, and each environment has its settings."""

from __future__ import annotations

from pathlib import Path

from benchmarks.learning.page import PAGE, PICTURES, draw_curves, section
from benchmarks.learning.tables import groups, published
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import read_config
from menv.algorithms.dqn.config import DQNConfig
from menv.algorithms.ppo.config import PPOConfig
from menv.algorithms.qmix.config import QMIXConfig
from menv.cli.arguments import with_objects
from menv.cli.zoo import required_zoo_settings


def test_the_page_and_its_pictures_are_made_of_the_results(tmp_path: Path) -> None:
    draw_curves(tmp_path)
    for group in groups():
        assert section(group) in PAGE.read_text("utf-8"), "run make benchmark-learning ARGS=--report"
    for picture in tmp_path.iterdir():
        assert picture.read_text("utf-8") == (PICTURES / picture.name).read_text("utf-8")


def test_each_experiment_has_valid_settings_and_published_scores_belong_to_one() -> None:
    experiments = [one for group in groups() for one in group.experiments]
    kinds: dict[str, type[AlgorithmConfig]] = {"PPO": PPOConfig, "DQN": DQNConfig, "QMIX": QMIXConfig}
    for one in experiments:
        zoo = required_zoo_settings(one.env, one.table)
        read_config(kinds[zoo.algorithm], with_objects(zoo.settings))
        assert zoo.env_steps
    assert set(published()) <= {(one.env, one.table) for one in experiments}
