"""The policy group of neural networks, run by an acting back-end.

It puts connectors before and behind the network: `path` runs them row by row unless the preprocessor and `output` do
the same for whole arrays. `menv.algorithms.network_group_builder` creates it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import Column, ExternalSteps, Ready, VectorStep
from menv.connectors.action_output import ActionOutput
from menv.connectors.connector import ConnectorContext
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import ActionPlan, PolicyConnectors, action_plan, export_lives, import_lives
from menv.errors import ContractError
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.action_sampler import ActionSampler, TrajectoryTable
from menv.inference.backend import ActingBackend, Weights, non_finite_error
from menv.inference.connector_path import ConnectorPath, plain
from menv.sample_batch import SampleBatch
from menv.sampling.policy_group import Answers, PendingRows, PolicyGroup, is_retired
from menv.sampling.rollout_buffer import Rows


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
        self._seats: Sequence[tuple[Any, Any]] = ()
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

    def update_policies(self, other: PolicyGroup) -> None:
        assert isinstance(other, NetworkPolicyGroup)
        # A removed policy keeps its connectors, with their state of running agents, until its index is reused.
        pairs = zip(self.policy_ids, other.policy_ids, strict=False)
        came = [mine != theirs and not is_retired(theirs) for mine, theirs in pairs]
        super().update_policies(other)
        self.backend = other.backend
        for index, own in enumerate(other.connectors):
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

    def add_rows(self, block: PendingRows, obs: Any, rewards: Column, ready: Ready) -> Rows:
        path = self.path
        # Needed even without connectors, because some may be added before the pending rows are answered.
        self._seats = ready.seats
        if path is None:
            return super().add_rows(block, obs, rewards, ready)
        infos = ready.infos
        if infos is not None and block.places is not None:
            infos = [infos[place] for place in block.places.tolist()]
        slots = block.slots
        done = path.rows(block.which, obs, rewards, slots=slots, seats=ready.seats, infos=infos)
        return self.buffer.add(slots, done.obs, done.mask, done.rewards)

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
