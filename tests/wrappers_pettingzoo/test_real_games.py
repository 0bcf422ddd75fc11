"""PettingZoo's own games, family by family, against PettingZoo's own loop."""

from __future__ import annotations

import copy
import os
import pickle
from itertools import chain
from typing import Any

import pytest

from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.wrappers_pettingzoo.games import ALL_GAMES, AS_THEY_WARN, PARALLEL, Game
from tests.wrappers_pettingzoo.replay import Life, Story, assert_same, build, play, replay

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

pytestmark = AS_THEY_WARN
every_game = pytest.mark.parametrize(
    "game",
    [pytest.param(game, id=game.name, marks=[] if game.quick else pytest.mark.slow) for game in ALL_GAMES],
)


@pytest.mark.slow_unless(
    "tictactoe*",
    "rps*",
    "connect_four*",
    "leduc*",
    "texas*",
    "pistonball*",
    "multiwalker_v9.parallel_env",
    "simple_spread*",
    "simple_world*",
    "generated*",
)
@every_game
def test_a_game_plays_the_same_as_in_pettingzoos_own_loop(game: Game) -> None:
    base_env, envs = build(game.make, 2, seed=7)
    stories = play(base_env, envs, game.polls)
    for env, of_env in zip(envs, stories, strict=True):
        assert len(of_env) > 1 or not game.ends
        for script, ours in zip(env.scripts, of_env, strict=True):
            theirs, paid = replay(game.make(), script)
            assert_same_story(ours, theirs, game.repeats_itself)
            if ours.flags is not None:
                income = ours.income()
                assert {agent: income.get(agent, 0.0) for agent in paid} == pytest.approx(dict(paid))
                assert sum(income.values()) == pytest.approx(sum(paid.values()))
    base_env.stop()


def assert_same_story(ours: Story, theirs: Story, with_obs: bool) -> None:
    lived = {agent: lives[0] for agent, lives in theirs.lives.items() if lives[0].obs}
    assert list(ours.lives) == list(lived)
    for agent, expected in lived.items():
        (life,) = ours.lives[agent]
        assert life.rewards == pytest.approx(expected.rewards), agent
        assert life.end == pytest.approx(expected.end), agent
        if with_obs:
            assert_same_life(life, expected, agent)
    if ours.flags is not None:
        assert all(life.end for life in lived.values())
        assert ours.flags in [life.end[1:] for life in lived.values() if life.end]
    else:
        assert not all(life.end for life in lived.values())


def assert_same_life(life: Life, expected: Life, agent: Any) -> None:
    pairs = zip(chain(life.obs, [life.final]), chain(expected.obs, [expected.final]), strict=True)
    for step, (mine, other) in enumerate(pairs):
        assert_same(mine, other, f"obs {step} of {agent}")


@pytest.mark.parametrize("module", ["pettingzoo.classic.leduc_holdem_v4", "mpe2.simple_tag_v3"])
@pytest.mark.parametrize("maker", ["env", "parallel_env"])
def test_the_same_seed_is_the_same_run_and_copies_differ(module: str, maker: str) -> None:
    if module.endswith("leduc_holdem_v4") and maker == "parallel_env":
        module = "pettingzoo.butterfly.knights_archers_zombies_v11"
    runs = []
    for _ in range(2):
        base_env, envs = build(Game(module, maker).make, 2, seed=3)
        runs.append((play(base_env, envs, 40), [env.scripts[0].seed for env in envs]))
    (first, seeds), (second, _) = runs
    assert len(set(seeds)) == 2
    for of_env, again in zip(first, second, strict=True):
        for story, other in zip(of_env, again, strict=True):
            assert_same_story(story, other, with_obs=True)


@pytest.mark.parametrize("maker", ["env", "parallel_env"])
def test_render_metadata_and_close_reach_the_game(maker: str) -> None:
    game = Game("mpe2.simple_spread_v3", maker, {"render_mode": "rgb_array"})
    env = build(game.make, 1, None)[1][0]
    env.reset(seed=0)
    assert env.render_mode == "rgb_array"
    assert env.metadata["name"] == "simple_spread_v3"
    assert env.render().shape == (700, 700, 3)
    assert env.state().ndim == 1
    assert env.get_sub_environments() == [env.env]
    env.close()
    env.close()


def test_an_illegal_move_ends_the_game_for_both_and_costs_the_mover() -> None:
    from pettingzoo.classic import tictactoe_v3

    env = PettingZooEnv(tictactoe_v3.env())
    env.reset()
    env.step({"player_1": 4})
    _, rewards, terminateds, truncateds, _ = env.step({"player_2": 4})
    assert rewards == {"player_1": 0, "player_2": -1}
    # PettingZoo sets both flags then.
    assert terminateds == {"player_1": True, "player_2": True, "__all__": False}
    assert truncateds == {"player_1": True, "player_2": True, "__all__": True}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize(
    "game", [Game("mpe2.simple_adversary_v3", maker) for maker in ("env", PARALLEL)], ids=str
)
def test_a_copy_of_a_wrapper_plays_a_separate_game(game: Game, again: Any) -> None:
    env = (PettingZooEnv if game.maker == "env" else ParallelPettingZooEnv)(game.make())
    env.reset(seed=1)
    other = again(env)
    before = str(env.env.state())
    other.step(dict.fromkeys(other.reset(seed=2)[0], 1))
    other.step(dict.fromkeys(other.agents if game.maker == PARALLEL else other.agents[1:2], 1))
    assert str(env.env.state()) == before
    assert str(other.env.state()) != before
