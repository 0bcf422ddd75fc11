"""Where what is imported under a classic name, or from another package of menv's, is to be had.

`_names_on_demand` asks when a package has no such name. Nothing here imports anything.
"""

from __future__ import annotations

_ALGORITHMS = (
    "Algorithm", "DQN", "DQNConfig", "ModelConfig", "MultiAgentConfig", "PPO", "PPOConfig", "PPOPolicy", "QMIX",
    "QMIXConfig", "TensorBoardCallbacks", "compute_advantages",
)  # fmt: skip
_ROOT = (
    "BaseEnv", "DefaultCallbacks", "EnvContext", "Episode", "ExternalEnv", "ExternalMultiAgentEnv", "MultiAgentBatch",
    "MultiAgentEnv", "Policy", "PolicySpec", "RandomPolicy", "SampleBatch", "VectorEnv", "check_env",
    "local_policy_inference", "make_multi_agent", "make_multi_callbacks", "register_env", "to_base_env",
)  # fmt: skip
_ENVS = (
    "AlwaysSame", "BeatLastMove", "HierarchicalWindyMaze", "RandomMultiAgentEnv", "RockPaperScissors", "TwoStepGame",
    "WindyMaze",
)  # fmt: skip
_MISSING = (
    "A2C",
    "A3C",
    "APPO",
    "DDPG",
    "ES",
    "IMPALA",
    "Impala",
    "MADDPG",
    "PG",
    "R2D2",
    "SAC",
    "SimpleQ",
    "TD3",
)


def _from(package: str, name: str) -> str:
    return f"write from {package} import {name}"


_MODEL = (
    'a torch.nn.Module of your own is model={"custom_model": YourModule}; docs/classic.md has what it returns'
)
_NO_TUNE = "there is no Tune here; build one algorithm after another, each with a config of its own"
_OF_ALGORITHMS = "menv.algorithms has PPO, DQN and QMIX"
_CONFIG = "each algorithm has its own, such as menv.algorithms.PPOConfig"
_WORKER = 'algo.call_envs("method", ...) calls environments, get_policy(policy_id) has policies'

ELSEWHERE = {
    **{name: _from("menv.algorithms", name) for name in _ALGORITHMS},
    **{name: _from("menv", name) for name in _ROOT},
    **{name: _from("menv.serving", name) for name in ("PolicyClient", "PolicyServerInput")},
    **{
        name: _from("menv.wrappers", name)
        for name in ("GroupAgentsWrapper", "ParallelPettingZooEnv", "PettingZooEnv")
    },
    **{name: _from("menv.envs", name) for name in _ENVS},
    **{name + end: _OF_ALGORITHMS for name in _MISSING for end in ("", "Config", "Trainer")},
    **{name.lower(): _OF_ALGORITHMS for name in (*_MISSING, "simple_q")},
    "AlgorithmConfig": _CONFIG,
    "AgentID": _from("menv.base_env", "AgentId"),
    "BaseCallback": _from("menv", "DefaultCallbacks"),
    "DEFAULT_POLICY_ID": 'write "default_policy"',
    "DQNTorchPolicy": 'leave the class out; beside another algorithm write PolicySpec(algorithm="DQN")',
    "DQNTrainer": _from("menv.algorithms", "DQN"),
    "ENV_STATE": 'write "state"',
    "EnvError": "raise an exception of your own or of Python's; it costs the episode of that sub-environment",
    "EnvID": _from("menv.base_env", "EnvId"),
    "EnvRunner": _WORKER,
    "FullyConnectedNetwork": _MODEL,
    "ModelCatalog": _MODEL,
    "ModelV2": _MODEL,
    "MultiAgentCartPole": 'write menv.make_multi_agent("CartPole-v1")',
    "MultiAgentDict": _from("menv.multi_agent_env", "AgentDict"),
    "MultiAgentEpisode": _from("menv", "Episode"),
    "PolicyID": "write str",
    "Postprocessing": "write SampleBatch.ADVANTAGES, SampleBatch.VALUE_TARGETS",
    "PPOTorchPolicy": _from("menv.algorithms", "PPOPolicy"),
    "PPOTrainer": _from("menv.algorithms", "PPO"),
    "QMix": _from("menv.algorithms", "QMIX"),
    "QMixConfig": _from("menv.algorithms", "QMIXConfig"),
    "QMixTrainer": _from("menv.algorithms", "QMIX"),
    "RLModule": _MODEL,
    "RLlibCallback": _from("menv", "DefaultCallbacks"),
    "Repeated": "there is no such space here; use a Box with a row for each item that there may be",
    "RolloutWorker": _WORKER,
    "SingleAgentEpisode": _from("menv", "Episode"),
    "TaskSettableEnv": 'any environment with a set_task is one; algo.call_envs("set_task", task) sets tasks',
    "TorchModelV2": _MODEL,
    "Trainer": _from("menv.algorithms", "Algorithm"),
    "VecNormalize": 'set observation_filter="MeanStdFilter" in the config',
    "ViewRequirement": _from("menv.connectors", "ViewRequirement"),
    "air": _NO_TUNE,
    "compute_gae_for_sample_batch": _from("menv.algorithms", "compute_advantages"),
    "convert_to_base_env": _from("menv", "to_base_env"),
    "get_trainable_cls": _OF_ALGORITHMS,
    "make_vec_env": "num_envs_per_worker in the config says how many environments there are",
    "override": "leave it out",
    "pretty_print": "results are dicts of Python's own numbers; print(json.dumps(result, indent=2)) shows one",
    "try_import_tf": "there is no TensorFlow here; networks learn with torch",
    "try_import_torch": "write import torch",
    "tune": _NO_TUNE,
}
"""What to write, by the name that a package of menv's was asked for and does not have."""
