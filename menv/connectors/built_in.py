"""Built-in connectors: of actions, rewards, stacked frames, and the columns of a model's input.

Samplers pass whole rows to networks, so the connectors that select columns do nothing to batches; they serve
`answer_agents`.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.connectors.action_output import (
    clipped,
    each_part,
    fitted,
    flat_action_space,
    scaled,
    write_protected,
)
from menv.connectors.connector import (
    MASK,
    ActionConnector,
    ActionConnectorDataType,
    AgentConnector,
    AgentConnectorDataType,
    AgentConnectorsOutput,
    AgentRows,
    ByArguments,
    ConnectorContext,
    PolicyOutput,
    columns_of,
    is_final,
)
from menv.connectors.obs_preprocessor import MOST_COLUMNS, ObsPreprocessor
from menv.errors import ConfigError, ContractError
from menv.sample_batch import SampleBatch

Rows = npt.NDArray[Any]
Key: TypeAlias = tuple[Hashable, Hashable]
"""An environment and one of its agents."""

_MOST_FRAMES = 10_000


class KeepsAgents(AgentConnector):
    """A connector that keeps something for each agent, which it forgets when the agent's episode ends."""

    def __init__(self, ctx: ConnectorContext | None = None) -> None:
        super().__init__(ctx)
        self._kept: dict[Key, Any] = {}

    def _owner(self, data: AgentConnectorDataType | ActionConnectorDataType) -> Key:
        """Return the (env_id, agent_id) of an agent's data; ContractError if one is missing."""
        if data.env_id is None or data.agent_id is None:
            raise ContractError(
                f"{self.name}: env_id {data.env_id!r}, agent_id {data.agent_id!r}, expected both; pass them"
            )
        return data.env_id, data.agent_id

    def reset(self, env_id: Any) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] != env_id}

    def forget(self, env_id: Any, agent_id: Any) -> None:
        self._kept.pop((env_id, agent_id), None)


def _with_action(ac_data: ActionConnectorDataType, action: object) -> ActionConnectorDataType:
    output: PolicyOutput = (action, ac_data.output[1], ac_data.output[2])
    return ActionConnectorDataType(ac_data.env_id, ac_data.agent_id, ac_data.input_dict, output)


class ConvertToNumpyConnector(ByArguments, ActionConnector):
    """Makes numpy arrays of actions and states."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        action, states, fetches = ac_data.output
        output = (each_part(action, np.asarray), each_part(states, np.asarray), fetches)
        return ActionConnectorDataType(ac_data.env_id, ac_data.agent_id, ac_data.input_dict, output)


class NormalizeActionsConnector(ByArguments, ActionConnector):
    """Scales bounded Box actions from [-1, 1] to the bounds; integers are shifted by the lower bound."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        return _with_action(ac_data, fitted(ac_data.output[0], self.known("action_space"), scaled))


class ClipActionsConnector(ByArguments, ActionConnector):
    """Clips Box actions into the bounds."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        return _with_action(ac_data, fitted(ac_data.output[0], self.known("action_space"), clipped))


class ImmutableActionsConnector(ByArguments, ActionConnector):
    """Write-protects actions, so that an environment that changes one in place gets an error."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        return _with_action(ac_data, each_part(ac_data.output[0], write_protected))


def clip_reward(rewards: npt.NDArray[Any], limit: bool | float) -> npt.NDArray[Any]:
    """Return [N] clipped rewards."""
    most = float(limit)
    clipped: npt.NDArray[Any] = np.sign(rewards) if limit is True else np.clip(rewards, -most, most)
    return clipped


def clip_rewards_of(batch: SampleBatch, limit: bool | float) -> None:
    """Clip the rewards of a batch in place, also rewards before its chunks; a limit of 0 or False changes nothing."""
    if limit:
        batch[SampleBatch.REWARDS] = clip_reward(batch[SampleBatch.REWARDS], limit)
        batch.segments.prev_reward = clip_reward(batch.segments.prev_reward, limit)


