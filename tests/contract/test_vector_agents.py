"""Worlds that step as arrays give what the same worlds give one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv import CallOrderError, ConfigError, ContractError, VectorMultiAgentEnv, check_env, to_base_env
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.policy_map import PolicyMap
from tests.contract.scripted import (
    ACTIONS,
    AGENTS,
    OBS,
    TOGETHER,
    TURNS,
    Moment,
    Script,
    ScriptedEnv,
    altered,
)
from tests.properties.schedules import UNITS, as_found, by_agent, paid_in, sampler, scripts
from tests.worlds import InArrays

COMES_AND_GOES: Script = [
    [
        Moment("a"),
        Moment("ab", {"a": 1, "b": 2, "c": 3}),  # b is late; c is paid before it is there
        Moment("b", {"a": 4, "b": 5}),  # a pauses
        Moment("bc", {"a": 6, "c": 7}),
        Moment("ac", {"b": 8, "a": 9}, terminated="b", final="b"),  # b dies early
        Moment("ac", {"b": 10}, terminated="b"),  # paid after its end; its flag stays
        Moment("abc", {"b": 11, "a": 12}),  # b returns
        Moment("c", {"a": 14, "d": 15}, truncated="a", final="a"),
        Moment("bc", {"a": 16, "c": 17}, terminated="a", final="a", over="terminated"),
    ],
    [Moment("d"), Moment("cd", {"a": 2, "d": 3}), Moment("dc", {"d": 5}, over="truncated")],
]
IN_TURN: Script = [[*TURNS[0][:-1], altered(TURNS[0][-1], final="ab")], TURNS[1]]
SCRIPTS = {"together": TOGETHER, "in turn": IN_TURN, "comes and goes": COMES_AND_GOES}


class Stacked(VectorMultiAgentEnv):
    """Scripted games as arrays."""

    def __init__(self, games: Sequence[ScriptedEnv], as_array: bool = False) -> None:
        self.games = games
        self.num_envs = len(games)
        self.possible_agents = list(AGENTS)
        self.observation_spaces = dict.fromkeys(AGENTS, OBS)
        self.action_spaces = dict.fromkeys(AGENTS, ACTIONS)
        self.as_array = as_array

    def reset(self, *, seed: int | None = None) -> Any:
        self.obs = np.zeros((len(self.games), len(AGENTS), 6), np.float32)
        self.acting = np.zeros(self.obs.shape[:2], np.bool_)
        for index in range(self.num_envs):
            self._begin(index)
        return self.column(self.obs), {"acting": self.column(self.acting)}

    def _begin(self, index: int) -> None:
        self._show(index, self.games[index].reset()[0])

    def _show(self, index: int, obs: Mapping[str, Any]) -> None:
        for number, agent in enumerate(AGENTS):
            self.acting[index, number] = agent in obs
            if agent in obs:
                self.obs[index, number] = obs[agent]

    def step(self, actions: Any) -> Any:
        self.obs, self.acting = self.obs.copy(), self.acting.copy()
        rewards = np.zeros(self.acting.shape)
        terminated, truncated = np.zeros_like(self.acting), np.zeros_like(self.acting)
        over, finals = np.zeros(self.num_envs, np.bool_), np.zeros_like(self.obs)
        chosen = actions if self.as_array else np.stack([actions[agent] for agent in AGENTS], axis=1)
        for index, game in enumerate(self.games):
            mine = {agent: int(chosen[index, n]) for n, agent in enumerate(AGENTS) if self.acting[index, n]}
            obs, paid, ends, cuts, _ = game.step(mine)
            for number, agent in enumerate(AGENTS):
                rewards[index, number] = paid.get(agent, 0.0)
                own = bool(ends.get(agent)), bool(cuts.get(agent))
                terminated[index, number], truncated[index, number] = (
                    own if any(own) else (ends[ALL], cuts[ALL])
                )
            self._show(index, obs)
            self.acting[index] &= ~(terminated[index] | truncated[index])
            if ends[ALL] or cuts[ALL]:
                over[index] = True
                finals[index] = self.obs[index]
                self._begin(index)
        infos = {"acting": self.column(self.acting)}
        if over.any():
            infos |= {"final_obs": self.column(finals), "_final_obs": over}
        columns = (self.column(one) for one in (self.obs, rewards, terminated, truncated))
        return *columns, infos

    def column(self, array: Any) -> Any:
        return array if self.as_array else {agent: array[:, number] for number, agent in enumerate(AGENTS)}


def games(script: Script) -> list[ScriptedEnv]:
    return [
        ScriptedEnv([*script[world % len(script) :], *script[: world % len(script)]], world)
        for world in range(3)
    ]


SIZES: dict[str, Any] = {"rollout_fragment_length": 20, "train_batch_size": 60, "seed": 3}


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
@pytest.mark.parametrize("form", ["columns", "objects"])
def test_worlds_as_arrays_give_the_rows_of_worlds_one_by_one(
    script: Script, as_array: bool, form: str
) -> None:
    # A mapping function is asked about episodes, which are objects then.
    mapping = (lambda agent_id, episode: "default_policy") if form == "objects" else None
    config = {**SIZES, "multiagent": {"policies": ["default_policy"], "policy_mapping_fn": mapping}}
    each = games(script)
    copies = PPO(env=lambda context: each[context.vector_index], config={**config, "num_envs_per_worker": 3})
    with PPO(env=lambda context: Stacked(games(script), as_array), config=config) as arrays, copies:
        for _ in range(4):
            mine, theirs = arrays.train(), copies.train()
            for key in (
                "digest",
                "episode_reward_mean",
                "episode_len_mean",
                "agent_reward_mean",
                "unclaimed_rewards",
            ):
                assert mine[key] == theirs[key]
    assert mine["episodes_total"] > 30


@given(script=scripts, length=st.integers(1, 9))
@settings(as_found, max_examples=30)
def test_no_reward_of_worlds_as_arrays_is_lost(script: Script, length: int) -> None:
    worlds = games(script)
    mapping = PolicyMap(["even", "odd"], [("b", "odd"), ("*", "even")])
    loop = sampler(to_base_env(Stacked(worlds)), "networks", length, mapping=mapping, lockstep=True)
    got: Counter[str] = Counter()
    for _ in range(-(-30 // length)):
        # Sums of a fragment can be read apart, those of all may be too large.
        before = loop.metrics.unclaimed_rewards
        got.update(paid_in([loop.sample()]))
        got.update(by_agent(loop.metrics.unclaimed_rewards - before))
    got.update(by_agent(loop.held_rewards()))
    paid: Counter[str] = Counter()
    for world in worlds:
        paid.update({agent: int(reward) for agent, reward in world.paid.items()})
    assert {agent: got[agent] for agent in UNITS} == {agent: paid[agent] for agent in UNITS}


class Meadow(InArrays):
    """Three worlds of agents "a" and "b", whose episodes have four steps; `wrong` changes what the second step returns.

    An observation has a mask that forbids action 0 to "b".
    """

    num_envs, length, cut = 3, 4, True

    def __init__(self, wrong: Callable[[list[Any]], None] = lambda result: None) -> None:
        super().__init__()
        self.wrong = wrong
        parts = {
            "observation": gym.spaces.Box(-9, 9, (2,), np.float32),
            "action_mask": gym.spaces.MultiBinary(2),
        }
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Dict(parts))
        self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(2))
        self.chosen: list[Any] = []

    def observe(self) -> Any:
        seen = np.full((3, 2), self.at, np.float32)
        return {
            agent: {"observation": seen.copy(), "action_mask": np.array([[agent == "a", 1]] * 3, np.int8)}
            for agent in "ab"
        }

    def pay(self, actions: Any) -> Any:
        return dict.fromkeys("ab", np.ones(3))

    def done(self) -> Any:
        return dict.fromkeys("ab", np.full(3, self.at == 4))

    def step(self, actions: Any) -> Any:
        self.chosen.append(actions)
        result = list(super().step(actions))
        if len(self.chosen) == 2:
            self.wrong(result)
        return tuple(result)


def spoil(place: int, change: Callable[[Any], Any]) -> Callable[[list[Any]], None]:
    def wrong(result: list[Any]) -> None:
        result[place] = change(result[place])

    return wrong


def with_a(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda column: {**column, "a": change(column["a"])}


NAN = np.array([1.0, np.nan, 1.0])
WRONG: dict[str, tuple[Callable[[list[Any]], None], Sequence[str]]] = {
    "a shape": (spoil(0, with_a(lambda obs: {**obs, "observation": np.zeros((3, 5), np.float32)})), ["'a'", "[3, 5]"]),
    "a type": (spoil(0, with_a(lambda obs: {**obs, "observation": np.zeros((3, 2), "U1")})), ["'a'"]),
    "a missing entry": (spoil(0, with_a(lambda obs: {"action_mask": obs["action_mask"]})), ["'observation'"]),
    "a missing agent": (spoil(1, lambda rewards: {"a": rewards["a"]}), ["'b'"]),
    "another number of worlds": (spoil(2, with_a(lambda flags: flags[:2])), ["'a'", "[2]"]),
    "a reward that is not finite": (spoil(1, with_a(lambda rewards: NAN)), ["world 1", "'a'", "env step 2"]),
    "a mask without a choice": (
        spoil(0, with_a(lambda obs: {**obs, "action_mask": np.array([[1, 1], [1, 1], [0, 0]], np.int8)})),
        ["env 2", "'a'", "env step 2"],
    ),
    "flags that disagree": (spoil(4, lambda infos: {"final_obs": 0, "_final_obs": np.ones(3)}), ["final_obs"]),
    "a reset without flags": (
        lambda result: result[4].update(final_obs=result[0], _final_obs=np.array([0, 1, 0])),
        ["world 1", "'a'", "env step 2"],
    ),
    "no reset": (spoil(2, lambda flags: dict.fromkeys("ab", np.ones(3))), ["world 0", "env step 2"]),
    "an agent that acts though it is done": (
        lambda result: (
            result[2].update(b=np.array([0, 0, 1])),
            result[4].update(acting=dict.fromkeys("ab", np.ones(3))),
        )[-1],
        ["world 2", "'b'", "env step 2"],
    ),
    "no columns": (spoil(0, lambda obs: 3), ["int"]),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "named"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_array_is_refused_with_world_agent_and_step(
    wrong: Callable[[list[Any]], None], named: Sequence[str]
) -> None:
    config = {"rollout_fragment_length": 8, "train_batch_size": 24}
    with (
        PPO(env=lambda context: Meadow(wrong), config=config) as algo,
        pytest.raises(ContractError) as caught,
    ):
        algo.sample()
    assert all(name in str(caught.value) for name in named)
    assert [found.severity for found in check_env(Meadow(wrong))].count("error") > 0


def test_masks_of_worlds_as_arrays_are_kept_and_nothing_is_found() -> None:
    env = Meadow()
    assert check_env(Meadow()) == []
    with PPO(
        env=lambda context: env, config={"rollout_fragment_length": 40, "train_batch_size": 120}
    ) as algo:
        algo.sample()
    assert {action for actions in env.chosen for action in actions["b"].tolist()} == {1}
    assert {action for actions in env.chosen for action in actions["a"].tolist()} == {0, 1}


def test_a_reset_truncates_all_worlds_and_loses_nothing() -> None:
    base_env = to_base_env(Meadow())
    assert len(base_env.poll().joined) == 6
    with pytest.raises(ConfigError, match="try_reset: env 1"):
        base_env.try_reset(1)
    base_env.send_actions({index: {"a": 1, "b": 1} for index in range(3)})
    with pytest.raises(CallOrderError, match="poll"):
        base_env.try_reset()
    base_env.poll()
    obs, _ = base_env.try_reset(seed=1)
    base_env.try_reset(seed=2)
    assert {index: set(by_agent) for index, by_agent in obs.items()} == {key: {"a", "b"} for key in range(3)}
    ready = base_env.poll()
    assert [(end.reward, end.terminated, end.truncated) for end in ready.ended] == [(0.0, False, True)] * 6
    assert [(end.env_id, end.env_steps) for end in ready.episodes] == [(0, 1), (1, 1), (2, 1)]
    assert len(ready.joined) == len(ready.slots) == 6
