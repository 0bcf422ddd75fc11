"""The five calls: many episodes at once, in any order, from any thread; calls that make no sense are refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from menv import to_base_env
from menv.algorithms import DQN, PPO
from menv.errors import CallOrderError, ConfigError, ContractError, EpisodeError
from tests.external.told import (
    Told,
    ToldTeam,
    ask_steps,
    calling,
    log_steps,
    obs,
    rewards_of,
    steps_of,
    training,
)
from tests.inside import sampler
from tests.serving.talks import eventually


def test_many_threads_play_many_episodes_at_once() -> None:
    env = Told()
    lock, played = threading.Lock(), [0]

    def play() -> None:
        for _ in range(5):
            with lock:
                number, played[0] = played[0], played[0] + 1
            episode = env.start_episode()
            ask_steps(env, episode, number, 4)
            env.end_episode(episode, obs(number, 4))

    with training(env, rollout_fragment_length=160) as algo, calling(*[play] * 8):
        batches = [algo.sample()]
    assert steps_of(batches) == {number: [0, 1, 2, 3] for number in range(40)}
    assert rewards_of(batches) == {number: [1.0, 2.0, 3.0, 4.0] for number in range(40)}


def test_an_episode_may_be_handed_from_thread_to_thread() -> None:
    env = Told()
    episode = env.start_episode()
    with training(env) as algo:
        for step in range(9):

            def one(step: int = step) -> None:
                env.get_action(episode, obs(0, step))
                env.log_returns(episode, 1.0)

            with calling(one):
                sampler(algo).base_env.idle_timeout = 0.05
                algo.sample()
        sampler(algo).base_env.idle_timeout = 30.0
        env.log_action(episode, obs(0, 9), 0)
        env.end_episode(episode, obs(0, 10))
        batch = algo.sample()
    assert steps_of([batch]) == {0: list(range(9))}


def test_a_log_far_ahead_of_the_sampler_waits_for_it() -> None:
    env = Told()
    logged = [0]

    def play() -> None:
        for step in range(500):
            env.log_action("x", obs(0, step), 1)
            logged[0] += 1
        env.end_episode("x", obs(0, 500))

    env.start_episode("x")
    with training(env, DQN, rollout_fragment_length=500) as algo, calling(play):
        time.sleep(0.2)
        ahead = logged[0]
        batch = algo.sample()
    assert 10 < ahead < 500
    assert steps_of([batch]) == {0: list(range(500))}


def calls(env: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls within the episode "x"."""
    team = isinstance(env, ToldTeam)
    seen: Any = {"a": obs(0, 0)} if team else obs(0, 0)
    return {
        "get_action": lambda: env.get_action("x", seen),
        "log_action": lambda: env.log_action("x", seen, {"a": 0} if team else 0),
        "log_returns": lambda: env.log_returns("x", {} if team else 1.0),
        "end_episode": lambda: env.end_episode("x", seen),
    }


@pytest.mark.parametrize("kind", [Told, ToldTeam])
def test_calls_for_an_episode_that_is_not_open_are_refused_and_its_id_is_used_up(kind: Any) -> None:
    env = kind()
    for name, call in calls(env).items():
        # As the classic system says it.
        with pytest.raises(ValueError, match=f"{name}: episode 'x' was not found"):
            call()
    env.start_episode("x")
    with pytest.raises(EpisodeError, match="start_episode"):
        env.start_episode("x")
    calls(env)["log_action"]()
    calls(env)["end_episode"]()
    for call in (*calls(env).values(), lambda: env.start_episode("x")):
        with pytest.raises(EpisodeError, match="'x'"):
            call()


def test_two_calls_at_once_in_one_episode_are_refused_and_the_first_one_is_answered() -> None:
    env = Told()
    env.start_episode("x")
    actions: list[Any] = []

    def first() -> None:
        actions.append(env.get_action("x", obs(0, 0)))
        env.end_episode("x", obs(0, 1))

    with training(env, rollout_fragment_length=1) as algo, calling(first):
        assert eventually(lambda: env.broker._channels["x"].asked)
        for name in ("get_action", "log_action", "end_episode"):
            with pytest.raises(EpisodeError, match="get_action"):
                calls(env)[name]()
        # Rewards may be told at any time.
        env.log_returns("x", 1.0)
        batch = algo.sample()
    assert actions[0] in (0, 1, 2)
    assert rewards_of([batch]) == {0: [1.0]}


