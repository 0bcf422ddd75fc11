"""NaN and infinity that hooks leave in rows, and rewards that no number can sum: named, instead of learned from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks, PolicySpec
from menv.algorithms import DQN, PPO, Algorithm, PPOPolicy
from menv.errors import ContractError
from tests.worlds import Alone, Several

SMALL: dict[str, Any] = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "seed": 1}


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


@pytest.mark.slow_unless("PPO-*-on_sample_end", "PPO-rewards-*", "DQN-obs-*")
@pytest.mark.each_value
@pytest.mark.parametrize("hook", ["on_postprocess_trajectory", "on_sample_end", "on_learn_on_batch"])
@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (PPO, "rewards"), (PPO, "obs"), (PPO, "action_logp"), (PPO, "advantages"), (PPO, "value_targets"),
        (DQN, "rewards"), (DQN, "obs"),
    ],
)  # fmt: skip
def test_what_a_callback_has_spoiled_is_named(kind: Any, column: str, hook: str) -> None:
    for number, told in ((np.nan, "NaN"), (np.inf, "inf")):
        writes = type("Own", (Writes,), {"hook": hook, "column": column, "number": number})
        with (
            kind(env="CartPole-v1", config={"train_batch_size": 64, "callbacks": writes}) as algorithm,
            pytest.raises(
                ContractError,
                match=rf"^policy 'default_policy', {hook}: column '{column}' holds {told} in row \d+ of \d+",
            ),
        ):
            algorithm.train()


@pytest.mark.parametrize("column", ["rewards", "vf_preds", "advantages"])
def test_what_a_policy_has_spoiled_is_named_with_the_agent(column: str) -> None:
    class Spoils(PPOPolicy):
        def postprocess_trajectory(
            self, batch: Any, other_agent_batches: Any = None, episode: Any = None
        ) -> Any:
            batch[column] = np.full(batch.count, np.nan, np.float32)
            # What NaN means there is the policy's own matter.
            batch["own"] = np.full(batch.count, np.nan, np.float32)
            return batch

    own = {"policies": {"own": PolicySpec(policy_class=Spoils)}, "policy_mapping_fn": lambda agent: "own"}
    with (
        PPO(env="CartPole-v1", config={**SMALL, "multiagent": own}) as algorithm,
        pytest.raises(
            ContractError, match=rf"^policy 'own', postprocess_trajectory: column '{column}' .*agent 'agent0'"
        ),
    ):
        algorithm.train()


class Pays(gym.RewardWrapper[Any, Any]):
    """Pays a large number."""

    def __init__(self, context: Any) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._pay = context["pay"]

    def reward(self, reward: Any) -> float:
        return float(self._pay)


@pytest.mark.filterwarnings("ignore:overflow|invalid:RuntimeWarning")
def test_hooks_are_not_blamed_for_rewards_that_no_float32_holds() -> None:
    class Looks(DefaultCallbacks):
        def on_postprocess_trajectory(self, **kwargs: Any) -> None:
            pass

        def on_sample_end(self, **kwargs: Any) -> None:
            pass

        def on_learn_on_batch(self, **kwargs: Any) -> None:
            pass

    config = {**SMALL, "env_config": {"pay": 1e39}, "callbacks": Looks}
    with (
        PPO(env=Pays, config=config) as algorithm,
        pytest.warns(RuntimeWarning, match=r"was left out \(its rows hold NaN or infinity in advantages, "),
    ):
        algorithm.train()


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_rewards_that_no_float64_sums_are_named() -> None:
    with (
        PPO(env=Pays, config={**SMALL, "env_config": {"pay": 1.7e308}}) as algorithm,
        pytest.raises(ContractError, match="rewards of agent 'agent0'"),
    ):
        algorithm.train()


class Rich(Several):
    """Two agents, of whom one earns what the other pays."""

    length = 4

    def pay(self, actions: Any) -> Any:
        return {"a": 1.7e308, "b": -1.7e308}


@pytest.mark.filterwarnings("ignore:overflow|invalid:RuntimeWarning")
def test_returns_that_no_float64_holds_are_named() -> None:
    with (
        PPO(env=Rich, config=SMALL) as algorithm,
        pytest.raises(ContractError, match="'a'"),
    ):
        algorithm.train()


# Gradients that are not finite: they are left out, and somebody is told.


def test_each_policy_is_warned_of_once() -> None:
    def skipped() -> int:
        count: int = algorithm.train()["info"]["default_policy"]["skipped_updates"]
        return count

    settings = {
        "train_batch_size": 64,
        "sgd_minibatch_size": 32,
        "num_sgd_iter": 2,
        "seed": 1,
        "normalize_values": False,
    }
    with PPO(env=Pays, config={**settings, "env_config": {"pay": 1e30}}) as algorithm:
        with pytest.warns(RuntimeWarning, match="default_policy"):
            first = skipped()
        # Warnings are errors here.
        assert skipped() > first > 0


class Larger(Alone):
    """Pays more than a float32 holds, once in eight steps."""

    length = 8

    def pay(self, action: Any) -> float:
        return 1e39 if self.at == 4 else 1.0


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
def test_rewards_that_no_network_can_learn_end_no_run_and_are_told_of_in_one_way(
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
