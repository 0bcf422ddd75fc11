"""Checkpoints that earlier versions wrote are loaded for ever."""

from __future__ import annotations

import pytest

from menv import Policy
from menv.errors import ConfigError
from tests.checkpoints.runs import by_seat, trained
from tests.checkpoints.stored import DATA, RUNS, WITHOUT_POLICIES

# Of the sizes of all weights.
SUMS = {
    "format_1_ppo": 185.14483430382097,
    "format_1_dqn": 53.69805945083499,
    "format_1_with_policies": 83.38345650583506,
    "format_1_with_frames": 116.72650108858943,
    "format_1_with_units": 83.39391403831542,
}


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


@pytest.mark.parametrize("name", WITHOUT_POLICIES)
def test_a_checkpoint_without_policies_says_what_to_do(name: str) -> None:
    algorithm = RUNS[name][0].__name__
    with pytest.raises(
        ConfigError,
        match=rf"wrote no policies beside the run.* load it with {algorithm}\.from_checkpoint and save it",
    ):
        Policy.from_checkpoint(DATA / name)


def test_the_policies_of_a_checkpoint_of_before_are_loaded_and_act() -> None:
    found = Policy.from_checkpoint(DATA / "format_1_with_policies")
    assert isinstance(found, dict)
    assert sorted(found) == ["a", "b"]
    for policy in found.values():
        obs = policy.observation_space.sample()
        obs["action_mask"][:] = [0, 0, 0, 0, 1, 0, 0, 0, 0]
        assert policy.act(obs) == 4
