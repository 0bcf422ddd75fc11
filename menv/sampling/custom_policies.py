"""How custom policies act: `Policy` objects that users wrote.

Policies that override `compute_actions` receive the previous action, reward, state and info of each agent, which the
strategy keeps. Policies that override `Policy.answer` need none of this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv.base_env import Column, End, EnvId, ExternalSteps, Ready
from menv.connectors.action_output import element
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError, ContractError
from menv.inference.connector_path import Seats
from menv.policy import Policy, RowDraws, parts_given
from menv.policy_spec import PolicySpec
from menv.sampling.policy_group import ActingStrategy, Answers, Connected, PendingRows, is_retired
from menv.sampling.rollout_buffer import INTERNAL, Prepared, RolloutBuffer
from menv.sampling.trajectories import TrajectoryTable
from menv.spaces import OutsideSpaceError, stack, why_outside

_NO_INFO: Mapping[str, Any] = {}
_PLAIN = gym.spaces.Discrete | gym.spaces.Box | gym.spaces.MultiDiscrete
"""Spaces of actions that are a column of numbers."""
_OF_EVERY_BATCH = {
    "obs", "new_obs", "actions", "prev_actions", "rewards", "prev_rewards", "terminateds", "truncateds", "dones",
    "infos", "action_mask", "t", "env_t", "next_env_t", "eps_id", "agent_index", "env_id", "unroll_id", "seq_lens",
    "off_policy", "weights_seq_no",
}  # fmt: skip
"""Reserved columns, which no fetch may replace."""

CustomOutput: TypeAlias = tuple[Sequence[Any], list[Column], list[Column], Mapping[str, Any]]
"""R actions, the parts [R, ...] of the states before and after, and the fetches."""


@dataclass(slots=True)
class AgentHistory:
    """The last step of a running agent episode, which `Policy.compute_actions` receives.

    Attributes:
        acted: Whether there is a previous action.
        action: The previous action.
        reward: Its reward.
        early: The reward before the first action.
        info: The info dict of the current observation.
        states: The recurrent state that the policy returned.
    """

    acted: bool = False
    action: Any = None
    reward: float = 0.0
    early: float = 0.0
    info: Mapping[str, Any] = field(default_factory=lambda: _NO_INFO)
    states: list[Any] = field(default_factory=list)


def acts_in_compute_actions(policy: Policy) -> bool:
    """Return whether a policy's class overrides `compute_actions` rather than `answer`."""
    for kind in type(policy).__mro__:
        if kind is Policy or "answer" in vars(kind):
            return kind is Policy
        if "compute_actions" in vars(kind):
            return True
    return True


def decide(
    policy: Policy,
    histories: Sequence[AgentHistory],
    obs_batch: Sequence[Any],
    policy_id: str,
    episodes: object = None,
    explore: bool | None = None,
    timestep: int | None = None,
) -> CustomOutput:
    """Call `compute_actions` for R agents and update their histories; ContractError for another form of answer."""
    where = f"policy {policy_id!r}: get_initial_state"
    shown = [one.states if one.acted else parts_given(where, policy.get_initial_state()) for one in histories]
    before = _columns(shown, policy_id)
    given: dict[str, Any] = {
        "state_batches": before,
        "prev_action_batch": _previous_actions(policy.action_space, histories),
        "prev_reward_batch": np.array([history.reward for history in histories]),
        "info_batch": [history.info for history in histories],
        "episodes": episodes,
        "explore": explore,
        "timestep": timestep,
    }
    wanted = _wanted(type(policy).compute_actions)
    if wanted is None:
        answer = policy.compute_actions(obs_batch, *given.values())
    else:
        answer = policy.compute_actions(
            obs_batch, **{name: value for name, value in given.items() if "**" in wanted or name in wanted}
        )
    if not isinstance(answer, tuple) or len(answer) != 3 or not isinstance(answer[2] or {}, Mapping):
        raise ContractError(
            f"policy {policy_id!r}: compute_actions returned {type(answer).__name__}, expected (actions, states, "
            "fetches), the last one a dict; return all three, [] and {} where they are empty"
        )
    actions = _one_for_each(answer[0], len(obs_batch), policy_id)
    states = _checked_states(answer[1], len(shown[0]), len(histories), policy_id)
    for row, (history, action) in enumerate(zip(histories, actions, strict=True)):
        history.acted, history.action, history.states = True, action, [column[row] for column in states]
    return actions, before, states, answer[2] or {}


