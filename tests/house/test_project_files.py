"""pyproject.toml, constraints.txt and the scripts agree with each other."""

import itertools
import re
import subprocess
import tomllib
from typing import Any

from packaging.requirements import Requirement

from tests.conftest import LONG, TOGETHER
from tests.house.sources import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
TESTED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line
)


def normal(name: str) -> str:
    """Return a package name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_extra_all_holds_every_other_extra() -> None:
    (everything,) = (Requirement(line) for line in EXTRAS["all"])
    assert everything.name == PROJECT["project"]["name"] == "menv-rl"
    assert everything.extras == set(EXTRAS) - {"all"}


def test_what_make_setup_installs_has_a_tested_version_within_its_range() -> None:
    tested = {normal(name): version for name, version in TESTED.items()}
    installed = [
        *PROJECT["project"]["dependencies"],
        *EXTRAS["train"],
        *EXTRAS["pettingzoo"],
        *EXTRAS["serve"],
        *EXTRAS["docs"],
        *EXTRAS["dev"],
    ]
    for requirement in map(Requirement, installed):
        assert tested[normal(requirement.name)] in requirement.specifier, requirement
    assert tested["torch"] == "2.13.0"


def test_only_menv_is_installed_and_not_its_links_at_the_root() -> None:
    from setuptools import find_packages

    rule = PROJECT["tool"]["setuptools"]["packages"]["find"]
    assert {name.partition(".")[0] for name in find_packages(str(ROOT), include=rule["include"])} == {"menv"}
    assert (ROOT / "menv" / "py.typed").exists()


def test_make_without_a_target_lists_the_targets() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for target in (
        "setup",
        "demo",
        "test",
        "test-slow",
        "test-gpu",
        "test-versions",
        "check",
        "docs",
        "clean",
    ):
        assert f"make {target} " in listed.stdout


def test_the_site_shows_the_version_of_the_project() -> None:
    assert f"copyright: menv {PROJECT['project']['version']}, " in (ROOT / "mkdocs.yml").read_text("utf-8")


def terms(expression: str) -> dict[str, bool]:
    """Return which marks a selection of tests asks for, and which it has none of."""
    return {term.removeprefix("not "): not term.startswith("not ") for term in expression.split(" and ")}


def test_the_parts_of_make_test_run_each_test_of_the_default_run_once() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "test", "ARGS="]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    parts = [terms(one) for one in re.findall(r'pytest .*-m "([^"]+)"', printed)]
    (default,) = (terms(one) for one in PROJECT["tool"]["pytest"]["ini_options"]["addopts"] if " " in one)
    assert len(parts) > 1
    for values in itertools.product([False, True], repeat=4):
        marks = dict(zip(("slow", "soak", "alone", "gpu"), values, strict=True))
        assert sum(part.items() <= marks.items() for part in parts) == (default.items() <= marks.items())


def test_a_runner_of_tests_asks_which_belong_together() -> None:
    """`tests/conftest.py` answers."""
    from xdist.scheduler import LoadFileScheduling

    assert "_split_scope" in LoadFileScheduling.schedule.__code__.co_names
    assert all((ROOT / place).exists() for place in sum(TOGETHER.values(), LONG))
