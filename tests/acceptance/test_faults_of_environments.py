"""Environments that fail or return something else than dicts, whatever kind they are.

fault                                             answer
step or reset raises, with and without a text     EnvCrashError, the sub-environment, the cause; never a loop
an info that is no dict; a dict of one's own      named; taken
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv

from menv import BaseEnv, VectorEnv, to_base_env
from menv.errors import ContractError, EnvCrashError
from tests.acceptance.counting import AGENT, ALONE, BOTH, MAKERS, Counting, CountingAgent
from tests.bad_input.broken_envs import checked

every_kind = pytest.mark.parametrize("kind", MAKERS)


class Failing(Counting):
    """Sub-environment 1 raises `error` in its `where`, `after` calls that went well."""

    where, after, error = "step", 1, RuntimeError("the gripper is stuck")

    def fail(self, where: str, calls: int) -> None:
        if self.index == 1 and where == self.where and calls >= self.after:
            raise self.error

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.fail("reset", self.resets)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.fail("step", self.steps)
        return super().step(action)


def failing(kind: str, where: str, after: int, error: Exception) -> BaseEnv:
    single = type("Failing", (Failing,), {"where": where, "after": after, "error": error})
    if kind == "gym":
        return to_base_env(single(0), single, 2, restart_failed_sub_environments=False)
    if kind == "VectorEnv":
        return VectorEnv.vectorize_gym_envs(single, num_envs=2).to_base_env()
    if kind.startswith("vector"):
        mode = {"disabled": "Disabled", "same_step": "SameStep", "next_step": "NextStep"}[kind[7:]]
        return to_base_env(SyncVectorEnv([partial(single, index) for index in range(2)], autoreset_mode=mode))

    class Team(CountingAgent):
        def __init__(self, index: int = 0) -> None:
            super().__init__()
            self.inner = single(index)

    return to_base_env(Team(0), Team, 2, restart_failed_sub_environments=False)


@every_kind
@pytest.mark.parametrize(("where", "after"), [("step", 1), ("reset", 0), ("reset", 1)])
@pytest.mark.parametrize("error", [RuntimeError("the gripper is stuck"), ValueError()], ids=["text", "empty"])
def test_a_crash_is_told_with_its_cause_and_nothing_is_tried_for_ever(
    kind: str, where: str, after: int, error: Exception
) -> None:
    base = failing(kind, where, after, error)

    def play() -> None:
        for _ in range(6):
            base.poll()
            base.send_actions(BOTH)

    with pytest.raises(EnvCrashError) as caught:
        play()
    assert caught.value.__cause__ is error
    message = str(caught.value)
    assert type(error).__name__ in message
    assert str(error) in message
    assert "\n" not in message
    if kind not in ("vector_same_step", "vector_next_step"):
        assert where in message
    if kind in ALONE:
        assert "env 1 " in message
    if kind not in ALONE:
        assert "one by one" in message
    base.stop()


class Odd(dict[str, Any]):
    """A dict of somebody's own."""


@pytest.mark.parametrize("kind", ["gym", "multi_agent", "VectorEnv"])
@pytest.mark.parametrize("where", ["reset", "step", "last step"])
@pytest.mark.parametrize("info", [None, "fine", [("a", 1)], Odd(a=1)], ids=repr)
def test_an_info_that_is_no_dict_is_named_and_a_dict_of_ones_own_is_taken(
    kind: str, where: str, info: Any
) -> None:
    class Informs(Counting):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            obs, _ = super().reset(seed=seed)
            return obs, info if where == "reset" else {}

        def step(self, action: Any) -> Any:
            *four, _ = super().step(action)
            return *four, info if (self.at == 3) == (where == "last step") and where != "reset" else {}

    class Team(CountingAgent):
        def __init__(self, index: int = 0) -> None:
            super().__init__()
            self.inner = Informs(index)

    makers: dict[str, Callable[[], BaseEnv]] = {
        "gym": lambda: to_base_env(Informs(0), Informs, 2),
        "multi_agent": lambda: to_base_env(Team(0), Team, 2),
        "VectorEnv": lambda: VectorEnv.vectorize_gym_envs(Informs, num_envs=2).to_base_env(),
    }
    base = makers[kind]()

    def play() -> list[Any]:
        infos = []
        for _ in range(5):
            infos.append(list(base.poll())[4])
            base.send_actions(BOTH)
        return infos

    if isinstance(info, dict):
        assert any(agents[AGENT].get("a") == 1 for by_env in play() for agents in by_env.values())
        return
    with pytest.raises(ContractError) as caught:
        play()
    assert "info" in checked(str(caught.value))
    assert type(info).__name__ in str(caught.value)
