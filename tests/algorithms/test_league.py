"""The league of self-play: matches, results, ratings, snapshots that never change, and runs that resume."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks, Episode, MultiAgentEnv, PolicySpec, RandomPolicy
from menv.algorithms import PPO
from menv.errors import ConfigError, ContractError, MissingExtraError
from menv.policy import Policy

SMALL: dict[str, Any] = {
    "num_envs_per_worker": 8, "train_batch_size": 256, "sgd_minibatch_size": 128, "num_sgd_iter": 1, "gamma": 1.0,
    "model": {"fcnet_hiddens": [16]}, "seed": 3,
}  # fmt: skip
LEAGUE: dict[str, Any] = {"snapshot_interval": 1, "members_in_memory": 2, "opponents_at_once": 2}


def league_of(algo: PPO) -> Any:
    return algo._league


def tictactoe(**self_play: Any) -> PPO:
    return PPO(env="tictactoe", config={**SMALL, "self_play": {**LEAGUE, **self_play}})


class Duel(MultiAgentEnv):
    """Two wolves, who see two numbers, against a sheep, who sees one; the side of `winner` wins after three steps."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.winner = config.get("winner")
        self.possible_agents = ["wolf_0", "wolf_1", "sheep"]
        sizes = {"wolf_0": 2, "wolf_1": 2, "sheep": 1}
        self.observation_spaces = {a: gym.spaces.Box(-1, 1, (n,), np.float32) for a, n in sizes.items()}
        self.action_spaces = {a: gym.spaces.Discrete(n + 1) for a, n in sizes.items()}

    def _seen(self) -> dict[Any, Any]:
        spaces: Any = self.observation_spaces
        return {a: np.zeros(space.shape, np.float32) for a, space in spaces.items()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.steps = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, action_dict: Any) -> Any:
        self.steps += 1
        over = self.steps == 3
        paid = 0.0 if self.winner is None or not over else 1.0 if self.winner == "wolves" else -1.0
        rewards = {"wolf_0": paid / 2, "wolf_1": paid / 2, "sheep": -paid}
        return self._seen(), rewards, {"__all__": over}, {"__all__": False}, {}


