"""A user's own module with a state: what it is given, that its state lasts a life, and that it learns to remember."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from menv.algorithms import DQN, PPO
from menv.algorithms.networks.custom_model import CustomSpec
from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical
from menv.inference.heads.head import ActionHead
from tests.algorithms_e2e.test_recurrent import CONFIG, STEPS, recall
from tests.worlds import like

SPACE = gym.spaces.Dict({"cue": gym.spaces.Discrete(3), "place": gym.spaces.Box(-1.0, 1.0, (2,))})
HEAD = Categorical((2,))


class Remembering(nn.Module):
    """A gated cell with a learned direction to begin with, and a counter of its rows as a second part."""

    def __init__(self, obs_space: gym.Space[Any], num_outputs: int, width: int = 16) -> None:
        super().__init__()
        self.cell = nn.GRU(gym.spaces.flatdim(obs_space), width, batch_first=True)
        self.policy, self.value = nn.Linear(width, num_outputs), nn.Linear(width, 1)
        self.width = width

    def get_initial_state(self) -> list[Tensor]:
        return [torch.full((self.width,), 0.5), torch.tensor([100.0])]

    def forward(self, obs: Any, state: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        shown = torch.cat(list(obs.values()), -1) if isinstance(obs, dict) else obs
        features, after = self.cell(shown, state[0][None].contiguous())
        count = state[1] + shown.shape[1]
        return self.policy(features), self.value(features)[..., 0], [after[0], count]


class QRemembering(Remembering):
    def forward(self, obs: Any, state: list[Tensor]) -> Any:
        outputs, _, after = super().forward(obs, state)
        return outputs, after


def spec_of(model: Any, head: ActionHead = HEAD) -> CustomSpec:
    return CustomSpec(SPACE, head, model, {})


def test_sequences_and_single_steps_give_the_same_from_the_state_that_the_module_begins_with() -> None:
    spec = spec_of(Remembering)
    assert spec.state_sizes == (16, 1)
    weights = {name: torch.from_numpy(value) for name, value in spec.first_weights(3).items()}
    network: Any = spec.torch_network(weights)
    obs = torch.randn(6, spec.obs_size, generator=torch.Generator().manual_seed(0))
    outputs, values = network.both(obs, None, torch.zeros(2, 17))
    for sequence in range(2):
        state = torch.zeros(1, 17)
        for row in range(3 * sequence, 3 * sequence + 3):
            alone, value = network.both(obs[row : row + 1], None, state)
            inputs, state = network.step(obs[row : row + 1], None, state)
            torch.testing.assert_close(alone[0], outputs[row])
            torch.testing.assert_close(inputs[0], outputs[row])
            torch.testing.assert_close(value[0], values[row])
        # Kept is the difference from the first state: three rows were counted from 100.
        assert float(state[0, -1]) == 3.0
    module = Remembering(SPACE, 2)
    module.load_state_dict(weights)
    # Dicts are laid out by key: the one-hot cue, then the place.
    own, _, _ = module(
        {"cue": obs[None, :3, :3], "place": obs[None, :3, 3:]},
        [torch.full((1, 16), 0.5), torch.full((1, 1), 100.0)],
    )
    torch.testing.assert_close(own[0], outputs[:3])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_a_custom_module_remembers_a_cue(algorithm: Any) -> None:
    model = {"custom_model": Remembering if algorithm is PPO else QRemembering, "max_seq_len": STEPS}
    config: dict[str, Any] = {**CONFIG, "model": model}
    if algorithm is DQN:
        config = {
            "num_envs_per_worker": 8, "seed": 0, "train_batch_size": 128, "training_intensity": 8, "model": model,
            "num_steps_sampled_before_learning_starts": 200,
            "exploration_config": {"epsilon_timesteps": 2000, "final_epsilon": 0.02},
        }  # fmt: skip
    with algorithm(env=recall, config=config) as algo:
        batch = algo.sample()["default_policy"]
        assert not batch["state_in_0"][batch["t"] == 0].any()
        np.testing.assert_array_equal(batch["state_in_1"][:, 0], batch["t"])
        assert algo.inference == {"default_policy": "torch"}
        assert [len(part) for part in algo.get_policy().get_initial_state()] == [16, 1]
        for _ in range(40 if algorithm is PPO else 8):
            result = algo.train()
    assert result["episode_reward_mean"] >= 0.9


NoList = like(Remembering, get_initial_state=lambda self: torch.zeros(3))
Forgetful = like(Remembering, forward=lambda self, obs, state: Remembering.forward(self, obs, state)[:2])


class Widening(Remembering):
    def forward(self, obs: Any, state: list[Tensor]) -> Any:
        outputs, values, after = super().forward(obs, state)
        return outputs, values, [after[0], torch.cat((after[1], after[1]), 1)]


@pytest.mark.parametrize("model", [NoList, Forgetful, Widening])
def test_a_state_that_cannot_be_kept_is_refused_at_once(model: Any) -> None:
    with pytest.raises(ConfigError, match=model.__name__):
        spec_of(model)


@pytest.mark.parametrize("stray", [{"use_lstm": True}, {"use_gru": True}])
def test_use_lstm_is_refused_with_a_custom_module(stray: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="use_lstm"):
        PPO(env=recall, config={"model": {"custom_model": Remembering, **stray}})
