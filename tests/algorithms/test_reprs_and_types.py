"""What an algorithm, its policies and its results say in a line, and which types an editor sees."""

import subprocess
import sys
from pathlib import Path

import pytest

from menv.algorithms import PPO

PROGRAM = """
from menv import Policy
from menv.algorithms import PPO

with PPO(env="CartPole-v1") as algo:
    reveal_type(algo.train()["training_iteration"])
    reveal_type(algo.learn(100)["hist_stats"])
    reveal_type(algo.evaluate()["evaluation"]["episodes_this_iter"])
    algo.train()["training_iterations"]
reveal_type(Policy.from_checkpoint("run", policy_ids=["red"]))
"""


def test_algorithms_policies_and_results_say_in_a_line_what_they_are() -> None:
    small = {"train_batch_size": 64, "sgd_minibatch_size": 64, "evaluation_duration": 3}
    with PPO(env="CartPole-v1", config=small) as algo:
        result = algo.train()
        assert repr(algo) == "PPO('CartPole-v1', 1 policy, iteration 1)"
        shown = repr(algo.get_policy())
        assert shown.startswith("PPOPolicy('default_policy', Box(") or shown.startswith(
            "NetworkPolicy('default_policy', Box("
        )
        assert shown.endswith(" -> Discrete(2))")
        assert repr(result).startswith("<Result: iteration 1, ")
        assert f"{len(result)} keys>" in repr(result)
        assert repr(algo.evaluate()).startswith("<Result: evaluation, 3 episodes, mean return ")


@pytest.mark.slow
def test_a_type_checker_knows_the_keys_of_results(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(PROGRAM)
    root = Path(__file__).parents[2]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(root / ".mypy_cache"), str(tmp_path / "user.py")],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    for line in (
        'Revealed type is "int"',
        'Revealed type is "dict[str, list[float]]"',
        'TypedDict "TrainResult" has no key "training_iterations"',
        'Revealed type is "dict[str, menv.policy.Policy]"',
    ):
        assert line in checked.stdout.replace("builtins.", ""), checked.stdout
