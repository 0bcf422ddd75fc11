"""Matches of runs and snapshots: who meets whom, the points and ratings, and levels of strength."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium as gym
import numpy as np
import pytest

from menv import register_env
from menv.algorithms import PPO
from menv.cli.main import main
from menv.errors import ConfigError
from menv.playing import Game
from menv.playing.match import play_match, ratings_between
from menv.policy import Policy
from tests.worlds import Several

SMALL: dict[str, Any] = {
    "train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "seed": 1, "model": {"fcnet_hiddens": [4]},
    "lr": 0.0, "self_play": {"snapshot_interval": 1, "win_if": "highest_return"},
}  # fmt: skip


class Higher(Several):
    """The higher of two numbers wins; "a" has a start of 0.5, which decides between equals."""

    action_space, length = gym.spaces.Discrete(3), 1

    def pay(self, actions: Any) -> Any:
        return {"a": actions["a"] + 0.5, "b": float(actions["b"])}


class Pairs(Higher):
    """The same for two pairs, whose members share what they win."""

    possible_agents: Any = ("a0", "a1", "b0", "b1")

    def pay(self, actions: Any) -> Any:
        return {agent: float(actions[agent]) for agent in actions}


def bold(algo: PPO, action: int) -> None:
    """Let the policy always choose an action: its weights are zero but for one bias."""
    weights = {name: np.zeros_like(value) for name, value in algo.get_weights()["default_policy"].items()}
    last = next(name for name, value in weights.items() if value.shape == (3,))
    weights[last][action] = 50.0
    algo.set_weights({"default_policy": weights})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that always choose 0, 1 and 2, and one whose snapshots 1 to 3 do so."""
    register_env("higher", Higher)
    folder = tmp_path_factory.mktemp("runs")
    for action in range(3):
        with PPO(config=SMALL, env="higher") as algo:
            bold(algo, action)
            algo.save(folder / f"always{action}")
    with PPO(config=SMALL, env="higher") as algo:
        for action in range(3):
            bold(algo, action)
            algo.train()
        algo.save(folder / "grown")
    for action in (0, 2):
        with PPO(config={**SMALL, "self_play": {"sides": {"a": ["a*"], "b": ["b*"]}}}, env=Pairs) as algo:
            bold(algo, action)
            algo.save(folder / f"pairs{action}")
    return folder


def played(stack: ExitStack, runs: Path, *names: str, **more: Any) -> dict[str, Game]:
    return {
        name: stack.enter_context(Game(runs / name, seed=at, greedy=False, **more))
        for at, name in enumerate(names)
    }


def test_players_change_seats_and_a_win_is_a_point(runs: Path) -> None:
    with ExitStack() as stack:
        match = play_match(played(stack, runs, "always0", "always2", "always1"), 10)
        equal = play_match(played(stack, runs, "always1", "grown"), 3)
    assert match.players == ["always2", "always1", "always0"]
    assert match.outcomes[0].tolist() == [[0, 0, 0], [10, 0, 0], [10, 0, 0]]
    assert match.outcomes[2].tolist() == [[0, 0, 10], [0, 0, 10], [0, 0, 0]]
    assert match.points[1, [0, 2]].tolist() == [0.0, 1.0]
    # "a" wins between equals, and the first player has that seat in two games of three.
    assert equal.outcomes[equal.players.index("grown"), equal.players.index("always1")].sum() == 3


@pytest.mark.parametrize("mine", [1000.0, 3000.0])
def test_ratings_are_those_whose_odds_the_games_have(mine: float) -> None:
    # Odds of 3 to 1 are 400 log10(3) = 191 points, of 9 to 1 twice as many.
    outcomes = np.zeros((3, 3, 3))
    for one, other, share in ((0, 1, 0.75), (1, 2, 0.75), (0, 2, 0.9)):
        outcomes[one, other] = outcomes[other, one, ::-1] = mine * share, 0.0, mine * (1.0 - share)
    assert ratings_between(outcomes) == pytest.approx([1391, 1200, 1009], abs=1)
    draws = np.zeros((2, 2, 3))
    draws[0, 1, 1] = draws[1, 0, 1] = mine
    assert ratings_between(draws) == pytest.approx([1200, 1200])


