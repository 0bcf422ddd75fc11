"""Messages survive both dialects, old clients are understood, errors carry what a client needs; the page lists all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from menv.serving.protocol import (
    Action,
    Answer,
    BadMessageError,
    EndEpisode,
    Episodes,
    EpisodesAndGetState,
    EpisodeStarted,
    Error,
    ErrorCode,
    GetAction,
    GetConfig,
    GetPolicies,
    GetState,
    LogAction,
    LogReturns,
    Ok,
    Ping,
    Policies,
    Pong,
    Request,
    SetConfig,
    SetState,
    StartEpisode,
    WireFormat,
    decode,
    decode_answer,
    encode,
    error_reply,
    to_raw,
)
from tests.serving.corpus import EPISODE, WELL_MADE


def raw(value: Any, dialect: WireFormat) -> msgspec.Raw:
    return to_raw(value, dialect)


def requests(dialect: WireFormat) -> list[Request]:
    """Return one request of each type, with all of its fields."""
    obs, act = raw([1.0, 2.0], dialect), raw(1, dialect)
    episodes = [raw(EPISODE, dialect)]
    return [
        Ping(),
        GetConfig(token="t", extensions=["menv-1"], session="s", client="c"),
        GetState(policy_ids=["p"], form="bundle", have=3),
        Episodes(episodes=episodes, env_steps=2, timesteps=2, weights_seq_no=1),
        EpisodesAndGetState(episodes=episodes, policy_ids=["p"], form="weights", have=3),
        GetPolicies(episode_id="e", agent_ids=["a"]),
        StartEpisode(episode_id="e", training_enabled=False, seq=1),
        GetAction(episode_id="e", observation=obs, seq=2),
        LogAction(episode_id="e", observation=obs, action=act, seq=3),
        LogReturns(
            episode_id="e", reward=raw({"a": 1.0}, dialect), info=raw({}, dialect), done={"a": True}, seq=4
        ),
        EndEpisode(episode_id="e", observation=obs, truncated=True, seq=5),
    ]


ANSWERS: list[Answer] = [
    Pong(),
    SetConfig(env_steps_per_sample=200, force_on_policy=True),
    SetConfig(env_steps_per_sample=200, force_on_policy=False, extensions=["menv-1"], session="s", multi_agent=False,
              observation_space={"space": "discrete"}, action_space={}, policies={"p": {}}, resume={"e": 3}),
    SetState(weights_seq_no=1, onnx_file="AAAA"),
    SetState(weights_seq_no=2, bundles={"p": b"\x00\xff"}),
    SetState(weights_seq_no=3, weights={"p": b""}),
    Policies(policy_ids={"a": "p"}),
    EpisodeStarted(episode_id="e"),
    Action(episode_id="e", action=[0.5, 1], weights_seq_no=4, seq=2),
    Ok(seq=3),
    Ok(),
    Error(code="malformed", message="body: ...", seq=4),
]  # fmt: skip


@pytest.mark.parametrize("dialect", WireFormat)
def test_every_request_survives_both_dialects(dialect: WireFormat) -> None:
    sent = requests(dialect)
    assert {type(request) for request in sent} == set(Request.__args__)
    for request in sent:
        body = encode(request, dialect)
        back, found = decode(body)
        assert found is dialect
        assert type(back) is type(request)
        assert encode(back, dialect) == body


@pytest.mark.parametrize("dialect", WireFormat)
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_every_answer_survives_both_dialects(answer: Answer, dialect: WireFormat) -> None:
    assert decode_answer(encode(answer, dialect)) == answer


def test_there_is_an_answer_of_every_type_above() -> None:
    assert {type(answer) for answer in ANSWERS} == set(Answer.__args__)


def test_answers_are_these_bytes() -> None:
    assert json.loads(encode(Pong(), WireFormat.JSON)) == {"type": "PONG"}
    assert encode(Pong(), WireFormat.MSGPACK) == b"\x81\xa4type\xa4PONG"
    plain = SetConfig(env_steps_per_sample=200, force_on_policy=True)
    assert json.loads(encode(plain, WireFormat.JSON)) == {
        "type": "SET_CONFIG", "env_steps_per_sample": 200, "force_on_policy": True,
    }  # fmt: skip
    state = SetState(weights_seq_no=1, bundles={"p": b"\x00\xff"})
    assert json.loads(encode(state, WireFormat.JSON))["bundles"] == {"p": "AP8="}
    assert msgspec.msgpack.decode(encode(state, WireFormat.MSGPACK))["bundles"] == {"p": b"\x00\xff"}


@pytest.mark.parametrize("dialect", WireFormat)
@pytest.mark.parametrize(
    "action", [np.int64(3), np.array([0.5, 1], np.float32), {"a": np.array([1, 2])}, "text", (1, 2)]
)
def test_actions_of_numpy_are_answered_as_plain_numbers_and_lists(action: Any, dialect: WireFormat) -> None:
    body = encode(Action(episode_id="e", action=action, weights_seq_no=1), dialect)
    read = json.loads if dialect is WireFormat.JSON else msgspec.msgpack.decode
    plain = {"a": [1, 2]} if isinstance(action, dict) else np.asarray(action).tolist()
    assert read(body)["action"] == plain


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"PING"}',
        b' \t\r\n{ "type" : "PING" } \n',
        b'{"b": [1, {"type": "PONG"}], "a": {}, "type": "PING", "version": null}',
        b"\x81\xa4type\xa4PING",
        b"\xde\x00\x01\xa4type\xa4PING",
        b"\xdf\x00\x00\x00\x02\xa1x\xc0\xa4type\xd9\x04PING",
    ],
)
def test_any_whitespace_any_order_of_keys_and_unknown_keys_are_understood(body: bytes) -> None:
    assert decode(body)[0] == Ping()


def test_both_names_of_the_number_of_steps_are_read_and_neither_is_needed() -> None:
    for counts in (
        {},
        {"env_steps": 3},
        {"timesteps": 3},
        {"env_steps": 3, "timesteps": 4},
        {"env_steps": None},
    ):
        message = {"type": "EPISODES_AND_GET_STATE", "episodes": [EPISODE], **counts}
        request, _ = decode(json.dumps(message).encode())
        assert isinstance(request, EpisodesAndGetState)
        assert (request.env_steps, request.timesteps) == (counts.get("env_steps"), counts.get("timesteps"))


def test_an_error_knows_the_number_of_the_message_that_it_answers() -> None:
    with pytest.raises(BadMessageError) as caught:
        decode(b'{"type": "GET_ACTION", "episode_id": "e", "seq": 17}')
    assert error_reply(caught.value) == Error(
        code="malformed",
        message="GET_ACTION: field 'observation' is missing, expected all fields without a default",
        seq=17,
    )
    with pytest.raises(BadMessageError) as caught:
        decode(b'{"type": "GET_ACTION", "seq": "17"}')
    assert error_reply(caught.value).seq is None
    assert error_reply(caught.value, seq=4).seq == 4


@pytest.mark.parametrize("dialect", WireFormat)
def test_an_info_is_taken_up_to_the_depth_that_is_allowed(dialect: WireFormat) -> None:
    def log(levels: int) -> bytes:
        info: Any = {}
        for _ in range(levels - 1):
            info = {"x": [info]} if levels % 2 else {"x": info}
        return encode(LogReturns(episode_id="e", reward=raw(1, dialect), info=raw(info, dialect)), dialect)

    decode(log(8), max_depth=8)
    with pytest.raises(BadMessageError, match=r"info: \d+ levels, expected at most 8") as caught:
        decode(log(10), max_depth=8)
    assert caught.value.code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize("info", [b"", b', "info": null', b', "info": {}'])
def test_an_info_may_be_missing_null_or_empty(info: bytes) -> None:
    request, _ = decode(b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1%b}' % info)
    assert isinstance(request, LogReturns)
    assert (request.episode_id, bytes(request.reward)) == ("e", b"1")


def test_a_key_that_is_there_twice_is_found_wherever_strings_hold_quotes() -> None:
    once = (
        rb'{"type": "START_EPISODE", "episode_id": "a \"b\" {\"type\": 1}", "x\"y": "\"", "z": ["\\", "\""]}'
    )
    decode(once)
    for twice in (once.replace(b'"z"', b'"episode_id"'), once.replace(b'"z"', b'"x\\"y"')):
        with pytest.raises(BadMessageError, match="malformed"):
            decode(twice)


def test_a_key_that_is_there_twice_is_not_hidden_by_keys_that_hold_escaped_quotes() -> None:
    once = rb'{"type": "PING", "\u0022\u0022\u0022\u0022": 1, "x": 1}'
    decode(once)
    with pytest.raises(BadMessageError, match="malformed"):
        decode(once.replace(b"}", b', "x": 2}'))


def test_a_large_message_may_hold_any_unknown_field() -> None:
    assert decode(b'{"type": "PING", "episodes": [%b1]}' % (b"1, " * 50_000))[0] == Ping()


def test_what_lets_somebody_in_is_not_shown() -> None:
    shown = repr(GetConfig(token="hunter2", session="s3cret", client="a game"))
    assert shown == "GetConfig(client='a game', extensions=None)"


@pytest.mark.parametrize("message", WELL_MADE, ids=lambda message: message["type"])
def test_optional_fields_may_be_null_and_needed_ones_may_not(message: dict[str, Any]) -> None:
    needed = {"type", "episodes", "episode_id", "agent_ids", "observation", "action", "reward", "info"}
    if message["type"] == "START_EPISODE":
        needed.remove("episode_id")
    for name in message:
        body = json.dumps({**message, name: None}).encode()
        if name not in needed:
            lacking = {key: value for key, value in message.items() if key != name}
            assert decode(body)[0] == decode(json.dumps(lacking).encode())[0]
            assert (
                decode(msgspec.msgpack.encode({**message, name: None}))[0].__class__
                is decode(body)[0].__class__
            )
        elif name in ("episodes", "episode_id", "agent_ids", "type"):
            with pytest.raises(BadMessageError, match="wrong_type"):
                decode(body)


def test_optional_fields_of_answers_may_be_null() -> None:
    answer = decode_answer(
        b'{"type": "SET_STATE", "weights_seq_no": 1, "bundles": null, "ask_policies": null}'
    )
    assert isinstance(answer, SetState)
    assert not answer.ask_policies


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "rllink.md").read_text("utf-8")


def test_every_code_is_explained_in_its_own_words() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.split("### Errors")[1], re.MULTILINE))
    assert list(rows) == [str(code) for code in ErrorCode]


def test_every_message_is_named() -> None:
    names = {kind.__struct_config__.tag for kind in (*get_args(Request), *get_args(Answer))}
    assert not [name for name in names if f"`{name}`" not in PAGE and f'"{name}"' not in PAGE]


def test_blocks_of_json_are_json() -> None:
    blocks = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    assert all(isinstance(json.loads(block), dict) for block in blocks)
