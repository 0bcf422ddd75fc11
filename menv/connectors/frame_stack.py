"""FrameStackAgentConnector: the last observations of an agent episode in one row, the oldest first.

Images are stacked along their channels, all other observations as flat rows. A new agent episode begins with its first
observation, repeated.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.connectors.agent_connector import AgentConnector, AgentConnectorDataType, AgentRows, columns_of
from menv.connectors.connector import ConnectorContext, keywords, register_connector
from menv.connectors.obs_preprocessor import MOST_COLUMNS, ObsPreprocessor
from menv.errors import ConfigError, ContractError
from menv.sample_batch import SampleBatch

Rows = npt.NDArray[Any]

_MOST = 10_000


class FrameStackAgentConnector(AgentConnector):
    """Stacks flat observations; the network's input is `num_frames` times as wide.

    Args:
        ctx: The context; its observation space says whether there are images.
        num_frames: How many, the newest included.

    Raises:
        ConfigError: The number is not positive, or too large.
    """

    keeps_lives = True
    tells_lives = True

    def __init__(self, ctx: ConnectorContext | None = None, num_frames: int = 4) -> None:
        super().__init__(ctx)
        number = isinstance(num_frames, int | np.integer) and not isinstance(num_frames, bool)
        if not number or not 1 <= num_frames <= _MOST:
            raise ConfigError(
                f"{self.name}: num_frames={num_frames!r:.60}, expected an integer from 1 to {_MOST}; choose one"
            )
        self.num_frames = int(num_frames)
        self._channels: int | None = None
        # [S, P, K * C] by slot, and whether its agent episode is new.
        self._frames: Rows = np.zeros((0, 0, 0), np.float32)
        self._fresh = np.ones(0, np.bool_)
        self._by_agent: dict[Hashable, dict[Hashable, Rows]] = {}

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with its last observations in one row; a final one ends its agent episode here.

        Raises:
            ContractError: env_id or agent_id is missing.
        """
        if ac_data.env_id is None or ac_data.agent_id is None:
            raise ContractError(
                f"{self.name}: env_id {ac_data.env_id!r}, agent_id {ac_data.agent_id!r}, expected both; pass "
                "the env_id and agent_id of the data"
            )
        data = dict(columns_of(self, ac_data))
        agents = self._by_agent.setdefault(ac_data.env_id, {})
        flat = np.ravel(np.asarray(data[SampleBatch.NEXT_OBS]))[None]
        new = self._parts(flat)
        before = agents.get(ac_data.agent_id)
        stacked = self._repeated(new) if before is None else self._pushed(before, new)
        data[SampleBatch.NEXT_OBS] = stacked.reshape(-1)
        if data.get(SampleBatch.TERMINATEDS) or data.get(SampleBatch.TRUNCATEDS):
            agents.pop(ac_data.agent_id, None)
        else:
            # A copy, because later connectors may write into the array.
            agents[ac_data.agent_id] = stacked.copy()
        if not agents:
            del self._by_agent[ac_data.env_id]
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        """Stack a whole batch, each row after those of its agent episode.

        Raises:
            ContractError: The slots are unknown.
        """
        if rows.slots is None:
            raise ContractError(
                f"{self.name}: rows of unknown agents, expected their slots; call the policy by env and agent"
            )
        new = self._parts(rows.array())
        slots = rows.slots
        self._widen(int(slots.max()) + 1, new.shape[1:], new.dtype)
        stacked = self._pushed(self._frames[slots], new)
        fresh = self._fresh[slots]
        if fresh.any():
            stacked[fresh] = self._repeated(new[fresh])
        if not rows.final:
            self._frames[slots] = stacked
            self._fresh[slots] = False
        rows.obs = stacked.reshape(len(stacked), -1)

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
        """Begin an agent episode on a slot."""
        if slot < len(self._fresh):
            self._fresh[slot] = True

    def lives(self, slots: Sequence[int]) -> list[Any]:
        """Return the frames of each slot, [P, K * C]."""
        known = len(self._fresh)
        return [None if slot >= known or self._fresh[slot] else self._frames[slot].copy() for slot in slots]

    def take_lives(self, slots: Sequence[int], lives: Sequence[Any]) -> None:
        """Restore the frames that `lives` returned."""
        for slot, frames in zip(slots, lives, strict=True):
            if frames is None:
                self.begin(slot)
                continue
            self._widen(slot + 1, (frames.shape[0], frames.shape[1] // self.num_frames), frames.dtype)
            self._frames[slot] = frames
            self._fresh[slot] = False

    def reset(self, env_id: Any) -> None:
        """Forget an environment's agents."""
        self._by_agent.pop(env_id, None)

    def forget(self, env_id: Any, agent_id: Any) -> None:
        """Forget one agent."""
        self._by_agent.get(env_id, {}).pop(agent_id, None)

    def _parts(self, rows: Rows) -> Rows:
        """Return [R, P, C], where the C numbers stay adjacent."""
        if self._channels is None:
            space = getattr(self.ctx, "observation_space", None)
            image = None if space is None else ObsPreprocessor(space).image
            self._channels = rows.shape[1] if image is None else image[2]
        return rows.reshape(len(rows), -1, self._channels)

    def _repeated(self, new: Rows) -> Rows:
        return np.tile(new, (1, 1, self.num_frames))

    def _pushed(self, before: Rows, new: Rows) -> Rows:
        return np.concatenate((before[:, :, new.shape[2] :], new), 2)

    def _widen(self, slots: int, one: tuple[int, ...], dtype: Any) -> None:
        """Make room for slots with frames [P, C]."""
        if slots > len(self._fresh):
            more = max(slots, 2 * len(self._fresh)) - len(self._fresh)
            blank = np.zeros((more, one[0], one[1] * self.num_frames), dtype)
            self._frames = np.concatenate((self._frames, blank)) if len(self._fresh) else blank
            self._fresh = np.append(self._fresh, np.ones(more, np.bool_))

    def __deepcopy__(self, memo: Any) -> Self:
        """Return a copy without the state of agents."""
        copied = type(self)(self.ctx, self.num_frames)
        copied.is_training = self.is_training
        return copied

    def to_state(self) -> tuple[str, Any]:
        """Return the name and the argument, without the state of agents."""
        return "FrameStackAgentConnector", {"num_frames": self.num_frames}

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return a connector with this argument."""
        return cls(ctx, **keywords(cls.__name__, params, ("num_frames",)))


register_connector("FrameStackAgentConnector", FrameStackAgentConnector)
