"""The page of `menv play --browser`, in Chromium and by what it posts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from examples.connect_four import ConnectFour
from menv.algorithms import PPO
from menv.envs import TicTacToe
from menv.errors import ConfigError
from menv.playing import Game
from menv.playing.browser import PlayServer
from tests.browser import Browser
from tests.house.sources import ROOT
from tests.playing.hands import SECRET, Hands, OwnHands

SMALL: dict[str, Any] = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "seed": 1}
CALM = "--force-prefers-reduced-motion"
EVIL = "<img src=x onerror=\"document.title='broken'\">"


class Corridor(gym.Env[Any, Any]):
    """Three steps to the right win; its action names and its picture are hostile."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "action_names": ["left", EVIL]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, **unused: Any) -> tuple[Any, dict[str, Any]]:
        self.at = 3
        return np.array([self.at], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1 if action else -1
        if self.at == 0:
            raise RuntimeError("fell off the left end")
        return np.array([self.at], np.float32), float(action), self.at == 6, False, {}

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return EVIL
        picture = np.zeros((8, 60, 3), np.uint8)
        picture[:, 6 * self.at : 6 * self.at + 6] = (250, 60, 20)
        return picture


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Any, Path]:
    folder = tmp_path_factory.mktemp("runs")
    envs = (TicTacToe, ConnectFour, Corridor, Hands, OwnHands)
    for env in envs:
        with PPO(config=SMALL, env=env) as algo:
            algo.save(folder / env.__name__)
    return {env: folder / env.__name__ for env in envs}


@contextmanager
def served(runs: Mapping[Any, Path], env: Any, **settings: Any) -> Iterator[PlayServer]:
    mode = settings.pop("render_mode", None)
    game = Game(runs[env], env=env, render_mode=mode, **settings)
    server = PlayServer(game, title=str(runs[env]))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with Browser(CALM) as browser:
        yield browser
    assert browser.logged == []


def cell(number: int) -> str:
    return f".slot:nth-child({number + 1})"


def settled(page: Browser) -> None:
    page.wait_for("!waiting && position && (mine() || position.done)")


def test_a_person_plays_a_whole_game_of_tictactoe_by_clicks(
    runs: Mapping[Any, Path], page: Browser, tmp_path: Path
) -> None:
    with served(runs, TicTacToe) as server:
        page.open(server.url)
        settled(page)
        assert page.text("#status") == "Your move"
        assert page.text("h1") == "TicTacToe"
        clicks = 0
        while not page.evaluate("position.done"):
            free = page.evaluate("position.actions[0].action")
            shown = [int(word) for word in re.findall(r"(\d+) %", page.text("#board"))]
            # Rounded shares of the free cells.
            assert 95 <= sum(shown) <= 105
            page.click(cell(free))
            clicks += 1
            settled(page)
            assert page.evaluate(f"position.cells[{free}]") == 1
        outcome = page.text("#status")
        assert outcome in ("You win", "You lose", "Draw")
        assert clicks >= 3
        rewards = {"You win": "+1", "You lose": "-1", "Draw": "0"}[outcome]
        assert page.text("#returns tr").split("\t") == ["player1 (you)", rewards]
        counts = [int(outcome == one) for one in ("You win", "Draw", "You lose")]
        assert page.text("#score") == "You won {}, drew {}, lost {}.".format(*counts)
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 5000
        page.click("#new")
        page.wait_for("!position.done && !position.cells.some(Boolean)")


def test_the_policy_begins_when_the_person_plays_the_second_player(
    runs: Mapping[Any, Path], page: Browser
) -> None:
    with served(runs, TicTacToe, human="player2") as server:
        page.open(server.url)
        settled(page)
        assert page.evaluate("position.cells.filter(Boolean)") == [1]
        page.evaluate("document.querySelector('#seat').value = 'player1'; $('seat').onchange()")
        page.wait_for("mine() && position.cells.every((owner) => owner === 0)")
        assert page.text("#returns tr.turn td") == "player1 (you)"


