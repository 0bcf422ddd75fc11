"""What a user's own policies are shown besides observations: what each agent has done and been told in this life.

`menv.loop.own_cohort` keeps a `LifeLedger` for policies that decide in `compute_actions`, and asks them here. Policies
that override `Policy.answer` need none of it and cost none of it. Nothing here knows networks or environments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from menv.connectors.action_steps import CustomSteps
from menv.connectors.clip_reward import clip_reward
from menv.errors import ContractError
from menv.ledger import Ledger, Rows
from menv.policy import Policy, parts_given
from menv.segments import Column

_NOTHING: Mapping[str, Any] = {}
_GIVEN = dict.fromkeys(
    [
        "state_batches",
        "prev_action_batch",
        "prev_reward_batch",
        "info_batch",
        "episodes",
        "explore",
        "timestep",
    ]
).keys()
"""What `compute_actions` is given besides observations, in order."""


_OF_EVERY_BATCH = {
    "obs", "new_obs", "actions", "prev_actions", "rewards", "prev_rewards", "terminateds", "truncateds", "dones",
    "infos", "action_mask", "t", "env_t", "next_env_t", "eps_id", "agent_index", "env_id", "unroll_id", "seq_lens",
    "seq_mask", "off_policy", "weights_seq_no", "slots", "income", "answered",
}  # fmt: skip
"""Columns that batches have without a policy's help, which no fetch may replace."""

_OF_A_LIFE = ("acted", "action", "reward", "early", "info", "states")


@dataclass(slots=True)
class Life:
    """What is remembered of a life that goes on.

    Attributes:
        acted: Whether an action has been taken in it.
        action: The last one.
        reward: What it earned.
        early: What came in before the first action.
        info: The info dict that came with the observation that waits for an answer.
        states: What the policy wants to be shown again.
    """

    acted: bool = False
    action: Any = None
    reward: float = 0.0
    early: float = 0.0
    info: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    states: list[Any] = field(default_factory=list)


class PolicyOutput(NamedTuple):
    """What `compute_actions` returned for R rows.

    Attributes:
        actions: R of them.
        states_in: Each part of the states before the rows, [R, ...].
        states_out: Each part of the states after them, [R, ...].
        fetches: Anything else by name.
    """

    actions: Sequence[Any]
    states_in: list[Column]
    states_out: list[Column]
    fetches: Mapping[str, Any]

    def columns(self, policy_id: str) -> dict[str, Column]:
        """Return the states and fetches as columns of a batch, [R, ...] each.

        Raises:
            ContractError: A fetch has not one value for each row, or the name of a column that every batch has.
        """
        columns = {f"state_in_{number}": part for number, part in enumerate(self.states_in)}
        columns |= {f"state_out_{number}": part for number, part in enumerate(self.states_out)}
        for name, values in self.fetches.items():
            try:
                column = np.asarray(values)
            except ValueError:
                column = np.zeros(())
            if name in _OF_EVERY_BATCH or column.shape[:1] != (len(self.actions),):
                raise ContractError(
                    f"policy {policy_id!r}: fetch {name!r} of compute_actions has shape {column.shape}, expected a "
                    f"first axis of {len(self.actions)}, one value for each observation, and a name that no column of "
                    "every batch has; return such an array, or leave it out"
                )
            columns[str(name)] = column.astype(object) if column.dtype.kind in "SUMm" else column
        return columns


