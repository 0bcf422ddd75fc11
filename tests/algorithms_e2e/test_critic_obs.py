"""`critic_obs`: what the value network sees of everybody, and that nothing of it acts."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from menv import Policy, PolicySpec, SampleBatch
from menv.algorithms import PPO, Algorithm
from menv.envs import TicTacToe
from tests.algorithms_e2e.shifts import NUMBERS, Shifts, mapped_to_themselves
from tests.worlds import Several

Rows = npt.NDArray[Any]
SMALL: dict[str, Any] = {"sgd_minibatch_size": 8, "num_sgd_iter": 2, "seed": 1}
APART = {"policies": ["a", "b", "c"], "policy_mapping_fn": mapped_to_themselves}
NOBODY = [0.0] * 3


def cell(agent: str, step: int) -> list[float]:
    """Return what others see of an agent of `Shifts`."""
    return [NUMBERS[agent], float(step), 1.0]


def values_of(algo: Algorithm, policy_id: str, rows: Rows) -> Rows:
    """Return what a policy's value network says of critic rows."""
    backend: Any = algo.get_policy(policy_id).networks.backend  # type: ignore[attr-defined]
    index = algo.get_policy(policy_id).index  # type: ignore[attr-defined]
    values: Rows = backend.values(index, np.asarray(rows, np.float32))
    return values


def steps_of(batch: Any) -> dict[str, list[int]]:
    """Return the steps in which each agent acted; the fragment has one episode."""
    return {agent: own["obs"][:, 1].astype(int).tolist() for agent, own in batch.policy_batches.items()}


def expected_row(agent: str, step: int, acted: dict[str, list[int]]) -> list[float]:
    """Return the critic's row of an agent that acts, in an episode that was seen from beginning to end.

    "b" pauses in step 2. "a" is dead in step 3, and "c" comes in step 1.
    """
    row = [NUMBERS[agent], float(step)]
    for other in "abc".replace(agent, ""):
        if step in acted[other]:
            row += cell(other, step)
        else:
            row += cell("b", 1) if other == "b" else NOBODY
    return row


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("inference", ["onnx", "torch"])
def test_a_critic_sees_which_agents_are_alive(truncate: bool, inference: str) -> None:
    config = {
        **SMALL, "rollout_fragment_length": 5, "critic_obs": "all_agents", "multiagent": APART,
        "env_config": {"truncate": truncate}, "inference": inference,
    }  # fmt: skip
    with PPO(env=Shifts, config=config) as algo:
        batch = algo.sample()
        acted = steps_of(batch)
        assert acted == {"a": [0, 1, 2, 4], "b": [0, 1, 3, 4], "c": [1, 2, 3, 4]}
        for agent in "abc":
            own = batch[agent]
            rows = [expected_row(agent, step, acted) for step in acted[agent]]
            assert own["critic_obs"].tolist() == rows
            assert own["vf_preds"] == pytest.approx(values_of(algo, agent, own["critic_obs"]), abs=1e-6)
            worth = 0.0
            if truncate:
                # Everybody is shown step 5, in a row of the same form as those that are learned.
                after = [NUMBERS[agent], 5.0]
                for other in "abc".replace(agent, ""):
                    after += cell(other, 5)
                worth = float(values_of(algo, agent, np.array([after, after]))[0])
                assert own["next_vf_preds"][-1] == pytest.approx(worth, abs=1e-6)
            target = own["rewards"][-1] + 0.99 * worth
            assert own["value_targets"][-1] == pytest.approx(target, abs=1e-5)


def test_where_a_fragment_is_cut_a_critic_sees_a_row_like_the_others() -> None:
    config = {**SMALL, "rollout_fragment_length": 2, "critic_obs": "all_agents", "multiagent": APART}
    with PPO(env=Shifts, config=config) as algo:
        batch = algo.sample()
        # "b" pauses in step 2: its row of step 1 is held.
        assert steps_of(batch) == {"a": [0, 1], "b": [0], "c": [1]}
        first, second = batch["a"]["critic_obs"].tolist()
        assert first == [1.0, 0.0, *cell("b", 0), *NOBODY]
        assert second == [1.0, 1.0, *cell("b", 1), *cell("c", 1)]
        after = {
            "a": [1.0, 2.0, *cell("b", 1), *cell("c", 2)],
            "b": [2.0, 1.0, *cell("a", 1), *cell("c", 1)],
            "c": [3.0, 2.0, *cell("a", 2), *cell("b", 1)],
        }
        for agent, row in after.items():
            worth = float(values_of(algo, agent, np.array([row, row]))[0])
            assert batch[agent]["next_vf_preds"][-1] == pytest.approx(worth, abs=1e-6)
        # The next fragment learns from the row of "a" that this one bootstrapped from.
        assert algo.sample()["a"]["critic_obs"][0].tolist() == after["a"]


