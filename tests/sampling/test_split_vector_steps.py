"""The rows of whole frames are cut like any others, without being sorted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from menv.sampling.trajectories import split_trajectories, split_vector_steps


@given(frames=st.integers(1, 12), num_envs=st.integers(1, 9), data=st.data())
def test_frames_are_cut_as_if_they_had_been_sorted(frames: int, num_envs: int, data: st.DataObject) -> None:
    rows = frames * num_envs
    # An end comes in with a row of its own slot, which is not of the first frame.
    ends = sorted(data.draw(st.sets(st.integers(num_envs, rows - 1)))) if frames > 1 else []
    end_rows = np.array(ends, np.int64)
    end_slots = end_rows % num_envs
    found = split_vector_steps(frames, num_envs, end_slots, end_rows)
    expected = split_trajectories(np.arange(rows) % num_envs, end_slots, end_rows)
    for name in ("order", "starts", "lengths", "held", "end_order", "end_segments", "withdrawn"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
