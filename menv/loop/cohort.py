"""A cohort: the policies that answer together, because they share one architecture.

All rows of a cohort go through one preprocessor, one ledger and, as a rule, one forward pass. A
`NetCohort` asks an acting back-end; an `OwnCohort` asks the `Policy` objects that a user wrote.
`menv.loop.sampler` calls both in the same way. Neither knows environments or learning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import draws
from menv.acting.backend import ActingBackend
from menv.connectors.action_output import ActionOutput
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError, ContractError
from menv.frame_ledger import FrameLedger, NewIds
from menv.ledger import Ledger, Prepared, Rows
from menv.loop.life_ledger import Life, LifeLedger, ask, decides_in_compute_actions
from menv.loop.noise import Noise
from menv.loop.slot_table import SlotTable
from menv.policy import Policy, RowDraws
from menv.recurrent_ledger import RecurrentLedger
from menv.sample_batch import SampleBatch
from menv.segments import Column
from menv.spaces import OutsideSpaceError, stack
from menv.trajectories import Trajectories

Answers: TypeAlias = Sequence[Any] | npt.NDArray[Any]


@dataclass(slots=True)
class Block:
    """Rows of one cohort that wait together, and what was looked up for them.

    Attributes:
        slots: [R].
        which: [R] policy index, or one index for all.
        env_indices: [R].
        rows: Where they are in the cohort's ledger.
        raw: R raw observations, for policies that read them.
        places: [R] their places among all rows of the poll; None means all, in order.
    """

    slots: Column
    which: Column | int
    env_indices: Column
    rows: Rows
    raw: Any = None
    places: Column | None = None


class Cohort(ABC):
    """Policies that answer together.

    Attributes:
        policy_ids: Their ids, by index.
        ledger: What they experienced.
        state_sizes: Numbers in each part of their recurrent state, () without one.
    """

    def __init__(
        self,
        policy_ids: Sequence[str],
        observation_space: gym.Space[Any],
        action_shape: tuple[int, ...],
        action_dtype: npt.DTypeLike,
        inputs_width: int = 0,
        state_sizes: tuple[int, ...] = (),
    ) -> None:
        """Prepare the ledger for rows of these spaces."""
        self.policy_ids = list(policy_ids)
        self.observation_space = observation_space
        self.preprocess = self._preprocessor(observation_space)
        size, width = (self.preprocess.size, self.preprocess.mask_width) if self.preprocess else (0, 0)
        obs_dtype = self.preprocess.dtype if self.preprocess else np.dtype(np.float32)
        self._columns = (size, width, action_shape, np.dtype(action_dtype), inputs_width, obs_dtype)
        self.state_sizes = state_sizes
        self.ledger: Ledger
        self.take_rows()

    def _preprocessor(self, space: gym.Space[Any]) -> ObsPreprocessor | None:
        """Return what turns observations into rows."""
        return ObsPreprocessor(space)

    def write(self, slots: Column, obs: Any, rewards: Column) -> Rows:
        """Write down that agents wait.

        Raises:
            OutsideSpaceError: An observation is outside the space, or a mask allows nothing.
        """
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

    @abstractmethod
    def twin(self) -> Cohort:
        """Return a cohort of the same policies, with a ledger of its own."""

    def close(self) -> dict[str, SampleBatch]:
        """Close the fragment and return the batch of each policy that has rows.

        Raises:
            ContractError: A value lay outside its Box; named with agent and step.
        """
        if self.preprocess is not None:
            bad = self.preprocess.why_bad_row(self.ledger.obs[: self.ledger.rows])
            if bad is not None:
                env_index, agent_id, t = self.ledger.locate(bad[0])
                raise outside(env_index, agent_id, f"agent step {t}", bad[1])
        batches = self.ledger.close(self._finals)
        return {self.policy_ids[index]: batch for index, batch in batches.items()}

    def _finals(self, finals: list[Any], owners: Trajectories) -> Prepared:
        """Return the rows and masks of final observations."""
        if self.preprocess is None:
            return np.zeros((len(finals), 0), np.float32), None
        try:
            rows, masks = self.preprocess(finals, final=True)
        except OutsideSpaceError as error:
            raise _bad_final(owners, error.row, error.why) from error
        bad = self.preprocess.why_bad_row(rows)
        if bad is not None:
            raise _bad_final(owners, *bad)
        return rows, masks


class NetCohort(Cohort):
    """Policies of one network architecture, run by an acting back-end."""

    def __init__(
        self,
        policy_ids: Sequence[str],
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        backend: ActingBackend,
        output: ActionOutput,
        state_sizes: tuple[int, ...] = (),
    ) -> None:
        """Put a preprocessor before and `output` behind `backend`."""
        head = backend.head
        told = head.inputs if head.told else 0
        super().__init__(
            policy_ids, observation_space, head.action_shape, head.action_dtype, told, state_sizes
        )
        self.action_space = action_space
        self.backend = backend
        self.output = output
        self.noise = Noise(draws.uniforms if head.noise == "uniform" else draws.normals, head.noise_width)

    def take_frames(self, policy: int, num_envs: int, new_ids: NewIds) -> FrameLedger:
        """Write frames down from now on; see `FrameLedger`. There must be no rows yet."""
        frames = FrameLedger(*self._columns, policy=policy, num_envs=num_envs, new_ids=new_ids)
        self.ledger = frames
        return frames

    def env_actions(self, actions: Column) -> Answers:
        """Return env-ready actions; see `Cohort.env_actions`."""
        return self.output(actions)

    def twin(self) -> NetCohort:
        """Return a cohort of the same policies, their weights included, with a ledger of its own."""
        return NetCohort(
            self.policy_ids,
            self.observation_space,
            self.action_space,
            self.backend,
            self.output,
            self.state_sizes,
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
        return self.output(decision.actions)


class OwnCohort(Cohort):
    """Policies that a user wrote, each asked for its own rows; they get raw observations."""

    def __init__(
        self,
        policy_ids: Sequence[str],
        policies: Sequence[Policy],
        observation_space: gym.Space[Any],
        action_space: Any,
    ) -> None:
        """Keep the policies, by index."""
        plain = isinstance(action_space, gym.spaces.Discrete | gym.spaces.Box | gym.spaces.MultiDiscrete)
        shape = tuple(action_space.shape) if plain else ()
        self._classic: list[bool] = []
        super().__init__(policy_ids, observation_space, shape, action_space.dtype if plain else object)
        self.policies = list(policies)
        self.action_space = action_space
        self._plain = plain
        self._classic = [decides_in_compute_actions(policy) for policy in policies]
        self.take_rows()

    def take_rows(self) -> None:
        """Begin with an empty ledger; see `Cohort.take_rows`."""
        super().take_rows()
        if any(self._classic):
            self.ledger = LifeLedger(*self._columns)

    def env_actions(self, actions: Column) -> Answers:
        """Return env-ready actions, which the columns hold; see `Cohort.env_actions`."""
        return list(actions)

    def twin(self) -> OwnCohort:
        """Return a cohort of the same policy objects, with a ledger of its own."""
        return OwnCohort(self.policy_ids, self.policies, self.observation_space, self.action_space)

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
                chosen = ask(
                    self.policies[index], lives, shown, policy_id=self.policy_ids[index], episodes=whose,
                    explore=explore, timestep=int(env_steps.sum()),
                )  # fmt: skip
            else:
                chosen = self.policies[index].answer(shown, row_draws, explore, whose)
            if len(chosen) != len(places):
                raise ContractError(
                    f"policy {self.policy_ids[index]!r}: answered {len(chosen)} of {len(places)} observations, "
                    "expected one action each; return as many actions as observations"
                )
            for place, action in zip(places.tolist(), chosen, strict=True):
                answers[place] = action
        self.ledger.answer(block.rows, self._as_column(answers, block))
        return answers

    def _lives(self, slots: Column) -> list[Life]:
        """Return what is remembered of R lives."""
        assert isinstance(self.ledger, LifeLedger)
        return [self.ledger.lives[slot] for slot in slots.tolist()]

    def _as_column(self, answers: list[Any], block: Block) -> Column:
        """Return the actions as one array.

        Raises:
            ContractError: A discrete action is outside the space.
        """
        if isinstance(self.action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            try:
                return stack(answers, self.action_space, "action")
            except OutsideSpaceError as error:
                index = block.which if isinstance(block.which, int) else int(block.which[error.row])
                raise ContractError(
                    f"policy {self.policy_ids[index]!r}: {error.why}; return actions of policy.action_space"
                ) from error
        if self._plain:
            return np.array(answers, self.action_space.dtype)
        column = np.empty(len(answers), object)
        column[:] = answers
        return column


def _bad_final(owners: Trajectories, index: int, why: str) -> ContractError:
    """Return the error for a final observation outside its space."""
    return outside(owners.env_index[index], owners.agent_id[index], "final observation", why)


def outside(env_index: Any, agent_id: Any, when: str, why: str) -> ContractError:
    """Return the error for an observation outside its space."""
    return ContractError(
        f"env {env_index}, agent {agent_id!r}, {when}: {why}; mend the environment's observation or its "
        "observation_space"
    )