class LifeLedger(Ledger):
    """A ledger that also remembers the last row of each life.

    Attributes:
        lives: By slot, those that go on and the last ones of slots that nobody has.
    """

    def __init__(self, *columns: Any) -> None:
        super().__init__(*columns)
        self.lives: dict[int, Life] = {}
        self._waiting: list[Life] = []

    def start(self, start: tuple[int, ...], agent_id: Any) -> None:
        """Begin a trajectory, which remembers nothing; see `Ledger.start`."""
        super().start(start, agent_id)
        self.lives[start[0]] = Life()

    def lives_state(self, slots: Sequence[int]) -> list[list[Any] | None]:
        """Return what is remembered of the lives on some slots, None where there is none."""
        found = [self.lives.get(slot) for slot in slots]
        return [None if life is None else [getattr(life, name) for name in _OF_A_LIFE] for life in found]

    def take_up_lives(self, slots: Sequence[int], lives: Sequence[list[Any] | None]) -> None:
        """Go on with lives of which `lives_state` told."""
        for slot, life in zip(slots, lives, strict=True):
            self.lives[slot] = Life() if life is None else Life(*life)

    def add(self, slots: Column, obs: Column, mask: Column | None, rewards: Column) -> slice:
        """Write down that R agents wait; see `Ledger.add`."""
        self._waiting = [self.lives[slot] for slot in slots.tolist()]
        for life, reward in zip(self._waiting, rewards.tolist(), strict=True):
            if life.acted:
                life.reward, life.early = life.early + reward, 0.0
            else:
                # What comes in before the first action counts as earned by it, as in the batch.
                life.early = reward
            life.info = _NOTHING
        return super().add(slots, obs, mask, rewards)

    def keep(self, rows: Rows, columns: Mapping[str, Column], policy_id: str) -> None:
        """Write states and fetches of rows into columns of their own; see `Ledger.mark`."""
        for name, values in columns.items():
            have = self._columns.get(name)
            if have is not None and have.shape[1:] != values.shape[1:]:
                raise ContractError(
                    f"policy {policy_id!r}: {name!r} of compute_actions has rows of shape {values.shape[1:]}, expected "
                    f"{have.shape[1:]} as before; return states and fetches of the same shapes in every call"
                )
            if have is not None and not np.can_cast(values.dtype, have.dtype, "same_kind"):
                self._columns[name] = have.astype(np.result_type(have.dtype, values.dtype))
            self.mark(name, rows, values)

    def inform(self, infos: Sequence[Mapping[str, Any]] | None, places: Column | None) -> None:
        """Note the info dicts that came in with the rows of the last `add`; see `Ledger.inform`."""
        super().inform(infos, places)
        if infos:
            for life, place in zip(
                self._waiting, range(len(infos)) if places is None else places, strict=True
            ):
                life.info = infos[place]


def decides_in_compute_actions(policy: Policy) -> bool:
    """Return whether a policy's class says in `compute_actions` what it does, rather than in `answer`."""
    for kind in type(policy).__mro__:
        if kind is Policy or "answer" in vars(kind):
            return kind is Policy
        if "compute_actions" in vars(kind):
            return True
    return True


def decide(
    policy: Policy,
    lives: Sequence[Life],
    obs_batch: Sequence[Any],
    policy_id: str,
    episodes: Any = None,
    explore: bool | None = None,
    timestep: int | None = None,
) -> PolicyOutput:
    """Return what a policy decides for R lives, and remember it for their next rows.

    Args:
        policy: It decides in `compute_actions`.
        lives: R of them.
        obs_batch: R observations.
        policy_id: For messages.
        episodes: R of them.
        explore: False asks for the most likely actions.
        timestep: Env steps sampled so far.

    Raises:
        ContractError: The policy returned something else than actions, states and fetches for R rows.
    """
    shown = [
        life.states
        if life.acted
        else parts_given(f"policy {policy_id!r}: get_initial_state", policy.get_initial_state())
        for life in lives
    ]
    before = _columns(shown, policy_id)
    given = (
        obs_batch, before, _previous_actions(policy.action_space, lives),
        _previous_rewards(policy, lives), [life.info for life in lives], episodes, explore, timestep,
    )  # fmt: skip
    names = _taken_by_name(type(policy).compute_actions)
    if names is None:
        answer = policy.compute_actions(*given)
    else:
        by_name = {name: value for name, value in zip(_GIVEN, given[1:], strict=True) if name in names}
        answer = policy.compute_actions(obs_batch, **by_name)
    if not isinstance(answer, tuple) or len(answer) != 3:
        count = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
        raise ContractError(
            f"policy {policy_id!r}: compute_actions returned {count}, expected (actions, states, fetches); "
            "return all three, [] and {} where there is nothing to tell"
        )
    actions: Sequence[Any] = answer[0]
    if not isinstance(actions, Sized) or (isinstance(actions, np.ndarray) and not actions.ndim):
        raise ContractError(
            f"policy {policy_id!r}: the actions of compute_actions are {type(actions).__name__}, expected a list, one "
            "action for each observation; return [action], [], {}"
        )
    if len(actions) != len(obs_batch):
        raise ContractError(
            f"policy {policy_id!r}: answered {len(actions)} of {len(obs_batch)} observations, expected one action "
            "each; obs_batch is a list, return len(obs_batch) actions"
        )
    states = _checked_states(answer[1], len(shown[0]), len(lives), policy_id)
    for row, (life, action) in enumerate(zip(lives, actions, strict=True)):
        life.acted, life.action, life.states = True, action, [column[row] for column in states]
    fetches = answer[2] or {}
    if not isinstance(fetches, Mapping):
        raise ContractError(
            f"policy {policy_id!r}: the fetches of compute_actions are {type(fetches).__name__}, expected a dict; "
            "return {} where there is nothing to tell"
        )
    return PolicyOutput(actions, before, states, fetches)


