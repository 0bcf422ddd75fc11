"""Policies that share an architecture, and the rows that wait for their actions.

`menv.sampling.rollout_loop` adds rows to a group and asks it to act; the rows of all its policies go through one
preprocessor, one buffer (`menv.sampling.rollout_buffer`) and usually one forward pass. `NetworkPolicyGroup` runs neural
networks, `CustomPolicyGroup` asks `Policy` objects that users wrote.
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
from menv.episode import Episode
from menv.errors import ContractError
from menv.inference.action_sampler import TrajectoryTable
from menv.inference.connector_path import ConnectorPath
from menv.sample_batch import SampleBatch
from menv.sampling.rollout_buffer import Prepared, RolloutBuffer, Rows
from menv.sampling.trajectories import Trajectories, TrajectoryStart
from menv.spaces import OutsideSpaceError, own_copy

Answers: TypeAlias = Sequence[Any] | npt.NDArray[Any]
"""R actions as the environment expects them."""

_REMOVED = " <removed>"
"""Suffix of the ids of removed policies; no policy id may contain it."""


class PolicyGroup(ABC):
    """Policies of one architecture, which act together.

    Args:
        policy_ids: The ids, by index.
        observation_space: The space of each policy.
        action_shape: Shape of one action in the buffer.
        action_dtype: Its type.
        inputs_width: D, the number of distribution inputs per action; 0 for none.
        state_sizes: Sizes of the parts of the recurrent state, () without one.
        row_width: F if connectors change it; None for the preprocessor's.
        row_dtype: The type of rows if connectors change it.

    Attributes:
        preprocess: Turns observations into rows; None where the space cannot be flattened.
        buffer: The rows of all policies.
        path: Runs connectors; None where the preprocessor does all that they do.
        untrained: Rows of the last `close` that are excluded from training, by policy.
        weights_seq_no: Number of the weights that act; None where rows do not record it.
        reads_episodes: Whether its policies read raw observations and episodes.
    """

    reads_episodes = False
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

    def reset_buffer(self) -> None:
        """Start with an empty buffer; rows that have not been released are dropped."""
        self.buffer = RolloutBuffer(*self._columns, self.state_sizes)

    @abstractmethod
    def connect(self) -> None:
        """Follow changed connectors; called before each fragment."""

    def start(self, start: TrajectoryStart) -> None:
        """Start a trajectory."""
        if self.path is not None:
            self.path.begin(start.slot, start.policy)
        self.buffer.start(start)

    def add_rows(self, block: PendingRows, obs: Any, rewards: Column, ready: Ready) -> Rows:
        """Add the rows of R agents that wait, with the rewards [R] since each agent's previous row.

        Raises:
            OutsideSpaceError: An observation is outside the space, or a mask allows no action.
        """
        slots = block.slots
        if self.preprocess is None:
            return self.buffer.add(slots, np.zeros((len(slots), 0), np.float32), None, rewards)
        rows, mask = self.preprocess(obs)
        return self.buffer.add(slots, rows, mask, rewards)

    @abstractmethod
    def act(self, block: PendingRows, table: TrajectoryTable, env_steps: Column, explore: bool) -> Answers:
        """Return R env-ready actions for a block and store them in the buffer.

        `env_steps` [E] are counted since each sub-environment's start.
        """

    def end(self, end: End, policy: int) -> None:
        """End a trajectory; its final observation goes through the connectors."""
        if self.path is not None:
            try:
                end = self.path.final(policy, end)
            except OutsideSpaceError as error:
                raise outside_space_error(end.env_id, end.agent_id, "final observation", error) from error
        self.buffer.end(end)

    def end_episode(self, env_id: EnvId) -> None:
        """Reset the connectors for an episode that ended."""
        if self.path is not None:
            self.path.reset(env_id)

    def close(self) -> dict[str, SampleBatch]:
        """Close the fragment and return the batch of each policy that has rows.

        Raises:
            ContractError: A value is outside its Box; the message names the agent and the step.
        """
        self._check_bounds()
        buffer = self.buffer
        if self.weights_seq_no is not None:
            # Rows that were answered in the previous fragment have a number already.
            rows = slice(buffer.carried, buffer.rows)
            buffer.mark(SampleBatch.WEIGHTS_SEQ_NO, rows, np.int64(self.weights_seq_no))
        released = buffer.close(self._finals)
        if self.path is not None:
            self.path.settle()
        self.untrained = [
            (self.policy_ids[index], batch) for index, trained, batch in released if not trained
        ]
        return {self.policy_ids[index]: batch for index, trained, batch in released if trained}

    def add_dist_inputs(self, closed: dict[str, SampleBatch]) -> dict[str, SampleBatch]:
        """Add the columns that depend on the current weights, for rows that are held back until these have changed."""
        return closed

    def _check_bounds(self) -> None:
        """Check that rows are within their space; with connectors they were checked when added."""
        if self.preprocess is None or self.path is not None:
            return
        bad = self.preprocess.why_bad_row(self.buffer.obs[: self.buffer.rows])
        if bad is not None:
            env_index, agent_id, t = self.buffer.locate(bad[0])
            raise outside_space_error(env_index, agent_id, f"agent step {t}", OutsideSpaceError(*bad))

    def _finals(self, finals: list[Any], owners: Trajectories) -> Prepared:
        """Return the rows and masks of final observations."""
        if self.preprocess is None:
            return np.zeros((len(finals), 0), np.float32), None
        try:
            if self.path is not None:
                return self.path.finals(finals, owners.policy)
            rows, masks = self.preprocess(finals, final=True)
        except OutsideSpaceError as error:
            raise _final_error(owners, error) from error
        bad = self.preprocess.why_bad_row(rows)
        if bad is not None:
            raise _final_error(owners, OutsideSpaceError(*bad))
        return rows, masks

    @abstractmethod
    def env_actions(self, actions: Column, which: int) -> Answers:
        """Return env-ready actions for actions [N, ...] of a batch of policy number `which`."""

    @abstractmethod
    def network_form(self, actions: Any, which: Column | int) -> Column:
        """Return R elements of the action space as buffers store them; `which` is [R] policy index or one for all."""

    def record_actions(self, block: PendingRows, actions: Sequence[Any]) -> None:
        """Store R actions that a client chose; their probabilities are unknown."""
        self.buffer.set_actions(block.rows, self.network_form(actions, block.which))
        self.buffer.mark(SampleBatch.OFF_POLICY, block.rows, np.True_)

    def record_external_steps(self, rows: Column, slot: int, which: int, steps: ExternalSteps) -> None:
        """Store n actions that an external client took in `rows` [n] of one trajectory of policy number `which`."""
        self.buffer.set_actions(rows, self.network_form(steps.actions, which))

    def carried_state(self) -> dict[str, Any]:
        """Return the trajectories that continue after `close`, and the columns of each one's carried row.

        A tree of columns and lists with one entry each; `policy` holds ids.
        """
        living, columns = self.buffer.held()
        slots, policies = living.slot.tolist(), living.policy.tolist()
        return {
            **living.state(),
            "policy": [self.policy_ids[index] for index in policies],
            "agent_id": list(living.agent_id),
            "lives": [None] * len(slots),
            "remembered": self._connector_states(slots, policies),
            "columns": columns,
        }

    def _connector_states(self, slots: Sequence[int], policies: Sequence[int]) -> list[Any]:
        """Return what connectors keep of each trajectory, None where they keep nothing."""
        return [None] * len(slots)

    def restore(self, state: Mapping[str, Any]) -> int:
        """Continue trajectories from `carried_state`, where `policy` holds indices here; return their first row."""
        first = self.buffer.rows
        self.buffer.restore(Trajectories.from_state(state), state["columns"])
        return first

    @property
    def can_replay(self) -> bool:
        """Whether a running episode can be replayed from its actions and continues unchanged."""
        return True

    @abstractmethod
    def clone(self) -> PolicyGroup:
        """Return a group of the same policies with an empty buffer."""

    def update_policies(self, other: PolicyGroup) -> None:
        """Use the policies of a newer copy of this group, which may contain more of them."""
        self.policy_ids[:] = other.policy_ids

    def retire(self, policy_id: str) -> None:
        """Free a policy's id for another policy; its index stays reserved until `admit`."""
        self.policy_ids[self.policy_ids.index(policy_id)] = policy_id + _REMOVED


