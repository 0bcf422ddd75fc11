"""The league of self-play: matches, results, ratings, snapshots that never change, and runs that resume."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks, Episode, PolicySpec, RandomPolicy
from menv.algorithms import PPO
from menv.algorithms.training.league import Member, ratings_of
from menv.errors import ConfigError
from menv.inference.checkpoint_folder import LEVELS
from menv.policy import Policy
from menv.tracking import Run
from tests.worlds import Several, like

SMALL: dict[str, Any] = {
    "num_envs_per_worker": 8, "train_batch_size": 256, "sgd_minibatch_size": 128, "num_sgd_iter": 1, "gamma": 1.0,
    "model": {"fcnet_hiddens": [16]}, "seed": 3,
}  # fmt: skip
LEAGUE: dict[str, Any] = {"snapshot_interval": 1, "members_in_memory": 2, "opponents_at_once": 2}


def league_of(algo: PPO) -> Any:
    return algo._league


def add_games(league: Any, *games: tuple[str, str, float, float], times: int = 1) -> None:
    """Add games: learner, opponent and their returns."""
    for game in games * times:
        league._add_game(*game)


def choose(league: Any, iterations: int, playing: set[str]) -> list[dict[str, Any]]:
    """Return who has which seat after each choice of opponents."""
    chosen = []
    for iteration in range(iterations):
        league._choose(iteration, playing)
        chosen.append(dict(league.slots))
    return chosen


def tictactoe(**self_play: Any) -> PPO:
    return PPO(env="tictactoe", config={**SMALL, "self_play": {**LEAGUE, **self_play}})


SIZES = {"wolf_0": 2, "wolf_1": 2, "sheep": 1}


class Duel(Several):
    """Two wolves, who see two numbers, against a sheep, who sees one; the side of `winner` wins after three steps."""

    possible_agents, length = tuple(SIZES), 3
    observation_spaces = {agent: gym.spaces.Box(-9, 9, (size,), np.float32) for agent, size in SIZES.items()}  # noqa: RUF012
    action_spaces = {agent: gym.spaces.Discrete(size + 1) for agent, size in SIZES.items()}  # noqa: RUF012

    def pay(self, actions: Any) -> Any:
        won = {"wolves": 1.0, "sheep": -1.0}.get(str(self.config.get("winner")), 0.0) * (self.at == 3)
        return {"wolf_0": won / 2, "wolf_1": won / 2, "sheep": -won}


# Two agents, five env steps; with `late`, "b" appears at the third one.
Late = like(
    Several,
    length=5,
    shown=lambda self: "a" if self.config["late"] and self.at < 2 else "ab",
    pay=lambda self, actions: {"a": 1.0},
)


def wolves(**changes: Any) -> PPO:
    mapping = [("wolf_*", "wolf"), ("*", "sheep")]
    multi = {"policies": ["wolf", "sheep"], "policy_mapping_fn": mapping}
    settings = {**SMALL, "env_config": {"winner": "wolves"}, "multiagent": multi, "self_play": LEAGUE}
    return PPO(env=Duel, config={**settings, **changes})


def test_matches_have_a_learning_side_and_opponents_by_their_shares() -> None:
    with tictactoe(matchmaking={"latest": 1, "random": 3}) as algo:
        matches = league_of(algo).policy_map.settings[0]
        seats = [
            [matches(a, e, None) for a in ("player1", "player2")]
            for e in map(Episode, range(4000), [0] * 4000)
        ]
        again = [matches(a, Episode(7, 5), None) for a in ("player1", "player2")]
    assert again == seats[7]
    assert all(pair.count("default_policy") == 1 for pair in seats)
    first = sum(pair[0] == "default_policy" for pair in seats)
    assert 0.46 < first / 4000 < 0.54
    met = [name for pair in seats for name in pair]
    assert 0.71 < met.count("random") / 4000 < 0.79
    assert met.count("opponent_0") + met.count("random") == 4000


class Diary(DefaultCallbacks):
    """Replaces the user's data of an episode at every step, and notes who played."""

    def on_episode_step(self, *, episode: Episode, **kwargs: Any) -> None:
        episode.user_data = {"match": episode.length, "steps": episode.length}

    def on_episode_end(self, *, episode: Episode, **kwargs: Any) -> None:
        PLAYED.append((episode.user_data.keys(), set(episode.agent_rewards), dict(episode.match)))


PLAYED: list[tuple[Any, set[Any], dict[str, str]]] = []


