"""Looks at classes of a user's own for methods of the classic kind, which menv never calls or calls otherwise.

`Population` shows it subclasses of `PPOPolicy`, `cohorts` those of `Policy`, `Algorithm` its own class, `torch_custom`
modules.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from menv.errors import ConfigError

_MODEL = 'write model={"custom_model": ...}'
_STATS = "return (loss, {name: scalar}) from loss"
_TRAIN = "call train(), or sample(), in a loop of your own; callbacks have hooks in between"
OF_ALGORITHMS = {
    "execution_plan": _TRAIN,
    "get_default_policy_class": "name the class in multiagent.policies, PolicySpec(policy_class=...)",
    "setup": "write on_algorithm_init in callbacks",
    "step": _TRAIN,
    "training_step": _TRAIN,
    "validate_config": "look at algorithm.config in on_algorithm_init of callbacks",
}
OF_POLICIES = {
    "action_distribution_fn": _MODEL,
    "apply_gradients": "write loss",
    "compute_gradients": "write loss",
    "extra_action_out": "add columns in postprocess_trajectory",
    "extra_compute_grad_fetches": _STATS,
    "extra_grad_info": _STATS,
    "extra_grad_process": "set grad_clip",
    "learn_on_batch": "write loss",
    "make_model": _MODEL,
    "make_model_and_action_dist": _MODEL,
    "optimizer": "set lr and grad_clip",
    "stats_fn": _STATS,
}
OF_MODULES = {"custom_loss": "write loss in a subclass of menv.algorithms.PPOPolicy"}


def warn_of_uncalled(where: str, owner: type, instead: Mapping[str, str]) -> None:
    """Warn of methods of `owner` that nobody calls; `instead` is what to do, by their names."""
    for name, advice in instead.items():
        if callable(getattr(owner, name, None)):
            warnings.warn(f"{where}.{name} is never called; {advice}", stacklevel=3)


def check_policy_class(policy_id: str, policy_class: Any) -> None:
    """Look at a subclass of `PPOPolicy` before it is created.

    Raises:
        ConfigError: Its constructor or its loss has the parameters of classic ones.
    """
    where = f"policies[{policy_id!r}]: {policy_class.__name__}"
    made = ("cohort", "index", "config", "seed")
    _check(
        where, policy_class.__init__, (None, *made), ("network", "settings"),
        "(self, *args, **kwargs); hand all of them on, the spaces, config and settings are attributes then",
    )  # fmt: skip
    _check(
        where, policy_class.loss, (None, "batch"), (),
        "(self, batch); self.network is the model, self.ppo_loss(batch, values=...) PPO's own loss",
    )  # fmt: skip
    warn_of_uncalled(where, policy_class, OF_POLICIES)


def check_own_policy_class(policy_id: str, policy_class: type[Any]) -> None:
    """Look at a subclass of `menv.Policy` before it is created.

    Raises:
        ConfigError: Its constructor has other parameters.
    """
    _check(
        f"policies[{policy_id!r}]: {policy_class.__name__}", policy_class.__init__, (None, None, None, {}), (),
        "(self, observation_space, action_space, config); hand all three on to super().__init__",
    )  # fmt: skip


def _check(
    where: str, method: Callable[..., Any], args: tuple[Any, ...], names: tuple[str, ...], wanted: str
) -> None:
    signature = inspect.signature(method)
    try:
        signature.bind(*args, **dict.fromkeys(names))
    except TypeError as error:
        raise ConfigError(
            f"{where}.{method.__name__}{signature} cannot be called ({error}), expected {wanted}"
        ) from error
