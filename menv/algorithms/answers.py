"""What an algorithm's policies answer to a single observation.

A base class of `menv.algorithms.algorithm.Algorithm`; `menv.policy` answers whole batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.classic_names import F, classic_keywords
from menv.errors import ConfigError, ContractError
from menv.policy import Policy, one_row
from menv.policy_map import DEFAULT_POLICY

if TYPE_CHECKING:
    from menv.algorithms.config.algorithm_config import AlgorithmConfig
    from menv.algorithms.underway import Underway

_READY = "actions come as the environment takes them; normalize_actions and clip_actions are settings"
_ROWS = (
    "call get_policy(policy_id).compute_actions([obs], ...), which takes what policies of your own look at"
)
_COPY = "ask copy.deepcopy(algo.get_policy(policy_id)), made before"


def _state_by_name(method: F) -> F:
    """Say of a second argument beside `policy_id=`, which is the state in the classic order, what to write."""

    @functools.wraps(method)
    def call(*args: Any, **given: Any) -> Any:
        if len(args) > 2 and "policy_id" in given:
            raise ConfigError(
                f"compute_single_action: a {type(args[2]).__name__} as the second argument beside policy_id, expected "
                "the observation alone; pass a memory's state by name, state=..."
            )
        return method(*args, **given)

    return call  # type: ignore[return-value]


class Answers:
    """Answers one observation."""

    config: AlgorithmConfig
    _underway: Underway
    get_policy: Callable[..., Policy]

    @classic_keywords(
        observation="=obs", prev_action=_ROWS, prev_reward=_ROWS, info=_ROWS, input_dict=_ROWS, episode=_ROWS,
        timestep=_ROWS, unsquash_action=_READY, clip_action=_READY, unsquash_actions=_READY, clip_actions=_READY,
    )  # fmt: skip
    @_state_by_name
    def compute_single_action(
        self,
        obs: Any,
        policy_id: str = DEFAULT_POLICY,
        explore: bool | None = None,
        state: Sequence[Any] | None = None,
        *,
        full_fetch: bool = False,
    ) -> Any:
        """Return one policy's env-ready action for one observation.

        Args:
            obs: An element of the policy's observation space.
            policy_id: Who answers.
            explore: False takes the most likely action; None does as `config.explore` says.
            state: Of a recurrent policy: at first `get_policy(policy_id).get_initial_state()`, then what was
                returned for the observation before. With a state, `(action, state, fetches)` is returned.
            full_fetch: Whether these three are returned without a state too.

        Raises:
            CallOrderError: Another thread trains, samples or evaluates.
            ConfigError: There is no such policy.
            ContractError: The observation is outside the space, or a recurrent policy is given no state.
        """
        explore = self.config.explore if explore is None else explore
        if not isinstance(explore, int | np.bool_):
            raise ConfigError(
                f"compute_single_action: explore is {explore!r:.60}, expected True, False or None; "
                "leave it out to do as config.explore says"
            )
        self._underway.refuse_others("compute_single_action", _COPY)
        policy = self.get_policy(policy_id)
        batches = [] if state is None else one_row("compute_single_action", state)
        if not batches and policy.get_initial_state():
            raise ContractError(
                f"compute_single_action: no state for the recurrent policy {policy_id!r}, expected one; pass "
                "state=policy.get_initial_state() at first and the returned state from then on"
            )
        if state is None and not full_fetch:
            return policy.env_action(policy.compute_actions([obs], explore=explore)[0][0])
        actions, states, fetches = policy.compute_actions([obs], batches, explore=explore)
        action = policy.env_action(actions[0])
        return action, [part[0] for part in states], {name: value[0] for name, value in fetches.items()}
