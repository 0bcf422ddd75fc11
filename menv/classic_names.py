"""What stands in the place of classic attributes of algorithms, workers, environments, policies and configs.

Those classes inherit `Told`, each with its table, as episodes do with one of their own; who asks for such a name is
told. It has no such attribute itself. `classic_keywords` does the same for arguments of methods, `Result` for keys.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from menv.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_CALL_ENVS = 'call algo.call_envs("method", ...) for the environments, wherever they live'
_SETTINGS = "set what it would set as keywords of the config: "
_REPLACE = "call dataclasses.replace(config, name=value), which returns a changed copy"
_WEIGHTS = "get_weights() and set_weights() are its weights, export_checkpoint(folder) writes all of it"

_CHANGED = "change a copy(), and build from that"
_KEPT = "keep what you need of algorithm.config in on_algorithm_init"
_LAST = "read last_result"
_LOSS = "algo.train() learns; a loss of your own is one of a subclass of menv.algorithms.PPOPolicy"
_NO_TRIALS = "menv.algorithms knows no trials; name your runs yourself"
_RUN = "save(folder) writes all of a run, restore(folder) takes it up; get_weights() and set_weights() are the weights"
_STATS = "read info[policy_id] of algorithm.last_result"
_WHO_LEARNS = "read multiagent.policies_to_train of algorithm.config"

OF_ALGORITHMS = {
    "_counters": _LAST,
    "_episodes_total": _LAST,
    "_iteration": "it is called iteration",
    "_timesteps_total": _LAST,
    "action_space": "get_policy(policy_id) has it",
    "add_module": "call add_policy(policy_id)",
    "callbacks": "keep the object that you give as callbacks",
    "cleanup": "call stop()",
    "compute_action": "call compute_single_action(obs)",
    "compute_actions": "call get_policy(policy_id).compute_actions([obs, ...])",
    "default_resource_request": _NO_TRIALS,
    "env": f"{_CALL_ENVS}; config.env says which it is",
    "env_creator": "menv.registry.make_env(config.env, config.env_config) makes an environment",
    "env_runner": f"{_CALL_ENVS}, get_policy(policy_id) for a policy",
    "env_runner_group": f"{_CALL_ENVS}, get_policy(policy_id) for a policy",
    "eval_env_runner_group": "call evaluate(); evaluation_num_workers says in which processes evaluations play",
    "evaluation_metrics": 'read last_result["evaluation"]',
    "evaluation_workers": "call evaluate(); evaluation_num_workers says in which processes evaluations play",
    "export_model": "call export_policy_checkpoint(folder, policy_id), or menv.export_onnx(policy, path)",
    "export_policy_model": "call export_policy_checkpoint(folder, policy_id), or menv.export_onnx(policy, path)",
    "foreach_env": _CALL_ENVS,
    "foreach_env_runner": _CALL_ENVS,
    "foreach_worker": _CALL_ENVS,
    "get_config": "read config",
    "get_default_policy_class": "leave the class out; PolicySpec() is a policy of this algorithm",
    "get_module": "call get_policy(policy_id)",
    "get_state": _RUN,
    "import_model": "call set_weights({policy_id: weights})",
    "learn": 'call train() until what it returns, such as result["timesteps_total"], is enough',
    "learner_group": "call get_weights() and set_weights(weights), which learners go on from",
    "load": "call from_checkpoint(folder) of the class",
    "load_checkpoint": "call restore(folder), or from_checkpoint(folder) of the class",
    "local_replay_buffer": "learners keep it to themselves; capacity and kind are replay_buffer_config",
    "logdir": "no folder is written; set callbacks=TensorBoardCallbacks, or write down what train() returns",
    "merge_trainer_configs": "write {**first, **second}",
    "observation_space": "get_policy(policy_id) has it",
    "optimizer": "learners keep it to themselves; save(folder) writes it too",
    "policy": "call get_policy(policy_id)",
    "predict": "call compute_single_action(obs, explore=False)",
    "remove_module": "call remove_policy(policy_id)",
    "reset_config": "build a new algorithm, or call from_checkpoint(folder, config={...}) of the class",
    "restore_from_path": "call restore(folder)",
    "restore_workers": "leave it out; lost workers are replaced",
    "save_checkpoint": "call save(folder)",
    "save_to_path": "call save(folder)",
    "set_state": _RUN,
    "step": "call train()",
    "timesteps_total": _LAST,
    "train_buffered": "call train()",
    "training_iteration": "it is called iteration",
    "training_step": "call train()",
    "trial_id": _NO_TRIALS,
    "trial_name": _NO_TRIALS,
    "workers": f"{_CALL_ENVS}, get_policy(policy_id) and get_weights() for policies, worker_pids() for the processes; "
    "weights go out by themselves",
}
OF_WORKERS = {
    "async_env": "it is called base_env",
    "batch_mode": _KEPT,
    "callbacks": "keep the object that you give as callbacks",
    "config": "keep what you need of algorithm.config in on_algorithm_init, or put it into env_config",
    "env": "take base_env.get_sub_environments()",
    "env_context": "on_sub_environment_created is given it",
    "env_creator": "base_env.get_sub_environments() has what it made",
    "filters": "they are among policies[policy_id].agent_connectors",
    "foreach_env": "loop over base_env.get_sub_environments(), or call base_env.call(index, method, ...)",
    "foreach_policy": "loop over policies.items()",
    "foreach_policy_to_train": _WHO_LEARNS,
    "foreach_worker": 'callbacks of each worker run where it is; call algo.call_envs("method", ...) from outside',
    "get_policies_to_train": _WHO_LEARNS,
    "get_policy": "take policies[policy_id]",
    "get_weights": "call policies[policy_id].get_weights()",
    "global_vars": 'env_steps counts the steps of each environment; result["timesteps_total"] all of them',
    "io_context": _KEPT,
    "is_policy_to_train": _WHO_LEARNS,
    "learn_on_batch": "algo.train() learns",
    "policies_to_train": _WHO_LEARNS,
    "policy_config": _KEPT,
    "preprocessors": "policies[policy_id].agent_connectors has what observations go through",
    "policy_dict": "policies has the policies by id",
    "policy_mapping_fn": "call episode.policy_for(agent_id)",
    "rollout_fragment_length": _KEPT,
    "sampler": "on_sample_end is given the rows of a fragment, on_postprocess_trajectory those of an episode's agents",
    "set_policy_mapping_fn": "call algorithm.add_policy(..., policy_mapping_fn=...)",
    "set_weights": "call algorithm.set_weights({policy_id: weights})",
    "spaces": "policies[policy_id] has its spaces",
}
OF_POLICIES = {
    "_create_exploration": "leave it out; compute_actions is given explore",
    "action_space_struct": "read action_space",
    "action_dist_class": 'write model={"custom_model": ...}',
    "apply_gradients": _LOSS,
    "compute_action": "call act(obs)",
    "compute_actions_from_input_dict": "call compute_actions([obs, ...])",
    "compute_gradients": _LOSS,
    "compute_log_likelihoods": "compute_actions returns the action_logp of what it chose, and batches have it",
    "compute_single_action": "call act(obs)",
    "cur_lr": _STATS,
    "device": "num_gpus in the config says where networks learn",
    "dist_class": 'write model={"custom_model": ...}',
    "entropy_coeff": _STATS,
    "exploration": "call act(obs, explore=...) or compute_actions(..., explore=...)",
    "export_model": "call export_checkpoint(folder), or menv.export_onnx(policy, path)",
    "framework": "networks learn with torch",
    "get_exploration_state": _STATS,
    "get_session": "there is no TensorFlow here; call act(obs) or compute_actions([obs, ...])",
    "get_state": _WEIGHTS,
    "global_timestep": 'algo.last_result["timesteps_total"] counts env steps',
    "is_recurrent": "get_initial_state() is empty for a policy without a memory",
    "kl_coeff": _STATS,
    "learn_on_batch": _LOSS,
    "loss": _LOSS,
    "model": f"call act(obs) or compute_actions([obs, ...]); {_WEIGHTS}; "
    'a network of your own is model={"custom_model": ...} in the config',
    "observation_space_struct": "read observation_space",
    "num_state_tensors": "call len(get_initial_state())",
    "reset_connectors": "call agent_connectors.reset(env_id)",
    "set_state": _WEIGHTS,
    "update_kl": "kl_coeff and kl_target in the config do so",
    "view_requirements": "batches have previous actions, rewards and observations as columns",
}
OF_BASE_ENVS = {
    "action_space_contains": "ask action_space",
    "action_space_sample": "call action_space.sample()",
    "env_states": "call get_sub_environments()",
    "envs": "call get_sub_environments()",
    "get_unwrapped": "call get_sub_environments()",
    "last": "call poll(), which returns each row once",
    "observation_space_contains": "ask observation_space",
    "observation_space_sample": "call observation_space.sample()",
    "vector_env": "call get_sub_environments()",
}
OF_CONFIGS = {
    "api_stack": "leave it out; there is one",
    "build_algo": "call build()",
    "callbacks_class": "read callbacks",
    "checkpointing": "call algo.save(folder) where you want one",
    "debugging": f"{_SETTINGS}seed=0, log_level=...",
    "env_runners": f"{_SETTINGS}num_workers=2, num_envs_per_worker=4",
    "environment": f"{_SETTINGS}env=..., env_config={{...}}",
    "evaluation": f"{_SETTINGS}evaluation_interval=1, evaluation_duration=10",
    "experimental": "leave it out",
    "exploration": f"{_SETTINGS}explore=True",
    "fault_tolerance": f"{_SETTINGS}restart_failed_sub_environments=True",
    "framework": "leave it out; networks learn with torch",
    "freeze": "leave it out; settings never change",
    "from_dict": "give the dict to the algorithm, such as PPO(env=..., config={...})",
    "get_multi_agent_setup": "read multiagent",
    "is_multi_agent": "read multiagent.policies",
    "learner_class": "leave it out; one process learns",
    "learners": "leave it out; one process learns",
    "minibatch_size": "it is called sgd_minibatch_size",
    "multi_agent": f"{_SETTINGS}multiagent={{...}}",
    "num_env_runners": "it is called num_workers",
    "num_rollout_workers": "it is called num_workers",
    "offline_data": f"{_SETTINGS}input=...",
    "overrides": 'write a dict, such as PolicySpec(config={"gamma": 0.9})',
    "policies": "read multiagent.policies",
    "policies_to_train": "read multiagent.policies_to_train",
    "policy_mapping_fn": "read multiagent.policy_mapping_fn",
    "pop": _CHANGED,
    "reporting": f"{_SETTINGS}metrics_num_episodes_for_smoothing=100",
    "resources": f"{_SETTINGS}num_workers=2, num_gpus=1",
    "rl_module": f"{_SETTINGS}model={{...}}",
    "rollouts": f"{_SETTINGS}num_workers=2, num_envs_per_worker=4",
    "setdefault": _CHANGED,
    "training": f"{_SETTINGS}lr=..., gamma=..., train_batch_size=...",
    "update": _CHANGED,
    "update_from_dict": _REPLACE,
    "validate": "leave it out; settings are checked as they are made",
}
_COUNTS = "counts are keys of the result itself, such as num_env_steps_sampled"
_EPISODES = "episode_reward_mean and policy_reward_mean are keys of the result itself, of an evaluation of its section"
_TUNE = "it is Ray Tune's; write down what you need of a run beside the result"
_WORKERS = "num_worker_restarts counts workers that took the place of lost ones"
OF_RESULTS = {
    "agent_episode_returns_mean": "it is called agent_reward_mean",
    "config": "read algo.config",
    "counters": _COUNTS,
    "date": _TUNE,
    "done": _TUNE,
    "env_runners": _EPISODES,
    "episode_return_max": "it is called episode_reward_max",
    "episode_return_mean": "it is called episode_reward_mean",
    "episode_return_min": "it is called episode_reward_min",
    "evaluation": "set evaluation_interval in the config, or call algo.evaluate()",
    "fault_tolerance": _WORKERS,
    "hostname": _TUNE,
    "iterations_since_restore": "training_iteration goes on after a restore",
    "learner": 'read result["info"][policy_id]',
    "learners": 'read result["info"][policy_id]',
    "module_episode_returns_mean": "it is called policy_reward_mean",
    "num_agent_steps_sampled_lifetime": "it is called num_agent_steps_sampled",
    "num_env_steps_sampled_lifetime": "it is called num_env_steps_sampled",
    "num_env_steps_trained_lifetime": "it is called num_env_steps_trained",
    "num_episodes_lifetime": "it is called episodes_total",
    "num_healthy_workers": _WORKERS,
    "num_remote_worker_restarts": "it is called num_worker_restarts",
    "perf": "sampler_perf has seconds",
    "timers": "sampler_perf and time_this_iter_s are seconds",
    "timesteps_this_iter": "it is called num_env_steps_sampled_this_iter",
    "trial_id": _TUNE,
}


class Result(dict[str, Any]):
    """What an algorithm returns: a dict, which says what stands in the place of keys of RLlib's that it has not."""

    def __missing__(self, key: str) -> Any:
        """Say what stands in the place of a key.

        Raises:
            KeyError: Always.
        """
        raise KeyError(f"{key}: {OF_RESULTS[key]}" if key in OF_RESULTS else key)


