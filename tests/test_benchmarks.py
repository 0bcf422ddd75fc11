"""The benchmarks run, and their report says everything that a reader needs. No times are judged here."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import pyspiel
import pytest
import torch
import vmas
from open_spiel.python.algorithms.expected_game_score import policy_value

from benchmarks import processes, self_play
from benchmarks.against import Side, compare, measure, report
from benchmarks.learning import envs
from benchmarks.peers.page import PAGE, RESULTS, render
from benchmarks.report import as_json, line
from benchmarks.rows import Effort, Finding, Row, alternate, median_seconds
from benchmarks.workloads import ROWS
from menv.env_context import EnvContext
from tests.warm_python import run_warm


def a_row(at_most: bool = False, reach: float | None = 0.5) -> Row:
    return Row(
        name="a", text="a workload", unit="x bare", reach=reach, aim=1.0, measure=lambda effort: Finding(value=0.0),
        at_most=at_most,
    )  # fmt: skip


def benchmarks(*arguments: str) -> dict[str, Any]:
    """Run the command and return its JSON."""
    done = run_warm(["-m", "benchmarks", "--quick", "--json", *arguments])
    assert done.returncode == 0, done.stderr
    (printed,) = done.stdout.splitlines()
    report: dict[str, Any] = json.loads(printed)
    return report


def test_a_quick_run_of_two_rows_reports_floor_rate_and_ratio_of_each() -> None:
    report = benchmarks("--only", "null", "cartpole", "--repeats", "2")
    assert [row["name"] for row in report["rows"]] == ["cartpole", "null"]
    cartpole, null = report["rows"]
    assert len(cartpole["floors"]) == len(cartpole["rates"]) == 2
    assert cartpole["value"] == pytest.approx(cartpole["ours"] / cartpole["floor"])
    assert (cartpole["peer"], cartpole["reach"], cartpole["aim"]) == (0.40, 0.70, 0.85)
    assert null["value"] == pytest.approx(1e6 / null["ours"])
    assert report["torch_threads"] == 1
    assert report["cpus"] >= 1
    assert {"python", "numpy", "torch", "onnxruntime"} <= report.keys()


@pytest.mark.slow
def test_a_quick_run_starts_real_processes() -> None:
    (row,) = benchmarks("--only", "first_result")["rows"]
    assert 0 < row["value"] < 60
    assert len(row["rates"]) == 1


TRANSPORTS = ["tcp", "http"]


@lru_cache(maxsize=1)
def transports() -> list[dict[str, Any]]:
    """Return the rows of all transports, measured once."""
    names = [f"{kind}_{row}" for kind in TRANSPORTS for row in ("round_trip", "64_clients")]
    rows: list[dict[str, Any]] = benchmarks("--only", *names, "--repeats", "1")["rows"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_quick_run_compares_a_transport_with_the_bare_echo_of_its_kind(kind: str) -> None:
    rows = [row for row in transports() if row["name"].startswith(kind)]
    assert [row["name"] for row in rows] == [f"{kind}_round_trip", f"{kind}_64_clients"]
    for row in rows:
        assert len(row["floors"]) == len(row["rates"]) == 1
        assert row["floor"] > 0
        assert row["ours"] > 0


def test_every_row_has_a_name_of_its_own_and_an_aim_no_worse_than_its_reach() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.reach is None or row.met(row.aim, row.reach), row.name
        assert row.peer is None or row.reach is None or row.met(row.reach, row.peer), row.name


def test_floor_and_rate_are_measured_in_alternation() -> None:
    calls: list[str] = []

    def note(name: str, rate: float) -> float:
        calls.append(name)
        return rate

    finding = alternate(lambda: note("floor", 4.0), lambda: note("ours", 3.0), repeats=3)
    assert calls == ["floor", "ours"] * 3
    assert finding.value == 0.75


def test_a_run_that_missed_its_goal_counts_as_infinitely_long() -> None:
    assert median_seconds([1.0, math.inf, 2.0]).value == 2.0
    lost = median_seconds([1.0, math.inf, math.inf])
    assert lost.note == "2 of 3 runs missed the goal"
    assert "missed" in line(a_row(at_most=True), lost)
    assert as_json(a_row(at_most=True), lost)["value"] is None


@pytest.mark.parametrize(
    ("value", "at_most", "reached"),
    [(0.4, False, "NO"), (0.6, False, "yes"), (1.2, False, "aim"), (2.0, True, "NO")],
)
def test_a_line_tells_whether_the_row_was_reached(value: float, at_most: bool, reached: str) -> None:
    assert f"x bare, {reached}" in line(a_row(at_most), Finding(value=value))


def test_a_row_without_a_bar_to_reach_is_judged_by_its_aim() -> None:
    assert "x bare, -" in line(a_row(reach=None), Finding(value=0.4))
    assert "x bare, aim" in line(a_row(reach=None), Finding(value=1.0))


def test_a_process_that_fails_is_reported_with_its_command() -> None:
    with pytest.raises(RuntimeError, match="exit status 3, expected 0"):
        processes.run("-c", "import sys; sys.exit(3)")
    assert processes.run("-c", "print('{}')").result == {}
    assert list(Effort(quick=True).seeds(3)) == [0]


class TimedSide(Side):
    """A checkout whose calls take the same time each."""

    def __init__(self, seconds: float, asked: list[float]) -> None:
        self.seconds, self.asked = seconds, asked

    def ask(self, name: str, calls: int) -> dict[str, float]:
        self.asked.append(self.seconds)
        return {"cpu": self.seconds * calls, "wall": 2 * self.seconds * calls}


def test_two_checkouts_are_measured_in_alternation_and_the_old_one_comes_first_in_each_pair() -> None:
    asked: list[float] = []
    pairs = measure([TimedSide(0.02, asked), TimedSide(0.03, asked)], "a", pairs=3)
    assert asked[-6:] == [0.02, 0.03, 0.03, 0.02, 0.02, 0.03]
    for old, new in pairs:
        assert old["cpu"] == pytest.approx(0.16)
        assert new["cpu"] == pytest.approx(0.24)
    assert report("a", pairs).endswith(
        "cpu 0.667 (0.667 to 0.667)  wall 0.667 (0.667 to 0.667)  (3 pairs)  SLOWER"
    )


def test_a_line_that_takes_a_thirtieth_longer_is_not_called_slower() -> None:
    pairs = measure([TimedSide(0.030, []), TimedSide(0.0309, [])], "a", pairs=2)
    assert report("a", pairs).endswith("(2 pairs)")


def test_a_comparison_without_lines_names_those_that_there_are() -> None:
    with pytest.raises(
        SystemExit, match=r"no line begins with sampled, expected some of sampling_cartpole_1,"
    ):
        compare("HEAD", ["sampled"])


@pytest.mark.slow
def test_the_working_tree_is_compared_with_a_commit(capsys: pytest.CaptureFixture[str]) -> None:
    slower = compare("HEAD", ["sampling_dicts"], pairs=2)
    first, *again = capsys.readouterr().out.splitlines()
    assert first.startswith("sampling_dicts")
    assert "(2 pairs)" in first
    assert first.endswith("SLOWER") == bool(again)
    assert slower in ([], ["sampling_dicts"])


def test_the_page_of_other_libraries_shows_the_run_that_is_committed() -> None:
    assert PAGE.read_text() == render(json.loads(RESULTS.read_text()))


class Fixed:
    """Plays poker by constant, random probabilities."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def action_probabilities(self, obs: Any) -> Any:
        drawn = np.random.default_rng([self._seed, crc32(obs["observation"].tobytes())]).random(2) ** 3
        return drawn / drawn.sum()


