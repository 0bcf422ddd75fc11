"""Codes keep their meaning: people write them into their settings."""

from __future__ import annotations

import re

from menv.checking.codes import CODES


def test_codes_are_sorted_and_have_one_form() -> None:
    assert list(CODES) == sorted(CODES)
    assert all(re.fullmatch(r"ME\d{3}", code) for code in CODES)


def test_every_code_says_what_to_do() -> None:
    for code, entry in CODES.items():
        assert len(entry.fix) > 10, code
        assert not entry.fix.endswith("."), code
        assert "\n" not in entry.fix, code
