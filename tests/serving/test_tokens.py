"""A server that asks for a token: what is said without it, and that it is never shown."""

from __future__ import annotations

from typing import Any

import pytest

from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serving import Access, Limits, PolicyClient, PolicyServerInput, RLlinkInput
from tests.serving.doors import DOORS, HTTP, TCP, WEBSOCKET, Client, Door, http_response, http_wrap
from tests.serving.served import ACTIONS, OBS, Served, obs_of, served
from tests.serving.voices import Turns, episode

TOKEN = "a-long-and-random-text-that-nobody-guesses"
BEARER = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
ASKS: dict[str, Any] = {"settings": {"token": TOKEN}}
REQUESTS: dict[str, dict[str, Any]] = {
    "GET_STATE": {},
    "EPISODES": {"episodes": [episode([obs_of(0), obs_of(1)], [0], [1.0], "terminated")]},
    "EPISODES_AND_GET_STATE": {"episodes": []},
    "GET_POLICIES": {"episode_id": "e", "agent_ids": ["agent0"]},
    "START_EPISODE": {"episode_id": "e"},
    "GET_ACTION": {"episode_id": "e", "observation": obs_of(0)},
    "LOG_RETURNS": {"episode_id": "e", "reward": 1.0},
}
streams = pytest.mark.parametrize("door", [TCP, WEBSOCKET], ids=lambda door: door.name)


@streams
@pytest.mark.parametrize("kind", REQUESTS)
def test_nothing_but_a_greeting_is_taken_without_the_token(door: Door, kind: str) -> None:
    with served(**ASKS) as one, one.voice(TCP) as voice:
        # Whether somebody is there is no secret.
        assert voice.ask("PING") == {"type": "PONG"}
        assert voice.refused(kind, **REQUESTS[kind]) == "not_allowed"
        assert voice.client.rest() == b""
        assert one.status["open_episodes"] == 0


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\u00e9" * 40])
def test_a_wrong_token_ends_the_connection(token: str | None) -> None:
    with served(**ASKS) as one, one.voice(TCP) as voice:
        assert voice.refused("GET_CONFIG", token=token) == "not_allowed"
        assert voice.client.rest() == b""


@streams
def test_those_who_have_shown_no_token_take_nobody_s_place(door: Door) -> None:
    with (
        served(settings={"token": TOKEN, "limits": Limits(max_connections=3)}) as one,
        one.voice(door) as inside,
    ):
        assert inside.greet(token=TOKEN)["session"]
        crowd = []
        for _ in range(5):
            crowd.append(one.voice(door))
            assert crowd[-1].ask("PING") == {"type": "PONG"}
        with one.voice(door) as late:
            assert late.greet(token=TOKEN)["session"]
            assert inside.ask("PING") == {"type": "PONG"}
            assert late.ask("PING") == {"type": "PONG"}
        for voice in crowd:
            voice.leave()


@streams
def test_the_right_token_in_the_greeting_opens_the_door(door: Door) -> None:
    with served(**ASKS) as one, one.sampling(), one.voice(door) as voice:
        assert voice.greet(token=TOKEN)["session"]
        turns = Turns(voice, "e")
        assert turns.act(obs_of(0)) in (0, 1)
        turns.end(obs_of(1))


@pytest.mark.parametrize("door", [HTTP, WEBSOCKET], ids=lambda door: door.name)
def test_the_right_token_in_a_header_opens_the_door_without_a_greeting(door: Door) -> None:
    with served(**ASKS) as one, one.sampling(), one.voice(door, headers=BEARER) as voice:
        assert Turns(voice, "e").act(obs_of(0)) in (0, 1)


@pytest.mark.parametrize("headers", ["Host: localhost\r\n", BEARER.replace("Bearer a", "Bearer b")])
def test_http_without_the_right_token_is_answered_401(headers: str) -> None:
    with served(**ASKS) as one, Client(HTTP, one.envs.addresses[1]) as client:
        client.raw(http_wrap(b'{"type": "PING"}', headers))
        status, _, body = http_response(client.file)
        assert status == 401
        assert b'"not_allowed"' in body
        assert TOKEN.encode() not in body


def test_a_session_cannot_be_taken_up_without_the_token() -> None:
    with served(**ASKS) as one, one.sampling(), one.voice(TCP) as voice, one.voice(TCP) as thief:
        session = voice.greet(token=TOKEN)["session"]
        answer = thief.ask("GET_CONFIG", extensions=["menv-1"], session=session)
        assert (answer["type"], answer["code"]) == ("ERROR", "not_allowed")


@pytest.mark.parametrize("kind", [PolicyServerInput, RLlinkInput])
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "lab.example"])
def test_an_address_that_others_can_reach_needs_a_token_before_anything_is_bound(
    kind: Any, address: str
) -> None:
    ioctx = InputContext(observation_space=OBS, action_space=ACTIONS)
    with pytest.raises(ConfigError, match="without a token"):
        kind(ioctx, address, 0)
    assert kind(ioctx, address, 0, token=TOKEN).addresses == []


def shown(one: Served) -> str:
    """Return everything that people get to see of a server."""
    envs, source = one.envs, one.source
    objects = [envs, source.server, source.sessions, source.sessions.access, *source.sessions.connected]
    return repr(
        [*objects, *map(vars, source.sessions.connected), one.status, source.server.faults.kept, one.results]
    )


def test_a_token_is_in_no_repr_no_error_and_no_result() -> None:
    answers: list[Any] = []
    with served(**ASKS) as one:
        with one.training():
            for door in DOORS:
                with one.voice(door, headers=BEARER) as voice:
                    answers += [
                        voice.greet(token=TOKEN),
                        voice.ask("GET_ACTION", episode_id=TOKEN[:3], observation=0),
                    ]
            with one.voice(TCP) as voice:
                answers.append(voice.ask("GET_CONFIG", token=TOKEN + "x"))
            assert one.status["messages_refused"] >= 4
        assert TOKEN not in shown(one)
    assert TOKEN not in repr(answers)
    assert TOKEN not in repr(Access(token=TOKEN))
    with pytest.raises(ConfigError) as caught:
        Access(address="0.0.0.0", token=TOKEN, ssl_key=TOKEN[:5])
    assert TOKEN not in str(caught.value)


ODD = [TOKEN + "\n", " " + TOKEN, TOKEN + "\r\nX: 1", "\ud800" + TOKEN]


@pytest.mark.parametrize("token", ODD)
def test_a_token_as_a_file_holds_it_is_refused_where_it_is_given_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match=r"Access\.token: .*token\.strip\(\)") as caught:
        Access(token=token)
    assert TOKEN not in str(caught.value)
    for scheme in ("tcp", "http", "ws"):
        with pytest.raises(ConfigError, match=r"PolicyClient: token .*token\.strip\(\)") as caught:
            # Before anybody is looked for there.
            PolicyClient(f"{scheme}://127.0.0.1:9", "remote", token=token, timeout=60)
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https", "ws", "wss"])
def test_a_token_that_no_header_holds_is_refused_and_not_shown(scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"PolicyClient: token .*Latin-1") as caught:
        PolicyClient(f"{scheme}://127.0.0.1:9", "remote", token=TOKEN + "\u65e5", timeout=60)
    assert TOKEN not in str(caught.value)
