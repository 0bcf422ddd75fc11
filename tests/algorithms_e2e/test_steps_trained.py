"""`num_env_steps_trained` and `num_agent_steps_trained` count what policies learned from, not what was sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from menv.algorithms import DQN, PPO, QMIX
from menv.callbacks import DefaultCallbacks
from menv.envs import RockPaperScissors, TicTacToe, TwoStepGame
from tests.algorithms_e2e.looking import OwnLoss
from tests.worlds import Alone

SMALL: dict[str, Any] = {"train_batch_size": 60, "sgd_minibatch_size": 30, "num_sgd_iter": 2, "seed": 1}


class Rows(DefaultCallbacks):
    """Counts the rows that policies are given to learn from."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def on_learn_on_batch(self, *, train_batch: Any, **kwargs: Any) -> None:
        self.rows += train_batch.count


class Fragile(Alone):
    """Raises in each third episode at the second step; others have four."""

    length = 4

    def pay(self, action: Any) -> float:
        if self.at == 2 and self.episode % 3 == 2:
            raise ValueError("broken")
        return 1.0


def grouped(context: Any) -> Any:
    return TwoStepGame(context).with_agent_groups({"both": TwoStepGame(context).possible_agents})


def trained(result: Mapping[str, Any]) -> tuple[int, int]:
    return result["num_env_steps_trained"], result["num_agent_steps_trained"]


@pytest.mark.filterwarnings("ignore::menv.errors.EnvFaultWarning")
def test_a_step_in_which_the_environment_raises_is_not_trained() -> None:
    heard = Rows()
    with PPO(env=Fragile, config={**SMALL, "callbacks": heard, "rollout_fragment_length": 60}) as algo:
        result = algo.train()
    # Ten env steps for three episodes: 4, 4 and 2, the last of which is not known.
    assert (result["num_env_steps_sampled"], *trained(result)) == (60, 54, 54)
    assert heard.rows == 54


@pytest.mark.parametrize("own", [False, True], ids=["stock", "own loss"])
def test_an_env_step_counts_where_one_of_the_agents_that_act_together_learns(own: bool) -> None:
    policies: dict[str, Any] = {
        "a": (OwnLoss, None, None, {}) if own else (None, None, None, {}),
        "b": (None, None, None, {}),
    }
    multiagent = {
        "policies": policies,
        "policy_mapping_fn": lambda agent_id, *_, **__: "a" if agent_id == "player1" else "b",
    }
    counts = []
    for learn in (["a", "b"], ["a"], []):
        config = {**SMALL, "multiagent": {**multiagent, "policies_to_train": learn}}
        with PPO(env=RockPaperScissors, config=config) as algo:
            counts.append(trained(algo.train()))
    assert counts == [(60, 120), (60, 60), (0, 0)]


def test_when_agents_take_turns_only_steps_of_learning_agents_count() -> None:
    multiagent = {
        "policies": ["a", "b"],
        "policy_mapping_fn": lambda agent_id, *_, **__: "a" if agent_id == "player1" else "b",
    }
    heard = Rows()
    counts = []
    for learn in (["a", "b"], ["a"]):
        heard.rows = 0
        settings = {**multiagent, "policies_to_train": learn}
        with PPO(env=TicTacToe, config={**SMALL, "multiagent": settings, "callbacks": heard}) as algo:
            counts.append((*trained(algo.train()), heard.rows))
    assert counts[0] == (counts[0][2],) * 3
    assert counts[1] == (counts[1][2],) * 3
    assert counts[0][0] > 1.7 * counts[1][0]


@pytest.mark.parametrize("kind", [DQN, QMIX])
def test_rows_that_are_replayed_count_each_time(kind: Any) -> None:
    config = {
        "train_batch_size": 8, "rollout_fragment_length": 4, "min_sample_timesteps_per_iteration": 20, "seed": 1,
        "num_steps_sampled_before_learning_starts": 40,
    }  # fmt: skip
    with kind(env=grouped if kind is QMIX else RockPaperScissors, config=config) as algo:
        results = [algo.train() for _ in range(4)]
    assert trained(results[0]) == (0, 0)
    updates = sum(
        own["updates"] for result in results for name, own in result["info"].items() if name != "learner"
    )
    assert updates > 0
    assert trained(results[-1]) == (8 * updates, 8 * updates)
