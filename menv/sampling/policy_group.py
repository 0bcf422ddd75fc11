"""Policies that act together, and the rows that wait for their actions.

A `PolicyGroup` owns the rows of its policies (`menv.sampling.rollout_buffer`). Its strategy connects observations and
decides: `NetworkStrategy` runs neural networks of one architecture, usually with one forward pass for all rows;
`CustomPolicyStrategy` asks `Policy` objects that users wrote. `menv.sampling.rollout_loop` calls both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import rng
from menv.base_env import Column, Columns, End, EnvId, ExternalSteps, NestedRows, Ready
from menv.connectors.pipeline import PolicyConnectors
from menv.episode import Episode
from menv.errors import ContractError
from menv.inference.backend import non_finite_error
from menv.inference.connector_path import ConnectorPath, Seats, plain
from menv.inference.heads.head import ActionHead
from menv.inference.network_policy import NetworkGroup
from menv.policy import Policy
from menv.policy_spec import PolicySpec
from menv.sample_batch import SampleBatch
from menv.sampling.rollout_buffer import Prepared, RolloutBuffer, Rows
from menv.sampling.trajectories import Trajectories, TrajectoryStart, TrajectoryTable
from menv.spaces import OutsideSpaceError

Answers: TypeAlias = Sequence[Any] | npt.NDArray[Any]
"""R actions as the environment expects them."""
Connected: TypeAlias = tuple[Column, Column | None, Column]
"""Observations [R, F], masks [R, M] and rewards [R] after the connectors."""

_REMOVED = " <removed>"
"""Suffix of the ids of removed policies; no policy id may contain it."""

Noise = npt.NDArray[np.float32]

_AHEAD = 64
"""Env steps that a block of random numbers serves."""
# It also covers slots of agents that do not wait; with more of them a block costs more than it saves.
_SLOTS_PER_ROW = 4
# Python finds the smallest of so few numbers faster than numpy.
_FEW = 100


class ActingStrategy(ABC):
    """How the policies of a group act: everything between an environment's observations and its actions.

    Attributes:
        policy_ids: The ids, by index.
        observation_space: The space of each policy.
        networks: The networks; None for custom policies.
        path: Runs connectors; None where a preprocessor does all that they do.
        policies: The policy objects, by index, of custom policies; () where networks act.
        reads_episodes: Whether its policies read raw observations and episodes.
        by_columns: Whether joins and ends may come as columns, because no connector or policy follows agents.
    """

    policy_ids: list[str]
    observation_space: gym.Space[Any]
    networks: NetworkGroup | None = None
    path: ConnectorPath | None = None
    policies: Sequence[Policy] = ()
    reads_episodes = False

    @property
    def by_columns(self) -> bool:
        return False

    @abstractmethod
    def new_buffer(self) -> RolloutBuffer:
        """Return an empty buffer, and forget running agents."""

    @abstractmethod
    def connect(self) -> None:
        """Follow changed connectors; called before each fragment."""

    @abstractmethod
    def start(self, slot: int, policy: int) -> None:
        """Start a trajectory."""

    @abstractmethod
    def rows(self, block: PendingRows, obs: Any, rewards: Column, ready: Ready) -> Connected:
        """Return the observations, masks and rewards of R agents that wait as the buffer stores them.

        Raises:
            OutsideSpaceError: An observation is outside the space, or a mask allows no action.
        """

    @abstractmethod
    def act(
        self, block: PendingRows, buffer: RolloutBuffer, table: TrajectoryTable, env_steps: Column, seats: Seats,
        explore: bool,
    ) -> Answers:  # fmt: skip
        """Return R env-ready actions for a block and store them in the buffer.

        `env_steps` [E] are counted since each sub-environment's start, `seats` are the seats of `Ready`.
        """

    @abstractmethod
    def end(self, policy: int, end: End) -> End:
        """Return the end of a trajectory after the connectors."""

    @abstractmethod
    def end_episode(self, env_id: EnvId) -> None:
        """Reset the connectors for an episode that ended."""

    @abstractmethod
    def finals(self, finals: list[Any], policies: Column) -> Prepared:
        """Return N final observations as rows and masks."""

    @abstractmethod
    def bad_row(self, obs: Column) -> tuple[int, str] | None:
        """Return a row that is outside the space and why, unless rows are checked when they are added."""

    @abstractmethod
    def fragment_closed(self, buffer: RolloutBuffer) -> None:
        """Finish a fragment; the rows that are still in the buffer are released after the weights change."""

    def add_dist_inputs(self, closed: dict[str, SampleBatch]) -> dict[str, SampleBatch]:
        """Add the columns that depend on the current weights, for rows that are held back until these have changed."""
        return closed

    @abstractmethod
    def env_actions(self, actions: Column, which: int) -> Answers:
        """Return env-ready actions for actions [N, ...] of a batch of policy number `which`."""

    @abstractmethod
    def network_form(self, actions: Any, which: Column | int) -> Column:
        """Return R elements of the action space as buffers store them; `which` is [R] policy index or one for all."""

    @abstractmethod
    def client_acted(self, block: PendingRows, buffer: RolloutBuffer, actions: Sequence[Any]) -> None:
        """Follow R actions that a client chose."""

    @abstractmethod
    def record_external_steps(
        self, buffer: RolloutBuffer, rows: Column, slot: int, which: int, steps: ExternalSteps
    ) -> None:
        """Store n actions that an external client chose in `rows` [n] of one trajectory of policy number `which`."""

    @property
    def can_repeat(self) -> bool:
        """Whether `env_actions` returns what the environment received."""
        return True

    @abstractmethod
    def clone(self) -> ActingStrategy:
        """Return a strategy of the same policies for other rows, for evaluation."""

    def admit(self, policy_id: str, policy: Policy, place: int, spec: PolicySpec) -> bool:
        """Give a custom policy the index `place` of a removed one; return False if it does not fit there."""
        return False

    @abstractmethod
    def update_policies(self, other: ActingStrategy) -> None:
        """Use the policies of a newer copy, which may contain more of them."""


class PolicyGroup:
    """Policies that act together, and their rows.

    Attributes:
        strategy: How they act.
        policy_ids: The ids, by index.
        buffer: The rows of all policies.
        untrained: Rows of the last `close` that are excluded from training, by policy.
        weights_seq_no: Number of the weights that act; None where rows do not record it.
    """

    untrained: Sequence[tuple[str, SampleBatch]] = ()
    weights_seq_no: int | None = None

    def __init__(self, strategy: ActingStrategy) -> None:
        self.strategy = strategy
        self.policy_ids = strategy.policy_ids
        self.buffer = strategy.new_buffer()

    def __reduce__(self) -> Any:
        # Rows and running episodes stay in this process.
        return PolicyGroup, (self.strategy,)

    def clone(self) -> PolicyGroup:
        """Return a group that shares the policies and weights, with an empty buffer, for evaluation."""
        return PolicyGroup(self.strategy.clone())

    def reset_buffer(self) -> None:
        """Start with an empty buffer; rows that have not been released are dropped."""
        self.buffer = self.strategy.new_buffer()

    def start(self, start: TrajectoryStart) -> None:
        """Start a trajectory."""
        self.strategy.start(start.slot, start.policy)
        self.buffer.start(start)

    def end(self, end: End, policy: int) -> None:
        """End a trajectory; its final observation goes through the connectors."""
        try:
            end = self.strategy.end(policy, end)
        except OutsideSpaceError as error:
            raise outside_space_error(end.env_id, end.agent_id, "final observation", error) from error
        self.buffer.end(end)

    def close(self) -> dict[str, SampleBatch]:
        """Close the fragment and return the batch of each policy that has rows.

        Raises:
            ContractError: A value is outside its Box; the message names the agent and the step.
        """
        buffer = self.buffer
        check_bounds(self.strategy, buffer)
        if self.weights_seq_no is not None:
            # Rows that were answered in the previous fragment have a number already.
            rows = slice(buffer.carried, buffer.rows)
            buffer.mark(SampleBatch.WEIGHTS_SEQ_NO, rows, np.int64(self.weights_seq_no))
        released = buffer.close(self._finals)
        self.strategy.fragment_closed(buffer)
        self.untrained = [
            (self.policy_ids[index], batch) for index, trained, batch in released if not trained
        ]
        return {self.policy_ids[index]: batch for index, trained, batch in released if trained}

    def _finals(self, finals: list[Any], owners: Trajectories) -> Prepared:
        """Return the rows and masks of final observations."""
        try:
            return self.strategy.finals(finals, owners.policy)
        except OutsideSpaceError as error:
            env_index, agent_id = owners.env_index[error.row], owners.agent_id[error.row]
            raise outside_space_error(env_index, agent_id, "final observation", error) from error

    def record_actions(self, block: PendingRows, actions: Sequence[Any]) -> None:
        """Store R actions that a client chose; their probabilities are unknown."""
        self.strategy.client_acted(block, self.buffer, actions)
        self.buffer.set_actions(block.rows, self.strategy.network_form(actions, block.which))
        self.buffer.mark(SampleBatch.OFF_POLICY, block.rows, np.True_)

    def retire(self, policy_id: str) -> None:
        """Free a policy's id for another policy; its index stays reserved until it is used again."""
        self.policy_ids[self.policy_ids.index(policy_id)] = policy_id + _REMOVED


