"""What `pip install menv-rl` brings, and what it is good for without torch."""

import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
import threading
import zipfile
from pathlib import Path

import pytest

from menv.algorithms import PPO
from menv.serving import PolicyServerInput
from tests.house.sources import ROOT

ELSEWHERE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

LEFT_OUT = (".ci/", ".devcontainer/", ".dockerignore", ".gitignore")
"""What no sdist needs."""

BASE = """
    import importlib.metadata
    import importlib.util
    import sys
    import menv
    from menv.serving import PolicyClient

    assert importlib.util.find_spec("torch") is None
    assert menv.check_env("tictactoe") == []
    policy = menv.Policy.from_checkpoint(sys.argv[1])
    for mode in ("local", "remote"):
        with PolicyClient(sys.argv[2], mode) as client:
            episode = client.start_episode()
            print(policy.act([0, 0, 0, 0]) in (0, 1), client.get_action(episode, [0, 0, 0, 0]) in (0, 1))
            client.log_returns(episode, 1.0)
            client.end_episode(episode, [0, 0, 0, 0])
    print(importlib.metadata.version("menv-rl") == menv.__version__)
"""
"""A program that checks an environment, acts and is a client."""


def build(what: str, source: Path, into: Path) -> Path:
    """Build an sdist or a wheel in a new folder and return its file."""
    into.mkdir()
    code = f"import sys\nfrom setuptools import build_meta\nbuild_meta.build_{what}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, into], cwd=source, check=True, capture_output=True)
    (built,) = into.iterdir()
    return built


def build_sdist(folder: Path) -> Path:
    """Build the sdist of the files that git tracks."""
    for name in tracked():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name, follow_symlinks=False)
    return build("sdist", folder / "source", folder / "sdist")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the sdist builds."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build("wheel", next(folder.iterdir()), folder / "wheel")


def tracked() -> set[str]:
    """Return the files of the project, without links."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    names = listed.stdout.rstrip("\0").split("\0")
    return {name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()}


@pytest.mark.slow
def test_the_sdist_holds_the_project_and_the_wheel_the_package(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    made = {name for name in held if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert held - made == {name for name in tracked() if not name.startswith(LEFT_OUT)}
    with zipfile.ZipFile(wheel) as archive:
        package = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    assert package == {name for name in tracked() if name.startswith("menv/")}
    assert "Name: menv-rl\n" in text
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 2_000_000


@pytest.mark.slow
def test_the_wheel_alone_acts_checks_and_is_a_client(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python, menv = (tmp_path / "venv" / "bin" / name for name in ("python", "menv"))
    install: list[str | Path] = ["install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run([python, "-m", "pip", *install], check=True, env=ELSEWHERE)
    use(python, tmp_path)
    assert "run: pip install 'menv-rl[train]'" in run([menv, "train", "CartPole-v1"], tmp_path).stderr


def use(python: Path, folder: Path) -> None:
    """Let the menv that an interpreter has installed check an environment, act and be a client of a server."""
    program = folder / "base.py"
    program.write_text(textwrap.dedent(BASE), "utf-8")
    config = {"input": lambda ioctx: PolicyServerInput(ioctx, "127.0.0.1", 0), "train_batch_size": 2}
    with PPO(env="CartPole-v1", config=config) as algo:
        algo.export_policy_checkpoint(folder / "policy")
        address = "http://{}:{}".format(*algo.input_address)
        learning = threading.Thread(target=algo.train, daemon=True)
        learning.start()
        base = run([python, program, folder / "policy", address], folder)
        assert (base.stderr, base.stdout.split()) == ("", ["True"] * 5), base.stderr + base.stdout
        learning.join()


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the project only where it is installed."""
    return subprocess.run(
        command, cwd=folder, env=ELSEWHERE, capture_output=True, text=True, timeout=120, check=False
    )
