"""What learners are handed, against the papers' formulas over the lives that an environment itself wrote down.

The references are in plain float64 numpy and know nothing of ledgers, fragments and batches but which rows are in one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from menv.algorithms import DQN, PPO
from menv.base_env import AgentId
from menv.multi_agent_env import AgentDict, StepDicts
from menv.sample_batch import SampleBatch
from tests.algorithms_e2e.comings import Comings
from tests.inside import learner

Floats = npt.NDArray[np.float64]
LSTM: dict[str, Any] = {"use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4}


@dataclass
class Life:
    """One life of an agent; `obs` holds what came after the last action too, if that was shown."""

    obs: list[Any] = field(default_factory=list)
    paid: list[float] = field(default_factory=list)
    terminated: bool = False


class Written(Comings):
    """Writes down each life: what was observed, and what was paid until the next observation."""

    lives: ClassVar[list[Life]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[AgentDict, AgentDict]:
        obs, infos = super().reset(seed=seed, options=options)
        self.now: dict[AgentId, Life] = {}
        for agent, shown in obs.items():
            self.begin(agent).obs.append(shown)
        return obs, infos

    def begin(self, agent: AgentId) -> Life:
        self.now[agent] = Life()
        self.lives.append(self.now[agent])
        return self.now[agent]

    def step(self, action_dict: AgentDict) -> StepDicts:
        for agent in action_dict:
            self.now[agent].paid.append(0.0)
        obs, rewards, terminateds, truncateds, infos = super().step(action_dict)
        for agent, reward in rewards.items():
            self.now[agent].paid[-1] += reward
        for agent, shown in obs.items():
            (self.now.get(agent) or self.begin(agent)).obs.append(shown)
        for agent, life in list(self.now.items()):
            life.terminated = bool(terminateds.get(agent, terminateds["__all__"]))
            if life.terminated or truncateds["__all__"]:
                del self.now[agent]
        return obs, rewards, terminateds, truncateds, infos


def whose(batch: SampleBatch) -> list[tuple[Life, int]]:
    """Return the life of each row, and its number there."""
    known = {obs.tobytes(): (life, row) for life in Written.lives for row, obs in enumerate(life.obs)}
    return [known[obs.tobytes()] for obs in batch["obs"]]


def values(weights: dict[str, Floats], life: Life) -> Floats:
    """Return what the value network makes of a life, from its first observation on."""
    x = np.array(life.obs, np.float64)
    x = np.tanh(x @ weights["value.0.weight"] + weights["value.0.bias"])
    if "value.cell.input.weight" in weights:
        h = c = np.zeros(len(weights["value.cell.state.weight"]))
        rows = []
        for row in x:
            gates = row @ weights["value.cell.input.weight"] + weights["value.cell.input.bias"]
            i, f, g, o = np.split(gates + h @ weights["value.cell.state.weight"], 4)
            c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h = np.tanh(c) / (1 + np.exp(-o))
            rows.append(h)
        x = np.array(rows)
    found: Floats = (x @ weights["value.out.weight"] + weights["value.out.bias"])[:, 0]
    return found


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("memory", [{}, LSTM], ids=["without memory", "LSTM"])
def test_advantages_belong_to_the_trajectories_that_were_played(
    memory: dict[str, Any], batch_mode: Any
) -> None:
    Written.lives.clear()
    config = {
        "num_envs_per_worker": 2, "rollout_fragment_length": 7, "batch_mode": batch_mode, "seed": 3, "gamma": 0.9,
        "lambda": 0.8, "model": {"fcnet_hiddens": [5], "fcnet_activation": "tanh", **memory},
    }  # fmt: skip
    ends = set()
    with PPO(env=Written, config=config) as algorithm:
        weights = {
            name: np.asarray(value, np.float64)
            for name, value in algorithm.get_weights()["default_policy"].items()
        }
        for _ in range(5):
            batch = algorithm.sample()["default_policy"]
            rows = whose(batch)
            here = {(id(life), row): place for place, (life, row) in enumerate(rows)}
            wanted: dict[tuple[int, int], float] = {}
            for life, row in sorted(rows, key=lambda one: -one[1]):
                worth, key, after = values(weights, life), (id(life), row), (id(life), row + 1)
                over = row + 1 == len(life.paid) and life.terminated
                ends.add("terminated" if over else "goes on" if after in here else "cut or truncated")
                delta = life.paid[row] + (0.0 if over else 0.9 * worth[row + 1]) - worth[row]
                wanted[key] = delta + 0.9 * 0.8 * wanted.get(after, 0.0)
                assert batch["vf_preds"][here[key]] == pytest.approx(worth[row], abs=1e-5)
                assert batch["advantages"][here[key]] == pytest.approx(wanted[key], abs=1e-5)
                assert batch["value_targets"][here[key]] == pytest.approx(wanted[key] + worth[row], abs=1e-5)
    assert ends == {"terminated", "goes on", "cut or truncated"}


@pytest.mark.each_value
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_replayed_are_steps_of_the_lives_that_were_lived(n: int, batch_mode: Any) -> None:
    Written.lives.clear()
    config = {
        "num_envs_per_worker": 2, "rollout_fragment_length": 7, "batch_mode": batch_mode, "seed": 3, "gamma": 0.9,
        "n_step": n, "train_batch_size": 8, "training_intensity": 1, "num_steps_sampled_before_learning_starts": 0,
        "min_sample_timesteps_per_iteration": 60,
    }  # fmt: skip
    with DQN(env=Written, config=config) as algorithm:
        algorithm.train()
        columns = {
            name: learner(algorithm).replay.kept(name) for name in ("obs", "returns", "discounts", "next_obs")
        }
    known = {obs.tobytes(): (life, row) for life in Written.lives for row, obs in enumerate(life.obs)}
    reached = set()
    for obs, found, discount, after in zip(*columns.values(), strict=True):
        life, row = known[obs.tobytes()]
        lives_on = discount > 0.0
        # How many rewards a target counts, where its life or its fragment ends before n.
        steps = known[after.tobytes()][1] - row if lives_on else len(life.paid) - row
        assert 1 <= steps <= n
        reached.add(steps)
        assert known[after.tobytes()][0] is life
        assert lives_on == (not life.terminated or row + steps < len(life.paid))
        assert discount == pytest.approx(0.9**steps if lives_on else 0.0)
        wanted = sum(0.9**lag * life.paid[row + lag] for lag in range(steps))
        assert found == pytest.approx(wanted, abs=1e-5)
    assert reached == set(range(1, n + 1))
