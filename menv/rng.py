"""Counter-based random numbers: a pure function of (seed, env index, agent, env step, purpose).

Batching, order and back-end cannot change them. Keys are mixed for a whole batch at once by the finaliser of SplitMix64
(Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 1 of section 5), a bijection of
64-bit words.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Draw: TypeAlias = Callable[[Keys, npt.NDArray[np.int64], int], npt.NDArray[np.float32]]
"""`uniforms`, `normals`, or `mixed` of some columns."""

ACTION: Final = 1
RESET: Final = 2
MAPPING: Final = 3
WEIGHTS: Final = 4
PROCESS: Final = 5
EVALUATION: Final = 6
LEAGUE: Final = 7

# For numbers one by one, and for arrays.
_ONE_GAMMA: Final = 0x9E3779B97F4A7C15
_ONE_LANE: Final = 0xD1B54A32D192ED03
_ONE_M1: Final = 0xBF58476D1CE4E5B9
_ONE_M2: Final = 0x94D049BB133111EB
_GAMMA, _LANE = np.uint64(_ONE_GAMMA), np.uint64(_ONE_LANE)
_M1, _M2 = np.uint64(_ONE_M1), np.uint64(_ONE_M2)
_S30, _S27, _S31, _S41 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(41)
_MASK: Final = (1 << 64) - 1
_UNIT: Final = np.float32(2.0**-23)


def _mix(words: Keys) -> Keys:
    words ^= words >> _S30
    words *= _M1
    words ^= words >> _S27
    words *= _M2
    words ^= words >> _S31
    return words


def stable_hash(value: object) -> int:
    """Return 64 bits that depend on the type and `repr` of `value` alone, in every process."""
    text = f"{type(value).__name__}:{value!r}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def key(seed: int, *parts: int) -> int:
    """Return a 64-bit key for `seed` and any number of integers, in order."""
    word = seed & _MASK
    for part in parts:
        mixed = (word * _ONE_LANE + (part & _MASK) + _ONE_GAMMA) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * _ONE_M1) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * _ONE_M2) & _MASK
        word = mixed ^ (mixed >> 31)
    return word


def keys(seeds: Keys, parts: npt.NDArray[np.int64]) -> Keys:
    """Return `key(seed, part)` for each pair of two arrays of equal length."""
    mixed = seeds * _LANE + parts.astype(np.uint64) + _GAMMA
    return _mix(mixed)


def reset_seed(seed: int, env_index: int, env_steps: int) -> int:
    """Return the 31-bit seed of a reset after `env_steps` of a sub-environment."""
    return key(seed, env_index, env_steps, RESET) >> 33


def words(keys: Keys, steps: npt.NDArray[np.int64], width: int = 1) -> Keys:
    """Return [..., width] random 64-bit words.

    Args:
        keys: [...] one key per row, from `key`.
        steps: Env steps since the start of each row's sub-environment; broadcasts against `keys`.
        width: Words per row.
    """
    base = keys + steps.view(np.uint64) * _GAMMA
    if width == 1:
        return _mix(base)[..., None]
    lanes = np.arange(width, dtype=np.uint64) * _LANE
    return _mix(_mix(base)[..., None] ^ lanes)


def uniforms(keys: Keys, steps: npt.NDArray[np.int64], width: int = 1) -> npt.NDArray[np.float32]:
    """Return [..., width] float32 uniforms in [0, 1); 23 bits, so that none rounds to 1."""
    return (words(keys, steps, width) >> _S41).astype(np.float32) * _UNIT


def normals(keys: Keys, steps: npt.NDArray[np.int64], width: int = 1) -> npt.NDArray[np.float32]:
    """Return [..., width] float32 standard normals (Box and Muller 1958, equation 1)."""
    bits = words(keys, steps, 2 * width)
    radius = ((bits[..., :width] >> _S41).astype(np.float64) + 0.5) * 2.0**-23
    angle = (bits[..., width:] >> _S41).astype(np.float64) * (2.0 * np.pi * 2.0**-23)
    out: npt.NDArray[np.float32] = (np.sqrt(-2.0 * np.log(radius)) * np.cos(angle)).astype(np.float32)
    return out


def mixed(
    keys: Keys, steps: npt.NDArray[np.int64], width: int, *, normal: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """Return [..., width] float32: standard normals in the columns where `normal` [width] is True, else uniforms."""
    out: npt.NDArray[np.float32] = np.where(normal, normals(keys, steps, width), uniforms(keys, steps, width))
    return out


def seed_process(seed: int, *parts: int) -> None:
    """Seed `random` and `numpy.random`, which environments may use; `parts` identify the process and the moment."""
    own = key(seed, PROCESS, *parts)
    random.seed(own)
    np.random.seed(own & 0xFFFFFFFF)