@pytest.mark.parametrize("late", [False, True])
def test_an_episode_keeps_its_opponents_whatever_a_callback_does_with_its_data(late: bool) -> None:
    """The second player appears after the first has moved, so that the match is asked for twice."""
    PLAYED.clear()
    settings = {**LEAGUE, "matchmaking": {"latest": 1, "random": 1}, "win_if": "highest_return"}
    config = {**SMALL, "callbacks": Diary, "self_play": settings, "env_config": {"late": late}}
    with PPO(env=Late, config=config) as algo:
        for _ in range(2):
            algo.train()
    assert len(PLAYED) > 24
    for data, rewards, match in PLAYED:
        assert data == {"match", "steps"}
        played = dict(rewards)
        assert played == {
            agent: "default_policy" if seat == "learner" else seat for agent, seat in match.items()
        }
        assert list(match.values()).count("learner") == 1


def test_outcomes_and_chances_are_those_computed_by_hand() -> None:
    with tictactoe() as algo:
        league = league_of(algo)
        me, it = "default_policy", "snapshot_0"
        add_games(league, (me, it, 1.0, -1.0), (me, it, 0.0, 0.0), (me, "random", -1.0, 1.0))
        # Wins, draws and losses; the earlier game counts 0.99.
        assert league.outcomes[me][it] == pytest.approx([0.99, 1.0, 0.0])
        # Rows of snapshots would grow with the square of their number.
        assert league.state().outcomes.keys() == {me}
        assert league.loss_rate(it) == pytest.approx(1.0 / 2.99)
        assert league.loss_rate("random") == pytest.approx(1.5 / 2.0)


@pytest.mark.parametrize(("score", "rating"), [(0.890, 1563), (0.917, 1617)])
def test_a_learner_has_the_rating_that_its_score_against_the_fixed_opponents_says(
    score: float, rating: int
) -> None:
    # 1200 + 400 log10(0.890 / 0.110) = 1563, whatever the learner does against its snapshots.
    games = {"random": [1000 * score, 0, 1000 * (1 - score)]}
    snapshots = {f"snapshot_{number}": [60.0 + number / 10, 10, 30 - number / 10] for number in range(300)}
    for outcomes in (games, games | snapshots):
        found = ratings_of({"main": outcomes}, ["random"])
        assert found["random"] == 1200
        assert found["main"] == pytest.approx(rating, abs=1)


def test_a_snapshot_that_two_learners_have_met_is_rated_by_both() -> None:
    odds = {one: 10 ** (rating / 400) for one, rating in {"a": 100, "b": 300, "s": 200, "random": 0}.items()}

    def games(one: str, *others: str) -> dict[str, list[float]]:
        chances = {other: odds[one] / (odds[one] + odds[other]) for other in others}
        return {other: [1000 * chance, 0, 1000 * (1 - chance)] for other, chance in chances.items()}

    found = ratings_of({"a": games("a", "random", "s"), "b": games("b", "random", "s")}, ["random"])
    assert [found[one] for one in ("a", "b", "s")] == pytest.approx([1300, 1500, 1400], abs=1)


def test_levels_divide_the_range_of_ratings_in_thirds() -> None:
    with tictactoe() as algo:
        league = league_of(algo)
        for name, rating in (("b", 1210.0), ("c", 1300.0), ("d", 1390.0), ("e", 1360.0)):
            league.members[name] = Member("default_policy", 1, {"default_policy": name}, rating)
        # 1200 + 400 log10(9 / 3) = 1391 is the learner's; without games with fixed opponents later ones are better.
        for games, expected in (([90.0, 0.0, 30.0], ["c", "e", None]), (None, ["c", "d", None])):
            league.outcomes["default_policy"] = {} if games is None else {"random": games}
            known = league.by_name()
            assert [known[level].get("default_policy") for level in LEVELS] == expected
            assert known["d"] == {"default_policy": "d"}