class ClipRewardAgentConnector(ByArguments, AgentConnector):
    """Clips rewards, where there are any.

    Args:
        ctx: The context.
        sign: Takes the signs.
        limit: Clips to plus and minus it. One of the two may be given.

    Raises:
        ConfigError: Both are given, or the limit is negative.
    """

    at_ends = True
    _arguments = ("sign", "limit")

    def __init__(
        self, ctx: ConnectorContext | None = None, sign: bool = False, limit: float | None = None
    ) -> None:
        super().__init__(ctx)
        if limit is not None and (sign or limit < 0):
            raise ConfigError(
                f"ClipRewardAgentConnector: sign={sign}, limit={limit}, expected one of them, at least 0; leave the "
                "other out"
            )
        self.sign = sign
        self.limit = limit

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with its reward clipped."""
        columns = columns_of(self, ac_data)
        if columns.get(SampleBatch.REWARDS) is None:
            return ac_data
        rewards = self._clipped(np.asarray(columns[SampleBatch.REWARDS], np.float64))
        data = {**columns, SampleBatch.REWARDS: rewards[()]}
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        if rows.rewards is not None:
            rows.rewards = self._clipped(rows.rewards)

    def _clipped(self, rewards: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.sign and self.limit is None:
            return rewards
        return clip_reward(rewards, True if self.limit is None else float(self.limit))


class FrameStackAgentConnector(ByArguments, KeepsAgents):
    """Stacks the last observations of an agent episode in one row, the oldest first.

    The network's input is `num_frames` times as wide. Images are stacked along their channels, all other observations
    as flat rows. A new agent episode begins with its first observation, repeated.

    Args:
        ctx: The context; its observation space says whether there are images.
        num_frames: How many, the newest included.

    Raises:
        ConfigError: The number is not positive, or too large.
    """

    keeps_lives = True
    _arguments = ("num_frames",)

    def __init__(self, ctx: ConnectorContext | None = None, num_frames: int = 4) -> None:
        super().__init__(ctx)
        number = isinstance(num_frames, int | np.integer) and not isinstance(num_frames, bool)
        if not number or not 1 <= num_frames <= _MOST_FRAMES:
            raise ConfigError(
                f"{self.name}: num_frames={num_frames!r:.60}, expected an integer from 1 to {_MOST_FRAMES}; choose one"
            )
        self.num_frames = int(num_frames)
        self._channels: int | None = None
        # [P, K * C], as of the agents that `_kept` has.
        self._by_slot: dict[Any, Rows] = {}

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with its last observations in one row; a final one ends its agent episode here."""
        key, data = self._owner(ac_data), dict(columns_of(self, ac_data))
        obs, over = np.ravel(np.asarray(data[SampleBatch.NEXT_OBS])), is_final(data)
        data[SampleBatch.NEXT_OBS] = self._stacked(self._kept, [key], obs[None], over)[0]
        if over:
            self.forget(*key)
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        """Stack a whole batch, each row after earlier rows of its trajectory; ContractError if slots are unknown."""
        if rows.slots is None:
            raise ContractError(
                f"{self.name}: rows of unknown agents, expected their slots; call the policy by env and agent"
            )
        rows.obs = self._stacked(self._by_slot, rows.slots.tolist(), rows.array(), rows.final)

    def space(self, space: gym.Space[Any], width: int) -> tuple[gym.Space[Any], int]:
        """Return the space and the width of stacked rows: images stay images."""
        stacked = width * self.num_frames
        if stacked > MOST_COLUMNS:
            raise ConfigError(
                f"{self.name}: {self.num_frames} frames of {width} numbers, expected {MOST_COLUMNS:,} numbers at most; "
                "stack fewer"
            )
        preprocessor = ObsPreprocessor(space)
        if preprocessor.image is None:
            return gym.spaces.Box(-np.inf, np.inf, (stacked,), np.float32), stacked
        shape = (*preprocessor.image[:2], preprocessor.image[2] * self.num_frames)
        if preprocessor.dtype == np.uint8:
            return gym.spaces.Box(0, 255, shape, np.uint8), stacked
        return gym.spaces.Box(-np.inf, np.inf, shape, np.float32), stacked

    def begin(self, slot: int) -> None:
        self._by_slot.pop(slot, None)

    def continue_from(self, other: FrameStackAgentConnector) -> None:
        """Copy the frames of running agent episodes."""
        self._by_slot = dict(other._by_slot)

    def _stacked(self, known: dict[Any, Rows], keys: Sequence[Any], obs: Rows, final: bool) -> Rows:
        """Return R rows, each after the rows of its trajectory in `known`, which keeps the new ones except at ends."""
        if self._channels is None:
            space = getattr(self.ctx, "observation_space", None)
            image = None if space is None else ObsPreprocessor(space).image
            self._channels = obs.shape[1] if image is None else image[2]
        # [R, P, C]: the C numbers of a place stay adjacent.
        new = obs.reshape(len(obs), -1, self._channels)
        first = np.tile(new, (1, 1, self.num_frames))
        before = np.stack([known.get(key, own) for key, own in zip(keys, first, strict=True)])
        stacked = np.concatenate((before[:, :, self._channels :], new), 2)
        if not final:
            # Copies, because later connectors may write into the array.
            known.update(zip(keys, map(np.copy, stacked), strict=True))
        return stacked.reshape(len(stacked), -1)

    def __deepcopy__(self, memo: Any) -> Self:
        """Return a copy without the state of agents."""
        copied = type(self)(self.ctx, self.num_frames)
        copied.is_training = self.is_training
        return copied