def test_the_mean_of_policies_of_a_game_weights_a_state_by_how_often_each_policy_reaches_it() -> None:
    game = pyspiel.load_game("kuhn_poker")
    mean = self_play.Mean(game)
    # The first never passes, so it never answers a bet after a pass; the second always passes, and then calls.
    first, second = mean.table_of(Fixed(0)), mean.table_of(Fixed(1))
    for card in "012":
        first.policy_for_key(card)[:] = 0.0, 1.0
        first.policy_for_key(f"{card}pb")[:] = 1.0, 0.0
        second.policy_for_key(card)[:] = 1.0, 0.0
        second.policy_for_key(f"{card}pb")[:] = 0.0, 1.0
    mean.add_table(first)
    mean.add_table(second)
    played = mean.policy()
    assert played.policy_for_key("1").tolist() == [0.5, 0.5]
    assert played.policy_for_key("1pb").tolist() == [0.0, 1.0]


@pytest.mark.parametrize("seat", [0, 1])
def test_the_mean_of_policies_wins_what_they_win_on_average(seat: int) -> None:
    game = pyspiel.load_game("kuhn_poker")
    mean = self_play.Mean(game)
    opponent = mean.table_of(Fixed(9))

    def value(table: Any) -> float:
        players = [table, opponent] if seat == 0 else [opponent, table]
        return float(policy_value(game.new_initial_state(), players)[seat])

    tables = [mean.table_of(Fixed(seed)) for seed in range(3)]
    for weight, table in enumerate(tables, 1):
        mean.add_table(table, weight)
    expected = sum(weight * value(table) for weight, table in enumerate(tables, 1)) / 6
    assert value(mean.policy()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_the_mean_of_the_snapshots_of_self_play_approaches_a_nash_equilibrium_of_kuhn_poker() -> None:
    curve = (line["nash_conv_mean"] for line in self_play.poker("kuhn_poker", 120.0, 0))
    assert any(nash_conv < 0.1 for nash_conv in curve)


@pytest.mark.slow
def test_menv_solves_cartpole_under_the_rule_of_all_libraries() -> None:
    done = run_warm(["-m", "benchmarks.peers.scripts.menv", "cartpole_1", "time_to_450", "--seconds", "0.01"])
    assert done.returncode == 0, done.stderr
    versions, sampled, learned = map(json.loads, done.stdout.splitlines())
    assert versions["versions"].keys() >= {"torch", "gymnasium"}
    assert sampled["env_steps"] > 0
    assert learned["solved"]


def test_a_world_of_a_team_that_is_reset_shows_its_own_first_observation() -> None:
    env = envs.balance_team(EnvContext({}))
    env.vector_reset(seeds=[0] * env.num_envs)
    env.action_space.seed(0)
    ended: list[int] = []
    while not ended:
        obs, _, terminateds, _, _ = env.vector_step([env.action_space.sample() for _ in range(env.num_envs)])
        assert all(env.observation_space.contains(row) for row in obs)
        ended = [world for world, end in enumerate(terminateds) if end and world]
    first, _ = env.reset_at(ended[0])
    (shown,) = env.env.get_from_scenario(
        get_observations=True, get_rewards=False, get_infos=False, get_dones=False
    )
    for member, column in zip(first, shown, strict=True):
        np.testing.assert_array_equal(member, column[ended[0]].numpy())
        assert not np.array_equal(member, column[0].numpy())


def test_a_team_of_worlds_earns_what_its_agents_earn_together() -> None:
    env, bare = envs.navigation_team(EnvContext({})), vmas.make_env("navigation", **envs.WORLDS)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(env.num_envs)]
    env.vector_reset(seeds=[3] * env.num_envs)
    obs, earned, *_ = env.vector_step(actions)
    bare.reset(seed=3)
    columns, rewards, *_ = bare.step([torch.tensor(moves)[:, None] for moves in zip(*actions, strict=True)])
    np.testing.assert_allclose(earned, sum(rewards).numpy(), rtol=1e-5)
    np.testing.assert_array_equal(obs[7][2], columns[2][7].numpy())


def test_a_team_of_unlike_agents_has_padded_observations_and_masks() -> None:
    env = envs.simple_speaker_listener_team(EnvContext({}))
    obs, _ = env.reset(seed=0)
    speaker, listener = obs["team"]
    # The speaker sees three numbers and has three words, the listener sees eleven and moves in five ways.
    assert speaker["observation"].shape == listener["observation"].shape == (11,)
    assert not speaker["observation"][3:].any()
    assert listener["observation"][3:].any()
    assert speaker["action_mask"].tolist() == [True, True, True, False, False]
    assert listener["action_mask"].tolist() == [True] * 5
    assert env.get_observation_space("team").contains(obs["team"])
    assert env.step({"team": (2, 4)})[1]["team"] < 0
