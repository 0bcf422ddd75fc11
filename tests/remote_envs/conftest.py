"""Processes that play games for several tests are handed back after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.remote import hand_back


@pytest.fixture(autouse=True)
def _processes_are_handed_back() -> Iterator[None]:
    yield
    hand_back()
