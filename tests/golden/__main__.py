"""Compare the golden runs of this checkout with those of another commit.

    python -m tests.golden --against main~3 --only ppo_copies dqn_vector

Both sides run this checkout's `tests/golden` and `examples` with the same interpreter on the same machine, each with
its own menv. The exit status is 1 if a run differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.golden.runs import RUNS, Fields

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check `commit` out into a temporary folder, with the golden runs and the examples of this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "menv"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(root), commit], cwd=ROOT, check=True)
        try:
            for part in ("tests/golden", "examples"):
                shutil.rmtree(root / part, ignore_errors=True)
                shutil.copytree(ROOT / part, root / part)
            yield root
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(root)], cwd=ROOT, check=True)


@contextlib.contextmanager
def running(root: Path, names: list[str]) -> Iterator[Iterator[tuple[str, Fields]]]:
    """Start the runs with the menv of a checkout; yield the name and the fields of each when it is done."""
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.golden.runs", *names]
    with subprocess.Popen(command, cwd=root, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield (json.loads(line) for line in process.stdout)
        finally:
            process.terminate()


def difference(ours: Fields, theirs: Fields) -> str:
    """Return the first field that differs, with both values, or ""; a field that only we have was added."""
    for name in [*theirs, "error"]:
        here, there = ours.get(name, "missing"), theirs.get(name, "missing")
        if here != there:
            return f"{name}: {here} here, {there} there"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.partition("\n")[0])
    parser.add_argument("--against", metavar="COMMIT", default="HEAD")
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--list", action="store_true", help="print the names of the runs")
    args = parser.parse_args()
    if args.list:
        sys.stdout.write("\n".join(RUNS) + "\n")
        return 0
    differing = 0
    with (
        worktree(args.against) as other,
        running(ROOT, args.only) as ours,
        running(other, args.only) as theirs,
    ):
        for (name, here), (_, there) in zip(ours, theirs, strict=True):
            found = difference(here, there)
            failed = "" if found or "error" not in here else f" (both fail: {here['error']})"
            differing += bool(found or failed)
            sys.stdout.write(f"{name:24} {f'differs: {found}' if found else f'same{failed}'}\n")
            sys.stdout.flush()
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
