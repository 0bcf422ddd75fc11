"""Checkpoints that earlier versions wrote are loaded for ever."""

from __future__ import annotations

import pytest

from tests.checkpoints.runs import by_seat, trained
from tests.checkpoints.stored import DATA, RUNS

# Of the sizes of all weights.
SUMS = {"format_1_ppo": 185.14483430382097, "format_1_dqn": 53.69805945083499}


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_of_before_is_loaded_and_goes_on(name: str) -> None:
    kind, _ = RUNS[name]
    with kind.from_checkpoint(DATA / name, policy_mapping_fn=by_seat) as algo:
        assert algo.iteration == 2
        weights = algo.get_weights()
        total = sum(float(abs(array).sum()) for own in weights.values() for array in own.values())
        assert total == pytest.approx(SUMS[name], rel=1e-6)
        result = trained(algo, 1)
        assert result["training_iteration"] == 3
        assert result["num_episodes_not_resumed"] == 0


def test_all_that_are_stored_are_loaded() -> None:
    assert sorted(path.name for path in DATA.iterdir()) == sorted(RUNS)
