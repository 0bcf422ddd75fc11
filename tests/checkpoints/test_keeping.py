"""Which checkpoints stay in a folder where an earlier run has left some with higher numbers."""

from pathlib import Path

from menv.algorithms import PPO
from tests.checkpoints.runs import SMALL


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def test_the_latest_are_those_that_were_written_last(tmp_path: Path) -> None:
    with PPO(env="tictactoe", config=SMALL) as algo:
        for _ in range(6):
            algo.train()
            algo.save(tmp_path)
        algo.restore(tmp_path / "000002")
        kept = []
        for _ in range(2):
            algo.train()
            algo.save(tmp_path, keep_last=2)
            kept.append(names(tmp_path))
    assert kept == [["000003", "000006"], ["000003", "000004"]]


def test_of_equally_good_ones_that_stays_which_was_written_last(tmp_path: Path) -> None:
    worth = "num_env_steps_sampled_this_iter"
    with PPO(env="tictactoe", config=SMALL) as algo:
        for _ in range(4):
            algo.train()
            algo.save(tmp_path, keep_best=(worth, 9))
        algo.restore(tmp_path / "000001")
        algo.train()
        algo.save(tmp_path, keep_best=(worth, 1))
    assert names(tmp_path) == ["000002"]