class AgentIdAgentConnector(ByArguments, AgentConnector):
    """Appends the agent's one-hot code to its observation, so that agents that share a policy may act differently.

    An agent that is not in the list gets zeros.

    Args:
        ctx: The context.
        agents: The names of the agents, as texts, in the order of the columns.

    Raises:
        ConfigError: It is not a list of different texts.
    """

    keeps_lives = reads_agents = True
    _arguments = ("agents",)

    def __init__(self, ctx: ConnectorContext | None = None, agents: Sequence[str] = ()) -> None:
        super().__init__(ctx)
        texts = isinstance(agents, list | tuple) and all(isinstance(agent, str) for agent in agents)
        if not texts or not agents or len({*agents}) < len(agents):
            raise ConfigError(
                f"{self.name}: agents={agents!r:.60}, expected a list of different names; list each agent once"
            )
        self.agents = list(agents)
        # The last row is that of an agent that is not in the list.
        self._codes = np.eye(len(agents) + 1, len(agents), dtype=np.float32)
        self._rows = {agent: row for row, agent in enumerate(agents)}

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with a longer observation."""
        data = dict(columns_of(self, ac_data))
        own = self._codes_of([ac_data.agent_id])[0]
        data[SampleBatch.NEXT_OBS] = np.concatenate(
            (np.ravel(data[SampleBatch.NEXT_OBS]), own), dtype=np.float32
        )
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        """Append the codes to a whole batch; ContractError if the agents are unknown."""
        if rows.seats is None:
            raise ContractError(
                f"{self.name}: rows of unknown agents, expected their names; call the policy by env and agent"
            )
        codes = self._codes_of([agent for _, agent in rows.seats])
        rows.obs = np.concatenate((rows.array(), codes), 1, dtype=np.float32)

    def space(self, space: gym.Space[Any], width: int) -> tuple[gym.Space[Any], int]:
        """Return the space and the width of longer rows."""
        if ObsPreprocessor(space).image is not None:
            raise ConfigError(
                f"{self.name}: observations are images of {space.shape}, expected rows of numbers, to which a code "
                "can be appended; set conv_filters to [], or leave agent_ids out"
            )
        wider = width + len(self.agents)
        return gym.spaces.Box(-np.inf, np.inf, (wider,), np.float32), wider

    def _codes_of(self, agents: Sequence[Any]) -> Rows:
        rows = [self._rows.get(str(agent), -1) for agent in agents]
        return self._codes[rows]


@dataclass(frozen=True)
class ViewRequirement:
    """One column of a model's input.

    For example `ViewRequirement("obs", shift="-2:0")` is the last three observations, the latest last.

    Attributes:
        data_col: The source column; None for the column of the same name.
        space: Accepted for compatibility. Steps before the first are zeros of the column's own shape.
        shift: Steps from now, 0 or less; rewards and actions start at -1. A range such as "-2:0", both ends included,
            or a list gives one value for each step, [K, ...].
        used_for_compute_actions: Whether it is needed to act; without it `shift` may be positive.
        used_for_training: Accepted for compatibility. Training batches have every column.
    """

    data_col: str | None = None
    space: gym.Space[Any] | None = None
    shift: int | str | Sequence[int] = 0
    used_for_compute_actions: bool = True
    used_for_training: bool = True

    def __post_init__(self) -> None:
        if self.used_for_compute_actions and max(self.shifts) > 0:
            raise ConfigError(
                f"ViewRequirement: shift={self.shift!r}, expected 0 or less; only the past is known when acting, "
                "unless used_for_compute_actions=False"
            )

    @property
    def shifts(self) -> list[int]:
        """The steps of `shift`, in order."""
        shift: Any = self.shift
        with suppress(TypeError, ValueError):
            if isinstance(shift, str):
                first, last = map(int, shift.split(":"))
                shift = range(first, last + 1)
            steps = [operator.index(step) for step in (shift if isinstance(shift, Iterable) else [shift])]
            if steps and not isinstance(shift, bool):
                return steps
        raise ConfigError(
            f"ViewRequirement: shift={self.shift!r:.60}, expected an integer, a list of integers or a range such as "
            '"-2:0"; correct it'
        )


class ViewRequirementAgentConnector(ByArguments, KeepsAgents):
    """Builds the model's input from the context's `view_requirements`.

    Without any it is the observation, the action mask if there is one, and the recurrent states.
    """

    at_ends = False

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with an `AgentConnectorsOutput`; ContractError if a column is missing."""
        data = columns_of(self, ac_data)
        wanted = self._wanted(data)
        key = ac_data.env_id, ac_data.agent_id
        # Columns of the agent's last steps, the latest first.
        steps = [data, *self._kept.pop(key, ())]
        shown = {name: np.asarray(self._value(name, view, steps))[None] for name, view in wanted.items()}
        deepest = -min((min(view.shifts) for view in wanted.values()), default=0)
        if deepest > 0 and not is_final(data):
            self._kept[key] = steps[:deepest]
        return AgentConnectorDataType(*key, AgentConnectorsOutput(data, shown))

    def over_rows(self, rows: AgentRows) -> None:
        """Do nothing: networks read the rows."""

    def _wanted(self, data: Mapping[str, Any]) -> dict[str, ViewRequirement]:
        required = {} if self.ctx is None else self.ctx.view_requirements
        if required:
            return {name: view for name, view in required.items() if view.used_for_compute_actions}
        wanted = {SampleBatch.OBS: ViewRequirement(SampleBatch.OBS)}
        if MASK in data:
            wanted[MASK] = ViewRequirement()
        number = 0
        while f"state_out_{number}" in data:
            wanted[SampleBatch.STATE_IN.format(number)] = ViewRequirement(f"state_out_{number}", shift=-1)
            number += 1
        return wanted

    def _value(self, name: str, view: ViewRequirement, steps: list[Mapping[str, Any]]) -> Any:
        values = [self._value_at(name, view.data_col or name, -shift, steps) for shift in view.shifts]
        return np.stack(values) if isinstance(view.shift, Iterable) else values[0]

    def _value_at(self, name: str, column: str, back: int, steps: list[Mapping[str, Any]]) -> Any:
        if column == SampleBatch.OBS:
            column = SampleBatch.NEXT_OBS
        elif back and column != SampleBatch.NEXT_OBS:
            # The reward of the last action comes with this observation.
            back -= 1
        if column not in steps[0]:
            raise ContractError(
                f"{self.name}: no column {column!r} for {name!r}, expected one of {sorted(steps[0])}; add it in a "
                "connector before this one, such as StateBufferConnector"
            )
        return steps[back][column] if back < len(steps) else np.zeros_like(steps[0][column])


