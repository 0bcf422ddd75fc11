"""Who answers for whom while sampling: asked once, given what it needs, kept for the episode."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks, Episode, PolicySpec, RandomPolicy, register_env
from menv.algorithms import PPO
from tests.contract.scripted import Moment, ScriptedEnv, SixDicts
from tests.sampling.reference_envs import Together
from tests.sampling.test_custom_policy_actions import Fixed
from tests.worlds import Several

RETURNS = [
    [
        Moment("ab"),
        Moment("a", terminated="b"),
        Moment("ab"),
        Moment("a"),
        Moment("ab"),
        Moment("ab", over="truncated"),
    ]
]


class Arrivals(Several):
    """Every second env step somebody comes who is called by its number; each stays for three."""

    observation_space, possible_agents, length = gym.spaces.Discrete(9), (), 8

    def shown(self) -> Any:
        came = range(max(self.config.get("first", 0), self.at - 2), self.at + 1)
        return [str(step) for step in came if step % 2 == 0]

    def see(self, agent: Any) -> Any:
        return self.at

    def pay(self, actions: Any) -> Any:
        return dict.fromkeys(actions, 1.0)

    def dead(self, actions: Any) -> Any:
        return actions.keys() - set(self.shown())


class LooksOn(DefaultCallbacks):
    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        """Ask for all that is kept for callbacks about episodes."""


def build(env: Any, mapping: Any, policies: Any = ("p", "q"), **config: Any) -> PPO:
    sections = {"policies": policies, "policy_mapping_fn": mapping, **config.pop("multiagent", {})}
    return PPO(env=env, config={"rollout_fragment_length": 10, "multiagent": sections, **config})


def test_an_agent_is_mapped_once_an_episode_and_keeps_its_policy_through_pauses_and_returns() -> None:
    asked: Counter[Any] = Counter()

    def mapping(agent_id: Any, episode: Episode, worker: Any, **kwargs: Any) -> str:
        asked[agent_id, episode.episode_id] += 1
        return "p" if asked.total() % 2 else "q"

    with build(
        lambda context: ScriptedEnv(RETURNS, context.vector_index, "ab"), mapping, num_envs_per_worker=2
    ) as algorithm:
        asked.clear()
        batch = algorithm.sample()
    # The third episode of each has begun, and a third appearance of b has asked nobody.
    assert set(asked.values()) == {1}
    assert Counter(agent for agent, _ in asked) == {"a": 6, "b": 6}
    policies: dict[Any, set[str]] = {}
    for policy_id, part in batch.policy_batches.items():
        for obs, eps in zip(part["obs"], part["eps_id"], strict=True):
            policies.setdefault((int(eps), int(obs[2])), set()).add(policy_id)
    assert {len(found) for found in policies.values()} == {1}


@pytest.mark.slow_unless("alone-*", "with callbacks-*", "remote-4")
@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize(
    "config",
    [{}, {"callbacks": LooksOn}, {"remote_worker_envs": True, "engine": "process"}],
    ids=["alone", "with callbacks", "remote"],
)
def test_an_agent_that_comes_late_is_mapped_with_the_length_so_far(
    config: dict[str, Any], first: int
) -> None:
    seen: list[tuple[int, int]] = []

    def mapping(agent_id: Any, episode: Episode, worker: Any, **kwargs: Any) -> str:
        seen.append((int(agent_id), episode.length))
        return "q" if episode.length > 3 else "p"

    with build(Arrivals, mapping, num_envs_per_worker=2, env_config={"first": first}, **config) as algorithm:
        algorithm.sample()
        algorithm.sample()
    assert {came for came, _ in seen} == {*range(first, 8, 2)}
    assert [length for _, length in seen] == [came for came, _ in seen]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_mapping_finds_the_ids_of_all_policies_in_the_worker_from_its_first_call_on(
    num_workers: int,
) -> None:
    def newest(agent_id: Any, episode: Episode, worker: Any, **kwargs: Any) -> str:
        return str(max(worker.policies))

    with build(
        lambda context: Together(2),
        newest,
        ["p", "q"],
        num_workers=num_workers,
        engine="process",
        train_batch_size=200,
    ) as algorithm:
        assert list(algorithm.sample().policy_batches) == ["q"]
        algorithm.add_policy("r", policy_mapping_fn=newest)
        assert "r" in algorithm.train()["policy_reward_mean"]
        algorithm.remove_policy("r", policy_mapping_fn=newest)


def test_a_mapping_sees_the_sampler_and_the_episode() -> None:
    seen: list[Any] = []

    def mapping(agent_id: Any, episode: Episode, worker: Any, **kwargs: Any) -> str:
        seen.append((episode, worker))
        return "p"

    with build(lambda context: Together(2), mapping, num_envs_per_worker=3) as algorithm:
        dry = len(seen)
        assert dry >= 4, "the dry run asks for each agent, in several episodes"
        algorithm.sample()
        base_env = algorithm.get_policy("p")
    for episode, worker in seen:
        assert isinstance(episode, Episode)
        assert isinstance(episode.episode_id, int)
        assert 0 <= episode.episode_id < 2**63
        assert episode.env_id in range(8)
        assert (worker.worker_index, worker.num_workers) == (0, 0)
        assert set(worker.policy_map.specs) == {"p", "q"}
        assert len(worker.base_env.get_sub_environments()) == 3
        assert 0 <= episode.rng.random() < 1
    assert {episode.episode_id % 2 for episode, _ in seen[:dry]} == {0, 1}
    assert base_env is not None


def test_matchmaking_by_episode_gives_both_sides_to_both_policies() -> None:
    def mapping(agent_id: int, episode: Episode, **kwargs: Any) -> str:
        return "p" if (episode.episode_id + agent_id) % 2 == 0 else "q"

    with build(lambda context: Together(2, 3), mapping, num_envs_per_worker=8, seed=1) as algorithm:
        batch = algorithm.sample()
    for part in batch.policy_batches.values():
        assert set(part["agent_index"].tolist()) == {0, 1}


def test_random_draws_in_the_mapping_repeat_under_a_seed() -> None:
    def mapping(agent_id: int, episode: Episode) -> str:
        return "p" if episode.rng.random() < 0.5 else "q"

    def shares() -> list[int]:
        with build(lambda context: Together(2, 2), mapping, num_envs_per_worker=8, seed=4) as algorithm:
            return [part.count for part in algorithm.sample().policy_batches.values()]

    assert shares() == shares()
    assert len(shares()) == 2


def test_custom_policies_play_next_to_networks_and_never_learn() -> None:
    policies = {
        "net": PolicySpec(),
        "one": PolicySpec(Fixed, config={"value": 1}),
        "tuple": (Fixed, None, None, {"value": 0}),
        "random": RandomPolicy,
    }
    names = list(policies)
    with build(
        lambda context: Together(4, 5),
        lambda agent: names[agent],
        policies,
        train_batch_size=10,
        num_sgd_iter=1,
        seed=0,
    ) as algorithm:
        batch = algorithm.sample()
        assert {name: part.count for name, part in batch.policy_batches.items()} == dict.fromkeys(names, 10)
        assert set(batch["one"]["actions"]) == {1}
        assert set(batch["tuple"]["actions"]) == {0}
        assert set(batch["random"]["actions"]) == {0, 1}
        assert "advantages" in batch["net"]
        assert "advantages" not in batch["one"]
        result = algorithm.train()
        assert set(result["info"]["learner"]) == {"net"}
        assert result["policy_reward_mean"] == dict.fromkeys(names, 5.0)
        assert isinstance(algorithm.get_policy("one"), Fixed)
        assert algorithm.compute_single_action(0, policy_id="one") == 1


def test_a_policy_may_answer_with_any_space() -> None:
    space = gym.spaces.Dict(
        {"move": gym.spaces.Discrete(3), "say": gym.spaces.Tuple([gym.spaces.MultiBinary(2)])}
    )
    acted: list[Any] = []

    class Rich(Together):
        observation_space, action_space = gym.spaces.Text(8), space

        def see(self, agent: Any) -> Any:
            return "hello"

        def pay(self, actions: Any) -> Any:
            acted.extend(actions.values())
            return super().pay(actions)

    with build(lambda context: Rich(2, 5), None, {"p": RandomPolicy}) as algorithm:
        batch = algorithm.sample()
    assert len(acted) == 20
    assert all(space.contains(action) for action in acted)
    assert batch["p"]["actions"].dtype == object
    assert batch["p"].count == 20


def test_agents_with_different_spaces_have_policies_of_different_shape() -> None:
    class Uneven(Together):
        observation_spaces: Any = gym.spaces.Dict(
            {0: gym.spaces.Discrete(2), 1: gym.spaces.Box(-1.0, 1.0, (3,), np.float32)}  # type: ignore[dict-item]
        )
        action_spaces: Any = gym.spaces.Dict({0: gym.spaces.Discrete(3), 1: gym.spaces.Box(-2.0, 2.0, (2,))})  # type: ignore[dict-item]

        def see(self, agent: Any) -> Any:
            return np.zeros(3, np.float32) if agent else 0

        def pay(self, actions: Any) -> Any:
            assert all(self.action_spaces[agent].contains(action) for agent, action in actions.items())
            return super().pay(actions)

    with build(
        lambda context: Uneven(2, 5), lambda agent: "pq"[agent], train_batch_size=10, num_sgd_iter=1
    ) as algorithm:
        batch = algorithm.sample()
        assert batch["p"]["obs"].shape == (10, 2)
        assert batch["q"]["obs"].shape == (10, 3)
        assert batch["q"]["actions"].shape == (10, 2)
        assert set(algorithm.train()["info"]["learner"]) == {"p", "q"}


def test_only_policies_to_train_change() -> None:
    for to_train in (["p"], {"p"}, lambda policy_id, batch: policy_id == "p"):
        settings = {"multiagent": {"policies_to_train": to_train}, "train_batch_size": 20, "num_sgd_iter": 1}
        with build(lambda context: Together(2, 5), lambda agent: "pq"[agent], **settings) as algorithm:
            before = algorithm.get_weights()
            result = algorithm.train()
            after = algorithm.get_weights()
        assert set(result["info"]["learner"]) == {"p"}
        assert any((before["p"][name] != after["p"][name]).any() for name in before["p"])
        assert all((before["q"][name] == after["q"][name]).all() for name in before["q"])


def test_a_policy_no_agent_maps_to_gets_the_shared_spaces() -> None:
    with build(lambda context: Together(2, 5), lambda agent: "p") as algorithm:
        assert algorithm.get_policy("q").observation_space == gym.spaces.Discrete(2)


def test_a_custom_base_env_is_trained_through_the_registry() -> None:
    register_env("own_six_dicts", lambda context: SixDicts([ScriptedEnv(RETURNS, 0, "ab")], "now"))
    with build(
        "own_six_dicts", lambda agent: "p" if agent == "a" else "q", train_batch_size=20, num_sgd_iter=1
    ) as algorithm:
        assert set(algorithm.train()["info"]["learner"]) == {"p", "q"}


class NamedOnly(Together):
    """Names its agents as classic environments do, and gives each a space of its own."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        self._agent_ids, self.possible_agents = {0, 1}, []
        spaces: dict[Any, Any] = {0: gym.spaces.Discrete(2), 1: gym.spaces.Box(0, 1, (1,))}
        self.observation_space = gym.spaces.Dict(spaces)
        self.action_space = gym.spaces.Dict(dict.fromkeys(spaces, gym.spaces.Discrete(2)))


@pytest.mark.parametrize("policies", [("p0", "p1"), {"p0": PolicySpec(), "p1": PolicySpec()}])
def test_agents_that_an_environment_names_in_the_classic_way_give_their_policies_their_spaces(
    policies: Any,
) -> None:
    with build(NamedOnly, lambda agent_id: f"p{agent_id}", policies) as algo:
        seen = [algo.get_policy(name).observation_space for name in ("p0", "p1")]
    assert seen == [gym.spaces.Discrete(2), gym.spaces.Box(0, 1, (1,))]
