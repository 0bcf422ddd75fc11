"""Wherever agents play, the mapping is asked once per agent and episode, with what it keeps in `episode.user_data`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import DefaultCallbacks
from menv.algorithms import PPO
from menv.algorithms.config.stored_config import named_objects
from menv.envs import RockPaperScissors
from menv.offline import read_episodes, record
from menv.playing import Game
from tests.serving.courses import PAIR, observation, playing
from tests.serving.talks import eventually

AGENTS = ("player1", "player2")
ASKED: list[tuple[int, Any, int]] = []
"""Episode id, agent and length of all questions."""
SMALL = {
    "env_config": {"rounds": 5}, "rollout_fragment_length": 100, "train_batch_size": 100, "num_sgd_iter": 1, "seed": 1,
}  # fmt: skip


def draw_sides(agent_id: Any, episode: Any, worker: Any, **kwargs: Any) -> str:
    """Draw once per episode which agent is "one"; the other one is "two"."""
    ASKED.append((episode.episode_id, agent_id, episode.length))
    first = episode.user_data.setdefault("first", (agent_id, bool(episode.rng.integers(2))))
    return "one" if (agent_id == first[0]) is first[1] else "two"


MULTIAGENT = {"policies": ["one", "two"], "policy_mapping_fn": draw_sides}


@pytest.fixture(autouse=True)
def _nothing_asked() -> Iterator[None]:
    ASKED.clear()
    yield
    ASKED.clear()


def check_asked(agents: tuple[str, ...] = AGENTS) -> set[int]:
    """Check that each agent of each episode was asked for once; return the episodes."""
    assert len(ASKED) == len(set(ASKED))
    episodes = {episode for episode, _, _ in ASKED}
    assert sorted(ASKED) == sorted((episode, agent, 0) for episode in episodes for agent in agents)
    return episodes


class Seats(DefaultCallbacks):
    """Keeps who played in each episode, and what the mapping kept there."""

    seen: list[tuple[int, dict[Any, str]]] = []  # noqa: RUF012

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        assert "first" in episode.user_data
        seats = {agent: episode.policy_for(agent) for agent in episode.get_agents()}
        Seats.seen.append((episode.episode_id, seats))


def check_sides(seats: list[dict[Any, str]]) -> None:
    assert all(set(by_agent.values()) == {"one", "two"} for by_agent in seats)
    # Both sides come up in 16 games but for 1 time in 32,768.
    assert len({by_agent[min(by_agent)] for by_agent in seats}) == 2


def test_training_and_evaluation_ask_in_each_episode() -> None:
    settings = {**SMALL, "multiagent": MULTIAGENT, "callbacks": Seats, "evaluation_duration": 20}
    for play in (PPO.train, PPO.evaluate):
        with PPO(env=RockPaperScissors, config=settings) as algo:
            ASKED.clear()
            Seats.seen.clear()
            play(algo)
        assert {episode for episode, _ in Seats.seen} <= check_asked()
        check_sides([seats for _, seats in Seats.seen])


def test_record_asks_in_each_episode(tmp_path: Path) -> None:
    with PPO(env=RockPaperScissors, config={**SMALL, "multiagent": MULTIAGENT}) as algo:
        ASKED.clear()
        record(algo, RockPaperScissors, tmp_path / "a.parquet", episodes=40, env_config={"rounds": 5}, seed=1)
        assert len(check_asked()) >= 40
    found = list(read_episodes(tmp_path / "a.parquet"))
    check_sides([{str(one.agent_id): str(one.policy_id) for one in game.trajectories} for game in found])


def test_a_recording_with_another_seed_draws_other_sides(tmp_path: Path) -> None:
    sides: list[list[list[str]]] = []
    with PPO(env=RockPaperScissors, config={**SMALL, "multiagent": MULTIAGENT}) as algo:
        for seed in (1, 1, 2):
            path = tmp_path / f"{len(sides)}.parquet"
            record(algo, RockPaperScissors, path, episodes=20, env_config={"rounds": 2}, seed=seed)
            games = read_episodes(path)
            sides.append([[str(one.policy_id) for one in game.trajectories] for game in games])
    assert sides[0] == sides[1] != sides[2]


def test_a_game_asks_in_each_episode(tmp_path: Path) -> None:
    with PPO(env=RockPaperScissors, config={**SMALL, "multiagent": MULTIAGENT}) as algo:
        algo.save(tmp_path / "run")
    ASKED.clear()
    seats = []
    known = {f"function {__name__}:draw_sides": draw_sides}
    with (
        named_objects(known),
        Game(tmp_path / "run", env=RockPaperScissors, env_config={"rounds": 2}) as game,
    ):
        for _ in range(16):
            game.start()
            game.advance()
            seats.append({agent: str(game.policy_of(agent)) for agent in AGENTS})
    assert len(check_asked()) == 16
    check_sides(seats)


@pytest.mark.parametrize("mode", ["local", "remote"])
def test_clients_play_the_episodes_that_the_mapping_was_asked_in(mode: str) -> None:
    settings = {**PAIR, "multiagent": MULTIAGENT, "callbacks": Seats, "rollout_fragment_length": 4}
    Seats.seen.clear()
    with playing(mode, settings) as (_, client):
        ASKED.clear()
        for number in range(16):
            name = client.start_episode()
            for _ in range(3):
                client.get_action(name, dict.fromkeys("ab", observation(number)))
                client.log_returns(name, dict.fromkeys("ab", float(number)))
            client.end_episode(name, dict.fromkeys("ab", observation(number)))
        # An episode in which nobody learns.
        name = client.start_episode(training_enabled=False)
        client.get_action(name, dict.fromkeys("ab", observation(0)))
        client.end_episode(name, dict.fromkeys("ab", observation(0)))
        client.close()
        eventually(lambda: len(Seats.seen) >= 16 + (mode == "remote"))
    episodes = check_asked(("a", "b"))
    assert len(episodes) == 17
    assert {episode for episode, _ in Seats.seen} <= episodes
    check_sides([seats for _, seats in Seats.seen][:16])


def test_agents_that_come_later_meet_the_same_episode() -> None:
    settings = {**PAIR, "multiagent": MULTIAGENT, "callbacks": Seats, "rollout_fragment_length": 2}
    Seats.seen.clear()
    with playing("local", settings) as (_, client):
        ASKED.clear()
        name = client.start_episode()
        for number, agents in enumerate(("a", "a", "a", "ab")):
            client.get_action(name, dict.fromkeys(agents, observation(number)))
            client.log_returns(name, dict.fromkeys(agents, 1.0))
        client.end_episode(name, dict.fromkeys("ab", observation(0)))
        client.close()
        eventually(lambda: Seats.seen)
    assert [agent for _, agent, _ in ASKED] == ["a", "b"]
    assert len({episode for episode, _, _ in ASKED}) == 1
    assert Seats.seen[0][0] == ASKED[0][0]
    assert np.unique(list(Seats.seen[0][1].values())).tolist() == ["one", "two"]
