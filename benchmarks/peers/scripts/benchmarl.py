"""BenchMARL: IPPO with its default settings on VMAS balance, which a collector of TorchRL samples."""

from pathlib import Path

from benchmarl.algorithms import IppoConfig
from benchmarl.environments import VmasTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig

from benchmarks.peers.scripts.shared import HIDDEN, Sample, main


def balance(num_envs: int, length: int) -> Sample:
    settings, layers = ExperimentConfig.get_from_yaml(), MlpConfig.get_from_yaml()
    settings.on_policy_n_envs_per_worker = num_envs
    settings.on_policy_collected_frames_per_batch = settings.on_policy_minibatch_size = num_envs * length
    settings.evaluation, settings.create_json, settings.loggers = False, False, []
    settings.save_folder = str(Path.cwd())
    layers.num_cells = HIDDEN
    algorithm, task = IppoConfig.get_from_yaml(), VmasTask.BALANCE.get_from_yaml()
    task.config["n_agents"] = 3  # as in VMAS
    experiment = Experiment(task, algorithm, layers, seed=0, config=settings, critic_model_config=layers)
    collected = iter(experiment.collector)
    return lambda: int(next(collected).numel())


if __name__ == "__main__":
    main("benchmarl torchrl tensordict vmas", balance=balance)