class Counting(Several):
    """Two agents see the step, divided by 10 and by 5, and are paid 1 in each."""

    possible_agents, length = ("a", "b"), 5
    observation_space, action_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.cut = self.config["truncate"]

    def see(self, agent: str) -> Any:
        return np.array([self.at / (10 if agent == "a" else 5)], np.float32)

    def pay(self, actions: Any) -> Any:
        return dict.fromkeys(actions, 1.0)


def remembered(step: int) -> float:
    """Return the memory of a critic whose update gate is 1/2, after the rows of steps 0 to `step`.

    Its reset gate is 1/2, and it adds up both observations, 0.3 of a step: h' = h / 2 + tanh(0.3 t + h / 2) / 2.
    """
    h = 0.0
    for t in range(step + 1):
        h = h / 2 + math.tanh(0.3 * t + h / 2) / 2
    return h


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("inference", ["onnx", "torch"])
def test_a_recurrent_critic_remembers_the_rows_of_its_episode_across_fragments(
    truncate: bool, inference: str
) -> None:
    config = {
        **SMALL, "rollout_fragment_length": 2, "critic_obs": "all_agents", "env_config": {"truncate": truncate},
        "model": {"fcnet_hiddens": [], "use_gru": True, "lstm_cell_size": 1}, "inference": inference,
    }  # fmt: skip
    with PPO(env=Counting, config=config) as algo:
        weights = algo.get_weights()["default_policy"]
        own = {name: np.zeros_like(value) for name, value in weights.items() if name.startswith("value.")}
        # Gates are reset, update, candidate; the critic's row is an observation, the other one, and a flag.
        own["value.cell.input.weight"][:2, 2] = 1.0
        own["value.cell.state.weight"][0, 2] = 1.0
        own["value.out.weight"][:] = 2.0
        algo.set_weights({"default_policy": {**weights, **own}})
        for steps in ([0, 1], [2, 3], [0, 4], [1, 2]):
            batch = algo.sample()["default_policy"]
            ends = batch.segments.ends - 1
            assert sorted(batch["t"].tolist()) == sorted([*steps, *steps])
            wanted = [2.0 * remembered(step) for step in batch["t"].tolist()]
            assert batch["vf_preds"] == pytest.approx(wanted, abs=1e-6)
            for row in ends.tolist():
                step, over = int(batch["t"][row]), bool(batch["terminateds"][row])
                worth = 0.0 if over else 2.0 * remembered(step + 1)
                assert batch["value_targets"][row] == pytest.approx(1.0 + 0.99 * worth, abs=1e-5)


class Resting(Several):
    """Four agents that pause, die and return as the dice of the episode say; all see their number and the step."""

    possible_agents, length, cut = tuple("abcd"), 20, True
    observation_space, action_space = gym.spaces.Box(0.0, 50.0, (2,), np.float32), gym.spaces.Discrete(3)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.dice, self.alive = np.random.default_rng(0), set[str]()

    def observe(self) -> Any:
        self.alive = self.alive if self.at else {"a", "b", "c"}
        chosen = [agent for agent in sorted(self.alive) if self.dice.random() < 0.5] or [min(self.alive)]
        return {agent: np.array([ord(agent) - 96, self.at], np.float32) for agent in chosen}

    def pay(self, actions: Any) -> Any:
        return {}

    def dead(self, actions: Any) -> Any:
        dead = {agent for agent in actions if agent != "a" and self.dice.random() < 0.1}
        if self.at > 3 and self.dice.random() < 0.3:
            self.alive |= {"d", "b"} - dead
        self.alive -= dead
        return dead


ENVS: dict[str, Any] = {"resting": Resting, "turns": TicTacToe, "kuhn": "openspiel:kuhn_poker"}


def critic_rows(env: str, fragment: int, rows: int, **more: Any) -> dict[Any, list[float]]:
    """Return what critics see, by episode, agent and env step."""
    policies = {"policies": ["all"], "policy_mapping_fn": lambda agent_id, *args, **kw: "all"}
    config = {**SMALL, "critic_obs": "all_agents", "multiagent": policies, "num_envs_per_worker": 1, **more}
    found: dict[Any, list[float]] = {}
    with PPO(env=ENVS[env], config={**config, "rollout_fragment_length": fragment}) as algo:
        while len(found) < rows:
            batch = algo.sample().policy_batches.get("all")
            if batch is None:
                continue
            keys = zip(
                batch["eps_id"].tolist(), batch["agent_index"].tolist(), batch["env_t"].tolist(), strict=True
            )
            found.update(zip(keys, batch["critic_obs"].tolist(), strict=True))
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("more", [{}, {"num_workers": 1}, {"batch_mode": "complete_episodes"}], ids=str)
def test_where_fragments_end_changes_nothing_that_a_critic_sees(env: str, more: dict[str, Any]) -> None:
    whole = critic_rows(env, 200, 200)
    for fragment in (4,) if "num_workers" in more else (1, 2, 3, 4, 7):
        cut = critic_rows(env, fragment, 150, **more)
        assert len(cut.keys() & whole.keys()) > 100
        for key in cut.keys() & whole.keys():
            assert cut[key] == whole[key], (fragment, key)


