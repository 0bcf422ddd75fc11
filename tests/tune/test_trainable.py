"""Ray Tune trains with menv: trials save and restore, schedulers stop and change them, experiments resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from menv import DefaultCallbacks, register_env
from menv.algorithms import PPO
from menv.errors import ConfigError
from tests.later import Later

tune, schedulers, menv_tune = Later("ray.tune"), Later("ray.tune.schedulers"), Later("menv.tune")
SMALL = {"env": "CartPole-v1", "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "seed": 0}


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials outside Tune write here instead of into the home folder."""
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path))


def test_trials_continue_from_one_checkpoint_alike(tmp_path: Path) -> None:
    trial = menv_tune.trainable(PPO)(dict(SMALL))
    trial.train()
    saved = trial.save(str(tmp_path / "saved"))
    trial.restore(saved)
    expected = [trial.train()["digest"] for _ in range(2)]
    other = menv_tune.trainable(PPO)(dict(SMALL))
    other.restore(saved)
    results = [other.train() for _ in range(2)]
    assert [result["digest"] for result in results] == expected
    assert results[-1]["training_iteration"] == 3
    # As population based training does it: the settings of the trial, the weights of the other one.
    assert other.reset({**SMALL, "lr": 0.125, "train_batch_size": 32})
    other.restore(saved)
    changed = other.train()
    assert changed["info"]["default_policy"]["cur_lr"] == 0.125
    assert changed["num_env_steps_sampled"] == 64 + 32
    for one in (trial, other):
        one.stop()


def test_a_trial_reports_what_schedulers_compare() -> None:
    trial = menv_tune.trainable(PPO, "CartPole-v1")({"train_batch_size": 4, "sgd_minibatch_size": 4})
    result = trial.train()
    assert math.isnan(result["episode_reward_mean"])
    assert result["first_fault"] is None
    trial.stop()


@pytest.mark.parametrize(
    ("settings", "bundles", "strategy"),
    [
        ({}, [{"CPU": 1}], "PACK"),
        ({"num_gpus": 0.5}, [{"CPU": 1, "GPU": 0.5}], "PACK"),
        ({"num_workers": 2, "engine": "process"}, [{"CPU": 1}] * 3, "STRICT_PACK"),
        ({"num_workers": 1, "evaluation_num_workers": 1, "engine": "ray"}, [{"CPU": 1}] * 3, "PACK"),
    ],
)
def test_a_trial_reserves_processors_for_its_workers(
    settings: dict[str, Any], bundles: list[dict[str, float]], strategy: str
) -> None:
    asked = menv_tune.trainable(PPO).default_resource_request({**SMALL, **settings})
    assert (asked.bundles, asked.strategy) == (bundles, strategy)


def test_a_wrong_class_and_a_wrong_setting_are_refused_before_a_trial_runs() -> None:
    with pytest.raises(ConfigError, match="trainable"):
        menv_tune.trainable("PPO")
    with pytest.raises(ConfigError, match="'gamma'"):
        menv_tune.trainable(PPO).default_resource_request({**SMALL, "gama": 0.9})


class Stumbles(DefaultCallbacks):
    """Ends a trial in its second iteration, once."""

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        stone = Path(algorithm.config.env_config["stone"])
        if algorithm.iteration == 2 and stone.exists():
            stone.unlink()
            raise RuntimeError("a stone")


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
def test_asha_stops_trials_and_an_experiment_resumes(tmp_path: Path) -> None:
    register_env("balance", lambda context: gym.make("CartPole-v1"))
    scheduler = schedulers.ASHAScheduler(
        time_attr="training_iteration", max_t=4, grace_period=1, reduction_factor=2
    )
    stone = tmp_path / "stone"
    stone.touch()
    workers = {"num_workers": 1, "engine": "ray", "callbacks": Stumbles, "env_config": {"stone": str(stone)}}
    tuner: Any = tune.Tuner(
        menv_tune.trainable(PPO, "balance"),
        param_space={**SMALL, **workers, "lr": tune.grid_search([1e-2, 1e-3])},
        tune_config=tune.TuneConfig(
            metric="info/default_policy/cur_lr", mode="max", scheduler=scheduler, max_concurrent_trials=1
        ),
        run_config=tune.RunConfig(
            name="asha", storage_path=str(tmp_path), stop={"training_iteration": 3}, verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    )  # fmt: skip
    found = tuner.fit()
    assert [str(error).strip().splitlines()[-1] for error in found.errors] == ["RuntimeError: a stone"]
    assert [result.metrics["training_iteration"] for result in found] == [1, 1]
    again: Any = tune.Tuner.restore(
        str(tmp_path / "asha"), menv_tune.trainable(PPO, "balance"), resume_errored=True
    )
    best = again.fit().get_best_result()
    assert best.metrics["training_iteration"] == 3
    with PPO(config={**SMALL, "lr": 1e-2}) as algo:
        assert best.metrics["digest"] == [algo.train()["digest"] for _ in range(3)][-1]
    with PPO.from_checkpoint(best.checkpoint.path, {"num_workers": 0, "callbacks": None}) as algo:
        assert algo.iteration == 3


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
def test_population_based_training_trains_on_with_other_settings(tmp_path: Path) -> None:
    scheduler = schedulers.PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, quantile_fraction=0.5, synch=True,
        hyperparam_mutations={"lr": [1e-5, 1e-4, 1e-3]},
    )  # fmt: skip
    tuner: Any = tune.Tuner(
        menv_tune.trainable(PPO),
        param_space={**SMALL, "lr": tune.grid_search([1e-5, 1e-3])},
        tune_config=tune.TuneConfig(
            metric="episode_reward_mean", mode="max", scheduler=scheduler, reuse_actors=True
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), stop={"training_iteration": 6}, verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2),
        ),
    )  # fmt: skip
    found = tuner.fit()
    assert found.errors == []
    assert scheduler._num_perturbations > 0
    for result in found:
        assert result.metrics["training_iteration"] == 6
        assert result.metrics["num_env_steps_sampled"] == 6 * 64
        assert result.metrics["info"]["default_policy"]["cur_lr"] == pytest.approx(result.config["lr"])
