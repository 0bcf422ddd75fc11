"""What building an algorithm does to the collector of garbage while it imports torch: nothing that lasts."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import gc, sys
from menv.algorithms import PPO

{before}
assert "torch" not in sys.modules
with PPO(env="CartPole-v1", config={{"rollout_fragment_length": 4}}) as algo:
    assert "torch" in sys.modules
print(gc.isenabled(), gc.get_freeze_count() > 0, len(gc.get_objects(2)) > 100_000)
"""


@pytest.mark.slow_unless("pass*")
@pytest.mark.parametrize(
    ("before", "printed"),
    [
        ("pass", "True False True"),
        pytest.param("gc.disable()", "False False True", marks=pytest.mark.slow),
        # What torch made stays young: to promote it would thaw what somebody else froze.
        ("gc.freeze()", "True True False"),
    ],
)
def test_collecting_goes_on_as_before_once_torch_is_there(before: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(before=before)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed
