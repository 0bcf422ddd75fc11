"""A cohort: the policies that answer together, because they share one architecture.

All rows of a cohort go through one preprocessor, one ledger and, as a rule, one forward pass. A
`NetCohort` asks an acting back-end; an `OwnCohort` asks the `Policy` objects that a user wrote.
`menv.loop.sampler` calls both in the same way. Neither knows environments or learning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import draws
from menv.acting.acting_graphs import ActingGraphs
from menv.acting.backend import ActingBackend
from menv.base_env import End, EnvId, Ready
from menv.connectors.action_output import ActionOutput
from menv.connectors.connector_context import ConnectorContext
from menv.connectors.default_pipelines import ActionPlan, action_plan
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.policy_connectors import PolicyConnectors
from menv.errors import ContractError
from menv.frame import Frame
from menv.frame_ledger import FrameLedger, NewIds
from menv.ledger import Ledger, Prepared, Rows
from menv.loop.block import Block
from menv.loop.connector_path import ConnectorPath, plain
from menv.loop.noise import Noise
from menv.loop.slot_table import SlotTable
from menv.recurrent_ledger import RecurrentLedger
from menv.sample_batch import SampleBatch
from menv.segments import Column
from menv.spaces import OutsideSpaceError
from menv.trajectories import Trajectories

Answers: TypeAlias = Sequence[Any] | npt.NDArray[Any]


class Cohort(ABC):
    """Policies that answer together.

    Attributes:
        policy_ids: Their ids, by index.
        ledger: What they experienced.
        state_sizes: Numbers in each part of their recurrent state, () without one.
        path: The way through connectors, None where the preprocessor does all that they do.
    """

    path: ConnectorPath | None = None

    def __init__(
        self,
        policy_ids: Sequence[str],
        observation_space: gym.Space[Any],
        action_shape: tuple[int, ...],
        action_dtype: npt.DTypeLike,
        inputs_width: int = 0,
        state_sizes: tuple[int, ...] = (),
        row_width: int | None = None,
    ) -> None:
        """Prepare the ledger for rows of these spaces, `row_width` wide if connectors widen them."""
        self.policy_ids = list(policy_ids)
        self.observation_space = observation_space
        self.preprocess = self._preprocessor(observation_space)
        size, width = (self.preprocess.size, self.preprocess.mask_width) if self.preprocess else (0, 0)
        obs_dtype = self.preprocess.dtype if self.preprocess else np.dtype(np.float32)
        size = size if row_width is None else row_width
        self._columns = (size, width, action_shape, np.dtype(action_dtype), inputs_width, obs_dtype)
        self.state_sizes = state_sizes
        self.ledger: Ledger
        self.take_rows()

    def _preprocessor(self, space: gym.Space[Any]) -> ObsPreprocessor | None:
        """Return what turns observations into rows."""
        return ObsPreprocessor(space)

    def start(self, start: tuple[int, int, int, int, int], agent_id: Any) -> None:
        """Begin a trajectory; see `Ledger.start`."""
        if self.path is not None:
            self.path.begin(start[0], start[1])
        self.ledger.start(start, agent_id)

    def end(self, end: End, policy: int) -> None:
        """End a trajectory; connectors that must see its last observation now, do."""
        if self.path is not None:
            try:
                end = self.path.final(policy, end)
            except OutsideSpaceError as error:
                raise outside(end.env_id, end.agent_id, "final observation", error.why) from error
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
    def env_actions(self, actions: Column) -> Answers:
        """Return env-ready actions for [N, ...] those of a batch."""

    @property
    def replays(self) -> bool:
        """Whether a running episode can be played again from its actions, and goes on as it would have."""
        return True

    @abstractmethod
    def twin(self) -> Cohort:
        """Return a cohort of the same policies, with a ledger of its own."""

    def retire(self, policy_id: str) -> None:
        """Take a policy's id away, so that another one may be added under it; its index stays its own."""
        # No policy can be called so.
        self.policy_ids[self.policy_ids.index(policy_id)] = f"{policy_id} <removed>"

    def close(self) -> dict[str, SampleBatch]:
        """Close the fragment and return the batch of each policy that has rows.

        Raises:
            ContractError: A value lay outside its Box; named with agent and step.
        """
        self._check_bounds()
        batches = self.ledger.close(self._finals)
        if self.path is not None:
            self.path.settle()
        return {self.policy_ids[index]: batch for index, batch in batches.items()}

    def _check_bounds(self) -> None:
        """Refuse rows outside their space; with connectors that is done when they come."""
        if self.preprocess is None or self.path is not None:
            return
        bad = self.preprocess.why_bad_row(self.ledger.obs[: self.ledger.rows])
        if bad is not None:
            env_index, agent_id, t = self.ledger.locate(bad[0])
            raise outside(env_index, agent_id, f"agent step {t}", bad[1])

    def _finals(self, finals: list[Any], owners: Trajectories) -> Prepared:
        """Return the rows and masks of final observations."""
        if self.preprocess is None:
            return np.zeros((len(finals), 0), np.float32), None
        try:
            if self.path is not None:
                return self.path.finals(finals, owners.policy)
            rows, masks = self.preprocess(finals, final=True)
        except OutsideSpaceError as error:
            raise _bad_final(owners, error.row, error.why) from error
        bad = self.preprocess.why_bad_row(rows)
        if bad is not None:
            raise _bad_final(owners, *bad)
        return rows, masks


