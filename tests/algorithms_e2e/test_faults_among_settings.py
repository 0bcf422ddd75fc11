"""Environments that raise, under everything that looks at episodes, trajectories or agents in its own way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks
from menv.algorithms import DQN, PPO, QMIX, Algorithm
from menv.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from tests.algorithms_e2e.test_faults import LENGTH, OBS, Rickety, RicketyTeam
from tests.checkpoints.runs import REPLAYED, SMALL
from tests.inside import metrics
from tests.wrappers_pettingzoo.small_games import Together, Turns

pytestmark = pytest.mark.filterwarnings("ignore::menv.errors.EnvFaultWarning")


class RicketyPair(RicketyTeam):
    """Both agents act in every step, and what they are shown holds the step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed=seed)
        return dict.fromkeys(self.possible_agents, obs["a"]), infos

    def step(self, action_dict: Any) -> Any:
        assert set(action_dict) == {"a", "b"}
        (obs,), rewards, *rest = (lambda first, *more: (first.values(), *more))(*super().step(action_dict))
        return dict.fromkeys(self.possible_agents, obs), rewards, *rest


def grouped(context: Any) -> Any:
    both = gym.spaces.Tuple([OBS, OBS]), gym.spaces.Tuple([Rickety.action_space] * 2)
    return RicketyPair().with_agent_groups({"pair": ["a", "b"]}, *both)


class Looks(DefaultCallbacks):
    """Looks at the pieces of all trajectories of an episode."""

    def on_postprocess_trajectory(self, *, episode: Any, postprocessed_batch: Any, **kwargs: Any) -> None:
        assert set(postprocessed_batch["eps_id"].tolist()) == {episode.episode_id}


def shown(agent_obs: Any, episode: Any, **kwargs: Any) -> Any:
    return {agent: obs * 0.5 for agent, obs in agent_obs.items()}


MEMORY = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8}
RUNS: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "ppo with a memory": (PPO, RicketyTeam, {**SMALL, "model": MEMORY}),
    "ppo in whole episodes": (PPO, Rickety, {**SMALL, "batch_mode": "complete_episodes"}),
    "ppo that stacks frames": (PPO, RicketyTeam, {**SMALL, "agent_connectors": ["FrameStackAgentConnector"]}),
    "ppo with a critic of all": (PPO, RicketyPair, {**SMALL, "critic_obs": "all_agents"}),
    "ppo that is looked at": (PPO, RicketyTeam, {**SMALL, "callbacks": Looks}),
    "ppo with an observation_fn": (PPO, RicketyPair, {**SMALL, "multiagent": {"observation_fn": shown}}),
    "dqn": (DQN, Rickety, {**REPLAYED, "n_step": 3}),
    "dqn with a memory": (DQN, RicketyTeam, {**REPLAYED, "model": {**MEMORY, "max_seq_len": 4}}),
    "qmix": (QMIX, grouped, REPLAYED),
}  # fmt: skip


@pytest.mark.slow_unless("ppo with a memory", "ppo in whole episodes", "dqn with a memory", "qmix")
@pytest.mark.parametrize("name", RUNS)
def test_training_continues_whatever_is_set(name: str) -> None:
    kind, env, config = RUNS[name]
    with kind(env=env, config=config) as algo:
        results = [algo.train() for _ in range(5)]
    assert results[-1]["faulty_episodes_total"] > 2
    assert {result["episode_len_mean"] for result in results} == {LENGTH}
    assert {result["episode_reward_min"] for result in results} == {LENGTH}
    assert all(np.isfinite(array).all() for own in algo.get_weights().values() for array in own.values())


def test_rows_of_a_batch_are_never_those_whose_step_raised() -> None:
    """Every row's `new_obs` is what the environment showed after it, in the same episode."""

    class Numbered(Rickety):
        episodes = 0

        def reset(self, **kwargs: Any) -> Any:
            obs, info = super().reset(**kwargs)
            Numbered.episodes += 1
            self.number_of_episode = Numbered.episodes / 1000
            return self.number(obs), info

        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return self.number(obs), *rest

        def number(self, obs: Any) -> Any:
            return np.array([self.number_of_episode, self.at / 10, obs[0]], np.float32)

    with PPO(env=Numbered, config={**SMALL, "rollout_fragment_length": 50}) as algo:
        batches = [algo.sample()["default_policy"] for _ in range(6)]
        assert metrics(algo).summary()["faulty_episodes_total"] > 2
    rows: Counter[Any] = Counter()
    for batch in batches:
        np.testing.assert_array_equal(batch["obs"][:, 0], batch["new_obs"][:, 0])
        np.testing.assert_allclose(batch["new_obs"][:, 1] - batch["obs"][:, 1], 0.1, atol=1e-6)
        rows.update(map(tuple, batch["obs"].tolist()))
    assert set(rows.values()) == {1}


@pytest.mark.parametrize(("game", "wrapper"), [(Turns, PettingZooEnv), (Together, ParallelPettingZooEnv)])
def test_pettingzoo_games_that_raise_cost_their_episode_too(game: Any, wrapper: Any) -> None:
    made: list[Any] = []

    class Raises(game):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__({"x": (8, "terminated"), "y": (8, "terminated")})
            self.fails = len(made) in (0, 2)
            made.append(self)

        def step(self, action: Any) -> Any:
            if self.fails and self.steps == 4:
                raise RuntimeError("the table fell over")
            return super().step(action)

    with PPO(env=lambda context: wrapper(Raises()), config=SMALL) as algo:
        result = algo.train()
    assert result["faulty_episodes_total"] == sum(env.fails for env in made) > 0
    assert result["first_fault"].startswith("RuntimeError: the table fell over in step of env 0 (")
    assert result["episode_len_mean"] == 8
