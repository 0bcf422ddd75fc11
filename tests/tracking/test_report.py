"""Reports of runs: their numbers by hand, their size, and the page in a browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv.cli.main import main
from menv.tracking import JSONL, Run, RunFolder
from menv.tracking.report import last_values, report_data, summary, write_report
from tests.browser import Browser
from tests.house.sources import ROOT


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all pages."""
    with Browser(width=1280, height=900) as one:
        yield one


def shown(browser: Browser, path: Path) -> str:
    """Return the HTML of a report after its script has run."""
    browser.open(path.as_uri())
    assert browser.logged == []
    return str(browser.evaluate("document.documentElement.outerHTML"))


def result(iteration: int, returns: Mapping[str, float], seed: int = 0) -> dict[str, Any]:
    """Return a result of an iteration, as `train()` does."""
    noise = np.random.default_rng((seed, iteration)).normal(size=8).tolist()
    stats = {"policy_loss": noise[0], "vf_loss": noise[1], "entropy": noise[2], "kl": noise[3], "cur_lr": 0.1}
    return {
        "episode_reward_mean": sum(returns.values()),
        "episode_len_mean": 7 + noise[4],
        "episodes_total": 10 * iteration,
        "policy_reward_mean": dict(returns),
        "info": {"learner": {name: {"learner_stats": stats} for name in returns}},
        "training_iteration": iteration,
        "num_env_steps_sampled": 100 * iteration,
        "time_total_s": float(iteration),
        "digest": f"digest-of-{seed}",
    }


def run_folder(
    path: Path,
    results: list[dict[str, Any]],
    *,
    seed: int = 0,
    env: str = "tictactoe",
    command: str = "menv train tictactoe",
    **settings: Any,
) -> Path:
    """Write the folder of a run that had these results."""
    config = {"algorithm": "PPO", "env": env, "config": {"seed": seed, "gamma": 0.9, **settings}}
    folder = RunFolder(path, config, command=command)
    for one in results:
        folder.result(one)
    folder.saved(folder.checkpoints)
    folder.close()
    return path


def seeds(root: Path, returns: Mapping[int, list[float]], **settings: Any) -> list[Path]:
    """Write one run for each seed; `returns` are those of policy `p`."""
    return [
        run_folder(
            root / f"seed-{seed}",
            [result(number, {"p": value}, seed) for number, value in enumerate(values, 1)],
            seed=seed,
            **settings,
        )
        for seed, values in returns.items()
    ]


def test_curves_of_seeds_are_summarized_at_common_steps() -> None:
    first = np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0])
    second = np.array([5.0, 15.0]), np.array([1.0, 1.0])
    found = summary([first, second])
    assert found["x"].tolist() == [5, 10, 15]
    assert found["mean"].tolist() == [3, 5.5, 8]
    # A quarter of the resamples has the first seed twice, a quarter the second.
    assert (found["low"].tolist(), found["high"].tolist()) == ([1, 1, 1], [5, 10, 15])
    quartiles = summary([first, second], "iqr")
    assert (quartiles["low"].tolist(), quartiles["high"].tolist()) == ([2, 3.25, 4.5], [4, 7.75, 11.5])


def test_the_last_tenth_of_each_seed_counts() -> None:
    steps = np.arange(1.0, 101.0)
    curves = [(steps, np.where(steps >= 90, level, -1000.0)) for level in (1.0, 2.0, 3.0, 10.0)]
    # Of the 256 ways to draw four seeds, 5 have a sum below 6 and 5 one above 32.
    assert last_values(curves) == {"mean": 4, "low": 1.5, "high": 8}


def test_seeds_are_one_line_with_a_band_and_settings_are_compared(tmp_path: Path) -> None:
    slow = seeds(tmp_path / "slow", {1: [0, 2, 4], 2: [2, 4, 6]}, lr=0.1)
    fast = seeds(tmp_path / "fast", {1: [9, 9, 9]}, lr=0.5)
    data = report_data([Run(path) for path in (*slow, *fast)])
    by_policy, *_ = data["sections"][0]["charts"]
    first, second = by_policy["lines"]
    assert (first["name"], second["name"]) == ("lr=0.1 · p", "lr=0.5 · p")
    assert (first["x"], first["mean"]) == ([100, 200, 300], [1, 3, 5])
    assert (first["low"], first["high"]) == ([0, 2, 4], [2, 4, 6])
    assert second["mean"] == [9, 9, 9]
    rows = {key: (differs, values) for key, differs, values in data["settings"]["rows"]}
    assert rows["lr"] == (True, ["0.1", "0.1", "0.5"])
    assert rows["seed"] == (True, ["1", "2", "1"])
    assert rows["gamma"] == (False, ["0.9", "0.9", "0.9"])


