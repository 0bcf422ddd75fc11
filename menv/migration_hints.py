"""What to write instead of names of RLlib and Stable-Baselines3: one table, and the functions that read it.

Packages, public classes, results and configs ask `hint(owner, name)` for a name that they do not have.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from menv.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

ONLY_VALUES: dict[str, Any] = {
    "exploration_config": {"type": "StochasticSampling"}, "grad_clip_by": "global_norm", "num_atoms": 1,
    "replay_mode": "independent", "replay_sequence_length": 1, "replay_zero_init_states": True,
    "storage_unit": "timesteps", "tau": 1.0, "use_critic": True, "use_gae": True, "use_kl_loss": True,
}  # fmt: skip
"""Settings that can only have one value, which is accepted. Other settings of the table below may be off."""

_CALL_ENVS = 'call algo.call_envs("method", ...) for environments and get_policy(policy_id) for policies'
_MODEL = 'write model={"custom_model": YourModule} with a torch.nn.Module; see docs/reference/classic.md'
_WEIGHTS = "get_weights() and set_weights() are its weights, export_checkpoint(folder) writes all of it"

_TABLE: dict[str, dict[str, str]] = {
    "import": {
        "A2C A3C APPO DDPG ES IMPALA Impala MADDPG PG R2D2 SAC SACConfig SimpleQ TD3 APPOConfig IMPALAConfig "
        "a2c a3c appo ddpg es impala maddpg pg r2d2 sac simple_q td3 "
        "get_trainable_cls": "menv.algorithms has PPO, DQN and QMIX",
        "AlgorithmConfig": "each algorithm has its own, such as menv.algorithms.PPOConfig",
        "DQNTrainer": "write from menv.algorithms import DQN",
        "FullyConnectedNetwork ModelCatalog ModelV2 RLModule TorchModelV2": _MODEL,
        "MultiAgentCartPole": 'write menv.make_multi_agent("CartPole-v1")',
        "MultiAgentDict": "write from menv.multi_agent_env import AgentDict",
        "MultiAgentEpisode SingleAgentEpisode": "write from menv import Episode",
        "PPOTorchPolicy": "write from menv.algorithms import PPOPolicy",
        "PPOTrainer": "write from menv.algorithms import PPO",
        "QMix QMixTrainer": "write from menv.algorithms import QMIX",
        "RLlibCallback BaseCallback": "write from menv import DefaultCallbacks",
        "RolloutWorker EnvRunner": _CALL_ENVS,
        "TaskSettableEnv": 'write a set_task method; algo.call_envs("set_task", task) calls it',
        "Trainer": "write from menv.algorithms import Algorithm",
        "VecNormalize": 'set observation_filter="MeanStdFilter" in the config',
        "convert_to_base_env": "write from menv import to_base_env",
        "make_vec_env": "num_envs_per_worker in the config says how many environments there are",
        "pretty_print": "write print(json.dumps(result, indent=2))",
        "tune air": "write from menv.tune import trainable, whose classes ray.tune.Tuner runs",
        "try_import_torch": "write import torch",
    },
    "Algorithm": {
        "compute_action predict": "call compute_single_action(obs, explore=...)",
        "compute_actions": "call get_policy(policy_id).compute_actions([obs, ...])",
        "env env_runner env_runner_group foreach_env foreach_worker workers": _CALL_ENVS,
        "eval_env_runner_group evaluation_workers": "call evaluate()",
        "export_model export_policy_model": "call export_policy_checkpoint(folder, policy_id), or menv.export_onnx",
        "get_config": "read config",
        "get_module policy": "call get_policy(policy_id)",
        "get_state set_state": "call save(folder) and restore(folder), or get_weights() and set_weights()",
        "learner_group": "call get_weights() and set_weights(weights)",
        "load load_checkpoint restore_from_path": "call restore(folder), or from_checkpoint(folder) of the class",
        "logdir": "set callbacks=TensorBoardCallbacks, or keep what train() returns",
        "save_checkpoint save_to_path": "call save(folder)",
        "step training_step": "call train()",
        "training_iteration": "it is called iteration",
    },
    "BaseEnv": {
        "envs get_unwrapped vector_env": "call get_sub_environments()",
    },
    "Config": {
        "checkpointing": "give save_every to learn(), or keep_last to save()",
        "experimental python_environment": "leave it out",
        "freeze validate": "leave it out; settings are checked when they are made, and never change",
        "from_dict": "give the dict to the algorithm, such as PPO(env=..., config={...})",
        "learners": "call resources(num_gpus=...), and training(...) for what learns",
        "is_multi_agent policies policies_to_train policy_mapping_fn": "read multiagent",
        "pop setdefault update": "change a copy(), and build from that",
        "rl_module": "call training(model={...})",
        "update_from_dict": "call dataclasses.replace(config, name=value), which returns a changed copy",
    },
    "Episode": {
        "active_env_steps total_env_steps": "it is called length",
        "get_observations last_raw_obs_for": "call last_observation_for(agent_id)",
        "get_return get_rewards": "read agent_rewards",
        "id_": "it is called episode_id",
        "last_action_for last_done_for last_pi_info_for last_reward_for prev_action_for prev_reward_for "
        "rnn_state_for": "read the columns of the batch in on_postprocess_trajectory",
        "policy_mapping_fn": "call policy_for(agent_id)",
        "worker policy_map": "callbacks and mapping functions get the worker",
    },
    "Policy": {
        "compute_action compute_single_action": "call act(obs)",
        "export_model": "call export_checkpoint(folder), or menv.export_onnx(policy, path)",
        "get_state set_state": _WEIGHTS,
        "is_recurrent": "get_initial_state() is empty for a feed-forward policy",
        "view_requirements": "write menv.connectors.ViewRequirementAgentConnector into agent_connectors",
        "learn_on_batch loss": "algo.train() learns; write a loss in a subclass of menv.algorithms.PPOPolicy",
        "model": f"call act(obs) or compute_actions([obs, ...]); {_WEIGHTS}",
    },
    "PolicyMap": {
        "get items keys values": "it maps agents to policies; worker.policies has the policies by id"
    },
    "result": {
        "agent_episode_returns_mean": "it is called agent_reward_mean",
        "config": "read algo.config",
        "counters": "counts are keys of the result itself, such as num_env_steps_sampled",
        "env_runners": "episode_reward_mean and policy_reward_mean are keys of the result itself",
        "episode_return_mean": "it is called episode_reward_mean",
        "evaluation": "set evaluation_interval in the config, or call algo.evaluate()",
        "learner learners": 'read result["info"][policy_id]',
        "module_episode_returns_mean": "it is called policy_reward_mean",
        "num_env_steps_sampled_lifetime": "it is called num_env_steps_sampled",
        "num_healthy_workers fault_tolerance": "num_worker_restarts counts workers that replaced lost ones",
        "perf timers": "sampler_perf and time_this_iter_s are seconds",
    },
    "ignored setting": {
        "_disable_execution_plan_api _disable_preprocessor_api _enable_learner_api _enable_new_api_stack "
        "_enable_rl_module_api _fake_gpus always_check_shapes auto_wrap_old_gym_envs compress_observations "
        "create_env_on_driver create_env_on_local_worker custom_resources_per_worker disable_env_checking "
        "eager_max_retraces eager_tracing enable_connectors enable_env_runner_and_connector_v2 "
        "enable_rl_module_and_learner evaluation_sample_timeout_s framework ignore_env_runner_failures "
        "ignore_worker_failures local_tf_session_args log_sys_usage metrics_episode_collection_timeout_s "
        "num_cpus_for_driver num_cpus_for_local_worker num_cpus_for_main_process num_cpus_per_env_runner "
        "num_cpus_per_learner num_cpus_per_worker num_gpus_per_env_runner num_gpus_per_learner "
        "num_gpus_per_worker num_learner_workers num_learners placement_strategy policy_map_cache "
        "policy_map_capacity policy_states_are_swappable post_fcnet_activation preprocessor_pref "
        "recreate_failed_env_runners recreate_failed_workers render_env restart_failed_env_runners "
        "sample_timeout_s shuffle_sequences simple_optimizer synchronize_filters tf_session_args "
        "update_worker_filter_stats use_worker_filter_stats v_max v_min validate_workers_after_construction "
        "worker_health_probe_timeout_s worker_restore_timeout_s": "leave it out",
    },
    "setting": {
        "before_learn_on_batch": "write on_learn_on_batch in callbacks",
        "buffer_size": 'write replay_buffer_config={"capacity": ...}',
        "custom_action_dist free_log_std no_final_linear post_fcnet_hiddens rl_module_spec": _MODEL,
        "custom_eval_function custom_evaluation_function": "call algo.evaluate() yourself",
        "custom_preprocessor env_to_module_connector framestack": "write agent_connectors, or wrap the environment",
        "env_task_fn": 'call algorithm.call_envs("set_task", task) in on_train_result of callbacks',
        "epsilon_schedule exploration_final_eps exploration_fraction warmup_timesteps": "epsilon falls on a straight "
        'line; write exploration_config={"final_epsilon": ..., "epsilon_timesteps": ...}',
        "exploration_config": "PPO draws from its policy; leave it out, or set explore",
        "hiddens policy_kwargs": 'write model={"fcnet_hiddens": [...]}',
        "horizon soft_horizon": "wrap the environment in menv.wrappers.TimeLimit",
        "is_atari dim grayscale": "wrap the environment in gymnasium.wrappers.AtariPreprocessing",
        "logger_config logger_creator": "set callbacks=TensorBoardCallbacks",
        "lr_schedule": "only PPO has one; set lr",
        "lstm_use_prev_action lstm_use_prev_reward": "let observations have previous actions and rewards",
        "min_sample_timesteps_per_iteration min_train_timesteps_per_iteration timesteps_per_iteration": "set "
        "train_batch_size, which an iteration samples and learns from",
        "min_time_s_per_iteration": "call train() until the time is over",
        "monitor record_env": "wrap the environment in menv.wrappers.RecordEpisodes, or see menv evaluate --record",
        "n_steps": "rollout_fragment_length is the length of a fragment, n_step that of DQN's returns",
        "no_done_at_end": "set truncateds rather than terminateds in the environment",
        "noisy num_atoms parameter_noise softq tau temperature": "leave it out",
        "optimizer optimizer_class": "set lr and grad_clip; Adam is what learns",
        "output": "set callbacks=menv.offline.RecordCallbacks(path)",
        "replay_buffer_config": "only DQN and QMIX replay; leave it out",
        "replay_mode replay_sequence_length storage_unit": "the buffer keeps rows; leave it out",
        "sample_async": "set overlap=True and num_workers to 1 or more",
        "stop": "call train() until its result is what you want; menv train has --stop",
        "use_attention": "set use_lstm or use_gru, or write a custom_model",
        "use_critic use_gae": "advantages always use values; lambda=1 gives returns less values",
        "use_kl_loss": "kl_coeff=0 switches the KL term off",
    },
    "uncalled method of Algorithm": {
        "get_default_policy_class": "name the class in multiagent.policies, PolicySpec(policy_class=...)",
        "setup": "write on_algorithm_init in callbacks",
        "step training_step": "call train(), or sample(), in your own loop; callbacks have hooks",
    },
    "uncalled method of PPOPolicy": {
        "compute_gradients learn_on_batch": "write loss",
        "stats_fn": "return (loss, {name: scalar}) from loss",
    },
    "uncalled method of Module": {"custom_loss": "write loss in a subclass of menv.algorithms.PPOPolicy"},
}
HINTS = {
    owner: {name: advice for names, advice in rows.items() for name in names.split()}
    for owner, rows in _TABLE.items()
}
"""What to write, by owner and old name."""


def hint(owner: str, name: str) -> str | None:
    """Return what to write instead of an old name of an owner in `HINTS`, None if there is no hint."""
    return HINTS[owner].get(name)


def hinted(
    owner: str, new_name: Callable[[Any, str], str | None] = lambda own, name: None
) -> Callable[[Any, str], Any]:
    """Return the `__getattr__` of a public class; its AttributeError says what to write instead of an old name.

    `new_name` returns what an object calls a name of the table's libraries.
    """

    def missing(self: Any, name: str) -> Any:
        kind = type(self)
        if hasattr(kind, name):
            # A property raised an AttributeError.
            return object.__getattribute__(self, name)
        # A user's class may have another base with a `__getattr__`, such as a torch module.
        others = [vars(base).get("__getattr__") for base in kind.__mro__]
        further = next((other for other in others[others.index(missing) + 1 :] if other is not None), None)
        if further is not None:
            return further(self, name)
        new = new_name(self, name)
        advice = hint(owner, name) if new is None else f"it is called {new}"
        raise AttributeError(
            f"{kind.__name__!r} object has no attribute {name!r}" + (f"; {advice}" if advice else ""),
            name=name,
            obj=self,
        )

    return missing


def warn_of_uncalled(where: str, owner: str, user_class: type) -> None:
    """Warn of methods of a user's class that RLlib calls and menv does not."""
    for name, advice in HINTS[f"uncalled method of {owner}"].items():
        if callable(getattr(user_class, name, None)):
            warnings.warn(f"{where}.{name} is never called; {advice}", stacklevel=3)


