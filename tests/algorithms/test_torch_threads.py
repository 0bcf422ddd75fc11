"""The collector of garbage before, during and after the import of torch, in a process that has not imported it yet."""

import subprocess
import sys
from pathlib import Path

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


def test_finalizers_of_garbage_run_when_the_interpreter_ends(tmp_path: Path) -> None:
    """Of garbage that was old before torch was imported, and of what modules held until the end."""
    text = """
old = Ring(sys.argv[1])
gc.collect()
set_torch_threads(1)
kept = Ring(sys.argv[2])
del old
"""
    ran(text, str(tmp_path / "old"), str(tmp_path / "kept"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "gone", "kept": "gone"}


def test_the_collector_is_on_again_after_the_import_and_off_where_it_was_off() -> None:
    assert ran("set_torch_threads(1); print(gc.isenabled(), gc.get_freeze_count())") == "True 0"
    assert ran("gc.disable(); set_torch_threads(1); print(gc.isenabled())") == "False"


def test_what_somebody_froze_stays_frozen() -> None:
    """But for a few objects that nobody needs any more."""
    text = "gc.freeze(); frozen = gc.get_freeze_count(); set_torch_threads(1); print(gc.get_freeze_count() / frozen)"
    assert 0.9 < float(ran(text)) <= 1.0


def test_garbage_that_was_made_before_is_found_afterwards(tmp_path: Path) -> None:
    text = """
ring = Ring(sys.argv[1])
set_torch_threads(1)
del ring
gc.collect()
print(Path(sys.argv[1]).exists())
"""
    assert ran(text, str(tmp_path / "ring")) == "True"
