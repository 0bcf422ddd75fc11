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
from typing import Any

import numpy as np
import pytest

from menv import BaseEnv, ExternalEnv, ExternalMultiAgentEnv, VectorEnv, to_base_env
from menv.base_env import ALL
from menv.errors import ConfigError, ContractError, MenvError
from tests.acceptance.counting import AGENT, ALONE, BOTH, MAKERS, RESTARTS, seen, steps_taken, walked
from tests.bad_input.broken_envs import checked
from tests.contract.scripted import SOLO, ScriptedEnv, SixDicts
from tests.worlds import like

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


@pytest.mark.each_value
@every_kind
@pytest.mark.parametrize("stranger", STRANGERS)
def test_an_action_for_an_unknown_agent_is_refused_and_steps_nothing(kind: str, stranger: str) -> None:
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
        assert "0 to 1" in message
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
def test_an_environment_that_cannot_restart_says_so_and_continues(kind: str) -> None:
    base = walked(kind)
    with pytest.raises(MenvError) as caught:
        base.try_restart(0)
    checked(str(caught.value))
    base.send_actions(BOTH)
    assert seen(next(iter(base.poll()))) == {0: [0, 2], 1: [1, 2]}


@pytest.mark.parametrize("returned", [{0: {AGENT: 0}}, None, (1, 2, 3)])
def test_a_custom_base_env_with_an_old_reset_is_told_the_new_form(returned: Any) -> None:
    base = to_base_env(
        like(SixDicts, try_reset=lambda self, env_id=None: returned)([ScriptedEnv(SOLO)], "now")
    )
    base.poll()
    base.send_actions({0: {"a": 0}})
    with pytest.raises(ContractError, match="try_reset") as caught:
        base.try_reset(0)
    checked(str(caught.value))


@pytest.mark.parametrize("kind", [VectorEnv, ExternalEnv, ExternalMultiAgentEnv])
def test_a_constructor_without_super_init_is_named(kind: Any) -> None:
    forgetful = type("Forgetful", (kind,), {"__init__": lambda self: None, "run": lambda self: None})
    with pytest.raises(ContractError, match="Forgetful") as caught:
        to_base_env(forgetful())
    checked(str(caught.value))


def test_a_reset_with_the_observations_of_one_sub_environment_is_told_to_key_them() -> None:
    class Bare(SixDicts):
        def try_reset(self, env_id: Any = None, **kwargs: Any) -> Any:
            obs, infos = super().try_reset(env_id, **kwargs)
            return obs[env_id], infos[env_id]

    base = to_base_env(Bare([ScriptedEnv(SOLO, agents="a")], "now"))

    def play() -> None:
        for _ in range(len(SOLO[0])):
            base.send_actions({0: dict.fromkeys(base.poll()[0][0], 0)})

    with pytest.raises(ContractError, match="ndarray") as caught:
        play()
    checked(str(caught.value))


BROKEN_POLLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "flags of several": (({}, {}, {0: {"a": np.zeros(2)}}, {}), "^env 0 step, .*: .*'a' is ndarray"),
    "rewards of several": (({}, {0: {"a": np.zeros(2)}}, {}, {}), r"reward of 'a' .*\(2,\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_POLLS)
def test_invalid_six_dicts_are_named(case: str) -> None:
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
