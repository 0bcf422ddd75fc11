"""Learning and acting on a GPU. Where there is none, that nothing is computed on another device than was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from menv import PolicySpec
from menv.algorithms import DQN, PPO, QMIX, PPOPolicy
from menv.algorithms.algorithm import Algorithm
from menv.envs import TicTacToe
from menv.errors import ConfigError
from tests.algorithms.test_conv_training import Patch
from tests.algorithms.test_custom_model import Kept, Net
from tests.algorithms_e2e.roads import Road
from tests.algorithms_e2e.test_qmix import two_steps
from tests.algorithms_e2e.test_recurrent import recall

GPU = torch.cuda.is_available()

ROWS: dict[str, Any] = {"train_batch_size": 128, "num_envs_per_worker": 4, "seed": 3}
PPO_ROWS = {**ROWS, "sgd_minibatch_size": 48, "num_sgd_iter": 2, "vf_clip_param": 5.0}
DQN_ROWS = {
    **ROWS,
    "train_batch_size": 16,
    "training_intensity": 4,
    "min_sample_timesteps_per_iteration": 128,
    "num_steps_sampled_before_learning_starts": 32,
    "replay_buffer_config": {"type": "MultiAgentPrioritizedReplayBuffer"},
}
MEMORY = {"fcnet_hiddens": [8], "lstm_cell_size": 8, "max_seq_len": 4}
LSTM = {"model": {**MEMORY, "use_lstm": True}}
STOCK: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "choices": (PPO, "CartPole-v1", {**PPO_ROWS, "entropy_coeff": 0.01}),
    "numbers": (PPO, "Pendulum-v1", {**PPO_ROWS, "entropy_coeff": 0.01}),
    "masks": (PPO, TicTacToe, PPO_ROWS),
    "both, with masks": (
        PPO,
        Road,
        {**PPO_ROWS, "env_config": {"mask": "flat"}, "entropy_coeff": 0.01, "inference": "torch"},
    ),
    "sequences of both": (PPO, Road, {**PPO_ROWS, **LSTM, "inference": "torch"}),
    "shared layers": (PPO, "Pendulum-v1", {**PPO_ROWS, "model": {"vf_share_layers": True}}),
    "relu": (PPO, "CartPole-v1", {**PPO_ROWS, "model": {"fcnet_activation": "relu"}}),
    "sequences": (PPO, recall, {**PPO_ROWS, **LSTM}),
    "gru": (PPO, recall, {**PPO_ROWS, "model": {**MEMORY, "use_gru": True}}),
    "pictures": (PPO, Patch, PPO_ROWS),
    "wide layers": (PPO, "CartPole-v1", {**PPO_ROWS, "model": {"fcnet_hiddens": [1024, 1024]}}),
    "torch acts": (PPO, "CartPole-v1", {**PPO_ROWS, "inference": "torch"}),
    "torch acts with a memory": (PPO, recall, {**PPO_ROWS, **LSTM, "inference": "torch"}),
    "dqn": (DQN, "CartPole-v1", DQN_ROWS),
    "dqn with masks": (DQN, TicTacToe, {**DQN_ROWS, "inference": "torch"}),
    "dqn of sequences": (DQN, recall, {**DQN_ROWS, **LSTM}),
    "qmix": (QMIX, two_steps, DQN_ROWS),
    "torch acts for a group": (QMIX, two_steps, {**DQN_ROWS, "inference": "torch"}),
}
OWN: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "custom": (PPO, "CartPole-v1", {**PPO_ROWS, "model": {"custom_model": Net}}),
    "custom with a memory": (PPO, "CartPole-v1", {**PPO_ROWS, "model": {"custom_model": Kept}}),
    "custom dqn": (DQN, "CartPole-v1", {**DQN_ROWS, "model": {"custom_model": Net}}),
}


class Watched(PPOPolicy):
    """Values states by a module of its own, before and while it learns."""

    def make_modules(self) -> dict[str, nn.Module]:
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
        return {"critic": self.critic}

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        with torch.no_grad():
            batch["vf_preds"] = self.critic(torch.from_numpy(batch["obs"])).numpy()
            batch["thought"] = self.network.values(torch.from_numpy(batch["obs"])).numpy()
        return batch

    def loss(self, batch: Mapping[str, Tensor]) -> Any:
        return self.ppo_loss(batch, values=self.critic(batch["obs"]))


OWN["a loss and modules"] = (
    PPO, "CartPole-v1", {**PPO_ROWS, "multiagent": {"policies": {"default_policy": PolicySpec(Watched)}}},
)  # fmt: skip


def trained(kind: str, iterations: int = 2, **settings: Any) -> dict[str, Any]:
    """Return the weights of a kind's policies after some iterations."""
    algorithm_class, env, config = {**STOCK, **OWN}[kind]
    with algorithm_class(env=env, config={**config, **settings}) as algorithm:
        for _ in range(iterations):
            result = algorithm.train()
        assert not iterations or result["num_env_steps_trained"]
        return {
            f"{policy}.{name}": value
            for policy, weights in algorithm.get_weights().items()
            for name, value in weights.items()
        }


