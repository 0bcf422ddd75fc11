"""A resumed run has the weights, counts and random streams of its checkpoint, and begins new episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from menv import ConfigError, PolicySpec
from menv.algorithms import DQN, PPO, QMIX, Algorithm
from menv.envs import TwoStepGame
from tests.checkpoints.runs import REPLAYED, SMALL, by_seat, resumed_twice, trained, weights_of
from tests.inside import sampler
from tests.worlds import Alone

TWO: dict[str, Any] = {"policies": ["a", "b"], "policy_mapping_fn": by_seat}
CARS: dict[str, Any] = {
    "policies": ["car", "light"],
    "policy_mapping_fn": lambda agent_id, *args, **kwargs: "light" if "light" in agent_id else "car",
    "count_steps_by": "agent_steps",
}
GRU = {"fcnet_hiddens": [16], "use_gru": True}
LSTM = {"fcnet_hiddens": [16], "use_lstm": True, "lstm_cell_size": 8}
FRAMES: dict[str, Any] = {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})]}
PRIORITIES = {"replay_buffer_config": {"prioritized_replay": True, "capacity": 100}}


RUNS: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", SMALL),
    "ppo in whole episodes": (PPO, "CartPole-v1", {**SMALL, "batch_mode": "complete_episodes"}),
    "ppo with a memory, two policies": (PPO, "tictactoe", {**SMALL, "model": LSTM, "multiagent": TWO}),
    "ppo, agents that come and go": (PPO, "traffic", {**SMALL, "multiagent": CARS}),
    "dqn": (DQN, "CartPole-v1", REPLAYED),
    "dqn with priorities and a full buffer": (DQN, "CartPole-v1", {**REPLAYED, **PRIORITIES, "n_step": 3}),
    "dqn with a memory": (DQN, "CartPole-v1", {**REPLAYED, "model": {**GRU, "max_seq_len": 4}, "train_batch_size": 64}),
    "ppo with stacked frames behind running means": (
        PPO, "CartPole-v1", {**SMALL, **FRAMES, "observation_filter": "MeanStdFilter"},
    ),
    "ppo with stacked frames and a memory, two policies": (
        PPO, "tictactoe", {**SMALL, **FRAMES, "model": LSTM, "multiagent": TWO},
    ),
    "ppo with stacked frames, agents that come and go": (PPO, "traffic", {**SMALL, **FRAMES, "multiagent": CARS}),
}  # fmt: skip


@pytest.mark.slow_unless(
    "ppo in whole episodes",
    "ppo, agents that come and go",
    "dqn with a memory",
    "ppo with stacked frames behind running means",
)
@pytest.mark.parametrize("name", RUNS)
def test_two_runs_that_resume_from_one_checkpoint_are_the_same(name: str, tmp_path: Path) -> None:
    kind, env, config = RUNS[name]
    # What is not JSON is given again.
    given = {"multiagent": config["multiagent"]} if "multiagent" in config else None
    with kind(env=env, config=config) as algo:
        before = trained(algo, 3)
        algo.save(tmp_path)
        with kind.from_checkpoint(tmp_path, given) as again:
            assert (weights_of(again), again.counts()) == (weights_of(algo), algo.counts())
            saved, folder = algo.save(tmp_path), again.save(tmp_path / "again")
            for file in ("weights.safetensors", "learners.safetensors"):
                assert (folder / file).read_bytes() == (saved / file).read_bytes()
    result = resumed_twice(kind, tmp_path, 2, config=given)
    assert result["training_iteration"] == before["training_iteration"] + 2
    assert result["episodes_total"] >= before["episodes_total"]


@pytest.mark.parametrize("name", ["ppo with a memory, two policies", "dqn with a memory"])
def test_saving_changes_nothing_in_the_run_that_continues(name: str, tmp_path: Path) -> None:
    kind, env, config = RUNS[name]
    ends = []
    for saves in (False, True):
        with kind(env=env, config=config) as algo:
            for _ in range(3):
                digest = algo.train()["digest"]
                if saves:
                    algo.save(tmp_path)
            ends.append((digest, weights_of(algo)))
    assert ends[0] == ends[1]


class Steps(Alone):
    """Pays 1 in each of 50 steps, and notes the seeds of its resets and what it paid."""

    length = 50
    seeds: list[Any]
    paid = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        Steps.seeds.append(seed)
        return super().reset(seed=seed)

    def pay(self, action: Any) -> float:
        Steps.paid += 1
        return 1.0


def test_a_resumed_run_begins_new_episodes_and_accounts_for_every_reward(tmp_path: Path) -> None:
    Steps.seeds = []
    with PPO(env=Steps, config=SMALL) as algo:
        trained(algo, 2)
        before = {*algo.sample()["default_policy"]["eps_id"].tolist()}
        algo.save(tmp_path)
    seeds, Steps.seeds, Steps.paid = Steps.seeds, [], 0
    with PPO.from_checkpoint(tmp_path, env=Steps) as again:
        batch = again.sample()["default_policy"]
        assert before.isdisjoint(batch["eps_id"].tolist())
        assert {int(piece["t"][0]) for piece in batch.split_by_episode()} == {0}
        assert batch["rewards"].sum() + sampler(again).held_rewards() == Steps.paid
        result = trained(again, 3)
    assert {*Steps.seeds}.isdisjoint(seeds)
    assert result["num_episodes_not_resumed"] == SMALL["num_envs_per_worker"]
    assert {*result["hist_stats"]["episode_lengths"]} == {50}


def test_the_policy_of_a_group_continues_too(tmp_path: Path) -> None:
    def grouped(context: Any) -> Any:
        return TwoStepGame(context).with_agent_groups({"both": TwoStepGame(context).possible_agents})

    with QMIX(env=grouped, config=REPLAYED) as algo:
        trained(algo, 3)
        algo.save(tmp_path)
    resumed_twice(QMIX, tmp_path, 3, env=grouped)


def test_policies_added_during_the_run_continue(tmp_path: Path) -> None:
    with PPO(env="tictactoe", config=SMALL) as algo:
        trained(algo, 1)
        algo.add_policy("b", PolicySpec(config={"lr": 0.01}), policy_mapping_fn=lambda *args, **kwargs: "b")
        algo.add_policy("a", policy_mapping_fn=by_seat, policies_to_train=["a", "b"])
        trained(algo, 2)
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path, policy_mapping_fn=by_seat) as again:
            assert weights_of(again) == weights_of(algo)
            assert sorted(again.get_weights()) == ["a", "b", "default_policy"]
    resumed_twice(PPO, tmp_path, 2, policy_mapping_fn=by_seat)


def test_evaluations_continue_as_well(tmp_path: Path) -> None:
    config = {
        **SMALL,
        "evaluation_interval": 2,
        "evaluation_duration": 4,
        "evaluation_config": {"explore": False},
    }
    with PPO(env="CartPole-v1", config=config) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path) as again:
            assert again.evaluate() == algo.evaluate()


def test_a_running_algorithm_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        trained(algo, 2)
        folder = algo.save(tmp_path)
        trained(algo, 2)
        algo.restore(folder)
        assert algo.iteration == 2
        result = trained(algo, 2)
    assert result["digest"] == resumed_twice(PPO, folder, 2)["digest"]


def kl_weights(algo: PPO, iterations: int) -> list[float]:
    return [algo.train()["info"]["default_policy"]["cur_kl_coeff"] for _ in range(iterations)]


def test_the_adapted_kl_weight_continues_unless_another_one_is_given(tmp_path: Path) -> None:
    # A target that no update reaches: the weight is halved after each.
    config: dict[str, Any] = {**SMALL, "kl_coeff": 0.5, "kl_target": 1e6}
    with PPO(env="CartPole-v1", config=config) as algo:
        assert kl_weights(algo, 2) == [0.5, 0.25]
        algo.save(tmp_path)
    expected = {None: [0.125, 0.0625], 0.5: [0.125, 0.0625], 3.0: [3.0, 1.5], 0: [0.0, 0.0]}
    for given, wanted in expected.items():
        with PPO.from_checkpoint(tmp_path, {} if given is None else {"kl_coeff": given}) as again:
            assert kl_weights(again, 2) == wanted
            again.save(tmp_path / "again")
        with PPO.from_checkpoint(tmp_path / "again") as again:
            assert kl_weights(again, 1) == [wanted[1] / 2]


# `Algorithm` itself goes on with a checkpoint of any of menv's algorithms.


def test_the_class_of_all_algorithms_takes_the_one_that_was_saved(tmp_path: Path) -> None:
    with DQN(env="CartPole-v1", config=REPLAYED) as first:
        first.train()
        folder = first.save(tmp_path)
        with Algorithm.from_checkpoint(folder, config={}) as again:
            assert type(again) is DQN
            assert weights_of(again) == weights_of(first)
            again.restore(folder)


def test_a_third_party_algorithm_is_loaded_by_its_class(tmp_path: Path) -> None:
    class Mine(DQN):
        class Own(type(DQN.recipe)):  # type: ignore[misc]
            name = "Mine"

        recipe = Own()

    with Mine(env="CartPole-v1", config=REPLAYED) as first:
        folder = first.save(tmp_path)
    with pytest.raises(ConfigError, match="'Mine'"):
        Algorithm.from_checkpoint(folder)


def test_a_run_that_trains_nothing_keeps_the_optimizers_of_its_checkpoint(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.train()
        first = algo.save(tmp_path / "first")
    with PPO.from_checkpoint(first, {"multiagent": {"policies_to_train": []}}) as frozen:
        second = frozen.save(tmp_path / "second")
    learners = [(folder / "learners.safetensors").read_bytes() for folder in (first, second)]
    assert learners[0] == learners[1]
    with PPO.from_checkpoint(second, policies_to_train=["default_policy"]) as again:
        assert again.train()["info"]["learner"]
