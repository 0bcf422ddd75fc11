"""Ray for adapters on it, and processes that play games for several tests are handed back after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import on_ray
from tests.contract.remote import hand_back


@pytest.fixture(autouse=True)
def _ray_runs_for_those_on_it(request: pytest.FixtureRequest) -> None:
    # Which by themselves would start one that has no room for the tests after them.
    if on_ray(request.node.nodeid):
        request.getfixturevalue("running_ray")


@pytest.fixture(autouse=True)
def _processes_are_handed_back() -> Iterator[None]:
    yield
    hand_back()
