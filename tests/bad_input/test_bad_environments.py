"""Environments that break the contract elsewhere: flags, rewards, masks, old interfaces, crashes."""

from __future__ import annotations

import traceback
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv import register_env
from menv.adapters.convert import to_local_base_env
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.errors import ConfigError, ContractError, EnvCrashError, UnknownNameError
from menv.multi_agent_env import AgentDict
from tests.bad_input.broken_envs import GOOD, UNIT, Faulty, FaultyGym, checked, refusal, seeing


@pytest.mark.parametrize("missing", [2, 3])
def test_a_missing_all_is_named(missing: int) -> None:
    class Forgets(Faulty):
        def step(self, action_dict: AgentDict) -> Any:
            result = list(super().step(action_dict))
            result[missing] = {"ann": False}
            return tuple(result)

    message = refusal(Forgets, error=ContractError)
    assert "env 0 step, env step" in message
    assert f"{('terminateds', 'truncateds')[missing - 2]} has no '__all__'" in message


def test_a_reward_for_a_stranger_is_an_error_at_the_end_of_its_episode() -> None:
    class Pays(Faulty):
        def step(self, action_dict: AgentDict) -> Any:
            obs, rewards, *rest = super().step(action_dict)
            return obs, {**rewards, "annn": 2.5}, *rest

    message = refusal(Pays, error=ContractError)
    assert "env 0 step, env step 5 of the episode" in message
    assert "'annn', which never appeared" in message
    assert "possible_agents [\"'ann'\", \"'bob'\"]" in message or "'ann'" in message


def test_a_reward_for_an_unlisted_agent_that_appears_later_is_fine() -> None:
    class Grows(Faulty):
        def step(self, action_dict: AgentDict) -> Any:
            obs, rewards, *rest = super().step(action_dict)
            return ({**obs, "eve": GOOD} if self.at > 2 else obs), {**rewards, "eve": 1.0}, *rest

    with PPO(env=Grows, config={"rollout_fragment_length": 10}) as algorithm:
        assert algorithm.sample()["default_policy"]["rewards"].sum() == 30.0


MASKED = gym.spaces.Dict({"action_mask": gym.spaces.Box(0, 1, (2,), np.int8), "observation": UNIT})
MASKED_GOOD = {"action_mask": np.ones(2, np.int8), "observation": GOOD}


@pytest.mark.parametrize("when", [0, 3])
def test_a_mask_that_allows_nothing_names_agent_and_step(when: int) -> None:
    bad = {**MASKED_GOOD, "action_mask": np.zeros(2, np.int8)}
    message = refusal(seeing(bad, MASKED, MASKED_GOOD, when), error=ContractError)
    assert f"env 0, agent 'bob', env step {when}" in message
    assert "obs['action_mask']: allows none of 2 actions, expected at least one" in message


def test_the_mask_of_a_final_observation_may_allow_nothing() -> None:
    bad = {**MASKED_GOOD, "action_mask": np.zeros(2, np.int8)}
    with PPO(env=seeing(bad, MASKED, MASKED_GOOD, 5), config={"rollout_fragment_length": 10}) as algorithm:
        assert algorithm.sample().env_steps() == 10


def test_a_mask_of_the_wrong_length_in_an_observation_is_named() -> None:
    bad = {**MASKED_GOOD, "action_mask": np.ones(3, np.int8)}
    message = refusal(seeing(bad, MASKED, MASKED_GOOD), error=ContractError)
    assert "agent 'bob', env step 3" in message
    assert "obs['action_mask']: expected int8 of shape (2,), got shape (3,)" in message


def test_a_mask_space_that_does_not_fit_the_actions_is_refused_before_the_first_step() -> None:
    space = gym.spaces.Dict({"action_mask": gym.spaces.Box(0, 1, (3,), np.int8), "observation": UNIT})
    good = {"action_mask": np.ones(3, np.int8), "observation": GOOD}
    with pytest.raises(
        ConfigError, match=r"action_mask of 3 flags .*Discrete\(2\), expected 2; give one flag"
    ) as caught:
        PPO(env=seeing(good, space, good))
    checked(str(caught.value))