def test_other_environments_show_their_picture_and_a_button_per_action(
    runs: Mapping[Any, Path], page: Browser
) -> None:
    with served(runs, Corridor, render_mode="rgb_array") as server:
        page.open(server.url)
        settled(page)
        page.wait_for("$('picture').naturalWidth === 60 && $('picture').naturalHeight === 8")
        before = page.evaluate("$('picture').src")
        page.click(".action:nth-child(2)")
        page.wait_for("position.steps === 1")
        assert page.evaluate("$('picture').src") != before
        page.send("Input.dispatchKeyEvent", type="keyDown", key="2", text="2")
        page.wait_for("position.steps === 2")
        page.click(".action:nth-child(2)")
        page.wait_for("position.done")
        assert page.text("#status") == "Return 3.00"


def test_the_page_asks_before_it_shows_what_other_players_hide(
    runs: Mapping[Any, Path], page: Browser
) -> None:
    with served(runs, Hands, render_mode="ansi") as server:
        page.open(server.url)
        settled(page)
        assert "no render_for" in page.text("#ask")
        assert page.evaluate("$('text').hidden")
        page.click("#reveal")
        page.wait_for("!waiting && $('ask').hidden")
        assert page.text("#text") == f"a has acorn, b has {SECRET}"
    with served(runs, OwnHands, human="b", render_mode="ansi") as server:
        page.open(server.url)
        settled(page)
        assert page.evaluate("$('ask').hidden")
        page.wait_for("$('picture').naturalWidth === 10 && $('picture').naturalHeight === 6")


def test_nothing_of_another_hand_reaches_the_page_before_the_end(runs: Mapping[Any, Path]) -> None:
    for env in (Hands, OwnHands):
        with served(runs, env, human="a", render_mode="ansi") as server:
            told = [posted(server, {"do": "new", "seat": "a"})]
            while not told[-1]["position"]["done"]:
                at = told[-1]["position"]
                does = {"do": "move", "action": 1} if at["agent"] == "a" else {"do": "advance"}
                told.append(posted(server, {**does, "turn": at["turn"]}))
        assert len(told) == 5
        assert SECRET not in json.dumps(told[:-1])
        assert [len(one["position"]["actions"]) for one in told] == [2, 0, 2, 0, 0]
        assert SECRET in told[-1]["position"]["text"]


def test_names_and_texts_of_environments_are_never_html(runs: Mapping[Any, Path], page: Browser) -> None:
    with served(runs, Corridor, render_mode="ansi") as server:
        page.open(server.url)
        settled(page)
        assert page.text("#text") == EVIL
        assert EVIL in page.text(".action:nth-child(2)")
        assert page.evaluate("document.images.length") == 1
        assert "broken" not in page.evaluate("document.title")


def test_a_crash_of_the_environment_ends_the_game_and_the_next_one_can_begin(
    runs: Mapping[Any, Path], page: Browser
) -> None:
    with served(runs, Corridor) as server:
        page.open(server.url)
        settled(page)
        for _ in range(3):
            page.click(".action:nth-child(1)")
            page.wait_for("!waiting")
        page.wait_for("$('error').textContent.includes('fell off the left end')")
        page.click("#new")
        page.wait_for("position.steps === 0 && mine() && !$('error').textContent")


def posted(server: PlayServer, message: Any, **headers: str) -> dict[str, Any]:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url, body, headers)) as answer:
        return dict(json.loads(answer.read()))


