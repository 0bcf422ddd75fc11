"""Callbacks: which hooks are called, in which order, with what, and what of theirs reaches the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import DefaultCallbacks, make_multi_callbacks
from menv.algorithms import PPO
from menv.callbacks import HOOKS
from menv.envs import RockPaperScissors
from menv.errors import ConfigError
from tests.algorithms_e2e.test_policies_on_the_fly import LENGTH, Duo, to
from tests.inside import sampler
from tests.worlds import like, noting

SMALL = {
    "rollout_fragment_length": 10,
    "train_batch_size": 10,
    "sgd_minibatch_size": 10,
    "num_sgd_iter": 1,
    "seed": 3,
}
EPISODES = ("on_episode_start", "on_episode_step", "on_episode_end")


def spying(*hooks: str) -> tuple[type[DefaultCallbacks], list[tuple[str, dict[str, Any]]]]:
    """Return callbacks that note the calls of some hooks."""
    calls: list[tuple[str, dict[str, Any]]] = []

    class Spy(DefaultCallbacks):
        pass

    for hook in hooks:
        setattr(Spy, hook, lambda self, _hook=hook, **kwargs: calls.append((_hook, kwargs)))
    return Spy, calls


def test_the_hooks_of_an_episode_are_called_in_order() -> None:
    spy, calls = spying(*EPISODES)
    with PPO(env=Duo, config={**SMALL, "callbacks": spy}) as algo:
        algo.sample()
    names = [name for name, _ in calls]
    begin, steps = "on_episode_start", ["on_episode_step"] * LENGTH
    assert names == [begin, *steps, "on_episode_end", begin, *["on_episode_step"] * (10 - LENGTH)]
    first, second = (calls[place][1]["episode"] for place in (0, LENGTH + 2))
    assert all(call["episode"] is first for _, call in calls[: LENGTH + 2])
    assert first is not second
    for _, call in calls:
        assert set(call) == {"worker", "base_env", "policies", "episode", "env_index"}
        assert call["worker"].base_env is call["base_env"]
        assert call["env_index"] == 0
        assert set(call["policies"]) == {"default_policy"}


def test_an_episode_tells_what_its_agents_saw_last_and_how_long_it_is() -> None:
    look, seen = noting(
        "on_episode_step",
        lambda *, episode, **_: (episode.last_observation_for("b")[1], episode.length, episode.last_info_for("b")),
    )  # fmt: skip
    with PPO(env=Duo, config={**SMALL, "callbacks": look}) as algo:
        algo.sample()
    assert [at for at, _, _ in seen] == [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    assert [length for _, length, _ in seen] == [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    assert all(info == {} for _, _, info in seen)


def test_an_episode_tells_what_its_agents_have_earned_so_far_and_results_stay_the_same(
    tmp_path: Path,
) -> None:
    look, seen = noting(
        "on_episode_step", lambda *, episode, **_: (episode.length, episode.total_reward, dict(episode.agent_rewards))
    )  # fmt: skip

    def taken_up(**settings: Any) -> dict[str, Any]:
        with PPO(env=RockPaperScissors, config={**SMALL, "env_config": {"rounds": 8}, **settings}) as algo:
            algo.train()
            folder = algo.save(tmp_path / str(len(settings)))
        with PPO.from_checkpoint(folder, config=settings, env=RockPaperScissors) as algo:
            return dict(algo.train())

    looked_at, alone = taken_up(callbacks=look), taken_up()
    assert [length for length, _, _ in seen] == [*range(1, 9), 1, 2] * 2
    assert all(total == sum(by_agent.values()) for _, total, by_agent in seen)
    assert len({by_agent["player1", "default_policy"] for _, _, by_agent in seen}) > 2
    names = ("hist_stats", "policy_reward_mean", "agent_reward_mean", "digest")
    assert [looked_at[name] for name in names] == [alone[name] for name in names]


def test_what_an_episode_gathers_is_in_the_results() -> None:
    class Gather(DefaultCallbacks):
        def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
            episode.user_data["steps"] = 0
            episode.hist_data["half"] = []

        def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
            episode.user_data["steps"] += 1
            episode.hist_data["half"].append(episode.user_data["steps"] / 2)

        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            assert episode.total_reward == 3.0 * LENGTH
            assert episode.length == LENGTH
            episode.custom_metrics = {"steps": episode.user_data["steps"]}

    with PPO(env=Duo, config={**SMALL, "callbacks": Gather()}) as algo:
        result = algo.train()
        assert result["custom_metrics"] == {"steps_mean": LENGTH, "steps_min": LENGTH, "steps_max": LENGTH}
        assert result["hist_stats"]["half"] == [step / 2 for step in range(1, LENGTH + 1)]


def test_pieces_of_trajectories_come_before_the_end_of_their_episode_and_may_be_changed() -> None:
    order: list[tuple[str, int]] = []

    class Shape(DefaultCallbacks):
        def on_postprocess_trajectory(
            self,
            *,
            episode: Any,
            agent_id: Any,
            policy_id: str,
            postprocessed_batch: Any,
            original_batches: Any,
            **kw: Any,
        ) -> None:
            assert episode.policy_for(agent_id) == policy_id
            # Of all agents of the episode, as they were before any piece was changed.
            assert set(original_batches) == {"a", "b"}
            assert original_batches[agent_id][0] == policy_id
            for _, _, rows in original_batches.values():
                assert rows["eps_id"].tolist() == [episode.episode_id] * postprocessed_batch.count
                assert (rows["advantages"] != 7.0).any()
            assert "advantages" in postprocessed_batch
            order.append((agent_id, episode.episode_id))
            postprocessed_batch["advantages"] = np.full(postprocessed_batch.count, 7.0, np.float32)

        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            order.append(("end", episode.episode_id))

    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two")}
    with PPO(env=Duo, config={**SMALL, "callbacks": Shape, "multiagent": multiagent}) as algo:
        batch = algo.sample()
        assert (batch["one"]["advantages"] == 7.0).all()
        assert batch["two"].count == 10
        assert algo.train()["episodes_this_iter"] == 2
    first = order[0][1]
    assert [name for name, episode_id in order if episode_id == first] == ["a", "b", "end"]
    assert [name for name, _ in order].count("end") == 2


def test_the_hooks_around_the_run_are_called_with_what_they_are_about() -> None:
    spy, calls = spying(*(hook for hook in HOOKS if hook not in (*EPISODES, "on_postprocess_trajectory")))
    with PPO(env=Duo, config={**SMALL, "num_envs_per_worker": 4, "callbacks": spy}) as algo:
        created = [call for name, call in calls if name == "on_sub_environment_created"]
        assert [call["env_context"].vector_index for call in created] == [0, 1, 2, 3]
        assert [call["env_index"] for call in created] == [0, 1, 2, 3]
        assert all(isinstance(call["sub_environment"], Duo) for call in created)
        assert not any(call["env_context"].in_evaluation for call in created)
        assert [name for name, _ in calls] == [*["on_sub_environment_created"] * 4, "on_algorithm_init"]
        calls.clear()
        result = algo.train()
        assert [name for name, _ in calls] == ["on_sample_end", "on_learn_on_batch", "on_train_result"]
        assert calls[0][1]["samples"].env_steps() == 40
        assert calls[1][1]["policy"] is algo.get_policy()
        assert calls[2][1]["result"] is result
        calls.clear()
        algo.evaluate()
        assert [name for name, _ in calls] == [
            *["on_sub_environment_created"] * 4, "on_sample_end", "on_evaluate_end"
        ]  # fmt: skip
        assert all(call["env_context"].in_evaluation for _, call in calls[:4])


def test_statistics_and_results_may_be_added_to() -> None:
    class Add(DefaultCallbacks):
        def on_learn_on_batch(self, *, result: dict[str, Any], train_batch: Any, **kwargs: Any) -> None:
            result["rows"] = train_batch.count
            result["actions"] = train_batch["actions"].sum()

        def on_train_result(self, *, result: dict[str, Any], **kwargs: Any) -> None:
            result["mine"] = 1

    with PPO(env=Duo, config={**SMALL, "callbacks": Add}) as algo:
        result = algo.train()
    assert dict(result)["mine"] == 1
    assert result["info"]["default_policy"]["rows"] == 2 * 10
    assert type(result["info"]["default_policy"]["actions"]) is int, "results can be written as JSON"
    own = result["info"]["learner"]["default_policy"]
    assert own["custom_metrics"] == {name: own["learner_stats"][name] for name in ("rows", "actions")}
    assert result["num_agent_steps_trained_this_iter"] == result["num_agent_steps_trained"] == 2 * 10
    assert result["num_env_steps_trained_this_iter"] == result["num_env_steps_trained"] == 10


def test_several_callbacks_are_called_in_order_as_classes_or_instances() -> None:
    told: list[str] = []

    first = like(
        DefaultCallbacks, on_train_result=lambda self, *, algorithm, result, **kwargs: told.append("first")
    )

    class Second(DefaultCallbacks):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
            told.append(self.name)

    with PPO(
        env="CartPole-v1",
        config={"callbacks": [Second("second"), make_multi_callbacks([first])], "train_batch_size": 64},
    ) as algo:
        algo.train()
        # Hooks that none of them overrides cost nothing.
        assert not sampler(algo)._callbacks.active
    assert told == ["second", "first"]


class OldResult(DefaultCallbacks):
    def on_train_result(self, *, trainer: Any, result: Any, **kwargs: Any) -> None:  # type: ignore[override]
        raise AssertionError


class NoRest(DefaultCallbacks):
    def on_episode_end(self, worker: Any, base_env: Any, policies: Any, episode: Any) -> None:  # type: ignore[override]
        raise AssertionError


@pytest.mark.parametrize("callbacks", [OldResult, NoRest(), [NoRest]])
def test_hooks_of_other_parameters_are_refused_before_anything_runs(callbacks: Any) -> None:
    with pytest.raises(ConfigError, match=r"callbacks: (OldResult\.on_train_result|NoRest\.on_episode_end)"):
        PPO(env=Duo, config={**SMALL, "callbacks": callbacks})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("on_trainer_init", "on_algorithm_init"),
        ("on_episodes_end", "on_episode_end"),
        ("on_episode_created", "on_episode_start"),
    ],
)
def test_a_method_that_resembles_a_hook_warns(name: str, near: str) -> None:
    old = type("Old", (DefaultCallbacks,), {name: print, "on_my_own": print})
    with (
        pytest.warns(UserWarning, match=f"Old.{name} is not a hook and never called; did you mean '{near}'"),
        PPO(env=Duo, config={**SMALL, "callbacks": old}),
    ):
        pass
