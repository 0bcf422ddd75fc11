"""A group: the policies that answer together, because they share one architecture.

All rows of a group go through one preprocessor, one buffer and, as a rule, one forward pass. A
`NetCohort` asks an acting back-end; an `OwnCohort` asks the `Policy` objects that a user wrote.
`menv.sampling.rollout_loop` calls both in the same way, through what is defined here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import Column, Columns, End, EnvId, ExternalSteps, Ready
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ContractError
from menv.inference.action_sampler import TrajectoryTable
from menv.inference.connector_path import ConnectorPath
from menv.sample_batch import SampleBatch
from menv.sampling.rollout_buffer import Prepared, RecurrentRolloutBuffer, RolloutBuffer, Rows
from menv.sampling.trajectories import Trajectories
from menv.spaces import OutsideSpaceError, own_copy


@dataclass(slots=True)
class PendingRows:
    """Rows of one group that wait together, and what was looked up for them.

    Attributes:
        slots: [R].
        which: [R] policy index, or one index for all.
        env_indices: [R].
        rows: Where they are in the group's buffer.
        raw: R raw observations, for policies that read them.
        places: [R] their places among all rows of the poll; None means all, in order.
        taken: R actions that callers chose themselves; None where the policies are asked.
    """

    slots: Column
    which: Column | int
    env_indices: Column
    rows: Rows
    raw: Any = None
    places: Column | None = None
    taken: list[Any] | None = None

    def part(self, chosen: npt.NDArray[np.bool_]) -> PendingRows:
        """Return the rows that a mask selects."""
        rows = np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows
        which = self.which if isinstance(self.which, int) else self.which[chosen]
        raw = None if self.raw is None else [self.raw[place] for place in np.flatnonzero(chosen).tolist()]
        taken = None
        if self.taken is not None:
            taken = [self.taken[place] for place in np.flatnonzero(chosen).tolist()]
        return PendingRows(
            self.slots[chosen], which, self.env_indices[chosen], rows[chosen], raw, taken=taken
        )

    def of(self, values: Any) -> Any:
        """Return the block's own of the values of all rows of its poll."""
        if self.places is None:
            return values
        if isinstance(values, np.ndarray):
            return values[self.places]
        if isinstance(values, Columns):
            return values.at(self.places)
        return [values[place] for place in self.places.tolist()]

    def copy(self) -> PendingRows:
        """Return a block with the same look-ups, to be given rows of its own."""
        return PendingRows(self.slots, self.which, self.env_indices, self.rows, self.raw, self.places)


def split(block: PendingRows, taken: Mapping[int, Any]) -> list[PendingRows]:
    """Return the rows of a block that policies answer, and those whose actions, by slot, callers chose themselves."""
    mine = np.array([slot in taken for slot in block.slots.tolist()], np.bool_)
    parts = []
    if not mine.all():
        parts.append(block.part(~mine))
    if mine.any():
        own = block.part(mine)
        own.taken = [taken[slot] for slot in own.slots.tolist()]
        parts.append(own)
    return parts


def set_aside(
    blocks: Sequence[tuple[int, PendingRows]], closed: npt.NDArray[np.bool_]
) -> tuple[list[tuple[int, PendingRows]], list[tuple[int, PendingRows]]]:
    """Return the rows, by group number, of sub-environments that are open, and those of such that are `closed` [E]."""
    opened, shut = [], []
    for number, block in blocks:
        mine = closed[block.env_indices]
        if mine.any():
            rest = block.part(mine)
            if rest.raw is not None:
                # Environments may write into the arrays of a poll before these rows are answered.
                rest.raw = [own_copy(one) for one in rest.raw]
            shut.append((number, rest))
        if not mine.all():
            opened.append((number, block.part(~mine)))
    return opened, shut


