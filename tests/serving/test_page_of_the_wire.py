"""docs/reference/rllink.md lists every message and every code there is, and its examples can be read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

from menv.serving.protocol import Answer, ErrorCode, Request

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
