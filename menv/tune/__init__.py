"""Ray Tune: `trainable(PPO)` is a class for `ray.tune.Tuner`, so that Tune's searches and schedulers train with menv.

A trial is an algorithm, its config the classic dict, and `Algorithm.save` writes its checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.read_config import read_config
from menv.errors import ConfigError, MissingExtraError
from menv.registry import register_env
from menv.workers.registered_envs import known_here

try:
    from ray import tune
except ImportError as error:
    raise MissingExtraError(
        f"menv.tune: Ray Tune cannot be imported ({error}); run: pip install 'menv-rl[tune]'"
    ) from error

__all__ = ["register_env", "trainable"]


def trainable(algorithm: type[Algorithm], env: Any = None) -> type[tune.Trainable]:
    """Return a class for `ray.tune.Tuner` whose trials train this algorithm.

        tuner = tune.Tuner(
            trainable(PPO),
            param_space={"env": "CartPole-v1", "lr": tune.loguniform(1e-4, 1e-2)},
            tune_config=tune.TuneConfig(metric="episode_reward_mean", mode="max", num_samples=8),
            run_config=tune.RunConfig(stop={"num_env_steps_sampled": 20_000}),
        )
        tuner.fit()

    An iteration reports all that `Algorithm.train` returns; means over no episode are NaN instead of None. A trial
    reserves one CPU, `num_gpus` GPUs, and one more CPU for each worker. Where a scheduler changes the settings of a
    trial, as population based training does, the algorithm is built with the new settings and restored.

    Args:
        algorithm: `PPO`, another one of menv, or your own subclass of `Algorithm`.
        env: The environment, as for the algorithm; None uses the `env` of each trial's config. Environments that are
            registered when this is called exist in the trials too.

    Raises:
        ConfigError: `algorithm` is not an algorithm.
    """
    if not (isinstance(algorithm, type) and hasattr(algorithm, "recipe")):
        raise ConfigError(
            f"trainable: {algorithm!r:.60}, expected the class of an algorithm; write trainable(PPO) with "
            "from menv.algorithms import PPO"
        )
    known = known_here(env)
    # Tune names trials, and finds them when an experiment is resumed, by the name of the class.
    return type(algorithm.__name__, (_Trial,), {"algorithm": algorithm, "env": env, "known": known})


class _Trial(tune.Trainable):
    algorithm: ClassVar[type[Algorithm]]
    env: ClassVar[Any]
    known: ClassVar[Any]

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        settings = read_config(cls.algorithm.recipe.config_class, config, cls.env)
        workers = settings.num_workers + settings.evaluation_num_workers
        # Processes that the trial starts run on its node; Ray may place its own actors on other nodes.
        strategy = "STRICT_PACK" if settings.engine == "process" else "PACK"
        bundles = [{"CPU": 1.0, "GPU": settings.num_gpus}, *[{"CPU": 1.0}] * workers]
        return tune.PlacementGroupFactory(bundles, strategy=strategy)

    def setup(self, config: dict[str, Any]) -> None:
        self.known.register()
        self._algorithm = self.algorithm(config, self.env)

    def step(self) -> dict[str, Any]:
        return _numbers(self._algorithm.train())

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self._algorithm.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        self._algorithm.restore(checkpoint)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        self._algorithm.stop()


def _numbers(result: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a result with NaN for means over nothing, which schedulers compare, and with keys that Tune can join."""
    found: dict[str, Any] = {}
    for key, value in result.items():
        is_empty = value is None and str(key).endswith(("_mean", "_min", "_max"))
        found[str(key)] = _numbers(value) if isinstance(value, Mapping) else math.nan if is_empty else value
    return found