class Told:
    """Who asks it for a classic attribute that it does not have is told what to use."""

    __slots__ = ()
    _classic: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, told: Mapping[str, str] | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if told is not None:
            cls._classic = told

    if not TYPE_CHECKING:  # who checks types shall be told of an attribute that there is not

        def __getattr__(self, name: str) -> Any:
            """Say what stands in the place of a classic attribute.

            Raises:
                AttributeError: Always; attributes that there are do not come here.
            """
            if hasattr(type(self), name):
                # A property of this name has raised an AttributeError of its own, which is the one to tell.
                return object.__getattribute__(self, name)
            further = getattr(super(), "__getattr__", None)
            if further is not None:
                # A class of a user's own may have another base, such as a torch module.
                return further(name)
            instead = f"; {self._classic[name]}" if name in self._classic else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{instead}", name=name, obj=self
            )


class OnClass:
    """A classic method that is asked of a class itself, which has it no more than its instances; says what they say."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type[Told]) -> Any:
        """Say what stands in its place.

        Raises:
            AttributeError: Always; one for an instance goes on to `Told`.
        """
        raise AttributeError(
            f"type object {owner.__name__!r} has no attribute {self._name!r}; {owner._classic[self._name]}",
            name=self._name,
            obj=owner,
        )


def classic_keywords(others: str = "", /, **instead: str) -> Callable[[F], F]:
    """Let a method take its classic namesake's arguments by the names that they have here, or say what to do.

    Args:
        others: What to do in the place of any other argument that the method has not; "" leaves that to Python.
        instead: What an argument is called, after "=", or what to do; by its classic name.

    Raises:
        ConfigError: From the method: it was given an argument that it has not.
    """

    def teach(method: F) -> F:
        known = inspect.signature(method).parameters.keys()

        @functools.wraps(method)
        def call(*args: Any, **given: Any) -> Any:
            for name in given.keys() - known if others else given.keys() & instead:
                value, advice = given.pop(name), instead.get(name, others)
                if advice.startswith("="):
                    given[advice[1:]] = value
                elif value is not None or name not in instead:
                    where = type(args[0]).__name__ if method.__name__ == "__init__" else method.__name__
                    raise ConfigError(f"{where}: {name} is given, expected it to be left out; {advice}")
            return method(*args, **given)

        return call  # type: ignore[return-value]

    return teach
