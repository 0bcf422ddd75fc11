"""Agents that wait, on their way through agent connectors: R rows as columns, or one object an agent.

`menv.loop` makes `AgentRows`; built-in connectors change whole columns, and a user's connector is shown
`AgentConnectorDataType` objects that are made of them. It knows no policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from menv.errors import ContractError
from menv.sample_batch import SampleBatch
from menv.segments import Column
from menv.spaces import OutsideSpaceError

MASK = "action_mask"


@dataclass(slots=True)
class AgentConnectorDataType:
    """What agent connectors take and give for one agent.

    Attributes:
        env_id: The sub-environment.
        agent_id: The agent.
        data: A dict of columns, such as `SampleBatch.NEXT_OBS`; or an `AgentConnectorsOutput`.
    """

    env_id: Any
    agent_id: Any
    data: Any


@dataclass(slots=True)
class AgentConnectorsOutput:
    """What a whole pipeline makes of one agent's data.

    Attributes:
        raw_dict: The columns that came in; action connectors see them.
        sample_batch: What the model is shown, with one row.
    """

    raw_dict: Mapping[str, Any]
    sample_batch: Mapping[str, Any]


@dataclass(slots=True)
class AgentRows:
    """R agents of one policy.

    Attributes:
        obs: R observations, at last [R, F].
        rewards: [R] earned since each agent's previous row.
        mask: [R, M] allowed actions, once the preprocessor has found them.
        slots: [R] integers that stand for lives; None where nobody says whose the rows are.
        seats: `(env_id, agent_id)` of each row; None likewise.
        infos: R info dicts, or None.
        terminated: Whether these are last observations of terminated lives.
        truncated: Whether they are of truncated ones.
        learning: Whether statistics may take these rows in.
        over: [R] True where a row is a last observation that came among others, not to be taken in; None if none is.
    """

    obs: Any
    rewards: Any = None
    mask: Any = None
    slots: Column | None = None
    seats: Sequence[tuple[Any, Any]] | None = None
    infos: Sequence[Mapping[str, Any]] | None = None
    terminated: bool = False
    truncated: bool = False
    learning: bool = False
    over: Column | None = None

    @property
    def final(self) -> bool:
        """Whether the lives are over."""
        return self.terminated or self.truncated

    def array(self) -> Column:
        """Return the observations as [R, F], and keep them so.

        Raises:
            OutsideSpaceError: They are no arrays of one size.
        """
        if not (isinstance(self.obs, np.ndarray) and self.obs.ndim == 2):
            try:
                shaped = [np.asarray(row) for row in self.obs]
                rows = np.stack([np.ravel(row) for row in shaped])
            except (TypeError, ValueError) as error:
                raise OutsideSpaceError(
                    0, "obs: expected arrays of one size after the agent connectors"
                ) from error
            if rows.dtype.kind not in "biuf":
                raise OutsideSpaceError(
                    0, f"obs: expected numbers after the agent connectors, got {rows.dtype}"
                )
            self.obs = rows if rows.dtype == np.uint8 else rows.astype(np.float32, copy=False)
        result: Column = self.obs
        return result

    def to_agents(self) -> list[AgentConnectorDataType]:
        """Return one object a row."""
        nobody = (None, None)
        agents = []
        for row, obs in enumerate(self.obs):
            env_id, agent_id = nobody if self.seats is None else self.seats[row]
            data = {
                SampleBatch.NEXT_OBS: obs,
                SampleBatch.REWARDS: 0.0 if self.rewards is None else float(self.rewards[row]),
                SampleBatch.TERMINATEDS: self.terminated,
                SampleBatch.TRUNCATEDS: self.truncated,
                SampleBatch.INFOS: {} if self.infos is None else self.infos[row],
            }
            if self.mask is not None:
                data[MASK] = self.mask[row]
            agents.append(AgentConnectorDataType(env_id, agent_id, data))
        return agents

    def take(self, agents: Any, connector: str) -> None:
        """Take back what a connector made of `to_agents`.

        Raises:
            ContractError: They are not the same agents in the same order, a column is gone, or a reward is no finite
                number.
        """
        whose = [] if self.seats is None else list(self.seats)
        given = list(agents) if isinstance(agents, Sequence) else []
        data: list[Any] = [getattr(agent, "data", None) for agent in given]
        needed = [SampleBatch.NEXT_OBS]
        if self.rewards is not None:
            needed.append(SampleBatch.REWARDS)
        if self.mask is not None:
            needed.append(MASK)
        good = len(given) == len(self.obs) and all(
            isinstance(columns, dict) and all(key in columns for key in needed) for columns in data
        )
        if not good or (whose and [(agent.env_id, agent.agent_id) for agent in given] != whose):
            raise ContractError(
                f"{connector}: returned {len(given)} agents for {len(self.obs)}, expected the same agents in the same "
                f"order, each with {', '.join(needed)} in its data; return everything that came in, changed"
            )
        self.obs = [single(columns[SampleBatch.NEXT_OBS]) for columns in data]
        if self.rewards is not None:
            self.rewards = _rewards([columns[SampleBatch.REWARDS] for columns in data], connector)
        if self.mask is not None:
            self.mask = np.array([columns[MASK] for columns in data], np.bool_)


def _rewards(given: list[Any], connector: str) -> Column:
    """Return R rewards as a connector left them, as [R] float64."""
    try:
        # No dtype is asked for: texts would be read as numbers.
        rewards = np.asarray(given)
    except ValueError:
        rewards = np.zeros(0, np.object_)
    if rewards.dtype.kind in "biuf" and rewards.shape == (len(given),):
        rewards = rewards.astype(np.float64)
        if np.isfinite(rewards).all():
            return rewards
    wrong = next((reward for reward in given if not _is_finite(reward)), given[0])
    raise ContractError(
        f"{connector}: a reward is {wrong!r}, expected a finite number, because it is learned from; return a float"
    )


def _is_finite(reward: Any) -> bool:
    number = np.asarray(reward if isinstance(reward, np.ndarray | np.generic | int | float) else None)
    return number.shape == () and number.dtype.kind in "biuf" and bool(np.isfinite(number))


def as_taken(rows: Column, dtype: np.dtype[Any]) -> Column:
    """Return [R, F] rows in the type that a network takes.

    Raises:
        OutsideSpaceError: It takes bytes, of images, and some numbers are none.
    """
    if rows.dtype == dtype:
        return rows
    with np.errstate(invalid="ignore"):
        taken: Column = rows.astype(dtype)
    if dtype == np.uint8 and not np.array_equal(taken, rows):
        row, column = np.argwhere(taken != rows)[0]
        raise OutsideSpaceError(
            int(row),
            f"obs: {rows[row, column]} after the agent connectors, expected whole numbers from 0 to 255, because "
            "images of bytes stay bytes, divided by 255 in the network; leave scaling out, or define your connector's "
            "space",
        )
    return taken


def single(obs: Any) -> Any:
    """Return an array of float64 as float32: arithmetic on observations makes such arrays, and networks take none."""
    return obs.astype(np.float32) if isinstance(obs, np.ndarray) and obs.dtype == np.float64 else obs