@pytest.mark.slow_unless(
    "choices", "both, with masks", "sequences of both", "pictures", "torch acts with a memory", "dqn", "qmix"
)
@pytest.mark.parametrize("kind", STOCK)
def test_every_tensor_is_made_where_the_parameters_are(kind: str) -> None:
    # What is made without saying where has no numbers here, and nothing can be computed with it.
    with torch.device("meta"):
        weights = trained(kind, 1)
    assert all(np.isfinite(value).all() for value in weights.values())


@pytest.mark.skipif(GPU, reason="there is a GPU here")
@pytest.mark.parametrize("own", [False, True])
def test_a_missing_gpu_is_reported_when_the_algorithm_is_built(own: bool) -> None:
    spec = PolicySpec(config={"num_gpus": 1})
    config = {"multiagent": {"policies": {"default_policy": spec}}} if own else {"num_gpus": 0.5}
    with pytest.raises(ConfigError, match="num_gpus"):
        PPO(env="CartPole-v1", config=config)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*STOCK, *OWN])
def test_a_gpu_learns_what_the_processor_does_but_for_rounding(kind: str) -> None:
    # Actions may differ by rounding where torch draws them; what acts is what learned, so runs part then.
    settings = {"inference": "auto"} if kind in STOCK else {}
    here, there = trained(kind, 1, **settings), trained(kind, 1, num_gpus=1, **settings)
    assert here.keys() == there.keys()
    for name in here:
        # Adam turns a gradient that is nothing but rounding into whole steps.
        apart = np.abs(here[name] - there[name])
        assert np.median(apart) < 2e-5, name
        assert apart.max() < 0.05, name


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["pictures", "wide layers"])
def test_the_loss_on_a_gpu_is_that_on_the_processor(kind: str) -> None:
    algorithm_class, env, config = STOCK[kind]
    losses = []
    for num_gpus in (0, 1):
        with algorithm_class(env=env, config={**config, "num_gpus": num_gpus}) as algorithm:
            losses.append(algorithm.train()["info"]["default_policy"]["total_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*STOCK, *OWN])
def test_a_gpu_gives_the_same_run_again(kind: str) -> None:
    one, other = (trained(kind, 2, num_gpus=1) for _ in range(2))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["choices", "dqn", "pictures", "a loss and modules"])
def test_a_run_on_a_gpu_continues_where_it_was_and_on_the_processor(kind: str, tmp_path: Path) -> None:
    algorithm_class, env, config = {**STOCK, **OWN}[kind]
    with algorithm_class(env=env, config={**config, "num_gpus": 1}) as algorithm:
        algorithm.train()
        algorithm.save(tmp_path)
        algorithm.restore(tmp_path)
        algorithm.train()
        wanted = algorithm.get_weights()["default_policy"]
    for num_gpus in (1, 0):
        with algorithm_class(env=env, config={**config, "num_gpus": num_gpus}) as algorithm:
            algorithm.restore(tmp_path)
            algorithm.train()
            found = algorithm.get_weights()["default_policy"]
        for name in wanted:
            if num_gpus:
                np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
            else:
                assert np.median(np.abs(found[name] - wanted[name])) < 2e-5, name


@pytest.mark.gpu
def test_workers_act_on_their_processors_while_a_gpu_learns() -> None:
    config = {**PPO_ROWS, "num_gpus": 1, "num_workers": 1, "engine": "process", "inference": "torch"}
    with PPO(env="CartPole-v1", config=config) as algorithm:
        assert algorithm.train()["info"]["default_policy"]["total_loss"] > 0.0
        assert algorithm.train()["num_worker_restarts"] == 0


@pytest.mark.gpu
def test_cartpole_is_learned_on_a_gpu() -> None:
    config = {"num_gpus": 1, "num_envs_per_worker": 64, "seed": 0}
    with PPO(env="CartPole-v1", config=config) as algorithm:
        best = max(algorithm.train()["episode_reward_mean"] or 0.0 for _ in range(30))
    assert best > 200.0
