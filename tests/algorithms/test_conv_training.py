"""Learning from images, from the environment to the result: what matters is where a bright patch lies."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.spaces import OutsideSpaceError
from tests.inside import learner
from tests.worlds import Alone, Several

FILTERS = [[8, 4, 2], [8, 3, 1]]
PPO_SETTINGS: dict[str, Any] = {
    "num_envs_per_worker": 8,
    "train_batch_size": 512,
    "sgd_minibatch_size": 64,
    "lr": 1e-3,
    "seed": 1,
    "model": {"conv_filters": FILTERS},
}
DQN_SETTINGS: dict[str, Any] = {
    "num_envs_per_worker": 8,
    "min_sample_timesteps_per_iteration": 512,
    "num_steps_sampled_before_learning_starts": 256,
    "train_batch_size": 32,
    "lr": 1e-3,
    "gamma": 0.5,
    "exploration_config": {"epsilon_timesteps": 1500, "final_epsilon": 0.0},
    "seed": 1,
    "model": {"conv_filters": FILTERS},
}


class Patch(Alone):
    """A bright patch lies anywhere in one quarter of a noisy image; the number of that quarter pays 1, 10 times."""

    length = 10

    def __init__(
        self, context: Any = None, side: int = 12, dtype: Any = np.uint8, masked: bool = False
    ) -> None:
        super().__init__(context)
        self.side, self.dtype, self.masked = side, dtype, masked
        self.image_space = gym.spaces.Box(0, 255 if dtype == np.uint8 else 1.0, (side, side, 1), dtype)
        mask = gym.spaces.MultiBinary(4)
        self.observation_space: Any = self.image_space
        if masked:
            self.observation_space = gym.spaces.Dict({"observation": self.image_space, "action_mask": mask})
        self.action_space = gym.spaces.Discrete(4)

    def see(self) -> Any:
        half = self.side // 2
        self.quarter = int(self.np_random.integers(4))
        image = self.np_random.integers(0, 60, self.image_space.shape)
        y, x = self.np_random.integers(0, half - 2, 2)
        y, x = y + half * (self.quarter // 2), x + half * (self.quarter % 2)
        image[y : y + 3, x : x + 3] = 255
        shown = image.astype(np.uint8) if self.dtype == np.uint8 else (image / 255).astype(self.dtype)
        if not self.masked:
            return shown
        allowed = np.ones(4, np.int8)
        allowed[(self.quarter + 1) % 4] = 0
        return {"observation": shown, "action_mask": allowed}

    def pay(self, action: Any) -> float:
        assert not self.masked or action != (self.quarter + 1) % 4, "a masked action was taken"
        return float(action == self.quarter)


def shares_seen_right(algorithm: Any, env: Patch, looks: int = 200) -> float:
    env.reset(seed=99)
    right = 0
    for _ in range(looks):
        obs = env.see()
        right += algorithm.compute_single_action(obs, explore=False) == env.quarter
    return right / looks


@pytest.mark.slow
@pytest.mark.parametrize("share", [False, True])
def test_ppo_finds_the_patch(share: bool) -> None:
    settings = {**PPO_SETTINGS, "model": {"conv_filters": FILTERS, "vf_share_layers": share}}
    with PPO(env=Patch, config=settings) as algorithm:
        assert algorithm.inference == {"default_policy": "onnx"}
        assert shares_seen_right(algorithm, Patch()) < 0.5
        for _ in range(6):
            algorithm.train()
        assert shares_seen_right(algorithm, Patch()) > 0.9


@pytest.mark.slow
def test_dqn_finds_the_patch() -> None:
    with DQN(env=Patch, config=DQN_SETTINGS) as algorithm:
        assert shares_seen_right(algorithm, Patch()) < 0.5
        for _ in range(2):
            algorithm.train()
        assert algorithm.inference == {"default_policy": "onnx"}
        assert shares_seen_right(algorithm, Patch()) > 0.9


def test_bytes_stay_bytes_from_the_environment_to_the_replay_buffer() -> None:
    with DQN(
        env=lambda context: Patch(context, 24), config={**DQN_SETTINGS, "training_intensity": 1, "model": {}}
    ) as algorithm:
        batch = algorithm.sample()["default_policy"]
        for column in ("obs", "new_obs"):
            assert batch[column].dtype == np.uint8
            assert batch[column].shape[1:] == (576,)
            assert batch[column].max() == 255
        assert batch.segments.next_obs.dtype == np.uint8
        algorithm.train()
        kept = learner(algorithm).replay.state()
        assert kept["column.obs"].dtype == kept["column.next_obs"].dtype == np.uint8
    with PPO(env="CartPole-v1", config={"train_batch_size": 64}) as flat:
        assert flat.sample()["default_policy"]["obs"].dtype == np.float32


class Gallery(Several):
    """One agent sees images, another a short vector, a third images too."""

    possible_agents, length, action_space = ("painter", "critic", "vector"), 6, gym.spaces.Discrete(3)
    observation_spaces = {  # noqa: RUF012
        "painter": gym.spaces.Box(0, 255, (24, 24, 3), np.uint8),
        "critic": gym.spaces.Box(0, 255, (24, 24, 3), np.uint8),
        "vector": gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
    }

    def see(self, agent: str) -> Any:
        return self.observation_spaces[agent].sample()


def test_the_preprocessor_keeps_bytes_only_where_the_space_is_one_image_of_bytes() -> None:
    image = gym.spaces.Box(0, 255, (2, 3, 1), np.uint8)
    mask = gym.spaces.MultiBinary(2)
    picture = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    alone, beside = (
        ObsPreprocessor(image),
        ObsPreprocessor(gym.spaces.Dict({"action_mask": mask, "it": image})),
    )
    for rows in (
        alone([picture, picture])[0],
        alone(np.stack([picture] * 2))[0],
        alone([np.asfortranarray(picture), picture[:, ::-1][:, ::-1]])[0],
        beside([{"action_mask": np.ones(2, np.int8), "it": picture}] * 2)[0],
    ):
        assert rows.dtype == np.uint8
        assert rows.tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert alone.image == beside.image == (2, 3, 1)
    assert ObsPreprocessor(gym.spaces.Tuple([image, mask])).dtype == np.float32
    assert ObsPreprocessor(gym.spaces.Box(0, 255, (2, 3), np.uint8)).dtype == np.float32
    floats = ObsPreprocessor(gym.spaces.Box(0.0, 1.0, (2, 3, 1), np.float64))
    assert floats.dtype == np.float32
    assert floats.image == (2, 3, 1)


def test_numbers_that_are_not_bytes_are_refused_instead_of_wrapping_around() -> None:
    alone = ObsPreprocessor(gym.spaces.Box(0, 255, (2, 2, 1), np.uint8))
    wrong = np.full((3, 2, 2, 1), 300)
    for given in (wrong, list(wrong), np.full((3, 2, 2, 1), 0.5, np.float32)):
        with pytest.raises(OutsideSpaceError, match=r"\(2, 2, 1\)"):
            alone(given)