@pytest.mark.parametrize("kind", [Faulty, FaultyGym])
def test_a_step_of_four_values_is_told_about_the_five(kind: Any) -> None:
    class Old(kind):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            obs, rewards, dones, _, infos = super().step(action)
            return obs, rewards, dones, infos

    message = refusal(Old, error=ContractError)
    assert "env 0 step" in message
    assert "terminated" in message
    assert "truncated" in message
    assert "4" in message


@pytest.mark.parametrize("kind", [Faulty, FaultyGym])
def test_a_reset_of_one_value_is_told_about_the_two(kind: Any) -> None:
    class Old(kind):  # type: ignore[misc]
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0]

    message = refusal(Old, error=ContractError)
    assert "env 0 reset: returned" in message
    assert "expected (obs, info)" in message


def test_actions_for_an_agent_that_is_not_waiting_are_named() -> None:
    base_env = to_local_base_env(Faulty())
    base_env.poll()
    with pytest.raises(ContractError) as caught:
        base_env.send_actions({0: {"ann": 1, "bob": 1, "eve": 1}})
    message = checked(str(caught.value))
    assert "env 0" in message
    assert "'eve'" in message


@pytest.mark.parametrize("kind", [Faulty, FaultyGym])
@pytest.mark.parametrize(
    "reward", ["much", "1", b"1", None, np.ones(3), [1.0, 2.0], [[1], [1, 2]], {"a": 1}, 1j]
)
def test_a_reward_that_is_no_number_is_named(kind: Any, reward: Any) -> None:
    class Pays(kind):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, (reward if kind is FaultyGym else {"bob": reward}), *rest

    message = refusal(Pays, error=ContractError)
    assert "the reward" in message
    assert "expected a number" in message
    assert ("of several objectives their weighted sum" in message) is (
        isinstance(reward, list | np.ndarray) and not isinstance(reward[0], list)
    )


@pytest.mark.parametrize("flag", [[False, False], [True], {"ann": False}, "False", (False,)])
def test_a_flag_of_several_or_a_text_is_not_taken_for_true(flag: Any) -> None:
    class Ends(FaultyGym):
        def step(self, action: Any) -> Any:
            return GOOD, 1.0, flag, False, {}

    message = refusal(Ends, error=ContractError)
    assert f"env 0 step: terminated is {type(flag).__name__}, expected True or False" in message


@pytest.mark.parametrize("flag", [np.ones(2, np.bool_), torch.ones(2)])
def test_an_array_of_flags_of_one_agent_is_named_as_such(flag: Any) -> None:
    class Ends(FaultyGym):
        def step(self, action: Any) -> Any:
            return GOOD, 1.0, flag, False, {}

    message = refusal(Ends, error=ContractError)
    assert "env 0 step: terminated or truncated is an array of several, expected True or False" in message


@pytest.mark.parametrize(("agent", "flag"), [
    (ALL, [False]), (ALL, "False"), (ALL, np.ones(2, np.bool_)), ("ann", [False]), ("ann", "False"),
    ("ann", np.zeros(2, np.bool_)), ("ann", torch.zeros(2)),
])  # fmt: skip
def test_a_flag_of_an_agent_is_a_truth_value(agent: str, flag: Any) -> None:
    class Ends(Faulty):
        def step(self, action_dict: AgentDict) -> Any:
            obs, rewards, terminateds, *rest = super().step(action_dict)
            return obs, rewards, {**terminateds, agent: flag if self.at == 3 else False}, *rest

    message = refusal(Ends, error=ContractError)
    assert "env 0 step, env step " in message
    assert f"the flag of {agent!r} is {type(flag).__name__}, expected True or False" in message


def test_a_flag_may_be_an_array_of_one() -> None:
    class Ends(Faulty):
        def step(self, action_dict: AgentDict) -> Any:
            obs, rewards, _, *rest = super().step(action_dict)
            return obs, rewards, {ALL: np.array([self.at == 3])}, *rest

    with PPO(env=Ends, config={"rollout_fragment_length": 6}) as algorithm:
        assert algorithm.sample()["default_policy"]["terminateds"].sum() == 4


