"""NetCohort: policies of one network architecture, run by an acting back-end.

`menv.sampling.rollout_loop` calls it as it calls an `OwnCohort`; `menv.algorithms.network_groups` makes it. It knows
neither environments nor learning.
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
from menv.sampling.rollout_buffer import RecurrentRolloutBuffer, Rows
from menv.sampling.vector_rollout_buffer import NewIds, VectorRolloutBuffer


class NetworkPolicyGroup(PolicyGroup):
    """Policies of one network architecture, run by an acting back-end.

    Attributes:
        graphs: Returns what builds their acting graphs, to write them to a disk; None if only torch runs them.
        connectors: The pipelines of each policy.
        built: What `output` does of the action connectors.
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
        """Put a preprocessor before and `output` behind `backend`.

        Args:
            policy_ids: Their ids.
            observation_space: Of all of them.
            action_space: Likewise.
            backend: Runs the networks.
            output: What the action connectors that they begin with do.
            state_sizes: Numbers in each part of their recurrent state.
            connectors: The pipelines of each policy; None for those of default settings.
            original: Whose connectors these are: they are copied for evaluation, and followed when they change.
        """
        head = backend.head
        told = head.inputs if head.returns_dist_inputs else 0
        if connectors is None:
            ctx = ConnectorContext(observation_space=observation_space, action_space=action_space)
            connectors = [PolicyConnectors.plain(ctx) for _ in policy_ids]
        rows = original or connectors[0].rows_of(observation_space)
        self.action_space = action_space
        super().__init__(
            policy_ids, observation_space, head.action_shape, head.action_dtype, told, state_sizes,
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
        # What it has written down, and what it knows of running episodes, stays here.
        parts = (
            list(self.policy_ids), self.observation_space, self.action_space, self.backend, self.output,
            self.state_sizes, list(self.connectors),
        )  # fmt: skip
        return _made_again, (*parts, self.built)

    def _preprocessor(self, space: gym.Space[Any]) -> ObsPreprocessor:
        return ObsPreprocessor(space, self.action_space)

    def update_policies(self, other: PolicyGroup) -> None:
        """Take over the policies of a newer copy; see `PolicyGroup.update_policies`."""
        assert isinstance(other, NetworkPolicyGroup)
        # Who was removed keeps its connectors, which remember its lives, until another one has its place.
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
        """Take a policy in.

        Args:
            policy_id: Its id.
            weights: Its weights.
            connectors: Its pipelines.
            place: Index of a policy that was removed and that nothing refers to any more; None for one behind all.
        """
        if place is None:
            self.backend.add_policy(weights)
            self.policy_ids.append(policy_id)
            self.connectors.append(connectors)
        else:
            self.backend.set_weights(place, weights)
            self.policy_ids[place], self.connectors[place] = policy_id, connectors

    @property
    def row_width(self) -> int:
        """F, the numbers in a row that the networks take."""
        return self._columns[0]

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Their type."""
        return self._columns[5]

    def write(self, block: PendingRows, obs: Any, rewards: Column, ready: Ready) -> Rows:
        """Write down that agents wait, after the connectors; see `PolicyGroup.write`."""
        path = self.path
        # Also where nobody asks yet: rows that wait may be answered through connectors that come meanwhile.
        self._seats = ready.seats
        if path is None:
            return super().write(block, obs, rewards, ready)
        infos = ready.infos
        if infos is not None and block.places is not None:
            infos = [infos[place] for place in block.places.tolist()]
        slots = block.slots
        done = path.rows(block.which, obs, rewards, slots=slots, seats=ready.seats, infos=infos)
        return self.buffer.add(slots, done.obs, done.mask, done.rewards)

    def frame_rows(self, policy: int, frame: VectorStep) -> tuple[Column, Column | None]:
        """Return a frame as rows and masks; no connector cares whose they are."""
        obs, over = frame.obs, frame.done if frame.finals is None else None
        if self.path is not None:
            return self.path.rows(policy, obs, over=over)[:2]
        assert self.preprocess is not None
        return self.preprocess(obs, False if over is None else over)

    def connect(self) -> None:
        """Take note of pipelines that were changed; called before each fragment.

        Once one is not plain, what is written is checked row by row, also after it has become plain again.
        """
        # Others that have come in their place may have changed as often.
        versions = [(own, own.version) for own in self.connectors]
        if versions == self._versions:
            return
        self._versions = versions
        if self.path is None and all(plain(own, self.built) for own in self.connectors):
            return
        mine = [own.for_evaluation() for own in self.connectors] if self._evaluates else self.connectors
        taken = self.row_width, self.row_dtype
        path, before = ConnectorPath(mine, self.action_space, *taken, learning=not self._evaluates), self.path
        if before is not None:
            path.shown.follow(before.shown)
        self.path = path

    def take_frames(
        self, policy: int, lives: Column, new_ids: NewIds, *, going_on: bool = False
    ) -> VectorRolloutBuffer:
        """Write frames down from now on; see `VectorRolloutBuffer`.

        Args:
            policy: Index of the policy that answers for everybody.
            lives: [E] keys of their agents' lives.
            new_ids: Numbers episodes.
            going_on: Whether to go on with the rows there are, one of each sub-environment; else there must be none.
        """
        rows = self.buffer if going_on else None
        self.buffer = frames = VectorRolloutBuffer(
            *self._columns, policy=policy, num_envs=len(lives), new_ids=new_ids, lives=lives, rows=rows
        )
        return frames

    def leave_frames(self, frames: VectorRolloutBuffer, *, answered: bool) -> None:
        """Write rows down from now on, and go on with those of the frames; see `VectorRolloutBuffer.hand_over`."""
        self.reset_buffer()
        frames.hand_over(self.buffer, answered=answered)

    def env_actions(self, actions: Column, which: int) -> Answers:
        """Return env-ready actions; see `PolicyGroup.env_actions`."""
        # Connectors that a checkpoint brought are here before a fragment begins.
        return self.connectors[which].output(self.action_space)(actions)

    @property
    def replays(self) -> bool:
        """Whether actions say all about what the environment was given; see `PolicyGroup.replays`."""
        return self.path is None or (self.path.exports_lives and not self.path.acts)

    def living_state(self) -> dict[str, Any]:
        """Return the trajectories that live on, and what they were shown; see `PolicyGroup.living_state`."""
        state, path = super().living_state(), self.path
        return state if path is None else {**state, "shown": path.shown.of(state["slot"].tolist())}

    def _remembered(self, slots: Sequence[int], policies: Sequence[int]) -> list[Any]:
        if self.path is None or not (self.path.keeps_lives and self.replays):
            return super()._remembered(slots, policies)
        pairs = zip(slots, policies, strict=True)
        return [export_lives(self.connectors[index].agent, [slot])[0] for slot, index in pairs]

    def take_up(self, state: Mapping[str, Any]) -> int:
        """Go on with trajectories, and let connectors remember them; see `PolicyGroup.take_up`."""
        first, slots = super().take_up(state), state["slot"].tolist()
        for slot, index, life in zip(slots, state["policy"].tolist(), state["remembered"], strict=True):
            import_lives(self.connectors[index].agent, [slot], [life])
        self.connect()
        if self.path is not None:
            self.path.shown.put(slots, state.get("shown", [None] * len(slots)))
        return first

    def clone(self) -> NetworkPolicyGroup:
        """Return a group of the same policies, their weights included, with a buffer of its own."""
        return NetworkPolicyGroup(
            self.policy_ids,
            self.observation_space,
            self.action_space,
            self.backend,
            self.output,
            self.state_sizes,
            self.connectors,
            original=self,
        )

    def answer(
        self,
        block: PendingRows,
        table: TrajectoryTable,
        env_steps: Column,
        explore: bool,
        episodes: Sequence[Any],
    ) -> Answers:
        """Run the networks; see `PolicyGroup.answer`."""
        buffer = self.buffer
        obs = buffer.obs[block.rows]
        masks = buffer.masks
        mask = None if masks is None else masks[block.rows]
        noise = self.action_sampler.rows(block.slots, table, env_steps) if explore else None
        if isinstance(buffer, RecurrentRolloutBuffer):
            before = buffer.states(block.slots)
            decision = self.backend.decide(obs, mask, noise, block.which, before)
            assert decision.state is not None
            buffer.remember(block.rows, block.slots, before, decision.state)
        else:
            before = None
            decision = self.backend.decide(obs, mask, noise, block.which)
        if not decision.is_finite:
            raise self.non_finite_error(block.which, obs, mask, before)
        buffer.answer(block.rows, decision.actions, decision.dist_inputs)
        if self.path is None:
            return self.output(decision.actions)
        return self._connected_answers(block, obs, mask, decision.actions)

    def non_finite_error(
        self, which: Column | int, obs: Column, mask: Column | None, state: Column | None = None
    ) -> ContractError:
        """Return the error for a decision that is not `sound`; arguments as for `menv.inference.backend`.

        Raises:
            ContractError: An observation lies outside its space, which is reason enough.
        """
        self._check_bounds()
        return non_finite_error(self.backend, self.policy_ids, which, obs, mask, state)

    def _connected_answers(
        self, block: PendingRows, obs: Column, mask: Column | None, actions: Column
    ) -> Answers:
        assert self.path is not None
        seats = [self._seats[slot] for slot in block.slots.tolist()] if self.path.acts else None
        answers: Answers = self.path.answers(block.which, actions, obs, mask, seats)
        return answers

    def network_form(self, actions: Any, which: Column | int) -> Column:
        """Return [R, ...] actions of the network that come out as these; see `PolicyGroup.network_form`."""
        return self.output.inverse(actions) if self.path is None else self.path.network_form(which, actions)

    def took(self, block: PendingRows, actions: Sequence[Any]) -> None:
        """Write down actions that somebody else took; see `PolicyGroup.took`."""
        buffer = self.buffer
        if isinstance(buffer, RecurrentRolloutBuffer):
            mask = None if buffer.masks is None else buffer.masks[block.rows]
            before = buffer.states(block.slots)
            decision = self.backend.decide(buffer.obs[block.rows], mask, None, block.which, before)
            assert decision.state is not None
            buffer.remember(block.rows, block.slots, before, decision.state)
        super().took(block, actions)

    def played(self, rows: Column, slot: int, which: int, moves: ExternalSteps) -> None:
        """Write down what was done in n rows of one trajectory; see `PolicyGroup.played`."""
        buffer = self.buffer
        actions, inputs, logp = moves.actions, moves.dist_inputs, moves.logp
        if inputs is not None and inputs.shape[1] != self.backend.head.inputs:
            # Of another policy than the one that the agent turned out to have.
            inputs = None
        if not moves.network_form:
            output = self.output if self.path is None else self.path.outputs[which]
            actions = output.inverse(actions)
            inputs = None if inputs is None else output.inverse_inputs(inputs)
            logp = None if logp is None else logp + float(output.log_scale.sum())
        if isinstance(buffer, RecurrentRolloutBuffer):
            self._remember(buffer, rows, slot, which, moves)
        buffer.answer(rows, actions)
        self.told(rows, inputs, logp)

    def close(self) -> dict[str, SampleBatch]:
        """Close the fragment; see `PolicyGroup.close`."""
        closed, head = super().close(), self.backend.head
        if self.buffer.carried and not (head.returns_dist_inputs or head.is_value_based):
            self._judge_held()
        return closed

    def _judge_held(self) -> None:
        """Write down how probable the actions were of rows that leave later, when other weights may act."""
        buffer, logp = self.buffer, SampleBatch.ACTION_LOGP
        known = buffer.columns_at(slice(0, buffer.carried), [logp]).get(logp)
        fresh = np.arange(buffer.carried) if known is None else np.flatnonzero(np.isnan(known))
        policies = buffer.held()[0].policy[fresh]
        for policy in np.unique(policies[policies >= 0]).tolist():
            rows = fresh[policies == policy]
            columns = buffer.columns_at(rows, ("obs", "actions"))
            state = buffer.states_at(rows) if isinstance(buffer, RecurrentRolloutBuffer) else None
            self.told(rows, *self.backend.evaluate(policy, columns["obs"], None, columns["actions"], state))

    def with_inputs(self, closed: dict[str, SampleBatch]) -> dict[str, SampleBatch]:
        """Add `action_dist_inputs` and `action_logp` where acting does not tell them; see `PolicyGroup.with_inputs`."""
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

    def told(self, rows: Column, inputs: Column | None, logp: Column | None) -> None:
        """Write down what actions [n] were drawn from, and how probable they were, as far as it is known."""
        # What clients draw from is no Q-values, also where the network's own answers are.
        if inputs is not None and self.backend.head.kind == "q_values":
            inputs = None
        if inputs is None and self.backend.head.returns_dist_inputs:
            # There is such a column for all rows; these have nothing in it.
            inputs = np.full((len(rows), self.backend.head.inputs), np.nan)
        if inputs is not None:
            self.buffer.mark(SampleBatch.ACTION_DIST_INPUTS, rows, inputs.astype(np.float32))
        if logp is not None:
            self.buffer.mark(SampleBatch.ACTION_LOGP, rows, logp.astype(np.float32))

    def _remember(
        self, buffer: RecurrentRolloutBuffer, rows: Column, slot: int, which: int, moves: ExternalSteps
    ) -> None:
        """Write down the states before n rows: those told, or those that follow from the state before them."""
        slots, after = np.full(len(rows), slot), buffer.states(np.array([slot]))
        before = moves.state_in
        if before is None or before.shape[1] != after.shape[1]:
            before, masks = np.zeros((len(rows), after.shape[1]), np.float32), buffer.masks
            for place, row in enumerate(rows.tolist()):
                before[place] = after[0]
                mask = None if masks is None else masks[row : row + 1]
                decision = self.backend.decide(buffer.obs[row : row + 1], mask, None, which, after)
                assert decision.state is not None
                after = decision.state
        buffer.remember(rows, slots, before, np.broadcast_to(after, before.shape))


def _made_again(*parts: Any) -> NetworkPolicyGroup:
    *arguments, built = parts
    group = NetworkPolicyGroup(*arguments)
    group.built = built
    group.connect()
    return group
