"""What connectors do between a policy's preprocessor and its network, as nodes of an ONNX file: filters and frames.

`menv.algorithms.export.onnx_export` calls it. What is before and behind it in a file is in `onnx_ends`; nothing runs
here.
"""

from __future__ import annotations

import copy

import numpy as np

from menv.algorithms.export.onnx_ends import Ends
from menv.connectors.agent_connector import AgentConnector
from menv.connectors.agent_rows import AgentRows
from menv.connectors.default_pipelines import steps_of
from menv.connectors.flat_obs import ObsPreprocessorConnector
from menv.connectors.frame_stack import FrameStackAgentConnector
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import AgentConnectorPipeline
from menv.loop.golden import Array

_KINDS = (MeanStdObservationFilterAgentConnector, FrameStackAgentConnector)


class Steps:
    """The connectors behind a policy's preprocessor.

    Args:
        pipeline: Of the policy.
        preprocess: What makes rows for them.

    Attributes:
        frames: How many observations they stack; None if they do not.
        known: Whether nodes express all of them.
    """

    def __init__(self, pipeline: AgentConnectorPipeline, preprocess: ObsPreprocessor) -> None:
        first, *self._connectors = steps_of(pipeline) or [AgentConnector()]
        self._preprocess = preprocess
        stacks = [one for one in self._connectors if isinstance(one, FrameStackAgentConnector)]
        self.frames = stacks[0].num_frames if stacks else None
        kinds = [type(one) for one in self._connectors]
        self.known = (
            type(first) is ObsPreprocessorConnector
            and len(stacks) < 2
            and all(kind in _KINDS for kind in kinds)
        )

    def one_life(self, rows: Array, width: int) -> Array:
        """Return what they make of preprocessed rows [R, F] of one life, one after the other."""
        if not self._connectors:
            return rows
        copies, slot = copy.deepcopy(self._connectors), np.zeros(1, np.int64)
        shown = [AgentRows(row[None], slots=slot) for row in rows]
        for one in shown:
            for connector in copies:
                connector.over_rows(one)
        return np.concatenate([one.array() for one in shown])

    def places(self, rows: int) -> Array:
        """Return [R, frames] which of R observations of one life each row shows, the oldest first."""
        frames = self.frames or 1
        places: Array = np.maximum(np.arange(rows)[:, None] + np.arange(1 - frames, 1), 0)
        return places

    def add(self, ends: Ends, rows: str) -> str:
        """Add their nodes, given and returning the name of rows; those of several frames come one after the other."""
        for one in self._connectors:
            if isinstance(one, FrameStackAgentConnector):
                rows = _stacked(ends, rows, self._preprocess, one.num_frames)
            elif isinstance(one, MeanStdObservationFilterAgentConnector):
                rows = _filtered(ends, rows, one)
        return rows


def _stacked(ends: Ends, rows: str, preprocess: ObsPreprocessor, frames: int) -> str:
    """Return rows of several observations, as `FrameStackAgentConnector` lays them: images by their channels."""
    if preprocess.image is not None:
        channels = preprocess.image[2]
        shape = ends.constant([-1, frames, preprocess.size // channels, channels])
        rows = ends.add("Transpose", ends.add("Reshape", rows, shape), perm=[0, 2, 1, 3])
    return ends.add("Reshape", rows, ends.constant([-1, frames * preprocess.size]))


def _filtered(ends: Ends, rows: str, one: MeanStdObservationFilterAgentConnector) -> str:
    shift, scale = one.applied
    if len(shift):
        rows = ends.add("Sub", rows, ends.constant(shift, np.float32))
        rows = ends.add("Mul", rows, ends.constant(scale, np.float32))
    if one.clip is not None:
        rows = ends.add("Clip", rows, *(ends.constant(limit, np.float32) for limit in (-one.clip, one.clip)))
    return rows