class Late(MultiAgentEnv):
    """Two agents, five env steps; with `late`, "b" appears at the third one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1, 1, (1,), np.float32))
        self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(2))
        self.late = config["late"]

    def _seen(self) -> dict[Any, Any]:
        self.agents = ["a"] if self.late and self.steps < 2 else ["a", "b"]
        return {agent: np.zeros(1, np.float32) for agent in self.agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._seen(), {}

    def step(self, action_dict: Any) -> Any:
        self.steps += 1
        return self._seen(), {"a": 1.0}, {"__all__": self.steps == 5}, {"__all__": False}, {}


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
        episode.user_data = {"match": episode.length, "steps": episode.length}  # type: ignore[misc]

    def on_episode_end(self, *, episode: Episode, **kwargs: Any) -> None:
        PLAYED.append((episode.user_data.keys(), set(episode.agent_rewards), dict(episode.match)))


PLAYED: list[tuple[Any, set[Any], dict[str, str]]] = []


@pytest.mark.parametrize("late", [False, True])
def test_an_episode_keeps_its_opponents_whatever_a_callback_does_with_its_data(late: bool) -> None:
    """The second player appears after the first has moved, so that the match is asked for twice."""
    PLAYED.clear()
    settings = {**LEAGUE, "matchmaking": {"latest": 1, "random": 1}}
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


def test_payoff_and_elo_are_those_computed_by_hand() -> None:
    with tictactoe() as algo:
        league = league_of(algo)
        me, it = "default_policy", "snapshot_0"
        league._add_game(me, it, 1.0, -1.0)
        league._add_game(me, it, 0.0, 0.0)
        league._add_game(me, "random", -1.0, 1.0)
        # Points and games: 1, then 0.99 + 0.5 of 0.99 + 1.
        assert league.payoff[me][it] == pytest.approx([1.49, 1.99])
        # Rows of snapshots would grow with the square of their number.
        assert league.state()["payoff"].keys() == {me}
        assert league.loss_rate(it) == pytest.approx(1.0 / 2.99)
        assert league.loss_rate("random") == pytest.approx(1.5 / 2.0)
        # A win over an equal is worth 8; then a draw at 1208 against 1192 costs 16 * (0.523 - 0.5).
        drawn = 16 * (1 / (1 + 10 ** (-16 / 400)) - 0.5)
        lost = 16 / (1 + 10 ** (-(8 - drawn) / 400))
        assert league.elo[it] == pytest.approx(1192 + drawn)
        assert league.elo[me] == pytest.approx(1208 - drawn - lost)
        assert league.elo["random"] == 1200.0


def test_prioritized_matchmaking_prefers_members_that_win() -> None:
    with tictactoe(matchmaking="prioritized", opponents_at_once=1) as algo:
        league, draws = league_of(algo), np.random.default_rng(0)
        for _ in range(99):
            league._add_game("default_policy", "random", 1.0, -1.0)
            league._add_game("default_policy", "snapshot_0", -1.0, 1.0)
        chosen = [league._opponents("prioritized", "default_policy", draws)[0] for _ in range(300)]
        assert chosen.count("snapshot_0") > 290
        chosen = [league._opponents("uniform", "default_policy", draws)[0] for _ in range(300)]
        assert 120 < chosen.count("snapshot_0") < 180


def test_snapshots_do_not_change_while_the_learner_does() -> None:
    with tictactoe(members_in_memory=3, matchmaking="uniform") as algo:
        for _ in range(6):
            result = algo.train()
            league_of(algo).check_unchanged()
        league = league_of(algo)
        hashes = [member.weights["default_policy"] for member in league.members.values()]
        assert len(set(hashes)) == len(hashes) == 7
        assert all(
            (league._folder / member.bundles["default_policy"]).is_dir() for member in league.members.values()
        )
        assert sum(name is not None for name in league.slots.values()) == 3
        assert set(result["info"]["learner"]) == {"default_policy"}
        seat = next(seat for seat, name in league.slots.items() if name)
        weights = algo.get_weights([seat])
        algo.set_weights({seat: {name: value + 1 for name, value in weights[seat].items()}})
        with pytest.raises(
            ContractError, match="frozen, expected them unchanged; do not set weights of opponents"
        ):
            algo.save(league._folder / "checkpoint")


def test_a_seat_keeps_its_snapshot_while_an_episode_plays_against_it() -> None:
    with tictactoe(matchmaking="uniform", opponents={}) as algo:
        league = league_of(algo)
        for number in range(4):
            league._take_snapshot("default_policy", number)
        before = dict(league.slots)
        for iteration in range(20):
            league._choose(iteration, set(league.slots))
            assert {seat: name for seat, name in league.slots.items() if before[seat]} == {
                seat: name for seat, name in before.items() if name
            }
        seen = set()
        for iteration in range(20):
            league._choose(iteration, set())
            seen |= set(league.slots.values())
        assert len(seen) == 5


@pytest.mark.slow_unless("0")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_restarted_league_continues_bit_identically(num_workers: int, tmp_path: Path) -> None:
    config = {
        **SMALL,
        "num_envs_per_worker": 8 // max(1, num_workers),
        "num_workers": num_workers,
        "engine": "process",
    }
    config["self_play"] = {**LEAGUE, "snapshot_interval": 2}

    def outcome(algo: PPO, iterations: int) -> list[Any]:
        results = [algo.train() for _ in range(iterations)]
        return [(one["digest"], one["elo"], one["win_rate"], one["league"]) for one in results]

    with PPO(env="tictactoe", config=config) as algo:
        first = outcome(algo, 5)
        algo.save(tmp_path)
        rest, state = outcome(algo, 5), league_of(algo).state()
    assert state["members"].keys() == {f"snapshot_{number}" for number in range(6)}
    with PPO.from_checkpoint(tmp_path) as algo:
        assert outcome(algo, 5) == rest
        assert league_of(algo).state() == state
        algo.restore(tmp_path)
        assert outcome(algo, 5) == rest
    with PPO(env="tictactoe", config={**config, "num_workers": 0, "num_envs_per_worker": 8}) as algo:
        assert outcome(algo, 10) == [*first, *rest]


def test_roles_of_unlike_spaces_have_their_own_snapshots_and_results() -> None:
    with wolves() as algo:
        for _ in range(3):
            result: Any = algo.train()
        league = league_of(algo)
        assert result["league"]["score"]["wolf"].keys() <= {
            "sheep_random",
            *(f"sheep_snapshot_{n}" for n in range(4)),
        }
        assert set(result["league"]["score"]["wolf"].values()) == {1.0}
        assert set(result["league"]["score"]["sheep"].values()) == {0.0}
        assert result["league"]["elo"]["wolf"] > 1200 > result["league"]["elo"]["sheep"]
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
        assert result["league"]["score"]["a+b"]["sheep_random"] == 1.0
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
    with pytest.raises(
        ConfigError, match=r"weights.safetensors: its sha256 differs .* copy the folder again"
    ):
        PPO.from_checkpoint(moved, env=Duel)


class Own(RandomPolicy):
    """A policy of a user."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"multiagent": {"policies": {"a": RandomPolicy}}},
            "policy 'a' does not learn, expected a league of policies",
        ),
        ({"multiagent": {"policies": ["a"], "policies_to_train": []}}, "policy 'a' does not learn"),
        (
            {"self_play": {"matchmaking": {"lookahead": 1.0}}},
            "matchmaking is {'lookahead': 1.0}, expected shares of",
        ),
        ({"self_play": {"matchmaking": "newest"}}, "matchmaking is 'newest', expected"),
        ({"self_play": {"matchmaking": {"current": 0.0}}}, "expected shares of current, latest"),
        (
            {"self_play": {"opponents": {"old": PolicySpec()}}},
            'expected "random" or a subclass of menv.Policy',
        ),
        (
            {"self_play": {"sides": {"all": ["*"]}}},
            "1 side among the possible agents .* expected two or more",
        ),
        ({"self_play": {"sides": {"one": ["player1"]}}}, "agent 'player2' matches no pattern"),
        (
            {"self_play": {"members_in_memory": 0}},
            "members_in_memory is 0, expected an integer from 1",
        ),
        ({"self_play": 3}, "expected a dict"),
        (
            {"self_play": {"matchmaking": {"current": 1.0}, "snapshot_score": 0.5}},
            "snapshot_score is 0.5 with matchmaking of the current learner alone",
        ),
        (
            {"model": {"shared_layers": "all"}},
            "shared_layers='all' with self_play, expected no shared layers",
        ),
        ({"self_play": {"opponents": {"latest": "random"}}}, "two players could be called 'latest'"),
        (
            {"self_play": {"opponents": {"default_policy": "random"}}},
            "called 'default_policy', expected other",
        ),
        ({"self_play": {"opponents": {"opponent_0": "random"}}}, "called 'opponent_0', expected other names"),
        ({"multiagent": {"policies": ["snapshot_1"]}}, "called 'snapshot_1', expected other names"),
        ({"num_workers": 1, "overlap": True}, "overlap is True with self_play, expected False"),
    ],
)
def test_settings_without_a_league_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(env="tictactoe", config={**SMALL, "self_play": True, **settings})


