"""Packages do not grow, and what makes menv hard to read does not come back."""

from pathlib import Path

from tests.house.ratchet import HOUSE, lowered, measured, read_bounds, risen, words


def test_no_figure_has_risen() -> None:
    report = "\n".join(risen(measured(), read_bounds()))
    assert report == "", (
        f"{report}\n`python -m tests.house.ratchet --write` writes figures that have fallen; where code moves between "
        "packages, add `--allow-rise PACKAGE` and say why in the change. `--words` lists the words to avoid."
    )


def test_figures_are_counted(tmp_path: Path) -> None:
    files = {
        "menv/__init__.py": "",
        "menv/policy.py": "class Policy: ...\n\n\ndef act():\n    from menv.loop import sampler\n",
        "menv/loop/__init__.py": '"""Nobody shall wait."""\n',
        "menv/loop/sampler.py": "from menv.policy import Policy  # told by itself\n\n\nclass Policy: ...\n",
        "menv/loop/inner/buffer.py": "class Buffer:\n    class Row: ...\n\n\nimport menv.loop.sampler\n"
        + "\n" * 60,
        "docs/page.md": "It lies in a folder, beside others.\nA folder likewise.",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert measured(tmp_path) == {
        "menv": {"lines": 5, "files": 2, "classes": 1},
        "menv.loop": {"lines": 70, "files": 3, "classes": 3},
        HOUSE: {
            "files directly in menv": 2,
            "files below 60 lines with at most one importer": 1,
            "modules with one importer": 1,
            "imports of menv inside functions": 1,
            "class names used twice": 1,
            "words to avoid": 7,
        },
    }
    assert "docs/page.md:2 'likewise': repeat it" in list(words(tmp_path))


def test_figures_may_fall_and_not_rise_and_a_new_package_has_no_budget() -> None:
    now = {"menv": {"lines": 9, "files": 3}, "menv.loop": {"lines": 5, "files": 2}}
    bounds = {"menv": {"lines": 8, "files": 4}, "menv.gone": {"lines": 1, "files": 1}}
    assert risen(now, bounds) == [
        "menv: lines rose from 8 to 9",
        'menv.loop has no budget, state it in ratchet.json: {"lines": 5, "files": 2}',
    ]
    assert lowered(now, bounds, []) == {"menv": {"lines": 8, "files": 3}}
    assert lowered(now, bounds, ["menv", "menv.loop"]) == now
