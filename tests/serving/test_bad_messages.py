"""What is badly made gets a code and a sentence, whatever it is, is never repeated back, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.serving import Limits
from menv.serving.protocol import Answer, ErrorCode, Request
from tests.serving.corpus import ACTIONS, MALFORMED, MASKED, OBS, WELL_MADE, bodies
from tests.serving.doors import TCP, Client
from tests.serving.served import Served, served
from tests.serving.talks import serving
from tests.serving.voices import Voice

LARGE = {"limits": Limits(max_body=2_000_000)}
SEVERAL: dict[str, Any] = {
    "observation_space": {"plain": OBS, "masked": MASKED},
    "action_space": dict.fromkeys(("plain", "masked"), ACTIONS),
    "multiagent": {
        "policies": {"for_plain", "for_masked"},
        "policy_mapping_fn": lambda agent_id, *_, **__: f"for_{agent_id}",
    },
}


@contextlib.contextmanager
def speaking(**config: Any) -> Iterator[tuple[Served, Voice]]:
    """Run a server, and a client of it that has begun the episode "e"; nobody samples."""
    config = {"observation_space": OBS, "action_space": ACTIONS, **config}
    with served(settings=LARGE, **config) as one, one.voice() as voice:
        voice.greet()
        assert voice.ask("START_EPISODE", episode_id="e")["type"] == "EPISODE"
        yield one, voice


def heard(voice: Voice, body: bytes) -> list[Any]:
    """Return what a server answers to a body."""
    voice.send(body)
    voice.send(b'{"type": "THE LAST"}')
    found = []
    while "THE LAST" not in (answer := voice.hear()).get("message", ""):
        found.append(answer)
    return found


def test_what_is_badly_made_is_answered_with_its_code_in_one_sentence() -> None:
    with speaking() as (one, voice), speaking(**SEVERAL) as (_, other):
        for name, (body, code) in MALFORMED.items():
            (answer,) = heard(other if b'"agents"' in body else voice, body)
            assert answer.get("code") == code, (name, answer)
            where, colon, what = answer["message"].partition(": ")
            assert where, name
            assert colon, name
            assert "expected" in what or "flatten" in what, name
            assert "\n" not in answer["message"], name
            assert len(answer["message"]) < 400, name
        assert one.status["open_episodes"] == 1


def test_an_error_tells_the_place_and_the_number_of_the_message() -> None:
    with speaking() as (_, voice), speaking(**SEVERAL) as (_, other):
        assert heard(voice, b'{"type": "GET_ACTION", "episode_id": "e", "seq": 17}') == [{
            "type": "ERROR", "code": "malformed", "seq": 17,
            "message": "GET_ACTION: object missing required field `observation`, expected what "
            "docs/reference/rllink.md says",
        }]  # fmt: skip
        assert "seq" not in heard(voice, b'{"type": "GET_ACTION", "seq": "17"}')[0]
        for name, told in (
            ("an agent's reward that is none", "agents['plain'].rewards[1]: expected `float`, got `null`"),
            ("a last mask that allows nothing where it goes on", "agents['masked'].obs[1]['action_mask']: got a "
             "mask that allows nothing, expected one action at least"),
        ):  # fmt: skip
            assert heard(other, MALFORMED[name][0])[0]["message"] == f"EPISODES.episodes[0].{told}"


OF_ITSELF = {"malformed", "wrong_type", "wrong_length", "out_of_range", "unknown_type", "too_large"}
"""Codes of messages that are badly made, whatever the server has heard before."""


def test_what_is_well_made_is_taken_and_refused_where_it_breaks_off() -> None:
    with speaking() as (_, voice), speaking(**SEVERAL) as (_, other):
        for body in bodies():
            own = other if b"agents" in body else voice
            for length in range(0, len(body), 23):
                assert heard(own, body[:length])[0]["code"] in OF_ITSELF
            assert not OF_ITSELF & {answer.get("code") for answer in heard(own, body)}, body


def test_optional_fields_may_be_null_and_needed_ones_may_not() -> None:
    with speaking() as (_, voice):
        for message in WELL_MADE:
            if "agents" in str(message):
                continue
            values = {"observation", "action", "reward", "info"}
            needed = {"type", "episodes", "episode_id", "agent_ids"} & message.keys()
            needed -= {"episode_id"} if message["type"] == "START_EPISODE" else set()
            null = dict.fromkeys(message.keys() - needed - values)
            assert not OF_ITSELF & {
                answer.get("code") for answer in heard(voice, json.dumps({**message, **null}).encode())
            }
            for name in needed:
                (answer,) = heard(voice, json.dumps({**message, name: None}).encode())
                assert answer["code"] == ("malformed" if name == "type" else "wrong_type")


def test_frames_are_these_bytes_with_any_whitespace_any_order_of_keys_and_unknown_keys() -> None:
    """The first one is what clients of RLlink's JSON days put on the wire."""
    with speaking() as (_, voice):
        for framed in (b'00000016{"type": "PING"}', b'00000015{"type":"PING"}'):
            voice.raw(framed)
            assert voice.file.read(23) == b'00000015{"type":"PONG"}'
        for body in (
            b' \t\r\n{ "type" : "PING" } \n',
            b'{"b": [1, {"type": "PONG"}], "a": {}, "type": "PING", "version": null}',
            b'\xef\xbb\xbf{"type":"PING"}',
        ):
            assert heard(voice, body) == [{"type": "PONG"}]


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    spaces = {"action_space": gym.spaces.MultiDiscrete([3, 3]), "rollout_fragment_length": 2}
    with speaking(**spaces) as (one, voice):
        for text in ("1.0", "1e0", "1.00e+0", "0.1E1", "10e-1", "1"):
            said = f'{{"type": "START_EPISODE", "episode_id": "{text}", "seq": {text}}}'
            assert heard(voice, said.encode()) == [{"type": "EPISODE", "episode_id": text, "seq": 1}]
            flags = '"is_terminated": true, "is_truncated": false'
            rows = f'"obs": [[0,0,0,0], [0,0,0,0], [0,0,0,0]], "actions": [[{text}, 2.0], [2.0,{text}]]'
            told = f'{{"type": "EPISODES", "episodes": [{{{rows}, "rewards": [1, 1.0], {flags}}}]}}'
            assert heard(voice, told.encode()) == []
            assert one.sample(2)["default_policy"]["actions"].tolist() == [[1, 2], [2, 1]]


