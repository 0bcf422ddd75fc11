"""`menv watch` shows policies and `menv play` lets a person play against them, on terminals, in pipes and in files."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from PIL import Image

from menv.algorithms import PPO
from menv.cli.games import picture_lines
from menv.cli.main import main
from menv.registry import register_env
from tests.playing.hands import SECRET, Hands, OwnHands
from tests.worlds import Several, like

SMALL: dict[str, Any] = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}


def named(agent: Any, *unused: Any, **more: Any) -> str:
    return "boss" if agent == "player1" else "guest"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    by_role, halves = (
        {"multiagent": {"policies": ["boss", "guest"], "policy_mapping_fn": fn}}
        for fn in (named, lambda agent, *unused, **more: "boss" if agent < "player2" else "guest")
    )
    for name, env, more in (
        ("tictactoe", "tictactoe", {}), ("roles", "tictactoe", by_role), ("halves", "tictactoe", halves),
        ("cart", "CartPole-v1", {}), ("pendulum", "Pendulum-v1", {}),
    ):  # fmt: skip
        with PPO(config={**SMALL, **more}, env=env) as algo:
            algo.save(root / name)
    return root


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_game_ends_with_its_result(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, *"012345678")
    assert main(["play", str(runs / "tictactoe"), "--as", "player1", "--seed", "1"]) == 0
    shown = capsys.readouterr().out
    assert " 0 | 1 | 2 \n---+---+---\n 3 | 4 | 5 " in shown
    assert "player1, your move: 0 top left, 1 top, " in shown
    assert re.search(r"player2 plays (top|middle|bottom|left|right)", shown)
    assert re.fullmatch(r"(you win|you lose|draw) after \d moves", shown.splitlines()[-1])


def test_names_are_moves_too_and_others_are_asked_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "Top  LEFT", "0", "-1", "up", "", "q")
    assert main(["play", str(runs / "tictactoe"), "--as", "player1", "--hints"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"0 top left 1\d%, 1 top 1\d%", shown)
    for wrong in ("0", "-1", "up", ""):
        assert f"'{wrong}' is not a legal move" in shown
    assert " X | " in shown
    assert shown.endswith("the game was left\n")


def test_the_end_of_stdin_ends_a_game(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "3")
    assert main(["play", str(runs / "tictactoe"), "--as", "player2"]) == 0
    shown = capsys.readouterr().out
    assert "\n---+---+---\n" in shown
    assert "player1 plays " in shown
    assert shown.endswith("the game was left\n")


def test_every_move_of_a_policy_is_shown_that_moves_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = like(
        Several,
        possible_agents=("me", "other"),
        observation_space=Discrete(4),
        length=4,
        shown=lambda self: ["me" if self.at in (0, 3) else "other"],
        see=lambda self, agent: self.at % 4,
        pay=lambda self, actions: {},
    )
    register_env("twice", lambda context: twice())
    with PPO(config=SMALL, env="twice") as algo:
        algo.save(tmp_path)
    typed(monkeypatch, "0", "1")
    assert main(["play", str(tmp_path), "--as", "me"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("other plays ") == 2
    assert "me plays" not in shown


def test_texts_are_printed_one_below_the_other_without_a_terminal(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["watch", str(runs / "roles"), "--policy", "boss", "--policy", "player2=guest", "--sample"]
    assert main([*arguments, "--episodes", "2", "--seed", "5"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count("step 0  return 0 0\n") == 2
    assert re.search(r"step 2  player1: \w+( \w+)?  player2: \w+( \w+)?  return 0 0\n", shown)
    assert re.search(r"^episode 2: (player[12] wins|draw), [5-9] env steps$", shown, re.M)
    main([*arguments, "--episodes", "2", "--seed", "5"])
    assert capsys.readouterr().out == shown


def test_a_gif_holds_every_step(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "game.gif"
    assert main(["watch", str(runs / "tictactoe"), "--gif", str(file), "--fps", "4"]) == 0
    said = capsys.readouterr().out
    steps = int(said.split(", ")[1].split()[0])
    with Image.open(file) as film:
        shown = 0
        for number in range(getattr(film, "n_frames", 1)):
            film.seek(number)
            shown += film.info["duration"] // 250
    # The last picture stays for a second.
    assert shown == steps + 4
    assert said.endswith(f"wrote {file}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["play", "tictactoe"], r"--as: .*\['player1', 'player2'\]"),
        (["play", "tictactoe", "--as", "me"], r"agent 'me': .*\['player1', 'player2'\]"),
        (["play", "pendulum", "--as", "agent0"], "Discrete.* menv watch"),
        (["play", "pendulum"], "Discrete.* menv watch"),
        (["play", "roles", "--as", "player1"], r"import \S+:named: menv play roles --as player1 --trust"),
        (["watch", "halves"], r"\['policy_mapping_fn'\] .*<lambda>.* --policy AGENT=POLICY$"),
        (["match", "halves", "halves:x"], r"\['policy_mapping_fn'\].* menv.playing.Game"),
        (["watch", "roles", "--policy", "chef"], r"policy 'chef': .*\['boss', 'guest'\]"),
        (["watch", "cart", "--gif", "nowhere/film.gif"], " nowhere"),
        (["watch", "cart", "--fps", "0"], "argument --fps: '0'"),
        (["watch", "tictactoe", "--env", "tictactoo"], "'tictactoe'"),
        (["watch", "nothing"], "^menv watch: error: .* nothing "),
        (["play", "nothing", "--as", "you"], "^menv play: error: .* nothing "),
    ],
)
def test_wrong_input_gets_one_line(
    runs: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(runs)
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code  # type: ignore[assignment]
    assert status == 2
    assert re.search(message, capsys.readouterr().err.strip().splitlines()[-1])


def test_a_file_needs_pictures(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from menv.envs import TicTacToe

    register_env("texts", lambda context: TicTacToe())
    run, file = str(runs / "tictactoe"), tmp_path / "film.gif"
    assert main(["watch", run, "--env", "texts", "--gif", str(file)]) == 2
    assert "film.gif: " in capsys.readouterr().err
    assert not file.exists()


@pytest.fixture(scope="module")
def hands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hands")
    for env in (Hands, OwnHands):
        register_env(env.__name__, env)
        with PPO(config=SMALL, env=env.__name__) as algo:
            algo.save(folder / env.__name__)
    return folder


Terminal = like(io.StringIO, isatty=lambda self: True)


@pytest.mark.parametrize(
    ("typed_first", "options", "shown"),
    [
        (None, [], 1), (None, ["--show-all"], 3), ("y\n", [], 3), ("\n", [], 1), ("", [], 0), ("\n", ["--show-all"], 3),
    ],
)  # fmt: skip
def test_a_game_asks_before_it_shows_what_other_players_hide(
    hands: Path,
    typed_first: str | None,
    options: list[str],
    shown: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind = io.StringIO if typed_first is None else Terminal
    moves = "" if typed_first == "" else "ash\n0\n"
    monkeypatch.setattr(sys, "stdin", kind(("" if options else typed_first or "") + moves))
    assert main(["play", str(hands / "Hands"), "--as", "a", *options]) == 0
    said = capsys.readouterr()
    # Before the moves of "a", and at the end.
    assert said.out.count(f"b has {SECRET}") == shown
    assert ("Show it? [y/N]" in said.out) == (typed_first is not None and not options)
    assert ("--show-all" in said.err) == (typed_first is None and not options)


def test_pixels_are_half_blocks_of_colour_on_a_terminal(
    hands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(picture_lines(np.zeros((40, 60, 3), np.uint8), 31)) == 10
    typed(monkeypatch, "0", "0")
    assert main(["play", str(hands / "OwnHands"), "--as", "b"]) == 0
    assert "\N{UPPER HALF BLOCK}" not in capsys.readouterr().out
    typed(monkeypatch, "0", "0")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["play", str(hands / "OwnHands"), "--as", "b"]) == 0
    line = "\x1b[38;2;250;10;20;48;2;250;10;20m\N{UPPER HALF BLOCK}" * 10 + "\x1b[0m\n"
    said = capsys.readouterr().out
    assert said.count(line * 3) == 2
    assert f"b has {SECRET}" in said


def test_a_mapping_function_is_imported_with_trust(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, *"012345678")
    assert main(["play", str(runs / "roles"), "--as", "player2", "--trust"]) == 0
    said = capsys.readouterr()
    assert said.err == f"importing {__name__}:named, which the run names\n"
    assert re.search(r"^(you win|you lose|draw) after \d moves$", said.out, re.M)
    assert main(["watch", str(runs / "roles"), "--trust"]) == 0
    assert re.search(r"^episode 1: (player[12] wins|draw)", capsys.readouterr().out, re.M)