class NetworkStrategy(ActingStrategy):
    """Networks of one architecture, run by an acting back-end.

    With `evaluates` the connectors are copies, which are copied again when the originals change.
    """

    networks: NetworkGroup

    def __init__(self, networks: NetworkGroup, *, evaluates: bool = False) -> None:
        self.networks = networks
        self.policy_ids = networks.policy_ids
        self.observation_space = networks.observation_space
        head = networks.backend.head
        self._action_sampler = ActionSampler(head.draw, head.noise_width)
        self._evaluates = evaluates
        self._versions: list[tuple[PolicyConnectors, int]] = []
        self.connect()

    def __reduce__(self) -> Any:
        return NetworkStrategy, (self.networks,)

    def new_buffer(self) -> RolloutBuffer:
        networks, head = self.networks, self.networks.backend.head
        return RolloutBuffer(
            networks.row_width, networks.preprocess.mask_width, head.action_shape, head.action_dtype,
            head.inputs if head.returns_dist_inputs else 0, networks.row_dtype, networks.state_sizes,
        )  # fmt: skip

    def connect(self) -> None:
        # After a pipeline was not plain once, rows are checked one by one, even if it becomes plain again.
        # The objects are compared too, because a replacement may have the same version.
        networks = self.networks
        versions = [(own, own.version) for own in networks.connectors]
        if versions == self._versions:
            return
        self._versions = versions
        if self.path is None and all(plain(own, networks.built) for own in networks.connectors):
            return
        mine = (
            [own.for_evaluation() for own in networks.connectors] if self._evaluates else networks.connectors
        )
        form = networks.row_width, networks.row_dtype
        path, before = (
            ConnectorPath(mine, networks.action_space, *form, learning=not self._evaluates),
            self.path,
        )
        if before is not None:
            path.shown = before.shown
        self.path = path

    @property
    def by_columns(self) -> bool:
        return self.path is None or self.path.whole

    def start(self, slot: int, policy: int) -> None:
        if self.path is not None:
            self.path.begin(slot, policy)

    def rows(self, block: PendingRows, obs: Any, rewards: Column, ready: Ready) -> Connected:
        if self.path is None:
            rows, mask = self.networks.preprocess(obs)
            return rows, mask, rewards
        infos = None if ready.infos is None else block.of(ready.infos)
        return self.path.rows(block.which, obs, rewards, slots=block.slots, seats=ready.seats, infos=infos)

    def act(
        self, block: PendingRows, buffer: RolloutBuffer, table: TrajectoryTable, env_steps: Column, seats: Seats,
        explore: bool,
    ) -> Answers:  # fmt: skip
        networks = self.networks
        obs, mask = buffer.inputs(block.rows)
        noise = self._action_sampler.rows(block.slots, table, env_steps) if explore else None
        if networks.state_sizes:
            before = buffer.states(block.slots)
            decision = networks.backend.decide(obs, mask, noise, block.which, before)
            assert decision.state is not None
            buffer.set_states(block.rows, block.slots, before, decision.state)
        else:
            before = None
            decision = networks.backend.decide(obs, mask, noise, block.which)
        if not decision.is_finite:
            check_bounds(self, buffer)
            raise non_finite_error(networks.backend, self.policy_ids, block.which, obs)
        buffer.set_actions(block.rows, decision.actions, decision.dist_inputs)
        if self.path is None:
            output = networks.output
            return decision.actions if output.is_plain else output(decision.actions)
        own = [seats[slot] for slot in block.slots.tolist()] if self.path.acts else None
        answers: Answers = self.path.answers(block.which, decision.actions, obs, mask, own)
        return answers

    def end(self, policy: int, end: End) -> End:
        return end if self.path is None else self.path.final(policy, end)

    def end_episode(self, env_id: EnvId) -> None:
        if self.path is not None:
            self.path.reset(env_id)

    def finals(self, finals: list[Any], policies: Column) -> Prepared:
        if self.path is not None:
            return self.path.finals(finals, policies)
        return self.networks.preprocess.finals(finals)

    def bad_row(self, obs: Column) -> tuple[int, str] | None:
        return self.networks.preprocess.why_bad_row(obs) if self.path is None else None

    def fragment_closed(self, buffer: RolloutBuffer) -> None:
        if self.path is not None:
            self.path.settle()
        if buffer.carried and not self._knows_carried:
            self._add_carried_logp(buffer)

    @property
    def _knows_carried(self) -> bool:
        """Whether rows can be learned from without the weights that answered them."""
        head = self.networks.backend.head
        return head.returns_dist_inputs or head.is_value_based

    def _add_carried_logp(self, buffer: RolloutBuffer) -> None:
        """Store the log-probabilities of carried rows, which are released after the weights change."""
        backend, logp = self.networks.backend, SampleBatch.ACTION_LOGP
        known = buffer.columns_at(slice(0, buffer.carried), [logp]).get(logp)
        unknown = np.arange(buffer.carried) if known is None else np.flatnonzero(np.isnan(known))
        living = buffer.held()[0].take(unknown)
        for policy in np.unique(living.policy[living.trained]).tolist():
            rows = unknown[living.trained & (living.policy == policy)]
            columns = buffer.columns_at(rows, ("obs", "actions"))
            state = buffer.states_at(rows) if self.networks.state_sizes else None
            found = backend.evaluate(policy, columns["obs"], None, columns["actions"], state)
            record_distribution(backend.head, buffer, rows, *found)

    def add_dist_inputs(self, closed: dict[str, SampleBatch]) -> dict[str, SampleBatch]:
        if self._knows_carried:
            return closed
        for policy_id, batch in closed.items():
            parts = [batch[name] for name in batch if name.startswith("state_in_")]
            batch[SampleBatch.ACTION_DIST_INPUTS], batch[SampleBatch.ACTION_LOGP] = self.networks.backend.evaluate(
                self.policy_ids.index(policy_id), batch[SampleBatch.OBS], batch.get(SampleBatch.ACTION_MASK),
                batch[SampleBatch.ACTIONS], np.concatenate(parts, 1) if parts else None,
            )  # fmt: skip
        return closed

    def env_actions(self, actions: Column, which: int) -> Answers:
        return self.networks.connectors[which].output(self.networks.action_space)(actions)

    def network_form(self, actions: Any, which: Column | int) -> Column:
        return (
            self.networks.output.inverse(actions)
            if self.path is None
            else self.path.network_form(which, actions)
        )

    def client_acted(self, block: PendingRows, buffer: RolloutBuffer, actions: Sequence[Any]) -> None:
        if self.networks.state_sizes:
            before = buffer.states(block.slots)
            decision = self.networks.backend.decide(*buffer.inputs(block.rows), None, block.which, before)
            assert decision.state is not None
            buffer.set_states(block.rows, block.slots, before, decision.state)

    def record_external_steps(
        self, buffer: RolloutBuffer, rows: Column, slot: int, which: int, steps: ExternalSteps
    ) -> None:
        networks = self.networks
        actions, inputs, logp = steps.actions, steps.dist_inputs, steps.logp
        if inputs is not None and inputs.shape[1] != networks.backend.head.inputs:
            # The client used another policy than the one that the agent has.
            inputs = None
        output = networks.output if self.path is None else self.path.outputs[which]
        actions = output.inverse(actions)
        inputs = None if inputs is None else output.inverse_inputs(inputs)
        logp = None if logp is None else logp + float(output.log_scale.sum())
        if networks.state_sizes:
            self._set_external_states(buffer, rows, slot, which, steps)
        buffer.set_actions(rows, actions)
        record_distribution(networks.backend.head, buffer, rows, inputs, logp)

    def _set_external_states(
        self, buffer: RolloutBuffer, rows: Column, slot: int, which: int, steps: ExternalSteps
    ) -> None:
        """Store the states before n rows: the client's, or the states that follow from the current one."""
        slots, after = np.full(len(rows), slot), buffer.states(np.array([slot]))
        before = steps.state_in
        if before is None or before.shape[1] != after.shape[1]:
            before = np.zeros((len(rows), after.shape[1]), np.float32)
            for place, row in enumerate(rows.tolist()):
                before[place] = after[0]
                decision = self.networks.backend.decide(
                    *buffer.inputs(slice(row, row + 1)), None, which, after
                )
                assert decision.state is not None
                after = decision.state
        buffer.set_states(rows, slots, before, np.broadcast_to(after, before.shape))

    @property
    def can_repeat(self) -> bool:
        return self.path is None or not self.path.acts

    def clone(self) -> NetworkStrategy:
        return NetworkStrategy(self.networks, evaluates=True)

    def update_policies(self, other: ActingStrategy) -> None:
        networks, newer = self.networks, other.networks
        assert newer is not None
        # A removed policy keeps its connectors, with their state of running agents, until its index is reused.
        pairs = zip(self.policy_ids, newer.policy_ids, strict=False)
        came = [mine != theirs and not is_retired(theirs) for mine, theirs in pairs]
        self.policy_ids[:] = newer.policy_ids
        networks.backend = newer.backend
        for index, own in enumerate(newer.connectors):
            if index >= len(came) or came[index]:
                networks.connectors[index : index + 1] = [own]