@pytest.mark.parametrize("reward", ["", [], {}, None])
def test_a_reward_that_is_nothing_is_not_taken_for_0(reward: Any) -> None:
    class Pays(Faulty):
        def step(self, action_dict: AgentDict) -> Any:
            obs, _, *rest = super().step(action_dict)
            # One of them pauses, so that rewards are looked at one by one.
            return ({"bob": GOOD} if self.at == 2 else obs), {"ann": reward if self.at == 2 else 0.0}, *rest

    message = refusal(Pays, error=ContractError)
    assert "env 0 step, env step 2 of the episode" in message
    assert f"'ann' is {type(reward).__name__}" in message
    assert "expected a number; return a float" in message


@pytest.mark.parametrize("info", [None, [], "", 0, np.ones(2), np.zeros(1)])
def test_an_info_that_is_no_dict_is_named_among_empty_ones(info: Any) -> None:
    class Tells(Faulty):
        def step(self, action_dict: AgentDict) -> Any:
            *rest, _ = super().step(action_dict)
            return *rest, {"ann": {}, "bob": info if self.at == 3 else {}}

    message = refusal(Tells, error=ContractError)
    assert "env 0 step, env step 3 of the episode, agent 'bob'" in message
    assert f"info is {type(info).__name__}, expected a dict" in message


@pytest.mark.parametrize(("number", "told"), [(float("nan"), "nan"), (10**400, "inf")])
@pytest.mark.parametrize("kind", [Faulty, FaultyGym])
def test_a_reward_that_is_not_finite_is_named(kind: Any, number: Any, told: str) -> None:
    class Pays(kind):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            bad = number if self.at == 2 else 1.0
            return obs, (bad if kind is FaultyGym else {"bob": bad}), *rest

    assert f"is {told}, expected a finite number" in refusal(Pays)


def crashing_creator(context: Any) -> Any:
    raise RuntimeError("the map file is missing")


def test_a_creator_that_raises_keeps_its_own_traceback() -> None:
    with pytest.raises(EnvCrashError) as caught:
        PPO(env=crashing_creator)
    message = checked(str(caught.value))
    assert "crashing_creator (worker_index=0, vector_index=0): its creator raised RuntimeError" in message
    assert "the map file is missing" in message
    lines = "".join(traceback.format_exception(caught.value))
    assert "in crashing_creator" in lines
    assert 'raise RuntimeError("the map file is missing")' in lines


def test_a_creator_that_raises_for_a_later_copy_names_it() -> None:
    def creator(context: Any) -> Any:
        if context.vector_index == 2:
            raise RuntimeError("port taken")
        return Faulty()

    with pytest.raises(EnvCrashError, match=r"vector_index=2\): its creator raised RuntimeError: port taken"):
        PPO(env=creator, config={"num_envs_per_worker": 4})


def test_an_unregistered_name_lists_near_ones() -> None:
    register_env("grand_corridor", Faulty)
    with pytest.raises(UnknownNameError) as caught:
        PPO(env="grand_coridor")
    message = checked(str(caught.value))
    assert "'grand_coridor' is not known" in message
    assert "did you mean 'grand_corridor'" in message


@pytest.mark.parametrize("kind", [Faulty, FaultyGym])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_crash_inside_the_environment_keeps_its_traceback(kind: Any, where: str) -> None:
    class Crashes(kind):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            if where == "step" and self.at == 2:
                raise KeyError("wheel")
            return super().step(action)

        def reset(self, **kwargs: Any) -> Any:
            if where == "reset":
                raise KeyError("wheel")
            return super().reset(**kwargs)

    with pytest.raises(EnvCrashError, match=f"env 0 {where}, .*KeyError: 'wheel'") as caught:
        PPO(env=Crashes).sample()
    assert isinstance(caught.value.__cause__, KeyError)
    assert f"in {where}" in "".join(traceback.format_exception(caught.value))


