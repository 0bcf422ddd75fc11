"""OwnCohort: policies that a user wrote, which answer for themselves.

`menv.sampling.rollout_loop` calls it as it calls a `NetCohort`. It knows neither environments nor learning.
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

from menv.base_env import Column
from menv.connectors.action_connector import CustomSteps, element
from menv.connectors.clip_reward import clip_reward
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError, ContractError
from menv.inference.action_sampler import TrajectoryTable
from menv.inference.backend import as_text
from menv.policy import Policy, RowDraws, parts_given
from menv.policy_spec import PolicySpec
from menv.sampling.policy_group import Answers, PendingRows, PolicyGroup, is_retired
from menv.sampling.rollout_buffer import RolloutBuffer, Rows
from menv.spaces import OutsideSpaceError, stack, why_outside

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
class AgentHistory:
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


class CustomPolicyBuffer(RolloutBuffer):
    """A buffer that also remembers the last row of each life.

    Attributes:
        lives: By slot, those that go on and the last ones of slots that nobody has.
    """

    def __init__(self, *columns: Any) -> None:
        super().__init__(*columns)
        self.lives: dict[int, AgentHistory] = {}
        self._waiting: list[AgentHistory] = []

    def start(self, start: tuple[int, ...], agent_id: Any) -> None:
        """Begin a trajectory, which remembers nothing; see `RolloutBuffer.start`."""
        super().start(start, agent_id)
        self.lives[start[0]] = AgentHistory()

    def lives_state(self, slots: Sequence[int]) -> list[list[Any] | None]:
        """Return what is remembered of the lives on some slots, None where there is none."""
        found = [self.lives.get(slot) for slot in slots]
        return [None if life is None else [getattr(life, name) for name in _OF_A_LIFE] for life in found]

    def take_up_lives(self, slots: Sequence[int], lives: Sequence[list[Any] | None]) -> None:
        """Go on with lives of which `lives_state` told."""
        for slot, life in zip(slots, lives, strict=True):
            self.lives[slot] = AgentHistory() if life is None else AgentHistory(*life)

    def add(self, slots: Column, obs: Column, mask: Column | None, rewards: Column) -> slice:
        """Write down that R agents wait; see `RolloutBuffer.add`."""
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
        """Write states and fetches of rows into columns of their own; see `RolloutBuffer.mark`."""
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
        """Note the info dicts that came in with the rows of the last `add`; see `RolloutBuffer.inform`."""
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
    lives: Sequence[AgentHistory],
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


def _previous_actions(space: gym.Space[Any], lives: Sequence[AgentHistory]) -> Any:
    """Return R actions: an array with zeros before the first, a list with None for spaces that are no array."""
    if not isinstance(space, gym.spaces.Discrete | gym.spaces.Box | gym.spaces.MultiDiscrete):
        return [life.action for life in lives]
    column = np.zeros((len(lives), *(space.shape or ())), space.dtype)
    for row, life in enumerate(lives):
        if life.acted:
            column[row] = life.action
    return column


def _previous_rewards(policy: Policy, lives: Sequence[AgentHistory]) -> Column:
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


class CustomPolicyGroup(PolicyGroup):
    """Policies that a user wrote, each asked for its own rows; they get raw observations."""

    def __init__(
        self,
        policy_ids: Sequence[str],
        policies: Sequence[Policy],
        observation_space: gym.Space[Any],
        action_space: Any,
        classic: Sequence[bool] | None = None,
    ) -> None:
        """Keep the policies, by index; `classic` tells which decide in `compute_actions`, None looks at them."""
        plain = isinstance(action_space, gym.spaces.Discrete | gym.spaces.Box | gym.spaces.MultiDiscrete)
        shape = tuple(action_space.shape) if plain else ()
        self._classic = [decides_in_compute_actions(one) for one in policies] if classic is None else classic
        super().__init__(policy_ids, observation_space, shape, action_space.dtype if plain else object)
        self.policies = list(policies)
        self.action_space = action_space
        self._plain = plain

    def __reduce__(self) -> Any:
        # What it has written down stays here, and so do those who were removed: no episode over there begins with them.
        there = [
            None if is_retired(name) else one
            for name, one in zip(self.policy_ids, self.policies, strict=True)
        ]
        return CustomPolicyGroup, (
            list(self.policy_ids), there, self.observation_space, self.action_space, self._classic,
        )  # fmt: skip

    def fits(self, policy: Policy, place: int, spec: PolicySpec) -> bool:
        """Return whether a policy of this spec may have a place here that another one has left."""
        spaces = spec.observation_space == self.observation_space and spec.action_space == self.action_space
        # What is remembered of lives depends on it.
        return spaces and decides_in_compute_actions(policy) == self._classic[place]

    def admit(self, policy_id: str, policy: Policy, place: int) -> None:
        """Take a policy in.

        Args:
            policy_id: Its id.
            policy: The policy.
            place: Index of one that was removed and that nothing refers to any more; see `fits`.
        """
        self.policy_ids[place], self.policies[place] = policy_id, policy

    def update_policies(self, other: PolicyGroup) -> None:
        """Take over the policies of a newer copy; see `PolicyGroup.update_policies`.

        Those that stay are the objects that are here.
        """
        assert isinstance(other, CustomPolicyGroup)
        for place, (mine, theirs) in enumerate(zip(self.policy_ids, other.policy_ids, strict=True)):
            if mine != theirs and not is_retired(theirs):
                self.policies[place] = other.policies[place]
        super().update_policies(other)

    def reset_buffer(self) -> None:
        """Begin with an empty buffer; see `PolicyGroup.reset_buffer`."""
        super().reset_buffer()
        if any(self._classic):
            self.buffer = CustomPolicyBuffer(*self._columns)

    def living_state(self) -> dict[str, Any]:
        """Return the trajectories that live on, and what is remembered of each; see `PolicyGroup.living_state`."""
        state = super().living_state()
        if isinstance(self.buffer, CustomPolicyBuffer):
            state["lives"] = self.buffer.lives_state(state["slot"].tolist())
        return state

    def take_up(self, state: Mapping[str, Any]) -> int:
        """Go on with trajectories; see `PolicyGroup.take_up`."""
        first = super().take_up(state)
        if isinstance(self.buffer, CustomPolicyBuffer):
            self.buffer.take_up_lives(state["slot"].tolist(), state["lives"])
        return first

    def env_actions(self, actions: Column, which: int) -> Answers:
        """Return env-ready actions for those of the columns; see `PolicyGroup.env_actions`."""
        return self._env_ready(actions, which)

    def _env_ready(self, actions: Sequence[Any] | Column, which: Column | int) -> Answers:
        """Return R actions as the environment takes them: write-protected copies, within the space.

        Args:
            actions: As the policies gave them, or as the columns hold them.
            which: [R] policy index, or one for all.

        Raises:
            ContractError: One is outside the space; it names the policy.
        """
        indices = [which] * len(actions) if isinstance(which, int) else which.tolist()
        asked = [self.policies[index] for index in indices]
        if any(policy.given_steps is not None for policy in set(asked)):
            actions = [policy.env_action(one) for policy, one in zip(asked, actions, strict=True)]
        space, row = self.action_space, 0
        try:
            if self._plain:
                return self._protected(self.network_form(actions, which))
            ready = []
            for row, action in enumerate(actions):  # noqa: B007 - the error names it
                ready.append(element(action, space))
            return ready
        except OutsideSpaceError as error:
            name = self.policy_ids[indices[error.row or row]]
            raise ContractError(
                f"policy {name!r}: {error.why}; return actions of policy.action_space, or set clip_actions=True"
            ) from error

    def _protected(self, rows: Column) -> Answers:
        """Return [R, ...] actions that lie within their bounds, write-protected."""
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
        """Return actions as the columns hold them; see `PolicyGroup.network_form`."""
        if isinstance(self.action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            return stack(list(actions), self.action_space, "action")
        if self._plain:
            return self._numbers(actions)
        column = np.empty(len(actions), object)
        column[:] = list(actions)
        return column

    def _numbers(self, actions: Any) -> Column:
        """Return R elements of a Box as one array; its bounds are the policy's own matter."""
        space = self.action_space
        try:
            rows = np.array(actions, space.dtype)
        except (TypeError, ValueError):
            rows = np.zeros(0)
        if rows.shape == (len(actions), *space.shape):
            finite = np.isfinite(rows)
            if finite.all():
                return rows
            row = int(np.argmin(finite.reshape(len(rows), -1).all(1)))
            raise OutsideSpaceError(row, f"action: expected finite numbers, got {as_text(rows[~finite][0])}")
        shapes = [_shape(action) for action in actions]
        row = next((row for row, shape in enumerate(shapes) if shape != space.shape), 0)
        got = type(actions[row]).__name__ if shapes[row] is None else f"shape {shapes[row]}"
        raise OutsideSpaceError(row, f"action: expected {space.dtype} of shape {space.shape}, got {got}")

    def took(self, block: PendingRows, actions: Sequence[Any]) -> None:
        """Write down actions that somebody else took, and remember them for the policy; see `PolicyGroup.took`."""
        if isinstance(self.buffer, CustomPolicyBuffer):
            for life, action in zip(self._lives(block.slots), actions, strict=True):
                life.acted, life.action = True, action
        super().took(block, actions)

    def clone(self) -> CustomPolicyGroup:
        """Return a group of the same policy objects, with a buffer of its own."""
        return CustomPolicyGroup(
            self.policy_ids, self.policies, self.observation_space, self.action_space, self._classic
        )

    def _preprocessor(self, space: gym.Space[Any]) -> ObsPreprocessor | None:
        """Return a preprocessor for the batch's obs column, None where the space cannot be flattened."""
        try:
            return ObsPreprocessor(space)
        except ConfigError:
            return None

    def answer(
        self,
        block: PendingRows,
        table: TrajectoryTable,
        env_steps: Column,
        explore: bool,
        episodes: Sequence[Any],
    ) -> Answers:
        """Ask each policy for its rows; see `PolicyGroup.answer`."""
        count = len(block.slots)
        if isinstance(block.which, int):
            groups = [(block.which, np.arange(count))]
        else:
            groups = [(int(index), np.flatnonzero(block.which == index)) for index in np.unique(block.which)]
        answers: list[Any] = [None] * count
        keys, steps = table.keys[block.slots], env_steps[block.env_indices]
        for index, places in groups:
            row_draws = RowDraws(keys[places], steps[places])
            shown = [block.raw[place] for place in places.tolist()]
            whose = [episodes[place] for place in places.tolist()]
            if self._classic[index]:
                lives = self._lives(block.slots[places])
                decided = decide(
                    self.policies[index],
                    lives,
                    shown,
                    self.policy_ids[index],
                    whose,
                    explore,
                    int(env_steps.sum()),
                )
                chosen = decided.actions
                self._keep(decided, block, places, self.policy_ids[index])
            else:
                chosen = self.policies[index].answer(shown, row_draws, explore, whose)
            if len(chosen) != len(places):
                raise ContractError(
                    f"policy {self.policy_ids[index]!r}: answered {len(chosen)} of {len(places)} observations, "
                    "expected one action each; return as many actions as observations"
                )
            for place, action in zip(places.tolist(), chosen, strict=True):
                answers[place] = action
        column = self._as_column(answers, block)
        self.buffer.answer(block.rows, column)
        return self._env_ready(column if self._plain else answers, block.which)

    def _keep(self, decided: PolicyOutput, block: PendingRows, places: Column, policy_id: str) -> None:
        if decided.states_in or decided.fetches:
            assert isinstance(self.buffer, CustomPolicyBuffer)
            rows = block.rows
            rows = np.arange(rows.start, rows.stop)[places] if isinstance(rows, slice) else rows[places]
            self.buffer.keep(rows, decided.columns(policy_id), policy_id)

    def _lives(self, slots: Column) -> list[AgentHistory]:
        assert isinstance(self.buffer, CustomPolicyBuffer)
        return [self.buffer.lives[slot] for slot in slots.tolist()]

    def _as_column(self, answers: list[Any], block: PendingRows) -> Column:
        """Return the actions as one array.

        Raises:
            ContractError: An action is outside the space, bounds of a Box left aside.
        """
        try:
            return self.network_form(answers, block.which)
        except OutsideSpaceError as error:
            index = block.which if isinstance(block.which, int) else int(block.which[error.row])
            raise ContractError(
                f"policy {self.policy_ids[index]!r}: {error.why}; return actions of policy.action_space"
            ) from error


def _shape(action: Any) -> tuple[int, ...] | None:
    try:
        return np.asarray(action, np.float64).shape
    except (TypeError, ValueError):
        return None
