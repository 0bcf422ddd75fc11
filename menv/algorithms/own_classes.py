"""Checks the parameters of a user's policy classes before they are called, and warns of methods that never are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from menv.errors import ConfigError
from menv.migration_hints import warn_of_uncalled


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
    warn_of_uncalled(where, "PPOPolicy", policy_class)


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
