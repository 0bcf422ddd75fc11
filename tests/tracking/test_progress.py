"""What a run shows: lines, a table that moves within an iteration, and JSON."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from menv import DefaultCallbacks
from menv.algorithms import PPO
from menv.tracking import Tracker
from menv.tracking.progress import LiveTable, PlainLines, progress
from tests.worlds import Alone


class Slow(Alone):
    """Takes 5 ms a step."""

    length = 10

    def pay(self, action: Any) -> float:
        time.sleep(0.005)
        return 1.0


def test_lines_move_within_an_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    class Often(PlainLines):
        _pause = 0.05

    config = {"train_batch_size": 100, "sgd_minibatch_size": 100, "rollout_fragment_length": 100}
    with PPO(env=Slow, config=config) as algo:
        algo.learn(100, trackers=[Often()])
    lines = [line.split(", ") for line in capsys.readouterr().out.splitlines()]
    done = [int(line[1].split()[0]) for line in lines if line[0] == "iteration 1"]
    assert len(set(done)) >= 3
    assert done == sorted(done)
    assert lines[0][1].endswith(" of 100 steps")
    assert lines[0][2] == "sampling for 0 s"


@pytest.mark.parametrize("width", [40, 120])
def test_a_table_has_room_in_a_terminal_of_any_width(width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=width)
    with PPO(env="tictactoe", config={"train_batch_size": 64, "sgd_minibatch_size": 64}) as algo:
        algo.learn(stop={"training_iteration": 3}, trackers=[LiveTable(console=console)])
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any("learning rate" in line for line in lines) == (width == 120)
    assert any(line.split()[:2] == ["3", "192"] for line in lines)


def test_progress_counts_from_the_beginning_of_each_iteration() -> None:
    seen: list[tuple[Any, ...]] = []

    def note(algorithm: Any) -> None:
        now = algorithm.under_way()
        seen.append((now["phase"], now["training_iteration"], now["steps"], now["steps_due"]))

    class Notes(DefaultCallbacks):
        def on_learn_on_batch(self, **kwargs: Any) -> None:
            note(algo)

        def on_evaluate_end(self, *, algorithm: Any, **kwargs: Any) -> None:
            note(algorithm)

    class Begins(Tracker):
        def begin(self, algorithm: Any) -> None:
            note(algorithm)

        def result(self, result: Any) -> None:
            note(algo)

    config = {"train_batch_size": 64, "sgd_minibatch_size": 64, "evaluation_interval": 1, "callbacks": Notes}
    with PPO(env="CartPole-v1", config={**config, "evaluation_duration": 1}) as algo:
        for steps in (64, 128):
            algo.learn(steps, trackers=[Begins()])
    assert [phase for phase, *_ in seen] == ["", "learning", "evaluating", ""] * 2
    assert [steps for _, _, steps, _ in seen] == [0, 64, 64, 64] * 2
    assert {due for *_, due in seen} == {64}


def test_without_a_terminal_lines_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert type(progress()) is PlainLines
    with PPO(env="tictactoe", config={"train_batch_size": 64, "sgd_minibatch_size": 64}) as algo:
        algo.learn(64, progress_bar=True, run_dir=tmp_path / "run")
    assert capsys.readouterr().out.startswith(
        f"PPO in tictactoe, policies: default_policy, run folder {tmp_path / 'run'}\n"
    )