def test_wrong_messages_are_refused_and_change_nothing(runs: Mapping[Any, Path]) -> None:
    with served(runs, TicTacToe) as server:
        assert posted(server, {"do": "about"})["game"]["board"] == {"rows": 3, "columns": 3, "by": "cell"}
        assert posted(server, {"do": "move", "turn": 0, "action": 0})["error"].startswith("move: ")
        turn = posted(server, {"do": "new", "seat": "player1"})["position"]["turn"]
        for message, named in {
            b"no json": "message", b"[" * 4000: "message", b"[]": "message", b"\xff\x00": "message",
            b'{"do": "dance"}': "message", b'{"do": "new", "seat": "player9"}': "new: seat",
            b'{"do": "new", "seat": {}}': "new: seat", b'{"do": "move", "turn": 999, "action": 0}': "move",
        }.items():  # fmt: skip
            answer = posted(server, message)
            assert answer["error"].startswith(named)
            assert answer["position"]["cells"] == [0] * 9
        for action in (9, True, 1.0, "x" * 3000):
            answer = posted(server, {"do": "move", "turn": turn, "action": action})
            assert (len(answer["error"]) < 300, answer["position"]["cells"]) == (True, [0] * 9)
        moved = posted(server, {"do": "move", "turn": turn, "action": 4})["position"]
        assert moved["agent"] == "player2"
        refused = posted(server, {"do": "move", "turn": moved["turn"], "action": 0})
        assert "'player2'" in refused["error"]
        assert refused["position"] == moved


def test_long_messages_other_pages_and_rebound_names_are_refused(runs: Mapping[Any, Path]) -> None:
    with served(runs, TicTacToe) as server:
        assert server.url.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="413"):
            posted(server, {"do": "x" * 5000})
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            for body in (None, b'{"do": "about"}'):
                with pytest.raises(urllib.error.HTTPError, match="403") as caught:
                    urllib.request.urlopen(urllib.request.Request(server.url, body, headers))
                caught.value.close()
        assert "game" in posted(server, {"do": "about"}, Origin=server.url.rstrip("/"))


def test_a_second_page_takes_the_game_over(runs: Mapping[Any, Path]) -> None:
    with served(runs, TicTacToe) as server:
        turn = posted(server, {"do": "new", "seat": "player1"})["position"]["turn"]
        posted(server, {"do": "new", "seat": "player1"})
        late = posted(server, {"do": "move", "turn": turn, "action": 0})
        assert late["error"].startswith("move: ")
        assert late["position"]["cells"] == [0] * 9


def test_a_port_that_is_taken_and_actions_that_are_not_discrete_are_refused(
    runs: Mapping[Any, Path], tmp_path: Path
) -> None:
    with (
        served(runs, TicTacToe) as server,
        Game(runs[TicTacToe], env=TicTacToe) as game,
        pytest.raises(ConfigError, match=f"port {server.server_port}"),
    ):
        PlayServer(game, title="x", port=server.server_port)
    with PPO(config=SMALL, env="Pendulum-v1") as algo:
        algo.save(tmp_path / "pendulum")
    with Game(tmp_path / "pendulum") as game, pytest.raises(ConfigError, match="Discrete"):
        PlayServer(game, title="x")


@pytest.mark.slow
def test_the_command_serves_the_page_until_ctrl_c(runs: Mapping[Any, Path]) -> None:
    game = [str(runs[TicTacToe]), "--env", "menv.envs:TicTacToe"]
    command = [sys.executable, "-m", "menv.cli", "play", *game, "--browser", "--port"]
    with subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(
            r"menv play: open (http://127\.0\.0\.1:(\d+)/) in a browser; Ctrl-C ends\n", line
        )
        assert found, line
        with urllib.request.urlopen(found[1]) as page:
            assert b"<title>menv play</title>" in page.read()
        taken = subprocess.run([*command, found[2]], capture_output=True, text=True)
        assert taken.returncode == 2
        assert f"--port {found[2]}: " in taken.stderr
        assert taken.stderr.count("\n") == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_the_example_serves_a_run_that_was_trained_before(runs: Mapping[Any, Path]) -> None:
    with PPO(config=SMALL, env="tictactoe") as algo:
        run = algo.save(runs[TicTacToe].parent / "by_name")
    command = [sys.executable, str(ROOT / "examples/person_against_policy.py"), "--run", str(run), "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with urllib.request.urlopen(process.stdout.readline().split()[1]) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
