"""Folders that were received: a link, a pipe, a device or a file without end in the place of any file."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from menv import ConfigError, Policy
from menv.algorithms import PPO, Algorithm
from menv.algorithms.training.crash_capsules import read_capsule
from menv.cli.main import main
from menv.inference.checkpoint_folder import LATEST
from menv.offline import read_episodes
from menv.tracking import Run, RunFolder

SECRET = "the diary of somebody else"
SMALL: dict[str, Any] = {
    "num_workers": 0, "rollout_fragment_length": 16, "train_batch_size": 32, "sgd_minibatch_size": 32,
    "model": {"fcnet_hiddens": [4]}, "callbacks": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints and a recorded game."""
    place = tmp_path_factory.mktemp("received") / "run"
    with PPO(env="tictactoe", config=SMALL) as algo:
        algo.learn(64, run_dir=place, save_every=1)
    (place / "videos").mkdir()
    (place / "videos" / "episode-000000.txt").write_text("X..\n")
    return place


@pytest.fixture
def received(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, in a folder with a private one beside it."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "diary.txt").write_text(SECRET)
    return shutil.copytree(run, tmp_path / "run")


def as_link(path: Path) -> None:
    path.symlink_to(private_of(path))


def private_of(path: Path) -> Path:
    """Return the private file beside the run that a file belongs to."""
    return next(
        one / "private" / "diary.txt" for one in path.absolute().parents if (one / "private").is_dir()
    )


def as_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_file_without_end(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


DISGUISES = [as_link, os.mkfifo, as_device, as_file_without_end, os.mkdir]


@contextmanager
def in_time() -> Iterator[None]:
    """Raise TimeoutError in what waits for a pipe."""

    def ring(*args: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def disguised(path: Path, disguise: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    disguise(path)


def reopened(run: Path) -> None:
    Algorithm.from_checkpoint(run).stop()


@pytest.mark.slow_unless("as_link", "mkfifo")
@pytest.mark.parametrize("disguise", DISGUISES)
def test_no_command_that_looks_at_a_run_shows_waits_for_or_swallows_what_is_no_file_of_it(
    received: Path, disguise: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [path.relative_to(received) for path in received.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {
        "config.json",
        "command.txt",
        "results.jsonl",
        "progress.csv",
        ".lock",
        LATEST,
        "policy.json",
    } <= names
    for name in files:
        copy = shutil.copytree(received, received.parent / "copy")
        disguised(copy / name, disguise)
        with in_time():
            assert {main([command, str(copy)]) for command in ("show", "report")} <= {0, 2}, name
            if "checkpoints" in name.parts:
                with suppress(ConfigError):
                    reopened(copy)
        page = copy / "report.html"
        assert SECRET not in capsys.readouterr().out + (page.read_text() if page.is_file() else "")
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/000002", "checkpoints/000002/policies"])
def test_a_folder_inside_a_run_that_leads_elsewhere_is_not_entered(
    received: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = received.parent / "private" / "other"
    shutil.move(received / name, elsewhere)
    (received / name).symlink_to(elsewhere)
    assert main(["show", str(received)]) == 2
    with pytest.raises(ConfigError, match="link"):
        Policy.from_checkpoint(received)
    if name == "checkpoints/000002/policies":
        return
    with pytest.raises(ConfigError, match="link"):
        reopened(received)
    # A folder that a user names may be a link.
    (received.parent / "mine").symlink_to(received.parent / "private")
    reopened(received.parent / "mine" / "other")


def test_a_resumed_run_deletes_no_checkpoints_elsewhere(
    received: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = received.parent / "private" / "checkpoints"
    shutil.move(received / "checkpoints", other)
    (received / "checkpoints").symlink_to(other)
    before = sorted(other.iterdir())
    arguments = ["train", "--resume", str(received), "--keep", "1", "--stop", "training_iteration=4"]
    assert main(arguments) == 2
    assert "checkpoints: " in capsys.readouterr().err
    with PPO(env="tictactoe", config=SMALL) as algo, pytest.raises(ConfigError, match="link"):
        algo.learn(64, run_dir=received)
    assert sorted(other.iterdir()) == before


@pytest.mark.parametrize("name", ["command.txt", ".lock", "results.jsonl", "progress.csv", "digest.txt"])
@pytest.mark.parametrize("disguise", [as_link, os.mkfifo])
def test_a_resumed_run_writes_into_no_file_elsewhere(
    received: Path, name: str, disguise: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    disguised(received / name, disguise)
    with in_time():
        main(["train", "--resume", str(received), "--stop", "training_iteration=3"])
    assert (received.parent / "private" / "diary.txt").read_text() == SECRET


@pytest.mark.parametrize("disguise", DISGUISES)
def test_capsules_and_recordings_are_files(tmp_path: Path, disguise: Callable[[Path], object]) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "diary.txt").write_text(SECRET)
    disguised(tmp_path / "001.json", disguise)
    disguised(tmp_path / "games.parquet", disguise)
    with in_time():
        with pytest.raises(ConfigError):
            read_capsule(tmp_path / "001.json")
        with pytest.raises(ConfigError):
            list(read_episodes(tmp_path / "games.parquet"))


def test_a_run_whose_lock_is_a_pipe_cannot_be_begun(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / ".lock")
    with in_time(), pytest.raises(ConfigError, match=r"\.lock"):
        RunFolder(tmp_path / "run", {"env": "x"})
    (tmp_path / "run" / "config.json").write_text('{"kind": "menv run"}')
    with in_time(), pytest.raises(ConfigError, match=r"\.lock"):
        _ = Run(tmp_path / "run").is_running


def test_a_token_or_settings_file_may_be_a_link_as_kubernetes_mounts_them(tmp_path: Path) -> None:
    from menv.cli.arguments import read_settings

    (tmp_path / "..data.json").write_text('{"lr": 0.5}')
    (tmp_path / "settings.json").symlink_to(tmp_path / "..data.json")
    assert read_settings(str(tmp_path / "settings.json")) == {"lr": 0.5}
    (tmp_path / "zeros.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigError):
        read_settings(str(tmp_path / "zeros.json"))
