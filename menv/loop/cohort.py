"""A cohort: the policies that answer together, because they share one architecture.

All rows of a cohort go through one preprocessor, one ledger and, as a rule, one forward pass. A
`NetCohort` asks an acting back-end; an `OwnCohort` asks the `Policy` objects that a user wrote.
`menv.loop.row_loop` calls both in the same way, through what is defined here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import End, EnvId, Ready
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ContractError
from menv.ledger import Ledger, Prepared, Rows
from menv.loop.block import Block
from menv.loop.connector_path import ConnectorPath
from menv.loop.slot_table import SlotTable
from menv.played import Moves
from menv.recurrent_ledger import RecurrentLedger
from menv.sample_batch import SampleBatch
from menv.segments import Column
from menv.spaces import OutsideSpaceError
from menv.trajectories import Trajectories

Answers: TypeAlias = Sequence[Any] | npt.NDArray[Any]

_REMOVED = " <removed>"
"""Behind the ids of policies that were removed; no policy can be called so."""


class Cohort(ABC):
    """Policies that answer together.

    Attributes:
        policy_ids: Their ids, by index.
        observation_space: Of each of them.
        preprocess: Turns observations into rows; None where the space cannot be flattened.
        ledger: What they experienced.
        state_sizes: Numbers in each part of their recurrent state, () without one.
        path: The way through connectors, None where the preprocessor does all that they do.
        unlearned: Rows of the last `close` that nobody learns from, by policy, until they are looked at.
        weights_seq_no: Number of the weights that act; None where nobody counts, and rows do not tell.
    """

    path: ConnectorPath | None = None
    unlearned: Sequence[tuple[str, SampleBatch]] = ()
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
        """Prepare the ledger for rows of these spaces.

        Args:
            policy_ids: Their ids, by index.
            observation_space: Of each of them.
            action_shape: Of one action, as the ledger holds it.
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
        self.ledger: Ledger
        self.take_rows()

    def _preprocessor(self, space: gym.Space[Any]) -> ObsPreprocessor | None:
        return ObsPreprocessor(space)

    def start(self, start: tuple[int, ...], agent_id: Any) -> None:
        """Begin a trajectory; see `Ledger.start`."""
        if self.path is not None:
            self.path.begin(start[0], max(start[1], ~start[1]))
        self.ledger.start(start, agent_id)

    def end(self, end: End, policy: int) -> None:
        """End a trajectory; connectors that must see its last observation now, do."""
        if self.path is not None:
            try:
                end = self.path.final(policy, end)
            except OutsideSpaceError as error:
                raise outside(end.env_id, end.agent_id, "final observation", error) from error
        self.ledger.end(end)

    def end_episode(self, env_id: EnvId) -> None:
        """Tell the connectors that an episode ended."""
        if self.path is not None:
            self.path.reset(env_id)

    def write(self, block: Block, obs: Any, rewards: Column, ready: Ready) -> Rows:
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
            return self.ledger.add(slots, np.zeros((len(slots), 0), np.float32), None, rewards)
        rows, mask = self.preprocess(obs)
        return self.ledger.add(slots, rows, mask, rewards)

    @abstractmethod
    def answer(
        self, block: Block, table: SlotTable, env_steps: Column, explore: bool, episodes: Sequence[Any]
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

    def take_rows(self) -> None:
        """Write rows down as they are polled, into an empty ledger; what has not been released is dropped."""
        if self.state_sizes:
            self.ledger = RecurrentLedger(*self._columns, self.state_sizes)
        else:
            self.ledger = Ledger(*self._columns)

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

    def took(self, block: Block, actions: Sequence[Any]) -> None:
        """Write down actions that somebody else took in the rows of a block.

        Args:
            block: Whose.
            actions: R elements of the action space; how probable they were, nobody knows.
        """
        self.ledger.answer(block.rows, self.network_form(actions, block.which))
        self.ledger.mark(SampleBatch.OFF_POLICY, block.rows, np.True_)

    def played(self, rows: Column, slot: int, which: int, moves: Moves) -> None:
        """Write down what was done in n rows of one trajectory.

        Args:
            rows: [n] where they are.
            slot: Of the trajectory.
            which: Index of the policy.
            moves: With n actions, and what is known about them.
        """
        self.ledger.answer(rows, self.network_form(moves.actions, which))

    def living_state(self) -> dict[str, Any]:
        """Return the trajectories that live on after `close`, and the columns of the row that each has left.

        It is a tree of columns and lists of one entry each, plain if what users put into it is. `policy` holds ids.
        """
        living, columns = self.ledger.held()
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
        first = self.ledger.rows
        owners = np.where(state["trained"], state["policy"], ~state["policy"])
        living = Trajectories.from_state(owners, state["agent_id"], state)
        self.ledger.take_up(living, state["columns"])
        return first

    @property
    def replays(self) -> bool:
        """Whether a running episode can be played again from its actions, and goes on as it would have."""
        return True

    @abstractmethod
    def twin(self) -> Cohort:
        """Return a cohort of the same policies, with a ledger of its own."""

    def adopt(self, other: Cohort) -> None:
        """Take over the policies of a newer copy of this cohort, which has those that are here, and perhaps more."""
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
        ledger = self.ledger
        if self.weights_seq_no is not None:
            # Rows that were answered in the fragment before have their number.
            ledger.mark(
                SampleBatch.WEIGHTS_SEQ_NO,
                slice(ledger.carried, ledger.rows),
                np.int64(self.weights_seq_no),
            )
        batches = ledger.close(self._finals)
        if self.path is not None:
            self.path.settle()
        self.unlearned = [(self.policy_ids[~index], batch) for index, batch in batches.items() if index < 0]
        return {self.policy_ids[index]: batch for index, batch in batches.items() if index >= 0}

    def _check_bounds(self) -> None:
        """Refuse rows outside their space; with connectors that is done when they come."""
        if self.preprocess is None or self.path is not None:
            return
        bad = self.preprocess.why_bad_row(self.ledger.obs[: self.ledger.rows])
        if bad is not None:
            env_index, agent_id, t = self.ledger.locate(bad[0])
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
    wrong = error.mended(advice)
    return ContractError(f"env {env_index}, agent {agent_id!r}, {when}: {wrong}")


def refused(env_id: Any, agent_id: Any, why: str) -> ContractError:
    """Return the error for an action that a caller chose itself, and that is outside the space."""
    return ContractError(
        f"env {env_id}, agent {agent_id!r}, log_action: {why}; log what was given to the environment, or mend its "
        "action_space"
    )
