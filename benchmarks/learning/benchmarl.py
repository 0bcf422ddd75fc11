"""BenchMARL on the scenarios of VMAS that menv learns: prints lines for `published.csv`.

    ~/.cache/menv-peers/torchrl/bin/python -m benchmarks.learning.benchmarl --seeds 3

It needs the environment that `make benchmark-peers` creates. The settings are BenchMARL's defaults, but for 64 worlds,
discrete actions except for MASAC, arguments of the scenarios as in VMAS, and the number of env steps.
A score is the return of an episode of the most likely actions, added up over the agents.
"""

import argparse
import statistics
import tempfile
from typing import Any

import torch
from benchmarl.algorithms import IppoConfig, MappoConfig, MasacConfig
from benchmarl.environments import VmasTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.experiment.callback import Callback
from benchmarl.models.mlp import MlpConfig
from tensordict import TensorDictBase

WORLDS, STEPS, ENV_STEPS = 64, 100, 204_800
RUNS = [
    ("balance", VmasTask.BALANCE, "PPO", IppoConfig),
    ("balance", VmasTask.BALANCE, "MAPPO", MappoConfig),
    ("navigation", VmasTask.NAVIGATION, "PPO", IppoConfig),
    ("navigation", VmasTask.NAVIGATION, "MAPPO", MappoConfig),
    ("navigation_continuous", VmasTask.NAVIGATION, "SAC", MasacConfig),
]
"""Names of environments, their scenarios, tables of menv and the algorithms that they are compared with."""


class Returns(Callback):  # type: ignore[misc]  # BenchMARL is in an environment of its own
    """Keeps the mean return of the last evaluation."""

    def on_evaluation_end(self, rollouts: list[TensorDictBase]) -> None:
        self.score = statistics.fmean(float(one["next", "agents", "reward"].sum()) for one in rollouts)


def score(task: VmasTask, algorithm: type[Any], seed: int, folder: str) -> float:
    settings = ExperimentConfig.get_from_yaml()
    settings.prefer_continuous_actions = algorithm is MasacConfig
    settings.max_n_frames = settings.evaluation_interval = ENV_STEPS
    settings.on_policy_n_envs_per_worker = settings.off_policy_n_envs_per_worker = WORLDS
    batch = WORLDS * STEPS
    settings.on_policy_collected_frames_per_batch = settings.off_policy_collected_frames_per_batch = batch
    settings.evaluation_episodes = 100
    settings.render, settings.create_json, settings.loggers, settings.save_folder = False, True, [], folder
    task.config = {"max_steps": STEPS}
    returns, layers = Returns(), MlpConfig.get_from_yaml()
    Experiment(
        task,
        algorithm.get_from_yaml(),
        layers,
        seed,
        settings,
        critic_model_config=layers,
        callbacks=[returns],
    ).run()
    return returns.score


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="TABLE", help="such as SAC")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, scenario, table, algorithm in RUNS:
        if args.only and table not in args.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            task = scenario.get_from_yaml()
            scores = [score(task, algorithm, seed, folder) for seed in range(args.seeds)]
        spread = f"{statistics.pstdev(scores):.3g}" if args.seeds > 1 else ""
        line = f"{name},{table},{statistics.fmean(scores):.4g},{spread},{ENV_STEPS},BenchMARL"
        print(f"benchmarks.learning.envs:{line}", flush=True)


if __name__ == "__main__":
    main()