def test_a_value_error_of_the_environments_own_is_a_crash_and_not_a_wrong_number_of_values() -> None:
    class Crashes(FaultyGym):
        def step(self, action: Any) -> Any:
            raise ValueError("too many values to unpack")

    with pytest.raises(EnvCrashError, match=r"env 0 step, .*ValueError: too many values"):
        PPO(env=Crashes).sample()


def test_an_environment_without_spaces_is_told_to_declare_them() -> None:
    class Bare(Faulty):
        def __init__(self, context: Any) -> None:
            super().__init__()
            self.observation_space: Any = None

    assert "observation space" in refusal(Bare)


@pytest.mark.parametrize("spaces", [[UNIT, UNIT], {"ann": UNIT, "bob": UNIT}])
@pytest.mark.parametrize("kind", [Faulty, FaultyGym])
def test_spaces_in_the_place_of_a_space_are_named(kind: Any, spaces: Any) -> None:
    class Lists(kind):  # type: ignore[misc]
        def __init__(self, context: Any) -> None:
            super().__init__()
            self.observation_space = spaces

    told = refusal(Lists, error=ConfigError)
    assert (
        f"the environment's observation space is {type(spaces).__name__}, expected a gymnasium Space" in told
    )


def test_all_among_the_observations_of_a_reset_is_named() -> None:
    class Odd(Faulty):
        def reset(self, **kwargs: Any) -> Any:
            return {ALL: GOOD}, {}

    assert "'__all__' is among the observations" in refusal(Odd, error=ContractError)


def test_an_agent_with_the_name_of_what_is_everybodys_is_refused() -> None:
    class Odd(Faulty):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            self.possible_agents = ["ann", "__common__"]

    assert "env 0: an agent is called '__common__'" in refusal(Odd, error=ContractError)


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("place", [2, 3])
def test_a_flag_of_none_is_refused_also_where_it_never_ends_anything(place: int, envs: int) -> None:
    class Forgets(FaultyGym):
        def step(self, action: Any) -> Any:
            result = list(super().step(action))
            result[place] = None
            return tuple(result)

    with (
        PPO(env=Forgets, config={"num_envs_per_worker": envs}) as algorithm,
        pytest.raises(ContractError) as caught,
    ):
        algorithm.train()
    name = ("terminated", "truncated")[place - 2]
    assert f"{name} is NoneType, expected True or False" in checked(str(caught.value))


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        (2, "int '2'"),
        ("ann", "str 'ann'"),
        (np.arange(2), r"ndarray '\[0 1\]'"),
        ([["ann"], ["bob"]], "a collection with a list"),
    ],
    ids=str,
)
def test_possible_agents_that_list_no_ids_are_named(listed: Any, told: str) -> None:
    class Lists(Faulty):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            self.possible_agents = listed

    with pytest.raises(
        ContractError, match=f"Lists: possible_agents is {told}, expected a list of agent ids"
    ) as caught:
        PPO(env=Lists)
    checked(str(caught.value))


@pytest.mark.parametrize("declared", [{"ann": UNIT, "bob": UNIT}, 3], ids=["dict", "int"])
@pytest.mark.parametrize("agents", [["ann", "bob"], []], ids=["listed", "not listed"])
def test_a_space_that_is_none_is_named_with_what_it_is(declared: Any, agents: list[str]) -> None:
    class Spaceless(Faulty):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            self.possible_agents, self.observation_space = agents, declared

    with pytest.raises(ConfigError) as caught:
        PPO(env=Spaceless)
    message = checked(str(caught.value))
    assert f"observation space is {type(declared).__name__}, expected a gymnasium Space" in message
    assert "observation_spaces to a dict of them by agent id" in message


def test_agents_whose_spaces_are_in_a_dict_and_who_are_listed_nowhere_are_asked_for() -> None:
    class Unlisted(Faulty):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Dict(dict.fromkeys(self.possible_agents, UNIT))
            self.possible_agents = []

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return {"ann": np.zeros(3, np.float32), "bob": np.zeros(3, np.float32)}, {}

    message = refusal(Unlisted, error=ContractError)
    assert "agent 'ann', env step 0: obs: expected a dict with keys ['ann', 'bob']" in message
    assert "list the agents in possible_agents of the environment" in message
