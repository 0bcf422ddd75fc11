"""The collector of garbage before, during and after the import of torch, in a process that has not imported it yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_BEGIN = """
import gc, sys
from pathlib import Path
from menv.algorithms.torch_threads import set_torch_threads

class Ring:
    def __init__(self, path):
        self.itself, self.path = self, path

    def __del__(self):
        Path(self.path).write_text("gone")
"""


def ran(text: str, *args: str) -> str:
    """Return what a program prints; it must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _BEGIN + text, *args],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.slow
def test_garbage_from_before_the_import_is_found_and_finalized(tmp_path: Path) -> None:
    """At once by a collection, at the end of the interpreter where it was old, and what modules held until then."""
    text = """
old = Ring(sys.argv[1])
gc.collect()
young = Ring(sys.argv[2])
set_torch_threads(1)
kept = Ring(sys.argv[3])
print(gc.isenabled(), gc.get_freeze_count())
del young
gc.collect()
print(*[path.name for path in Path(sys.argv[1]).parent.iterdir()])
del old
"""
    printed = ran(text, *(str(tmp_path / name) for name in ("old", "young", "kept")))
    assert printed.splitlines() == ["True 0", "young"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("old", "young", "kept"), "gone"
    )


@pytest.mark.slow
def test_the_collector_stays_off_where_it_was_off() -> None:
    assert ran("gc.disable(); set_torch_threads(1); print(gc.isenabled())") == "False"


@pytest.mark.slow
def test_what_somebody_froze_stays_frozen() -> None:
    """But for a few objects that nobody needs any more."""
    text = "gc.freeze(); frozen = gc.get_freeze_count(); set_torch_threads(1); print(gc.get_freeze_count() / frozen)"
    assert 0.9 < float(ran(text)) <= 1.0


# What building an algorithm does to the collector of garbage while it imports torch: nothing that lasts.


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
