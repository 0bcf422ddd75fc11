"""The class that users subclass: agents, spaces, and what it says when something is missing."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import pytest

from menv.errors import ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv
from menv.vector_env import VectorEnv
from menv.wrappers import RecordEpisodes
from tests.worlds import Several

SMALL, LARGE = gym.spaces.Discrete(2), gym.spaces.Discrete(9)


class Duel(MultiAgentEnv):
    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["ann", "bob"]
        self.agents = ["ann"]
        self.observation_spaces = {"ann": SMALL, "bob": LARGE}
        self.action_spaces = {"ann": LARGE, "bob": SMALL}


class Forgetful(MultiAgentEnv):
    def __init__(self) -> None:
        self.agents.append("ann")


class Declared(MultiAgentEnv):
    possible_agents = ["ann", "bob"]  # noqa: RUF012 - what users write
    observation_space = gym.spaces.Dict({"ann": SMALL, "bob": LARGE})
    action_space = SMALL


class Computed(MultiAgentEnv):
    @property
    def agents(self) -> list[Any]:  # type: ignore[override]
        return ["ann"]


def test_agents_are_counted_and_instances_do_not_share_the_list() -> None:
    env = Duel()
    assert (env.num_agents, env.max_num_agents) == (1, 2)
    assert env.get_agent_ids() == {"ann", "bob"}
    env.num_agents = 7
    assert env.num_agents == 7
    assert Computed().num_agents == 1
    # Also without super().__init__().
    first, second = Forgetful(), Forgetful()
    assert first.agents == second.agents == ["ann"]
    assert first.max_num_agents == 0
    Declared().possible_agents.append("cat")
    assert Declared().possible_agents == ["ann", "bob"]


def with_ids(*ids: int) -> MultiAgentEnv:
    """Return an environment that names its agents as those of RLlib did."""
    env = MultiAgentEnv()
    env._agent_ids = {*ids}
    return env


def test_ids_of_the_classic_interface_are_known() -> None:
    env = with_ids(1, 2)
    env.action_space = SMALL
    assert env.get_agent_ids() == {1, 2}
    assert set(env.action_space_sample()) == {1, 2}


class Cart:
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("inner", [gym.Env, Cart])
def test_objects_that_a_classic_environment_keeps_in_agents_are_not_ids(inner: type[Any]) -> None:
    env = with_ids(0, 1)
    env.agents = [inner(), inner()]
    assert env.get_agent_ids() == {0, 1}


def test_the_base_class_has_a_separate_set_of_ids_for_each_instance() -> None:
    first, second = Forgetful(), Forgetful()
    first._agent_ids.add("bob")
    assert first.get_agent_ids() == {"bob"}
    assert second.get_agent_ids() == {"ann"}


class Seeded(Duel):
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        super().reset(seed=seed, options=options)
        return {"ann": int(self.np_random.integers(1000))}, {}


def test_a_subclass_may_call_super_reset_to_seed_its_generator() -> None:
    first, second = Seeded(), Seeded()
    drawn = [first.reset(seed=7), first.reset()]
    assert drawn == [second.reset(seed=7), second.reset()]
    assert drawn[0] != drawn[1]


def test_a_dict_per_agent_decides_before_a_shared_space() -> None:
    env = Duel()
    env.observation_space = SMALL
    assert env.get_observation_space("bob") == LARGE
    with pytest.raises(ContractError, match="'cat'"):
        env.get_observation_space("cat")


def test_a_dict_space_keyed_by_agents_is_looked_into_and_another_one_is_shared() -> None:
    env = Declared()
    assert env.get_observation_space("bob") == LARGE
    assert env.get_action_space("bob") == SMALL
    with pytest.raises(ContractError, match="Declared"):
        env.get_observation_space("cat")
    env.observation_space = gym.spaces.Dict({"position": SMALL})
    assert env.get_observation_space("bob") == env.observation_space


def test_no_space_at_all_is_an_error_that_names_the_agent() -> None:
    with pytest.raises(ContractError, match="'ann'"):
        MultiAgentEnv().get_action_space("ann")


def test_elements_are_contained_if_each_is_in_its_agents_space_and_samples_are() -> None:
    env = pickle.loads(pickle.dumps(Duel()))
    assert env.observation_space_contains({"ann": 1, "bob": 8})
    assert env.observation_space_contains({})
    assert not env.observation_space_contains({"ann": 8})
    assert env.action_space_contains({"ann": 8})
    assert not env.observation_space_contains({"cat": 1})
    assert not env.action_space_contains({"cat": 1})
    assert list(env.observation_space_sample()) == ["ann", "bob"]
    sample = env.action_space_sample(["bob"])
    assert list(sample) == ["bob"]
    assert env.action_space_contains(sample)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_missing_method_is_named(method: str) -> None:
    arguments: list[AgentDict] = [{}] if method == "step" else []
    with pytest.raises(ContractError, match=method):
        getattr(Duel(), method)(*arguments)


def test_it_is_not_a_gymnasium_env() -> None:
    assert not issubclass(MultiAgentEnv, gym.Env)
    assert MultiAgentEnv().render() is None
    MultiAgentEnv().close()


def test_to_base_env_gives_rows_of_all_copies() -> None:
    base_env = Several().to_base_env(lambda index: Several(), num_envs=3)
    assert len(base_env.poll().slots) == 6
    base_env.stop()


def test_unwrapped_is_the_innermost_environment() -> None:
    duel = Duel()
    assert duel.unwrapped is duel
    grouped = duel.with_agent_groups({"both": ["ann", "bob"]})
    assert grouped.unwrapped is duel
    assert RecordEpisodes(grouped, "unused").unwrapped is duel
    rows = VectorEnv.vectorize_gym_envs(existing_envs=[gym.make("CartPole-v1")])
    assert rows.unwrapped is rows
