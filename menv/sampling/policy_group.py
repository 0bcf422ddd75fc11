"""Policies that share an architecture, and the rows that wait for their actions.

`menv.sampling.rollout_loop` adds rows to a group and asks it to act; the rows of all its policies go through one
preprocessor, one buffer (`menv.sampling.rollout_buffer`) and usually one forward pass. `NetworkPolicyGroup` runs neural
networks, `CustomPolicyGroup` asks `Policy` objects that users wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import Column, Columns, End, EnvId, ExternalSteps, Ready, VectorStep
from menv.connectors.action_output import ActionOutput
from menv.connectors.connector import ConnectorContext
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import ActionPlan, PolicyConnectors, action_plan, export_lives, import_lives
from menv.episode import Episode
from menv.errors import ContractError
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.action_sampler import ActionSampler, TrajectoryTable
from menv.inference.backend import ActingBackend, Weights, non_finite_error
from menv.inference.connector_path import ConnectorPath, plain
from menv.policy import Policy
from menv.policy_spec import PolicySpec
from menv.sample_batch import SampleBatch
from menv.sampling.rollout_buffer import Prepared, RolloutBuffer, Rows
from menv.sampling.trajectories import Trajectories, TrajectoryStart
from menv.spaces import OutsideSpaceError

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
        policies: The policy objects, by index, of custom policies; () where networks act.
        untrained: Rows of the last `close` that are excluded from training, by policy.
        weights_seq_no: Number of the weights that act; None where rows do not record it.
        reads_episodes: Whether its policies read raw observations and episodes.
    """

    reads_episodes = False
    path: ConnectorPath | None = None
    policies: Sequence[Policy] = ()
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
        # `Ready.seats` of the pending rows.
        self._seats: Sequence[tuple[Any, Any]] = ()
        self.buffer: RolloutBuffer
        self.reset_buffer()

    @property
    def networks(self) -> NetworkPolicyGroup | None:
        """This group, if networks act."""
        return None

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
        # Needed even without connectors, because some may be added before the pending rows are answered.
        self._seats = ready.seats
        if self.path is not None:
            infos = None if ready.infos is None else block.of(ready.infos)
            done = self.path.rows(block.which, obs, rewards, slots=slots, seats=ready.seats, infos=infos)
            return self.buffer.add(slots, done.obs, done.mask, done.rewards)
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

    def fits(self, policy: Policy, place: int, spec: PolicySpec) -> bool:
        """Return whether a custom policy can reuse the index `place` of a removed one."""
        return False

    @abstractmethod
    def clone(self) -> PolicyGroup:
        """Return a group of the same policies with an empty buffer."""

    def update_policies(self, other: PolicyGroup) -> None:
        """Use the policies of a newer copy of this group, which may contain more of them."""
        self.policy_ids[:] = other.policy_ids

    def retire(self, policy_id: str) -> None:
        """Free a policy's id for another policy; its index stays reserved until `admit`."""
        self.policy_ids[self.policy_ids.index(policy_id)] = policy_id + _REMOVED


