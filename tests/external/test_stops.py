"""Nobody waits for ever in `get_action`: not where another thread stops sampling, and not where the call was wrong."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from menv.adapters.external import ExternalEnvs
from menv.errors import CallOrderError, ContractError
from tests.external.told import ACTIONS, LONG, OBS, Told, ToldTeam, calling, obs, training

ROUNDS = 60


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def sample(base_env: ExternalEnvs, told: list[BaseException]) -> None:
    """Sample by hand until it raises."""
    try:
        while True:
            ready = base_env.poll()
            base_env.send_actions(ready.slots, [0] * len(ready.slots))
    except BaseException as error:
        told.append(error)


def call(env: Told, told: list[BaseException], sampled: threading.Event) -> None:
    """Play until it raises."""
    try:
        name = env.start_episode()
        while True:
            env.get_action(name, obs(0, 0))
            sampled.set()
    except BaseException as error:
        told.append(error)


def test_whoever_stops_an_environment_that_is_sampled_leaves_nobody_waiting(many_switches: None) -> None:
    for _ in range(ROUNDS):
        env, sampled = Told(), threading.Event()
        base_env = env.to_base_env()
        of_callers: list[BaseException] = []
        of_sampler: list[BaseException] = []
        threads = [
            threading.Thread(target=call, args=(env, of_callers, sampled), daemon=True) for _ in range(4)
        ]
        threads.append(threading.Thread(target=sample, args=(base_env, of_sampler), daemon=True))
        for thread in threads:
            thread.start()
        assert sampled.wait(LONG)
        base_env.stop()
        env.over.set()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        assert [type(error) for error in of_callers] == [CallOrderError] * 4
        assert [type(error) for error in of_sampler] == [CallOrderError]
        assert "this environment was stopped" in str(of_sampler[0])


@pytest.mark.parametrize(("done", "more"), [({}, ["__all__"]), ({"nobody": True}, [])], ids=["ids", "ends"])
def test_whoever_makes_a_call_that_breaks_the_rules_is_told_so_and_may_go_on(
    done: dict[Any, bool], more: list[str]
) -> None:
    env = ToldTeam(observation_space=dict.fromkeys("ab", OBS), action_space=dict.fromkeys("ab", ACTIONS))
    told: list[Any] = []

    def play() -> None:
        name = env.start_episode()
        env.get_action(name, {"a": obs(0, 0)})
        env.log_returns(name, {}, None, done)
        with pytest.raises(ContractError) as caught:
            env.get_action(name, dict.fromkeys(["a", *more], obs(0, 1)))
        told.append(str(caught.value))
        told.append(env.get_action(name, {"a": obs(0, 1)}))
        env.log_returns(name, {"a": 1.0})
        env.end_episode(name, {"a": obs(0, 2)})

    with training(env, rollout_fragment_length=3) as algo, calling(play):
        with pytest.raises(ContractError) as caught:
            algo.sample()
        batch = algo.sample()
    assert told[0] == str(caught.value)
    assert told[1].keys() == {"a"}
    assert sum(batch[name]["rewards"].sum() for name in batch) == 1.0
