"""Environments of the old gym API, wrapped and not wrapped."""

from __future__ import annotations

import types
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.base_env import ALL
from menv.errors import ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv
from menv.wrappers import MultiAgentGym
from menv.wrappers.legacy_gym import LegacyGym, LegacyMultiAgent, to_gymnasium
from tests.bad_input.broken_envs import SMALL, checked, refusal
from tests.worlds import Alone, Several, like
from tests.wrappers.test_multi_agent_gym import Foragers

BOX = gym.spaces.Box(0.0, 9.0, (1,), np.float32)


class OldCorridor:
    """Walks to cell `length`; the old API, without a base class."""

    metadata = {"render.modes": ["ansi"], "video.frames_per_second": 5}  # noqa: RUF012

    def __init__(self, length: int = 4, limit: int = 99) -> None:
        self.observation_space: Any = BOX
        self.action_space: Any = gym.spaces.Discrete(2)
        self.length, self.limit = length, limit
        self.cell = self.steps = 0

    def reset(self) -> Any:
        self.cell = self.steps = 0
        return np.zeros(1, np.float32)

    def step(self, action: int) -> Any:
        self.cell, self.steps = max(0, self.cell + (1 if action else -1)), self.steps + 1
        out, late = self.cell == self.length, self.steps == self.limit
        info = {"TimeLimit.truncated": not out} if late else {}
        return np.array([self.cell], np.float32), float(out), np.bool_(out or late), info

    def render(self, mode: str = "human") -> str:
        return f"{mode} {self.cell}"


class Seeded(OldCorridor):
    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int] = []

    def seed(self, seed: int | None = None) -> list[Any]:
        self.seeds.append(seed or 0)
        return [seed]


class OldTeam:
    """Two agents; agent b is done first. The old multi-agent API, without a base class."""

    observation_space = BOX
    action_space = gym.spaces.Discrete(2)
    _agent_ids = {"b", "a"}  # noqa: RUF012
    cut_by_limit = False

    def reset(self) -> AgentDict:
        self.steps = 0
        return {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}

    def step(self, action_dict: AgentDict) -> Any:
        self.steps += 1
        obs = {agent: np.full(1, self.steps, np.float32) for agent in action_dict}
        over = self.steps == 3
        infos = {"a": {"TimeLimit.truncated": over and self.cut_by_limit}} if "a" in obs else {}
        return obs, dict.fromkeys(obs, 1.0), {"b": self.steps == 2, ALL: over}, infos


def test_an_old_environment_becomes_a_gymnasium_environment() -> None:
    env = LegacyGym(OldCorridor(length=2))
    assert isinstance(env, gym.Env)
    obs, info = env.reset()
    assert (obs.tolist(), info) == ([0.0], {})
    assert env.step(1)[1:] == (0.0, False, False, {})
    obs, reward, terminated, truncated, _ = env.step(1)
    assert (obs.tolist(), reward, terminated, truncated) == ([2.0], 1.0, True, False)
    assert type(terminated) is bool


@pytest.mark.parametrize(("action", "flags"), [(0, (False, True)), (1, (True, False))])
def test_done_by_a_time_limit_is_a_truncation_unless_the_rules_ended_it_too(
    action: int, flags: tuple[bool, bool]
) -> None:
    env = LegacyGym(OldCorridor(length=3, limit=3))
    env.reset()
    outcomes = [env.step(action) for _ in range(3)]
    assert outcomes[1][2:4] == (False, False)
    assert outcomes[2][2:4] == flags


class Later(Seeded):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append((seed, options))  # type: ignore[arg-type]
        return super().reset()


OldWrapper = like(
    Seeded, unwrapped=OldCorridor(), reset=lambda self, **kwargs: self.unwrapped.reset(**kwargs)
)


