"""Clipped rewards for learning; metrics keep the environment's own."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from menv.connectors.agent_connector import AgentConnector, AgentConnectorDataType, AgentRows, columns_of
from menv.connectors.connector import ConnectorContext, keywords, register_connector
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch


def clip_reward(rewards: npt.NDArray[Any], limit: bool | float) -> npt.NDArray[Any]:
    """Return [N] clipped rewards."""
    most = float(limit)
    clipped: npt.NDArray[Any] = np.sign(rewards) if limit is True else np.clip(rewards, -most, most)
    return clipped


def clip_rewards_of(batch: SampleBatch, limit: bool | float) -> None:
    """Clip the rewards of a batch in place, those before its chunks too; a limit of 0 or False changes nothing."""
    if limit:
        batch[SampleBatch.REWARDS] = clip_reward(batch[SampleBatch.REWARDS], limit)
        batch.segments.prev_reward = clip_reward(batch.segments.prev_reward, limit)


class ClipRewardAgentConnector(AgentConnector):
    """Clips rewards, where there are any.

    Args:
        ctx: The context.
        sign: Takes the signs.
        limit: Clips to plus and minus it. One of the two may be given.

    Attributes:
        later: Whether rewards are clipped by the learner, and not here.

    Raises:
        ConfigError: Both are given, or the limit is negative.
    """

    at_ends = True

    def __init__(
        self, ctx: ConnectorContext | None = None, sign: bool = False, limit: float | None = None
    ) -> None:
        super().__init__(ctx)
        if limit is not None and (sign or limit < 0):
            raise ConfigError(
                f"ClipRewardAgentConnector: sign={sign}, limit={limit}, expected one of them, and a limit of at least "
                "0; leave the other out"
            )
        self.sign = sign
        self.limit = limit
        self.later = False

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with its reward clipped; unchanged if `later`."""
        columns = columns_of(self, ac_data)
        if self.later or columns.get(SampleBatch.REWARDS) is None:
            return ac_data
        rewards = self._clipped(np.asarray(columns[SampleBatch.REWARDS], np.float64))
        data = {**columns, SampleBatch.REWARDS: rewards[()]}
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        """Clip all rewards."""
        if rows.rewards is not None and not self.later:
            rows.rewards = self._clipped(rows.rewards)

    def _clipped(self, rewards: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.sign and self.limit is None:
            return rewards
        return clip_reward(rewards, True if self.limit is None else float(self.limit))

    def to_state(self) -> tuple[str, Any]:
        """Return the name, the two arguments and `later`."""
        return "ClipRewardAgentConnector", {"sign": self.sign, "limit": self.limit, "later": self.later}

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return a connector with these arguments."""
        values = keywords(cls.__name__, params, ("sign", "limit", "later"))
        later = bool(values.pop("later", False))
        made = cls(ctx, **values)
        made.later = later
        return made


register_connector("ClipRewardAgentConnector", ClipRewardAgentConnector)
