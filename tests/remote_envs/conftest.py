"""Ray, started once for the tests that need it, and processes that are handed back after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.contract.remote import hand_back


@pytest.fixture(autouse=True)
def _processes_are_handed_back() -> Iterator[None]:
    yield
    hand_back()


@pytest.fixture(scope="session")
def running_ray() -> Iterator[None]:
    """Ray on this machine, unless it runs in this process already; others of this machine are not joined."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    mine = not ray.is_initialized()
    if mine:
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=400_000_000,
        )  # fmt: skip
    yield
    if mine:
        ray.shutdown()
