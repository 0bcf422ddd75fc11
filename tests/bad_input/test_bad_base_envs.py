"""Calls that the base layer must answer clearly, whatever kind of environment is below.

call                                              answer
send_actions before the first poll                refused, and nothing is stepped
an unknown sub-environment or agent               named, with the valid ones, and nothing is stepped
try_reset() / try_restart()                       mean all of them
try_restart(i) before, between and after          a first observation in the next poll
other kinds, numbers and switches of conversion   named
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from menv import BaseEnv, ExternalEnv, ExternalMultiAgentEnv, VectorEnv, to_base_env
from menv.base_env import ALL
from menv.errors import ConfigError, ContractError, MenvError
from tests.acceptance.counting import (
    AGENT,
    ALONE,
    BOTH,
    MAKERS,
    RESTARTS,
    Counting,
    CountingAgent,
    seen,
    steps_taken,
    sync,
    walked,
)
from tests.bad_input.broken_envs import checked
from tests.contract.scripted import SOLO, ScriptedEnv, SixDicts

every_kind = pytest.mark.parametrize("kind", MAKERS)


@every_kind
def test_an_answer_before_the_first_poll_is_refused_and_steps_nothing(kind: str) -> None:
    base = MAKERS[kind]()
    with pytest.raises(MenvError) as caught:
        base.send_actions(BOTH)
    assert "poll" in checked(str(caught.value))
    assert steps_taken(base) == [0, 0]
    assert seen(next(iter(base.poll()))) == {0: [0, 0], 1: [1, 0]}


STRANGERS: dict[str, Any] = {
    "env_7": {**BOTH, 7: {AGENT: 0}},
    "env_minus_1": {**BOTH, -1: {AGENT: 0}},
    "env_name": {**BOTH, "x": {AGENT: 0}},
    "agent": {0: {AGENT: 0}, 1: {AGENT: 0, "ann": 0}},
    "no_dict": {0: {AGENT: 0}, 1: 0},
    "no_dicts": [0, 1],
    "slot_7": ([0, 7], [0, 0]),
    "slot_minus_1": ([-1, 0], [0, 0]),
    "one_action": ([0, 1], [0]),
}


@pytest.mark.parametrize("kind", ALONE)
def test_no_actions_for_a_sub_environment_take_nothing_back(kind: str) -> None:
    base = walked(kind)
    base.send_actions(BOTH)
    with suppress(ContractError):
        base.send_actions({0: {}})
    assert seen(next(iter(base.poll()))) == {0: [0, 2], 1: [1, 2]}


@pytest.mark.each_value
@every_kind
@pytest.mark.parametrize("stranger", STRANGERS)
def test_an_answer_for_somebody_unknown_is_refused_and_steps_nothing(kind: str, stranger: str) -> None:
    base = walked(kind)
    answers = STRANGERS[stranger]
    with pytest.raises(MenvError) as caught:
        base.send_actions(*answers if isinstance(answers, tuple) else (answers,))
    message = checked(str(caught.value))
    name = {"env_7": "7", "env_minus_1": "-1", "env_name": "'x'", "slot_7": "7", "agent": "'ann'"}.get(
        stranger, ""
    )
    assert name in message
    assert steps_taken(base) == [1, 1]
    base.send_actions(BOTH)
    assert seen(next(iter(base.poll()))) == {0: [0, 2], 1: [1, 2]}


@every_kind
def test_try_reset_without_an_id_resets_all(kind: str) -> None:
    base = walked(kind)
    obs, infos = base.try_reset()
    assert seen(obs) == {0: [0, 0], 1: [1, 0]}
    assert set(infos) == {0, 1}
    base.poll()
    base.send_actions(BOTH)
    assert seen(next(iter(base.poll()))) == {0: [0, 1], 1: [1, 1]}


@every_kind
def test_try_reset_between_the_first_answers_and_the_poll_drops_the_answers(kind: str) -> None:
    base = walked(kind, 0)
    base.send_actions(BOTH)
    obs, _ = base.try_reset()
    assert seen(obs) == {0: [0, 0], 1: [1, 0]}
    obs, rewards, *_ = base.poll()
    assert seen(obs) == {0: [0, 0], 1: [1, 0]}
    assert rewards == {0: {AGENT: 0.0}, 1: {AGENT: 0.0}}
    assert steps_taken(base) == [0, 0]


@pytest.mark.parametrize("kind", RESTARTS)
def test_try_reset_of_one_between_the_first_answers_and_the_poll_drops_its_answer(kind: str) -> None:
    base = walked(kind, 0)
    base.send_actions(BOTH)
    base.try_reset(0)
    assert seen(next(iter(base.poll())))[0] == [0, 0]
    assert steps_taken(base)[0] == 0


CALLS: dict[str, Callable[[BaseEnv, Any], Any]] = {
    "try_reset": lambda base, env_id: base.try_reset(env_id),
    "try_restart": lambda base, env_id: base.try_restart(env_id),
    "try_render": lambda base, env_id: base.try_render(env_id),
}


@pytest.mark.each_value
@every_kind
@pytest.mark.parametrize("env_id", ["x", 2, -1, 0.5, [0]], ids=repr)
@pytest.mark.parametrize("call", CALLS)
def test_an_unknown_id_is_answered_with_the_valid_ones(kind: str, call: str, env_id: Any) -> None:
    base = walked(kind)
    with pytest.raises(ConfigError) as caught:
        CALLS[call](base, env_id)
    message = checked(str(caught.value))
    if call != "try_restart" or kind in RESTARTS:
        assert repr(env_id) in message
        assert "expected an integer from 0 to 1" in message
    base.send_actions(BOTH)
    assert seen(next(iter(base.poll()))) == {0: [0, 2], 1: [1, 2]}


@pytest.mark.parametrize("kind", RESTARTS)
@pytest.mark.parametrize("env_id", [1, None], ids=["one", "all"])
@pytest.mark.parametrize("when", ["unpolled", "waiting", "answered"])
def test_a_restarted_sub_environment_gives_a_first_observation_in_the_next_poll(
    kind: str, env_id: int | None, when: str
) -> None:
    base = MAKERS[kind]() if when == "unpolled" else walked(kind)
    old = list(base.get_sub_environments())
    if when == "answered":
        base.send_actions(BOTH)
    base.try_restart(env_id)
    new = list(base.get_sub_environments())
    assert [new[i] is old[i] for i in (0, 1)] == [env_id is not None, False]
    obs, rewards, terminateds, truncateds, *_ = base.poll()
    expected = {1: [1, 0]}
    if env_id is None or when == "unpolled":
        expected[0] = [0, 0]
    elif when == "answered" and kind in ALONE:
        expected[0] = [0, 2]
    assert seen(obs) == expected
    assert rewards[1] == {AGENT: 0.0}
    assert not any(terminateds[env_id][ALL] for env_id in expected)
    assert truncateds[1][ALL] == (when != "unpolled")
    # Who has answered for sub-environment 0 already need not do so again.
    base.send_actions({i: BOTH[i] for i in (expected if when == "answered" else BOTH)})
    obs, rewards, *_ = base.poll()
    assert seen(obs)[1] == [1, 1]
    assert rewards[1] == {AGENT: 1.0}


@pytest.mark.parametrize("kind", sorted(set(MAKERS) - set(RESTARTS)))
def test_what_cannot_be_restarted_says_so_and_goes_on(kind: str) -> None:
    base = walked(kind)
    with pytest.raises(MenvError) as caught:
        base.try_restart(0)
    checked(str(caught.value))
    base.send_actions(BOTH)
    assert seen(next(iter(base.poll()))) == {0: [0, 2], 1: [1, 2]}


VECTOR = VectorEnv.vectorize_gym_envs(Counting, num_envs=2)
CONVERSIONS: dict[str, Callable[[], Any]] = {
    r"cannot use object .*expected a gymnasium.Env, .* a menv.MultiAgentEnv,": lambda: to_base_env(object()),
    "BaseEnv": lambda: to_base_env(Counting),
    "num_envs=2 and make_env is None, expected one that creates 1 more; pass make_env": (
        lambda: to_base_env(Counting(), None, 2)
    ),
    "make_env is 3, expected a function of one index; pass make_env=lambda": (
        lambda: to_base_env(Counting(), 3, 2)  # type: ignore[arg-type]
    ),
    "make_env is 3, expected a function .*": (
        lambda: to_base_env(Counting(), 3, 2, remote_envs=True)  # type: ignore[arg-type]
    ),
    "0.*expected at least 1": lambda: to_base_env(Counting(), Counting, 0),
    "-1.*expected at least 1": lambda: to_base_env(Counting(), Counting, -1),
    "num_envs=3": lambda: to_base_env(VECTOR, None, 3),
    "num_envs=5": lambda: to_base_env(sync(AutoresetMode.SAME_STEP)(), None, 5),
    "remote_envs": lambda: to_base_env(VECTOR, Counting, 1, remote_envs=True),
    "num_envs=2": lambda: to_base_env(to_base_env(Counting()), None, 2),
    "num_envs: 1.5": lambda: to_base_env(Counting(), Counting, 1.5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("told", CONVERSIONS)
def test_a_conversion_that_cannot_be_is_refused_by_name(told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        CONVERSIONS[told]()
    checked(str(caught.value))


@pytest.mark.parametrize("returned", [{0: {AGENT: 0}}, None, (1, 2, 3)])
def test_an_own_base_env_that_resets_in_the_old_way_is_told_how(returned: Any) -> None:
    class Old(SixDicts):
        def try_reset(self, env_id: Any = None) -> Any:  # type: ignore[override]
            return returned

    base = to_base_env(Old([ScriptedEnv(SOLO)], "now"))
    base.poll()
    base.send_actions({0: {"a": 0}})
    with pytest.raises(
        ContractError, match=r"^Old.try_reset: returned .*, expected \(obs, infos\), two dicts"
    ) as caught:
        base.try_reset(0)
    checked(str(caught.value))


@pytest.mark.parametrize("kind", [VectorEnv, ExternalEnv, ExternalMultiAgentEnv])
def test_a_constructor_without_that_of_its_base_class_is_named(kind: Any) -> None:
    forgetful = type("Forgetful", (kind,), {"__init__": lambda self: None, "run": lambda self: None})
    with pytest.raises(
        ContractError, match=r"^Forgetful: \w+ is missing, .*call super\(\).__init__\("
    ) as caught:
        to_base_env(forgetful())
    checked(str(caught.value))


def test_an_env_of_both_kinds_and_a_table_stay_what_they_are() -> None:
    class Both(CountingAgent, gym.Env[Any, Any]):
        pass

    assert next(iter(to_base_env(Both()).poll())) == {0: {AGENT: pytest.approx([0, 0])}}
    base = to_base_env(Counting())
    assert to_base_env(base) is base


def test_a_reset_that_returns_the_observations_of_one_sub_environment_alone_is_told_to_key_them() -> None:
    class Bare(SixDicts):
        def try_reset(self, env_id: Any = None, **kwargs: Any) -> Any:
            obs, infos = super().try_reset(env_id, **kwargs)
            return obs[env_id], infos[env_id]

    base = to_base_env(Bare([ScriptedEnv(SOLO, agents="a")], "now"))

    def play() -> None:
        for _ in range(len(SOLO[0])):
            base.send_actions({0: dict.fromkeys(base.poll()[0][0], 0)})

    with pytest.raises(
        ContractError, match="observations are ndarray, expected a dict keyed by agent"
    ) as caught:
        play()
    checked(str(caught.value))


BROKEN_POLLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "flags of several": (({}, {}, {0: {"a": np.zeros(2)}}, {}), "^env 0 step, .*: the flag of 'a' is ndarray"),
    "rewards of several": (({}, {0: {"a": np.zeros(2)}}, {}, {}), r"the reward of 'a' is ndarray of shape \(2,\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_POLLS)
def test_what_six_dicts_may_not_say_is_named(case: str) -> None:
    parts, told = BROKEN_POLLS[case]

    class Own(SixDicts):
        def poll(self, timeout: float | None = None) -> Any:
            return (*parts, {}, {})

        def try_reset(self, env_id: Any = None, **kwargs: Any) -> Any:
            return {0: {"a": np.zeros(6, np.float32)}}, {0: {}}

    base = to_base_env(Own([ScriptedEnv(SOLO)], "now"))
    base.try_reset(0)
    with pytest.raises(ContractError, match=told) as caught:
        base.poll()
    checked(str(caught.value))
