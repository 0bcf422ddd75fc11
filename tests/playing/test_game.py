"""A game of policies and a person: turns, legal actions, probabilities, outcomes, and what cannot be played."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.playing import Game, Position
from tests.playing.hands import SECRET, Hands, OwnHands
from tests.worlds import Several, like

SMALL: dict[str, Any] = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tictactoe"
    by_name = {"policies": ["player1", "player2"], "policy_mapping_fn": lambda agent, *rest, **more: agent}
    with PPO(config={**SMALL, "multiagent": by_name}, env="tictactoe") as algo:
        algo.save(folder)
    return folder


def test_a_person_and_a_policy_take_turns_until_the_end(run: Path) -> None:
    with Game(run, human="player2") as game:
        position = game.start()
        assert position.agent == "player1"
        turns = 0
        while not position.done:
            position = game.advance()
            if not position.done:
                assert position.agent == "player2"
                assert position.last_actions["player1"] not in position.legal
                position = game.step(position.legal[0])
                turns += 1
        assert turns >= 2
        assert position.outcome in ("you win", "you lose", "draw")
        assert sum(position.returns.values()) == 0
        assert position.agent is None
        assert isinstance(position.picture, str)


def test_probabilities_are_those_of_the_legal_actions(run: Path) -> None:
    with Game(run) as game:
        game.start()
        position = game.advance(3)
        assert position.steps == 3
        assert position.probabilities is not None
        assert tuple(position.probabilities) == position.legal
        assert sum(position.probabilities.values()) == pytest.approx(1.0)
        best = max(position.probabilities, key=position.probabilities.__getitem__)
        assert game.advance(1).last_actions["player2"] == best


def test_the_same_seed_samples_the_same_game(run: Path) -> None:
    def actions(seed: int) -> list[Any]:
        with Game(run, seed=seed, greedy=False) as game:
            game.start()
            return [dict(game.advance(1).last_actions) for _ in range(5)]

    assert actions(3) == actions(3)
    assert any(actions(3) != actions(seed) for seed in (4, 5, 6))


def test_an_illegal_action_changes_nothing(run: Path) -> None:
    with Game(run, human="player1") as game:
        game.start()
        game.step(4)
        game.advance()
        with pytest.raises(ContractError, match="'player1'"):
            game.step(4)
        assert game.position is not None
        assert game.position.steps == 2


def test_calls_out_of_order_are_refused(run: Path) -> None:
    with Game(run) as game:
        with pytest.raises(CallOrderError, match="start"):
            game.advance()
        assert game.start().steps == 0
        assert game.advance().done
        with pytest.raises(CallOrderError, match="start"):
            game.step(0)
        assert game.start().legal == tuple(range(9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"human": "player3"}, "'player3'"),
        ({"policies": {"player1": "best"}}, "'best'"),
        ({"env": "CartPole-v1"}, "policy_mapping_fn"),
        ({"env": "no_such_game"}, "'no_such_game'"),
    ],
)
def test_wrong_arguments_get_a_message(run: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Game(run, **arguments)


# Two agents throw at the same time, twice; "b" is out after the first throw, then one step has no agent.
Throws = like(
    Several,
    observation_space=gym.spaces.Discrete(4),
    action_space=gym.spaces.Discrete(2, start=1),
    metadata={"render_modes": [], "action_names": {"a": ["low", "high"], "b": ["left", "right"]}},
    length=3,
    shown=lambda self: {2: "", 3: "a"}.get(self.at, "ab"),
    dead=lambda self, actions: "b" if self.at == 1 else "",
    see=lambda self, agent: self.at,
    pay=lambda self, actions: {"a": 1.0, "b": -0.5 * self.at},
)


def test_agents_that_act_together_choose_one_after_another_the_person_first(tmp_path: Path) -> None:
    with PPO(config=SMALL, env=Throws) as algo:
        algo.save(tmp_path / "run")
    with pytest.raises(ConfigError):
        Game(tmp_path / "run")
    with Game(tmp_path / "run", human="b", env=Throws) as game:
        first = game.start()
        assert (first.agent, first.legal, first.names) == ("b", (1, 2), ("left", "right"))
        second = game.step(2)
        assert (second.agent, second.names, second.steps) == ("a", ("low", "high"), 0)
        assert second.last_actions == {}
        third = game.advance(1)
        assert (third.agent, third.steps, third.last_actions["b"]) == ("a", 1, 2)
        end = game.advance()
        assert end.done
        assert end.returns == {"a": 3.0, "b": -3.0}
        assert end.outcome == "you lose"


@pytest.mark.parametrize("model", [{"use_lstm": True}, {}])
def test_an_environment_of_one_agent_is_watched(tmp_path: Path, model: dict[str, Any]) -> None:
    with PPO(config={**SMALL, "model": model}, env="CartPole-v1") as algo:
        algo.save(tmp_path / "run")
    with Game(tmp_path / "run", render_mode="ansi") as game:
        assert game.agents == ["agent0"]
        position: Position = game.start()
        assert position.picture is None
        for _ in range(3):
            assert position.probabilities is not None
            assert sum(position.probabilities.values()) == pytest.approx(1.0)
            position = game.advance(1)
        assert game.advance().outcome == f"return {game.position.steps:.2f}" if game.position else False


def test_a_person_cannot_play_without_discrete_actions(tmp_path: Path) -> None:
    with PPO(config=SMALL, env="Pendulum-v1") as algo:
        algo.save(tmp_path / "run")
    with pytest.raises(ConfigError, match="Discrete"):
        Game(tmp_path / "run", human="agent0")
    with Game(tmp_path / "run") as game:
        assert game.start().legal == ()
        assert game.advance(1).steps == 1


def test_a_game_needs_no_torch(run: Path) -> None:
    code = f"import sys, menv.playing as p; p.Game({str(run)!r}).start(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_person_sees_only_what_the_game_shows_its_player(tmp_path: Path) -> None:
    pytest.importorskip("pyspiel")
    with PPO(config=SMALL, env="openspiel:leduc_poker") as algo:
        algo.save(tmp_path / "run")
    with Game(tmp_path / "run", human="player_1", env="openspiel:leduc_poker", seed=2) as game:
        game.start()
        position = game.advance()
        assert isinstance(position.picture, str)
        assert "[Observer: 1]" in position.picture
        assert set(position.names) <= {"Fold", "Call", "Raise"}
        assert position.names[-1] in ("Call", "Raise")
        assert game.action_name("player_0", position.last_actions["player_0"]) in ("Call", "Raise")
        game.human = None
        assert "Cards (public player_0 player_1)" in str(game.start().picture)


@pytest.mark.parametrize("env", [Hands, OwnHands])
def test_a_person_sees_other_hands_at_the_end_or_on_request(tmp_path: Path, env: Any) -> None:
    with PPO(config=SMALL, env=env) as algo:
        algo.save(tmp_path / "run")
    with Game(tmp_path / "run", env=env, human="a", render_mode="ansi") as game:
        position, seen = game.start(), []
        while not position.done:
            seen.append(position.picture)
            position = game.step(0) if position.agent == "a" else game.advance(1)
        assert seen == [None if env is Hands else "you have acorn"] * 4
        assert SECRET in str(position.picture)
        game.start()
        shown = game.reveal().picture
        assert shown == (f"a has acorn, b has {SECRET}" if env is Hands else "you have acorn")
    with Game(tmp_path / "run", env=env, human="b") as game:
        picture = game.start().picture
        assert (None if picture is None else np.shape(picture)) == (None if env is Hands else (6, 10, 3))
    for human in ("a", None):
        with Game(
            tmp_path / "run", env=env, human=human, show_all=human is not None, render_mode="rgb_array"
        ) as game:
            picture = game.start().picture
            assert isinstance(picture, np.ndarray) == (env is Hands or human is None)


class Waits(Several):
    """No agent ever acts."""

    observation_space, action_space, length = Throws.observation_space, Throws.action_space, 0

    def shown(self) -> Any:
        return ()


def test_an_environment_in_which_no_agent_acts_is_refused(tmp_path: Path) -> None:
    with PPO(config=SMALL, env=Throws) as algo:
        algo.save(tmp_path / "run")
    with Game(tmp_path / "run", env=Waits) as game, pytest.raises(ContractError, match="waited"):
        game.start()


def test_observations_of_an_observation_fn_cannot_be_made_here(tmp_path: Path) -> None:
    unchanged = {"observation_fn": lambda agent_obs, **more: agent_obs}
    with PPO(config={**SMALL, "multiagent": unchanged}, env="tictactoe") as algo:
        algo.save(tmp_path / "run")
    with pytest.raises(ConfigError, match="observation_fn"):
        Game(tmp_path / "run")


def test_stacked_frames_are_kept_between_moves(tmp_path: Path) -> None:
    frames = [("FrameStackAgentConnector", {"num_frames": 4})]
    with PPO(config={**SMALL, "agent_connectors": frames}, env="tictactoe") as algo:
        algo.save(tmp_path / "run")
    with Game(tmp_path / "run") as game:
        for _ in range(2):
            assert game.start().probabilities is None
            assert game.advance().done
