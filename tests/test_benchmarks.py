"""The benchmarks run, and their report says everything that a reader needs. No times are judged here."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import pyspiel
import pytest

from benchmarks import self_play
from benchmarks.against import compare
from benchmarks.learning import envs
from benchmarks.peers.page import PAGE, RESULTS, render
from benchmarks.workloads import ROWS
from menv.env_context import EnvContext
from tests.warm_python import run_warm


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


def test_agents_with_different_spaces_have_padded_observations_and_masks() -> None:
    env = envs.simple_speaker_listener(EnvContext({}))
    obs, _ = env.reset(seed=0)
    speaker, listener = obs.values()
    # The speaker sees three numbers and has three words, the listener sees eleven and moves in five ways.
    assert speaker["observation"].shape == listener["observation"].shape == (11,)
    assert not speaker["observation"][3:].any()
    assert listener["observation"][3:].any()
    assert speaker["action_mask"].tolist() == [True, True, True, False, False]
    assert listener["action_mask"].tolist() == [True] * 5
    assert env.observation_space_contains(obs)
    assert sum(env.step(dict(zip(obs, (2, 4), strict=True)))[1].values()) < 0