def joined(
    blocks: Sequence[tuple[int, PendingRows]], answers: Sequence[Any], slots: Column | None
) -> tuple[Column, Any]:
    """Return the slots [R] of several blocks and R answers, in the order of the poll's rows where that is known.

    Args:
        blocks: By group number.
        answers: Of each block.
        slots: [R] those of the poll whose rows the blocks are; None where they are rows of several.
    """
    flat = _in_a_row(answers)
    if slots is None:
        return np.concatenate([block.slots for _, block in blocks]), flat
    order = np.argsort(np.concatenate([block.places for _, block in blocks if block.places is not None]))
    if isinstance(flat, list):
        return slots, list(itemgetter(*order.tolist())(flat))
    ordered = flat[order]
    ordered.flags.writeable = flat.flags.writeable
    return slots, ordered


def _in_a_row(answers: Sequence[Any]) -> list[Any] | Column:
    """Return the answers of all blocks as one array where they are arrays of one kind, else as a list."""
    arrays = [part for part in answers if isinstance(part, np.ndarray)]
    if len(arrays) < len(answers) or len({(part.dtype, part.shape[1:]) for part in arrays}) > 1:
        return [action for part in answers for action in part]
    flat = np.concatenate(arrays)
    flat.flags.writeable = all(part.flags.writeable for part in arrays)
    return flat


Answers: TypeAlias = Sequence[Any] | npt.NDArray[Any]

_REMOVED = " <removed>"
"""Behind the ids of policies that were removed; no policy can be called so."""


