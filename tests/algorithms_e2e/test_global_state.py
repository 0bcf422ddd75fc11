"""The global state: critics and mixing networks see what `state()` said at the moment of each observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from mpe2 import simple_spread_v3

from menv.algorithms import PPO, QMIX, SAC
from menv.cli.main import main
from menv.errors import ContractError
from tests.algorithms_e2e.shifts import NUMBERS, Shifts
from tests.algorithms_e2e.test_teams import SMALL
from tests.inside import policy_set
from tests.worlds import InArrays

PROCESSES = {"engine": "process"}
STATE = {**SMALL, "critic_obs": "state"}


class Watched(Shifts):
    """`Shifts` with a state: the env step, and ten times the env step."""

    def state(self) -> Any:
        return np.array([[self.at], [10 * self.at]])


class Together(Watched):
    """All three agents act in each of the five steps."""

    def shown(self) -> Any:
        return "abc"

    def dead(self, actions: Any) -> Any:
        return ""


class Alike(Together):
    """The same without a state."""

    def state(self) -> Any:
        raise NotImplementedError


def by_agent(batch: Any, column: str) -> dict[str, list[Any]]:
    rows = batch["default_policy"]
    return {agent: rows[column][rows["obs"][:, 0] == number].tolist() for agent, number in NUMBERS.items()}


@pytest.mark.parametrize(
    "where", [{}, {**PROCESSES, "num_workers": 1}, {**PROCESSES, "remote_worker_envs": True}], ids=str
)
def test_a_row_has_the_state_of_its_own_observation_wherever_agents_come_and_go(
    where: dict[str, Any],
) -> None:
    config = {**STATE, **where, "env_config": {"truncate": True}}
    with PPO(env=Watched, config=config) as algo:
        batch = algo.sample()
        seen, after = by_agent(batch, "critic_obs"), by_agent(batch, "next_global_state")
        assert np.isfinite(algo.train()["info"]["learner"]["default_policy"]["learner_stats"]["vf_loss"])
    # "b" pauses in step 2, "a" dies in step 3 and is back in step 4, and all see the state of step 5 at the end.
    steps = {"a": [0, 1, 2, 4], "b": [0, 1, 3, 4], "c": [1, 2, 3, 4]}
    nexts = {"a": [1, 2, 3, 5], "b": [1, 3, 4, 5], "c": [2, 3, 4, 5]}
    assert seen == {agent: [[NUMBERS[agent], at, at, 10 * at] for at in steps[agent]] for agent in steps}
    assert after == {agent: [[at, 10 * at] for at in nexts[agent]] for agent in nexts}


def test_where_a_fragment_is_cut_the_next_state_is_that_of_the_next_observation() -> None:
    with PPO(env=Watched, config={**STATE, "rollout_fragment_length": 2, "agent_ids": True}) as algo:
        cut, rest = algo.sample(), algo.sample()
    assert by_agent(cut, "next_global_state")["a"][-1] == by_agent(rest, "global_state")["a"][0]
    codes = {"a": [1, 0, 0], "b": [0, 1, 0], "c": [0, 0, 1]}
    for agent, rows in by_agent(cut, "critic_obs").items():
        steps = [row[1] for row in rows]
        assert rows == [[NUMBERS[agent], step, *codes[agent], step, 10 * step] for step in steps]


class Worlds(InArrays):
    """Two worlds of two agents for two steps. An agent sees its number, and the state is the env step and the world."""

    cut = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(0, 9, (1,)))
        space = gym.spaces.Box(-1, 1, (1,)) if config.get("continuous") else gym.spaces.Discrete(2)
        self.action_spaces = dict.fromkeys("ab", space)

    def observe(self) -> Any:
        return np.tile(np.array([[[1], [2]]], np.float32), (2, 1, 1))

    def state(self) -> Any:
        return np.array([[self.at, world] for world in range(2)])

    def infos(self) -> Any:
        told = super().infos()
        return {**told, "final_state": self.state()} if told and not self.config.get("forgets") else told


def test_worlds_that_step_as_arrays_have_states_too() -> None:
    with PPO(env=Worlds, config={**STATE, "rollout_fragment_length": 2, "train_batch_size": 4}) as algo:
        rows = algo.sample()["default_policy"]
        algo.train()
    assert rows["critic_obs"].tolist() == [
        [agent, at, world] for world in (0, 1) for agent in (1, 2) for at in (0, 1)
    ]
    assert rows["next_global_state"].tolist() == [
        [at, world] for world in (0, 1) for _ in "ab" for at in (1, 2)
    ]
    forgets = {**STATE, "env_config": {"forgets": True}}
    with PPO(env=Worlds, config=forgets) as algo, pytest.raises(ContractError, match="final_state"):
        algo.train()


FEW = {"min_sample_timesteps_per_iteration": 8, "num_steps_sampled_before_learning_starts": 8, "seed": 1}


def test_critics_of_sac_see_the_state() -> None:
    config = {**FEW, "critic_obs": "state", "env_config": {"continuous": True}, "rollout_fragment_length": 2}
    with SAC(env=Worlds, config={**config, "train_batch_size": 8, "training_intensity": 8}) as algo:
        rows = algo.sample()["default_policy"]
        assert rows["next_critic_obs"][:, 1:].tolist() == rows["next_global_state"].tolist()
        for _ in range(3):
            result = algo.train()
        assert np.isfinite(result["info"]["learner"]["default_policy"]["learner_stats"]["critic_loss"])


@pytest.mark.parametrize("env", [Together, Worlds])
def test_the_mixing_network_of_qmix_reads_the_state_behind_the_members_observations(env: Any) -> None:
    config = {**FEW, "rollout_fragment_length": 4, "env_config": {"truncate": True}}
    with QMIX(env=env, config=config) as algo:
        rows = algo.sample()["default_policy"]
        networks: Any = algo.get_policy()
        members = len(networks.action_space.spaces)
        own = 2 if env is Together else 1
        states = rows["obs"][:, members * own : members * own + 2]
        steps = [0, 1, 2, 3] if env is Together else [0, 1, 0, 1] * 2
        assert states[:, 0].tolist() == steps
        learner: Any = policy_set(algo).learners.nets[0].network
        assert learner.layout.state == (members * own, members * own + 1)
        for _ in range(3):
            algo.train()


def test_the_summary_says_what_the_critic_sees(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--stop", "num_env_steps_sampled=64", "--no-save", "--no-zoo", "--config", "train_batch_size=64"]
    for env, run, seen in (
        (f"{__name__}:Together", "MAPPO", "state() of the environment, 2 numbers"),
        (f"{__name__}:Alike", "MAPPO", "the observations of all agents"),
        (f"{__name__}:Alike", "QMIX", "the observations of all agents"),
        (f"{__name__}:Together", "QMIX", "state() of the environment, 2 numbers"),
    ):
        assert main(["train", env, "--run", run, *small]) == 0
        assert f"global state: {seen}" in capsys.readouterr().out
    assert main(["train", f"{__name__}:Alike", "--run", "VDN", *small]) == 0
    assert "global state" not in capsys.readouterr().out


def test_games_of_pettingzoo_have_their_own_state() -> None:
    env = simple_spread_v3.parallel_env()
    env.reset()
    size = env.state().size
    config = {"critic_obs": "state", "train_batch_size": 25, "sgd_minibatch_size": 25}
    with PPO(env="pettingzoo:mpe/simple_spread_v3", config=config) as algo:
        rows = algo.sample()["default_policy"]
    # Its state is what all three agents see.
    states = rows["global_state"].reshape(3, -1, size)
    np.testing.assert_array_equal(states[0], np.concatenate(rows["obs"].reshape(3, -1, size // 3), 1))