def test_results_have_the_same_names_however_many_snapshots_there_are(tmp_path: Path) -> None:
    settings = {**SMALL, "self_play": {**LEAGUE, "matchmaking": {"current": 1, "latest": 1, "uniform": 2}}}
    with PPO(env="tictactoe", config=settings) as algo:
        result: Any = algo.learn(stop={"training_iteration": 12}, run_dir=tmp_path)
        outcomes = league_of(algo).outcomes["default_policy"]
    columns = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    assert not [one for one in columns if "snapshot_" in one]
    assert result["policy_reward_mean"].keys() <= {"default_policy", "random", "latest", "snapshots"}
    assert {one for one in columns if one.startswith("policy_reward_mean/")} == {
        f"policy_reward_mean/{one}" for one in ("default_policy", "random", "latest", "snapshots")
    }
    matrix = {row[1]: row for row in result["payoff_matrix"]}
    assert matrix.keys() == outcomes.keys()
    assert len(matrix) > 5
    won, drawn, lost = outcomes["random"]
    share = result["matchups"]["default_policy"]["random"]
    assert share == pytest.approx(
        {"win": won / (won + drawn + lost), "draw": drawn / (won + drawn + lost)}
        | {"loss": lost / (won + drawn + lost)}
    )
    assert matrix["random"] == ["default_policy", "random", [won, drawn, lost]]
    # All snapshots but the newest one are together.
    older = [
        sum(row)
        for row in zip(
            *(row for name, row in outcomes.items() if name not in ("random", "snapshot_11")), strict=True
        )
    ]
    assert result["matchups"]["default_policy"]["snapshots"]["win"] == pytest.approx(older[0] / sum(older))
    payoff = Run(tmp_path).payoff()["default_policy"]
    assert payoff.keys() == outcomes.keys()
    assert payoff["random"] == share


def test_prioritized_matchmaking_prefers_members_that_win() -> None:
    with tictactoe(matchmaking="prioritized", opponents_at_once=1) as algo:
        league, draws = league_of(algo), np.random.default_rng(0)
        me = "default_policy"
        add_games(league, (me, "random", 1.0, -1.0), (me, "snapshot_0", -1.0, 1.0), times=99)
        for kind, low, high in (("prioritized", 291, 301), ("uniform", 121, 180)):
            chosen = [league._opponents(kind, me, draws)[0] for _ in range(300)]
            assert chosen.count("snapshot_0") in range(low, high)


def test_snapshots_do_not_change_while_the_learner_does() -> None:
    with tictactoe(members_in_memory=3, matchmaking="uniform") as algo:
        for _ in range(6):
            result = algo.train()
        league = league_of(algo)
        bundles = [member.bundles["default_policy"] for member in league.members.values()]
        assert len(set(bundles)) == len(bundles) == 7
        assert set(result["info"]["learner"]) == {"default_policy"}
        seated = [(seat, name) for seat, name in league.slots.items() if name]
        assert len(seated) == 3
        for seat, name in seated:
            stored: Any = Policy.from_checkpoint(
                league._folder / league.members[name].bundles["default_policy"]
            )
            for key, value in algo.get_weights([seat])[seat].items():
                np.testing.assert_array_equal(value, stored.get_weights()[key])


def test_a_snapshot_stays_in_its_seat_while_an_episode_plays_against_it() -> None:
    with tictactoe(matchmaking="uniform", opponents={}) as algo:
        league = league_of(algo)
        for number in range(4):
            league._take_snapshot("default_policy", number)
        before = dict(league.slots)
        taken = {seat: name for seat, name in before.items() if name}
        for slots in choose(league, 20, set(league.slots)):
            assert {seat: slots[seat] for seat in taken} == taken
        assert len({name for slots in choose(league, 20, set()) for name in slots.values()}) == 5


@pytest.mark.slow_unless("0")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_league_resumes_alike_in_new_and_running_algorithms(num_workers: int, tmp_path: Path) -> None:
    config = {
        **SMALL,
        "num_envs_per_worker": 8 // max(1, num_workers),
        "num_workers": num_workers,
        "engine": "process",
    }
    config["self_play"] = {**LEAGUE, "snapshot_interval": 2}

    def outcome(algo: PPO, iterations: int) -> list[Any]:
        results = [algo.train() for _ in range(iterations)]
        return [(one["digest"], one["matchups"], one["payoff_matrix"], one["league"]) for one in results]

    with PPO(env="tictactoe", config=config) as algo:
        first = outcome(algo, 5)
        algo.save(tmp_path)
        algo.restore(tmp_path)
        rest, state = outcome(algo, 5), league_of(algo).state()
    assert state.members.keys() == {f"snapshot_{number}" for number in range(6)}
    with PPO.from_checkpoint(tmp_path) as algo:
        assert outcome(algo, 5) == rest
        assert league_of(algo).state() == state
    with PPO(env="tictactoe", config={**config, "num_workers": 0, "num_envs_per_worker": 8}) as algo:
        assert outcome(algo, 5) == first


