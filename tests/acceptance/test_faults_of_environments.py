"""Environments that fail or return something else than dicts, whatever kind they are.

fault                                             answer
step or reset raises, with and without a text     EnvCrashError, the sub-environment, the cause; never a loop
an info that is not a dict; a dict of one's own      named; taken
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
from tests.worlds import like

every_kind = pytest.mark.parametrize("kind", MAKERS)


def failing(kind: str, where: str, after: int, error: Exception) -> BaseEnv:
    """Let sub-environment 1 raise `error` in its `where`, `after` calls that went well."""
    base: Any = CountingAgent if kind == "multi_agent" else Counting

    class Failing(base):  # type: ignore[misc]
        def fail(self, call: str, calls: int) -> None:
            if self.index == 1 and call == where and calls >= after:
                raise error

        def reset(self, **kwargs: Any) -> Any:
            self.fail("reset", self.episode + 1)
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            self.fail("step", self.steps)
            return super().step(action)

    if kind == "VectorEnv":
        return VectorEnv.vectorize_gym_envs(Failing, num_envs=2).to_base_env()
    if kind.startswith("vector"):
        mode = {"disabled": "Disabled", "same_step": "SameStep", "next_step": "NextStep"}[kind[7:]]
        return to_base_env(
            SyncVectorEnv([partial(Failing, index) for index in range(2)], autoreset_mode=mode)
        )
    return to_base_env(Failing(0), Failing, 2, restart_failed_sub_environments=False)


@every_kind
@pytest.mark.parametrize(("where", "after"), [("step", 1), ("reset", 0), ("reset", 1)])
@pytest.mark.parametrize("error", [RuntimeError("the gripper is stuck"), ValueError()], ids=["text", "empty"])
def test_a_crash_is_reported_with_its_cause_and_retries_are_limited(
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
def test_an_info_that_is_not_a_dict_is_named_and_a_subclass_of_dict_is_accepted(
    kind: str, where: str, info: Any
) -> None:
    def told(env: Any) -> Any:
        due = {"reset": env.at == 0, "step": env.at in (1, 2), "last step": env.at == 3}
        return info if due[where] else {}

    informs = like(Counting, info=lambda self: told(self))
    team = like(CountingAgent, infos=lambda self: {AGENT: told(self)})
    makers: dict[str, Callable[[], BaseEnv]] = {
        "gym": lambda: to_base_env(informs(0), informs, 2),
        "multi_agent": lambda: to_base_env(team(0), team, 2),
        "VectorEnv": lambda: VectorEnv.vectorize_gym_envs(informs, num_envs=2).to_base_env(),
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