def test_a_critic_of_a_game_of_turns_sees_the_newest_observation_of_the_other_player() -> None:
    rows, compared = critic_rows("turns", 4, 60), 0
    for (episode, agent, step), row in rows.items():
        # 18 own numbers, then 18 of the other player and a flag.
        before = rows.get((episode, 1 - agent, step - 1), [0.0] * 18)
        if step == 0 or any(before):
            assert row[18:] == [*before[:18], float(step > 0)]
            compared += step > 0
    assert compared > 30


BOX: Any = gym.spaces.Box(0.0, 9.0, (1,), np.float32)


class Counts(Policy):
    """Says 6 of {5, 6} in every odd env step."""

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        return [np.int64(5 + int(obs[0]) % 2) for obs in obs_batch], [], {}


class Mixed(Several):
    """Agents of two kinds of observations and four of actions, for three steps; everybody sees the step."""

    possible_agents, length = "pqrs", 3
    observation_spaces = dict.fromkeys("prs", BOX) | {"q": gym.spaces.Discrete(4)}
    action_spaces = dict.fromkeys("pr", gym.spaces.Discrete(2)) | {
        "q": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
        "s": gym.spaces.Discrete(2, start=5),
    }

    def see(self, agent: str) -> Any:
        return self.at if agent == "q" else np.array([self.at], np.float32)


def test_agents_with_equal_observations_are_adjacent_in_the_critics_input() -> None:
    policies: dict[str, Any] = {"pair": None, "q": None, "s": PolicySpec(Counts)}
    homes = {"p": "pair", "r": "pair", "q": "q", "s": "s"}
    multiagent = {"policies": policies, "policy_mapping_fn": lambda agent_id, **kw: homes[agent_id]}
    config = {
        **SMALL, "rollout_fragment_length": 3, "train_batch_size": 30, "critic_obs": "all_agents",
        "multiagent": multiagent,
    }  # fmt: skip
    with PPO(env=Mixed, config=config) as algo:
        batch = algo.sample()
        assert algo.get_weights(["q"])["q"]["value.0.weight"].shape[0] == 4 + 3 * 2
        assert algo.get_weights(["q"])["q"]["policy.0.weight"].shape[0] == 4
        algo.train()
    pair, q, codes = batch["pair"], batch["q"], np.eye(4)
    for step in range(3):
        clock = [step, 1.0]
        for index in (0, 2):
            row = pair["critic_obs"][pair["agent_index"] == index][step]
            assert row.tolist() == [step, *clock, *clock, *codes[step], 1.0]
        assert q["critic_obs"][step].tolist() == [*codes[step], *clock, *clock, *clock]


def count_and_clock(batch: SampleBatch, others: Any, episode: Any) -> Rows:
    """Return how many others there are, and the step, of each row."""
    return np.stack((np.full(batch.count, len(others)), batch["obs"][:, 1]), 1)


def count_and_clock_and_next(batch: SampleBatch, others: Any, episode: Any) -> Rows:
    """Return the same, and what comes after the rows."""
    return np.concatenate((count_and_clock(batch, others, episode), [[len(others), 7.5]]))


@pytest.mark.parametrize("tells_next", [False, True])
def test_a_function_says_what_a_critic_sees(tells_next: bool) -> None:
    critic = count_and_clock_and_next if tells_next else count_and_clock
    own = PolicySpec(config={"critic_obs": critic, "critic_obs_size": 2})
    config = {
        **SMALL,
        "num_envs_per_worker": 2,
        "rollout_fragment_length": 2,
        "train_batch_size": 40,
        "multiagent": {**APART, "policies": {"a": own, "b": None, "c": None}},
    }
    with PPO(env=Shifts, config=config) as algo:
        batch = algo.sample()
        # Two environments, so two pieces.
        assert batch["a"]["critic_obs"].tolist() == [[2.0, 0.0], [2.0, 1.0]] * 2
        assert "critic_obs" not in batch["b"]
        values = values_of(algo, "a", np.array([[2.0, 0.0], [2.0, 1.0], [2.0, 7.5]]))
        assert batch["a"]["vf_preds"] == pytest.approx([*values[:2], *values[:2]], abs=1e-6)
        # What comes after is worth as much as the last row unless the function tells.
        last = values[2] if tells_next else values[1]
        assert batch["a"]["next_vf_preds"] == pytest.approx([values[1], last] * 2, abs=1e-6)
        before = algo.get_weights(["a"])["a"]["value.0.weight"]
        assert before.shape == (2, 64)
        algo.train()
        assert not np.array_equal(before, algo.get_weights(["a"])["a"]["value.0.weight"])
