"""What users add to a run goes on with it: policies, losses, critics and observations of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv import Policy, PolicySpec
from menv.algorithms import DQN, PPO, Algorithm, PPOPolicy
from tests.checkpoints.runs import REPLAYED, SMALL, by_seat, resumed_twice, trained, weights_of
from tests.worlds import Several

SOON = {"num_steps_sampled_before_learning_starts": 10, "training_intensity": 4}
SHARED = {"fcnet_hiddens": [16], "shared_layers": "trunk"}
LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8}


class Counting(Policy):
    """Takes the legal choice whose number is that of its rows and rewards in this life so far."""

    def get_initial_state(self) -> list[Any]:
        return [np.zeros(1)]

    def compute_actions(self, obs_batch: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        (state,), (_, rewards) = args[0], args[1:3]
        state = state + 1.0 + rewards[:, None]
        legal = [np.flatnonzero(obs["action_mask"]) for obs in obs_batch]
        return [int(own[int(n[0]) % len(own)]) for own, n in zip(legal, state, strict=True)], [state], {}


class Constant(Policy):
    """Answers with parts of a tuple."""

    def compute_actions(self, obs_batch: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        return [(1, np.array([1, 2])) for _ in obs_batch], [], {}


class OwnLoss(PPOPolicy):
    """Trains a module of its own beside the network."""

    def make_modules(self) -> Any:
        return {"extra": torch.nn.Linear(3, 1)}

    def loss(self, batch: Any) -> Any:
        total, told = self.ppo_loss(batch)
        return total + self.modules["extra"](torch.ones(1, 3)).pow(2).sum(), told


class Pausing(Several):
    """Agents that pause, are paid while they do, and die; one has a tuple for an id."""

    possible_agents, length = ("x", "y", ("t", 1)), 40
    observation_space = gym.spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3])))

    def living(self, until: int) -> Any:
        return [agent for agent in self.possible_agents if agent != "y" or self.at < until]

    def observe(self) -> Any:
        self.acting = [agent for agent in self.living(19) if self.rng.random() < 0.6] if self.at else ["x"]
        return {agent: self.rng.normal(size=2).clip(-9, 9).astype(np.float32) for agent in self.acting}

    def pay(self, actions: Any) -> Any:
        paid = sum(int(action[0]) + int(action[1].sum()) for action in actions.values())
        return dict.fromkeys(self.living(20), float(paid))

    def dead(self, actions: Any) -> Any:
        return ["y"] if self.at == 19 else []

    def infos(self) -> Any:
        return {agent: {"at": self.at} for agent in self.acting}


def shown(agent_obs: Any, **kwargs: Any) -> Any:
    return agent_obs


def two(**policies: Any) -> dict[str, Any]:
    return {"policies": {"a": None, "b": None, **policies}, "policy_mapping_fn": by_seat}


def to_constant(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return "constant" if agent_id == "y" else "net"


RUNS: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "a policy with a state": (PPO, "tictactoe", {**SMALL, "multiagent": two(b=Counting)}),
    "a loss and a module": (PPO, "tictactoe", {**SMALL, "multiagent": two(a=OwnLoss)}),
    "a central critic": (PPO, "tictactoe", {**SMALL, "critic_obs": "all_agents", "multiagent": two()}),
    "shared layers": (DQN, "tictactoe", {**REPLAYED, "model": SHARED, "multiagent": two()}),
    "shared layers, ids in another order": (
        PPO, "tictactoe",
        {**SMALL, "model": SHARED, "multiagent": {"policies": ["b", "a"], "policy_mapping_fn": by_seat}},
    ),
    "two algorithms": (
        PPO, "tictactoe", {**SMALL, "multiagent": two(b=PolicySpec(algorithm="DQN", config=SOON))},
    ),
    "an observation function": (
        PPO, "tictactoe", {**SMALL, "multiagent": {**two(b=Counting), "observation_fn": shown}},
    ),
    "agents that pause": (PPO, Pausing, {**SMALL, "model": LSTM, "multiagent": {"count_steps_by": "agent_steps"}}),
    "actions in parts": (
        PPO, Pausing,
        {**SMALL, "multiagent": {"policies": {"net": None, "constant": Constant}, "policy_mapping_fn": to_constant}},
    ),
}  # fmt: skip


@pytest.mark.slow_unless("a policy with a state", "shared layers*", "actions in parts")
@pytest.mark.parametrize("name", RUNS)
def test_what_users_add_continues_with_a_resumed_run(name: str, tmp_path: Path) -> None:
    kind, env, config = RUNS[name]
    with kind(env=env, config=config) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        with kind.from_checkpoint(tmp_path, {"multiagent": config["multiagent"]}, env=env) as again:
            assert weights_of(again) == weights_of(algo)
    resumed_twice(kind, tmp_path, 2, config={"multiagent": config["multiagent"]}, env=env)
