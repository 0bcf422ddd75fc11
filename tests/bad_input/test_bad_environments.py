"""Environments that break the contract: flags, rewards, infos, masks, spaces, old interfaces, crashes.

Each row of a table changes what one method returns, or what is declared, and says what the line about it names.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv import register_env, to_base_env
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.errors import ConfigError, ContractError, EnvCrashError, UnknownNameError
from tests.bad_input.broken_envs import GOOD, SMALL, UNIT, Faulty, FaultyGym, checked, refusal, seeing

PARTS = ("obs", "rewards", "terminateds", "truncateds", "infos")
BOTH = (Faulty, FaultyGym)


def broken(
    kind: Any, step: Callable[..., Any] | None = None, reset: Callable[..., Any] | None = None, **declared: Any
) -> type:  # fmt: skip
    """Return an environment whose `step` and `reset` return what these make of it and its values."""

    class Broken(kind):  # type: ignore[misc]
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            for name, value in declared.items():
                setattr(self, name, value)

        def reset(self, **kwargs: Any) -> Any:
            result = super().reset(**kwargs)
            return reset(*result) if reset else result

        def step(self, action: Any) -> Any:
            result = super().step(action)
            return step(self.at, *result) if step else result

    return Broken


def instead(part: int, wrong: Any) -> Callable[..., Any]:
    """Return a step with another value in the place of one of its five."""
    return lambda at, *values: (*values[:part], wrong, *values[part + 1 :])


def beside(part: int, agent: str, wrong: Any, when: int | None = None) -> Callable[..., Any]:
    """Return a step with another entry in one of its five dicts, in env step `when` or in all."""

    def step(at: int, *values: Any) -> Any:
        if when in (None, at):
            values = (*values[:part], {**values[part], agent: wrong}, *values[part + 1 :])
        return values

    return step


def paid(kind: Any, reward: Any, when: int | None = None) -> Callable[..., Any]:
    return beside(1, "bob", reward, when) if kind is Faulty else instead(1, reward)


def pausing(reward: Any) -> Callable[..., Any]:
    """Return a step after the second of which one agent pauses, so that rewards are looked at one by one."""
    return lambda at, obs, rewards, *rest: (
        {"bob": GOOD} if at == 2 else obs, {"ann": reward if at == 2 else 0.0}, *rest
    )  # fmt: skip


# Of one objective, and of several.
NO_REWARDS: list[list[Any]] = [
    ["much", "1", b"1", None, [[1], [1, 2]], {"a": 1}, 1j],
    [np.ones(3), [1.0, 2.0]],
]
NOTHING: list[Any] = ["", [], {}, None]
NO_INFOS: list[Any] = [None, [], "", "fine", 0, np.ones(2), np.zeros(1)]
# What each environment is, and what the line that refuses it names.
Case = tuple[type, tuple[str, ...]]
CASES: dict[str, Case] = {
    **{
        f"no __all__ in {PARTS[part]}": (
            broken(Faulty, instead(part, {"ann": False})),
            ("env 0 step, env step", f"{PARTS[part]} has no '__all__'"),
        )
        for part in (2, 3)
    },
    **{
        f"{PARTS[part]} {wrong}": (
            broken(Faulty, instead(part, wrong)), ("env 0 step", PARTS[part], type(wrong).__name__)
        )
        for part in range(5) for wrong in (None, 1.0, [1.0, 1.0])
    },
    **{
        f"reset {name} {wrong}": (
            broken(Faulty, reset=lambda obs, infos, name=name, wrong=wrong: {
                "obs": (wrong, infos), "infos": (obs, wrong)}[name]),
            ("env 0 reset", name, type(wrong).__name__),
        )
        for name in ("obs", "infos") for wrong in (None, 1.0, [GOOD, GOOD])
    },
    "__all__ is no agent of a reset": (
        broken(Faulty, reset=lambda obs, infos: ({**obs, ALL: GOOD}, infos)), ("'__all__' is among obs or rewards",)
    ),
    "__all__ is no agent of a step": (broken(Faulty, beside(0, ALL, GOOD)), (ALL,)),
    "__all__ is paid nothing": (broken(Faulty, beside(1, ALL, 1.0)), (ALL,)),
    "__common__ is no agent": (
        broken(Faulty, possible_agents=["ann", "__common__"]), ("env 0 reset, ", "'__common__' is among obs or rewards")
    ),
    "a reward for a stranger": (
        broken(Faulty, beside(1, "annn", 2.5)),
        ("env 0 step, env step 5 of the episode", "'annn', which never appeared", "'ann'"),
    ),
    "a flag for a stranger": (
        broken(Faulty, beside(2, "anna", True)),
        ("a done flag was set for 'anna', ", "expected one of possible_agents 'ann'"),
    ),
    **{
        f"four values, {kind.__name__}": (
            broken(kind, lambda at, *values: (*values[:3], values[4])), ("env 0 step", "terminated", "truncated", "4")
        )
        for kind in BOTH
    },
    **{
        f"a reset of one value, {kind.__name__}": (
            broken(kind, reset=lambda obs, infos: obs), ("env 0 reset: returned", "expected (obs, info)")
        )
        for kind in BOTH
    },
    **{
        f"nothing from {method}, {kind.__name__}": (
            broken(kind, **{method: lambda *values: None}),
            (f"env 0 {method}", ": returned None (is a `return` missing?), expected"),
        )
        for kind in BOTH for method in ("reset", "step")
    },
    **{
        f"the reward {reward!r}, {kind.__name__}": (
            broken(kind, paid(kind, reward)),
            ("the reward", "expected a number", *(["of several objectives their weighted sum"] if several else [])),
        )
        for kind in BOTH
        for several, rewards in enumerate(NO_REWARDS) for reward in rewards
    },
    **{
        f"the reward {reward!r} of one who pauses": (
            broken(Faulty, pausing(reward)),
            ("env 0 step, env step 2 of the episode", f"'ann' is {type(reward).__name__}",
             "expected a number; return a float"),
        )
        for reward in NOTHING
    },
    **{
        f"the reward {told}, {kind.__name__}": (
            broken(kind, paid(kind, number, 2)), (f"is {told}, expected a finite number",)
        )
        for kind in BOTH for number, told in [(float("nan"), "nan"), (10**400, "inf")]
    },
    **{
        f"the flag {flag!r} of one agent": (
            broken(FaultyGym, instead(2, flag)),
            (f"env 0 step: terminated is {type(flag).__name__}, expected True or False",),
        )
        for flag in ([False, False], [True], {"ann": False}, "False", (False,), None)
    },
    "truncated is None": (broken(FaultyGym, instead(3, None)), ("truncated is NoneType, expected True or False",)),
    **{
        f"the flags {flags!r} of one agent": (
            broken(FaultyGym, instead(2, flags)),
            (f"env 0 step: terminated is {type(flags).__name__}, expected True or False",),
        )
        for flags in (np.ones(2, np.bool_), torch.ones(2))
    },
    **{
        f"the flag {flag!r} of {agent}": (
            broken(Faulty, beside(2, agent, flag, 3)),
            ("env 0 step, env step ", f"the flag of {agent!r} is {type(flag).__name__}, expected True or False"),
        )
        for agent in (ALL, "ann") for flag in ([False], "False", np.zeros(2, np.bool_), torch.zeros(2))
    },
    **{
        f"{part} {several!r} where another agent ends": (
            broken(Faulty, lambda at, *values, part=part, several=several: beside(part, "bob", several)(
                at, *beside(2, "ann", True)(at, *values))),
            ("env 0 step, env step 1 of the episode", f"of 'bob' is {type(several).__name__}",
             *(["of several objectives their weighted sum"] if part == 1 else [])),
        )
        for part in (1, 2, 3) for several in (np.zeros(2), torch.zeros(2))
    },
    **{
        f"the info {info!r}": (
            broken(Faulty, beside(4, "bob", info, 3)),
            ("env 0 step, env step 3 of the episode, agent 'bob'", f"info is {type(info).__name__}, expected a dict"),
        )
        for info in NO_INFOS
    },
    "no space": (broken(Faulty, observation_space=None), ("observation space",)),
    **{
        f"{type(spaces).__name__} as space, {kind.__name__}": (
            broken(kind, observation_space=spaces),
            (f"the environment's observation space is {type(spaces).__name__}, expected a gymnasium Space",),
        )
        for kind in BOTH for spaces in ([UNIT, UNIT], {"ann": UNIT, "bob": UNIT})
    },
    **{
        f"{type(declared).__name__} as space of {agents}": (
            broken(Faulty, possible_agents=agents, observation_space=declared),
            (f"observation space is {type(declared).__name__}, expected a gymnasium Space",
             "observation_spaces to a dict of them by agent id"),
        )
        for declared in ({"ann": UNIT, "bob": UNIT}, 3) for agents in (["ann", "bob"], [])
    },
    **{
        f"possible_agents {listed!r}": (
            broken(Faulty, possible_agents=listed),
            (f"possible_agents is {told}, expected a list of agent ids",),
        )
        for listed, told in [
            (2, "int '2'"), ("ann", "str 'ann'"), (np.arange(2), "ndarray '[0 1]'"),
            ([["ann"], ["bob"]], "a collection with a list"),
        ]
    },
    "agents in a dict of spaces and no list": (
        broken(Faulty, possible_agents=[], observation_space=gym.spaces.Dict(dict.fromkeys(("ann", "bob"), UNIT)),
               reset=lambda obs, infos: (dict.fromkeys(("ann", "bob"), GOOD), infos)),
        ("agent 'ann', env step 0: obs: expected a dict with keys ['ann', 'bob']",
         "list the agents in possible_agents of the environment"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_breaks_the_contract_is_named(case: str) -> None:
    env, parts = CASES[case]
    message = refusal(env)
    for part in parts:
        assert part in message, message
    assert ("weighted sum" in message) == any("weighted sum" in part for part in parts)


def test_a_flag_of_none_is_refused_in_whole_frames_too() -> None:
    message = refusal(broken(FaultyGym, instead(2, None)), {"num_envs_per_worker": 3})
    assert "terminated is NoneType, expected True or False" in message


def test_a_reset_that_takes_no_seed_is_named() -> None:
    class Seedless(Faulty):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    message = refusal(Seedless, {"seed": 1}, ContractError)
    assert "env 0 reset: " in message
    assert "expected reset(self, *, seed=None, options=None)" in message


TAKEN: dict[str, tuple[Callable[..., Any], str, float]] = {
    "an array of one as flag": (
        lambda at, obs, rewards, ends, *rest: (obs, rewards, {ALL: np.array([at == 3])}, *rest), "terminateds", 6
    ),
    "a reward for an unlisted agent that appears later": (
        lambda at, obs, rewards, *rest: ({**obs, "eve": GOOD} if at > 2 else obs, {**rewards, "eve": 1.0}, *rest),
        "rewards", 30,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_unusual_and_right_is_taken(case: str) -> None:
    step, column, total = TAKEN[case]
    with PPO(env=broken(Faulty, step), config={**SMALL, "rollout_fragment_length": 10}) as algorithm:
        assert algorithm.sample()["default_policy"][column].sum() == total


def test_infos_for_somebody_without_an_observation_and_for_all_are_taken() -> None:
    told = {"ann": {"a": 1}, "bob": {"b": 2}, "__common__": {"c": 3}}
    base = to_base_env(
        broken(Faulty, lambda at, obs, *three: (obs if at % 2 else {"ann": GOOD}, *three[:3], told))()
    )
    seen = []
    for _ in range(8):
        ready = base.poll()
        assert ready.infos is not None
        seen += [
            (ready.seats[slot][1], dict(info)) for slot, info in zip(ready.slots, ready.infos, strict=True)
        ]
        base.send_actions(ready.slots, [0] * len(ready.slots))
    assert ("ann", {"a": 1}) in seen
    assert all(info in ({}, {"a": 1} if agent == "ann" else {"b": 2}) for agent, info in seen)


MASKED = gym.spaces.Dict({"action_mask": gym.spaces.Box(0, 1, (2,), np.int8), "observation": UNIT})
MASKED_GOOD = {"action_mask": np.ones(2, np.int8), "observation": GOOD}


@pytest.mark.parametrize(("mask", "when", "told"), [
    (np.zeros(2, np.int8), 0, "allows none of 2 actions, expected at least one"),
    (np.zeros(2, np.int8), 3, "allows none of 2 actions, expected at least one"),
    (np.ones(3, np.int8), 3, "expected int8 of shape (2,), got shape (3,)"),
])  # fmt: skip
def test_a_mask_that_is_wrong_names_agent_and_step(mask: Any, when: int, told: str) -> None:
    message = refusal(
        seeing({**MASKED_GOOD, "action_mask": mask}, MASKED, MASKED_GOOD, when), error=ContractError
    )
    assert f"agent 'bob', env step {when}" in message
    assert f"obs['action_mask']: {told}" in message


@pytest.mark.parametrize(("mask", "kept"), [([1, 0], [True, False]), ([0, 0], [True, True])])
def test_the_mask_of_a_final_observation_is_kept_and_may_allow_nothing(
    mask: list[int], kept: list[bool]
) -> None:
    last = {**MASKED_GOOD, "action_mask": np.array(mask, np.int8)}
    with PPO(env=seeing(last, MASKED, MASKED_GOOD, 5), config={"rollout_fragment_length": 10}) as algorithm:
        batch = algorithm.sample()
    assert batch.env_steps() == 10
    (own,) = batch.policy_batches.values()
    masks = own.segments.next_mask.tolist()
    assert masks == [[True, True], kept] * 2


def test_a_mask_space_that_does_not_fit_the_actions_is_refused_before_the_first_step() -> None:
    space = gym.spaces.Dict({"action_mask": gym.spaces.Box(0, 1, (3,), np.int8), "observation": UNIT})
    good = {"action_mask": np.ones(3, np.int8), "observation": GOOD}
    with pytest.raises(
        ConfigError, match=r"action_mask of 3 flags .*Discrete\(2\), expected 2; give one flag"
    ) as caught:
        PPO(env=seeing(good, space, good))
    checked(str(caught.value))


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


def test_a_value_error_of_the_environments_own_is_a_crash_and_not_a_wrong_number_of_values() -> None:
    class Crashes(FaultyGym):
        def step(self, action: Any) -> Any:
            raise ValueError("too many values to unpack")

    with pytest.raises(EnvCrashError, match=r"env 0 step, .*ValueError: too many values"):
        PPO(env=Crashes).sample()
