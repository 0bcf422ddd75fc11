"""Who lives, waits and ends: what is found in environments with many agents, and what is rightly not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.base_env import ALL
from menv.checking import check_env
from menv.checking.codes import Finding
from tests.bad_input.broken_envs import UNIT, Faulty, FaultyGym, Handwritten
from tests.checking.test_kinds import Batch, Own


class Party(Faulty):
    """Five env steps; subclasses say who is shown, paid and flagged in each."""

    def show(self, *agents: str) -> dict[str, Any]:
        return {agent: np.zeros(3, np.float32) for agent in agents}

    def reset(self, **kwargs: Any) -> Any:
        self.at = 0
        return self.show("ann", "bob"), {}

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        obs, rewards, terminateds = self.moment()
        return obs, rewards, {ALL: self.at == 5, **terminateds}, {ALL: False}, {}

    def moment(self) -> Any:
        return self.show("ann", "bob"), {}, {}


def findings(**methods: Any) -> list[Finding]:
    return check_env(type("OneParty", (Party,), methods))


def codes(**methods: Any) -> list[str]:
    return [found.code for found in findings(**methods)]


def test_agents_may_take_turns_and_be_paid_when_it_is_not_their_turn() -> None:
    def moment(self: Any) -> Any:
        everybody = self.at == 5
        return (
            self.show(*(("ann", "bob") if everybody else ("ann", "bob")[self.at % 2 :][:1])),
            {"ann": 1.0, "bob": 2},
            {},
        )

    assert codes(moment=moment) == []


def test_agents_may_come_late_and_be_paid_before() -> None:
    def reset(self: Any, **kwargs: Any) -> Any:
        self.at = 0
        return self.show("ann"), {}

    def moment(self: Any) -> Any:
        return self.show(*(("ann", "bob") if self.at >= 3 else ("ann",))), {"bob": 1.0}, {}

    assert codes(reset=reset, moment=moment) == []


def test_agents_may_end_early_with_a_last_observation_and_be_paid_afterwards() -> None:
    def moment(self: Any) -> Any:
        return self.show(*(("ann", "bob") if self.at <= 2 else ("ann",))), {"bob": 1.0}, {"bob": self.at == 2}

    assert codes(moment=moment) == []


def test_an_env_step_without_acting_agents_is_allowed() -> None:
    assert (
        codes(moment=lambda self: (self.show(*(() if self.at in (2, 3) else ("ann", "bob"))), {}, {})) == []
    )


def test_an_environment_that_breaks_after_all_agents_ended_is_named() -> None:
    def step(self: Any, action_dict: Any) -> Any:
        self.at += 1
        obs = {agent: np.zeros(3, np.float32) for agent in ("ann", "bob") if action_dict[agent] in (0, 1)}
        return obs, {}, {ALL: False, **dict.fromkeys(obs, self.at == 5)}, {ALL: False}, {}

    (found,) = findings(step=step)
    assert found.code == "ME090"
    assert "KeyError: 'ann'" in found.message


def test_an_agent_without_a_space_of_its_own_is_named_when_it_appears() -> None:
    spaces = {"ann": UNIT, "bob": UNIT}
    (found,) = findings(
        observation_spaces=spaces,
        __init__=lambda self, context=None: Faulty.__init__(self),
        moment=lambda self: (self.show("ann", "bob", *(("eve",) if self.at == 2 else ())), {}, {}),
    )[:1]
    assert (found.code, found.step) == ("ME003", 2)
    assert "agent 'eve': " in found.message


WEIRD: list[Any] = [None, 3, "x", [], {1: 2}, {"ann": None}, np.zeros(3), float("nan"), {ALL: None}]
KINDS = {
    "gym": (FaultyGym, "reset", "step"),
    "agents": (Faulty, "reset", "step"),
    "batch": (Batch, "reset", "step"),
    "lists": (Handwritten, "vector_reset", "vector_step"),
}  # fmt: skip


@pytest.mark.slow_unless("*-agents", "*-lists", "[N0]*-gym", "0-batch")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [None, 0, 1, 2, 3, 4])
def test_whatever_a_step_returns_nothing_is_raised(kind: str, part: int | None) -> None:
    base, _, step = KINDS[kind]
    for weird in WEIRD:
        env = type("Weird", (base,), {step: replacing(getattr(base, step), part, weird)})
        check_env(env, env_steps=12)


@pytest.mark.slow_unless("*-agents", "*-lists", "0-gym", "0-batch")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [None, 0, 1])
def test_whatever_a_reset_returns_nothing_is_raised(kind: str, part: int | None) -> None:
    base, reset, _ = KINDS[kind]
    for weird in WEIRD:
        env = type("Weird", (base,), {reset: replacing(getattr(base, reset), part, weird)})
        check_env(env, env_steps=12)


@pytest.mark.parametrize("part", [None, 0, 1, 2, 3, 4, 5])
def test_whatever_a_poll_returns_nothing_is_raised(part: int | None) -> None:
    nested = [{"left": weird} for weird in WEIRD] + [{"left": {"a": weird}} for weird in WEIRD]
    for weird in [*WEIRD, *nested]:
        env = type("Weird", (Own,), {"poll": replacing(Own.poll, part, weird)})
        check_env(env, env_steps=12)


DECLARED = [
    *[(kind, name) for kind in ("gym", "agents", "own") for name in ("observation_space", "action_space")],
    *[("agents", name) for name in ("possible_agents", "agents", "observation_spaces", "action_spaces")],
    *[("own", "possible_agents"), ("batch", "num_envs"), ("lists", "num_envs"), ("batch", "metadata")],
]


@pytest.mark.slow_unless("gym-*", "agents-*", "batch-*")
@pytest.mark.parametrize(("kind", "name"), DECLARED)
def test_whatever_is_declared_nothing_is_raised(kind: str, name: str) -> None:
    base: Any = Own if kind == "own" else KINDS[kind][0]
    for weird in WEIRD:

        def declare(self: Any, context: Any = None, weird: Any = weird) -> None:
            base.__init__(self)
            setattr(self, name, weird)

        check_env(type("Weird", (base,), {"__init__": declare}), env_steps=12)


def replacing(method: Any, part: int | None, weird: Any) -> Any:
    """Return `method` with one part of what it returns, or all of it, replaced."""

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = list(method(self, *args, **kwargs))
        if part is None:
            return weird
        result[part] = weird
        return tuple(result)

    return replaced


def test_possible_agents_that_raise_are_a_finding() -> None:
    def raising(self: Any) -> Any:
        raise RuntimeError("no world yet")

    kind = type("OneParty", (Party,), {"__init__": lambda self: None, "possible_agents": property(raising)})
    assert [found.message for found in check_env(kind) if found.code == "ME014"] == [
        f"possible_agents raised RuntimeError: no world yet (line {raising.__code__.co_firstlineno + 1} of raising)"
    ]