def test_trueskill_is_that_computed_by_hand_and_resumes(tmp_path: Path) -> None:
    with tictactoe(rating="trueskill") as algo:
        league_of(algo)._add_game("default_policy", "random", 1.0, -1.0)
        first, last = (league_of(algo).report()["trueskill"][one] for one in ("default_policy", "random"))
        # Weng and Lin (2011), with a deviation that grows by 25/300 before each game, and a margin of 0.1 for draws.
        variance = (25 / 3) ** 2 + (25 / 300) ** 2
        spread = (2 * variance + 2 * (25 / 6) ** 2) ** 0.5
        normal = NormalDist()
        gain = variance / spread * normal.pdf(0.1 / spread) / normal.cdf(-0.1 / spread)
        assert (first[0], last[0]) == pytest.approx((25 + gain, 25 - gain), abs=1e-4)
        assert first[1] == pytest.approx(last[1])
        assert first[1] < 25 / 3
        # A new snapshot has the rating of the learner.
        league_of(algo)._take_snapshot("default_policy", 1)
        assert league_of(algo).report()["trueskill"]["snapshot_1"] == first
        algo.train()
        algo.save(tmp_path)
        rest: Any = algo.train()
    with PPO.from_checkpoint(tmp_path) as algo:
        again: Any = algo.train()
    assert again["league"]["trueskill"] == rest["league"]["trueskill"]