@dataclass(slots=True)
class PendingRows:
    """Rows of one policy group that wait for an action, and their look-ups.

    Attributes:
        slots: [R].
        which: [R] policy index, or one index for all.
        env_indices: [R].
        rows: Positions in the group's buffer.
        raw: R raw observations, for policies that read them.
        places: [R] positions among all rows of the poll; None means all, in order.
        taken: R actions that clients chose; None where the policies act.
        episodes: R episodes, set for `act`, for policies that read them.
    """

    slots: Column
    which: Column | int
    env_indices: Column
    rows: Rows
    raw: Any = None
    places: Column | None = None
    taken: list[Any] | None = None
    episodes: Sequence[Episode] = ()

    def part(self, chosen: npt.NDArray[np.bool_]) -> PendingRows:
        """Return the rows that a mask selects."""
        rows = np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows
        which = self.which if isinstance(self.which, int) else self.which[chosen]
        places = np.flatnonzero(chosen).tolist()
        raw = None if self.raw is None else [self.raw[place] for place in places]
        taken = None if self.taken is None else [self.taken[place] for place in places]
        return PendingRows(
            self.slots[chosen], which, self.env_indices[chosen], rows[chosen], raw, taken=taken
        )

    def of(self, values: Any) -> Any:
        """Return this block's entries of values for all rows of its poll."""
        if self.places is None:
            return values
        if isinstance(values, np.ndarray):
            return values[self.places]
        if isinstance(values, Columns):
            return values.at(self.places)
        return [values[place] for place in self.places.tolist()]

    def copy(self) -> PendingRows:
        """Return a block that shares the look-ups."""
        return PendingRows(self.slots, self.which, self.env_indices, self.rows, self.raw, self.places)


