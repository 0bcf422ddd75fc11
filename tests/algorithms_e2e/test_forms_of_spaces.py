"""Spaces as people write them: by dict, property and method, after the first reset, and wider than needed."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from menv import PolicySpec, check_env
from menv.algorithms import PPO
from menv.base_env import ALL, AgentId
from menv.errors import ConfigError
from menv.multi_agent_env import AgentDict
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.worlds import Alone, Several, like

UNIT, TWO = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
SEEN: dict[str, gym.Space[Any]] = {"car": UNIT, "light": spaces.Discrete(4)}
DONE: dict[str, gym.Space[Any]] = {"car": TWO, "light": spaces.Discrete(5)}
SMALL = {
    "seed": 1, "rollout_fragment_length": 12, "train_batch_size": 12, "sgd_minibatch_size": 12, "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [4]},
}  # fmt: skip


class Crossing(Several):
    """A car and a light; an episode takes 4 env steps, each of which pays 2. Subclasses declare the spaces."""

    possible_agents: Any = ()
    observation_space: Any = None
    action_space: Any = None
    length = 4

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.declare()

    def declare(self) -> None:
        self.possible_agents = list(SEEN)

    def find_out(self) -> None: ...

    def observe(self) -> AgentDict:
        return {"car": np.zeros(3, np.float32), "light": 3}

    def reset(self, **kwargs: Any) -> Any:
        self.find_out()
        return super().reset(**kwargs)

    def pay(self, actions: Any) -> Any:
        assert all(DONE[agent].contains(action) for agent, action in actions.items())
        return dict.fromkeys(SEEN, 1.0)


class InDictSpaces(Crossing):
    def declare(self) -> None:
        self.observation_spaces, self.action_spaces = spaces.Dict(SEEN), spaces.Dict(DONE)


def written(name: str, **members: Any) -> type[Crossing]:
    """Return a class with these methods and properties."""
    return type(name, (Crossing,), members)


def always(value: Any) -> property:
    return property(lambda self: value)


AsProperties = written(
    "AsProperties", observation_spaces=always(SEEN), action_spaces=always(spaces.Dict(DONE))
)
AsOneProperty = written(
    "AsOneProperty", observation_space=always(spaces.Dict(SEEN)), action_space=always(spaces.Dict(DONE))
)
METHODS = {
    "observation_space": lambda self, agent: SEEN[agent],
    "action_space": lambda self, agent: DONE[agent],
}
AsMethods = written("AsMethods", **METHODS)
NoAgents = written("NoAgents", **METHODS, declare=lambda self: None)
# As sumo-rl has them, beside properties that tell the first agent's.
AsMethodsOfAll = written(
    "AsMethodsOfAll",
    observation_spaces=lambda self, ts_id: SEEN[ts_id],
    action_spaces=lambda self, ts_id: DONE[ts_id],
    observation_space=always(SEEN["car"]),
    action_space=always(DONE["car"]),
)
LateProperties = written(
    "LateProperties",
    declare=lambda self: None,
    find_out=lambda self: setattr(self, "names", list(SEEN)),
    observation_spaces=property(lambda self: {name: SEEN[name] for name in self.names}),
    action_spaces=property(lambda self: {name: DONE[name] for name in self.names}),
)


class LateAgents(Crossing):
    def declare(self) -> None: ...

    def find_out(self) -> None:
        self.possible_agents = list(SEEN)
        self.observation_spaces, self.action_spaces = SEEN, DONE


class LateSpaces(Crossing):
    def find_out(self) -> None:
        self.observation_space, self.action_space = spaces.Dict(SEEN), spaces.Dict(DONE)


def to_own_policy(agent_id: AgentId, *args: Any, **kwargs: Any) -> str:
    return str(agent_id)


def league(env: Any, **settings: Any) -> PPO:
    multiagent = {"policies": ["car", "light"], "policy_mapping_fn": to_own_policy}
    return PPO(env=env, config={**SMALL, "multiagent": multiagent, **settings})


DECLARED = [InDictSpaces, AsProperties, AsOneProperty, AsMethods, AsMethodsOfAll]
LATE = [LateAgents, LateSpaces, LateProperties, NoAgents]


@pytest.mark.parametrize("kind", [*DECLARED, *LATE])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="in process"),
        pytest.param({"num_workers": 1, "engine": "process"}, id="workers", marks=pytest.mark.slow),
        pytest.param(
            {"remote_worker_envs": True, "engine": "process"},
            id="remote environments",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_spaces_are_found_however_they_are_written(kind: Any, settings: dict[str, Any]) -> None:
    with league(kind, **settings) as algo:
        assert algo.train()["episode_reward_mean"] == 8.0
        for agent, space in SEEN.items():
            assert algo.get_policy(agent).observation_space == space
            assert algo.get_policy(agent).action_space == DONE[agent]
        algo.add_policy("again", policy_mapping_fn=lambda agent_id: "again" if agent_id == "car" else "light")
        assert algo.train()["episode_reward_mean"] == 8.0


@pytest.mark.parametrize("kind", [*DECLARED, *LATE])
def test_the_checker_finds_no_error_in_any_of_them(kind: Any) -> None:
    assert {finding.code for finding in check_env(kind, env_steps=30)} <= {"ME006"}


def test_a_single_agents_spaces_may_be_known_after_the_first_reset() -> None:
    class Late(Alone):
        observation_space, action_space, length = None, None, 4

        def see(self) -> Any:
            self.observation_space, self.action_space = UNIT, TWO
            return np.zeros(3, np.float32)

    with PPO(env=Late, config=SMALL) as algo:
        assert algo.train()["episode_reward_mean"] == 4.0
    assert check_env(Late, env_steps=30) == []


@pytest.mark.parametrize("interface", ["parallel", "env"])
def test_spaces_of_generated_agents_are_those_of_the_first_reset(interface: str) -> None:
    with warnings.catch_warnings():
        # PettingZoo's test package imports games in a way that PettingZoo has deprecated.
        warnings.simplefilter("ignore")
        game: Any = importlib.import_module(f"pettingzoo.test.example_envs.generated_agents_{interface}_v0")

    class Generated(game.parallel_env if interface == "parallel" else game.raw_env):  # type: ignore[misc]
        """Agents of ever new types, all of which see and do the same."""

        def add_type(self) -> Any:
            name = super().add_type()
            self._obs_spaces[name], self._act_spaces[name] = spaces.Box(0.0, 1.0, (4,)), spaces.Discrete(3)
            return name

    wrapper = ParallelPettingZooEnv if interface == "parallel" else PettingZooEnv
    with PPO(env=lambda context: wrapper(Generated()), config={**SMALL, "train_batch_size": 60}) as algo:
        assert algo.train()["num_agent_steps_sampled"] > 0
        assert algo.get_policy().observation_space == spaces.Box(0.0, 1.0, (4,))


class OfSeveral(Alone):
    """Steps return dicts by agent."""

    observation_space: Any = UNIT
    length = 0

    def see(self) -> Any:
        return dict.fromkeys("ab", np.zeros(3, np.float32))

    def step(self, action: Any) -> Any:
        return self.see(), dict.fromkeys("ab", 1.0), {ALL: False}, {ALL: False}, {}


DERIVE = "derive a class of several agents, whose steps return dicts by agent, from menv.MultiAgentEnv"


@pytest.mark.parametrize(
    ("observed", "acted"),
    [(dict.fromkeys("ab", UNIT), dict.fromkeys("ab", TWO)), ([UNIT] * 2, [TWO] * 2), (lambda _: UNIT, lambda _: TWO)],
    ids=["dicts", "lists", "methods"],
)  # fmt: skip
def test_a_class_of_several_agents_below_gymnasium_is_refused_when_the_algorithm_is_built(
    observed: Any, acted: Any
) -> None:
    class Team(OfSeveral):
        observation_space, action_space = staticmethod(observed) if callable(observed) else observed, acted

    with pytest.raises(ConfigError, match=DERIVE):
        PPO(env=Team, config=SMALL)
    assert [finding.code for finding in check_env(Team)] == ["ME007"]


@pytest.mark.parametrize("where", ["spec", "config", "of each agent"])
def test_an_observation_space_wider_than_the_environments_is_used(where: str) -> None:
    wide = {"car": spaces.Box(-2.0, np.inf, (3,)), "light": spaces.Discrete(6)}
    settings: dict[str, Any] = {}
    if where == "spec":
        policies = {agent: PolicySpec(observation_space=wide[agent]) for agent in wide}
        settings["multiagent"] = {"policies": policies, "policy_mapping_fn": to_own_policy}
    else:
        settings["observation_space"] = wide if where == "config" else spaces.Dict(wide)
    with league(InDictSpaces, **settings) as algo:
        assert algo.train()["episode_reward_mean"] == 8.0
        assert algo.get_policy("light").observation_space == spaces.Discrete(6)
        # One flag for each choice of the space that was declared.
        assert algo.sample()["light"]["obs"].shape == (12, 6)


@pytest.mark.parametrize(
    "narrow", [spaces.Box(-0.5, 1.0, (3,)), spaces.Box(-1.0, 1.0, (4,)), spaces.Box(-1, 1, (3,), np.int8)]
)
def test_an_observation_space_that_does_not_hold_the_environments_is_refused(narrow: Any) -> None:
    with pytest.raises(ConfigError, match="'car'"):
        league(InDictSpaces, observation_space={"car": narrow})


def test_an_action_space_may_be_narrower_than_the_environments_and_not_wider() -> None:
    with league(InDictSpaces, action_space={"light": spaces.Discrete(2)}) as algo:
        assert set(algo.sample()["light"]["actions"].tolist()) <= {0, 1}
    with pytest.raises(ConfigError):
        league(InDictSpaces, action_space={"light": spaces.Discrete(6)})


@pytest.mark.parametrize("number", [0.25, 1], ids=["float64", "int64"])
def test_observations_of_another_number_type_are_cast_with_one_warning(number: float) -> None:
    with league(like(InDictSpaces, observe=lambda self: {"car": np.full(3, number), "light": 3})) as algo:
        with pytest.warns(UserWarning, match="they are cast, because no value is lost") as warned:
            rows = algo.sample()["car"]["obs"]
        assert len(warned) == 1
        # And no other one, which would be an error.
        algo.train()
    assert rows.dtype == np.float32
    assert (rows == number).all()
