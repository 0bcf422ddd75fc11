"""A policy's `postprocess_trajectory`: what it is given, when, and what becomes of what it returns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from menv import DefaultCallbacks, PolicySpec, RandomPolicy
from menv.algorithms import PPO, PPOPolicy
from tests.algorithms_e2e.looking import Judge, steps_of, watching
from tests.algorithms_e2e.shifts import Shifts, mapped_to_themselves
from tests.worlds import like

SMALL = {"sgd_minibatch_size": 8, "num_sgd_iter": 2, "seed": 1}
EACH = {"policy_mapping_fn": mapped_to_themselves}


def test_others_are_the_rows_of_every_other_agent_of_the_episode_whatever_its_policy() -> None:
    watch, seen = watching()
    policies = {"a": PolicySpec(watch), "b": None, "c": PolicySpec(RandomPolicy)}
    config = {**SMALL, "rollout_fragment_length": 10, "multiagent": {"policies": policies, **EACH}}
    with PPO(env=Shifts, config=config) as algo:
        batch = algo.sample()
    # Two episodes; in each of them "a" lives twice.
    assert [steps_of(own) for own, _, _ in seen] == [[0, 1, 2], [4], [0, 1, 2], [4]]
    for own, others, episode in seen:
        assert {agent: steps_of(rows) for agent, rows in others.items()} == {
            "b": [0, 1, 3, 4],
            "c": [1, 2, 3, 4],
        }
        assert episode.get_agents() == ["a", "b", "c"]
        assert all((rows["eps_id"] == episode.episode_id).all() for rows in (own, *others.values()))
        assert (others["c"]["rewards"] == [2.0, 3.0, 4.0, 5.0]).all()
        assert set(others["b"]["agent_index"]) == {1}
    assert batch["a"].count == 8


def test_agents_of_one_policy_see_each_other_and_rows_are_lined_up_by_their_env_step() -> None:
    watch, seen = watching()
    multiagent = {"policies": {"all": PolicySpec(watch)}, "policy_mapping_fn": lambda agent_id, **kw: "all"}
    config = {**SMALL, "num_envs_per_worker": 3, "rollout_fragment_length": 7, "multiagent": multiagent}
    with PPO(env=Shifts, config=config) as algo:
        for _ in range(3):
            algo.sample()
    assert {tuple(others) for _, others, _ in seen} >= {("b", "c"), ("a", "c"), ("a", "b")}
    for own, others, episode in seen:
        agent = episode.get_agents()[int(own["agent_index"][0])]
        assert agent not in others
        for rows in (own, *others.values()):
            first_step = rows["env_t"] - steps_of(rows)
            assert len(set(first_step.tolist())) == 1
            assert set(first_step.tolist()) == {int(own["env_t"][0]) - steps_of(own)[0]}
        last = (own["env_t"][-1], own["next_env_t"][-1])
        assert own["next_env_t"][:-1].tolist() == own["env_t"][1:].tolist()
        # What came after the last row; "b" pauses for a step.
        paused = agent == "b" and steps_of(own)[-1] == 1
        assert last[1] - last[0] == (2 if paused else 1)


@pytest.mark.parametrize("vector", [False, True])
def test_others_are_empty_when_alone(vector: bool) -> None:
    watch, seen = watching()
    env: Any = "CartPole-v1"
    if vector:
        env = lambda context: SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)  # noqa: E731
    multiagent = {"policies": {"default_policy": PolicySpec(watch)}}
    config = {**SMALL, "rollout_fragment_length": 30, "train_batch_size": 30, "multiagent": multiagent}
    with PPO(env=env, config=config) as algo:
        algo.train()
    assert seen
    assert all(others == {} for _, others, _ in seen)
    assert sum(own.count for own, _, _ in seen) >= 28


def hooked(change: Any) -> Any:
    """Return a class of policies whose hook changes a batch."""

    def hook(self: Any, batch: Any, others: Any = None, episode: Any = None) -> Any:
        change(self, batch, episode)
        return batch

    return like(PPOPolicy, postprocess_trajectory=hook)


def test_a_hook_runs_before_advantages_and_these_before_the_callback() -> None:
    order: list[str] = []

    def early(policy: Any, batch: Any, episode: Any) -> None:
        assert not {"advantages", "vf_preds", "action_logp"} & set(batch)
        order.append("hook")
        batch["mine"] = np.arange(batch.count)

    class Late(DefaultCallbacks):
        def on_postprocess_trajectory(self, *, postprocessed_batch: Any, **kwargs: Any) -> None:
            assert {"advantages", "vf_preds", "action_logp", "mine"} <= set(postprocessed_batch)
            order.append("callback")

        def on_episode_end(self, **kwargs: Any) -> None:
            order.append("end")

    policies = {"policies": {"default_policy": PolicySpec(hooked(early))}}
    config = {**SMALL, "rollout_fragment_length": 5, "callbacks": Late, "multiagent": policies}
    with PPO(env=Shifts, config=config) as algo:
        algo.sample()
    assert order == ["hook"] * 4 + ["callback"] * 4 + ["end"]


def test_episodes_count_and_carry_what_a_hook_puts_into_them() -> None:
    def count(policy: Any, batch: Any, episode: Any) -> None:
        episode.custom_metrics["rows"] = episode.custom_metrics.get("rows", 0) + batch.count

    policies = {"policies": {"default_policy": PolicySpec(hooked(count))}}
    config = {**SMALL, "rollout_fragment_length": 10, "train_batch_size": 10, "multiagent": policies}
    with PPO(env=Shifts, config=config) as algo:
        for number in range(1, 4):
            result = algo.train()
            assert result["episodes_this_iter"] == 2
            assert result["custom_metrics"]["rows_mean"] == 4 + 4 + 4
            assert len(result["hist_stats"]["episode_reward"]) == 2 * number


def test_custom_values_are_what_advantages_are_made_of() -> None:
    def priced(policy: Any, batch: Any, episode: Any) -> None:
        batch["vf_preds"] = batch["obs"][:, 1]

    policies = {"policies": {"default_policy": PolicySpec(hooked(priced))}}
    settings = {**SMALL, "gamma": 0.5, "lambda": 0.5, "rollout_fragment_length": 5}
    with PPO(
        env=Shifts, config={**settings, "env_config": {"truncate": True}, "multiagent": policies}
    ) as algo:
        batch = algo.sample()["default_policy"]
    c = batch.take(np.flatnonzero(batch["agent_index"] == 2))
    assert c["vf_preds"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert c["rewards"].tolist() == [2.0, 3.0, 4.0, 5.0]
    # The state after a trajectory that goes on is worth as much as the last row: 5 + 4 / 2 - 4, and so on back.
    last = 5.0 + 0.5 * 4.0 - 4.0
    third = 4.0 + 0.5 * 4.0 - 3.0 + 0.25 * last
    second = 3.0 + 0.5 * 3.0 - 2.0 + 0.25 * third
    first = 2.0 + 0.5 * 2.0 - 1.0 + 0.25 * second
    assert c["advantages"].tolist() == pytest.approx([first, second, third, last])
    assert c["value_targets"].tolist() == pytest.approx([first + 1, second + 2, third + 3, last + 4])


def test_custom_advantages_are_kept() -> None:
    def own(policy: Any, batch: Any, episode: Any) -> None:
        batch["vf_preds"] = np.full(batch.count, 2.0, np.float32)
        batch["next_vf_preds"] = np.full(batch.count, 3.0, np.float32)
        if policy.settings.gamma == 0.5:
            batch["advantages"] = np.full(batch.count, 4.0, np.float32)

    kind = hooked(own)
    multiagent = {
        "policies": {"a": PolicySpec(kind, config={"gamma": 0.5}), "b": PolicySpec(kind), "c": None},
        **EACH,
    }
    config = {**SMALL, "rollout_fragment_length": 3, "multiagent": multiagent}
    with PPO(env=Shifts, config=config) as algo:
        batch = algo.sample()
    assert set(batch["a"]["advantages"]) == {4.0}
    assert set(batch["a"]["value_targets"]) == {6.0}
    # Of "b" the rows of steps 0 and 1 have left; the next value is given.
    assert batch["b"]["advantages"][-1] == pytest.approx(batch["b"]["rewards"][-1] + 0.99 * 3.0 - 2.0)


@pytest.mark.slow
def test_a_policy_that_has_learned_reads_the_weights_of_now_in_workers_that_are_given_it_again() -> None:
    multiagent = {"policies": {"judge": PolicySpec(Judge)}}
    config = {
        **SMALL,
        "num_workers": 1,
        "engine": "process",
        "train_batch_size": 32,
        "multiagent": multiagent,
    }
    with PPO(env="CartPole-v1", config=config) as algo:
        algo.train()
        algo.add_policy("other", policy_mapping_fn=lambda *args, **kwargs: "judge")
        algo.train()
        algo.train()
        rows = algo.sample()["judge"]
    np.testing.assert_allclose(rows["judged"], rows["vf_preds"], atol=1e-5)