def split_by_actor(block: PendingRows, taken: Mapping[int, Any]) -> list[PendingRows]:
    """Return the rows for which policies act, and the rows whose actions, by slot, clients chose."""
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
    """Return the rows, by group index, of open sub-environments and of sub-environments that are `closed` [E]."""
    opened, shut = [], []
    for number, block in blocks:
        mine = closed[block.env_indices]
        if mine.any():
            rest = block.part(mine)
            if rest.raw is not None:
                # Environments may overwrite the arrays of a poll before these rows are answered.
                rest.raw = [own_copy(one) for one in rest.raw]
            shut.append((number, rest))
        if not mine.all():
            opened.append((number, block.part(~mine)))
    return opened, shut


def join_actions(
    blocks: Sequence[tuple[int, PendingRows]], answers: Sequence[Any], slots: Column | None
) -> tuple[Column, Any]:
    """Return the slots [R] and the actions of several blocks.

    With `slots` [R] of a poll, whose rows the blocks are, both are in the order of that poll.
    """
    flat = _concatenated(answers)
    if slots is None:
        return np.concatenate([block.slots for _, block in blocks]), flat
    order = np.argsort(np.concatenate([block.places for _, block in blocks if block.places is not None]))
    if isinstance(flat, list):
        return slots, list(itemgetter(*order.tolist())(flat))
    ordered = flat[order]
    ordered.flags.writeable = flat.flags.writeable
    return slots, ordered


def _concatenated(answers: Sequence[Any]) -> list[Any] | Column:
    """Return the actions of all blocks as one array if they are arrays of one kind, else as a list."""
    arrays = [part for part in answers if isinstance(part, np.ndarray)]
    if len(arrays) < len(answers) or len({(part.dtype, part.shape[1:]) for part in arrays}) > 1:
        return [action for part in answers for action in part]
    flat = np.concatenate(arrays)
    flat.flags.writeable = all(part.flags.writeable for part in arrays)
    return flat


def is_retired(policy_id: str) -> bool:
    """Return whether an entry of `policy_ids` stands for a policy that was removed."""
    return policy_id.endswith(_REMOVED)


def outside_space_error(
    env_index: Any, agent_id: Any, when: str, error: OutsideSpaceError, space: Any = None
) -> ContractError:
    """Return the error for an observation outside its space, which may be the Dict space of all agents by mistake."""
    advice = "fix the environment's observation or its observation_space"
    if isinstance(space, gym.spaces.Dict) and agent_id in space.spaces:
        advice = (
            "list the agents in possible_agents of the environment, if the entries of its space are theirs"
        )
    wrong = error.with_advice(advice)
    return ContractError(f"env {env_index}, agent {agent_id!r}, {when}: {wrong}")


def _final_error(owners: Trajectories, error: OutsideSpaceError) -> ContractError:
    row = error.row
    return outside_space_error(owners.env_index[row], owners.agent_id[row], "final observation", error)


def refused_action_error(env_id: Any, agent_id: Any, why: str) -> ContractError:
    """Return the error for a client's action that is outside the space."""
    return ContractError(
        f"env {env_id}, agent {agent_id!r}, log_action: {why}; log what was given to the environment, or fix its "
        "action_space"
    )