class StateBufferConnector(ByArguments, KeepsAgents):
    """Adds the last action (zeros at first), `state_out_0` and so on, and the last fetches to an agent's data."""

    at_ends = False

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with the policy's last output; a final observation ends the agent episode here."""
        key, data = self._owner(ac_data), dict(columns_of(self, ac_data))
        action, states, fetches = self._kept.get(key) or self._first()
        data.update(fetches)
        data[SampleBatch.ACTIONS] = action
        data.update({f"state_out_{number}": state for number, state in enumerate(states)})
        if is_final(data):
            self.forget(*key)
        return AgentConnectorDataType(*key, data)

    def on_policy_output(self, output: ActionConnectorDataType) -> None:
        self._kept[self._owner(output)] = output.output

    def over_rows(self, rows: AgentRows) -> None:
        """Do nothing: the rollout buffer passes policies their states."""

    def _first(self) -> PolicyOutput:
        space = flat_action_space(self.known("action_space"))
        states = [] if self.ctx is None else list(self.ctx.initial_states)
        shape: tuple[int, ...] = space.shape or ()
        if isinstance(space, gym.spaces.Tuple):
            # Choices and numbers are one row of floats.
            shape = (sum(int(np.prod(leaf.shape or ())) for leaf in space.spaces),)
        return np.zeros(shape, space.dtype or np.float32), states, {}
