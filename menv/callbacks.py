"""`DefaultCallbacks`: hooks into a run. Subclass it, override what you need, pass the class as `callbacks`.

`menv.sampling.callback_runner` calls the hooks about episodes, `menv.algorithms` the others. All arguments come by
keyword; accept `**kwargs` for the rest.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from menv.errors import ConfigError


class DefaultCallbacks:
    """Does nothing at every hook.

    For each episode, in this order: `on_episode_start` when its first observations are there, `on_episode_step` after
    each env step (including the last one, excluding the reset), `on_postprocess_trajectory` for each agent,
    `on_episode_end`. At the last `on_episode_step` and at `on_episode_end` the sub-environment is as it ended; the
    reset comes afterwards. In another process, call a method of it: `base_env.call(env_index, "score")`.
    A `gymnasium.vector` environment with `AutoresetMode.SAME_STEP`, your own `BaseEnv` and an external
    environment reset themselves and may be in the next episode: read their last step from
    `episode.last_info_for(agent_id)`.

    If `on_postprocess_trajectory` is overridden, trajectories are completed when the fragment closes, and
    `on_episode_end` is called then, after other episodes have begun: read the environment in `on_episode_step`. Keep
    what you count for an episode in `episode.user_data`, not in the callbacks object.

    Change the weights of a policy with Box actions only between two fragments, for example in `on_train_result`.
    Log-probabilities of Box actions are computed when the fragment closes: after `policy.set_weights` in a hook about
    episodes or their steps, they would belong to the new weights. Discrete actions have no such limit.

    An episode that ends because its environment raised has no `on_episode_end`, and is left out of all means: it is
    counted in `num_faulty_episodes`. The next hook of that `env_index` is `on_sub_environment_created`.

    Every algorithm learns the rewards that `on_postprocess_trajectory` and `on_sample_end` leave in a batch, after
    `clip_rewards`, in this process and in workers. Where they change rewards, PPO computes advantages and value targets
    again, unless the same hook or the policy's `postprocess_trajectory` wrote them. Returns in results are what
    the environment paid.

    Entries of `episode.custom_metrics` and `episode.hist_data` that exist at the end of `on_episode_end` are in the
    results.
    """

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Called once, when `algorithm` is complete."""

    def on_sub_environment_created(
        self, *, worker: Any, sub_environment: Any, env_context: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Called for each sub-environment, including replacements and the sub-environments of evaluations.

        Its number is `env_context.vector_index`.
        """

    def on_episode_start(
        self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Called when the first observations of an episode are there and their agents have policies."""

    def on_episode_step(
        self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Called after each env step of an episode; env steps in which no agent waits are merged into one."""

    def on_episode_end(
        self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Called when an episode is over; its rewards and its length are complete."""

    def on_postprocess_trajectory(
        self, *, worker: Any, episode: Any, agent_id: Any, policy_id: str, policies: Any,
        postprocessed_batch: Any, original_batches: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Called for each trajectory chunk when a fragment closes; the batch may be changed in place.

        Rewards that it changes are learned by every algorithm: PPO then computes `advantages` and `value_targets` again
        for `on_sample_end`, unless this hook or the policy's `postprocess_trajectory` wrote them.

        `original_batches` has `(policy_id, policy, batch)` of each agent of the episode that has rows in the fragment:
        copies from before the hook's first change. An agent that returned has all its trajectories in one batch.

        Overriding it delays `on_episode_end` until the fragment closes.
        """

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        """Called with each fragment; the batches of `samples` may be changed in place.

        Every algorithm learns the rewards that it changes, as with `on_postprocess_trajectory`. If it replaces a batch
        with a batch of other rows, the new batch is learned unchanged.
        """

    def on_learn_on_batch(
        self, *, policy: Any, train_batch: Any, result: dict[str, Any], **kwargs: Any
    ) -> None:
        """Called before a policy learns, with the columns that its algorithm learns from.

        They are `advantages` and `value_targets` for PPO, which does not compute them again, and `rewards` for DQN
        and QMIX: change rewards in `on_postprocess_trajectory` or `on_sample_end`.

        Entries of `result` are added to its statistics, and to `info["learner"][policy_id]["custom_metrics"]`.
        """

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Called with each result of `train()`, which may be changed."""

    def on_evaluate_end(self, *, algorithm: Any, evaluation_metrics: dict[str, Any], **kwargs: Any) -> None:
        """Called with the result of an evaluation, which may be changed."""


HOOKS = tuple(name for name in vars(DefaultCallbacks) if name.startswith("on_"))
_OLD_NAMES = {
    "on_trainer_init": "on_algorithm_init", "on_create_policy": "on_algorithm_init",
    "on_episode_created": "on_episode_start", "on_evaluate_start": "on_evaluate_end",
    "on_workers_recreated": "on_train_result", "on_checkpoint_loaded": "on_train_result",
}  # fmt: skip
"""RLlib's hooks that menv does not call, and the nearest that it does."""


def make_multi_callbacks(
    callback_classes: Sequence[type[DefaultCallbacks] | DefaultCallbacks],
) -> type[DefaultCallbacks]:
    """Return a class that calls each of several callbacks, classes or instances, in order."""

    class MultiCallbacks(DefaultCallbacks):
        def __init__(self) -> None:
            self.callbacks = [read_callbacks(one) for one in callback_classes]
            for hook in HOOKS:
                if overrides(self.callbacks, hook):
                    setattr(self, hook, partial(_call_each, self.callbacks, hook))

    return MultiCallbacks


def overrides(value: Any, hook: str) -> bool:
    """Return whether callbacks in any form that `read_callbacks` accepts do anything at a hook."""
    if value is None:
        return False
    if isinstance(value, list | tuple):
        return any(overrides(one, hook) for one in value)
    if isinstance(value, type):
        return getattr(value, hook, None) is not getattr(DefaultCallbacks, hook)
    return hook in getattr(value, "__dict__", ()) or overrides(type(value), hook)


def read_callbacks(value: Any) -> DefaultCallbacks:
    """Return the callbacks that a config's `callbacks` means.

    Args:
        value: A class, an instance, a list of these, or None.

    Raises:
        ConfigError: It is anything else, or has a hook with wrong parameters.
    """
    if value is None:
        return DefaultCallbacks()
    if isinstance(value, list | tuple):
        return make_multi_callbacks(value)()
    if isinstance(value, type) and issubclass(value, DefaultCallbacks):
        value = _created(value)
    if isinstance(value, DefaultCallbacks):
        _check_hooks(value)
        return value
    given = value.__name__ if isinstance(value, type) else type(value).__name__
    typed = ", and write @module:Name of it on a command line" if isinstance(value, str) else ""
    raise ConfigError(
        f"callbacks: {given}, expected a subclass of menv.DefaultCallbacks, or an instance; derive it from that{typed}"
    )


def _check_hooks(callbacks: DefaultCallbacks) -> None:
    """Warn of methods that look like hooks; refuse hooks that cannot be called with their arguments."""
    name = type(callbacks).__name__
    for hook in HOOKS:
        if not overrides(callbacks, hook):
            continue
        _, *given, _ = inspect.signature(getattr(DefaultCallbacks, hook)).parameters
        signature: Any = ""
        try:
            signature = inspect.signature(getattr(callbacks, hook))
            signature.bind(**dict.fromkeys(given))
        except TypeError as error:
            raise ConfigError(
                f"callbacks: {name}.{hook}{signature} cannot be called ({error}), expected (self, *, "
                f"{', '.join([*given, '**kwargs'])}); correct its parameters"
            ) from error
    for method in (name for name in dir(callbacks) if name.startswith("on_") and name not in HOOKS):
        near = _OLD_NAMES.get(method) or next(iter(difflib.get_close_matches(method, HOOKS, 1, 0.8)), None)
        if near:
            warnings.warn(
                f"callbacks: {name}.{method} is not a hook and never called; did you mean {near!r}?",
                stacklevel=2,
            )


def _created(callback_class: type[DefaultCallbacks]) -> DefaultCallbacks:
    try:
        inspect.signature(callback_class).bind()
    except TypeError as error:
        raise ConfigError(
            f"callbacks: {callback_class.__name__} cannot be created without arguments ({error}), expected no "
            "parameters without a default; pass an instance"
        ) from error
    return callback_class()


def _call_each(callbacks: Sequence[DefaultCallbacks], hook: str, **kwargs: Any) -> None:
    for one in callbacks:
        getattr(one, hook)(**kwargs)
