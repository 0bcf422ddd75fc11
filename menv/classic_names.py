"""What stands in the place of attributes that classic algorithms, workers, policies and configs had.

Those classes inherit `Told`, each with its table, as episodes do with one of their own; who asks for such a name is
told. It has no such attribute itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

_CALL_ENVS = 'call algo.call_envs("method", ...) for the environments, wherever they live'
_SETTINGS = "set what it would set as keywords of the config: "
_REPLACE = "call dataclasses.replace(config, name=value), which returns a changed copy"
_WEIGHTS = "get_weights() and set_weights() are its weights, export_checkpoint(folder) writes all of it"

OF_ALGORITHMS = {
    "cleanup": "call stop()",
    "compute_action": "call compute_single_action(obs)",
    "compute_actions": "call get_policy(policy_id).compute_actions([obs, ...])",
    "env_runner": f"{_CALL_ENVS}, get_policy(policy_id) for a policy",
    "env_runner_group": f"{_CALL_ENVS}, get_policy(policy_id) for a policy",
    "evaluation_workers": "call evaluate(); evaluations play in this process",
    "export_policy_model": "call export_policy_checkpoint(folder, policy_id), or menv.export_onnx(policy, path)",
    "get_config": "read config",
    "load_checkpoint": "call restore(folder), or from_checkpoint(folder) of the class",
    "local_replay_buffer": "learners keep it to themselves; capacity and kind are replay_buffer_config",
    "logdir": "no folder is written; set callbacks=TensorBoardCallbacks, or write down what train() returns",
    "save_checkpoint": "call save(folder)",
    "save_to_path": "call save(folder)",
    "step": "call train()",
    "workers": f"{_CALL_ENVS}, get_policy(policy_id) and get_weights() for policies, worker_pids() for the processes",
}
OF_WORKERS = {
    "async_env": "it is called base_env",
    "config": "keep what you need of algorithm.config in on_algorithm_init, or put it into env_config",
    "env": "take base_env.get_sub_environments()",
    "env_context": "on_sub_environment_created is given it",
    "foreach_env": "loop over base_env.get_sub_environments(), or call base_env.call(index, method, ...)",
    "foreach_policy": "loop over policies.items()",
    "get_policy": "take policies[policy_id]",
    "get_weights": "call policies[policy_id].get_weights()",
    "policy_config": "keep what you need of algorithm.config in on_algorithm_init",
    "policy_dict": "policies has the policies by id",
    "set_policy_mapping_fn": "call algorithm.add_policy(..., policy_mapping_fn=...)",
    "set_weights": "call algorithm.set_weights({policy_id: weights})",
}
OF_POLICIES = {
    "action_dist_class": 'write model={"custom_model": ...}',
    "compute_action": "call act(obs)",
    "compute_actions_from_input_dict": "call compute_actions([obs, ...])",
    "compute_single_action": "call act(obs)",
    "dist_class": 'write model={"custom_model": ...}',
    "export_model": "call export_checkpoint(folder), or menv.export_onnx(policy, path)",
    "get_session": "there is no TensorFlow here; call act(obs) or compute_actions([obs, ...])",
    "get_state": _WEIGHTS,
    "is_recurrent": "get_initial_state() is empty for a policy without a memory",
    "learn_on_batch": "algo.train() learns; a loss of your own is one of a subclass of menv.algorithms.PPOPolicy",
    "model": f"call act(obs) or compute_actions([obs, ...]); {_WEIGHTS}; "
    'a network of your own is model={"custom_model": ...} in the config',
    "num_state_tensors": "call len(get_initial_state())",
    "set_state": _WEIGHTS,
}
OF_CONFIGS = {
    "build_algo": "call build()",
    "checkpointing": "call algo.save(folder) where you want one",
    "debugging": f"{_SETTINGS}seed=0, log_level=...",
    "env_runners": f"{_SETTINGS}num_workers=2, num_envs_per_worker=4",
    "environment": f"{_SETTINGS}env=..., env_config={{...}}",
    "evaluation": f"{_SETTINGS}evaluation_interval=1, evaluation_duration=10",
    "exploration": f"{_SETTINGS}explore=True",
    "fault_tolerance": f"{_SETTINGS}restart_failed_sub_environments=True",
    "framework": "leave it out; networks learn with torch",
    "learners": "leave it out; one process learns",
    "multi_agent": f"{_SETTINGS}multiagent={{...}}",
    "offline_data": f"{_SETTINGS}input=...",
    "reporting": f"{_SETTINGS}metrics_num_episodes_for_smoothing=100",
    "resources": f"{_SETTINGS}num_workers=2, num_gpus=1",
    "rollouts": f"{_SETTINGS}num_workers=2, num_envs_per_worker=4",
    "training": f"{_SETTINGS}lr=..., gamma=..., train_batch_size=...",
    "update_from_dict": _REPLACE,
}


class Told:
    """Who asks it for a classic attribute that it does not have is told what to use."""

    __slots__ = ()
    _classic: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, told: Mapping[str, str] | None = None, **others: Any) -> None:
        """Take the table of a class: what to do instead, by name."""
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
