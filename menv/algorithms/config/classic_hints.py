"""What stands here for classic keys that menv does not have: another name, another place, or other means.

`keys` asks it before it looks for names that are spelled alike, which would lead astray.
"""

from __future__ import annotations

from collections.abc import Container

from menv.algorithms.config.section_keys import SECTION_KEYS

_NAMES = {
    "evaluation_num_episodes": "evaluation_duration",
    "learning_starts": "num_steps_sampled_before_learning_starts",
    "metrics_smoothing_episodes": "metrics_num_episodes_for_smoothing",
    "minibatch_size": "sgd_minibatch_size",
    "multi_agent": "multiagent",
    "num_env_runners": "num_workers",
    "num_envs_per_env_runner": "num_envs_per_worker",
    "num_epochs": "num_sgd_iter",
    "num_rollout_workers": "num_workers",
    "sample_batch_size": "rollout_fragment_length",
    "timesteps_per_iteration": "min_sample_timesteps_per_iteration",
    "train_batch_size_per_learner": "train_batch_size",
}
_CUT = "end episodes in the environment, with gymnasium.wrappers.TimeLimit for instance"
_PICTURE = "render in a callback and put what you want to see into episode.media"
_OWN_MODEL = "write a custom_model"
_TELL = "let the environment show previous actions and rewards in its observations"
_NONE = "it is not there; leave it out"
_ADVICE = {
    "buffer_size": 'write replay_buffer_config={"capacity": ...}',
    "custom_action_dist": _OWN_MODEL,
    "custom_eval_function": "call algo.evaluate() yourself, or change its result in on_evaluate_end",
    "custom_preprocessor": "write agent_connectors, or wrap the environment",
    "dim": "resize images in the environment, with gymnasium.wrappers.ResizeObservation for instance",
    "env_task_fn": 'call base_env.call(env_index, "set_task", ...) in a callback',
    "exploration_config": "PPO draws from its policy; leave it out, or set explore",
    "framestack": 'write agent_connectors=[("FrameStackAgentConnector", {"num_frames": 4})]',
    "free_log_std": _OWN_MODEL,
    "grayscale": "wrap the environment in gymnasium.wrappers.GrayscaleObservation",
    "hiddens": 'write model={"fcnet_hiddens": [...]}',
    "horizon": _CUT,
    "in_evaluation": "settings of evaluations go into evaluation_config",
    "input_config": "put it into env_config, which the function of input is told",
    "input_evaluation": _NONE,
    "keep_per_episode_custom_metrics": "put lists into episode.hist_data",
    "learner_class": _NONE,
    "logger_config": "set callbacks=TensorBoardCallbacks",
    "logger_creator": "set callbacks=TensorBoardCallbacks",
    "lstm_use_prev_action": _TELL,
    "lstm_use_prev_action_reward": _TELL,
    "lstm_use_prev_reward": _TELL,
    "min_iter_time_s": "call train() until the time is over",
    "min_time_s_per_iteration": "call train() until the time is over",
    "monitor": _PICTURE,
    "no_done_at_end": "set truncateds rather than terminateds in the environment",
    "no_final_linear": _OWN_MODEL,
    "noisy": _NONE,
    "num_atoms": _NONE,
    "off_policy_estimation_methods": _NONE,
    "optimizer": "set lr and grad_clip; Adam is what learns",
    "output": "write down what on_sample_end(worker, samples) is given",
    "post_fcnet_hiddens": _OWN_MODEL,
    "record_env": _PICTURE,
    "sample_async": "set overlap=True and num_workers to 1 or more",
    "sample_collector": _NONE,
    "soft_horizon": _CUT,
    "use_attention": "set use_lstm or use_gru, or write a custom_model",
    "worker_cls": _NONE,
    "zero_mean": 'set observation_filter="MeanStdFilter"',
}


def classic_hint(key: str, known: Container[str]) -> str | None:
    """Return what to do in the place of setting a classic key, None if nothing is known of it."""
    if _NAMES.get(key) in known:
        return f"it is called {_NAMES[key]!r} here"
    for name, keys in SECTION_KEYS.items():
        if name in known and key in keys:
            return f'it belongs into {name}: write {name}={{"{key}": ...}}'
    return _ADVICE.get(key)
