"""Games of OpenSpiel through `OpenSpielEnv`, compared with what `pyspiel` itself says of the same moves."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pyspiel
import pytest

from menv import check_env
from menv.algorithms import PPO
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.wrappers import OpenSpielEnv

GAMES = [
    "kuhn_poker",
    "leduc_poker(players=3)",
    "tic_tac_toe",
    "connect_four",
    "liars_dice",
    "goofspiel(num_cards=5,imp_info=True)",
    "matrix_rps",
    "oshi_zumo(coins=10)",
    "markov_soccer(horizon=30)",
    "breakthrough(rows=6,columns=5)",
    "cliff_walking(horizon=30)",
    "catch",
    "coop_box_pushing(horizon=20)",
    "negotiation",
    "turn_based_simultaneous_game(game=goofspiel(num_cards=4))",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("backgammon", "pig(players=3)", "mancala", "hanabi")
    ),
]


def play(env: OpenSpielEnv, seed: int, choices: Any) -> tuple[dict[str, float], int]:
    """Play a random game; return what each player was paid, and the number of steps."""
    obs, _ = env.reset(seed=seed)
    paid = dict.fromkeys(env.possible_agents, 0.0)
    steps, over = 0, False
    while not over:
        moves = {
            agent: int(choices.choice(np.flatnonzero(seen["action_mask"]))) for agent, seen in obs.items()
        }
        obs, rewards, terminateds, truncateds, _ = env.step(moves)
        assert not truncateds["__all__"]
        paid = {agent: paid[agent] + rewards[agent] for agent in paid}
        steps, over = steps + 1, terminateds["__all__"]
    assert set(obs) == set(env.possible_agents)
    assert not any(seen["action_mask"].any() for seen in obs.values())
    return paid, steps


def replayed(name: str, history: list[int]) -> tuple[list[float], int]:
    """Play the moves of a game again on `pyspiel` alone; return its returns and the number of decisions."""
    state, moves, decisions = pyspiel.load_game(name).new_initial_state(), iter(history), 0
    while not state.is_terminal():
        decisions += not state.is_chance_node()
        if state.is_simultaneous_node():
            state.apply_actions([next(moves) for _ in range(state.num_players())])
        else:
            state.apply_action(next(moves))
    return state.returns(), decisions


@pytest.mark.parametrize("name", GAMES)
def test_rewards_of_a_hundred_random_games_add_up_to_the_returns_and_chance_takes_no_step(name: str) -> None:
    env, choices = OpenSpielEnv(name), np.random.default_rng(0)
    for seed in range(100):
        paid, steps = play(env, seed, choices)
        returns, decisions = env.state.returns(), steps
        if name != "negotiation":  # it draws by itself, another game each time
            returns, decisions = replayed(name, env.state.history())
        assert list(paid.values()) == pytest.approx(returns)
        assert steps == decisions


def test_players_take_turns_and_both_are_paid_at_the_end() -> None:
    env = OpenSpielEnv("tic_tac_toe")
    obs, _ = env.reset()
    for player, cell in (("player_0", 0), ("player_1", 3), ("player_0", 1), ("player_1", 4)):
        assert list(obs) == [player]
        assert obs[player]["action_mask"][cell] == 1
        obs, rewards, *_ = env.step({player: cell})
        assert rewards == {"player_0": 0, "player_1": 0}
    assert obs["player_0"]["action_mask"].tolist() == [0, 0, 1, 0, 0, 1, 1, 1, 1]
    _, rewards, terminateds, truncateds, _ = env.step({"player_0": 2})
    assert rewards == {"player_0": 1, "player_1": -1}
    assert (terminateds, truncateds) == ({"__all__": True}, {"__all__": False})
    assert env.agents == []
    with pytest.raises(CallOrderError):
        env.step({"player_1": 5})


def test_players_who_move_at_once_act_in_one_step() -> None:
    env = OpenSpielEnv("matrix_pd")
    obs, _ = env.reset()
    assert set(obs) == {"player_0", "player_1"}
    # The first defects, the second cooperates.
    assert env.step({"player_0": 1, "player_1": 0})[1] == {"player_0": 10, "player_1": 0}


@pytest.mark.parametrize(
    ("name", "tensor", "expected"),
    [
        ("kuhn_poker", None, "information_state"),
        ("kuhn_poker", "observation", "observation"),
        ("tic_tac_toe", None, "observation"),
        ("goofspiel", None, "observation"),
        ("goofspiel(imp_info=True)", None, "information_state"),
        ("dark_chess", None, "observation"),
    ],
)
def test_players_observe_the_tensor_of_their_game(name: str, tensor: Any, expected: str) -> None:
    env = OpenSpielEnv(name, tensor)
    obs, _ = env.reset(seed=3)
    for agent, seen in obs.items():
        own = getattr(env.state, f"{expected}_tensor")(int(agent[-1]))
        assert seen["observation"].ravel().tolist() == np.array(own, np.float32).tolist()
        assert list(seen["observation"].shape) == getattr(env.game, f"{expected}_tensor_shape")()
        assert seen in env.get_observation_space(agent)


@pytest.mark.parametrize("name", ["leduc_poker", "goofspiel", "negotiation", "markov_soccer"])
def test_a_seed_decides_all_chance_of_a_game(name: str) -> None:
    env = OpenSpielEnv(name)

    def game(seed: int) -> str:
        play(env, seed, np.random.default_rng(0))
        return str(env.state.history()) + str(env.state)

    first = [game(seed) for seed in range(6)]
    assert [game(seed) for seed in range(6)] == first
    assert len(set(first)) > 1


def test_a_game_may_be_an_object_and_the_environment_can_be_pickled() -> None:
    env = OpenSpielEnv(pyspiel.load_game("leduc_poker", {"players": 3}))
    assert env.possible_agents == ["player_0", "player_1", "player_2"]
    env.reset(seed=1)
    copy = pickle.loads(pickle.dumps(env))
    move = {agent: env.state.legal_actions()[0] for agent in [f"player_{env.state.current_player()}"]}
    assert [one["observation"].tolist() for one in copy.step(move)[0].values()] == [
        one["observation"].tolist() for one in env.step(move)[0].values()
    ]


def test_an_action_that_is_not_legal_is_refused_before_the_game_sees_it() -> None:
    env = OpenSpielEnv("tic_tac_toe")
    env.reset()
    env.step({"player_0": 4})
    with pytest.raises(ContractError, match="player_1"):
        env.step({"player_1": 4})
    with pytest.raises(ContractError, match="actions"):
        env.step({"player_0": 1})


@pytest.mark.parametrize(
    ("game", "tensor"),
    [
        *((game, None) for game in ("mfg_garnet", "leduc", "leduc_poker(players=99)", "kuhn_poker(cards=3)")),
        ("nfg_game", None), ("tic_tac_toe", "information_state"), ("liars_dice_ir", None), (5, None),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_in_one_line(game: Any, tensor: Any) -> None:
    with pytest.raises(ConfigError, match=str(game).partition("(")[0]) as caught:
        OpenSpielEnv(game, tensor)
    assert "\n" not in str(caught.value)


def test_without_open_spiel_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(ConfigError, match="open_spiel"):
        OpenSpielEnv("kuhn_poker")


@pytest.mark.parametrize("name", ["kuhn_poker", "goofspiel(num_cards=4)"])
def test_the_checker_finds_nothing(name: str) -> None:
    assert check_env(lambda context: OpenSpielEnv(name)) == []


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_game_is_learned_from_its_name_here_and_in_workers(workers: int) -> None:
    config = {
        "train_batch_size": 200,
        "sgd_minibatch_size": 100,
        "num_sgd_iter": 1,
        "num_workers": workers,
        "seed": 0,
    }
    with PPO(env=lambda context: OpenSpielEnv("leduc_poker"), config={**config, "engine": "process"}) as algo:
        result = algo.train()
    # What one player wins the other loses, and a game of leduc has 2 to 8 decisions.
    assert result["episode_reward_mean"] == pytest.approx(0)
    assert 2 <= result["episode_len_mean"] <= 8
