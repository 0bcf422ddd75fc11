"""Agents that are shown more of the world than their own observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import PPO
from menv.errors import ContractError, MenvError
from menv.multi_agent_env import AgentDict
from tests.bad_input.broken_envs import SMALL, checked
from tests.contract.scripted import SixDicts
from tests.worlds import Several, like

OWN = gym.spaces.Box(-100.0, 100.0, (1,), np.float32)
BOTH = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
LENGTH = 6


class Pair(Several):
    """Each sees the step, "b" negated; "b" leaves after `leaves` steps, the episode is truncated after `LENGTH`."""

    observation_space, length, cut = OWN, LENGTH, True

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.leaves = self.config.get("leaves", LENGTH)

    def shown(self) -> Any:
        return ["a", "b"] if self.at <= self.leaves else ["a"]

    def see(self, agent: Any) -> Any:
        return np.array([self.at if agent == "a" else -self.at], np.float32)

    def dead(self, actions: Any) -> Any:
        return ["b"] if self.at == self.leaves < LENGTH else []


def beside(
    agent_obs: AgentDict, worker: Any, base_env: Any, policies: Any, episode: Any, **kw: Any
) -> AgentDict:
    """Show each agent the other's observation, 50 where there is none."""
    nobody = np.array([50.0], np.float32)
    other = {"a": "b", "b": "a"}
    return {
        agent: np.concatenate((obs, agent_obs.get(other[agent], nobody))) for agent, obs in agent_obs.items()
    }


def config(fn: Any = beside, space: Any = BOTH, **more: Any) -> dict[str, Any]:
    specs = {"a": PolicySpec(observation_space=space), "b": PolicySpec(observation_space=space)}
    multiagent = {"policies": specs, "policy_mapping_fn": lambda agent: agent, "observation_fn": fn}
    return {**SMALL, "rollout_fragment_length": 13, "multiagent": multiagent, **more}


@pytest.mark.parametrize("leaves", [LENGTH, 3])
def test_rows_and_last_observations_hold_what_the_function_shows(leaves: int) -> None:
    with PPO(env=Pair, config=config(env_config={"leaves": leaves}, seed=1)) as algo:
        for _ in range(3):
            batch = algo.sample()
            for agent, sign in (("a", 1.0), ("b", -1.0)):
                part = batch[agent]
                at = sign * part["obs"][:, 0]
                there = (at <= leaves) | (agent == "b")
                np.testing.assert_array_equal(part["obs"][:, 1], np.where(there, -sign * at, 50.0))
                after = sign * part["new_obs"][:, 0]
                np.testing.assert_array_equal(after, at + 1)
                # The step in which "b" leaves shows it once more, to both.
                there = (after <= leaves) | (agent == "b")
                np.testing.assert_array_equal(part["new_obs"][:, 1], np.where(there, -sign * after, 50.0))


# "a" leaves at step 2, when nobody is asked; "b" is asked from step 3 on.
Relay = like(
    Several,
    observation_space=OWN,
    length=5,
    shown=lambda self: ["a"] if self.at < 3 else ["b"],
    dead=lambda self, actions: ["a"] if self.at == 2 else [],
    pay=lambda self, actions: {},
)


def own_base_env(context: Any) -> SixDicts:
    return SixDicts([Relay()], "now")


@pytest.mark.parametrize("leaves", [LENGTH, 3])
def test_the_function_receives_the_length_of_the_episode(leaves: int) -> None:
    told = []

    def counting(agent_obs: AgentDict, episode: Any, **kw: Any) -> AgentDict:
        told.append((episode.length, int(abs(next(iter(agent_obs.values())))[0])))
        return agent_obs

    with PPO(
        env=Pair, config=config(counting, OWN, env_config={"leaves": leaves}, num_envs_per_worker=2)
    ) as algo:
        for _ in range(3):
            algo.sample()
    assert {at for _, at in told} == set(range(LENGTH + 1))
    assert all(length == at for length, at in told)


@pytest.mark.parametrize("kind", [Relay, own_base_env])
def test_the_function_is_shown_observations_of_one_step_at_a_time(kind: Any) -> None:
    shown: list[dict[Any, float]] = []

    def spy(agent_obs: AgentDict, **kw: Any) -> AgentDict:
        shown.append({agent: float(obs[0]) for agent, obs in agent_obs.items()})
        return agent_obs

    with PPO(env=kind, config=config(spy, OWN)) as algo:
        algo.sample()
    assert shown[:6] == [{"a": 0}, {"a": 1}, {"a": 2}, {"b": 3}, {"b": 4}, {"b": 5}]


def test_the_function_is_given_the_episode_the_environments_and_the_policies() -> None:
    calls: list[dict[str, Any]] = []

    def spy(agent_obs: AgentDict, **kw: Any) -> AgentDict:
        calls.append(kw)
        return beside(agent_obs, None, None, None, None)

    with PPO(env=Pair, config=config(spy)) as algo:
        algo.train()
        assert {len(call["policies"]) for call in calls} == {2}
        assert calls[0]["policies"]["a"] is algo.get_policy("a")
    assert {set(call) == {"worker", "base_env", "policies", "episode"} for call in calls} == {True}
    assert len({call["episode"].episode_id for call in calls}) == -(-13 // LENGTH)
    assert calls[0]["episode"].policy_for("b") == "b"
    assert calls[0]["worker"].base_env is calls[0]["base_env"]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda agent_obs, **kw: list(agent_obs), "observation_fn"),
        (lambda agent_obs, **kw: {"a": np.zeros(2, np.float32)}, "'b'"),
        (lambda agent_obs, **kw: 1 / 0, "ZeroDivisionError"),
        (lambda agent_obs, **kw: agent_obs, r"\(2,\)"),
        (lambda: {}, "TypeError"),
    ],
    ids=["no dict", "an agent left out", "a crash", "another space", "a wrong signature"],
)
def test_a_function_that_cannot_work_is_named(fn: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message) as caught:
        PPO(env=Pair, config=config(fn)).train()
    checked(str(caught.value))


def test_a_space_that_contradicts_the_environment_needs_a_function_that_makes_it() -> None:
    with pytest.raises(MenvError, match="observation_space"):
        PPO(env=Pair, config=config(None))
