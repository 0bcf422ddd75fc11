"""Action connectors that were taken out or put in are what acts everywhere: on disk, in clients, in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import Policy
from menv.algorithms import PPO
from menv.connectors import ClipActionsConnector, ConnectorContext
from menv.inference.policy_bundle import pack_bundle
from menv.sampling.policy_group import NetworkStrategy
from menv.serving.client.local_actor import LocalPolicy

OBS = np.array([0.1, -0.2, 0.3], np.float32)
FAR = gym.spaces.Box(0, 10, (2,), np.float32)


class Adds(gym.Env[Any, Any]):
    """Shows the sum of what was done, so that an episode that goes on elsewhere shows what it was given."""

    observation_space, action_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), FAR

    def __init__(self, context: Any) -> None:
        self.sum = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.sum = 0.0
        return OBS, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.sum += float(action.sum())
        return np.full(3, self.sum, np.float32), 0.0, False, False, {}


def algorithm() -> PPO:
    algo = PPO(env=Adds, config={"seed": 0, "train_batch_size": 8, "sgd_minibatch_size": 8})
    policy: Any = algo.get_policy()
    policy.action_connectors.remove("NormalizeActionsConnector")
    return algo


@pytest.mark.parametrize("clips", [False, True])
def test_actions_that_are_not_scaled_are_not_scaled_by_a_stored_policy(tmp_path: Path, clips: bool) -> None:
    policy: Any = algorithm().get_policy()
    if clips:
        line = policy.action_connectors
        line.insert_after(
            "ConvertToNumpyConnector", ClipActionsConnector(ConnectorContext.from_policy(policy))
        )
    policy.export_checkpoint(tmp_path / "policy")
    stored: Any = Policy.from_checkpoint(tmp_path / "policy")
    np.testing.assert_array_equal(stored.act(OBS), policy.act(OBS))


def test_what_a_client_says_it_did_is_the_networks_own_action_for_the_server() -> None:
    policy: Any = algorithm().get_policy()
    strategy, local = NetworkStrategy(policy.networks), LocalPolicy(pack_bundle(policy), 1)
    drawn = np.array([[0.25, -0.5], [3.0, 1.0]], np.float32)
    done = local.policy.networks.output.unclipped(drawn)
    np.testing.assert_array_equal(strategy.network_form(done, 0), drawn)


def test_an_episode_that_goes_on_was_given_what_it_is_given_again(tmp_path: Path) -> None:
    algo = algorithm()
    for _ in range(2):
        algo.train()
    algo.save(tmp_path / "run")
    batch = algo.sample()["default_policy"]
    again = PPO.from_checkpoint(tmp_path / "run", config={"env": Adds}).sample()["default_policy"]
    np.testing.assert_array_equal(batch["obs"], again["obs"])


def test_explore_in_the_config_is_the_default_of_a_policy_here_and_in_its_folder(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config={"train_batch_size": 200, "explore": False, "seed": 0}) as algo:
        policy = algo.get_policy()
        stored: Any = Policy.from_checkpoint(policy.export_checkpoint(tmp_path / "greedy"))
        obs = [np.array([0.01, 0.0, 0.02, 0.0], np.float32)] * 64
        greedy = policy.act(obs[0])
        for own in (policy, stored):
            assert set(own.compute_actions(obs)[0]) == {greedy}
            assert len(set(own.compute_actions(obs, explore=True)[0])) == 2
    with PPO(env="CartPole-v1", config={"train_batch_size": 200}) as algo:
        stored = Policy.from_checkpoint(algo.get_policy().export_checkpoint(tmp_path / "drawn"))
        for own in (algo.get_policy(), stored):
            assert len(set(own.compute_actions(obs)[0])) == 2
            assert len(set(own.compute_actions(obs, explore=False)[0])) == 1
