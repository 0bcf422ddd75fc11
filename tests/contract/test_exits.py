"""An environment that calls `sys.exit()` ends the run, as any other code of the program does."""

from __future__ import annotations

import sys

import pytest

from menv import to_base_env
from menv.registry import make_env
from tests.contract.adapters import answer_as_dicts
from tests.contract.scripted import SOLO, SoloGym
from tests.worlds import like

Leaving = like(SoloGym, step=lambda self, action: sys.exit("no licence"))


def test_an_environment_that_exits_ends_the_run() -> None:
    base_env = to_base_env(Leaving(SOLO), lambda index: Leaving(SOLO), 1)
    answer_as_dicts(base_env, base_env.poll())
    with pytest.raises(SystemExit, match="no licence"):
        base_env.poll()


def test_a_creator_that_exits_ends_the_run() -> None:
    with pytest.raises(SystemExit, match="2"):
        make_env(lambda context: sys.exit(2))
