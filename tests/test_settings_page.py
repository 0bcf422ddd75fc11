"""The page of all settings says what their classes say."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from menv.algorithms import DQNConfig, PPOConfig, QMIXConfig, SACConfig
from tests.settings_page import PAGE, page


def test_the_page_is_the_one_that_the_classes_make() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python -m tests.settings_page"


@pytest.mark.parametrize("config", [PPOConfig, DQNConfig, QMIXConfig, SACConfig])
def test_every_setting_is_on_the_page(config: type[Any]) -> None:
    listed = set(re.findall(r"^\| `(\w+)`", PAGE.read_text("utf-8"), re.MULTILINE))
    assert {field.name.removesuffix("_") for field in fields(config)} <= listed