def test_roles_of_unlike_spaces_have_their_own_snapshots_and_results() -> None:
    with wolves() as algo:
        for _ in range(3):
            result: Any = algo.train()
        league = league_of(algo)
        assert {row[1] for row in result["payoff_matrix"] if row[0] == "wolf"} <= {
            "sheep_random",
            *(f"sheep_snapshot_{n}" for n in range(4)),
        }
        matchups = result["matchups"]
        assert matchups["wolf"].keys() <= {"sheep_random", "sheep_latest", "sheep_snapshots"}
        assert [one["win"] for one in matchups["wolf"].values()] == [1.0] * len(matchups["wolf"])
        assert [one["loss"] for one in matchups["sheep"].values()] == [1.0] * len(matchups["sheep"])
        rating = result["league"]["rating"]
        assert rating["wolf"] > 1200 > rating["sheep"]
        assert {member.role for member in league.members.values()} == {"wolf", "sheep"}
        assert set(result["info"]["learner"]) == {"wolf", "sheep"}
        batch = algo.sample().policy_batches
        assert batch["wolf"]["obs"].shape[1:] == (2,)
        assert batch["sheep"]["obs"].shape[1:] == (1,)


def test_a_team_of_several_policies_is_one_member() -> None:
    multi = {
        "policies": ["a", "b", "sheep"],
        "policy_mapping_fn": [("wolf_0", "a"), ("wolf_1", "b"), ("*", "sheep")],
    }
    league_settings = {**LEAGUE, "sides": {"wolves": ["wolf_*"], "prey": ["sheep"]}}
    with wolves(multiagent=multi, self_play=league_settings) as algo:
        for _ in range(2):
            result: Any = algo.train()
        team = league_of(algo).members["a+b_snapshot_1"]
        assert team.bundles.keys() == {"a", "b"}
        # A game of a team counts once.
        assert result["matchups"]["a+b"]["sheep_random"]["win"] == 1.0
        assert "a+b_opponent_0_a" in algo.get_weights()


def test_a_league_resumes_from_one_of_many_checkpoints_and_refuses_changed_snapshots(tmp_path: Path) -> None:
    with wolves() as algo:
        algo.train()
        algo.save(tmp_path / "saved")
        algo.train()
        folder = algo.save(tmp_path / "saved", keep_last=1)
    moved = shutil.copytree(folder, tmp_path / "moved")
    policies = Policy.from_checkpoint(folder)
    assert isinstance(policies, Mapping)
    assert policies.keys() == {"wolf", "sheep"}
    with PPO.from_checkpoint(moved, env=Duel) as algo:
        assert len(league_of(algo).members) == 6
    snapshot = next((moved / "league").iterdir())
    assert isinstance(Policy.from_checkpoint(snapshot), Policy)
    weights = snapshot / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    with pytest.raises(ConfigError, match=r"weights.safetensors"):
        PPO.from_checkpoint(moved, env=Duel)