@lru_cache(maxsize=256)
def _taken_by_name(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return which of `_GIVEN` a `compute_actions` takes, None if it takes everything by position.

    Raises:
        ContractError: It has parameters that nobody can give.
    """
    signature = inspect.signature(function)
    with suppress(TypeError):
        signature.bind(None, None, *_GIVEN)
        return None
    parameters = signature.parameters
    rest = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    names = frozenset(_GIVEN if rest else _GIVEN & parameters.keys())
    try:
        signature.bind(None, None, **dict.fromkeys(names))
    except TypeError as error:
        raise ContractError(
            f"{function.__qualname__}: its parameters are {signature} ({error}), expected self, obs_batch and any of "
            f"{', '.join(_GIVEN)}; name them so, or take **kwargs"
        ) from error
    return names


def _columns(states: Sequence[list[Any]], policy_id: str) -> list[Column]:
    """Return each part of the states as an array [R, ...]."""
    try:
        return [np.stack([np.asarray(one[part]) for one in states]) for part in range(len(states[0]))]
    except (IndexError, ValueError) as error:
        raise ContractError(
            f"policy {policy_id!r}: states of several shapes, expected those of get_initial_state in every life; "
            "return states of the shapes that came in as state_batches"
        ) from error


def _previous_actions(space: gym.Space[Any], lives: Sequence[Life]) -> Any:
    """Return R actions: an array with zeros before the first, a list with None for spaces that are no array."""
    if not isinstance(space, gym.spaces.Discrete | gym.spaces.Box | gym.spaces.MultiDiscrete):
        return [life.action for life in lives]
    column = np.zeros((len(lives), *(space.shape or ())), space.dtype)
    for row, life in enumerate(lives):
        if life.acted:
            column[row] = life.action
    return column


def _previous_rewards(policy: Policy, lives: Sequence[Life]) -> Column:
    """Return [R] what the previous actions earned, clipped where `clip_rewards` is set."""
    rewards = np.array([life.reward for life in lives])
    limit = policy.given_steps.clip_rewards if isinstance(policy.given_steps, CustomSteps) else False
    return clip_reward(rewards, limit) if limit else rewards


def _checked_states(states: Any, count: int, rows: int, policy_id: str) -> list[Column]:
    """Return the states that a policy returned, each part an array of its own.

    Raises:
        ContractError: They are more or fewer than it began with, or not one a row.
    """
    parts = [] if states is None else parts_given(f"policy {policy_id!r}: compute_actions", states)
    lengths = [len(part) if hasattr(part, "__len__") else 0 for part in parts]
    if lengths != [rows] * count:
        raise ContractError(
            f"policy {policy_id!r}: compute_actions returned {len(parts)} states with {lengths} rows, expected {count} "
            f"with {rows}; define get_initial_state and return states like those that came in as state_batches"
        )
    # Copied, for the policy may use its arrays again.
    return [np.array(part) for part in parts]
