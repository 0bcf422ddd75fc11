"""Random numbers that depend on who draws and when, and on nothing else."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from menv import rng


def keys(count: int, seed: int = 0) -> rng.Keys:
    return np.array([rng.key(seed, env) for env in range(count)], np.uint64)


def test_uniforms_fill_the_unit_interval_evenly_and_never_reach_one() -> None:
    numbers = rng.uniforms(keys(500), np.zeros(500, np.int64), 400)
    assert numbers.dtype == np.float32
    assert numbers.shape == (500, 400)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, 20, (0, 1))
    # 200,000 draws in 20 bins: a bin's standard deviation is 97.
    assert np.abs(counts - 10_000).max() < 500


def test_the_largest_uniform_times_n_stays_below_n() -> None:
    largest = np.float32((2**23 - 1) * 2.0**-23)
    assert all(int(largest * np.float32(n)) < n for n in (2, 3, 7, 1000, 100_000))


def test_normals_have_the_moments_of_the_normal_distribution() -> None:
    numbers = rng.normals(keys(500), np.arange(500), 400).astype(np.float64)
    assert np.isfinite(numbers).all()
    assert abs(numbers.mean()) < 0.02
    assert abs(numbers.std() - 1) < 0.02
    assert abs((numbers**3).mean()) < 0.05
    assert abs((numbers**4).mean() - 3) < 0.2


@pytest.mark.parametrize("draw", [rng.uniforms, rng.normals])
@pytest.mark.parametrize("width", [1, 3])
def test_a_row_gets_the_same_numbers_alone_and_in_a_batch(draw: type, width: int) -> None:
    many, steps = keys(7), np.arange(7) * 11
    batch = draw(many, steps, width)
    for row in range(7):
        np.testing.assert_array_equal(draw(many[row : row + 1], steps[row : row + 1], width)[0], batch[row])
    np.testing.assert_array_equal(draw(many[::-1].copy(), steps[::-1].copy(), width), batch[::-1])


def test_blocks_drawn_ahead_hold_the_numbers_of_each_step() -> None:
    many, steps = keys(5), np.full(5, 40)
    block = rng.uniforms(many[None, :], steps[None, :] + np.arange(8)[:, None], 2)
    for ahead in range(8):
        np.testing.assert_array_equal(block[ahead], rng.uniforms(many, steps + ahead, 2))


def test_neighbouring_keys_steps_and_columns_are_not_correlated() -> None:
    numbers = rng.uniforms(keys(200)[:, None], np.arange(200)[None, :], 2).astype(np.float64) - 0.5
    unit = (numbers**2).mean()
    for other in (
        numbers[1:] * numbers[:-1],
        numbers[:, 1:] * numbers[:, :-1],
        numbers[..., :1] * numbers[..., 1:],
    ):
        assert abs(other.mean() / unit) < 0.02


def test_keys_depend_on_every_part_and_on_their_order() -> None:
    parts = [(0, 1, 2), (0, 2, 1), (1, 1, 2), (0, 1), (0, 1, 2, 0), (0, 1, 3)]
    assert len({rng.key(*part) for part in parts}) == len(parts)
    assert all(0 <= rng.key(*part) < 2**64 for part in parts)
    assert rng.key(3, 4) == rng.key(3, 4)


def test_the_hash_of_an_agent_id_is_the_same_in_every_process() -> None:
    ids = ["car_1", 1, ("car", 1), "1", None]
    hashes = [rng.stable_hash(one) for one in ids]
    assert len(set(hashes)) == len(ids)
    code = f"from menv import rng; print([rng.stable_hash(one) for one in {ids!r}])"
    for salt in ("0", "123"):
        out = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert out.strip() == str(hashes)
