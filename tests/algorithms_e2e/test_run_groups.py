"""QMIX without wrapping: the run groups agents with equal spaces, and each member acts alone afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import Policy, local_policy_inference
from menv.algorithms import PPO, QMIX
from menv.cli.main import main
from menv.envs import TwoStepGame
from menv.errors import ConfigError, ContractError
from menv.playing.game import Game
from menv.tracking import Run
from tests.algorithms_e2e.test_qmix import GROUP, QUICK
from tests.worlds import InArrays, Several

NO_EXPLORATION = {"evaluation_duration": 4, "evaluation_config": {"explore": False}}
PROCESSES = {"engine": "process", "num_envs_per_worker": 2, "rollout_fragment_length": 4}


class Plain(TwoStepGame):
    """The game without a global state."""

    def state(self) -> Any:
        raise NotImplementedError


def grouped(context: Any) -> Any:
    return Plain(context).with_agent_groups(GROUP)


@pytest.mark.parametrize(
    "where", [{}, {**PROCESSES, "num_workers": 1}, {**PROCESSES, "remote_worker_envs": True}]
)
def test_qmix_groups_agents_with_equal_spaces_and_says_what_the_team_earns(where: dict[str, Any]) -> None:
    config = {**QUICK, "min_sample_timesteps_per_iteration": 32, **where}
    with QMIX(env=Plain, config=config) as algo, QMIX(env=grouped, config=config) as by_hand:
        found, wrapped = algo.train(), by_hand.train()
    assert found["digest"] == wrapped["digest"]
    assert found["episode_reward_mean"] == wrapped["episode_reward_mean"]
    assert found["agent_reward_mean"].keys() == {"team", "agent_1", "agent_2"}


@pytest.mark.parametrize("env", [Plain, TwoStepGame])
def test_a_member_acts_alone_as_it_does_in_its_group(env: Any, tmp_path: Path) -> None:
    with QMIX(env=env, config={**QUICK, **NO_EXPLORATION}) as algo:
        algo.learn(stop={"training_iteration": 3}, run_dir=tmp_path / "run")
        score = algo.evaluate()["evaluation"]["episode_reward_mean"]
        rows = [(np.eye(3)[state], agent) for state in range(3) for agent in range(2)]
        seen = [np.concatenate([state, np.eye(2)[agent]]).astype(np.float32) for state, agent in rows]
        states = [()] * 3 if env is Plain else [(np.eye(3, dtype=np.float32)[state],) for state in range(3)]
        groups = [
            algo.compute_single_action((*pair, *state), explore=False)
            for *pair, state in zip(seen[::2], seen[1::2], states, strict=True)
        ]
        folder = algo.export_policy_checkpoint(tmp_path / "member")
    member = Policy.from_checkpoint(folder)
    assert isinstance(member, Policy)
    assert member.observation_space == TwoStepGame().observation_space
    assert member.action_space == gym.spaces.Discrete(2)
    alone = [
        local_policy_inference(member, 0, f"agent_{agent + 1}", obs, explore=False)[0][0]
        for obs, (_, agent) in zip(seen, rows, strict=True)
    ]
    assert alone == [action for pair in groups for action in pair]
    with Game(tmp_path / "run", env=env, human="agent_1") as game:
        assert game.agents == ["agent_1", "agent_2"]
    with Game(tmp_path / "run", env=env) as game:
        game.start()
        assert sum(game.advance().returns.values()) == score


SIZES = {"scout_0": 1, "scout_1": 1, "tower": 2}


class Kinds(Several):
    """Two scouts that see one number, and a tower that sees two: for two steps each is paid its action."""

    possible_agents, length = tuple(SIZES), 2
    observation_spaces = {one: gym.spaces.Box(0, 1, (size,)) for one, size in SIZES.items()}  # noqa: RUF012

    def shown(self) -> Any:
        return self.possible_agents if self.at < 2 else ()

    def pay(self, actions: Any) -> Any:
        return {one: float(action) for one, action in actions.items()}


def test_the_command_trains_a_policy_for_each_group_and_a_game_finds_the_one_of_each_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"{__name__}:Kinds"
    small = ["--config", "train_batch_size=32", "--stop", "num_env_steps_sampled=64", "--run-dir", "run"]
    assert main(["train", name, "--run", "VDN", *small]) == 0
    last = list(Run("run").results())[-1]
    assert last["group_reward_mean"].keys() == {"scout", "tower_team"} == last["policy_reward_mean"].keys()
    assert "--as scout_0" in capsys.readouterr().err
    with Game("run", env=Kinds) as game:
        assert [game.policy_of(agent) for agent in game.agents] == ["scout", "scout", "tower_team"]
    assert main(["evaluate", "run", "--env", name, "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agent_reward_mean"].keys() >= {"scout_0", "scout_1", "tower"}


class Rows(InArrays):
    """Three worlds of two agents for two steps; each is paid its action. `apart` ends "b" a step before "a"."""

    num_envs = 3
    observation_spaces = dict.fromkeys("ab", gym.spaces.Box(0, 9, (2,)))
    action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(3))

    def formed(self, array: Any) -> Any:
        return {"a": array[:, 0], "b": array[:, 1]} if self.config.get("columns") else array

    def observe(self) -> Any:
        return self.formed(np.array([[[world, self.at]] * 2 for world in range(3)], np.float32))

    def pay(self, actions: Any) -> Any:
        paid = np.stack([actions["a"], actions["b"]], 1) if self.config.get("columns") else actions
        return self.formed(paid.astype(np.float64))

    def done(self) -> Any:
        return self.formed(np.tile([self.at == 2, self.at == 2 or bool(self.config.get("apart"))], (3, 1)))


@pytest.mark.parametrize("columns", [True, False])
def test_agents_of_worlds_that_step_as_arrays_are_a_group_too(columns: bool) -> None:
    config = {**QUICK, "num_envs_per_worker": 3, "env_config": {"columns": columns}, "gamma": 1.0}
    with QMIX(env=Rows, config=config) as algo:
        batch = algo.sample()["default_policy"]
        result = algo.train()
    # Two numbers of each member, and a mark for each.
    assert batch["obs"].shape[1] == 6
    np.testing.assert_array_equal(batch["obs"][:, :2], batch["obs"][:, 2:4])
    np.testing.assert_array_equal(batch["rewards"], batch["actions"].sum(1))
    assert result["episode_len_mean"] == 2.0
    assert 0 <= result["episode_reward_min"] <= result["episode_reward_max"] <= 8


def test_groups_that_no_run_can_form_are_refused() -> None:
    with (
        pytest.raises(ContractError, match="together"),
        QMIX(env=Rows, config={"env_config": {"apart": 1}}) as algo,
    ):
        algo.train()
    filtered = {**QUICK, "observation_filter": "MeanStdFilter"}
    with (
        QMIX(env=TwoStepGame, config=filtered) as algo,
        pytest.raises(ConfigError, match="observation_filter"),
    ):
        algo.export_policy_checkpoint("nowhere")
    # Other algorithms form none.
    with PPO(env=TwoStepGame, config={"train_batch_size": 64, "sgd_minibatch_size": 32}) as algo:
        assert algo.train()["group_reward_mean"] == {}