def test_the_report_of_a_league_has_its_payoff_matrix_and_who_played_last(
    tmp_path: Path, browser: Browser
) -> None:
    names = ["random", *(f"snapshot_{number}" for number in range(40))]
    matrix = [["main", name, [50.0, 25.0, 25.0]] for name in names]
    ratings = {"rating": {"main": 1300.0, "random": 1200.0, "latest": 1290.0}}
    first = result(1, {"main": 0.0, "latest": -1.0})
    last = result(2, {"main": 1.0, "random": -2.0}) | {"payoff_matrix": matrix, "league": ratings}
    path = run_folder(tmp_path / "run", [first, last])
    found = report_data([Run(path)])
    assert {line["name"] for line in found["last"]} == {"main", "random"}
    (table,) = found["matchups"]
    assert (table["players"], table["against"], table["points"]) == (["main"], names, [[0.625] * 41])
    (chart,) = [one for one in found["sections"][0]["charts"] if one["title"] == "Rating"]
    assert [line["name"] for line in chart["lines"]] == ["main", "random", "latest"]
    page = shown(browser, write_report([path], tmp_path / "report.html"))
    assert 'title="main against snapshot_39: 63 %"' in page
    # What was not written completely is left out.
    (path / "payoff.csv").write_text("learner,opponent,win,draw\nmain,random,1.0,what\n")
    assert report_data([Run(path)])["matchups"] == []


def test_five_seeds_of_1000_iterations_open_quickly_and_are_small(tmp_path: Path, browser: Browser) -> None:
    one = seeds(tmp_path, {0: np.random.default_rng(0).normal(size=1000).tolist()})[0]
    table, lines = (one / "progress.csv").read_text(), (one / "results.jsonl").read_text()
    paths = [run_folder(tmp_path / f"more-{seed}", [result(1, {"p": 0.0})], seed=seed) for seed in range(5)]
    for path in paths:
        (path / "progress.csv").write_text(table)
        (path / "results.jsonl").write_text(lines)
    output = write_report(paths, tmp_path / "report.html")
    assert output.stat().st_size < 1_000_000
    began = time.monotonic()
    page = shown(browser, output)
    # The aim is a second on a quiet machine.
    assert time.monotonic() - began < 10
    assert len(re.findall('<polyline class="curve"', page)) == 7


def test_the_page_shows_curves_commands_and_settings(
    tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = seeds(tmp_path, {3: [0, 1]}, command="menv train tictactoe --config seed=3")
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path / 'report.html'}\n"
    page = shown(browser, (path / "report.html"))
    for text in (
        "<title>tictactoe · menv</title>", "Return per episode, by policy", "Policy loss", "digest-of-3",
        "menv train tictactoe --config seed=3", "<code>0.9</code>",
    ):  # fmt: skip
        assert text in page, text
    assert browser.evaluate(
        "[...document.querySelectorAll('figure svg')].every(one => one.querySelector('.curve'))"
    )