def test_a_header_of_other_bytes_than_digits_is_told() -> None:
    wrong = [b"      16", b"+0000016", b"0000_016", b"-0000001", b"0x000010", b"GET / HTTP", b"\xd9\xa0" * 4]
    with serving(TCP) as (server, talks):
        for header in wrong:
            with Client(TCP, server.addresses[0]) as one:
                one.raw(header)
                assert b"bad_frame: " in (told := one.receive())
                assert b"expected the length of the body in 8 ASCII digits" in told
                assert one.rest() == b""
        assert talks.bodies == []


anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([10**30, -(2**63), 2**64, 1e308, "", [], {}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """Return a message in which some fields are anything."""
    message = draw(st.sampled_from(WELL_MADE))
    found = dict(message)
    for name in draw(
        st.lists(st.sampled_from(sorted({*message} - {"type"} or {"x"})), min_size=1, max_size=2)
    ):
        found[name] = draw(anything)
    if found.get("episodes") and isinstance(found["episodes"], list) and draw(st.booleans()):
        column = draw(st.sampled_from(["obs", "actions", "rewards", "id", "t", "action_logp", "agents"]))
        found["episodes"] = [{**message["episodes"][0], column: draw(anything)}]
    with contextlib.suppress(OverflowError):
        if draw(st.booleans()):
            return msgspec.json.encode(found)
    return json.dumps(found).encode()


no_json = st.builds(
    lambda begin, rest: begin + rest + b"\xc1",
    st.sampled_from([b"{", b" ", b'{"type":', b""]),
    st.binary(max_size=60),
)


@pytest.mark.parametrize("some", [changed(), no_json], ids=["any values in any fields", "any bytes"])
def test_whatever_is_sent_is_taken_or_refused_with_a_code(some: st.SearchStrategy[bytes]) -> None:
    with speaking() as (_, voice):

        @settings(max_examples=60, deadline=None)
        @given(some)
        def say(body: bytes) -> None:
            codes = {answer.get("code") for answer in heard(voice, body)}
            assert "internal" not in codes
            assert some is not no_json or codes < OF_ITSELF

        say()


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "rllink.md").read_text("utf-8")


def test_the_page_explains_every_code_in_its_own_words_and_names_every_message() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.split("### Errors")[1], re.MULTILINE))
    assert list(rows) == [str(code) for code in ErrorCode]
    names = {kind.__struct_config__.tag for kind in (*get_args(Request), *get_args(Answer))}
    assert not [name for name in names if f"`{name}`" not in PAGE and f'"{name}"' not in PAGE]
    blocks = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    assert all(isinstance(json.loads(block), dict) for block in blocks)
