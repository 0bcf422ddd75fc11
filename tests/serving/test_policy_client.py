"""What an application sees of a server: the classic calls, with actions from the server and with actions of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN
from menv.env_context import InputContext
from menv.errors import CallOrderError, ConfigError, ContractError, EpisodeError, RefusedError
from menv.serving.client.policy_client import PolicyClient
from menv.serving.limits import Limits
from menv.serving.policy_server import PolicyServerInput, RLlinkInput, TransportName
from tests.serving.courses import Course, observation, play
from tests.serving.talks import eventually

MODES = ("local", "remote")


@pytest.mark.parametrize("transport", ["http", "tcp", "websocket"])
@pytest.mark.parametrize("mode", MODES)
def test_every_reward_arrives_once_over_every_transport(mode: str, transport: TransportName) -> None:
    paid = [float(number) for number in range(1, 31)]
    with Course(transport=transport) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        actions = [*play(client, paid[:7]), *play(client, paid[7:9], truncated=True), *play(client, paid[9:])]
        client.close()
        assert course.has_rewards(paid)
        assert set(np.unique(course.column("actions"))) <= {0, 1}
        assert len(actions) == 30
        assert all(isinstance(action, np.integer) for action in actions)
        assert course.column("truncateds").sum() == 1
        assert course.column("terminateds").sum() == 2


@pytest.mark.parametrize("mode", MODES)
def test_the_batch_holds_what_the_application_saw_and_did(mode: str) -> None:
    with Course() as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        actions = play(client, [float(number) for number in range(20)])
        client.close()
        assert course.has_rewards([float(number) for number in range(20)])
        order = np.argsort(course.column("rewards"))
        assert course.column("actions")[order].tolist() == actions
        assert np.allclose(course.column("obs")[order], [observation(number) for number in range(20)])
        logp = course.column("action_logp")
        assert np.isfinite(logp).all()
        assert (logp < 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_client_takes_the_most_likely_actions_where_the_server_does(mode: str) -> None:
    course = Course({"explore": False})
    wanted = course.algo.compute_single_action(observation(0), explore=False)
    with course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        assert {int(client.get_action(name, observation(0))) for _ in range(40)} == {int(wanted)}


@pytest.mark.parametrize("mode", MODES)
def test_episodes_may_be_interleaved_and_end_in_any_order(mode: str) -> None:
    with Course() as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        names = [client.start_episode(f"game {number}") for number in range(4)]
        assert client.open_episodes == names
        paid = []
        for step in range(6):
            for number, name in enumerate(names):
                client.get_action(name, observation(step))
                client.log_returns(name, step + number / 8)
                client.log_returns(name, 0.5)
                paid.append(step + number / 8 + 0.5)
        for name in (names[2], names[0], names[3], names[1]):
            client.end_episode(name, observation(6))
        client.close()
        assert course.has_rewards(paid)


@pytest.mark.parametrize("mode", MODES)
def test_threads_play_at_the_same_time(mode: str) -> None:
    with Course() as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        paid = [[100.0 * thread + number for number in range(15)] for thread in range(6)]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda rewards: play(client, rewards), paid))
        client.close()
        assert course.has_rewards([reward for rewards in paid for reward in rewards])


def test_an_episode_may_go_on_in_another_thread() -> None:
    with Course() as course, PolicyClient(course.address, "remote") as client:
        name = client.start_episode()
        other = threading.Thread(target=client.get_action, args=(name, observation(0)))
        other.start()
        other.join(10)
        client.log_returns(name, 5.0)
        client.end_episode(name, observation(1))
        assert course.has_rewards([5.0])


@pytest.mark.parametrize("mode", MODES)
def test_what_is_paid_before_the_first_action_joins_it(mode: str) -> None:
    with Course() as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        client.log_returns(name, 2.0)
        client.get_action(name, observation(0))
        client.log_returns(name, 3.0)
        client.end_episode(name, observation(1))
        client.close()
        assert course.has_rewards([5.0])


@pytest.mark.parametrize("mode", MODES)
def test_nobody_learns_from_an_episode_that_is_not_for_training(mode: str) -> None:
    with Course() as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode(training_enabled=False)
        for number in range(20):
            client.get_action(name, observation(number))
            client.log_returns(name, 99.0)
        client.end_episode(name, observation(20))
        play(client, [1.0] * 20)
        client.close()
        assert course.has_rewards([1.0] * 20)


@pytest.mark.parametrize("mode", MODES)
def test_actions_of_the_application_reach_dqn(mode: str) -> None:
    with (
        Course({"train_batch_size": 32}, kind=DQN) as course,
        PolicyClient(course.address, mode) as client,  # type: ignore[arg-type]
    ):
        name = client.start_episode()
        client.log_returns(name, 0.5)
        for number in range(10):
            client.log_action(name, observation(number), number % 2)
            client.log_returns(name, 1.0, {"speed": 3})
        client.end_episode(name, observation(10))
        assert course.has_rewards([1.5, *[1.0] * 9])
        assert sorted(course.column("actions").tolist()) == [0] * 5 + [1] * 5


def test_an_episode_that_the_server_has_no_room_for_is_played_locally_and_sent() -> None:
    with Course(limits=Limits(max_episodes=1)) as course, PolicyClient(course.address) as client:
        other, name = client.start_episode(), client.start_episode()
        client.log_action(other, observation(0), 0)
        with pytest.raises(RefusedError, match=r"START_EPISODE: 1 episodes are open"):
            client.log_action(name, observation(0), 1)
        client.end_episode(other, observation(1))
        for number in range(5):
            client.get_action(name, observation(number))
            client.log_returns(name, 2.0)
        client.end_episode(name, observation(5))
        client.close()
        assert course.has_rewards([2.0] * 5)


def test_local_inference_takes_no_actions_of_the_application_after_its_own() -> None:
    with Course() as course, PolicyClient(course.address) as client:
        name = client.start_episode()
        client.get_action(name, observation(0))
        with pytest.raises(CallOrderError, match="expected log_action before the first get_action"):
            client.log_action(name, observation(1), 0)
        client.log_returns(name, 1.0)
        client.end_episode(name, observation(1))
        client.close()
        assert course.has_rewards([1.0])


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_that_is_not_open_is_named(mode: str) -> None:
    with Course() as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        with pytest.raises(EpisodeError, match="get_action: episode 'a' was not found"):
            client.get_action("a", observation(0))
        play(client, [1.0], "a")
        with pytest.raises(EpisodeError, match="log_returns: episode 'a' is completed"):
            client.log_returns("a", 1.0)
        with pytest.raises(EpisodeError, match="already completed"):
            client.start_episode("a")


def test_a_refusal_is_the_servers_sentence() -> None:
    with Course() as course, PolicyClient(course.address, "remote") as client:
        name = client.start_episode()
        with pytest.raises(RefusedError, match=r"^GET_ACTION\.observation: .*expected") as caught:
            client.get_action(name, np.zeros(5, np.float32))
        assert caught.value.code == "wrong_length"
        with pytest.raises(ContractError, match="get_action: got something that has no form on the wire"):
            client.get_action(name, object())
        client.get_action(name, observation(0))
        client.log_returns(name, 4.0)
        client.end_episode(name, observation(1))
        assert course.has_rewards([4.0])


def test_local_inference_names_an_observation_of_another_shape() -> None:
    with Course() as course, PolicyClient(course.address) as client:
        name = client.start_episode()
        with pytest.raises(ContractError, match=f"get_action: episode '{name}'"):
            client.get_action(name, np.zeros(5, np.float32))


def test_arrays_that_the_application_changes_later_are_kept_as_they_were() -> None:
    with Course() as course, PolicyClient(course.address) as client:
        name, seen = client.start_episode(), observation(0)
        for number in range(12):
            seen[2] = number / 1000
            client.get_action(name, seen)
            client.log_returns(name, float(number))
        client.end_episode(name, seen)
        client.close()
        assert course.has_rewards([float(number) for number in range(12)])
        order = np.argsort(course.column("rewards"))
        assert np.allclose(course.column("obs")[order][:, 2], np.arange(12) / 1000)


def test_the_same_seed_draws_the_same_actions() -> None:
    with Course() as course:
        played = []
        for seed in (5, 5, 6):
            with PolicyClient(course.address, update_interval=None, seed=seed) as client:
                played.append(play(client, [0.0] * 40, "same name"))
        assert played[0] == played[1]
        assert played[0] != played[2]


def test_weights_come_only_when_they_are_asked_for_without_an_interval() -> None:
    with (
        Course(trains=True, force_on_policy=False) as course,
        PolicyClient(course.address, update_interval=None) as client,
    ):
        play(client, [1.0])
        before = client.weights_seq_no
        for _ in range(20):
            play(client, [1.0] * 10)
        assert client.weights_seq_no == before

        def newer() -> bool:
            play(client, [1.0] * 10)
            client.update_policy_weights()
            return client.weights_seq_no != before

        assert eventually(newer)


@pytest.mark.parametrize("forced", [False, True])
def test_weights_come_by_themselves(forced: bool) -> None:
    interval = None if forced else 0.01
    with (
        Course(trains=True, force_on_policy=forced) as course,
        PolicyClient(course.address, update_interval=interval) as client,
    ):
        play(client, [1.0])
        before = client.weights_seq_no

        def newer() -> bool:
            play(client, [1.0] * 10)
            return client.weights_seq_no != before

        assert eventually(newer)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"address": "localhost:9900"}, "write 'http://localhost:9900'"),
        ({"address": ("localhost", 9900)}, "write 'http://localhost:9900'"),
        ({"address": "ftp://localhost:9900"}, "write 'http://localhost:9900'"),
        ({"address": "http://localhost"}, "expected scheme, host and port"),
        ({"address": "http://a b:9900"}, "expected scheme, host and port"),
        ({"address": f"tcp://{'a' * 80}:9900"}, "expected scheme, host and port"),
        ({"address": "http://localhost:9900/rll\u00efnk"}, "expected scheme, host and port"),
        ({"address": "http://localhost:1", "inference_mode": "both"}, "expected 'local' or 'remote'"),
        ({"address": "http://localhost:1", "session": object()}, "session is <object"),
        ({"address": "http://localhost:1", "timeout": 0}, "timeout=0"),
    ],
)
def test_wrong_arguments_are_explained(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PolicyClient(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("transport", ["http", "tcp", "websocket"])
def test_only_the_right_token_gets_in(transport: TransportName) -> None:
    with Course(transport=transport, token="open sesame") as course:
        for wrong in (None, "open barley"):
            with pytest.raises(ConfigError, match="check token and address") as caught:
                PolicyClient(course.address, "remote", token=wrong, timeout=5)
            assert "sesame" not in str(caught.value)
        with PolicyClient(course.address, "remote", token="open sesame") as client:
            play(client, [1.0])
        assert course.has_rewards([1.0])


@pytest.mark.parametrize("mode", MODES)
def test_a_reward_of_another_kind_is_refused(mode: str) -> None:
    with Course() as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        with pytest.raises(ContractError, match="log_returns: got a dict, expected a number"):
            client.log_returns(name, {"agent": 1.0})
        client.get_action(name, observation(0))
        for reward, got in ((float("nan"), "nan"), (-float("inf"), "-inf"), ("1", "str"), (None, "NoneType")):
            with pytest.raises(
                ContractError, match=f"the reward of 'agent0' is {got}, expected a finite number"
            ):
                client.log_returns(name, reward)  # type: ignore[arg-type]
        # The episode goes on.
        client.log_returns(name, 2.0)
        client.end_episode(name, observation(1))
        client.close()
        assert course.has_rewards([2.0])


@pytest.mark.parametrize("kind", [PolicyServerInput, RLlinkInput])
def test_a_server_that_is_not_given_the_context_says_how_to_write_it(kind: type[PolicyServerInput]) -> None:
    name = kind.__name__
    with pytest.raises(ConfigError, match=rf"^{name}: its first argument is a str, .* ioctx: {name}\(ioctx,"):
        kind("localhost", 9900)  # type: ignore[arg-type]


@pytest.mark.parametrize("port", ["9900", -1, 65536, 1.5, None])
def test_a_port_that_is_none_is_refused(port: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"PolicyServerInput: port .*, expected an integer from 0 to 65535; 0"
    ):
        Course(port=port)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("idle_timeout", -1, "seconds above 0 or None"),
        ("return_s", "60", "seconds from 0"),
        ("batch_wait", float("inf"), "seconds from 0"),
        ("max_staleness", 1.5, "a whole number from 0 or None"),
        ("env_steps_per_sample", 0, "a whole number above 0"),
        ("env_steps_per_sample", True, "a whole number above 0"),
        ("force_on_policy", "no", "True, False or None"),
        ("limits", {"max_body": 3}, "a Limits or None"),
        ("access", "0.0.0.0", "an Access or None"),
    ],
)
def test_settings_of_a_server_are_checked_when_it_is_made(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: got .*, expected {expected}; leave it out"):
        Course(**{name: value})


@pytest.mark.parametrize("transport", [[], ["tcp"], 5, "udp"])
def test_a_transport_that_is_none_is_refused(transport: Any) -> None:
    with pytest.raises(ConfigError, match=r"^transports?: .*, expected .*Transport"):
        PolicyServerInput(InputContext(), port=0, transport=transport)


def test_another_client_goes_on_with_the_session_of_one_that_is_gone() -> None:
    with Course() as course:
        first = PolicyClient(course.address, "remote")
        name = first.start_episode()
        first.get_action(name, observation(0))
        first.log_returns(name, 2.0)
        session = first.session
        first.close()
        with PolicyClient(course.address, "remote", session=session) as second:
            assert second.open_episodes == [name]
            second.log_returns(name, 3.0)
            second.end_episode(name, observation(1))
        assert course.has_rewards([5.0])