@pytest.mark.parametrize(("kind", "seen"), [
    (Seeded, [5, 7]), (OldWrapper, [5, 7]), (Later, [(5, {"x": 1}), (None, None), (7, None)]),
])  # fmt: skip
def test_seeds_reach_the_reset_if_it_takes_them_and_the_seed_method_otherwise(kind: Any, seen: Any) -> None:
    env: Any = LegacyGym(old := kind())
    env.reset(seed=5, options={"x": 1})
    env.reset()
    env.reset(seed=7)
    assert old.seeds == seen
    assert LegacyGym(OldCorridor()).reset(seed=3)[0].tolist() == [0.0]


def test_an_old_environment_trains_with_a_seed_for_every_reset() -> None:
    made: list[Seeded] = []

    def make(context: Any) -> Any:
        made.append(Seeded())
        return LegacyGym(made[-1])

    with PPO(
        env=make, config={**SMALL, "num_envs_per_worker": 2, "train_batch_size": 100, "seed": 1}
    ) as algo:
        result = algo.train()
    assert result["episode_reward_mean"] == 1.0
    seeds = [*made[0].seeds, *made[1].seeds]
    assert len(set(seeds)) == len(seeds) > 2


def test_what_is_in_the_present_form_passes_through() -> None:
    class Half(OldCorridor):
        def reset(self) -> Any:
            return super().reset(), {"cell": 0}

        def step(self, action: int) -> Any:
            obs, reward, done, info = super().step(action)
            return obs, reward, False, done, info

    env = LegacyGym(Half(length=1))
    assert env.reset()[1] == {"cell": 0}
    assert env.step(1)[2:4] == (False, True)


def test_rendering_knows_the_old_mode() -> None:
    env = LegacyGym(OldCorridor(), render_mode="ansi")
    assert (env.render(), LegacyGym(OldCorridor()).render()) == ("ansi 0", "human 0")
    assert env.metadata == {"render_modes": ["ansi"], "video.frames_per_second": 5}
    env.close()


def test_an_old_environment_of_many_agents_becomes_a_multi_agent_environment() -> None:
    env = LegacyGym(OldTeam())
    assert isinstance(env, MultiAgentEnv)
    assert not isinstance(env, gym.Env)
    assert env.possible_agents == ["a", "b"]
    assert env.get_observation_space("a") == BOX
    obs, infos = env.reset(seed=1)
    assert (set(obs), infos) == ({"a", "b"}, {})
    env.step({"a": 0, "b": 0})
    _, _, terminateds, truncateds, _ = env.step({"a": 0, "b": 0})
    assert terminateds == {"b": True, ALL: False}
    assert truncateds == {"b": False, ALL: False}
    assert env.agents == ["a"]


def without_truncation(base: Any) -> Any:
    """Return a class whose steps return four values."""

    def step(self: Any, action: Any) -> Any:
        obs, rewards, dones, _, infos = base.step(self, action)
        return obs, rewards, dones, infos

    return like(base, observation_space=BOX, step=step)


OldStepGym, OldStepMany = without_truncation(Alone), without_truncation(Several)
OldGymEnv = like(OldStepGym, reset=lambda self: Alone.reset(self)[0])
OldResetMany = like(OldStepMany, reset=lambda self, **kwargs: Several.reset(self)[0])


@pytest.mark.parametrize("env", [OldGymEnv, OldStepGym, OldResetMany, OldStepMany])
def test_an_old_environment_without_the_wrapper_is_pointed_to_it(env: Any) -> None:
    assert "menv.wrappers.LegacyGym" in refusal(env, error=ContractError)
    with PPO(env=lambda context: LegacyGym(env()), config={**SMALL, "train_batch_size": 40}) as algo:
        assert algo.train()["episodes_total"] > 0


def test_an_old_reset_without_a_seed_is_pointed_to_the_wrapper() -> None:
    assert "menv.wrappers.LegacyGym" in refusal(OldGymEnv, {"seed": 1}, error=ContractError)


