"""The windy maze of the examples: wind, walls, rewards, ends; with one level of agents, with two and with three."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from examples.windy_maze import DOWN, LEFT, NAMES, RIGHT, UP, WindyMaze
from menv import RandomPolicy, check_env
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.multi_agent_env import AgentDict, StepDicts

HALL = {"map": ["S...G"]}
ROOM = {"map": ["G....", "..S..", "....G"]}


def started(**config: Any) -> WindyMaze:
    """Return a maze after a reset, in which the wind blows up for good."""
    maze = WindyMaze(config)
    maze.reset(seed=0)
    maze.np_random = _Calm()  # type: ignore[assignment]
    maze.wind = UP
    return maze


class _Calm:
    def random(self) -> float:
        return 1.0


def moved(maze: WindyMaze, move: int) -> tuple[Any, float, bool, bool]:
    """Return what the only level of a maze gets for a move."""
    obs, rewards, terminateds, truncateds, _ = maze.step({"top_level": move})
    return obs["top_level"], rewards["top_level"], terminateds[ALL], truncateds[ALL]


@pytest.mark.parametrize("levels", NAMES)
def test_every_number_of_levels_is_a_sound_environment(levels: int) -> None:
    assert check_env(WindyMaze({"levels": levels})) == []


def test_moves_against_the_wind_and_into_a_wall_fail() -> None:
    maze = started(levels=1, map=["...", ".S#", "..G"])
    for move, expected in (
        (DOWN, [1, 1]),
        (RIGHT, [1, 1]),
        (UP, [0, 1]),
        (UP, [0, 1]),
        (LEFT, [0, 0]),
        (LEFT, [0, 0]),
    ):
        assert moved(maze, move)[0]["position"].tolist() == expected


def test_moves_cost_and_the_goal_pays_and_ends_the_episode() -> None:
    maze = started(levels=1, **HALL)
    assert [moved(maze, RIGHT)[1:] for _ in range(4)] == [(-0.01, False, False)] * 3 + [(0.99, True, False)]


def test_moves_that_run_out_are_a_truncation() -> None:
    maze = started(levels=1, max_moves=2, **HALL)
    assert moved(maze, LEFT)[2:] == (False, False)
    assert moved(maze, LEFT)[2:] == (False, True)


def test_the_same_seed_brings_the_same_winds_and_the_same_goal() -> None:
    def winds(seed: int) -> list[Any]:
        maze = WindyMaze({"levels": 1, **ROOM})
        first = maze.reset(seed=seed)[0]["top_level"]
        return [(first["goal"], first["wind"]), *[moved(maze, UP)[0]["wind"] for _ in range(30)]]

    assert winds(3) == winds(3)
    assert len({tuple(map(str, winds(seed))) for seed in range(8)}) == 8
    assert {winds(seed)[0][0] for seed in range(20)} == {0, 1}
    assert {wind for seed in range(8) for wind in winds(seed)[1:]} == {UP, RIGHT, DOWN, LEFT}


def actors(env: WindyMaze) -> Iterator[str]:
    """Play an episode of zeros and yield who acts."""
    obs, _ = env.reset(seed=0)
    while env.agents:
        [agent] = obs
        yield agent
        obs, _, terminateds, _, _ = env.step({agent: 0})
        obs = {one: seen for one, seen in obs.items() if not terminateds.get(one)}


def test_each_command_opens_an_agent_that_walks_for_some_moves() -> None:
    env = WindyMaze({"length": 3, "max_moves": 8})
    acted = list(actors(env))
    top = "top_level"
    assert acted == [top, *["low_level_0"] * 3, top, *["low_level_1"] * 3, top, *["low_level_2"] * 2]
    assert env.possible_agents == list(dict.fromkeys(acted))


def test_a_level_that_ends_returns_control_to_the_level_above_in_the_same_step() -> None:
    env = started(length=2, map=["S....G"])
    obs, rewards, *_ = env.step({"top_level": RIGHT})
    assert (list(obs), rewards) == (["low_level_0"], {})
    obs, rewards, *_ = env.step({"low_level_0": RIGHT})
    assert (list(obs), rewards) == (["low_level_0"], {"top_level": -0.01, "low_level_0": 1.0})
    assert (obs["low_level_0"]["command"], obs["low_level_0"]["left"]) == (RIGHT, 1)
    obs, _, terminateds, truncateds, _ = env.step({"low_level_0": LEFT})
    assert set(obs) == {"low_level_0", "top_level"}
    assert (terminateds, truncateds) == ({"low_level_0": True, ALL: False}, {ALL: False})
    assert env.agents == ["top_level"]


@pytest.mark.parametrize(("moves", "ends"), [(4, (True, False)), (2, (False, True))])
def test_the_end_of_the_maze_ends_both_levels(moves: int, ends: tuple[bool, bool]) -> None:
    env = started(length=9, max_moves=moves, **HALL)
    env.step({"top_level": RIGHT})
    obs, _, terminateds, truncateds, _ = [env.step({"low_level_0": RIGHT}) for _ in range(moves)][-1]
    assert set(obs) == {"low_level_0", "top_level"}
    assert (terminateds[ALL], truncateds[ALL]) == ends
    assert env.agents == []


def test_three_levels_are_paid_for_their_own_aims_and_end_together() -> None:
    env = started(levels=3, map=["G...S...G"], length=1)
    env.step({"top_level": 1})
    env.step({"mid_level_0": LEFT})
    obs, rewards, terminateds, _, _ = env.step({"low_level_0": RIGHT})
    assert rewards == {"top_level": -0.01, "mid_level_0": 1.0, "low_level_0": -1.0}
    assert terminateds == {"low_level_0": True, "mid_level_0": True, ALL: False}
    assert set(obs) == {"low_level_0", "mid_level_0", "top_level"}
    assert env.agents == ["top_level"]


@pytest.mark.slow_unless("3")
@pytest.mark.parametrize("levels", [2, 3])
def test_the_returns_of_the_levels_in_the_batch_are_what_the_maze_paid(levels: int) -> None:
    paid: Counter[str] = Counter()

    def level(agent_id: str) -> str:
        return "_".join(agent_id.split("_")[:2])

    class Paying(WindyMaze):
        def step(self, action_dict: AgentDict) -> StepDicts:
            result: StepDicts = super().step(action_dict)
            for agent, reward in result[1].items():
                paid[level(agent)] += reward
            return result

    config = {
        "env_config": {"levels": levels},
        "multiagent": {"policies": dict.fromkeys(NAMES[levels], RandomPolicy), "policy_mapping_fn": level},
        "batch_mode": "complete_episodes",
        "rollout_fragment_length": 2000,
        "seed": 5,
    }
    with PPO(env=Paying, config=config) as algo:
        batch = algo.sample()
    for name in NAMES[levels]:
        assert batch[name]["rewards"].sum() == pytest.approx(paid[name], abs=1e-3)
        assert batch[name].count > 50
    lengths = batch["low_level"].segments.lengths
    assert lengths.max() <= 4
    assert sum(lengths) == batch["low_level"].count
