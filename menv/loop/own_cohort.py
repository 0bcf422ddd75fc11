"""OwnCohort: policies that a user wrote, which answer for themselves.

`menv.loop.row_loop` calls it as it calls a `NetCohort`. It knows neither environments nor learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from menv.connectors.action_steps import element
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError, ContractError
from menv.loop.block import Block
from menv.loop.cohort import Answers, Cohort, is_retired
from menv.loop.life_ledger import Life, LifeLedger, PolicyOutput, decide, decides_in_compute_actions
from menv.loop.slot_table import SlotTable
from menv.loop.unsound import as_text
from menv.policy import Policy, RowDraws
from menv.policy_spec import PolicySpec
from menv.segments import Column
from menv.spaces import OutsideSpaceError, stack, why_outside


class OwnCohort(Cohort):
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
        return OwnCohort, (
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

    def adopt(self, other: Cohort) -> None:
        """Take over the policies of a newer copy; see `Cohort.adopt`. Those that stay are the objects that are here."""
        assert isinstance(other, OwnCohort)
        for place, (mine, theirs) in enumerate(zip(self.policy_ids, other.policy_ids, strict=True)):
            if mine != theirs and not is_retired(theirs):
                self.policies[place] = other.policies[place]
        super().adopt(other)

    def take_rows(self) -> None:
        """Begin with an empty ledger; see `Cohort.take_rows`."""
        super().take_rows()
        if any(self._classic):
            self.ledger = LifeLedger(*self._columns)

    def living_state(self) -> dict[str, Any]:
        """Return the trajectories that live on, and what is remembered of each; see `Cohort.living_state`."""
        state = super().living_state()
        if isinstance(self.ledger, LifeLedger):
            state["lives"] = self.ledger.lives_state(state["slot"].tolist())
        return state

    def take_up(self, state: Mapping[str, Any]) -> int:
        """Go on with trajectories; see `Cohort.take_up`."""
        first = super().take_up(state)
        if isinstance(self.ledger, LifeLedger):
            self.ledger.take_up_lives(state["slot"].tolist(), state["lives"])
        return first

    def env_actions(self, actions: Column, which: int) -> Answers:
        """Return env-ready actions for those of the columns; see `Cohort.env_actions`."""
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
        """Return actions as the columns hold them; see `Cohort.network_form`."""
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

    def took(self, block: Block, actions: Sequence[Any]) -> None:
        """Write down actions that somebody else took, and remember them for the policy; see `Cohort.took`."""
        if isinstance(self.ledger, LifeLedger):
            for life, action in zip(self._lives(block.slots), actions, strict=True):
                life.acted, life.action = True, action
        super().took(block, actions)

    def twin(self) -> OwnCohort:
        """Return a cohort of the same policy objects, with a ledger of its own."""
        return OwnCohort(
            self.policy_ids, self.policies, self.observation_space, self.action_space, self._classic
        )

    def _preprocessor(self, space: gym.Space[Any]) -> ObsPreprocessor | None:
        """Return a preprocessor for the batch's obs column, None where the space cannot be flattened."""
        try:
            return ObsPreprocessor(space)
        except ConfigError:
            return None

    def answer(
        self, block: Block, table: SlotTable, env_steps: Column, explore: bool, episodes: Sequence[Any]
    ) -> Answers:
        """Ask each policy for its rows; see `Cohort.answer`."""
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
        self.ledger.answer(block.rows, column)
        return self._env_ready(column if self._plain else answers, block.which)

    def _keep(self, decided: PolicyOutput, block: Block, places: Column, policy_id: str) -> None:
        if decided.states_in or decided.fetches:
            assert isinstance(self.ledger, LifeLedger)
            rows = block.rows
            rows = np.arange(rows.start, rows.stop)[places] if isinstance(rows, slice) else rows[places]
            self.ledger.keep(rows, decided.columns(policy_id), policy_id)

    def _lives(self, slots: Column) -> list[Life]:
        assert isinstance(self.ledger, LifeLedger)
        return [self.ledger.lives[slot] for slot in slots.tolist()]

    def _as_column(self, answers: list[Any], block: Block) -> Column:
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