class NetCohort(Cohort):
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
        original: NetCohort | None = None,
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
        told = head.inputs if head.told else 0
        if connectors is None:
            ctx = ConnectorContext(observation_space=observation_space, action_space=action_space)
            connectors = [PolicyConnectors.plain(ctx) for _ in policy_ids]
        width = original.row_width if original else connectors[0].agent.space(observation_space, 0)[1]
        super().__init__(
            policy_ids, observation_space, head.action_shape, head.action_dtype, told, state_sizes, width
        )
        self.action_space = action_space
        self.backend = backend
        self.output = output
        self.graphs: Callable[[], ActingGraphs | None] = lambda: None
        self.noise = Noise(draws.uniforms if head.noise == "uniform" else draws.normals, head.noise_width)
        self.connectors = connectors
        self._seats: Sequence[tuple[Any, Any]] = ()
        self._evaluates = original is not None
        self.built: ActionPlan = original.built if original else action_plan(connectors[0].action)
        self._versions: list[int] = []
        self.connect()

    @property
    def row_width(self) -> int:
        """F, the numbers in a row that the networks take."""
        return self._columns[0]

    def write(self, block: Block, obs: Any, rewards: Column, ready: Ready) -> Rows:
        """Write down that agents wait, after the connectors; see `Cohort.write`."""
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
        return self.ledger.add(slots, done.obs, done.mask, done.rewards)

    def frame_rows(self, policy: int, frame: Frame) -> tuple[Column, Column | None]:
        """Return a frame as rows and masks; no connector cares whose they are."""
        obs = frame.obs
        if self.path is not None:
            return self.path.rows(policy, obs, over=frame.done if frame.finals is None else None)[:2]
        assert self.preprocess is not None
        return self.preprocess(obs)

    def connect(self) -> None:
        """Take note of pipelines that were changed; called before each fragment.

        Once one is not plain, what is written is checked row by row, also after it has become plain again.
        """
        versions = [own.version for own in self.connectors]
        if versions == self._versions:
            return
        self._versions = versions
        if self.path is None and all(plain(own, self.built) for own in self.connectors):
            return
        mine = [own.for_evaluation() for own in self.connectors] if self._evaluates else self.connectors
        self.path = ConnectorPath(mine, self.action_space, self.row_width, learning=not self._evaluates)

    def take_frames(self, policy: int, num_envs: int, new_ids: NewIds) -> FrameLedger:
        """Write frames down from now on; see `FrameLedger`. There must be no rows yet."""
        frames = FrameLedger(*self._columns, policy=policy, num_envs=num_envs, new_ids=new_ids)
        self.ledger = frames
        return frames

    def env_actions(self, actions: Column) -> Answers:
        """Return env-ready actions; see `Cohort.env_actions`."""
        return self.output(actions)

    @property
    def replays(self) -> bool:
        """Whether actions say all about what the environment was given; see `Cohort.replays`."""
        return self.path is None or not (self.path.keeps_lives or self.path.acts)

    def twin(self) -> NetCohort:
        """Return a cohort of the same policies, their weights included, with a ledger of its own."""
        return NetCohort(
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
        self, block: Block, table: SlotTable, env_steps: Column, explore: bool, episodes: Sequence[Any]
    ) -> Answers:
        """Run the networks; see `Cohort.answer`."""
        ledger = self.ledger
        obs = ledger.obs[block.rows]
        masks = ledger.masks
        mask = None if masks is None else masks[block.rows]
        noise = self.noise.rows(block.slots, table, env_steps) if explore else None
        if isinstance(ledger, RecurrentLedger):
            before = ledger.states(block.slots)
            decision = self.backend.decide(obs, mask, noise, block.which, before)
            assert decision.state is not None
            ledger.remember(block.rows, block.slots, before, decision.state)
        else:
            decision = self.backend.decide(obs, mask, noise, block.which)
        ledger.answer(block.rows, decision.actions, decision.dist_inputs)
        if self.path is None:
            return self.output(decision.actions)
        return self._connected_answers(block, obs, mask, decision.actions)

    def _connected_answers(self, block: Block, obs: Column, mask: Column | None, actions: Column) -> Answers:
        """Return what the action connectors make of R actions."""
        assert self.path is not None
        seats = [self._seats[slot] for slot in block.slots.tolist()] if self.path.acts else None
        answers: Answers = self.path.answers(block.which, actions, obs, mask, seats)
        return answers


def _bad_final(owners: Trajectories, index: int, why: str) -> ContractError:
    """Return the error for a final observation outside its space."""
    return outside(owners.env_index[index], owners.agent_id[index], "final observation", why)


def outside(env_index: Any, agent_id: Any, when: str, why: str) -> ContractError:
    """Return the error for an observation outside its space."""
    return ContractError(
        f"env {env_index}, agent {agent_id!r}, {when}: {why}; mend the environment's observation or its "
        "observation_space"
    )