def record_distribution(
    head: ActionHead, buffer: RolloutBuffer, rows: Column, inputs: Column | None, logp: Column | None
) -> None:
    """Store the distribution inputs and log-probabilities of n actions, where they are known."""
    # Distribution inputs of clients are not Q-values, even if the network outputs these.
    if inputs is not None and head.is_value_based:
        inputs = None
    if inputs is None and head.returns_dist_inputs:
        # The column exists for all rows; the entries of these are NaN.
        inputs = np.full((len(rows), head.inputs), np.nan)
    if inputs is not None:
        buffer.mark(SampleBatch.ACTION_DIST_INPUTS, rows, inputs.astype(np.float32))
    if logp is not None:
        buffer.mark(SampleBatch.ACTION_LOGP, rows, logp.astype(np.float32))


def check_bounds(strategy: ActingStrategy, buffer: RolloutBuffer) -> None:
    """Raise `ContractError` if a row is outside its space."""
    bad = strategy.bad_row(buffer.obs[: buffer.rows])
    if bad is not None:
        env_index, agent_id, t = buffer.locate(bad[0])
        raise outside_space_error(env_index, agent_id, f"agent step {t}", OutsideSpaceError(*bad))


class ActionSampler:
    """The random numbers that actions are sampled with; `draw` is `rng.uniforms` or another function like it.

    They depend on the agent's key and the env step alone, so they can be generated before they are needed: one block
    for all slots serves many polls, whichever agents wait in them.
    """

    def __init__(self, draw: rng.Draw, width: int) -> None:
        self._draw = draw
        self._width = width
        # A restored run has another table, whose version may be the same.
        self._of: tuple[TrajectoryTable, int] | None = None
        self._first: Column = np.zeros(0, np.int64)
        self._block = np.zeros((0, 0, width), np.float32)
        self._misses = 0

    def rows(self, slots: Column, table: TrajectoryTable, env_steps: Column) -> Noise:
        """Return the numbers of the rows at `slots` [R], given [E] env steps since each sub-environment's start."""
        if self._of == (table, table.version) and len(env_steps) == len(self._first):
            ahead = env_steps - self._first
            if len(ahead) <= _FEW:
                steps = ahead.tolist()
                first, last = min(steps), max(steps)
            else:
                first, last = int(np.minimum.reduce(ahead)), int(np.maximum.reduce(ahead))
            if first >= 0 and last < _AHEAD:
                if first == last:
                    together: Noise = self._block[first].take(slots, axis=0)
                    return together
                scattered: Noise = self._block[ahead.take(table.env_indices.take(slots)), slots]
                return scattered
        self._misses += 1
        if self._misses == 1 or table.used > _SLOTS_PER_ROW * len(slots):
            return self._draw(table.keys[slots], env_steps[table.env_indices[slots]], self._width)
        self._draw_block(table, env_steps)
        fresh: Noise = self._block[0].take(slots, axis=0)
        return fresh

    def _draw_block(self, table: TrajectoryTable, env_steps: Column) -> None:
        self._misses = 0
        self._of = table, table.version
        self._first = env_steps.copy()
        keys, steps = table.keys[: table.used], env_steps[table.env_indices[: table.used]]
        self._block = self._draw(keys[None, :], steps[None, :] + np.arange(_AHEAD)[:, None], self._width)


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
        raw = None if self.raw is None else list(compress(self.raw, chosen))
        taken = None if self.taken is None else list(compress(self.taken, chosen))
        return PendingRows(
            self.slots[chosen], which, self.env_indices[chosen], rows[chosen], raw, taken=taken
        )

    def of(self, values: Any) -> Any:
        """Return this block's entries of values for all rows of its poll."""
        if self.places is None:
            return values
        if isinstance(values, np.ndarray | NestedRows):
            return values[self.places]
        if isinstance(values, Columns):
            return values.at(self.places)
        return [values[place] for place in self.places.tolist()]

    def copy(self) -> PendingRows:
        """Return a block that shares the look-ups."""
        return PendingRows(self.slots, self.which, self.env_indices, self.rows, self.raw, self.places)


def is_retired(policy_id: str) -> bool:
    """Return whether an entry of `policy_ids` stands for a policy that was removed."""
    return policy_id.endswith(_REMOVED)


def outside_space_error(
    env_index: object, agent_id: object, when: str, error: OutsideSpaceError, space: object = None
) -> ContractError:
    """Return the error for an observation outside its space, which may be the Dict space of all agents by mistake."""
    advice = (
        "fix the environment's observation or its observation_space, or set observation_space in the config to a "
        "space that contains it"
    )
    if isinstance(space, gym.spaces.Dict) and agent_id in space.spaces:
        advice = (
            "list the agents in possible_agents of the environment, if the entries of its space are theirs"
        )
    wrong = error.with_advice(advice)
    return ContractError(f"env {env_index}, agent {agent_id!r}, {when}: {wrong}")


def refused_action_error(env_id: object, agent_id: object, why: str) -> ContractError:
    """Return the error for a client's action that is outside the space."""
    return ContractError(
        f"env {env_id}, agent {agent_id!r}, log_action: {why}; log what was given to the environment, or fix its "
        "action_space"
    )
