"""NaN and infinity that hooks leave in rows, and rewards that no number can sum: left out, and named."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks
from menv.algorithms import DQN, PPO, Algorithm
from tests.worlds import Alone, like


class Writes(DefaultCallbacks):
    """Writes a number into the last row of a column, in one hook of three."""

    hook = column = ""
    number = np.nan

    def on_postprocess_trajectory(self, *, postprocessed_batch: Any, **kwargs: Any) -> None:
        self._write("on_postprocess_trajectory", postprocessed_batch)

    def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
        self._write("on_sample_end", samples["default_policy"])

    def on_learn_on_batch(self, *, train_batch: Any, **kwargs: Any) -> None:
        self._write("on_learn_on_batch", train_batch)

    def _write(self, hook: str, batch: Any) -> None:
        if hook == self.hook:
            batch[self.column][-1] = self.number


@pytest.mark.parametrize("hook", ["on_postprocess_trajectory", "on_sample_end", "on_learn_on_batch"])
@pytest.mark.parametrize(("kind", "column"), [(PPO, "obs"), (PPO, "advantages"), (DQN, "obs")])
def test_what_a_callback_has_spoiled_is_named_and_not_learned(kind: Any, column: str, hook: str) -> None:
    writes = type("Own", (Writes,), {"hook": hook, "column": column})
    config = {"train_batch_size": 64, "callbacks": writes, "seed": 1}
    if kind is DQN:
        config["num_steps_sampled_before_learning_starts"] = 0
    with kind(env="CartPole-v1", config=config) as algorithm:
        with pytest.warns(RuntimeWarning, match=f"its rows hold NaN or infinity in .*{column}"):
            algorithm.train()
        weights = algorithm.get_weights()["default_policy"]
    assert all(np.isfinite(value).all() for value in weights.values())


class Pays(gym.RewardWrapper[Any, Any]):
    """Pays a large number."""

    def __init__(self, context: Any) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._pay = context["pay"]

    def reward(self, reward: Any) -> float:
        return float(self._pay)


# Pays more than a float32 holds, once in eight steps.
Larger = like(Alone, length=8, pay=lambda self, action: 1e39 if self.at == 4 else 1.0)


MEMORY = {"model": {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4]}}
BY_PRIORITY = {"replay_buffer_config": {"prioritized_replay": True}}


@pytest.mark.slow_unless("PPO-*", "DQN-settings4")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (PPO, {}),
        (PPO, {"normalize_values": False}),
        (PPO, MEMORY),
        (DQN, {}),
        (DQN, BY_PRIORITY),
        (DQN, {**MEMORY, **BY_PRIORITY}),
    ],
)
def test_rewards_that_no_network_can_learn_end_no_run_and_warn_the_same_way(
    kind: type[Algorithm], settings: dict[str, Any]
) -> None:
    common = {"num_envs_per_worker": 2, "rollout_fragment_length": 16, "seed": 1}
    own = {
        PPO: {"train_batch_size": 32, "sgd_minibatch_size": 32},
        DQN: {
            "train_batch_size": 8,
            "num_steps_sampled_before_learning_starts": 0,
            "min_sample_timesteps_per_iteration": 32,
        },
    }
    with kind(env=Larger, config={**common, **own[kind], **settings}) as algorithm:
        with pytest.warns(RuntimeWarning, match="a gradient was NaN or infinite") as told:
            algorithm.train()
        assert len(told) == 1
        # Warnings are errors here.
        stats = algorithm.train()["info"]["default_policy"]
        assert stats["skipped_updates"] > 0
        for name, value in algorithm.get_weights()["default_policy"].items():
            assert np.isfinite(value).all(), name