@lru_cache(maxsize=256)
def _wanted(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of a function's parameters, "**" among them if it accepts others; None if it has `*args`."""
    parameters = inspect.signature(function).parameters
    kinds = {one.kind for one in parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return frozenset([*parameters, *(["**"] if inspect.Parameter.VAR_KEYWORD in kinds else [])])


def _one_for_each(actions: Any, count: int, policy_id: str) -> Sequence[Any]:
    """Return the actions for `count` observations, unchanged."""
    sized = isinstance(actions, Sized) and not (isinstance(actions, np.ndarray) and not actions.ndim)
    if not sized or len(actions) != count:
        number = f"{len(actions)} actions" if sized else f"a {type(actions).__name__}"
        raise ContractError(
            f"policy {policy_id!r}: answered {number} for {count} observations, expected one for each; return as many"
        )
    return actions  # type: ignore[no-any-return]


def _columns(states: Sequence[list[Any]], policy_id: str) -> list[Column]:
    """Return each part of the states as an array [R, ...]."""
    try:
        return [np.stack([np.asarray(one[part]) for one in states]) for part in range(len(states[0]))]
    except (IndexError, ValueError) as error:
        raise ContractError(
            f"policy {policy_id!r}: states of several shapes, expected the shapes of get_initial_state; return these"
        ) from error


def _previous_actions(space: gym.Space[Any], histories: Sequence[AgentHistory]) -> Any:
    """Return R previous actions: an array with zeros where there is none, or a list with None for other spaces."""
    if not isinstance(space, _PLAIN):
        return [history.action for history in histories]
    column = np.zeros((len(histories), *(space.shape or ())), space.dtype)
    for row, history in enumerate(histories):
        if history.acted:
            column[row] = history.action
    return column


def _checked_states(states: object, count: int, rows: int, policy_id: str) -> list[Column]:
    """Return copies of the states that a policy returned, whose arrays it may reuse."""
    parts = [] if states is None else parts_given(f"policy {policy_id!r}: compute_actions", states)
    lengths = [len(part) if hasattr(part, "__len__") else 0 for part in parts]
    if lengths != [rows] * count:
        raise ContractError(
            f"policy {policy_id!r}: compute_actions returned {len(parts)} states with {lengths} rows, expected {count} "
            f"with {rows}; return one row for each row of state_batches"
        )
    return [np.array(part) for part in parts]


class CustomPolicyStrategy(ActingStrategy):
    """`Policy` objects that users wrote; each acts for its own rows and receives raw observations."""

    reads_episodes = True

    def __init__(
        self,
        policy_ids: Sequence[str],
        policies: Sequence[Policy],
        observation_space: gym.Space[Any],
        action_space: Any,
        uses_compute_actions: Sequence[bool] | None = None,
    ) -> None:
        self.policy_ids = list(policy_ids)
        self.policies: list[Policy] = list(policies)
        self.observation_space = observation_space
        self.action_space = action_space
        self._plain = isinstance(action_space, _PLAIN)
        self._uses_compute_actions = (
            [acts_in_compute_actions(one) for one in policies]
            if uses_compute_actions is None
            else uses_compute_actions
        )
        self._keeps_histories = any(self._uses_compute_actions)
        # By slot, of running agent episodes and of the last one on each free slot.
        self._histories: dict[int, AgentHistory] = {}
        # For the column `obs`; None where the space cannot be flattened.
        self._preprocess: ObsPreprocessor | None = None
        with suppress(ConfigError):
            self._preprocess = ObsPreprocessor(observation_space)

    def __reduce__(self) -> Any:
        # Removed policies stay in this process; no episode of another process begins with them.
        there = [
            None if is_retired(name) else one
            for name, one in zip(self.policy_ids, self.policies, strict=True)
        ]
        return CustomPolicyStrategy, (
            list(self.policy_ids), there, self.observation_space, self.action_space, self._uses_compute_actions,
        )  # fmt: skip

    def clone(self) -> CustomPolicyStrategy:
        return CustomPolicyStrategy(
            self.policy_ids, self.policies, self.observation_space, self.action_space, self._uses_compute_actions,
        )  # fmt: skip

    def new_buffer(self) -> RolloutBuffer:
        self._histories = {}
        space, one = self.action_space, self._preprocess
        shape, dtype = (tuple(space.shape), space.dtype) if self._plain else ((), object)
        if one is None:
            return RolloutBuffer(0, 0, shape, dtype)
        return RolloutBuffer(one.size, one.mask_width, shape, dtype, 0, one.dtype)

    def connect(self) -> None:
        """The connectors of custom policies are part of them."""

    def admit(self, policy_id: str, policy: Policy, place: int, spec: PolicySpec) -> bool:
        spaces = spec.observation_space == self.observation_space and spec.action_space == self.action_space
        # Histories are kept only for policies that act in `compute_actions`.
        if not spaces or acts_in_compute_actions(policy) != self._uses_compute_actions[place]:
            return False
        self.policy_ids[place], self.policies[place] = policy_id, policy
        return True

    def update_policies(self, other: ActingStrategy) -> None:
        for place, (mine, theirs) in enumerate(zip(self.policy_ids, other.policy_ids, strict=True)):
            if mine != theirs and not is_retired(theirs):
                self.policies[place] = other.policies[place]
        self.policy_ids[:] = other.policy_ids

    def start(self, slot: int, policy: int) -> None:
        if self._keeps_histories:
            self._histories[slot] = AgentHistory()

    def rows(self, block: PendingRows, obs: Any, rewards: Column, ready: Ready) -> Connected:
        preprocess = self._preprocess
        rows, mask = (
            (np.zeros((len(rewards), 0), np.float32), None) if preprocess is None else preprocess(obs)
        )
        if self._keeps_histories:
            infos = block.of(ready.infos) if ready.infos else [_NO_INFO] * len(rewards)
            waiting = [self._histories[slot] for slot in block.slots.tolist()]
            for history, reward, info in zip(waiting, rewards.tolist(), infos, strict=True):
                if history.acted:
                    history.reward, history.early = history.early + reward, 0.0
                else:
                    # A reward before the first action counts as that action's, as in the batch.
                    history.early = reward
                history.info = info
        return rows, mask, rewards

    def end(self, policy: int, end: End) -> End:
        return end

    def end_episode(self, env_id: EnvId) -> None:
        """Episodes leave nothing here."""

    def finals(self, finals: list[Any], policies: Column) -> Prepared:
        if self._preprocess is None:
            return np.zeros((len(finals), 0), np.float32), None
        return self._preprocess.finals(finals)

    def bad_row(self, obs: Column) -> tuple[int, str] | None:
        return None if self._preprocess is None else self._preprocess.why_bad_row(obs)

    def fragment_closed(self, buffer: RolloutBuffer) -> None:
        """Rows need no weights."""

    def env_actions(self, actions: Column, which: int) -> Answers:
        return self._env_ready(actions, which)

    def _env_ready(self, actions: Sequence[Any] | Column, which: Column | int) -> Answers:
        """Return R env-ready actions: write-protected copies within the space; the error names the policy."""
        try:
            if self._plain:
                return self._protected(self.network_form(actions, which))
            return [element(action, self.action_space, row) for row, action in enumerate(actions)]
        except OutsideSpaceError as error:
            raise self._refused(error, which) from error

    def _refused(self, error: OutsideSpaceError, which: Column | int) -> ContractError:
        index = which if isinstance(which, int) else int(which[error.row])
        return ContractError(
            f"policy {self.policy_ids[index]!r}: {error.why}; return actions of policy.action_space"
        )

    def _protected(self, rows: Column) -> Answers:
        """Return actions [R, ...] write-protected, after a check of their bounds."""
        space = self.action_space
        if isinstance(space, gym.spaces.Discrete):
            return rows.astype(space.dtype, copy=False)
        box = isinstance(space, gym.spaces.Box)
        low, high = (space.low, space.high) if box else (space.start, space.start + space.nvec - 1)
        inside = ((rows >= low) & (rows <= high)).reshape(len(rows), -1).all(1)
        if not inside.all():
            row = int(np.argmin(inside))
            raise OutsideSpaceError(
                row, why_outside(space, rows[row], "action") or "action: outside the space"
            )
        rows.flags.writeable = False
        return rows if rows.ndim > 1 else [np.asarray(row) for row in rows]

    def network_form(self, actions: Any, which: Column | int) -> Column:
        if isinstance(self.action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            return stack(list(actions), self.action_space, "action")
        if self._plain:
            return self._numbers(actions)
        column = np.empty(len(actions), object)
        column[:] = list(actions)
        return column

    def _numbers(self, actions: Any) -> Column:
        """Return R elements of a Box as one array, without a check of its bounds."""
        space = self.action_space
        try:
            rows = np.array(actions, space.dtype)
        except (TypeError, ValueError):
            rows = np.zeros(0)
        if rows.shape == (len(actions), *space.shape) and np.isfinite(rows).all():
            return rows
        reasons = ((row, why_outside(space, action, "action")) for row, action in enumerate(actions))
        raise OutsideSpaceError(
            *next(((row, why) for row, why in reasons if why), (0, "action: expected finite numbers"))
        )

    def client_acted(self, block: PendingRows, buffer: RolloutBuffer, actions: Sequence[Any]) -> None:
        if self._keeps_histories:
            for slot, action in zip(block.slots.tolist(), actions, strict=True):
                history = self._histories[slot]
                history.acted, history.action = True, action

    def record_external_steps(
        self, buffer: RolloutBuffer, rows: Column, slot: int, which: int, steps: ExternalSteps
    ) -> None:
        buffer.set_actions(rows, self.network_form(steps.actions, which))

    def act(
        self, block: PendingRows, buffer: RolloutBuffer, table: TrajectoryTable, env_steps: Column, seats: Seats,
        explore: bool,
    ) -> Answers:  # fmt: skip
        count = len(block.slots)
        which = np.broadcast_to(np.asarray(block.which), (count,))
        groups = [(int(index), np.flatnonzero(which == index)) for index in np.unique(which)]
        answers: list[Any] = [None] * count
        keys, steps = table.keys[block.slots], env_steps[block.env_indices]
        for index, places in groups:
            row_draws = RowDraws(keys[places], steps[places])
            shown = [block.raw[place] for place in places.tolist()]
            whose = [block.episodes[place] for place in places.tolist()]
            if self._uses_compute_actions[index]:
                histories = [self._histories[slot] for slot in block.slots[places].tolist()]
                output = decide(
                    self.policies[index], histories, shown, self.policy_ids[index], whose, explore,
                    int(env_steps.sum()),
                )  # fmt: skip
                chosen = output[0]
                _keep(output, buffer, block, places, self.policy_ids[index])
            else:
                chosen = self.policies[index].answer(shown, row_draws, explore, whose)
                chosen = _one_for_each(chosen, len(places), self.policy_ids[index])
            for place, action in zip(places.tolist(), chosen, strict=True):
                answers[place] = action
        try:
            column = self.network_form(answers, block.which)
        except OutsideSpaceError as error:
            raise self._refused(error, block.which) from error
        buffer.set_actions(block.rows, column)
        return self._env_ready(column if self._plain else answers, block.which)


def _keep(
    output: CustomOutput, buffer: RolloutBuffer, block: PendingRows, places: Column, policy_id: str
) -> None:
    """Store the states and fetches of `compute_actions` in columns of the batch, [R, ...] each."""
    actions, before, after, fetches = output
    columns = {f"state_in_{number}": part for number, part in enumerate(before)}
    columns |= {f"state_out_{number}": part for number, part in enumerate(after)}
    for name, values in fetches.items():
        try:
            column = np.asarray(values)
        except ValueError:
            column = np.zeros(())
        taken = name in _OF_EVERY_BATCH or str(name).startswith((INTERNAL, "state_in_", "state_out_"))
        if taken or column.shape[:1] != (len(actions),):
            raise ContractError(
                f"policy {policy_id!r}: fetch {name!r} of compute_actions has shape {column.shape}, expected one value "
                f"for each of {len(actions)} observations, and a name that no column of every batch has"
            )
        columns[str(name)] = column.astype(object) if column.dtype.kind in "SUMm" else column
    rows = np.arange(block.rows.start, block.rows.stop) if isinstance(block.rows, slice) else block.rows
    for name, own in columns.items():
        have = buffer.columns_at(slice(0, 0), [name]).get(name, own)
        if have.shape[1:] != own.shape[1:]:
            raise ContractError(
                f"policy {policy_id!r}: {name!r} of compute_actions has rows of shape {own.shape[1:]}, expected "
                f"{have.shape[1:]} as before; return states and fetches of the same shapes in every call"
            )
        buffer.mark(name, rows[places], own)
