"""Calls of a policy client that found no server, and what the application calls next."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN
from menv.errors import ContractError, EpisodeError, RefusedError, ServerGoneError
from menv.serving.client.client_session import to_wire
from menv.serving.client.policy_client import PolicyClient
from menv.serving.protocol import EndEpisode
from tests.serving.courses import Course, observation
from tests.serving.talks import eventually
from tests.serving.test_policy_client_policies import TEAMS

MODES = ("local", "remote")


@contextlib.contextmanager
def away(client: PolicyClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a client find nobody."""

    def fail(*_: Any, **__: Any) -> Any:
        raise ServerGoneError("nobody there")

    with monkeypatch.context() as changed:
        changed.setattr(client._first, "_attempt", fail)
        yield


@contextlib.contextmanager
def answers_lost(client: PolicyClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a client hear none of the answers."""
    attempt: Any = client._first._attempt

    def fail(*arguments: Any, **options: Any) -> Any:
        attempt(*arguments, **options)
        raise ServerGoneError("silence")

    with monkeypatch.context() as changed:
        changed.setattr(client._first, "_attempt", fail)
        yield


def fails(call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(ServerGoneError):
        call(*arguments)


@pytest.mark.parametrize("mode", MODES)
def test_a_question_that_found_no_server_is_asked_again_and_its_observation_is_there_once(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Course() as course, PolicyClient(course.address, mode, update_interval=None) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        for step in range(20):
            if step == 8:
                # With local inference a chunk is due.
                with away(client, monkeypatch):
                    fails(client.get_action, name, observation(step))
            client.get_action(name, observation(step))
            client.log_returns(name, float(step))
        client.end_episode(name, observation(20))
        client.close()
        assert course.has_rewards([float(step) for step in range(20)])
        seen = np.round(1000 * course.column("obs")[:, 2]).astype(int)
        assert seen.tolist() == course.column("rewards").tolist()


@pytest.mark.parametrize("mode", MODES)
def test_who_was_done_when_no_server_was_found_does_not_begin_again(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = np.zeros(10, np.float32)
    with Course(TEAMS) as course, PolicyClient(course.address, mode, update_interval=None) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        for _ in range(8):
            assert client.get_action(name, {"red_0": seen, "red_1": seen}).keys() == {"red_0", "red_1"}
            client.log_returns(name, {"red_0": 1.0, "red_1": 1.0})
        client.log_returns(name, {}, multiagent_done_dict={"red_1": True})
        with away(client, monkeypatch):
            fails(client.get_action, name, {"red_0": seen, "red_1": seen})
        assert client.get_action(name, {"red_0": seen, "red_1": seen}).keys() == {"red_0"}
        assert client.get_action(name, {"red_0": seen, "red_1": seen}).keys() == {"red_0", "red_1"}
        client.end_episode(name, {"red_0": seen, "red_1": seen}, truncated=True)
        client.close()
        assert course.has_rewards([1.0] * 16 + [0.0] * 3, "red")
        assert course.column("terminateds", "red").sum() == 1


def test_another_call_after_one_that_found_no_server_is_taken_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        Course(kind=DQN, config={"train_batch_size": 8}) as course,
        PolicyClient(course.address, "remote") as client,
    ):
        name = client.start_episode()
        client.get_action(name, observation(0))
        with answers_lost(client, monkeypatch):
            # The server takes it, and its answer never comes.
            fails(client.get_action, name, observation(1))
        client.log_returns(name, 1.0)
        client.log_action(name, observation(2), 1)
        client.log_returns(name, 2.0)
        with away(client, monkeypatch):
            # The server never hears of it.
            fails(client.log_action, name, observation(3), 1)
        client.log_returns(name, 4.0)
        client.end_episode(name, observation(4))
        assert course.has_rewards([0.0, 1.0, 2.0, 4.0])
        assert eventually(lambda: course.algo._base_env.status()["open_episodes"] == 0)


def test_what_was_paid_with_a_message_that_is_refused_goes_with_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Course() as course, PolicyClient(course.address, "remote") as client:
        name = client.start_episode()
        client.get_action(name, observation(0))
        client.log_returns(name, 1.0)
        with away(client, monkeypatch):
            fails(client.get_action, name, [1.0, 2.0])
        client.log_returns(name, 2.0)
        client.get_action(name, observation(1))
        client.log_returns(name, 4.0)
        with pytest.raises(RefusedError):
            client.get_action(name, [1.0, 2.0])
        client.log_returns(name, 8.0)
        client.end_episode(name, observation(2))
        assert course.has_rewards([3.0, 12.0])


def test_an_info_that_cannot_be_sent_is_refused_and_the_episode_goes_on() -> None:
    with Course() as course, PolicyClient(course.address, "remote") as client:
        name = client.start_episode()
        client.get_action(name, observation(0))
        with pytest.raises(ContractError, match=r"log_returns: got something that has no form"):
            client.log_returns(name, 1.0, {"of": object()})
        with pytest.raises(ContractError, match=r"log_returns: got something that has no form"):
            client.log_returns(name, 1.0, {"of": "\ud800"})
        client.log_returns(name, 2.0, {"of": "x" * 70_000})
        with pytest.raises(RefusedError, match=r"expected at most"):
            client.get_action(name, observation(1))
        client.get_action(name, observation(1))
        client.end_episode(name, observation(2))
        assert course.has_rewards([2.0, 0.0])


def test_an_end_that_comes_before_the_answer_to_another_client_is_told_again_later() -> None:
    course = Course()
    envs = course.algo._base_env
    first = PolicyClient(course.address, "remote", timeout=60)
    first.start_episode("m")
    asking = threading.Thread(target=fails, args=(first.get_action, "m", observation(0)))
    asking.start()
    # Nobody samples so far: the question waits.
    assert eventually(lambda: envs.broker.ready)
    session = first.session
    first._disconnect()
    asking.join(20)
    with PolicyClient(course.address, "remote", timeout=20, session=session) as second:
        for _ in range(2):
            with pytest.raises(EpisodeError, match=r"END_EPISODE: the action .* has not been answered"):
                second.end_episode("m", observation(1))
            assert second.open_episodes == ["m"]

        def ends() -> bool:
            with contextlib.suppress(EpisodeError):
                second.end_episode("m", observation(1))
            return not second.open_episodes

        with course:
            assert eventually(ends)
            assert envs.status()["open_episodes"] == 0


def test_an_episode_that_is_over_on_the_server_is_forgotten() -> None:
    with Course() as course, PolicyClient(course.address, "remote", timeout=20) as client:
        client.start_episode("m")
        client.get_action("m", observation(0))
        client._first.ask(EndEpisode(episode_id="m", observation=to_wire(observation(1), "")))
        with pytest.raises(EpisodeError, match="this episode is completed"):
            client.end_episode("m", observation(1))
        assert client.open_episodes == []


def test_an_episode_that_another_client_of_the_session_has_ended_is_forgotten() -> None:
    with Course() as course, PolicyClient(course.address, "remote", timeout=20) as first:
        first.start_episode("m")
        first.get_action("m", observation(0))
        with PolicyClient(course.address, "remote", timeout=20, session=first.session) as second:
            assert second.open_episodes == ["m"]
            for step in range(1, 4):
                first.get_action("m", observation(step))
            first.end_episode("m", observation(4))
            # It counts on from where the episode stood when it came.
            with pytest.raises(EpisodeError, match="this episode is completed"):
                second.end_episode("m", observation(1))
            assert second.open_episodes == []
