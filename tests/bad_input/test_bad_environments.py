"""Environments that break the contract: flags, rewards, infos, masks, spaces, old interfaces, crashes.

Each row of a table changes what one method returns, or what is declared.
"""

from __future__ import annotations

import re
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
from tests.worlds import like

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


NO_REWARDS: list[Any] = ["much", b"1", None, [[1], [1, 2]], {"a": 1}, 1j, np.ones(3), [1.0, 2.0]]
NO_FLAGS: list[Any] = [[False], "False", (False,), {"ann": False}, np.zeros(2, np.bool_), torch.zeros(2)]
NOTHING: list[Any] = ["", [], {}, None]
NO_INFOS: list[Any] = [None, [], "fine", 0, np.zeros(1)]
DICTS: list[Any] = [None, 1.0, [1.0, 1.0]]


def beside_an_end(part: int, several: Any) -> Callable[..., Any]:
    """Return a step in which ann ends, with a wrong entry for bob."""
    return lambda at, *values: beside(part, "bob", several)(at, *beside(2, "ann", True)(at, *values))


REFUSED: dict[str, list[type]] = {
    "ME011": [
        broken(kind, reset=reset)
        for kind in BOTH
        for reset in (lambda obs, infos: obs, lambda obs, infos: None)
    ],
    "ME012": [broken(Faulty, reset=lambda obs, infos, wrong=wrong: (wrong, infos)) for wrong in DICTS],
    "ME014": [
        broken(Faulty, possible_agents=listed) for listed in (2, "ann", np.arange(2), [["ann"], ["bob"]])
    ],
    "ME020": [
        broken(kind, step)
        for kind in BOTH
        for step in (lambda at, *values: None, lambda at, *values: (*values[:3], values[4]))
    ],
    "ME021": [
        *(broken(Faulty, instead(part, wrong)) for part in range(5) for wrong in DICTS),
        broken(Faulty, reset=lambda obs, infos: ({**obs, ALL: GOOD}, infos)),
        broken(Faulty, beside(0, ALL, GOOD)),
        broken(Faulty, beside(1, ALL, 1.0)),
        broken(Faulty, possible_agents=["ann", "__common__"]),
    ],
    "ME022": [broken(Faulty, instead(part, {"ann": False})) for part in (2, 3)],
    "ME024": [
        *(broken(FaultyGym, instead(part, flag)) for flag in [*NO_FLAGS, None] for part in (2, 3)),
        *(broken(Faulty, beside(2, agent, flag, 3)) for agent in (ALL, "ann") for flag in NO_FLAGS),
        *(broken(Faulty, beside_an_end(part, torch.zeros(2))) for part in (2, 3)),
    ],
    "ME025": [
        *(broken(kind, paid(kind, reward)) for kind in BOTH for reward in NO_REWARDS),
        *(broken(Faulty, pausing(reward)) for reward in NOTHING),
        broken(Faulty, beside_an_end(1, np.zeros(2))),
    ],
    "ME026": [broken(kind, paid(kind, number, 2)) for kind in BOTH for number in (float("nan"), 10**400)],
    "ME027": [broken(Faulty, beside(1, "annn", 2.5)), broken(Faulty, beside(2, "anna", True))],
    "ME029": [
        *(broken(Faulty, reset=lambda obs, infos, wrong=wrong: (obs, wrong)) for wrong in DICTS),
        *(broken(Faulty, beside(4, "bob", info, 3)) for info in NO_INFOS),
    ],
}
"""By the code of the finding."""


@pytest.mark.parametrize("code", REFUSED)
def test_what_breaks_the_contract_is_refused_with_the_code_of_the_checker(code: str) -> None:
    for env in REFUSED[code]:
        with pytest.raises(ContractError) as caught:
            PPO(env=env, config=SMALL).train()
        checked(str(caught.value))
        assert caught.value.finding == code


BY_AGENT: dict[str, gym.Space[Any]] = {"ann": UNIT, "bob": UNIT}
NO_SPACES: list[type] = [
    broken(Faulty, observation_space=None),
    *(broken(kind, observation_space=spaces) for kind in BOTH for spaces in ([UNIT, UNIT], BY_AGENT)),
    *(broken(Faulty, possible_agents=[], observation_space=declared) for declared in (BY_AGENT, 3)),
    broken(
        Faulty, possible_agents=[], observation_space=gym.spaces.Dict(BY_AGENT),
        reset=lambda obs, infos: (dict.fromkeys(BY_AGENT, GOOD), infos),
    ),
]  # fmt: skip


@pytest.mark.parametrize("env", NO_SPACES)
def test_an_environment_without_spaces_of_its_agents_is_refused(env: type) -> None:
    assert "space" in refusal(env)


def test_a_reset_that_takes_no_seed_is_named() -> None:
    message = refusal(like(Faulty, reset=lambda self: Faulty.reset(self)), {"seed": 1}, ContractError)
    assert message.startswith("env 0 reset: ")
    assert "reset(self, *, seed=None, options=None)" in message


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
def test_unusual_but_valid_environments_are_accepted(case: str) -> None:
    step, column, total = TAKEN[case]
    with PPO(env=broken(Faulty, step), config={**SMALL, "rollout_fragment_length": 10}) as algorithm:
        assert algorithm.sample()["default_policy"][column].sum() == total


def test_infos_for_agents_without_an_observation_and_for_all_are_taken() -> None:
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
    (np.zeros(2, np.int8), 0, "none of 2"),
    (np.zeros(2, np.int8), 3, "none of 2"),
    (np.ones(3, np.int8), 3, r"\(2,\).*\(3,\)"),
])  # fmt: skip
def test_a_mask_that_is_wrong_names_agent_and_step(mask: Any, when: int, told: str) -> None:
    message = refusal(
        seeing({**MASKED_GOOD, "action_mask": mask}, MASKED, MASKED_GOOD, when), error=ContractError
    )
    assert f"agent 'bob', env step {when}" in message
    assert re.search(rf"obs\['action_mask'\]: .*{told}", message)


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
    with pytest.raises(ConfigError, match="action_mask") as caught:
        PPO(env=seeing(good, space, good))
    checked(str(caught.value))


def crashing_creator(context: Any) -> Any:
    raise RuntimeError("the map file is missing")


def test_a_creator_that_raises_keeps_its_own_traceback() -> None:
    with pytest.raises(EnvCrashError) as caught:
        PPO(env=crashing_creator)
    message = str(caught.value)
    assert "crashing_creator (worker_index=0, vector_index=0)" in message
    assert "RuntimeError: the map file is missing" in message
    lines = "".join(traceback.format_exception(caught.value))
    assert "in crashing_creator" in lines
    assert 'raise RuntimeError("the map file is missing")' in lines


def test_a_creator_that_raises_for_a_later_copy_names_it() -> None:
    def creator(context: Any) -> Any:
        if context.vector_index == 2:
            raise RuntimeError("port taken")
        return Faulty()

    with pytest.raises(EnvCrashError, match="vector_index=2"):
        PPO(env=creator, config={"num_envs_per_worker": 4})


def test_an_unregistered_name_lists_near_ones() -> None:
    register_env("grand_corridor", Faulty)
    with pytest.raises(UnknownNameError) as caught:
        PPO(env="grand_coridor")
    message = checked(str(caught.value))
    assert "'grand_coridor'" in message
    assert "'grand_corridor'" in message