class Own(RandomPolicy):
    """A policy of a user."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"multiagent": {"policies": {"a": RandomPolicy}}}, "'a'"),
        ({"multiagent": {"policies": ["a"], "policies_to_train": []}}, "'a'"),
        ({"self_play": {"matchmaking": {"lookahead": 1.0}}}, "matchmaking"),
        ({"self_play": {"matchmaking": "newest"}}, "'newest'"),
        ({"self_play": {"matchmaking": {"current": 0.0}}}, "shares|latest"),
        ({"self_play": {"opponents": {"old": PolicySpec()}}}, "'old'"),
        ({"self_play": {"sides": {"all": ["*"]}}}, "'player1', 'player2'"),
        ({"self_play": {"sides": {"one": ["player1"]}}}, "'player2'"),
        ({"self_play": {"members_in_memory": 0}}, "members_in_memory"),
        ({"self_play": 3}, "self_play"),
        ({"self_play": {"matchmaking": {"current": 1.0}, "snapshot_score": 0.5}}, "current"),
        ({"model": {"shared_layers": "all"}}, "shared_layers"),
        ({"self_play": {"opponents": {"latest": "random"}}}, "latest"),
        ({"self_play": {"opponents": {"default_policy": "random"}}}, "default_policy"),
        ({"self_play": {"opponents": {"opponent_0": "random"}}}, "opponent_0"),
        ({"multiagent": {"policies": ["snapshot_1"]}}, "snapshot_1"),
        ({"num_workers": 1, "overlap": True}, "overlap"),
        ({"self_play": {"win_if": {"red": 1.0}}}, "win_if"),
        ({"self_play": {"win_if": "highest"}}, "win_if"),
    ],
)
def test_settings_without_a_league_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(env="tictactoe", config={**SMALL, "self_play": True, **settings})


class Chase(Several):
    """The seeker wins with a return of 10, and the hider has one of `hidden`; both move once."""

    possible_agents, length = ("seeker", "hider"), 1

    def pay(self, actions: Any) -> Any:
        return {"seeker": self.config["caught"], "hider": self.config["hidden"]}


def chase(caught: float, hidden: float, **self_play: Any) -> PPO:
    multi = {"policies": ["seeker", "hider"], "policy_mapping_fn": [("*", "*")]}
    config = {**SMALL, "env_config": {"caught": caught, "hidden": hidden}, "multiagent": multi}
    return PPO(env=Chase, config={**config, "self_play": {**LEAGUE, **self_play}})


@pytest.mark.parametrize(
    ("caught", "hidden", "rule", "shares"),
    [
        # The hider earns more with each step, and loses all the same.
        (10.0, 30.0, {"seeker": 10.0}, (1.0, 0.0, 0.0)),
        (-3.0, 40.0, {"seeker": 10.0}, (0.0, 0.0, 1.0)),
        (-3.0, 40.0, {"hider": 40.0}, (0.0, 0.0, 1.0)),
        (-3.0, 39.0, {"hider": 40.0}, (1.0, 0.0, 0.0)),
        (10.0, 40.0, {"seeker": 10.0, "hider": 40.0}, (0.0, 1.0, 0.0)),
        (1.0, 0.0, "highest_return", (1.0, 0.0, 0.0)),
        (0.5, 0.5, "highest_return", (0.0, 1.0, 0.0)),
        (-2.0, 2.0, None, (0.0, 0.0, 1.0)),
    ],
)
def test_win_if_decides_the_winner(caught: float, hidden: float, rule: Any, shares: Any) -> None:
    with chase(caught, hidden, win_if=rule) as algo:
        matchups = algo.train()["matchups"]
    for shown in matchups["seeker"].values():
        assert tuple(shown.values()) == shares
    for shown in matchups["hider"].values():
        assert tuple(shown.values()) == shares[::-1]


def test_games_that_are_not_zero_sum_are_refused_without_a_rule() -> None:
    with chase(10.0, 30.0) as algo, pytest.raises(ConfigError) as raised:
        algo.train()
    assert "'seeker': 10.0" in str(raised.value)
    assert "win_if" in str(raised.value)


@pytest.mark.parametrize("sides", [None, {"x": ["player1"], "o": ["player2"]}])
def test_policies_drawn_by_lot_are_refused_in_a_league(sides: Any) -> None:
    def lot(agent_id: str, episode: Episode, **kwargs: Any) -> str:
        return "ab"[(episode.episode_id // 2 + (agent_id == "player2")) % 2]

    multi = {"policies": ["a", "b"], "policy_mapping_fn": lot}
    with (
        pytest.raises(ConfigError, match="self_play"),
        PPO(env="tictactoe", config={**SMALL, "multiagent": multi, "self_play": {"sides": sides}}) as algo,
    ):
        algo.train()


def test_a_changed_snapshot_is_not_saved(tmp_path: Path) -> None:
    own = tmp_path / "own"
    with tictactoe(folder=str(own)) as algo:
        folder = algo.save(tmp_path / "saved")
        weights = next(own.glob("*/weights.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
        with pytest.raises(ConfigError, match=r"weights.safetensors"):
            algo.save(tmp_path / "saved")
    with PPO.from_checkpoint(folder, {"self_play": {"folder": None}}) as algo:
        assert len(league_of(algo).members) == 1


@pytest.mark.parametrize(
    ("saved", "given", "message"),
    [
        (LEAGUE, {"members_in_memory": 3}, "members_in_memory"),
        (LEAGUE, {"opponents": {"own": Own}}, "own"),
        (False, True, "self_play"),
        # A dict means enabled.
        (False, {"snapshot_interval": 2}, "self_play"),
    ],
)
def test_other_leagues_than_the_stored_one_are_refused(
    saved: Any, given: Any, message: str, tmp_path: Path
) -> None:
    with PPO(env="tictactoe", config={**SMALL, "self_play": saved}) as algo:
        algo.save(tmp_path)
    with pytest.raises(ConfigError, match=message):
        PPO.from_checkpoint(tmp_path, {"self_play": given})