def test_the_members_of_a_side_have_one_player(runs: Path) -> None:
    """Each member of a pair wins what it chose: 0 + 0 against 2 + 2, or 2 against 2 if they were mixed."""
    with ExitStack() as stack:
        match = play_match(played(stack, runs, "pairs0", "pairs2", env=Pairs), 4)
    assert match.players == ["pairs2", "pairs0"]
    assert match.outcomes[0, 1].tolist() == [4, 0, 0]


def test_runs_that_cannot_meet_are_refused(runs: Path) -> None:
    with ExitStack() as stack:
        (alone,) = played(stack, runs, "always0").values()
        with pytest.raises(ConfigError, match="match: 1 "):
            play_match({"always0": alone}, 1)
        other = stack.enter_context(Game(runs / "pairs0", env=Pairs))
        with pytest.raises(ConfigError, match="pairs0"):
            play_match({"always0": alone, "pairs0": other}, 1)


def action_of(run: Path, snapshot: str | None) -> int:
    policies = Policy.from_checkpoint(run, snapshot=snapshot)
    assert isinstance(policies, dict)
    return int(policies["default_policy"].act(np.zeros(1, np.float32)))


def test_a_snapshot_plays_by_its_name(runs: Path) -> None:
    grown = runs / "grown"
    assert [action_of(grown, f"snapshot_{number}") for number in (1, 2, 3)] == [0, 1, 2]
    assert action_of(grown, None) == action_of(grown, "hard") == 2
    with Game(grown, human="a", policies={"*": "snapshot_2"}) as game:
        position = game.start()
        # The person's advice is the run's.
        assert position.probabilities == pytest.approx({0: 0.0, 1: 0.0, 2: 1.0})
        game.step(0)
        assert game.advance().returns == {"a": 0.5, "b": 1.0}
    with Game(grown, policies={"b": "snapshot_1"}) as game:
        game.start()
        assert game.advance().returns == {"a": 2.5, "b": 0.0}
    with pytest.raises(ConfigError, match=r"'snapshot_9': .* 'snapshot_0'"):
        Game(grown, policies={"*": "snapshot_9"})


def test_the_table_of_a_match_is_sorted_by_rating_and_its_heat_map_is_drawn(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    picture = tmp_path / "match.svg"
    players = ["grown:snapshot_1", "grown", "always1"]
    assert main(["match", *players, "--games", "4", "-o", str(picture)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in said[1:4]] == ["grown", "always1", "grown:snapshot_1"]
    assert re.fullmatch(r"1 +grown +1,\d{3} +100% +100% +100%", said[1])
    assert re.fullmatch(r"2 +always1 +1,200 +50% +0% +100%", said[2])
    assert said[4] == f"wrote {picture}"
    texts = {one.text for one in ElementTree.parse(picture).getroot().iter()}
    assert {*players, "100%", "0%"} <= texts


def test_commands_take_snapshots_and_levels(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    for option, returns in (
        (["--policy", "snapshot_1"], "a 0.50, b 0.00"),
        (["--policy", "b=snapshot_2"], "a 2.50, b 1.00"),
        (["--level", "hard"], "a 2.50, b 2.00"),
    ):
        assert main(["watch", "grown", *option]) == 0
        assert f"episode 1: returns: {returns}, 1 env steps" in capsys.readouterr().out
    assert main(["export", "grown", "--policy", "snapshot_1", "-o", str(tmp_path / "one")]) == 0
    assert main(["export", "grown", "--level", "hard", "-o", str(tmp_path / "all")]) == 0
    exported = [Policy.from_checkpoint(tmp_path / name) for name in ("one", "all/default_policy")]
    assert [int(one.act(np.zeros(1, np.float32))) for one in exported] == [0, 2]  # type: ignore[union-attr]
    assert main(["show", "grown"]) == 0
    levels = "easy, hard, medium"
    assert (
        f"  snapshots     {levels}, snapshot_0, snapshot_1, snapshot_2, snapshot_3\n"
        in capsys.readouterr().out
    )

    PPO(config=SMALL | {"self_play": False}, env="higher").save("plain")
    for command in ("watch", "export"):
        assert main([command, "plain", "--level", "easy"]) == 2
        assert "'easy'" in capsys.readouterr().err
