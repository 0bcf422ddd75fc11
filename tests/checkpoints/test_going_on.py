"""A run that was stopped and goes on is the run that was not stopped, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.null_env import NullEnv
from menv import ConfigError, PolicySpec, RandomPolicy
from menv.algorithms import DQN, PPO, QMIX, Algorithm
from menv.envs import TwoStepGame
from menv.errors import CallOrderError
from tests.checkpoints.runs import REPLAYED, SMALL, by_seat, trained, weights_of

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


def all_to_b(*args: Any, **kwargs: Any) -> str:
    return "b"


RUNS: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", SMALL),
    "ppo with a memory": (PPO, "CartPole-v1", {**SMALL, "model": LSTM}),
    "ppo, continuous": (PPO, "Pendulum-v1", SMALL),
    "ppo in whole episodes": (PPO, "CartPole-v1", {**SMALL, "batch_mode": "complete_episodes"}),
    "ppo, two policies that take turns": (PPO, "tictactoe", {**SMALL, "multiagent": TWO}),
    "ppo with a memory, two policies": (PPO, "tictactoe", {**SMALL, "model": LSTM, "multiagent": TWO}),
    "ppo, agents that come and go": (PPO, "traffic", {**SMALL, "multiagent": CARS}),
    "ppo beside a random policy": (
        PPO, "tictactoe", {**SMALL, "multiagent": {**TWO, "policies": {"a": None, "b": RandomPolicy}}},
    ),
    "dqn": (DQN, "CartPole-v1", REPLAYED),
    "dqn with priorities and a full buffer": (DQN, "CartPole-v1", {**REPLAYED, **PRIORITIES, "n_step": 3}),
    "dqn with a memory": (DQN, "CartPole-v1", {**REPLAYED, "model": {**GRU, "max_seq_len": 4}, "train_batch_size": 64}),
    "dqn, two policies that take turns": (DQN, "tictactoe", {**REPLAYED, "multiagent": TWO}),
    "ppo with stacked frames": (PPO, "CartPole-v1", {**SMALL, **FRAMES}),
    "ppo with stacked frames behind running means": (
        PPO, "CartPole-v1", {**SMALL, **FRAMES, "observation_filter": "MeanStdFilter"},
    ),
    "ppo with stacked frames and a memory, two policies": (
        PPO, "tictactoe", {**SMALL, **FRAMES, "model": LSTM, "multiagent": TWO},
    ),
    "ppo with stacked frames, agents that come and go": (PPO, "traffic", {**SMALL, **FRAMES, "multiagent": CARS}),
    "dqn with stacked frames": (DQN, "CartPole-v1", {**REPLAYED, **FRAMES}),
    "dqn, torch acts": (DQN, "CartPole-v1", {**REPLAYED, "inference": "torch"}),
}  # fmt: skip


@pytest.mark.slow_unless(
    "ppo in whole episodes",
    "ppo, agents that come and go",
    "dqn with a memory",
    "ppo with stacked frames behind running means",
)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    kind, env, config = RUNS[name]
    # What is no JSON is given again.
    given = {"multiagent": config["multiagent"]} if "multiagent" in config else None
    with kind(env=env, config=config) as algo:
        before = trained(algo, 3)
        algo.save(tmp_path)
        result = trained(algo, 3)
        with kind.from_checkpoint(tmp_path, given) as again:
            assert again.iteration == before["training_iteration"]
            resumed = trained(again, 3)
            assert weights_of(again) == weights_of(algo)
    assert resumed["num_episodes_not_resumed"] == 0
    for key in (
        "episode_reward_mean",
        "episodes_total",
        "num_agent_steps_trained",
        "timesteps_total",
        "hist_stats",
        "digest",
    ):
        assert resumed[key] == result[key]
    assert resumed["info"] == result["info"]


@pytest.mark.slow_unless("ppo, agents that come and go", "ppo with stacked frames and a memory, two policies")
@pytest.mark.parametrize("name", [
    "ppo with a memory, two policies", "ppo, agents that come and go",
    "ppo with stacked frames and a memory, two policies", "ppo with stacked frames, agents that come and go",
])  # fmt: skip
def test_the_next_fragment_is_the_same_in_every_column(name: str, tmp_path: Path) -> None:
    kind, env, config = RUNS[name]
    with kind(env=env, config=config) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        with kind.from_checkpoint(tmp_path, {"multiagent": config["multiagent"]}) as again:
            batch, found = algo.sample(), again.sample()
            assert list(found.policy_batches) == list(batch.policy_batches)
            for policy_id, own in batch.policy_batches.items():
                other = found[policy_id]
                for column in (
                    *own.stored(),
                    "eps_id",
                    "unroll_id",
                    "agent_index",
                    "prev_actions",
                    "prev_rewards",
                ):
                    assert other[column].tobytes() == own[column].tobytes(), column


def test_the_policy_of_a_group_goes_on_too(tmp_path: Path) -> None:
    def grouped(context: Any) -> Any:
        return TwoStepGame(context).with_agent_groups({"both": TwoStepGame(context).possible_agents})

    with QMIX(env=grouped, config=REPLAYED) as algo:
        trained(algo, 3)
        algo.save(tmp_path)
        trained(algo, 3)
        with QMIX.from_checkpoint(tmp_path, env=grouped) as again:
            assert trained(again, 3)["num_episodes_not_resumed"] == 0
            assert weights_of(again) == weights_of(algo)


def test_more_agents_than_a_ledger_has_room_for_at_first_go_on(tmp_path: Path) -> None:
    config = {**SMALL, "rollout_fragment_length": 2, "train_batch_size": 6, "env_config": {"num_agents": 100}}
    with PPO(env=NullEnv, config=config) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        trained(algo, 2)
        with PPO.from_checkpoint(tmp_path, env=NullEnv) as again:
            assert trained(again, 2)["num_episodes_not_resumed"] == 0
            assert weights_of(again) == weights_of(algo)


def test_policies_that_were_added_on_the_fly_go_on(tmp_path: Path) -> None:
    with PPO(env="tictactoe", config=SMALL) as algo:
        trained(algo, 1)
        algo.add_policy("b", PolicySpec(config={"lr": 0.01}), policy_mapping_fn=lambda *args, **kwargs: "b")
        algo.add_policy("a", policy_mapping_fn=by_seat, policies_to_train=["a", "b"])
        trained(algo, 2)
        algo.save(tmp_path)
        trained(algo, 2)
        with PPO.from_checkpoint(tmp_path, policy_mapping_fn=by_seat) as again:
            assert trained(again, 2)["num_episodes_not_resumed"] == 0
            assert weights_of(again) == weights_of(algo)
            assert sorted(again.get_weights()) == ["a", "b", "default_policy"]


def test_who_is_left_after_a_policy_was_removed_goes_on(tmp_path: Path) -> None:
    with PPO(env="tictactoe", config={**SMALL, "multiagent": TWO}) as algo:
        trained(algo, 1)
        algo.remove_policy("a", policy_mapping_fn=all_to_b)
        trained(algo, 2)
        algo.save(tmp_path)
        trained(algo, 2)
        with PPO.from_checkpoint(tmp_path, {"multiagent": TWO}, policy_mapping_fn=all_to_b) as again:
            assert trained(again, 2)["num_episodes_not_resumed"] == 0
            assert weights_of(again) == weights_of(algo)
            assert list(again.get_weights()) == ["b"]


def test_evaluations_go_on_as_well(tmp_path: Path) -> None:
    config = {
        **SMALL,
        "evaluation_interval": 2,
        "evaluation_duration": 4,
        "evaluation_config": {"explore": False},
    }
    with PPO(env="CartPole-v1", config=config) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        result = trained(algo, 2)
        with PPO.from_checkpoint(tmp_path) as again:
            assert trained(again, 2)["evaluation"] == result["evaluation"]


def test_an_evaluation_with_other_policies_than_the_last_one_is_the_same_behind_a_checkpoint(
    tmp_path: Path,
) -> None:
    with PPO(env="tictactoe", config={**SMALL, "evaluation_duration": 4, "multiagent": TWO}) as algo:
        trained(algo, 1)
        algo.evaluate()
        algo.add_policy("c")
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path, policy_mapping_fn=by_seat) as again:
            assert again.evaluate() == algo.evaluate()


def test_a_running_algorithm_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        trained(algo, 2)
        folder = algo.save(tmp_path)
        trained(algo, 2)
        wanted = weights_of(algo)
        algo.restore(folder)
        assert algo.iteration == 2
        assert trained(algo, 2)["num_episodes_not_resumed"] == 0
        assert weights_of(algo) == wanted


def test_an_algorithm_saved_before_it_has_sampled_begins_the_same(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config={**SMALL, "seed": None}) as algo:
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path) as again:
            assert weights_of(algo) == weights_of(again)
            assert trained(again, 1)["training_iteration"] == 1


def test_two_checkpoints_in_a_row_hold_the_same_actions(tmp_path: Path) -> None:
    with PPO(env="Pendulum-v1", config={**SMALL, "train_batch_size": 48}) as algo:
        trained(algo, 1)
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path) as second:
            trained(second, 1)
            second.save(tmp_path)
            with PPO.from_checkpoint(tmp_path) as third:
                assert trained(third, 1)["num_episodes_not_resumed"] == 0
                trained(algo, 2)
                assert weights_of(third) == weights_of(algo)


def test_what_a_learner_has_other_than_the_policy_is_kept(tmp_path: Path) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        trained(algo, 1)
        policy = algo.get_policy()
        policy.set_weights({name: array + np.float32(1) for name, array in policy.get_weights().items()})
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path) as again:
            assert weights_of(again) == weights_of(algo)
            trained(algo, 1)
            trained(again, 1)
            assert weights_of(again) == weights_of(algo)


def test_a_stopped_algorithm_is_not_saved(tmp_path: Path) -> None:
    algo = PPO(env="CartPole-v1", config=SMALL)
    algo.stop()
    with pytest.raises(CallOrderError, match="save: this algorithm was stopped"):
        algo.save(tmp_path)


def kl_weights(algo: PPO, iterations: int) -> list[float]:
    return [algo.train()["info"]["default_policy"]["cur_kl_coeff"] for _ in range(iterations)]


def test_the_adapted_kl_weight_goes_on_unless_another_one_is_given(tmp_path: Path) -> None:
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
        folder = first.save(checkpoint_dir=tmp_path)  # type: ignore[call-arg]
        with Algorithm.from_checkpoint(folder, config={}) as again:
            assert type(again) is DQN
            assert weights_of(again) == weights_of(first)
            again.restore(folder)


def test_an_algorithm_of_somebody_else_is_loaded_by_its_class(tmp_path: Path) -> None:
    class Mine(DQN):
        class Own(type(DQN.recipe)):  # type: ignore[misc]
            name = "Mine"

        recipe = Own()

    with Mine(env="CartPole-v1", config=REPLAYED) as first:
        folder = first.save(tmp_path)
    with pytest.raises(ConfigError, match="'Mine', expected one of DQN, PPO, QMIX"):
        Algorithm.from_checkpoint(folder)


class Heuristic(RandomPolicy):
    """Without weights, in the words of classic heuristics."""

    def get_weights(self) -> Any:
        return None

    def set_weights(self, weights: Any) -> None:
        return None


def test_a_policy_whose_get_weights_returns_none_has_none(tmp_path: Path) -> None:
    multiagent = {"policies": {"default_policy": PolicySpec(policy_class=Heuristic)}}
    with PPO(env="CartPole-v1", config={"train_batch_size": 8, "multiagent": multiagent}) as algo:
        algo.train()
        algo.restore(algo.save(tmp_path))
        assert algo.get_weights() == {"default_policy": {}}
        algo.set_weights(algo.get_weights())