@pytest.mark.parametrize("env", [OldCorridor, 5, types.SimpleNamespace(reset=len, step=len)], ids=str)
def test_other_objects_than_old_environments_are_refused(env: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        LegacyGym(env)
    checked(str(caught.value))


ONE, TEAM = LegacyGym, LegacyMultiAgent


@pytest.mark.parametrize(("kind", "result"), [
    *((kind, result) for kind in (ONE, TEAM) for result in [(1, 2, 3), None, tuple(range(6))]),
    (ONE, (0, 1.0, [False, False], {})), (TEAM, ({}, {}, {"a": [False], ALL: False}, {})), (TEAM, ({}, {}, False, {})),
])  # fmt: skip
def test_a_step_of_neither_api_and_dones_that_are_not_flags_are_refused(kind: Any, result: Any) -> None:
    old = types.SimpleNamespace(
        reset=len, step=lambda action: result, observation_space=BOX, action_space=BOX
    )
    if kind is TEAM:
        old.agents = ["a"]
    with pytest.raises(ContractError, match=r"step|done") as caught:
        kind(old).step({})
    checked(str(caught.value))


def old(kind: str, **attributes: Any) -> Any:
    """Return what looks like a space of the old package."""
    return type(kind, (), attributes)()


@pytest.mark.parametrize(("space", "expected"), [
    (old("Discrete", n=3), gym.spaces.Discrete(3)),
    (old("Discrete", n=np.int64(3), shape=(), start=2), gym.spaces.Discrete(3, start=2)),
    (old("MultiBinary", n=3), gym.spaces.MultiBinary(3)),
    (old("MultiBinary", n=(2, 2), shape=(2, 2)), gym.spaces.MultiBinary((2, 2))),
    (old("MultiDiscrete", nvec=[2, 3], shape=(2,)), gym.spaces.MultiDiscrete([2, 3])),
    (old("Box", low=np.zeros(2), high=np.full(2, 1e300)), gym.spaces.Box(0.0, np.inf, (2,), np.float32)),
    (old("Box", low=np.zeros(2, np.uint8), high=np.full(2, 255), dtype=np.dtype("uint8")),
     gym.spaces.Box(0, 255, (2,), np.uint8)),
    (old("Dict", spaces={"x": old("Discrete", n=2)}), gym.spaces.Dict({"x": gym.spaces.Discrete(2)})),
    (old("Tuple", spaces=(old("Discrete", n=2), BOX)), gym.spaces.Tuple([gym.spaces.Discrete(2), BOX])),
])  # fmt: skip
def test_old_spaces_become_gymnasium_spaces_with_the_same_elements(space: Any, expected: Any) -> None:
    assert to_gymnasium(space) == expected


def test_the_place_of_an_unknown_space_is_named() -> None:
    with pytest.raises(ConfigError, match="'x'") as caught:
        to_gymnasium(old("Dict", spaces={"x": old("Tuple", spaces=[BOX, old("Graph")])}))
    checked(str(caught.value))


# Environments of the old gym API whose agents have a place in lists, in `MultiAgentGym(LegacyGym(env))`.


class OldForagers:
    """Foragers that return four values, in lists, and have lists of spaces; a time limit ends them."""

    def __init__(self) -> None:
        self.new = Foragers()
        spaces: list[Any] = [self.new.observation_space, self.new.action_space]
        self.observation_space, self.action_space = map(list, spaces)

    def reset(self) -> Any:
        return list(self.new.reset()[0])

    def step(self, action: Any) -> Any:
        obs, rewards, over, _, _ = self.new.step(action)
        return list(obs), rewards, [over] * 3, {"TimeLimit.truncated": over}


def test_lists_of_one_for_each_agent_are_those_of_the_present_form() -> None:
    old, new = MultiAgentGym(LegacyGym(OldForagers())), MultiAgentGym(Foragers())
    assert old.observation_spaces == new.observation_spaces
    assert old.action_spaces == new.action_spaces
    assert old.reset()[0] == new.reset()[0]
    over = False
    while not over:
        answers = dict.fromkeys(new.agents, np.int64(1))
        obs, rewards, terminateds, truncateds, _ = old.step(answers)
        wanted = new.step(answers)
        assert (obs, rewards) == wanted[:2]
        over = wanted[2][ALL]
        assert (terminateds[ALL], truncateds[ALL]) == (False, over)
    assert old.agents == []
