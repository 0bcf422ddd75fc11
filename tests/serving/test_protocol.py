"""Messages survive the wire, old clients are understood, errors carry what a client needs; the page lists all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

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
    decode,
    decode_answer,
    encode,
    error_reply,
    to_raw,
)
from tests.serving.corpus import EPISODE, WELL_MADE


def requests() -> list[Request]:
    """Return one request of each type, with all of its fields."""
    obs, act = to_raw([1.0, 2.0]), to_raw(1)
    episodes = [to_raw(EPISODE)]
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
        LogReturns(episode_id="e", reward=to_raw({"a": 1.0}), info=to_raw({}), done={"a": True}, seq=4),
        EndEpisode(episode_id="e", observation=obs, truncated=True, seq=5),
    ]


ANSWERS: list[Answer] = [
    Pong(),
    SetConfig(env_steps_per_sample=200, force_on_policy=True),
    SetConfig(env_steps_per_sample=200, force_on_policy=False, extensions=["menv-1"], session="s", multi_agent=False,
              observation_space={"space": "discrete"}, action_space={}, policies={"p": {}}),
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


def test_every_request_survives_the_wire() -> None:
    sent = requests()
    assert {type(request) for request in sent} == set(Request.__args__)
    for request in sent:
        body = encode(request)
        back = decode(body)
        assert type(back) is type(request)
        assert encode(back) == body


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_every_answer_survives_the_wire(answer: Answer) -> None:
    assert decode_answer(encode(answer)) == answer


def test_answers_are_these_bytes() -> None:
    assert json.loads(encode(Pong())) == {"type": "PONG"}
    plain = SetConfig(env_steps_per_sample=200, force_on_policy=True)
    assert json.loads(encode(plain)) == {
        "type": "SET_CONFIG", "env_steps_per_sample": 200, "force_on_policy": True,
    }  # fmt: skip
    state = SetState(weights_seq_no=1, bundles={"p": b"\x00\xff"})
    assert json.loads(encode(state))["bundles"] == {"p": "AP8="}


@pytest.mark.parametrize(
    "action", [np.int64(3), np.array([0.5, 1], np.float32), {"a": np.array([1, 2])}, "text", (1, 2)]
)
def test_actions_of_numpy_are_answered_as_plain_numbers_and_lists(action: Any) -> None:
    body = encode(Action(episode_id="e", action=action, weights_seq_no=1))
    plain = {"a": [1, 2]} if isinstance(action, dict) else np.asarray(action).tolist()
    assert json.loads(body)["action"] == plain


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"PING"}',
        b' \t\r\n{ "type" : "PING" } \n',
        b'{"b": [1, {"type": "PONG"}], "a": {}, "type": "PING", "version": null}',
        b'\xef\xbb\xbf{"type":"PING"}',
    ],
)
def test_any_whitespace_any_order_of_keys_and_unknown_keys_are_understood(body: bytes) -> None:
    assert decode(body) == Ping()


def test_an_error_knows_the_number_of_the_message_that_it_answers() -> None:
    with pytest.raises(BadMessageError) as caught:
        decode(b'{"type": "GET_ACTION", "episode_id": "e", "seq": 17}')
    assert error_reply(caught.value) == Error(
        code="malformed",
        message="GET_ACTION: object missing required field `observation`, expected what docs/reference/rllink.md says",
        seq=17,
    )
    with pytest.raises(BadMessageError) as caught:
        decode(b'{"type": "GET_ACTION", "seq": "17"}')
    assert error_reply(caught.value).seq is None
    assert error_reply(caught.value, seq=4).seq == 4


def test_tokens_are_not_shown() -> None:
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
            assert decode(body) == decode(json.dumps(lacking).encode())
        elif name in ("episodes", "episode_id", "agent_ids", "type"):
            with pytest.raises(BadMessageError, match="malformed" if name == "type" else "wrong_type"):
                decode(body)


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