def test_trueskill_needs_openskill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("menv.algorithms.league.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'menv-rl\[league\]'"):
        tictactoe(rating="trueskill")


def test_a_custom_policy_is_an_opponent_and_settings_change_when_resumed(tmp_path: Path) -> None:
    with tictactoe(opponents={"own": Own}, matchmaking="uniform") as algo:
        result: Any = algo.train()
        assert "own" in result["league"]["score"]["default_policy"]
        config = replace(algo.config.self_play, snapshot_interval=5)
        algo.save(tmp_path)
    with PPO.from_checkpoint(tmp_path, {"self_play": config}) as algo:
        assert algo.config.self_play.snapshot_interval == 5
        assert len(league_of(algo).members) == 2


def test_games_count_once_although_a_snapshot_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    with tictactoe(matchmaking="latest") as algo:
        league = league_of(algo)
        monkeypatch.setattr("menv.algorithms.league.write_folder", full)
        with pytest.raises(OSError, match="no space"):
            algo.train()
        games = league._recent["default_policy"]
        assert games[1] > 0
        monkeypatch.setattr(league, "_take_snapshot", lambda *_: None)
        result: Any = algo.train()
        assert games[1] == result["episodes_total"]


def test_a_snapshot_waits_for_the_first_game() -> None:
    with tictactoe(snapshot_score=0.1, matchmaking={"current": 1e6, "random": 1e-6}) as algo:
        assert algo.train()["league"]["members"] == 1


def test_a_changed_snapshot_is_not_saved(tmp_path: Path) -> None:
    own = tmp_path / "own"
    with tictactoe(folder=str(own)) as algo:
        folder = algo.save(tmp_path / "saved")
        weights = next(own.glob("*/weights.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
        with pytest.raises(ConfigError, match=r"weights.safetensors: its sha256 differs"):
            algo.save(tmp_path / "saved")
    with PPO.from_checkpoint(folder, {"self_play": {"folder": None}}) as algo:
        assert len(league_of(algo).members) == 1


def test_policies_stay_the_same_in_a_run_with_a_league() -> None:
    with tictactoe() as algo:
        with pytest.raises(
            ConfigError, match="add_policy: called in a run with self_play, expected the same"
        ):
            algo.add_policy("more")
        with pytest.raises(ConfigError, match="remove_policy: called in a run with self_play"):
            algo.remove_policy("opponent_0")


@pytest.mark.parametrize(
    ("saved", "given", "message"),
    [
        (
            LEAGUE,
            {"members_in_memory": 3},
            "a league of 2 seats in memory, expected 3; leave members_in_memory",
        ),
        (LEAGUE, {"opponents": {"own": Own}}, r"a league with \['random'\], expected opponents of \['own'\]"),
        (False, True, "of a run without self_play, expected one with a league"),
        # A dict means enabled.
        (False, {"snapshot_interval": 2}, "of a run without self_play, expected one with a league"),
    ],
)
def test_other_leagues_than_the_stored_one_are_refused(
    saved: Any, given: Any, message: str, tmp_path: Path
) -> None:
    with PPO(env="tictactoe", config={**SMALL, "self_play": saved}) as algo:
        algo.save(tmp_path)
    with pytest.raises(ConfigError, match=message):
        PPO.from_checkpoint(tmp_path, {"self_play": given})