class PolicyGroup(ABC):
    """Policies that answer together.

    Attributes:
        policy_ids: Their ids, by index.
        observation_space: Of each of them.
        preprocess: Turns observations into rows; None where the space cannot be flattened.
        buffer: What they experienced.
        state_sizes: Numbers in each part of their recurrent state, () without one.
        path: The way through connectors, None where the preprocessor does all that they do.
        untrained: Rows of the last `close` that nobody learns from, by policy, until they are looked at.
        weights_seq_no: Number of the weights that act; None where nobody counts, and rows do not tell.
    """

    path: ConnectorPath | None = None
    untrained: Sequence[tuple[str, SampleBatch]] = ()
    weights_seq_no: int | None = None

    def __init__(
        self,
        policy_ids: Sequence[str],
        observation_space: gym.Space[Any],
        action_shape: tuple[int, ...],
        action_dtype: npt.DTypeLike,
        inputs_width: int = 0,
        state_sizes: tuple[int, ...] = (),
        row_width: int | None = None,
        row_dtype: np.dtype[Any] | None = None,
    ) -> None:
        """Prepare the buffer for rows of these spaces.

        Args:
            policy_ids: Their ids, by index.
            observation_space: Of each of them.
            action_shape: Of one action, as the buffer holds it.
            action_dtype: Of actions there.
            inputs_width: D, the distribution inputs that answers come with; 0 for none.
            state_sizes: Numbers in each part of their recurrent state, () without one.
            row_width: F where connectors widen rows; None for what the preprocessor makes.
            row_dtype: Of rows, likewise.
        """
        self.policy_ids = list(policy_ids)
        self.observation_space = observation_space
        self.preprocess = self._preprocessor(observation_space)
        size, width = (self.preprocess.size, self.preprocess.mask_width) if self.preprocess else (0, 0)
        obs_dtype = self.preprocess.dtype if self.preprocess else np.dtype(np.float32)
        obs_dtype = obs_dtype if row_dtype is None else row_dtype
        size = size if row_width is None else row_width
        self._columns = (size, width, action_shape, np.dtype(action_dtype), inputs_width, obs_dtype)
        self.state_sizes = state_sizes
        self.buffer: RolloutBuffer
        self.reset_buffer()

    def _preprocessor(self, space: gym.Space[Any]) -> ObsPreprocessor | None:
        return ObsPreprocessor(space)

    def start(self, start: tuple[int, ...], agent_id: Any) -> None:
        """Begin a trajectory; see `RolloutBuffer.start`."""
        if self.path is not None:
            self.path.begin(start[0], max(start[1], ~start[1]))
        self.buffer.start(start, agent_id)

    def end(self, end: End, policy: int) -> None:
        """End a trajectory; connectors that must see its last observation now, do."""
        if self.path is not None:
            try:
                end = self.path.final(policy, end)
            except OutsideSpaceError as error:
                raise outside(end.env_id, end.agent_id, "final observation", error) from error
        self.buffer.end(end)

    def end_episode(self, env_id: EnvId) -> None:
        """Tell the connectors that an episode ended."""
        if self.path is not None:
            self.path.reset(env_id)

    def write(self, block: PendingRows, obs: Any, rewards: Column, ready: Ready) -> Rows:
        """Write down that agents wait.

        Args:
            block: Who.
            obs: R observations.
            rewards: [R] earned since each agent's previous row.
            ready: The poll that they came with.

        Raises:
            OutsideSpaceError: An observation is outside the space, or a mask allows nothing.
        """
        slots = block.slots
        if self.preprocess is None:
            return self.buffer.add(slots, np.zeros((len(slots), 0), np.float32), None, rewards)
        rows, mask = self.preprocess(obs)
        return self.buffer.add(slots, rows, mask, rewards)

    @abstractmethod
    def answer(
        self,
        block: PendingRows,
        table: TrajectoryTable,
        env_steps: Column,
        explore: bool,
        episodes: Sequence[Any],
    ) -> Answers:
        """Decide for the rows of a block and write the actions down.

        Args:
            block: Whose turn it is.
            table: Keys of the random draws by slot.
            env_steps: [E] env steps since each sub-environment's start.
            explore: False asks for the most likely actions.
            episodes: R episodes, for policies that read them.

        Returns:
            R env-ready actions.
        """

    def reset_buffer(self) -> None:
        """Write rows down as they are polled, into an empty buffer; what has not been released is dropped."""
        if self.state_sizes:
            self.buffer = RecurrentRolloutBuffer(*self._columns, self.state_sizes)
        else:
            self.buffer = RolloutBuffer(*self._columns)

    @abstractmethod
    def env_actions(self, actions: Column, which: int) -> Answers:
        """Return env-ready actions for [N, ...] those of a batch of policy number `which`."""

    @abstractmethod
    def network_form(self, actions: Any, which: Column | int) -> Column:
        """Return [R, ...] actions as the columns hold them, for R elements of the action space.

        Args:
            actions: The elements.
            which: [R] policy index, or one for all.
        """

    def took(self, block: PendingRows, actions: Sequence[Any]) -> None:
        """Write down actions that somebody else took in the rows of a block.

        Args:
            block: Whose.
            actions: R elements of the action space; how probable they were, nobody knows.
        """
        self.buffer.answer(block.rows, self.network_form(actions, block.which))
        self.buffer.mark(SampleBatch.OFF_POLICY, block.rows, np.True_)

    def played(self, rows: Column, slot: int, which: int, moves: ExternalSteps) -> None:
        """Write down what was done in n rows of one trajectory.

        Args:
            rows: [n] where they are.
            slot: Of the trajectory.
            which: Index of the policy.
            moves: With n actions, and what is known about them.
        """
        self.buffer.answer(rows, self.network_form(moves.actions, which))

    def living_state(self) -> dict[str, Any]:
        """Return the trajectories that live on after `close`, and the columns of the row that each has left.

        It is a tree of columns and lists of one entry each, plain if what users put into it is. `policy` holds ids.
        """
        living, columns = self.buffer.held()
        slots = living.slot.tolist()
        # Trajectories that nobody learns from have the complement of their policy's index.
        policies = np.maximum(living.policy, ~living.policy).tolist()
        return {
            **living.state(),
            "policy": [self.policy_ids[index] for index in policies],
            "trained": living.policy >= 0,
            "agent_id": list(living.agent_id),
            "lives": [None] * len(slots),
            "remembered": self._remembered(slots, policies),
            "columns": columns,
        }

    def _remembered(self, slots: Sequence[int], policies: Sequence[int]) -> list[Any]:
        """Return what connectors remember of the lives on slots, None where they remember nothing, or do not tell."""
        return [None] * len(slots)

    def take_up(self, state: Mapping[str, Any]) -> int:
        """Go on with trajectories of which `living_state` told, but for their policies: `policy` holds indices here.

        Returns:
            Where the first of their rows is; the others come after it.
        """
        first = self.buffer.rows
        owners = np.where(state["trained"], state["policy"], ~state["policy"])
        living = Trajectories.from_state(owners, state["agent_id"], state)
        self.buffer.take_up(living, state["columns"])
        return first

    @property
    def replays(self) -> bool:
        """Whether a running episode can be played again from its actions, and goes on as it would have."""
        return True

    @abstractmethod
    def clone(self) -> PolicyGroup:
        """Return a group of the same policies, with a buffer of its own."""

    def update_policies(self, other: PolicyGroup) -> None:
        """Take over the policies of a newer copy of this group, which has those that are here, and perhaps more."""
        self.policy_ids[:] = other.policy_ids

    def retire(self, policy_id: str) -> None:
        """Take a policy's id away, so that another one may be added under it; its index is its own until `admit`."""
        self.policy_ids[self.policy_ids.index(policy_id)] = policy_id + _REMOVED

    def with_inputs(self, closed: dict[str, SampleBatch]) -> dict[str, SampleBatch]:
        """Return batches with what their actions were drawn from, for rows that outlive the weights of then."""
        return closed

    def close(self) -> dict[str, SampleBatch]:
        """Close the fragment and return the batch of each policy that has rows.

        Raises:
            ContractError: A value lay outside its Box; named with agent and step.
        """
        self._check_bounds()
        buffer = self.buffer
        if self.weights_seq_no is not None:
            # Rows that were answered in the fragment before have their number.
            buffer.mark(
                SampleBatch.WEIGHTS_SEQ_NO,
                slice(buffer.carried, buffer.rows),
                np.int64(self.weights_seq_no),
            )
        batches = buffer.close(self._finals)
        if self.path is not None:
            self.path.settle()
        self.untrained = [(self.policy_ids[~index], batch) for index, batch in batches.items() if index < 0]
        return {self.policy_ids[index]: batch for index, batch in batches.items() if index >= 0}

    def _check_bounds(self) -> None:
        """Refuse rows outside their space; with connectors that is done when they come."""
        if self.preprocess is None or self.path is not None:
            return
        bad = self.preprocess.why_bad_row(self.buffer.obs[: self.buffer.rows])
        if bad is not None:
            env_index, agent_id, t = self.buffer.locate(bad[0])
            raise outside(env_index, agent_id, f"agent step {t}", OutsideSpaceError(*bad))

    def _finals(self, finals: list[Any], owners: Trajectories) -> Prepared:
        if self.preprocess is None:
            return np.zeros((len(finals), 0), np.float32), None
        try:
            if self.path is not None:
                # Trajectories that nobody learns from have the complement of their policy's index.
                return self.path.finals(finals, np.maximum(owners.policy, ~owners.policy))
            rows, masks = self.preprocess(finals, final=True)
        except OutsideSpaceError as error:
            raise _bad_final(owners, error) from error
        bad = self.preprocess.why_bad_row(rows)
        if bad is not None:
            raise _bad_final(owners, OutsideSpaceError(*bad))
        return rows, masks


def is_retired(policy_id: str) -> bool:
    """Return whether an entry of `policy_ids` stands for a policy that was removed."""
    return policy_id.endswith(_REMOVED)


def _bad_final(owners: Trajectories, error: OutsideSpaceError) -> ContractError:
    row = error.row
    return outside(owners.env_index[row], owners.agent_id[row], "final observation", error)


def outside(
    env_index: Any, agent_id: Any, when: str, error: OutsideSpaceError, space: Any = None
) -> ContractError:
    """Return the error for an observation outside its space, which may be one of all agents' by mistake."""
    advice = "mend the environment's observation or its observation_space"
    if isinstance(space, gym.spaces.Dict) and agent_id in space.spaces:
        advice = (
            "list the agents in possible_agents of the environment, if the entries of its space are theirs"
        )
    wrong = error.with_advice(advice)
    return ContractError(f"env {env_index}, agent {agent_id!r}, {when}: {wrong}")


def refused(env_id: Any, agent_id: Any, why: str) -> ContractError:
    """Return the error for an action that a caller chose itself, and that is outside the space."""
    return ContractError(
        f"env {env_id}, agent {agent_id!r}, log_action: {why}; log what was given to the environment, or mend its "
        "action_space"
    )
