"""The blocks of the README and of the guide run as printed and do what the pages say."""

import ast
import inspect
import re
import runpy
from pathlib import Path

import pytest

from menv import errors

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
    returns = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    assert sum(returns.values()) >= 17.5
    assert (tmp_path / "runs" / "parity" / "progress.csv").is_file()


def test_the_blocks_of_the_guide_run_and_learn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 5
    script = tmp_path / "example.py"
    # Each goes on with what the ones before have made.
    script.write_text("".join(blocks), "utf-8")
    monkeypatch.chdir(tmp_path)
    left = runpy.run_path(str(script))
    assert left["action"] == left["algo"].compute_single_action(3, "even", explore=False)
    assert (tmp_path / "even.onnx").exists()
    assert left["algo"].iteration == 5
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert 0 <= float(lines[5]) <= 9
    assert int(ast.literal_eval(lines[6])[1]) > 0
    assert lines[7] == "no step in 1 s: 0 clients connected, 0 open episodes"
    assert ast.literal_eval(lines[8]) == {"mean": 1.0, "max": 1}
    returns = ast.literal_eval(lines[4])
    assert min(returns["even"], returns["odd"]) > 4.8


def test_every_error_is_in_the_table_with_what_it_is_besides() -> None:
    text = (
        (ROOT / "docs" / "guide.md")
        .read_text("utf-8")
        .partition("## When something is wrong")[2]
        .partition("\n## ")[0]
    )
    kinds = dict(inspect.getmembers(errors, inspect.isclass))
    raised = {name: kind for name, kind in kinds.items() if issubclass(kind, Exception)}
    assert {name for name in re.findall(r"`(\w+)`", text) if name in raised} == raised.keys()
    # Others stand below them: the guide says when the first of these three arrives, the two others never do.
    inner = {"RemoteError", "NotHostedError", "BadMessageError"}
    classes = [
        kind
        for path in (ROOT / "menv").rglob("*.py")
        for kind in re.findall(r"^class (\w+)\((\w*Error)\b", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert {name for name, base in classes if base == "MenvError"} - raised.keys() == inner
    besides = re.findall(r"`(\w+)` \(an? `(\w+)`\)", text)
    assert len(besides) == 5
    for name, builtin in besides:
        assert builtin in [kind.__name__ for kind in raised[name].__mro__]
