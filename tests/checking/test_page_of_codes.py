"""The page of codes: every code is on it, and every example does what the page says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from menv.checking import check_env
from menv.checking.codes import CODES
from tests.house.sources import ROOT

PAGE = (ROOT / "docs" / "reference" / "checking.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (ME\d{3}) (.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASIS = BLOCK.findall(PAGE.partition("\n### ")[0])
SLOW = {"ME096": 6}
"""Codes whose example takes its time, and how many env steps are enough for it."""


def example(code: str) -> dict[str, Any]:
    """Run the basis of the page and the example of one code; return what they define."""
    (block,) = BLOCK.findall(SECTIONS[code])
    names: dict[str, Any] = {"__name__": "page"}
    exec("\n\n".join([*BASIS, block]), names)
    return names


def codes_of(env: Any, code: str) -> set[str]:
    actions = getattr(env, "actions", None)
    return {found.code for found in check_env(env, actions=actions, env_steps=SLOW.get(code, 300))}


def test_every_code_is_on_the_page_and_every_code_of_the_page_exists() -> None:
    assert sorted(SECTIONS) == sorted(CODES)
    assert list(SECTIONS) == sorted(SECTIONS)


@pytest.mark.parametrize("code", CODES)
def test_the_heading_tells_severity_and_subject(code: str) -> None:
    heading = SECTIONS[code].partition("\n")[0].replace("`", "").replace('"', "'")
    assert heading == f"({CODES[code].severity}): {CODES[code].title}"


@pytest.mark.parametrize("code", CODES)
def test_the_wrong_example_has_this_finding_and_no_other(code: str) -> None:
    assert codes_of(example(code)["Wrong"], code) == {code}


@pytest.mark.slow_unless("ME0?0", "ME0?1", "ME101")
@pytest.mark.parametrize("code", CODES)
def test_nothing_is_found_in_the_right_example(code: str) -> None:
    assert codes_of(example(code)["Right"], code) == set()


@pytest.mark.parametrize("name", ["Walk", "Pair"])
def test_nothing_is_found_in_the_environments_that_the_examples_change(name: str) -> None:
    assert check_env(example("ME001")[name]) == []
