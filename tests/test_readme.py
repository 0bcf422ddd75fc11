"""The README is short, its links lead somewhere, and its example learns."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_readme_is_short_and_its_example_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.split()) <= 800
    for target in re.findall(r"\]\((\S+?)\)", text):
        assert (ROOT / target).exists(), target
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "example.py").write_text(block, "utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path("example.py")
    assert float(capsys.readouterr().out.splitlines()[-1]) >= 1.95
    assert (tmp_path / "runs" / "talk" / "progress.csv").is_file()