@contextmanager
def serving(*runs: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `menv report --serve` on a free port; yields the process and the port."""
    command = [sys.executable, "-m", "menv.cli", "report", *map(str, runs), "--serve", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline().split(":")[3].split("/")[0])
        finally:
            process.kill()


def asked(port: int, host: str = "", path: str = "/", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    response = connection.getresponse()
    text = response.read().decode()
    assert "Access-Control-Allow-Origin" not in response.headers
    connection.close()
    return response.status, text


def test_a_served_report_is_made_again_at_each_request_until_ctrl_c(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", [result(1, {"p": 1.0})])
    with serving(path) as (process, port):
        assert '"mean":[1]' in asked(port)[1]
        JSONL(path / "results.jsonl").result(result(2, {"p": 3.0}))
        assert '"mean":[1,3]' in asked(port)[1]
        (path / "config.json").write_text("{")
        assert "config.json: " in asked(port)[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_pages_of_other_sites_cannot_read_a_served_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_folder(tmp_path / "run", [])
    with serving(path) as (_, port):
        assert asked(port, f"localhost:{port}")[0] == 200
        assert asked(port, "evil.example")[0] == 403
        assert asked(port, f"evil.example:{port}")[0] == 403
        assert asked(port, path="/config.json")[0] == 404
        assert asked(port, method="POST")[0] == 403
        assert f"--port {port}: " in refused(["report", str(path), "--serve", "--port", str(port)], capsys)


def test_names_that_hold_html_are_shown_as_text(tmp_path: Path, browser: Browser) -> None:
    evil = "</script><img src=x onerror=\"document.title='owned'\"><b id=evil>"
    path = run_folder(
        tmp_path / "<b id=evil>",
        [result(1, {evil: 1.0}), result(2, {evil: 2.0})],
        env=evil,
        command=evil,
        note=evil,
    )
    page = shown(browser, write_report([path]))
    assert "<title>owned" not in page
    assert not re.search(r"<(b|img)[^>]*(id|src)=[\"']?(evil|x)", page.split('id="data"')[0])
    assert "&lt;b id=evil&gt;" in page


def test_lines_can_be_hidden_and_values_are_read_with_the_mouse(tmp_path: Path, browser: Browser) -> None:
    runs = seeds(tmp_path, {1: [0, 2, 4], 2: [2, 4, 6]}) + seeds(tmp_path / "other", {1: [1, 1, 1]}, lr=0.5)
    shown(browser, write_report(runs, tmp_path / "report.html"))
    count = "document.querySelector('figure').querySelectorAll('.curve').length"
    assert browser.evaluate(count) == 2
    browser.click("figure .legend button")
    assert browser.evaluate(count) == 1
    browser.click("figure .legend button")
    place = browser.evaluate(
        "(() => { const at = document.querySelector('figure svg').getBoundingClientRect();"
        " return {x: at.right - 20, y: at.y + 50} })()"
    )
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
    assert "300 env steps" in browser.text(".tip")
    assert "5 (4 to 6)" in browser.text(".tip")


def test_a_run_without_an_iteration_has_a_page_too(tmp_path: Path, browser: Browser) -> None:
    path = run_folder(tmp_path / "new", [])
    assert "No iteration has ended yet." in shown(browser, write_report([path]))


def test_plot_draws_a_curve_of_each_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [*map(str, seeds(tmp_path, {1: [0, 2], 2: [2, 4]}))]
    picture = tmp_path / "curves.svg"
    assert main(["plot", *runs, "-o", str(picture)]) == 0
    assert capsys.readouterr().out == f"wrote {picture}\n"
    text = picture.read_text()
    assert (text.count("FillBetween"), text.count(">p</text>")) == (1, 1)
    assert main(["plot", runs[0], "-o", str(picture.with_suffix(".png")), "--key", "episode_len_mean"]) == 0
    assert picture.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    capsys.readouterr()
    assert " episode_len_mean" in refused(["plot", *runs, "-o", "a.png", "--key", "episode_len"], capsys)
    assert ".pdf" in refused(["plot", *runs, "-o", "a.jpg"], capsys)
    assert "labels" in refused(["plot", *runs, "-o", "a.png", "--label", "a", "--label", "b"], capsys)


def test_a_paper_s_figure_compares_algorithms_by_the_names_that_papers_use(tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "ppo": {"lr": 0.1},
        "mappo": {"lr": 0.2, "critic_obs": "all_agents"},
        "fast": {"lr": 0.5},
    }
    returns: dict[int, list[float]] = {1: [0, 2], 2: [2, 4]}
    runs = [path for name, own in kinds.items() for path in seeds(tmp_path / name, returns, **own)]
    picture = tmp_path / "paper.svg"
    assert main(["plot", *map(str, runs), "-o", str(picture), "--title", "A title", "--x", "time"]) == 0
    text = picture.read_text()
    for shown in ("PPO, lr=0.1", "MAPPO, lr=0.2", "PPO, lr=0.5", "A title", "minutes", "return per episode"):
        assert f">{shown}</text>" in text
    assert text.count("FillBetween") == 3
    labels = [word for name in ("first", "second", "third") for word in ("--label", name)]
    printed = tmp_path / "paper.pdf"
    assert main(["plot", *map(str, runs), "-o", str(printed), "--width", "3.3", *labels]) == 0
    assert printed.read_bytes()[:4] == b"%PDF"
    # 3.3 inches of 72 points each.
    assert b"237.6" in printed.read_bytes()


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the line that a command prints before it ends with exit status 2."""
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_wrong_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "a", [result(1, {"p": 0.0})])
    other = run_folder(tmp_path / "b", [result(1, {"p": 0.0})], env="CartPole-v1")
    assert "tictactoe (a), CartPole-v1 (b)" in refused(["report", str(run), str(other)], capsys)
    # What is no return can be compared.
    picture = ["-o", str(tmp_path / "both.png")]
    assert main(["plot", str(run), str(other), "--key", "episode_len_mean", *picture]) == 0
    assert capsys.readouterr().out.startswith("wrote ")
    assert "config.json" in refused(["report", str(tmp_path)], capsys)
    assert f" {tmp_path}/none" in refused(["report", str(tmp_path / "none")], capsys)
    for place in (tmp_path, "/dev/null"):
        assert f" {place} " in refused(["report", str(run), "-o", str(place)], capsys)
    assert f" {tmp_path}/no" in refused(["report", str(run), "-o", str(tmp_path / "no" / "r.html")], capsys)
    (run / "progress.csv").write_bytes(b"\xff\xfe\n1\n")
    (run / "results.jsonl").write_bytes(b"5\n{\n\xff\n" + (run / "results.jsonl").read_bytes())
    assert main(["report", str(run)]) == 0
    (run / "config.json").write_text(json.dumps({"kind": "menv run", "env": ["x"], "config": [1]}))
    (run / "results.jsonl").unlink()
    assert main(["report", str(run)]) == 0
