"""What stands here for classic keys that menv does not have: another name, another place, or other means.

`keys` asks it before it looks for names that are spelled alike, which would lead astray.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from menv.algorithms.config.section_keys import SECTION_KEYS

_NAMES = {
    "alpha": "prioritized_replay_alpha",
    "batch_size": "sgd_minibatch_size",
    "beta": "prioritized_replay_beta",
    "clip_range": "clip_param",
    "custom_options": "custom_model_config",
    "ent_coef": "entropy_coeff",
    "eps": "prioritized_replay_eps",
    "evaluation_num_env_runners": "evaluation_num_workers",
    "evaluation_num_episodes": "evaluation_duration",
    "gae_lambda": "lambda_",
    "grad_norm_clipping": "grad_clip",
    "lambda": "lambda_",
    "learning_rate": "lr",
    "max_grad_norm": "grad_clip",
    "learning_starts": "num_steps_sampled_before_learning_starts",
    "metrics_smoothing_episodes": "metrics_num_episodes_for_smoothing",
    "min_sample_timesteps_per_reporting": "min_sample_timesteps_per_iteration",
    "mini_batch_size_per_learner": "sgd_minibatch_size",
    "minibatch_size": "sgd_minibatch_size",
    "model_config": "model",
    "multi_agent": "multiagent",
    "n_envs": "num_envs_per_worker",
    "n_epochs": "num_sgd_iter",
    "num_env_runners": "num_workers",
    "num_envs_per_env_runner": "num_envs_per_worker",
    "num_epochs": "num_sgd_iter",
    "num_rollout_workers": "num_workers",
    "optim_eps": "adam_epsilon",
    "replay_batch_size": "train_batch_size",
    "sample_batch_size": "rollout_fragment_length",
    "timesteps_per_iteration": "min_sample_timesteps_per_iteration",
    "train_batch_size_per_learner": "train_batch_size",
    "vf_coef": "vf_loss_coeff",
}
_CUT = "end episodes in the environment, with gymnasium.wrappers.TimeLimit for instance"
_PICTURE = "wrap the environment in menv.wrappers.RecordEpisodes, or see menv evaluate --record"
_OWN_MODEL = "write a custom_model"
_TELL = "let the environment show previous actions and rewards in its observations"
_NONE = "it is not there; leave it out"
_BETA = "prioritized_replay_beta stays as it is; leave it out"
_EPSILON = 'write exploration_config={"final_epsilon": ..., "epsilon_timesteps": ...}'
_GOES_ON = (
    "evaluations play between two iterations; leave it out, and set evaluation_num_workers for faster ones"
)
_LINE = "epsilon falls on a straight line from initial_epsilon to final_epsilon; set epsilon_timesteps"
_LOGS = "input is a function; examples/offline_logs.py learns from episodes that were logged"
_OWN_EVALUATION = "call algo.evaluate() yourself, or change its result in on_evaluate_end"
_OS = "set os.environ in the function that creates the environment"
_SIZE = "train_batch_size is what an iteration samples and learns from; set that"
_WRITE_DOWN = "write down what on_sample_end(worker, samples) is given"
_ADVICE = {
    "action_mask_key": 'observations name it "action_mask"',
    "actions_in_input_normalized": _LOGS,
    "before_learn_on_batch": "write on_learn_on_batch in callbacks",
    "beta_annealing_fraction": _BETA,
    "buffer_size": 'write replay_buffer_config={"capacity": ...}',
    "burn_in": _NONE,
    "categorical_distribution_temperature": _NONE,
    "custom_action_dist": _OWN_MODEL,
    "custom_async_evaluation_function": _OWN_EVALUATION,
    "custom_eval_function": _OWN_EVALUATION,
    "custom_evaluation_function": _OWN_EVALUATION,
    "custom_preprocessor": "write agent_connectors, or wrap the environment",
    "dim": "resize images in the environment, with gymnasium.wrappers.ResizeObservation for instance",
    "encoder_latent_dim": _OWN_MODEL,
    "env_runner_cls": _NONE,
    "env_to_module_connector": "write agent_connectors",
    "env_task_fn": 'call algorithm.call_envs("set_task", task) in on_train_result of callbacks',
    "epsilon_schedule": _LINE,
    "evaluation_force_reset_envs_before_iteration": _GOES_ON,
    "exploration_config": "PPO draws from its policy; leave it out, or set explore",
    "exploration_final_eps": _EPSILON,
    "exploration_fraction": _EPSILON,
    "extra_python_environs_for_driver": _OS,
    "extra_python_environs_for_worker": _OS,
    "fake_sampler": _LOGS,
    "final_prioritized_replay_beta": _BETA,
    "framestack": 'write agent_connectors=[("FrameStackAgentConnector", {"num_frames": 4})]',
    "free_log_std": _OWN_MODEL,
    "grad_clip_by": "grad_clip limits the norm of all gradients together; leave it out",
    "grayscale": "wrap the environment in gymnasium.wrappers.GrayscaleObservation",
    "h_function_epsilon": _NONE,
    "hiddens": 'write model={"fcnet_hiddens": [...]}',
    "horizon": _CUT,
    "in_evaluation": "settings of evaluations go into evaluation_config",
    "input_config": "put it into env_config, which the function of input is told",
    "input_evaluation": _NONE,
    "is_atari": "wrap the environment in gymnasium.wrappers.AtariPreprocessing",
    "keep_per_episode_custom_metrics": "put lists into episode.hist_data",
    "learner_class": _NONE,
    "learning_starts": "num_steps_sampled_before_learning_starts is a setting of the main config",
    "log_std_clip_param": _OWN_MODEL,
    "logger_config": "set callbacks=TensorBoardCallbacks",
    "logger_creator": "set callbacks=TensorBoardCallbacks",
    "lr_schedule": "PPO alone has one; set lr",
    "lstm_use_prev_action": _TELL,
    "lstm_use_prev_action_reward": _TELL,
    "lstm_use_prev_reward": _TELL,
    "min_iter_time_s": "call train() until the time is over",
    "min_sample_timesteps_per_iteration": _SIZE,
    "min_sample_timesteps_per_reporting": _SIZE,
    "min_time_s_per_iteration": "call train() until the time is over",
    "min_time_s_per_reporting": "call train() until the time is over",
    "min_train_timesteps_per_iteration": _SIZE,
    "min_train_timesteps_per_reporting": _SIZE,
    "monitor": _PICTURE,
    "n_steps": "rollout_fragment_length is the length of a fragment, n_step that of DQN's returns",
    "no_done_at_end": "set truncateds rather than terminateds in the environment",
    "no_final_linear": _OWN_MODEL,
    "noisy": _NONE,
    "num_atoms": _NONE,
    "off_policy_estimation_methods": _NONE,
    "offline_sampling": _LOGS,
    "optim_alpha": "Adam is what learns; leave it out",
    "optimizer": "set lr and grad_clip; Adam is what learns",
    "optimizer_class": "Adam is what learns; leave it out",
    "output": _WRITE_DOWN,
    "parameter_noise": _NONE,
    "policy_kwargs": 'write model={"fcnet_hiddens": [...]}',
    "per_worker_exploration": "every worker has the same epsilon; leave it out",
    "post_fcnet_hiddens": _OWN_MODEL,
    "postprocess_inputs": _LOGS,
    "prioritized_replay_beta_annealing_timesteps": _BETA,
    "record_env": _PICTURE,
    "replay_batch_size": "train_batch_size is a setting of the main config",
    "replay_buffer_config": "only DQN and QMIX replay; leave it out",
    "replay_burn_in": _NONE,
    "replay_ratio": "training_intensity is a setting of the main config",
    "replay_sequence_length": 'write model={"max_seq_len": ...}',
    "replay_zero_init_states": _NONE,
    "rl_module_spec": _OWN_MODEL,
    "sample_async": "set overlap=True and num_workers to 1 or more",
    "sample_collector": _NONE,
    "schedule_max_timesteps": _EPSILON,
    "shuffle_buffer_size": _LOGS,
    "soft_horizon": _CUT,
    "stop": "call train() until its result is what you want; menv train has --stop",
    "soft_q": _NONE,
    "softq": _NONE,
    "squash_to_range": _OWN_MODEL,
    "storage_unit": "rows are what is kept; leave it out",
    "tau": _NONE,
    "temperature": "EpsilonGreedy is the only kind",
    "timesteps_per_iteration": _SIZE,
    "torch_deterministic": "set seed, which makes runs repeatable",
    "underlying_buffer_config": "there is one kind of buffer; leave it out",
    "use_attention": "set use_lstm or use_gru, or write a custom_model",
    "use_h_function": _NONE,
    "use_kl_loss": "kl_coeff=0 switches the KL term off",
    "warmup_timesteps": _LINE,
    "worker_cls": _NONE,
    "worker_side_prioritization": _NONE,
    "zero_init_states": _NONE,
    "zero_mean": 'set observation_filter="MeanStdFilter"',
}
_OF_ALGORITHMS = {
    **dict.fromkeys(
        ("clip_param", "critic_obs", "critic_obs_size", "entropy_coeff", "entropy_coeff_schedule", "kl_coeff",
         "kl_target", "lambda", "lambda_", "normalize_values", "num_sgd_iter", "sgd_minibatch_size", "vf_clip_param",
         "vf_loss_coeff"),
        "PPO alone has it; leave it out",
    ),
    **dict.fromkeys(
        ("adam_epsilon", "double_q", "dueling", "n_step", "num_steps_sampled_before_learning_starts",
         "target_network_update_freq", "td_error_loss_fn", "training_intensity"),
        "only DQN and QMIX have it; leave it out",
    ),
    **dict.fromkeys(("mixer", "mixing_embed_dim"), "QMIX alone has it; leave it out"),
}  # fmt: skip
"""Settings that some algorithms have, for who gives them to another one."""
_OF_FAMILIES = {
    "attention_": _ADVICE["use_attention"], "conv_bias_": _OWN_MODEL, "conv_kernel_": _OWN_MODEL,
    "fcnet_bias_": _OWN_MODEL, "fcnet_weights_": _OWN_MODEL, "lstm_bias_": _OWN_MODEL, "lstm_weights_": _OWN_MODEL,
    "output_": _WRITE_DOWN, "post_fcnet_": _OWN_MODEL,
}  # fmt: skip
"""What to do in the place of all keys that begin so."""

HOLDS_ANYHOW: dict[str, Any] = {
    "before_learn_on_batch": None, "burn_in": 0, "custom_action_dist": None, "custom_async_evaluation_function": None,
    "custom_eval_function": None,
    "custom_evaluation_function": None, "custom_preprocessor": None, "encoder_latent_dim": None,
    "env_runner_cls": None, "env_task_fn": None,
    "exploration_config": {"type": "StochasticSampling"},
    "extra_python_environs_for_driver": {}, "extra_python_environs_for_worker": {}, "fake_sampler": False,
    "framestack": False, "free_log_std": False, "grad_clip_by": "global_norm", "grayscale": False, "hiddens": [],
    "horizon": None, "in_evaluation": False, "input_config": {}, "input_evaluation": [], "is_atari": False,
    "keep_per_episode_custom_metrics": False, "logger_config": None, "lr_schedule": None,
    "lstm_use_prev_action": False, "lstm_use_prev_action_reward": False, "lstm_use_prev_reward": False,
    "min_iter_time_s": 0, "min_sample_timesteps_per_iteration": 0, "min_sample_timesteps_per_reporting": 0,
    "min_time_s_per_iteration": 0, "min_time_s_per_reporting": 0, "min_train_timesteps_per_iteration": 0,
    "min_train_timesteps_per_reporting": 0, "monitor": False, "no_done_at_end": False,
    "no_final_linear": False, "noisy": False, "num_atoms": 1, "off_policy_estimation_methods": {},
    "offline_sampling": False, "optimizer": {}, "output": None, "output_config": {}, "parameter_noise": False,
    "per_worker_exploration": False, "post_fcnet_hiddens": [], "postprocess_inputs": False,
    "record_env": False, "replay_burn_in": 0, "replay_sequence_length": 1, "replay_zero_init_states": True,
    "rl_module_spec": None, "sample_async": False, "sample_collector": None, "shuffle_buffer_size": 0,
    "soft_horizon": False, "soft_q": False, "softq": False, "squash_to_range": False,
    "storage_unit": "timesteps", "tau": 1.0, "timesteps_per_iteration": 0,
    "use_attention": False, "use_kl_loss": True, "warmup_timesteps": 0, "worker_side_prioritization": False,
}  # fmt: skip
"""Classic keys that menv does not have, with the value that says how it is here; that value is taken, and None."""


def classic_hint(key: str, known: Container[str]) -> str | None:
    """Return what to do in the place of setting a classic key, None if nothing is known of it."""
    if _NAMES.get(key) in known:
        return f"it is called {_NAMES[key]!r} here"
    for name, keys in SECTION_KEYS.items():
        if name in known and key in keys:
            return f'it belongs into {name}: write {name}={{"{key}": ...}}'
    if "env_config" in known and key in _OF_ALGORITHMS:
        return _OF_ALGORITHMS[key]
    family = next((advice for begin, advice in _OF_FAMILIES.items() if key.startswith(begin)), None)
    return _ADVICE.get(key, family)