def old_arguments(others: str = "", /, **names: str) -> Callable[[F], F]:
    """Let a method accept arguments by their old names; `others` is the hint for any other unknown argument."""

    def decorate(method: F) -> F:
        known = inspect.signature(method).parameters.keys()

        @functools.wraps(method)
        def call(*args: Any, **given: Any) -> Any:
            given = {names.get(name, name): value for name, value in given.items()}
            if others and given.keys() - known:
                strange = min(given.keys() - known)
                where = type(args[0]).__name__ if method.__name__ == "__init__" else method.__name__
                raise ConfigError(f"{where}: {strange} is given, expected it to be left out; {others}")
            return method(*args, **given)

        return call  # type: ignore[return-value]

    return decorate


class Result(dict[str, Any]):
    """The dict that `train` and `evaluate` return; a missing key of RLlib's says which key to read."""

    def __missing__(self, key: str) -> Any:
        advice = hint("result", key)
        raise KeyError(f"{key}: {advice}" if advice else key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default`; a key of RLlib's warns and says which key to read."""
        # Results without an evaluation are menv's own.
        if key not in self and key != "evaluation" and (advice := hint("result", key)) is not None:
            warnings.warn(f"result.get({key!r}): results have no such key; {advice}", stacklevel=2)
        return super().get(key, default)

    def __repr__(self) -> str:
        own = self.get("evaluation", {}) if len(self) == 1 else self
        mean = own.get("episode_reward_mean")
        parts = [
            f"iteration {own['training_iteration']}" if "training_iteration" in own else "evaluation",
            f"{own.get('episodes_this_iter', 0)} episodes",
            *([] if mean is None else [f"mean return {mean:.2f}"]),
            f"{len(own)} keys",
        ]
        return f"<{type(self).__name__}: {', '.join(parts)}>"
