"""What an application sees of a server: its calls, with actions from the server and with its own, and arguments."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import MultiAgentEnv, PolicySpec
from menv.algorithms import DQN
from menv.env_context import InputContext
from menv.errors import ConfigError, ContractError, EpisodeError, RefusedError
from menv.serving import PolicyClient, PolicyServerInput
from menv.serving.policy_server import TransportName
from tests.serving.courses import (
    CONFIG,
    OBSERVATIONS,
    PAIR,
    both,
    every_mode,
    every_transport,
    keeping,
    observation,
    play,
    playing,
)  # fmt: skip
from tests.serving.served import obs_of, served
from tests.serving.talks import eventually

HALF = "half of a \ud83d"
WIDE = gym.spaces.Box(-1.0, 1.0, (5,), np.float32)
CHOICES = gym.spaces.Discrete(2)


@pytest.mark.each_value
@every_transport
@every_mode
def test_every_reward_arrives_once_with_what_the_application_saw_and_did(
    mode: str, transport: TransportName
) -> None:
    done: dict[float, tuple[int, Any]] = {}
    with playing(mode, transport=transport) as (course, client):
        silent = client.start_episode(training_enabled=False)
        client.get_action(silent, observation(0))
        client.log_returns(silent, 99.5)
        client.end_episode(silent, observation(1))
        names = [client.start_episode(f"game {number}") for number in range(4)]
        assert client.open_episodes == names
        # What is paid before the first action joins it.
        client.log_returns(names[3], -0.25)
        for step in range(6):
            for number, name in enumerate(names):
                reward = 100.0 * number + step
                done[reward - 0.25 * (reward == 300.0)] = step, client.get_action(name, observation(step))
                client.log_returns(name, reward - 0.5)
                client.log_returns(name, 0.5)
        for name in (names[2], names[0], names[3], names[1]):
            client.end_episode(name, observation(6), truncated=name == names[3])
        client.close()
        assert course.has_rewards(list(done))
        order = np.argsort(course.column("rewards"))
        steps, actions = zip(*(done[reward] for reward in sorted(done)), strict=True)
        assert course.column("actions")[order].tolist() == list(actions)
        assert set(actions) <= {0, 1}
        assert all(isinstance(action, np.integer) for action in actions)
        assert np.allclose(course.column("obs")[order], [observation(step) for step in steps])
        logp = course.column("action_logp")
        assert np.isfinite(logp).all()
        assert (logp < 0).all()
        assert course.column("truncateds").sum() == 1
        assert course.column("terminateds").sum() == 3


@every_mode
def test_several_threads_play_many_episodes_through_one_client(mode: str) -> None:
    rewards = [[100.0 * number + step for step in range(9)] for number in range(16)]
    with playing(mode) as (course, client), ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda paid: play(client, paid), rewards))
        client.close()
        assert course.has_rewards([reward for paid in rewards for reward in paid])


@every_mode
def test_a_client_takes_the_most_likely_actions_where_the_server_does(mode: str) -> None:
    with served(explore=False) as one:
        wanted = one.algo.compute_single_action(obs_of(0), explore=False)
        with one.sampling(), one.client(mode) as client:
            name = client.start_episode()
            assert {int(client.get_action(name, obs_of(0))) for _ in range(40)} == {int(wanted)}


@every_mode
def test_actions_of_the_application_reach_dqn(mode: str) -> None:
    with playing(mode, {"train_batch_size": 32}, kind=DQN) as (course, client):
        name = client.start_episode()
        client.log_returns(name, 0.5)
        for number in range(10):
            client.log_action(name, observation(number), number % 2)
            client.log_returns(name, 1.0, {"speed": 3})
        client.end_episode(name, observation(10))
        assert course.has_rewards([1.5, *[1.0] * 9])
        assert sorted(course.column("actions").tolist()) == [0] * 5 + [1] * 5


def test_the_same_seed_draws_the_same_actions() -> None:
    with keeping() as course:
        played = []
        for seed in (5, 5, 6):
            with PolicyClient(course.address, update_interval=None, seed=seed) as client:
                played.append(play(client, [0.0] * 40, "same name"))
        assert played[0] == played[1]
        assert played[0] != played[2]


@pytest.mark.parametrize(("forced", "interval"), [(False, None), (False, 0.01), (True, None)])
def test_weights_come_when_they_are_asked_for_at_intervals_or_when_the_server_insists(
    forced: bool, interval: float | None
) -> None:
    asks = not forced and interval is None
    with (
        keeping(trains=True, force_on_policy=forced) as course,
        PolicyClient(course.address, update_interval=interval) as client,
    ):
        play(client, [1.0])
        before = client.weights_seq_no
        for _ in range(20 * asks):
            play(client, [1.0] * 10)
            assert client.weights_seq_no == before

        def newer() -> bool:
            play(client, [1.0] * 10)
            if asks:
                client.update_policy_weights()
            return client.weights_seq_no != before

        assert eventually(newer)


@every_transport
def test_only_the_right_token_gets_in(transport: TransportName) -> None:
    with keeping(transport=transport, token="open sesame") as course:
        for wrong in (None, "open barley"):
            with pytest.raises(ConfigError, match="token") as caught:
                PolicyClient(course.address, "remote", token=wrong, timeout=5)
            assert "sesame" not in str(caught.value)
        with PolicyClient(course.address, "remote", token="open sesame") as client:
            play(client, [1.0])
        assert course.has_rewards([1.0])


@pytest.mark.parametrize(("arguments", "text"), [
    ({"address": "localhost:9900"}, "http://localhost:9900"),
    ({"address": ("localhost", 9900)}, "http://localhost:9900"),
    ({"address": "ftp://localhost:9900"}, "http://localhost:9900"),
    ({"address": "http://localhost"}, "port"),
    ({"address": "http://a b:9900"}, "port"),
    ({"address": f"tcp://{'a' * 80}:9900"}, "port"),
    ({"address": "http://localhost:9900/rll\u00efnk"}, "port"),
    ({"inference_mode": "both"}, "remote"),
    ({"client": HALF}, "client"),
    ({"client": 5}, "client"),
    ({"update_interval": "often"}, "update_interval"),
    ({"update_interval": math.nan}, "update_interval"),
    ({"update_interval": -1.0}, "update_interval"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"token": 51342}, "token"),
    *(({"timeout": wrong}, "timeout=")
      for wrong in (None, "60", 0, math.nan, math.inf, 1e30)),
])  # fmt: skip
def test_arguments_that_no_client_can_have_are_refused_before_any_server_is_called(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        PolicyClient(**{"address": "http://127.0.0.1:1", "timeout": 20, **arguments})
    assert "51342" not in str(caught.value)


@pytest.mark.parametrize(("settings", "text"), [
    *(({"port": port}, "HttpTransport: port")
      for port in ("9900", -1, 65536, 1.5, None)),
    *(({"transport": transport}, "^transports?: ") for transport in ([], ["tcp"], 5, "udp")),
    *(({name: value}, f"^{name}: ") for name, value in (
        ("idle_timeout", -1), ("return_s", "60"), ("batch_wait", float("inf")), ("max_staleness", 1.5),
        ("env_steps_per_sample", 0), ("env_steps_per_sample", True), ("force_on_policy", "no"),
        ("limits", {"max_body": 3}), ("access", "0.0.0.0"),
    )),
])  # fmt: skip
def test_settings_of_a_server_are_checked_when_it_is_made(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PolicyServerInput(InputContext(), **{"port": 0, **settings})


def told_by(policies: dict[str, Any]) -> dict[str, Any]:
    mapping = {"policies": policies, "policy_mapping_fn": lambda agent_id, **kwargs: next(iter(policies))}
    return {"observation_space": None, "action_space": None, "multiagent": mapping}


@every_mode
@pytest.mark.parametrize(
    "specs", [(None, OBSERVATIONS, CHOICES, {}), PolicySpec(None, OBSERVATIONS, CHOICES)]
)
def test_clients_play_in_the_spaces_that_the_policies_declare(specs: Any, mode: Any) -> None:
    assert CONFIG["observation_space"] == OBSERVATIONS
    with playing(mode, told_by({"one": specs, "other": specs})) as (_, client):
        assert set(play(client, [1.0, 2.0])) <= {0, 1}


@pytest.mark.parametrize(
    "policies",
    [{"one": (None, OBSERVATIONS, CHOICES, {}), "other": (None, WIDE, CHOICES, {})}, {"one": None}],
)
def test_a_server_whose_spaces_nobody_knows_is_refused(policies: Any) -> None:
    with pytest.raises(ConfigError, match="observation space"):
        keeping(told_by(policies)).__enter__()


@pytest.mark.parametrize(
    ("names", "told"), [((0, 1), "agent 0 is a int"), (("ann", None), "agent None is a NoneType")]
)
def test_a_stub_whose_agents_no_message_can_name_is_refused(names: Any, told: str) -> None:
    class Stub(MultiAgentEnv):
        def __init__(self, config: Any = None) -> None:
            super().__init__()
            self.possible_agents = list(names)
            self.observation_spaces, self.action_spaces = (
                dict.fromkeys(names, space) for space in (OBSERVATIONS, CHOICES)
            )

    with pytest.raises(ConfigError, match=told) as caught:
        keeping({"env": Stub, "observation_space": None, "action_space": None}).__enter__()
    assert len(str(caught.value).splitlines()) == 1


@every_mode
def test_an_episode_that_is_not_open_is_named_and_an_id_that_no_server_takes_is_refused(mode: str) -> None:
    with playing(mode) as (course, client):
        unknown: list[Any] = ["a", ["mine"], {"id": "mine"}, ("mine", []), None, 1.5]
        for missing in unknown:
            for call, arguments in (
                ("get_action", (observation(0),)), ("log_action", (observation(0), 0)), ("log_returns", (1.0,)),
                ("end_episode", (observation(0),)),
            ):  # fmt: skip
                with pytest.raises(EpisodeError, match=call):
                    getattr(client, call)(missing, *arguments)
        for wrong in (5, "", "x" * 257):
            with pytest.raises(ConfigError, match="256"):
                client.start_episode(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="id"):
            client.start_episode(HALF)
        for flag in ("False", 1, None):
            with pytest.raises(ContractError, match="training_enabled"):
                client.start_episode("a", flag)  # type: ignore[arg-type]
        play(client, [1.0], "a")
        with pytest.raises(EpisodeError, match="log_returns"):
            client.log_returns("a", 1.0)
        with pytest.raises(EpisodeError):
            client.start_episode("a")
        client.close()
        assert course.has_rewards([1.0])


@every_mode
def test_what_cannot_be_told_of_one_agent_is_refused_at_once_and_the_episode_continues(mode: str) -> None:
    with playing(mode) as (course, client):
        name = client.start_episode("e", training_enabled=np.True_)  # type: ignore[arg-type]
        if mode == "local":
            for seen in (np.zeros(5, np.float32), np.full(3, np.nan, np.float32)):
                with pytest.raises(ContractError, match=f"get_action: episode '{name}'"):
                    client.get_action(name, seen)
        else:
            with pytest.raises(RefusedError, match="GET_ACTION") as caught:
                client.get_action(name, np.zeros(5, np.float32))
            assert caught.value.code == "wrong_length"
            with pytest.raises(ContractError, match="get_action"):
                client.get_action(name, object())
        with pytest.raises(ContractError, match="log_returns"):
            client.log_returns(name, {"agent": 1.0})
        for step in range(12):
            client.get_action(name, observation(step))
            wrong: Any
            for wrong in (math.nan, -math.inf, "1", None):
                with pytest.raises(ContractError, match="agent0"):
                    client.log_returns(name, wrong)
            info: Any
            for info in (5, "x", [("a", 1)]):
                with pytest.raises(ContractError, match="log_returns"):
                    client.log_returns(name, 7.0, info)
            client.log_returns(name, 2.0, {"fine": 1})
        flags: list[Any] = ["False", [False], np.array([True, False])]
        for flag in flags:
            with pytest.raises(ContractError, match="truncated"):
                client.end_episode(name, observation(1), flag)
        client.end_episode(name, observation(1), np.bool_(False))  # type: ignore[arg-type]
        client.close()
        assert course.has_rewards([2.0] * 12)
        assert course.column("terminateds").sum() == 1


TOLD: list[tuple[tuple[Any, ...], str]] = [
    (({5: 1.0},), "agent 5"),
    (({HALF: 1.0},), "agent 'half of a "),
    (({"": 1.0},), "agent ''"),
    (({"a": 1.0}, {7: {}}), "agent 7"),
    (({"a": 1.0}, {"a": 7}), "info is int"),
    (({"a": 1.0}, None, {HALF: True}), "agent 'half of a "),
    (({"a": 1.0}, None, {7: True}), "agent 7"),
    (({"a": 1.0}, None, {"a": "False"}), "flag of 'a' is str"),
    (({"a": 1.0}, None, {"a": np.array([True, False])}), "flag of 'a' is ndarray"),
    (({"a": 10**400},), "reward of 'a' is inf"),
]


@every_mode
def test_what_cannot_be_told_of_several_agents_is_refused_at_once_and_the_episode_continues(
    mode: Any,
) -> None:
    with playing(mode, PAIR) as (course, client):
        name = client.start_episode()
        if mode == "local":
            for seen, why in (
                (observation(0), "observation is ndarray"),
                ({"a": observation(0), HALF: observation(0)}, "agent 'half of a "),
                ({0: observation(0)}, "agent 0"),
            ):
                with pytest.raises(ContractError, match=rf"get_action: .*{why}"):
                    client.get_action(name, seen)
        client.get_action(name, both(0))
        for told, why in TOLD:
            with pytest.raises(ContractError, match=f"log_returns: .*{why}"):
                client.log_returns(name, *told)
        client.log_returns(name, {"a": 2.0, "b": 4.0}, None, {"b": np.False_})  # type: ignore[dict-item]
        client.get_action(name, both(1))
        for wrong in (observation(1), None) if mode == "local" else ():
            with pytest.raises(ContractError, match="end_episode"):
                client.end_episode(name, wrong)
        client.end_episode(name, both(2))
        client.close()
        assert course.has_rewards([2.0, 4.0, 0.0, 0.0])
