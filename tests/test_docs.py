"""What the documents print runs as it stands, block after block, and does what is said beside it."""

from __future__ import annotations

from pathlib import Path

from tests.doc_blocks import blocks, run_python

BEFORE = {
    1: 'import sys; sys.modules["torch"] = sys.modules["onnx"] = None\n',
    4: 'import sys; sys.modules["menv"] = None\n',
}
"""Blocks that need less than menv with all its extras, and what takes it away."""


def test_the_blocks_of_deploying_run_one_after_the_other_in_processes_of_their_own(tmp_path: Path) -> None:
    found = blocks("docs/deploying.md", "python")
    assert len(found) == 5
    printed = []
    for number, block in enumerate(found):
        printed += run_python(tmp_path / f"block_{number}.py", BEFORE.get(number, "") + block)
    assert [line.split()[0] for line in printed] == ["return", "actions", "drawn"]
    assert float(printed[0].split()[1]) > 9
    for name in ("cartpole_policy", "stacked_policy"):
        assert (tmp_path / name / "policy.json").exists()


def test_the_blocks_about_workers_print_what_the_page_says(tmp_path: Path) -> None:
    first, second = blocks("docs/workers.md", "python")
    printed = run_python(tmp_path / "same.py", first)
    assert printed == ["0 workers: 0 processes, True", "2 workers: 2 processes, True"]
    overlapped = run_python(tmp_path / "overlapped.py", "from menv.algorithms import PPO\n\n" + second)
    assert overlapped == ["staleness: {'mean': 1.0, 'max': 1}"]