def test_at_most_max_concurrent_episodes_are_open() -> None:
    env = Told(max_concurrent=2)
    env.start_episode("x")
    env.start_episode("y")
    with pytest.raises(CallOrderError, match="max_concurrent"):
        env.start_episode()
    env.end_episode("x", obs(0, 0))
    env.start_episode("z")
    with pytest.raises(CallOrderError, match="max_concurrent=2"):
        env.start_episode()


def test_stop_wakes_waiting_threads_and_refuses_later_calls() -> None:
    env = Told()

    def wait() -> None:
        with pytest.raises(CallOrderError):
            ask_steps(env, env.start_episode(), 0, 100)

    def wait_to_log() -> None:
        with pytest.raises(CallOrderError):
            log_steps(env, env.start_episode(), 1, 10_000)

    with training(env) as algo, calling(wait, wait, wait, wait_to_log):
        algo.sample()
        algo.stop()
    for call in (env.start_episode, *calls(env).values()):
        with pytest.raises(CallOrderError):
            call()


def test_stop_from_another_thread_ends_a_poll_that_waits() -> None:
    env = Told()
    base_env = to_base_env(env)

    def poll() -> None:
        with pytest.raises(CallOrderError):
            base_env.poll()

    with calling(poll):
        time.sleep(0.05)
        base_env.stop()
        env.over.set()


def test_an_environment_is_sampled_once() -> None:
    env = Told()
    env.to_base_env()
    with pytest.raises(ConfigError, match="Told"):
        env.to_base_env()


def test_several_environments_call_one_sampler() -> None:
    made: list[Told] = []

    def make(context: Any) -> Told:
        number = len(made)

        def play(env: Any) -> None:
            episode = env.start_episode(f"of {number}")
            ask_steps(env, episode, number, 6)
            env.end_episode(episode, obs(number, 6))

        made.append(Told(play))
        return made[-1]

    with PPO(env=make, config={"seed": 1, "rollout_fragment_length": 18, "num_envs_per_worker": 3}) as algo:
        batches = [algo.sample()]
        for env in made:
            env.over.set()
    assert len(made) == 3
    assert steps_of(batches) == {number: list(range(6)) for number in range(3)}


def test_an_external_environment_has_no_workers() -> None:
    with pytest.raises(ConfigError, match="num_workers"):
        PPO(env=lambda context: Told(), config={"num_workers": 1, "engine": "process"})


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1", None, [1.0, 2.0]])
def test_a_reward_that_is_not_finite_is_refused(reward: Any) -> None:
    env = Told()
    env.start_episode("x")
    env.log_action("x", obs(0, 0), 0)
    with pytest.raises(ContractError, match="'agent0'"):
        env.log_returns("x", reward)


WRONG_CALLS: dict[str, Any] = {
    "get_action: observation_dict is ndarray": lambda env, name: env.get_action(name, obs(0, 0)),
    "get_action: observation_dict is NoneType": lambda env, name: env.get_action(name, None),
    "log_action: action_dict is int": lambda env, name: env.log_action(name, {"a": 0}, 5),
    "observation_dict is int": lambda env, name: env.log_action(name, 5, {"a": 0}),
    "log_returns: reward_dict is float": lambda env, name: env.log_returns(name, 1.0),
    "log_returns: info_dict is int": lambda env, name: env.log_returns(name, {}, 5),
    "log_returns: info is int": lambda env, name: env.log_returns(name, {}, {"a": 5}),
    "multiagent_done_dict is bool": lambda env, name: env.log_returns(name, {}, {}, True),
    "the done flag of 'a' is str": lambda env, name: env.log_returns(name, {}, {}, {"a": "False"}),
    # A number that no float holds.
    "'a' is inf": lambda env, name: env.log_returns(name, {"a": 10**400}),
    "end_episode: truncated is str": lambda env, name: env.end_episode(name, {}, "no"),
    "end_episode: observation_dict is": lambda env, name: env.end_episode(name, obs(0, 0)),
}


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_calls_of_a_team_without_agents_are_named(message: str) -> None:
    env = ToldTeam()
    with pytest.raises(ContractError, match=message):
        WRONG_CALLS[message](env, env.start_episode())
