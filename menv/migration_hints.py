"""What to write instead of names of RLlib and Stable-Baselines3: one table, and the functions that read it.

`docs/reference/classic.md` lists the names. Packages, algorithms, configs and results look up a name that they do not
have.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

ONLY_VALUES: dict[str, Any] = {
    "exploration_config": {"type": "StochasticSampling"}, "num_atoms": 1, "use_critic": True, "use_gae": True,
}  # fmt: skip
"""Settings that can only have one value, which is accepted. Other settings of the table below may be off."""

_CALL_ENVS = 'call algo.call_envs("method", ...) for environments and get_policy(policy_id) for policies'
_MODEL = 'write model={"custom_model": YourModule} with a torch.nn.Module; see docs/reference/classic.md'
_RENAMED = {
    "QMixTrainer": "QMIX",
    "DQNTrainer": "DQN",
    "SACTrainer": "SAC",
    "PPOTrainer": "PPO",
    "PPOTorchPolicy": "PPOPolicy",
}

_TABLE: dict[str, dict[str, str]] = {
    "import": {
        "A2C A3C APPO DDPG ES IMPALA PG TD3 a2c a3c appo ddpg es impala pg td3": "menv.algorithms has PPO, DQN, "
        "SAC and QMIX",
        "ModelCatalog RLModule TorchModelV2": _MODEL,
        "MultiAgentCartPole": 'write menv.make_multi_agent("CartPole-v1")',
        "RLlibCallback": "write from menv import DefaultCallbacks",
        "RolloutWorker": _CALL_ENVS,
        "TaskSettableEnv": 'write a set_task method; algo.call_envs("set_task", task) calls it',
        "VecNormalize": 'set observation_filter="MeanStdFilter" in the config',
        "convert_to_base_env": "write from menv import to_base_env",
        "make_vec_env": "num_envs_per_worker in the config says how many environments there are",
        **{old: f"write from menv.algorithms import {new}" for old, new in _RENAMED.items()},
    },
    "Algorithm": {
        "get_module": "call get_policy(policy_id)",
        "load": "call restore(folder), or from_checkpoint(folder) of the class",
        "predict": "call compute_single_action(obs, explore=...)",
        "workers": _CALL_ENVS,
    },
    "result": {
        "agent_episode_returns_mean": "it is called agent_reward_mean",
        "config": "read algo.config",
        "counters": "counts are keys of the result itself, such as num_env_steps_sampled",
        "env_runners": "episode_reward_mean and policy_reward_mean are keys of the result itself",
        "episode_return_mean": "it is called episode_reward_mean",
        "evaluation": "set evaluation_interval in the config, or call algo.evaluate()",
        "learners": 'read result["info"][policy_id]',
        "module_episode_returns_mean": "it is called policy_reward_mean",
        "num_env_steps_sampled_lifetime": "it is called num_env_steps_sampled",
        "num_healthy_workers": "num_worker_restarts counts workers that replaced lost ones",
        "timers": "sampler_perf and time_this_iter_s are seconds",
    },
    "ignored setting": {
        "_disable_preprocessor_api _enable_learner_api _enable_rl_module_api compress_observations "
        "create_env_on_driver custom_resources_per_worker disable_env_checking eager_tracing enable_connectors "
        "enable_env_runner_and_connector_v2 enable_rl_module_and_learner framework ignore_worker_failures "
        "num_cpus_for_driver num_cpus_per_env_runner num_cpus_per_worker num_gpus_per_env_runner "
        "num_gpus_per_learner num_gpus_per_worker num_learners preprocessor_pref recreate_failed_workers render_env "
        "shuffle_sequences simple_optimizer synchronize_filters v_max v_min": "leave it out",
    },
    "setting": {
        "checkpointing": "give save_every to learn(), or keep_last to save()",
        "experimental python_environment": "leave it out",
        "learners": "call resources(num_gpus=...), and training(...) for what learns",
        "before_learn_on_batch": "write on_learn_on_batch in callbacks",
        "buffer_size": 'write replay_buffer_config={"capacity": ...}',
        "custom_eval_function": "call algo.evaluate() yourself",
        "env_task_fn": 'call algorithm.call_envs("set_task", task) in on_train_result of callbacks',
        "horizon soft_horizon": "wrap the environment in menv.wrappers.TimeLimit",
        "min_sample_timesteps_per_iteration timesteps_per_iteration": "set train_batch_size, which an iteration "
        "samples and learns from",
        "n_steps": "rollout_fragment_length is the length of a fragment, n_step that of DQN's returns",
        "no_done_at_end": "set truncateds rather than terminateds in the environment",
        "noisy num_atoms": "leave it out",
        "optimizer": "set lr and grad_clip; Adam is what learns",
        "output": "set callbacks=menv.offline.RecordCallbacks(path)",
        "policy_kwargs": 'write model={"fcnet_hiddens": [...]}',
        "rl_module_spec custom_action_dist": _MODEL,
        "sample_async": "set overlap=True and num_workers to 1 or more",
        "stop": "call train() until its result is what you want; menv train has --stop",
        "use_attention": "set use_lstm or use_gru, or write a custom_model",
        "use_critic use_gae": "advantages always use values; lambda=1 gives returns less values",
    },
    "uncalled method of Algorithm": {
        "get_default_policy_class": "name the class in multiagent.policies, PolicySpec(policy_class=...)",
        "training_step": "call train(), or sample(), in your own loop; callbacks have hooks",
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


def hinted(advise: Callable[[Any, str], str | None]) -> Callable[[Any, str], Any]:
    """Return the `__getattr__` of a public class; its AttributeError ends with what `advise` says of an old name."""

    def missing(self: Any, name: str) -> Any:
        kind = type(self)
        if hasattr(kind, name):
            # A property raised an AttributeError.
            return object.__getattribute__(self, name)
        advice = advise(self, name)
        raise AttributeError(
            f"{kind.__name__!r} object has no attribute {name!r}" + (f"; {advice}" if advice else ""),
            name=name,
            obj=self,
        )

    return missing


class OldAttribute:
    """An attribute of RLlib that a class lacks: reading it says what to write, and a subclass may set it."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}; {self._advice}")


def warn_of_uncalled(where: str, owner: str, user_class: type) -> None:
    """Warn of methods of a user's class that RLlib calls and menv does not."""
    for name, advice in HINTS[f"uncalled method of {owner}"].items():
        if callable(getattr(user_class, name, None)):
            warnings.warn(f"{where}.{name} is never called; {advice}", stacklevel=3)


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
