"""Groups of three members whose networks are lively, for tests of what acts and of what learns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.algorithms.qmix.network import GroupSpec, group_layout

Floats = npt.NDArray[np.float32]
STATE = 4
SEEN = 2
MEMBERS = 3


def spaces(choices: int = 3, members: int = MEMBERS) -> tuple[gym.spaces.Tuple[Any], gym.spaces.Tuple[Any]]:
    """Return observation and action space: flat rows hold [obs, state] of each member in turn."""
    unit: dict[str, gym.Space[Any]] = {
        "obs": gym.spaces.Box(-9.0, 9.0, (SEEN,)),
        "state": gym.spaces.Box(-9.0, 9.0, (STATE,)),
    }
    seen = [gym.spaces.Dict(unit) for _ in range(members)]
    return gym.spaces.Tuple(seen), gym.spaces.Tuple([gym.spaces.Discrete(choices)] * members)


def spec_of(choices: int = 3, members: int = MEMBERS, **settings: Any) -> GroupSpec:
    layout = group_layout(*spaces(choices, members))
    return GroupSpec((SEEN + STATE) * members, layout, **{"hiddens": (16,), "embed_dim": 8, **settings})


def random_rows(spec: GroupSpec, rows: int, seed: int = 0) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
    """Return observations, masks and draws."""
    rng = np.random.default_rng(seed)
    head = spec.head
    mask = rng.random((rows, len(head.sizes), head.sizes[0])) < 0.5
    mask[..., rng.integers(head.sizes[0])] = True
    noise = rng.integers(0, 2**23, (rows, head.noise_width)).astype(np.float32) * np.float32(2.0**-23)
    return rng.standard_normal((rows, spec.obs_size), np.float32), mask.reshape(rows, head.mask_width), noise
