"""The README's example runs as printed and does what it says."""

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_example_of_the_readme_runs_and_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code, "utf-8")
    runpy.run_path(str(script))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    returns = ast.literal_eval(lines[-1])
    assert min(returns["even"], returns["odd"]) > 4.8
