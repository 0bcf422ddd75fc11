"""Connectors that make flat rows of observations: the preprocessor of the policy's space, and plain flattening."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from menv.connectors.agent_connector import AgentConnector, columns_of
from menv.connectors.agent_rows import MASK, AgentConnectorDataType, AgentRows, single
from menv.connectors.connector_registry import register_connector
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.stateless import Stateless
from menv.sample_batch import SampleBatch
from menv.spaces import OutsideSpaceError

_OBS = (SampleBatch.OBS, SampleBatch.NEXT_OBS)
_LEFT_ALONE = (SampleBatch.INFOS, SampleBatch.ACTIONS, MASK)


class ObsPreprocessorConnector(Stateless, AgentConnector):
    """Turns observations of the context's space into what a network reads; see `ObsPreprocessor`.

    It is also where observations are checked: what connectors before it have made must be in the space.
    """

    at_ends = False
    _made: ObsPreprocessor | None = None

    @property
    def preprocess(self) -> ObsPreprocessor:
        """What does the work."""
        if self._made is None:
            space = self.known("observation_space")
            self._made = ObsPreprocessor(space, getattr(self.ctx, "action_space", None))
        return self._made

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with `obs` and `new_obs`, where there are any, as flat arrays.

        An action mask in the observation is in `data["action_mask"]` after it.

        Raises:
            OutsideSpaceError: An observation is outside the space.
        """
        data = dict(columns_of(self, ac_data))
        final = bool(data.get(SampleBatch.TERMINATEDS) or data.get(SampleBatch.TRUNCATEDS))
        for key in _OBS:
            if data.get(key) is not None:
                rows, mask = self._checked([single(data[key])], final)
                data[key] = rows[0]
                if mask is not None:
                    data[MASK] = mask[0]
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        """Turn a batch into rows and masks."""
        rows.obs, rows.mask = self._checked(rows.obs, rows.final)

    def _checked(self, obs: Any, final: bool) -> tuple[Any, Any]:
        preprocess = self.preprocess
        rows, mask = preprocess(obs, final)
        if not preprocess.plainly_good(rows):
            bad = preprocess.why_bad_row(rows)
            if bad is not None:
                raise OutsideSpaceError(*bad)
        return rows, mask

    def space(self, space: Any, width: int) -> tuple[Any, int]:
        """Return the same space: its flat rows are what networks take for it."""
        return space, self.preprocess.size


class FlattenDataAgentConnector(Stateless, AgentConnector):
    """Makes one flat array of each nested column; infos, actions, masks and states are left alone."""

    at_ends = False

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with flat columns; dicts in the order of their keys."""
        data = {
            key: value if key in _LEFT_ALONE or key.startswith("state_out_") else _flat(value)
            for key, value in columns_of(self, ac_data).items()
        }
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        """Make flat rows, unless they are."""
        if not isinstance(rows.obs, np.ndarray):
            rows.obs = [_flat(obs) for obs in rows.obs]
        rows.array()


def _flat(value: Any) -> Any:
    """Return a nested value as an array [F]; a scalar as it is."""
    if value is None or np.isscalar(value):
        return value
    parts = list(_leaves(value))
    return np.concatenate([np.ravel(part) for part in parts]) if parts else value


def _in_order(keys: Mapping[Any, Any]) -> list[Any]:
    """Return the keys in their order; those of different types have one by how they are written."""
    try:
        return sorted(keys)
    except TypeError:
        return sorted(keys, key=repr)


def _leaves(value: Any) -> Any:
    if isinstance(value, Mapping):
        value = [value[key] for key in _in_order(value)]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield np.asarray(value)


register_connector("ObsPreprocessorConnector", ObsPreprocessorConnector)
register_connector("FlattenDataAgentConnector", FlattenDataAgentConnector)