class NetworkPolicyGroup(PolicyGroup):
    """Policies of one network architecture, run by an acting back-end.

    Args:
        policy_ids: The ids, by index.
        observation_space: The space of each policy.
        action_space: The action space of each policy.
        backend: Runs the networks.
        output: Does what the action connectors do initially.
        state_sizes: Sizes of the parts of the recurrent state.
        connectors: The pipelines of each policy; None for the default ones.
        original: For evaluation: the group whose connectors are copied, and copied again when they change.

    Attributes:
        graphs: Returns the builder of the acting graphs, for policies on disk; None if only torch runs the networks.
        built: The part of the action connectors that `output` does.
    """

    def __init__(
        self,
        policy_ids: Sequence[str],
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        backend: ActingBackend,
        output: ActionOutput,
        state_sizes: tuple[int, ...] = (),
        connectors: list[PolicyConnectors] | None = None,
        *,
        original: NetworkPolicyGroup | None = None,
    ) -> None:
        head = backend.head
        inputs_width = head.inputs if head.returns_dist_inputs else 0
        if connectors is None:
            ctx = ConnectorContext(observation_space=observation_space, action_space=action_space)
            connectors = [PolicyConnectors.plain(ctx) for _ in policy_ids]
        rows = original or connectors[0].rows_of(observation_space)
        self.action_space = action_space
        super().__init__(
            policy_ids, observation_space, head.action_shape, head.action_dtype, inputs_width, state_sizes,
            rows.row_width, rows.row_dtype,
        )  # fmt: skip
        self.backend = backend
        self.output = output
        self.graphs: Callable[[], ActingGraphs | None] = lambda: None
        self.action_sampler = ActionSampler(head.draw, head.noise_width)
        self.connectors = connectors
        self._evaluates = original is not None
        self.built: ActionPlan = original.built if original else action_plan(connectors[0].action)
        self._versions: list[tuple[PolicyConnectors, int]] = []
        self.connect()

    def __reduce__(self) -> Any:
        # Rows and running episodes stay in this process.
        parts = (
            list(self.policy_ids), self.observation_space, self.action_space, self.backend, self.output,
            self.state_sizes, list(self.connectors),
        )  # fmt: skip
        return NetworkPolicyGroup, parts, {"built": self.built}

    def _preprocessor(self, space: gym.Space[Any]) -> ObsPreprocessor:
        return ObsPreprocessor(space, self.action_space)

    @property
    def networks(self) -> NetworkPolicyGroup:
        return self

    def update_policies(self, other: PolicyGroup) -> None:
        newer = other.networks
        assert newer is not None
        # A removed policy keeps its connectors, with their state of running agents, until its index is reused.
        pairs = zip(self.policy_ids, other.policy_ids, strict=False)
        came = [mine != theirs and not is_retired(theirs) for mine, theirs in pairs]
        super().update_policies(other)
        self.backend = newer.backend
        for index, own in enumerate(newer.connectors):
            if index >= len(came) or came[index]:
                self.connectors[index : index + 1] = [own]

    def admit(
        self, policy_id: str, weights: Weights, connectors: PolicyConnectors, place: int | None = None
    ) -> None:
        """Add a policy, at the index `place` of a removed policy or at the end."""
        if place is None:
            self.backend.add_policy(weights)
            self.policy_ids.append(policy_id)
            self.connectors.append(connectors)
        else:
            self.backend.set_weights(place, weights)
            self.policy_ids[place], self.connectors[place] = policy_id, connectors

    @property
    def row_width(self) -> int:
        """F, the size of the rows that the networks take."""
        return self._columns[0]

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Their type."""
        return self._columns[5]

    def vector_rows(self, policy: int, step: VectorStep) -> tuple[Column, Column | None]:
        """Return a vector step as rows and masks, for connectors that need no agent ids."""
        obs, over = step.obs, step.done if step.finals is None else None
        if self.path is not None:
            return self.path.rows(policy, obs, over=over)[:2]
        assert self.preprocess is not None
        return self.preprocess(obs, False if over is None else over)

    def connect(self) -> None:
        # After a pipeline was not plain once, rows are checked one by one, even if it becomes plain again.
        # The objects are compared too, because a replacement may have the same version.
        versions = [(own, own.version) for own in self.connectors]
        if versions == self._versions:
            return
        self._versions = versions
        if self.path is None and all(plain(own, self.built) for own in self.connectors):
            return
        mine = [own.for_evaluation() for own in self.connectors] if self._evaluates else self.connectors
        form = self.row_width, self.row_dtype
        path, before = ConnectorPath(mine, self.action_space, *form, learning=not self._evaluates), self.path
        if before is not None:
            path.shown = before.shown
        self.path = path

    def env_actions(self, actions: Column, which: int) -> Answers:
        # Not `self.output`: a checkpoint may have brought other connectors, before `connect` was called.
        return self.connectors[which].output(self.action_space)(actions)

    @property
    def can_replay(self) -> bool:
        return self.path is None or (self.path.exports_lives and not self.path.acts)

    def carried_state(self) -> dict[str, Any]:
        state, path = super().carried_state(), self.path
        return (
            state
            if path is None
            else {**state, "shown": [path.shown.get(slot) for slot in state["slot"].tolist()]}
        )

    def _connector_states(self, slots: Sequence[int], policies: Sequence[int]) -> list[Any]:
        if self.path is None or not (self.path.keeps_lives and self.can_replay):
            return super()._connector_states(slots, policies)
        pairs = zip(slots, policies, strict=True)
        return [export_lives(self.connectors[index].agent, [slot])[0] for slot, index in pairs]

    def restore(self, state: Mapping[str, Any]) -> int:
        first, slots = super().restore(state), state["slot"].tolist()
        for slot, index, life in zip(slots, state["policy"].tolist(), state["remembered"], strict=True):
            import_lives(self.connectors[index].agent, [slot], [life])
        self.connect()
        if self.path is not None:
            shown = zip(slots, state.get("shown", [None] * len(slots)), strict=True)
            self.path.shown.update((slot, one) for slot, one in shown if one is not None)
        return first

    def clone(self) -> NetworkPolicyGroup:
        """Return a group that shares the policies and weights, with an empty buffer, for evaluation."""
        return NetworkPolicyGroup(
            self.policy_ids, self.observation_space, self.action_space, self.backend, self.output,
            self.state_sizes, self.connectors, original=self,
        )  # fmt: skip

    def act(self, block: PendingRows, table: TrajectoryTable, env_steps: Column, explore: bool) -> Answers:
        buffer = self.buffer
        obs, mask = buffer.inputs(block.rows)
        noise = self.action_sampler.rows(block.slots, table, env_steps) if explore else None
        if self.state_sizes:
            before = buffer.states(block.slots)
            decision = self.backend.decide(obs, mask, noise, block.which, before)
            assert decision.state is not None
            buffer.set_states(block.rows, block.slots, before, decision.state)
        else:
            before = None
            decision = self.backend.decide(obs, mask, noise, block.which)
        if not decision.is_finite:
            raise self.non_finite_error(block.which, obs, mask, before)
        buffer.set_actions(block.rows, decision.actions, decision.dist_inputs)
        if self.path is None:
            return self.output(decision.actions)
        seats = [self._seats[slot] for slot in block.slots.tolist()] if self.path.acts else None
        answers: Answers = self.path.answers(block.which, decision.actions, obs, mask, seats)
        return answers

    def non_finite_error(
        self, which: Column | int, obs: Column, mask: Column | None, state: Column | None = None
    ) -> ContractError:
        """Return the error for a decision that is not finite.

        Raises the one for an observation outside its space first.
        """
        self._check_bounds()
        return non_finite_error(self.backend, self.policy_ids, which, obs, mask, state)

    def network_form(self, actions: Any, which: Column | int) -> Column:
        return self.output.inverse(actions) if self.path is None else self.path.network_form(which, actions)

    def record_actions(self, block: PendingRows, actions: Sequence[Any]) -> None:
        buffer = self.buffer
        if self.state_sizes:
            before = buffer.states(block.slots)
            decision = self.backend.decide(*buffer.inputs(block.rows), None, block.which, before)
            assert decision.state is not None
            buffer.set_states(block.rows, block.slots, before, decision.state)
        super().record_actions(block, actions)

    def record_external_steps(self, rows: Column, slot: int, which: int, steps: ExternalSteps) -> None:
        buffer = self.buffer
        actions, inputs, logp = steps.actions, steps.dist_inputs, steps.logp
        if inputs is not None and inputs.shape[1] != self.backend.head.inputs:
            # The client used another policy than the one that the agent has.
            inputs = None
        if not steps.network_form:
            output = self.output if self.path is None else self.path.outputs[which]
            actions = output.inverse(actions)
            inputs = None if inputs is None else output.inverse_inputs(inputs)
            logp = None if logp is None else logp + float(output.log_scale.sum())
        if self.state_sizes:
            self._set_external_states(rows, slot, which, steps)
        buffer.set_actions(rows, actions)
        self.record_distribution(rows, inputs, logp)

    def close(self) -> dict[str, SampleBatch]:
        closed = super().close()
        if self.buffer.carried and not (
            self.backend.head.returns_dist_inputs or self.backend.head.is_value_based
        ):
            self._add_carried_logp()
        return closed

    def _add_carried_logp(self) -> None:
        """Store the log-probabilities of carried rows, which are released after the weights change."""
        buffer, logp = self.buffer, SampleBatch.ACTION_LOGP
        known = buffer.columns_at(slice(0, buffer.carried), [logp]).get(logp)
        unknown = np.arange(buffer.carried) if known is None else np.flatnonzero(np.isnan(known))
        living = buffer.held()[0].take(unknown)
        for policy in np.unique(living.policy[living.trained]).tolist():
            rows = unknown[living.trained & (living.policy == policy)]
            columns = buffer.columns_at(rows, ("obs", "actions"))
            state = buffer.states_at(rows) if self.state_sizes else None
            self.record_distribution(
                rows, *self.backend.evaluate(policy, columns["obs"], None, columns["actions"], state)
            )

    def add_dist_inputs(self, closed: dict[str, SampleBatch]) -> dict[str, SampleBatch]:
        head = self.backend.head
        if head.returns_dist_inputs or head.is_value_based:
            return closed
        for policy_id, batch in closed.items():
            parts = [batch[name] for name in batch if name.startswith("state_in_")]
            batch[SampleBatch.ACTION_DIST_INPUTS], batch[SampleBatch.ACTION_LOGP] = self.backend.evaluate(
                self.policy_ids.index(policy_id), batch[SampleBatch.OBS], batch.get(SampleBatch.ACTION_MASK),
                batch[SampleBatch.ACTIONS], np.concatenate(parts, 1) if parts else None,
            )  # fmt: skip
        return closed

    def record_distribution(self, rows: Column, inputs: Column | None, logp: Column | None) -> None:
        """Store the distribution inputs and log-probabilities of n actions, where they are known."""
        # Distribution inputs of clients are not Q-values, even if the network outputs these.
        if inputs is not None and self.backend.head.kind == "q_values":
            inputs = None
        if inputs is None and self.backend.head.returns_dist_inputs:
            # The column exists for all rows; the entries of these are NaN.
            inputs = np.full((len(rows), self.backend.head.inputs), np.nan)
        if inputs is not None:
            self.buffer.mark(SampleBatch.ACTION_DIST_INPUTS, rows, inputs.astype(np.float32))
        if logp is not None:
            self.buffer.mark(SampleBatch.ACTION_LOGP, rows, logp.astype(np.float32))

    def _set_external_states(self, rows: Column, slot: int, which: int, steps: ExternalSteps) -> None:
        """Store the states before n rows: the client's, or the states that follow from the current one."""
        buffer = self.buffer
        slots, after = np.full(len(rows), slot), buffer.states(np.array([slot]))
        before = steps.state_in
        if before is None or before.shape[1] != after.shape[1]:
            before = np.zeros((len(rows), after.shape[1]), np.float32)
            for place, row in enumerate(rows.tolist()):
                before[place] = after[0]
                decision = self.backend.decide(*buffer.inputs(slice(row, row + 1)), None, which, after)
                assert decision.state is not None
                after = decision.state
        buffer.set_states(rows, slots, before, np.broadcast_to(after, before.shape))


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
