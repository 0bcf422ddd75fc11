"""What the documents print runs as it stands, block after block, and does what is said beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.house.sources import ROOT

BEFORE = {
    1: 'import sys; sys.modules["torch"] = sys.modules["onnx"] = None\n',
    3: 'import sys; sys.modules["menv"] = None\n',
}
"""Blocks that need less than menv with all its extras, and what takes it away."""


def test_the_blocks_of_deploying_run_one_after_the_other_in_processes_of_their_own(tmp_path: Path) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "deploying.md").read_text("utf-8"), re.DOTALL
    )
    assert len(blocks) == 4
    printed = []
    for number, block in enumerate(blocks):
        script = tmp_path / f"block_{number}.py"
        script.write_text(BEFORE.get(number, "") + block, "utf-8")
        done = subprocess.run(
            [sys.executable, script.name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            env={"PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        printed += done.stdout.splitlines()
    assert [line.split()[0] for line in printed] == ["return", "actions", "drawn"]
    assert float(printed[0].split()[1]) > 9
    assert (tmp_path / "cartpole_policy" / "policy.json").exists()
