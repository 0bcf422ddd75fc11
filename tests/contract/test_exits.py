"""An environment that calls `sys.exit()` has a fault; the handler of a signal that does so ends the run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from enum import Enum
from functools import partial
from typing import Any

import pytest

from menv import to_base_env
from menv.errors import EnvCrashError
from menv.registry import make_env
from menv.vector_env import VectorEnv
from tests.contract.adapters import answer_as_dicts, run
from tests.contract.scripted import SOLO, TOGETHER, ScriptedEnv, SoloGym


class Leaving(SoloGym):
    """Ends its process in the first step of each copy but the last."""

    left = 0

    def step(self, action: Any) -> Any:
        type(self).left -= 1
        if type(self).left >= 0:
            sys.exit("no licence")
        return super().step(action)


class LeavingTeam(ScriptedEnv):
    """The same for several agents."""

    left = 0

    def step(self, action_dict: Any) -> Any:
        type(self).left -= 1
        if type(self).left >= 0:
            sys.exit("no licence")
        return super().step(action_dict)


MAKERS = {"gym": (Leaving, SOLO), "agents": (LeavingTeam, TOGETHER)}


@pytest.mark.parametrize("kind", MAKERS)
def test_an_environment_that_exits_costs_its_episode(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env_class, script = MAKERS[kind]
    monkeypatch.setattr(env_class, "left", 1)
    base_env = to_base_env(env_class(script), lambda index: env_class(script), 1)
    faults = []
    for _ in range(3):
        ready = base_env.poll()
        faults += [fault.line for fault in ready.faults]
        answer_as_dicts(base_env, ready)
    assert [line.partition(" (")[0] for line in faults] == ["SystemExit: no licence in step of env 0"]


@pytest.mark.parametrize("kind", MAKERS)
def test_one_that_exits_again_and_again_ends_the_run_with_a_line(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_class, script = MAKERS[kind]
    monkeypatch.setattr(env_class, "left", 9)
    base_env = to_base_env(env_class(script), lambda index: env_class(script), 1)
    with pytest.raises(EnvCrashError, match="env 0 step, env step 1: raised SystemExit: no licence"):
        run(base_env, 9)


def test_a_vectorised_one_that_exits_ends_the_run_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leaving, "left", 1)
    base_env = to_base_env(VectorEnv.vectorize_gym_envs(existing_envs=[Leaving(SOLO)]))
    base_env.send_actions(base_env.poll().slots, [0])
    with pytest.raises(EnvCrashError, match="raised SystemExit: no licence"):
        base_env.poll()


def test_a_creator_that_exits_is_told() -> None:
    with pytest.raises(EnvCrashError, match="its creator raised SystemExit: 2"):
        make_env(lambda context: sys.exit(2))


class _Licence(Enum):
    FREE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        sys.exit("no licence")


def test_one_that_exits_in_an_enum_is_told_too() -> None:
    # The handlers that Python has for signals are members of enums.
    with pytest.raises(EnvCrashError, match="its creator raised SystemExit: no licence"):
        make_env(lambda context: _Licence(2))


def _leave(_number: int, _frame: Any) -> None:
    sys.exit(7)


class _Leaver:
    def __call__(self, number: int, frame: Any) -> None:
        _leave(number, frame)


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler", [_leave, partial(_leave), _Leaver()], ids=["function", "partial", "object"]
)
def test_a_signal_whose_handler_exits_ends_the_run_while_an_environment_steps(
    handled: None, handler: Any
) -> None:
    class Told(SoloGym):
        def step(self, action: Any) -> Any:
            os.kill(os.getpid(), signal.SIGUSR1)
            return super().step(action)

    signal.signal(signal.SIGUSR1, handler)
    base_env = to_base_env(Told(SOLO), lambda index: Told(SOLO), 1)
    answer_as_dicts(base_env, base_env.poll())
    with pytest.raises(SystemExit) as caught:
        base_env.poll()
    assert caught.value.code == 7


class Quitter(SoloGym):
    """Raises in its first step, and ends the process where nobody expects it."""

    def step(self, action: Any) -> Any:
        raise ValueError("broken")

    def close(self) -> None:
        sys.exit()

    def leave(self) -> None:
        sys.exit(3)


def test_one_that_exits_in_close_is_replaced_all_the_same() -> None:
    base_env = to_base_env(Quitter(SOLO), lambda index: SoloGym(SOLO), 1)
    answer_as_dicts(base_env, base_env.poll())
    assert [fault.line.partition(" (")[0] for fault in base_env.poll().faults] == [
        "ValueError: broken in step of env 0"
    ]


def test_exits_in_close_and_in_methods_that_are_called_are_told() -> None:
    base_env = to_base_env(Quitter(SOLO), num_envs=1)
    with pytest.raises(EnvCrashError, match=r"call: env 0, leave: raised SystemExit\(3\)"):
        base_env.call(0, "leave")
    with pytest.raises(EnvCrashError, match=r"Quitter.close: raised SystemExit\(\)"):
        base_env.stop()
